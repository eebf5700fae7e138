"""The executor: runs the nodes of one state, in order, on Boughs's event loop.

Statements are queued by whoever runs the program's body and run by a task that lives as long as
there is something to do, so a state costs no thread. Everything that is read is waited for by its
ticket, the number of the statement that makes it. The first error ends the state; every later
statement and read raises it again. This module knows no tokens and no HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

from boughs.lang import ir
from boughs.lang.abilities import Seeing
from boughs.lang.answers import put_answers, put_choice
from boughs.lang.backlog import Backlog
from boughs.lang.contents import Contents
from boughs.lang.errors import (
    BackendError,
    InvalidRequest,
    RequestAborted,
    Unsupported,
)
from boughs.lang.expression import Node, Text
from boughs.lang.failure import Failure
from boughs.lang.journal import Journal
from boughs.lang.loop import background_loop
from boughs.lang.meta import meta_info
from boughs.lang.requester import Requester
from boughs.lang.requests import PinRequest
from boughs.lang.running import Run
from boughs.lang.text_stream import TextStream


class Executor:
    """One state: its contents, its statements, and the task that works them off.

    Args:
        run: The run that it belongs to.
        branch: The index in each fork on the way to it.
        held: Whether it begins only when `begin` gives it its contents.
    """

    def __init__(self, run: Run, branch: tuple[int, ...] = (), *, held: bool = False) -> None:
        self.run = run
        self.branch = branch
        self.contents = Contents()
        self.open_scopes: set[str] = set()
        label = f"program {run.program}"
        if branch:
            label += ", branch " + ".".join(map(str, branch))
        self.backlog = Backlog(label, held=held)
        self.journal = Journal(self.backlog, self.contents)
        self.text_stream = TextStream(self.contents)
        self._requester = Requester(run.for_state(), run.defaults, self.journal, self.text_stream)
        self._text_wanted = False
        self._task: asyncio.Task[None] | None = None
        self._children: list[Self] = []

    # ---- the program's side: any thread ----

    def submit(self, *nodes: Node) -> int:
        """Queue nodes; the last one's ticket."""
        if self.backlog.ended and self.backlog.failure is None:
            raise InvalidRequest(f"{self.backlog.label}: has ended, nothing can be added to it")
        return self._queue(*nodes)

    def render(self) -> int:
        """Queue what makes the whole text known; the ticket."""
        return self._queue(ir.Render())

    def fork(self, size: int) -> list[Self]:
        """Branches that begin where this state will be when it comes to this statement."""
        branches = [type(self)(self.run, (*self.branch, i), held=True) for i in range(size)]
        for branch in branches:
            branch.open_scopes = set(self.open_scopes)
        self._children = [child for child in self._children if child.backlog.held] + branches
        self.submit(ir.Fork(tuple(branches)))
        for branch in branches:
            self.run.add(branch)
        return branches

    def want_text(self) -> None:
        """Say that somebody reads the stream of all text, so that it must come to its end."""
        self._text_wanted = True
        if self.backlog.ended and not self.text_stream.closed:
            self.render()

    def end(self) -> None:
        """Say that the program puts nothing into this state any more."""
        self.journal.end()
        self.backlog.end()
        if self._text_wanted and self.backlog.failure is None:
            self.render()

    def fail(self, failure: Failure, *, own: bool = False) -> None:
        """End this state early: abort its request, and wake everybody who waits.

        `own` says that the failure is that of one of its statements.
        """
        if own:
            self.journal.own_failure = failure
        if not self.backlog.fail(failure):
            return
        self.journal.end()
        self.text_stream.fail(failure.make)
        for child in self._children:
            if child.backlog.held:
                child.fail(failure)
        task = self._task
        if task is not None:
            background_loop().call_soon_threadsafe(task.cancel)

    def _queue(self, *nodes: Node) -> int:
        ticket, start = self.backlog.put(*nodes)
        if start:
            background_loop().call_soon_threadsafe(self._spawn)
        return ticket

    # ---- the loop's side ----

    def begin(self, contents: Contents) -> None:
        """Give a branch what it begins with, and let it run."""
        self.contents = contents
        self.journal.begin(contents)
        self.text_stream.begin(contents)
        if self.backlog.release():
            self._spawn()

    def _spawn(self) -> None:
        self._task = background_loop().create_task(self._work())

    async def _work(self) -> None:
        """Run what is queued, until nothing is."""
        while (entry := self.backlog.take()) is not None:
            self._requester.begin(entry.stream)
            try:
                await entry.node.run(self)
            except asyncio.CancelledError:
                self.fail(Failure(RequestAborted("it was cancelled"), self._where(entry.node)))
                raise
            except _BranchFailed as branch:
                self.fail(branch.failure)
                return
            except Exception as error:  # noqa: BLE001 - it reaches the reader
                self.fail(Failure(error, self._where(entry.node)), own=True)
                return
            if entry.stream is not None:
                entry.stream.close()
            self.text_stream.flush()
            self.backlog.ran()

    def _where(self, node: Node) -> str:
        """The place of an error, for its message."""
        name = node.variable
        what = f"{node!s:.60}" if name is None else f"variable {name!r}"
        rid = self._requester.rid
        request = "" if rid is None else f", request {rid}"
        return f"{self.backlog.label}, {what}{request}"

    async def run_text(self, node: Text) -> None:
        """Add text."""
        self.contents.add_text(node.text)

    async def run_content(self, node: ir.Content) -> None:
        """Add a user's text."""
        self.contents.add_content(node.text)

    async def run_image(self, node: ir.Image) -> None:
        """Add an image, if the model has eyes."""
        backend = self._requester.backend
        if not (isinstance(backend, Seeing) and backend.sees):
            raise Unsupported(
                f"image: the model of this {type(backend).__name__} has no eyes: it takes "
                "text alone",
                "image",
            )
        self.contents.add_image(node.kind, node.data)

    async def run_tool_message(self, node: ir.ToolMessage) -> None:
        """Add a tool's answer as the model's template would have it."""
        await self.add_message("tool", node.text)

    async def add_message(self, role: str, text: str) -> None:
        """Add a message of a role, or of the user where the template has no such role here.

        Inside of a message, and where there are no roles, it is text.
        """
        if not self._between_turns():
            self.contents.add_content(text)
            return
        undo = self.contents.add_message(role, text)
        try:
            await self._prefill()
        except InvalidRequest:  # the template has no such role
            undo()
            self.contents.add_message("user", text)

    async def take_turn(self, node: ir.Gen) -> Any:
        """Generate, in a turn of the assistant if the state has turns; the variable's value."""
        alone = self._between_turns()
        if alone:
            self.contents.begin_role("assistant")
        await self.run_gen(node)
        if alone:
            self.contents.end_role("assistant")
        return None if node.name is None else self.contents.variables.get(node.name)

    def holds(self, text: str) -> bool:
        """Whether the state's text has this in it."""
        return text in self.contents.text()

    def _between_turns(self) -> bool:
        return self.contents.role is None and bool(self.contents.marks)

    async def run_role_begin(self, node: ir.RoleBegin) -> None:
        """Open a message."""
        if node.role == "user":
            await self.run.reasoning.turn_over(self.contents.messages)
        self.contents.begin_role(node.role)

    async def run_role_end(self, node: ir.RoleEnd) -> None:
        """Close a message."""
        self.contents.end_role(node.role)

    async def run_gen(self, node: ir.Gen) -> None:
        """Generate text and set its variable."""
        params = self.run.defaults.sampling(node.sampling)
        options = self.run.defaults.options(node.options)
        call, answers = await self._requester.generate(self.contents, params, options, node)
        if len(answers) != params.n:
            raise BackendError(f"{params.n} choices were asked for, and {len(answers)} came")
        metas = [
            meta_info(a, return_text=options.return_text_in_logprobs, e2e_latency=call.seconds)
            for a in answers
        ]
        self.text_stream.end_answer(
            lambda: put_answers(
                self.contents, node, answers, metas, call=call, where=self._where(node)
            )
        )

    async def run_select(self, node: ir.Select) -> None:
        """Score the choices, decide, and add the decision."""
        call, scores = await self._requester.score(self.contents, node)
        put_choice(self.contents, node, scores, call)

    async def run_set(self, node: ir.SetVariable) -> None:
        """Set a variable."""
        self.contents.set(node.name, node.value)

    async def run_scope_begin(self, node: ir.ScopeBegin) -> None:
        """Note where a variable begins."""
        self.contents.scopes[node.name] = len(self.contents.shown)

    async def run_scope_end(self, node: ir.ScopeEnd) -> None:
        """Set a variable to the text since its begin."""
        begin = self.contents.scopes.pop(node.name)
        await self._render()
        self.contents.set(node.name, self.contents.text(begin))

    async def run_fork(self, node: ir.Fork) -> None:
        """Compute what the branches share once, then let them begin."""
        if self.contents.segments and len(node.branches) > 1:
            await self._prefill()
        self.journal.fork(len(self.contents.shown), [branch.journal for branch in node.branches])
        for branch in node.branches:
            branch.begin(self.contents.copy())

    async def run_join(self, node: ir.Join) -> None:
        """Wait for branches; gather their variables, and their text if asked."""
        for branch, ticket in node.branches:
            await branch.backlog.settled(ticket)
            if branch.backlog.failure is not None:
                branch.backlog.observed = True
                raise _BranchFailed(branch.backlog.failure)
            self.run.drop(branch)
        held = [branch.contents for branch, _ in node.branches]
        if node.mode == "concate_and_append":
            for contents in held:
                self.contents.append_from(contents)
        for name in dict.fromkeys(name for contents in held for name in contents.written):
            self.contents.gather(name, held)
        self.journal.join([branch.journal for branch, _ in node.branches], node.mode)

    async def run_pin(self, node: ir.Pin) -> None:
        """Have the backend keep what the state holds, until the run ends."""
        defaults = self.run.defaults
        await self.run.pin(
            PinRequest(
                prompt=self.contents.prompt(),
                seconds=node.seconds,
                cache_salt=defaults.cache_salt,
                priority=defaults.priority,
            )
        )

    async def run_render(self, _node: ir.Render) -> None:
        """Have every role mark's text; when the program has ended, end the stream of its text."""
        await self._render()
        if self.backlog.ended:
            self.text_stream.finish()

    async def _render(self) -> None:
        if self.contents.known < len(self.contents.marks):
            await self._prefill()

    async def _prefill(self) -> None:
        await self._requester.prefill(self.contents)


class _BranchFailed(Exception):
    """A branch's failure, which becomes its parent's as it is."""

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure
