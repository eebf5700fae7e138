"""Choices as a tree: what they have in common is computed once, and each token is scored once.

The row of a token predicts all tokens that follow it in any choice, so that the last token of a
choice needs no row of its own, and a choice that begins another one costs nothing. This module
knows no text, and of the core only that it reads the tokens it is told to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from boughs.lang.errors import RequestAborted
from boughs.lang.requests import ScoreRequest
from boughs.lang.results import ChoiceScore, Scores, finite
from boughs.lang.sampling import SamplingParams
from boughs.runtime.messages import Submit

from .running import ABORTED, Running

WORTH_A_STEP = 16
"""Tokens that choices share are computed once where they are at least so many: the branches then
wait for a step of the first. Fewer are computed again by each, in one step."""


class ScorePlan(NamedTuple):
    """Choices to be scored.

    Attributes:
        prompt_ids: The prompt alone.
        tails: Of the prompt with each choice, the tokens from the border on.
        border: The first position at which any of them differs from the prompt alone.
        rendered: The text of each role mark.
    """

    prompt_ids: list[int]
    tails: list[list[int]]
    border: int
    rendered: list[str]


class Node:
    """A token of the tree: those that follow it, and their logprobs once they are known."""

    __slots__ = ("children", "logprobs")

    def __init__(self) -> None:
        self.children: dict[int, Node] = {}
        self.logprobs: dict[int, float] = {}


class Branch(NamedTuple):
    """What one submission computes.

    Attributes:
        ids: The tokens after the head, down to the last one that anything follows.
        nodes: Of the last of `ids`, those whose followers are read here; the root may be first.
        again: Rows before those that are computed, too, although another branch has them.
    """

    ids: list[int]
    nodes: list[Node]
    again: int

    @property
    def targets(self) -> list[list[int]]:
        """As `Submit.targets`."""
        return [[] for _ in range(self.again)] + [list(node.children) for node in self.nodes]


class ChoiceTree:
    """The tails of choices behind a head.

    Args:
        head: What stands before all of them; without it nothing predicts their first tokens.
        tails: The tokens of each choice.
    """

    def __init__(self, head: list[int], tails: list[list[int]]) -> None:
        self.head = head
        self._root = Node()
        for tail in tails:
            node = self._root
            for token in tail:
                node = node.children.setdefault(token, Node())
        if not head:
            self._root.logprobs = dict.fromkeys(self._root.children, 0.0)

    def branches(self) -> Iterator[Branch]:
        """What is to be computed; a branch comes after the one whose rows it shares."""
        stack: list[tuple[list[int], Node]] = [([], self._root)]
        while stack:
            ids, node = stack.pop()
            shared = max(0, len(ids) - 1)
            nodes = []
            while node.children:
                if self.head or ids:
                    nodes.append(node)
                inner = [(token, child) for token, child in node.children.items() if child.children]
                stack += [([*ids, token], child) for token, child in inner[1:]]
                if not inner:
                    break
                token, node = inner[0]
                ids.append(token)
            if nodes:
                yield Branch(ids, nodes, shared if shared < WORTH_A_STEP else 0)

    def logprobs(self, tail: list[int]) -> list[float]:
        """Of each token of a tail, once all branches have been read; 0.0 where nothing predicts."""
        found, node = [], self._root
        for token in tail:
            found.append(node.logprobs[token])
            node = node.children[token]
        return found


async def score(run: Running, plan: ScorePlan, request: ScoreRequest) -> Scores:
    """Run a plan's branches, all at once.

    Raises:
        RequestAborted: It was aborted.
        BoughsError: What a branch failed with.
    """
    tails = plan.tails
    tree = ChoiceTree(plan.prompt_ids[: plan.border], tails)
    bare = ChoiceTree([], tails) if request.unconditional else None
    branches = list(tree.branches())
    count = len(branches)
    for branch in branches:
        run.submit(_submit(tree.head + branch.ids, branch, request))
    for branch in () if bare is None else bare.branches():
        branches.append(branch)
        run.submit(_submit(branch.ids, branch, request))
    cached, steps = len(plan.prompt_ids), 0
    for _ in branches:
        event = await run.next()
        if event is None:
            raise RequestAborted(ABORTED)
        index, output, cached_tokens = event
        _, nodes, again = branches[index]
        assert output.scores is not None, "the core answers a submission with targets once"
        for node, values in zip(nodes, output.scores[again:], strict=True):
            node.logprobs = dict(zip(node.children, map(finite, values), strict=True))
        steps += output.forward_steps
        if index < count:
            cached = min(cached, cached_tokens)
    return Scores(
        choices=[
            ChoiceScore(
                token_ids=tail,
                logprobs=tree.logprobs(tail),
                unconditional=None if bare is None else bare.logprobs(tail),
            )
            for tail in tails
        ],
        prompt_tokens=len(plan.prompt_ids),
        cached_tokens=cached,
        forward_steps=steps,
        rendered=plan.rendered,
    )


def _submit(ids: list[int], branch: Branch, request: ScoreRequest) -> Submit:
    return Submit(
        key=0,
        prompt_ids=ids,
        params=SamplingParams(max_new_tokens=0, seed=0, priority=request.priority),
        namespace=request.cache_salt or "",
        targets=branch.targets,
    )
