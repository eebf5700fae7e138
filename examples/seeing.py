"""Seeing what a program did: its graph, its trace on the terminal and as a page, what it cost."""

import tempfile
from pathlib import Path
from typing import Literal, TypedDict

from common import backend, report

import boughs


class Verdict(TypedDict):
    """What a critic says."""

    stars: Literal[1, 2, 3]
    worth_watching: bool


@boughs.function
def review(s, film):
    s += boughs.user(f"Describe the film {film} in one sentence.")
    s += boughs.assistant(boughs.gen("plot", max_tokens=24, temperature=0, stop="\n"))
    critics = s.fork(2)
    for critic, view in zip(critics, ("the story", "the music"), strict=True):
        critic += boughs.user(f"Judge {view} as JSON.")
        critic += boughs.assistant(boughs.gen("verdict", type=Verdict, max_tokens=24))
    critics.join()
    s += boughs.user("Would you watch it again?")
    s += boughs.assistant(boughs.select("again", choices=["Yes", "No"]))


def main():
    print(review.graph("Metropolis"), end="\n\n")
    with backend(), report("seeing") as tree:
        states = review.run_batch(
            [{"film": film} for film in ("Metropolis", "Modern Times")],
            temperature=0,
            progress_bar=True,
        )
        trace = states[0].trace()
        print(trace, end="\n\n")
        page = Path(tempfile.mkdtemp(prefix="boughs-")) / "trace.html"
        trace.save(page)
        print(f"The same as a page: {page}")
        print(f"Both films: {states.usage}")
        tree.add(states)


if __name__ == "__main__":
    main()
