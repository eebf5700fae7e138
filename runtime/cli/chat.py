"""`boughs chat`: a conversation in the terminal, which is a program like any other.

This module knows lines of text and turns; what a turn costs comes from the program's state.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from boughs.lang.backend import Backend, Host
from boughs.lang.errors import BoughsError
from boughs.lang.primitives import gen
from boughs.lang.program import function
from boughs.lang.roles import assistant, content, system, user
from boughs.lang.sampling import SamplingParams
from boughs.lang.state import ProgramState

from . import output
from .backends import DEFAULT_MODEL, add_backend_flags, open_backend

if TYPE_CHECKING:
    from rich.console import Console

_EXAMPLES = """\
examples:
  boughs chat
  boughs chat smollm2-135m --system "Answer in one word." --temperature 0
  boughs chat --endpoint http://127.0.0.1:30000
  printf 'Hello!\\nWhat did I say?\\n' | boughs chat

in the chat:
  /system TEXT   begin anew under this system prompt
  /reset         begin anew
  /exit          leave, as Ctrl-D does
Ctrl-C ends an answer early; where none is being made, it leaves.
"""

_COMMANDS = "commands: /system TEXT, /reset, /exit"

Read = Callable[[], str | None]
"""Gives the user's next line; None at the end."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the CLI."""
    parser = subparsers.add_parser(
        "chat",
        help="chat with a model in the terminal",
        description="Chat with a model in the terminal. Lines of a pipe are turns too.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="an alias, a folder, a GGUF file or a hub name "
        f"(default {DEFAULT_MODEL}, where there is no --endpoint)",
    )
    group = parser.add_argument_group("answers")
    group.add_argument("--system", metavar="TEXT", help="the system prompt")
    group.add_argument(
        "--temperature", type=float, default=0.7, metavar="X", help="default %(default)s"
    )
    group.add_argument("--top-p", type=float, default=1.0, metavar="X", help="default %(default)s")
    group.add_argument(
        "--max-tokens", type=int, default=512, metavar="N", help="of an answer; default %(default)s"
    )
    group.add_argument("--seed", type=int, metavar="N", help="to get the same answers again")
    add_backend_flags(parser)
    parser.set_defaults(func=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code. Errors are raised as what they are."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):  # a Python without it reads plain lines
            import readline  # noqa: F401 -- gives `input` editing and history
    options = {
        "temperature": args.temperature,
        "top_p": args.top_p,
        "max_new_tokens": args.max_tokens,
        "seed": args.seed,
    }
    given = {name: value for name, value in options.items() if value is not None}
    SamplingParams.from_mapping(given)  # a wrong value is told before a model is loaded
    with open_backend(args, args.model) as backend:
        notes = output.console(stderr=not is_terminal)
        screen = Screen(output.console(), notes, prompts=is_terminal)
        screen.tell(_COMMANDS if is_terminal else None)
        talk = Talk(system=args.system)
        while talk.goes_on:
            hold(talk, screen, given, backend)
    return 0


@dataclass
class Screen:
    """Where a chat is read and written.

    Attributes:
        answers: Gets the model's text.
        notes: Gets everything else.
        prompts: Whether to ask for lines.
    """

    answers: Console
    notes: Console
    prompts: bool

    def read(self) -> str | None:
        """The user's next line that is not blank; None at the end."""
        try:
            while True:
                line = input("> " if self.prompts else "").strip()
                if line:
                    return line
        except EOFError:
            return None

    def write(self, text: str) -> None:
        """Show a piece of an answer."""
        self.answers.print(text, end="", markup=False, highlight=False, soft_wrap=True)
        self.answers.file.flush()

    def tell(self, note: str | None) -> None:
        """Show a note, if there is one."""
        if note is not None:
            self.notes.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)


@dataclass
class Talk:
    """What a conversation holds that its program does not: what to begin it with.

    Attributes:
        system: The system prompt.
        past: Turns, as (user's text, answer), that a new program begins with.
        goes_on: Whether the user wants more.
    """

    system: str | None = None
    past: list[tuple[str, str]] = field(default_factory=list)
    goes_on: bool = True

    def obey(self, command: str) -> str | None:
        """Do what a line that begins with `/` says; what to tell the user."""
        name, _, rest = command.partition(" ")
        if name == "/exit":
            self.goes_on = False
            return None
        if name == "/system":
            self.system = rest.strip() or None
        elif name != "/reset":
            return f"there is no {name}; {_COMMANDS}"
        self.past.clear()
        return "a new conversation"


class _Anew(Exception):
    """The program is to end, and a new one to go on."""


def hold(
    talk: Talk,
    screen: Screen,
    options: dict[str, Any],
    backend: Backend | Host,
) -> None:
    """Run one program of a conversation: until a command, the end, or an answer cut short."""
    try:
        conversation.run(talk, screen, backend=backend, **options)
    except _Anew:
        talk.past = [turn for turn in talk.past if turn[1]]
    except BoughsError as error:
        if not screen.prompts:
            raise
        screen.tell(f"error: {error}")
        talk.past.clear()
        screen.tell("a new conversation")


@function
def conversation(s: ProgramState, talk: Talk, screen: Screen) -> None:
    """Turns, one after the other; each finds all before it in the tree."""
    if talk.system is not None:
        s += system(talk.system)
    for text, answer in talk.past:
        s += user(text)
        s += assistant(content(answer))
    for text in _lines(talk, screen):
        name = f"answer {len(talk.past)}"
        s += user(text)
        s += assistant(gen(name))
        talk.past.append((text, ""))
        for answer in _show(s, name, screen):
            talk.past[-1] = (text, answer)


def _lines(talk: Talk, screen: Screen) -> Iterator[str]:
    """What the user says. Ends with the input; a command that begins anew ends the program."""
    while (line := screen.read()) is not None:
        if not line.startswith("/"):
            yield line
            continue
        screen.tell(talk.obey(line))
        if not talk.goes_on:
            return
        if not talk.past:
            raise _Anew
    talk.goes_on = False


def _show(s: ProgramState, name: str, screen: Screen) -> Iterator[str]:
    """Show an answer as it comes; yields what there is of it so far."""
    began, shown = time.monotonic(), ""
    first = began
    try:
        for piece in s.text_iter(name):
            first = first if shown else time.monotonic()
            shown += piece
            yield shown
            screen.write(piece)
    except KeyboardInterrupt:
        screen.write(" …\n")
        raise _Anew from None
    screen.write("\n")
    info, took = s.get_meta_info(name), time.monotonic() - first
    made = info["completion_tokens"]
    speed = f", {(made - 1) / took:.1f} tokens/s" if made > 1 and took > 0 else ""
    screen.tell(
        f"[{made} tokens{speed}, first after {first - began:.2f} s; "
        f"{info['cached_tokens']} of {info['prompt_tokens']} prompt tokens from the tree]"
    )
