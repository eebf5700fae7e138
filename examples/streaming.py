"""Streaming: text is printed as it is made, by variable and whole, sync and async."""

import asyncio

from common import backend, report

import boughs


@boughs.function
def story(s, hero):
    s += boughs.user(f"Tell a short story about {hero}.")
    s += boughs.assistant(boughs.gen("story", max_tokens=64, temperature=0))
    s += boughs.user("Give it a title.")
    s += boughs.assistant(boughs.gen("title", max_tokens=12, temperature=0))


async def stream_title(state):
    async for piece in state.text_async_iter("title"):
        print(piece, end="", flush=True)
    print()


def main():
    with backend(), report("streaming") as tree:
        state = story.run(hero="a lighthouse keeper", stream=True)
        for piece in state.text_iter("story"):
            print(piece, end="", flush=True)
        print("\n--- its title:")
        asyncio.run(stream_title(state))
        tree.add([state])


if __name__ == "__main__":
    main()
