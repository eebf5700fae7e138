"""`tools`: turns in which a model calls Python functions, as one expression.

It describes the tools, has a call written, runs it and adds the result, so often as it may. This
module knows no states.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from boughs.lang import grammar, ir
from boughs.lang.errors import InvalidRequest, located
from boughs.lang.expression import Expression, Node
from boughs.lang.gens import OnIncomplete, check_name, gen_of
from boughs.lang.tools import Tool, ToolCall, ToolResult, calls_of, describe_tools, tools_of
from boughs.lang.typed import ENDS, Typed

OnError = Literal["tell", "raise"]

RESULTS = "_results"
"""A variable's name and this is the name of what its calls came to."""

HOW = 'To call a tool, write JSON: {"name": …, "arguments": {…}}. The tools:\n'
OR_ANSWER = "To answer, write text. "


@dataclass(frozen=True, slots=True)
class ToolTurns(Node):
    """Turns of a model with tools.

    Attributes:
        gen: What the model writes in a turn: a `ToolCall` or, where it may answer, a text.
        how: What it is told of how to call.
        described: The tools, as `describe_tools` has them; told, with `how` before it, unless the
            state holds it already. None: nothing is told.
        calls: Whether a call is run, and its result added.
        rounds: How many turns there are at most.
        raises: Whether an error of a function ends the program.
    """

    gen: ir.Gen
    how: str
    described: str | None
    calls: bool
    rounds: int
    raises: bool

    async def run(self, runner: ir.Runner) -> None:
        """Tell of the tools, and take the turns."""
        if self.described is not None and not runner.holds(self.described):
            await runner.add_message("system", self.how + self.described)
        results: list[ToolResult] = []
        await runner.run_set(ir.SetVariable(f"{self.gen.name}{RESULTS}", results))
        for _ in range(self.rounds):
            written = await runner.take_turn(self.gen)
            if not (self.calls and isinstance(written, ToolCall)):
                return
            result = await written.run_async()
            results.append(result)
            if self.raises and result.error is not None:
                raise located(result.error, f"tool {result.name}")
            await runner.run_tool_message(ir.ToolMessage(result.text))

    @property
    def variable(self) -> str | None:
        """The variable that holds what the model wrote last."""
        return self.gen.name

    @property
    def sets_any(self) -> bool:
        """It does: the results."""
        return True

    def __str__(self) -> str:
        return f"tools {self.gen.name!r}, at most {self.rounds}"


def tools(
    tools: Sequence[Tool | Callable[..., Any]],
    name: str = "call",
    *,
    run: bool = True,
    rounds: int = 1,
    may_answer: bool = False,
    on_error: OnError = "tell",
    describe: bool = True,
    on_incomplete: OnIncomplete = "raise",
    **parameters: Any,
) -> Expression:
    """Turns in which the model calls tools: each call is run and its result added.

    `s["call"]` is what the model wrote last: a `ToolCall`, or the text of its answer. Its results
    are in `s["call_results"]`, a list of `ToolResult`s, one a round.

        import boughs
        from boughs.testing import MockBackend

        def add(a: int, b: int) -> int:
            "Add two numbers."
            return a + b

        @boughs.function
        def sums(s, question):
            s += boughs.user(question)
            s += boughs.tools([add], "answer", rounds=3, may_answer=True)

        backend = MockBackend(['{"name": "add", "arguments": {"a": 2, "b": 3}}', "It is 5."])
        state = sums.run("What is 2 + 3?", backend=backend)
        assert state["answer"] == "It is 5."
        assert [result.value for result in state["answer_results"]] == [5]

    In a conversation every call is a turn of the assistant, and a result a message as that of
    `ToolResult`. Inside of a message, and where a program has no roles, all is text. Functions run
    beside the program, plain ones in threads; the program goes on until it reads a variable.

    Args:
        tools: The tools, or functions that could be.
        name: The variable.
        run: Whether calls are run. Without it there is one call, for the program to look at.
        rounds: How many calls the model may write, one after the other.
        may_answer: Whether it may write text in place of a call; that ends the turns. (A grammar:
            a text that does not begin with a brace.)
        on_error: Whether an error of a function is told to the model as its result, or raised.
        describe: Whether a system message (a user's, if the template has none here) tells of the
            tools before the first call. It does not where the state holds `describe_tools` of them.
        on_incomplete: As in `gen`; it says too whether a call that was cut ends the program.
        parameters: Sampling parameters of each call, as in `gen`.

    Raises:
        InvalidRequest: An argument or a tool is wrong; names it.
    """
    if name is None:
        raise InvalidRequest("tools: name: results need a variable's name", "name")
    check_name(name, "tools")
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
        raise InvalidRequest(
            f"tools: rounds: expected a number of at least 1, got {rounds!r:.40}", "rounds"
        )
    if rounds > 1 and not run:
        raise InvalidRequest("tools: rounds: calls that are not run have one round", "rounds")
    if on_error not in get_args(OnError):
        raise InvalidRequest(
            f"tools: on_error: expected 'tell' or 'raise', got {on_error!r:.40}", "on_error"
        )
    if parameters.get("n") not in (None, 1):
        raise InvalidRequest("tools: n: a turn is one call, so n is 1", "n")
    parameters["n"] = 1
    known = tools_of(tools)
    try:
        kind = _call_or_answer(known) if may_answer else calls_of(known)
    except InvalidRequest as error:
        raise located(error, f"tools: variable {name!r}") from None
    gen = gen_of(name, kind, parameters, on_incomplete)
    assert isinstance(gen, ir.Gen)
    return ToolTurns(
        gen,
        OR_ANSWER + HOW if may_answer else HOW,
        describe_tools(known) if describe else None,
        run,
        rounds,
        on_error == "raise",
    )


@functools.lru_cache(maxsize=128)
def _call_or_answer(tools: tuple[Tool, ...]) -> Typed:
    """The texts of calls, and all that begin otherwise."""
    calls = calls_of(tools)
    call = grammar.json(calls.sampling["json_schema"])
    source = grammar.alt(call, grammar.regex(r"[^{](.|\n)*")).lark()

    def parse(text: str) -> Any:
        return calls.parse(text) if text.startswith("{") else text

    return dataclasses.replace(
        calls, name="tool call or answer", sampling={**ENDS, "ebnf": source}, parse=parse
    )
