"""A chat of three turns. Every turn finds the ones before it in the tree."""

from common import backend, report

import boughs


@boughs.function
def guide(s, place):
    s += boughs.system("You are a helpful travel guide. Answer briefly.")
    s += boughs.user(f"What is {place} famous for?")
    s += boughs.assistant(boughs.gen("famous", max_tokens=48, temperature=0))
    s += boughs.user("What should I eat there?")
    s += boughs.assistant(boughs.gen("food", max_tokens=48, temperature=0))
    s += boughs.user("Sum up your advice in one sentence.")
    s += boughs.assistant(boughs.gen("advice", max_tokens=48, temperature=0))


def main():
    with backend(), report("multi-turn") as tree:
        state = guide.run(place="Rome")
        tree.add([state])
        for message in state.messages():
            print(f"{message['role']:>9}: {message['content'].strip()}")
        for name in ("famous", "food", "advice"):
            info = state.get_meta_info(name)
            print(
                f"{name:>9}: {info['prompt_tokens']} prompt tokens, "
                f"{info['cached_tokens']} of them from the tree"
            )


if __name__ == "__main__":
    main()
