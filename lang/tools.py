"""Tools: Python functions that a model calls, with arguments of their annotated types.

A call is JSON, `{"name": …, "arguments": {…}}`, and cannot be anything that its function does not
take. The program reads it, runs it, and adds the result. This module knows no states and no
templates.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import operator
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired

from boughs.lang import ir, loop
from boughs.lang.errors import InvalidRequest, located
from boughs.lang.expression import Expression, Target
from boughs.lang.gens import OnIncomplete, check_name, gen_of
from boughs.lang.pool import in_thread
from boughs.lang.typed import Typed, typed


@dataclass(eq=False)
class Tool:
    """A function that a model may call. Python code calls it as it called the function.

    Attributes:
        func: The function, plain or async.
        name: What the model calls it.
        description: What the model is told of it.
        arguments: The type of its arguments: a `TypedDict`.
    """

    func: Callable[..., Any]
    name: str
    description: str
    arguments: Any = field(repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.func(*args, **kwargs)

    @property
    def spec(self) -> dict[str, Any]:
        """Name, description and JSON schema of the parameters, as OpenAI's API has them."""
        from pydantic import TypeAdapter

        schema = TypeAdapter(self.arguments).json_schema()
        schema.pop("title", None)
        return {"name": self.name, "description": self.description, "parameters": schema}


@dataclass(frozen=True, slots=True)
class ToolResult(Expression):
    """What a call came to; a program reads it, or adds it to its state.

    In a conversation it is added as a message of the role `tool` where the model's template has
    one, and as a user's message where not; inside of a message, and where a program has no roles,
    as text.

    Attributes:
        name: The tool's name.
        value: What its function returned.
        error: What it raised instead, if it did.
    """

    name: str
    value: Any = None
    error: Exception | None = None

    @property
    def text(self) -> str:
        """What the model is told: a text as it is, any other value as JSON, an error by name."""
        if self.error is not None:
            return f"{type(self.error).__name__}: {self.error}"
        if isinstance(self.value, str):
            return self.value
        from pydantic_core import to_json

        return to_json(self.value, fallback=str).decode()

    def put(self, target: Target) -> None:
        """Queue it."""
        target.submit(ir.ToolMessage(self.text))


@dataclass(frozen=True)
class ToolCall:
    """A call that a model wrote.

    Attributes:
        name: The tool's name.
        arguments: Name to value, of the types that the function's parameters have.
        tool: The tool.
    """

    name: str
    arguments: dict[str, Any]
    tool: Tool = field(repr=False, compare=False)

    def run(self) -> ToolResult:
        """Call the function. What it raises is in the result.

        Raises:
            InvalidRequest: The function is async, and so is the program.
        """
        is_async = inspect.iscoroutinefunction(self.tool.func)
        if is_async and loop.on_loop():
            raise InvalidRequest(
                f"{self.name}: an async program must not block; write `await call.run_async()`"
            )
        try:
            made = self.tool.func(**self.arguments)
            return ToolResult(self.name, loop.run(made) if is_async else made)
        except Exception as error:  # noqa: BLE001 - the program reads it
            return ToolResult(self.name, error=error)

    async def run_async(self) -> ToolResult:
        """`run` for async programs; a plain function runs in a thread."""
        try:
            if inspect.iscoroutinefunction(self.tool.func):
                return ToolResult(self.name, await self.tool.func(**self.arguments))
            return ToolResult(self.name, await in_thread(lambda: self.tool.func(**self.arguments)))
        except Exception as error:  # noqa: BLE001 - the program reads it
            return ToolResult(self.name, error=error)


def tool(
    func: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
) -> Any:
    """Make a function a tool; its name and docstring are what the model is told.

    Args:
        func: The function. All its parameters are annotated, with types that `gen` can write.
        name: Another name than the function's.
        description: Another description than its docstring.

    Raises:
        InvalidRequest: A parameter that a call cannot give; names the function and the parameter.
    """
    if func is None:
        return functools.partial(tool, name=name, description=description)
    if isinstance(func, Tool):
        return func
    if not callable(func):
        raise InvalidRequest(f"tool: expected a function, got {func!r:.60}", "func")
    called = str(name or getattr(func, "__name__", type(func).__name__))
    said = inspect.getdoc(func) if description is None else description
    made = Tool(func, called, said or "", _arguments(func, called))
    functools.update_wrapper(made, func, updated=())
    return made


def describe_tools(tools: Sequence[Tool | Callable[..., Any]]) -> str:
    """The tools for a prompt: one line of JSON each, with name, description and parameters."""
    return "\n".join(json.dumps(each.spec, ensure_ascii=False) for each in tools_of(tools))


def gen_tool_call(
    name: str | None = None,
    tools: Sequence[Tool | Callable[..., Any]] = (),
    *,
    on_incomplete: OnIncomplete = "raise",
    **parameters: Any,
) -> Expression:
    """A call of one of some tools, which the model writes; the variable is a `ToolCall`.

        import boughs
        from boughs.testing import MockBackend

        def add(a: int, b: int) -> int:
            "Add two numbers."
            return a + b

        @boughs.function
        def sums(s, question):
            s += boughs.system(boughs.describe_tools([add])) + boughs.user(question)
            s += boughs.assistant(boughs.gen_tool_call("call", tools=[add]))
            s += s["call"].run()
            s += boughs.assistant(boughs.gen("answer"))

        backend = MockBackend(['{"name": "add", "arguments": {"a": 2, "b": 3}}', "It is 5."])
        assert sums.run("What is 2 + 3?", backend=backend)["answer"] == "It is 5."

    Args:
        name: The variable that holds it.
        tools: The tools, or functions that could be.
        on_incomplete: As in `gen`.
        parameters: Sampling parameters, as in `gen`.

    Raises:
        InvalidRequest: An argument or a tool is wrong; names it.
    """
    check_name(name, "gen_tool_call")
    known = tools_of(tools)
    try:
        kind = calls_of(known)
    except InvalidRequest as error:
        raise located(error, f"gen_tool_call: variable {name!r}") from None
    return gen_of(name, kind, parameters, on_incomplete)


class _Calls(Typed):
    """The texts of calls. Tracing a program calls nothing."""

    def placeholder(self) -> tuple[str, Any]:
        text, call = super().placeholder()
        idle = dataclasses.replace(call.tool, func=lambda **_: "{" + call.name + "}")
        return text, dataclasses.replace(call, tool=idle)


@functools.lru_cache(maxsize=128)
def calls_of(tools: tuple[Tool, ...]) -> Typed:
    """The texts of calls of some tools; the value is a `ToolCall`."""
    by_name = {each.name: each for each in tools}
    forms = []
    for each in tools:
        try:
            typed(each.arguments)
        except InvalidRequest as error:
            raise located(error, f"tool {each.name}") from None
        forms.append(
            _typed_dict(each.name, {"name": Literal[each.name], "arguments": each.arguments})
        )
    kind = typed(functools.reduce(operator.or_, forms))

    def parse(text: str) -> ToolCall:
        call = kind.parse(text)
        return ToolCall(call["name"], dict(call["arguments"]), by_name[call["name"]])

    return _Calls("tool call", kind.sampling, parse, kind.example, kind.ends_itself, kind.is_json)


def tools_of(tools: object) -> tuple[Tool, ...]:
    """The tools that a list of them and of functions stands for."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence) or not tools:
        raise InvalidRequest(f"tools: expected a list of functions, got {tools!r:.60}", "tools")
    known = tuple(map(_as_tool, tools))
    names = [each.name for each in known]
    for each in names:
        if names.count(each) > 1:
            raise InvalidRequest(f"tools: two are called {each}; give one tool(name=…)", "tools")
    return known


def _as_tool(func: Any) -> Tool:
    if isinstance(func, Tool):
        return func
    try:
        return _made(func)
    except TypeError:  # it cannot be hashed
        return typing.cast("Tool", tool(func))


@functools.lru_cache(maxsize=512)
def _made(func: Any) -> Tool:
    return typing.cast("Tool", tool(func))


def _arguments(func: Callable[..., Any], name: str) -> Any:
    """The type of a function's arguments."""
    try:
        hints = typing.get_type_hints(func, include_extras=True)
        parameters = inspect.signature(func).parameters
    except (NameError, TypeError, ValueError) as error:
        raise InvalidRequest(f"tool {name}: its parameters cannot be read: {error}") from None
    fields: dict[str, Any] = {}
    for each, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidRequest(
                f"tool {name}: parameter {each} cannot be given by name; a call gives all by name",
                each,
            )
        if each not in hints:
            raise InvalidRequest(
                f"tool {name}: parameter {each} has no type; annotate it, as in {each}: int", each
            )
        given = parameter.default is not parameter.empty
        fields[each] = NotRequired[hints[each]] if given else hints[each]
    return _typed_dict(f"{name}_arguments", fields)


def _typed_dict(name: str, fields: dict[str, Any]) -> Any:
    import typing_extensions

    return typing_extensions.TypedDict(name, fields)  # type: ignore[operator]
