"""`separate_reasoning`: what a model thought before it answered, in a variable of its own.

The marks are those of SGLang's parsers of the same names. A program that keeps its reasoning where
the model's template would not is warned. This module knows no states.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from boughs.lang import ir
from boughs.lang.backend import Backend
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.expression import Expression, Sum, as_expression

log = logging.getLogger("boughs")

SUFFIX = "_reasoning_content"
"""What a variable's name and this is the name of its reasoning."""


@dataclass(frozen=True)
class Marks:
    """Where reasoning begins and ends in a text.

    Attributes:
        begin: The mark before it; the prompt may hold it already.
        end: The mark after it.
        always: Whether a text without marks is reasoning that did not come to its end.
    """

    begin: str
    end: str
    always: bool = False

    def split(self, text: str) -> tuple[str, str]:
        """A text's reasoning and its answer, either of which may be empty."""
        if not (self.always or self.begin in text or self.end in text):
            return "", text
        before, _, after = text.partition(self.end)
        return before.replace(self.begin, "", 1).strip(), after.strip()


_THINK = Marks("<think>", "</think>")
_ALWAYS = Marks("<think>", "</think>", always=True)

MARKS = {
    "deepseek-r1": _ALWAYS,
    "deepseek-v3": _THINK,
    "glm45": _THINK,
    "kimi": Marks("◁think▷", "◁/think▷"),
    "qwen3": _THINK,
    "qwen3-thinking": _ALWAYS,
    "step3": _ALWAYS,
}
"""Of the models that a `model_type` names."""


def separate_reasoning(expr: Expression | None = None, model_type: str | None = None) -> Expression:
    """Give the reasoning of each gen in `expr` a variable of its own.

    `s["x"]` is then the answer and `s["x_reasoning_content"]` what the model thought before it;
    the state goes on with the answer alone, as chat templates have it for turns that are over.
    While the text is made nobody can tell the two apart, so it is streamed in one piece.

        import boughs
        from boughs.testing import MockBackend

        @boughs.function
        def think(s):
            s += boughs.user("2 + 2?")
            s += boughs.separate_reasoning(boughs.assistant(boughs.gen("x")), "qwen3")

        state = think.run(backend=MockBackend("<think>easy</think>4"))
        assert (state["x_reasoning_content"], state["x"]) == ("easy", "4")

    Args:
        expr: One gen or more, all with names and without types, and whatever else.
        model_type: Whose marks to look for; by default `<think>` and `</think>`.

    Raises:
        InvalidRequest: There is no such gen.
        Unsupported: We know no marks of this model type.
    """
    if model_type is not None and model_type not in MARKS:
        raise Unsupported(
            f"model_type: the marks of {model_type!r} are not known; there are {', '.join(MARKS)}",
            "model_type",
        )
    marks = _THINK if model_type is None else MARKS[model_type]
    terms = list(_terms(as_expression(expr, "separate_reasoning")))
    if not any(isinstance(term, ir.Gen) for term in terms):
        raise InvalidRequest("separate_reasoning: there is no gen in the expression", "expr")
    return Sum(tuple(_marked(term, marks) for term in terms))


class Watch:
    """Warns, once a program, of reasoning that stays in turns out of which the template takes it.

    Args:
        program: Its name.
        backend: Who knows the template.
    """

    _warned: ClassVar[set[str]] = set()

    def __init__(self, program: str, backend: Backend) -> None:
        self._program = program
        self._backend = backend
        self._asked = False

    async def turn_over(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """A user's turn begins: the turns before it are over."""
        kept = {mark for mark in _ENDS if any(_holds(message, mark) for message in messages)}
        if not kept or self._asked or self._program in self._warned:
            return
        self._asked = True
        try:
            info = await self._backend.get_server_info()
        except Exception:  # noqa: BLE001 - a warning fails no program
            return
        if not kept.isdisjoint(info.get("dropped_reasoning", ())):
            self._warned.add(self._program)
            log.warning(
                "program %s: what the model thought stays in its earlier turns, out of which the "
                "model's own chat template takes it; separate_reasoning(…) takes it out",
                self._program,
            )


_ENDS = tuple({marks.end: None for marks in MARKS.values()})


def _holds(message: Mapping[str, Any], mark: str) -> bool:
    return message["role"] == "assistant" and mark in str(message["content"])


def _terms(expr: Expression) -> Iterator[Expression]:
    if not isinstance(expr, Sum):
        yield expr
        return
    for term in expr.terms:
        yield from _terms(term)


def _marked(term: Expression, marks: Marks) -> Expression:
    if not isinstance(term, ir.Gen):
        return term
    if term.name is None:
        raise InvalidRequest("separate_reasoning: a gen has no name; give it one", "name")
    if term.kind is not None or term.dtype is not None:
        raise InvalidRequest(
            f"separate_reasoning: variable {term.name!r} has a type, and its values no reasoning",
            "type",
        )
    return dataclasses.replace(term, reasoning=marks)
