"""A judge with parallel branches: one essay, four questions at once, one verdict."""

from common import backend, report

import boughs

ESSAY = """\
Rain gardens are shallow hollows planted with grasses and flowers. When it rains, water from roofs
and streets runs into them and seeps slowly into the ground. They keep cellars dry, feed the ground
water, and give bees and birds a place to live. A rain garden needs little care: it is weeded twice
a year, and after dry weeks it is watered. Every town could have hundreds of them.
"""
QUALITIES = ["clarity", "evidence", "structure", "style"]


@boughs.function
def judge(s, essay):
    s += boughs.system("You are a fair judge of essays.")
    s += boughs.user("Here is an essay.\n\n" + essay)
    branches = s.fork(len(QUALITIES))
    for branch, quality in zip(branches, QUALITIES, strict=True):
        branch += boughs.user(f"Comment on its {quality} in one sentence, then give 1 to 9 points.")
        branch += boughs.assistant(
            boughs.gen("comment", max_tokens=40, temperature=0, stop="\n")
            + "\nPoints: "
            + boughs.gen("points", regex="[1-9]", max_tokens=2, temperature=0)
        )
    branches.join()
    points = [int(mark) for mark in s["points"]]
    s["total"] = sum(points)
    s += boughs.user(f"The essay got {s['total']} of {9 * len(points)} points. Say so kindly.")
    s += boughs.assistant(boughs.gen("verdict", max_tokens=48, temperature=0))


def main():
    with backend(), report("judge") as tree:
        state = judge.run(essay=ESSAY)
        tree.add([state])
        for quality, comment, mark in zip(
            QUALITIES, state["comment"], state["points"], strict=True
        ):
            print(f"{quality} ({mark}/9): {comment.strip()}")
        print(f"verdict ({state['total']}): {state['verdict'].strip()}")


if __name__ == "__main__":
    main()
