"""Keeps a core running and every submission going, over the core's death.

It knows what each submission was and the tokens it has produced; when the core dies it starts
another and submits them again. This module knows no text.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from boughs.lang.errors import BoughsError, EngineDied, RequestAborted, RequestTimeout, as_error
from boughs.runtime.messages import (
    Abort,
    Call,
    Failed,
    Finish as FinishMessage,
    FromCore,
    LeaseEnded,
    Limits,
    Output,
    Outputs,
    Ready,
    Reply,
    Submit,
    ToCore,
)

from .leases import Leases
from .link import CoreGone, Link
from .quarantine import Quarantine
from .submission import Deliver, Submission

MAX_RESTARTS, RESTART_WINDOW = 3, 60.0
"""So many restarts within so many seconds; at the next death the engine is given up. Deaths that a
request was found to cause do not count."""

CALL_SECONDS = 60.0
"""How long a core may take to answer a call between two steps."""

SILENCE_SECONDS = 120.0
"""A core that has work and says nothing for so long is asked for an answer; one that then says
nothing for as long again is stuck, and is replaced."""

FAREWELL_SECONDS = 1.0
"""How long a core that has told of its fault may take to end by itself."""

START_SECONDS = 1800.0
"""How long a core may take to load its model (the first time it may convert it)."""

log = logging.getLogger("boughs")


class Supervisor:
    """The core, whichever process it is just now.

    Args:
        connect: Makes the link to a new core.

    Attributes:
        limits: What the core can serve; set when one is ready.
        ready: Whether there is a core that can be given work now.
        restarts: How many cores have died and been replaced.
        fault: Why there is no core any more, and will be none.
        leases: Those that the core holds for the front.
    """

    limits: Limits

    def __init__(self, connect: Callable[[], Link]) -> None:
        self._connect = connect
        self._link: Link | None = None
        self.ready = False
        self._submissions: dict[int, Submission] = {}
        self._quarantine = Quarantine(lambda submission: self._send(submission.next_message()))
        self._unconfirmed: set[int] = set()
        """Ended in the core, which keeps their pages until it is told where the text ended."""
        self._calls: dict[int, tuple[Call, asyncio.Future[Any]]] = {}
        self._numbers = itertools.count(1)
        self.leases = Leases(lambda lease: self._send(Call(next(self._numbers), "unpin", lease)))
        self._deaths: deque[float] = deque(maxlen=MAX_RESTARTS)
        self._asked: float | None = None
        """When the core was asked for a sign of life, if it has given none since."""
        self._task: asyncio.Task[None] | None = None
        self._owner = os.getpid()
        self.restarts = 0
        self.fault: str | None = None

    async def start(self) -> None:
        """Start the core and wait until its model is loaded.

        Raises:
            BoughsError: What the core reports, or `EngineDied` with what it printed.
        """
        await self._open()
        self.ready = True
        self._task = asyncio.create_task(self._serve())

    @property
    def in_flight(self) -> int:
        """Submissions that have not ended."""
        return len(self._submissions)

    def submit(self, message: Submit, deliver: Deliver) -> Submission:
        """Have a choice run. `message.key` is drawn here.

        Raises:
            EngineDied: There is no core any more.
        """
        self._require_hope()
        message.key = next(self._numbers)
        submission = Submission(message, deliver)
        self._submissions[message.key] = submission
        if self.ready:
            try:
                self._quarantine.add(submission)
            except BaseException:  # it cannot be sent, so no other core is to get it either
                self._forget(submission)
                raise
        return submission

    def finish(self, submission: Submission, length: int) -> None:
        """The output ends after `length` tokens, whatever the core made beyond."""
        if self._forget(submission):
            self._send(FinishMessage(submission.message.key, length))

    def abort(self, submission: Submission) -> None:
        """Nobody reads the submission any more. Without effect when it has ended."""
        if self._forget(submission):
            self._send(Abort(submission.message.key))

    def _forget(self, submission: Submission) -> bool:
        """Whether the core still holds something of the submission; it is told what, next."""
        key = submission.message.key
        if self._submissions.pop(key, None) is not None:
            self._quarantine.clear(submission)
            return True
        if key in self._unconfirmed:
            self._unconfirmed.remove(key)
            return True
        return False

    async def call(
        self, method: str, args: dict[str, Any] | None = None, waits: float = 0.0
    ) -> Any:
        """The result of one of the core's calls (`boughs.runtime.core.calls`).

        Args:
            method: Its name.
            args: Its arguments.
            waits: How many seconds the core may wait for others before it answers.

        Raises:
            BoughsError: What the core raised, or `EngineDied`.
            RequestTimeout: It did not answer in time.
        """
        self._require_hope()
        seconds = CALL_SECONDS + waits
        call = Call(next(self._numbers), method, args or {})
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call.id] = (call, future)
        try:
            self._send(call)
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError as error:
            if isinstance(error, BoughsError):
                raise  # the core's own
            raise RequestTimeout(
                f"{method}: the engine core did not answer within {seconds:g} seconds"
            ) from None
        finally:
            self._calls.pop(call.id, None)
            if waits and not (future.done() and not future.cancelled()):
                self._send(Call(next(self._numbers), "forget", {"call": call.id}))

    def is_well(self, seconds: float) -> bool:
        """Whether there is a core that has not been silent for so long since it was asked.

        It is asked here, and not waited for: a later call tells of what it did not answer.
        """
        if not self.ready or self._link is None or not self._link.alive:
            return False
        now = time.monotonic()
        if self._asked is None:
            self._asked = now
            self._send(Call(next(self._numbers), "stats"))
        return now - self._asked < seconds

    async def close(self) -> None:
        """End the core; what runs fails with `RequestAborted`."""
        self.fault = self.fault or "it was shut down"
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail_all(RequestAborted, "the engine was shut down")
        self.ready = False
        if self._link is not None:
            await self._link.close()

    # ---- the core's life ----

    async def _open(self) -> None:
        """Start a core and wait until it is ready. On failure nothing of it stays behind."""
        link = self._link = self._connect()
        try:
            await link.start()
            message = await asyncio.wait_for(link.receive(), START_SECONDS)
            if isinstance(message, Failed):
                raise as_error(*message.error)
            assert isinstance(message, Ready), "a core speaks first of its limits or its failure"
            self.limits = message.limits
        except BaseException as error:
            await link.close()
            if isinstance(error, CoreGone):
                raise EngineDied(f"the engine core could not start: {error}") from None
            if isinstance(error, TimeoutError):
                raise EngineDied(
                    f"the engine core was not ready after {START_SECONDS:.0f} seconds"
                ) from None
            raise

    async def _serve(self) -> None:
        """Hand on what cores send, and replace each that dies, until too many have."""
        assert self._link is not None
        try:
            while True:
                reason = await self._read(self._link)
                self.ready = False
                self._asked = None
                self._unconfirmed.clear()
                self.leases.lose()
                self._blame(reason)
                await self._link.close()
                await self._replace(reason)
                self.ready = True
                self._resend()
        except BoughsError as error:
            self._give_up(str(error))
        except Exception as error:
            log.exception("the engine's front met a fault of its own")
            self._give_up(f"{type(error).__name__}: {error}")
            await self._link.close()

    async def _read(self, link: Link) -> str:
        """Hand on what a core sends until it ends; why it did."""
        try:
            while True:
                message = await self._next(link)
                self._asked = None
                if isinstance(message, Failed):
                    self.ready = False
                    return await _farewell(link, message)
                self._handle(message)
        except CoreGone as gone:
            return str(gone)

    async def _next(self, link: Link) -> FromCore:
        """A core's next message. A core that is stuck counts as gone."""
        asked = False
        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    return await link.receive()
            except TimeoutError:
                if asked:
                    raise CoreGone(
                        f"it has been silent for {2 * SILENCE_SECONDS:g} seconds"
                    ) from None
                if self._submissions or self._calls:
                    asked = True
                    link.send(Call(next(self._numbers), "stats"))

    async def _replace(self, reason: str) -> None:
        """Start a core in place of one that died.

        Raises:
            EngineDied: Too many died.
        """
        while True:
            now = time.monotonic()
            if len(self._deaths) == MAX_RESTARTS and now - self._deaths[0] < RESTART_WINDOW:
                raise EngineDied(
                    f"the engine core died {MAX_RESTARTS + 1} times within {RESTART_WINDOW:.0f} "
                    f"seconds and is not started again; the last time: {reason}"
                )
            self._deaths.append(now)
            self.restarts += 1
            log.warning("the engine core died and is started again: %s", reason)
            try:
                await self._open()
            except BoughsError as error:
                reason = str(error)
            else:
                return

    def _blame(self, reason: str) -> None:
        """Have the submission fail that killed the core, if it is known which one did."""
        culprit = self._quarantine.blame()
        if culprit is None or self._submissions.pop(culprit.message.key, None) is None:
            return
        self._deaths.clear()  # they are explained
        culprit.deliver(
            EngineDied(
                f"the engine core died {culprit.tries} times while it ran this request, at last "
                f"with no other beside it; the last time: {reason}"
            )
        )

    def _resend(self) -> None:
        self._quarantine.begin(self._submissions.values())
        for call, _ in self._calls.values():
            self._send(call)

    def _give_up(self, reason: str) -> None:
        self.ready = False
        self.fault = reason
        self._fail_all(EngineDied, reason)

    def _fail_all(self, kind: type[BoughsError], reason: str) -> None:
        submissions, self._submissions = self._submissions, {}
        for submission in submissions.values():
            submission.deliver(kind(reason))
        self.leases.lose()
        for _, future in self._calls.values():
            if not future.done():
                future.set_exception(kind(reason))

    def _require_hope(self) -> None:
        if self.fault is not None:
            raise EngineDied(f"the engine does not run: {self.fault}")
        if os.getpid() != self._owner:
            raise EngineDied(
                f"the engine belongs to process {self._owner}, of which this one is a fork; start "
                "one here, or share one by `boughs serve`"
            )

    # ---- messages ----

    def _send(self, message: ToCore) -> None:
        """Send where a core is ready; a new one gets what still matters by `_resend`."""
        if self.ready:
            assert self._link is not None
            self._link.send(message)

    def _handle(self, message: FromCore) -> None:
        if isinstance(message, Outputs):
            for output in message.outputs:
                self._take(output)
        elif isinstance(message, LeaseEnded):
            self.leases.end(message)
        elif isinstance(message, Reply):
            _, future = self._calls.get(message.id, (None, None))
            if future is None or future.done():
                return  # the caller has gone
            if message.error is not None:
                future.set_exception(as_error(*message.error))
            else:
                future.set_result(message.result)

    def _take(self, output: Output) -> None:
        submission = self._submissions.get(output.key)
        if submission is None:
            return  # it ended here first
        if output.error is not None or output.finish is not None:
            del self._submissions[output.key]
            if output.error is None and submission.message.confirm:
                self._unconfirmed.add(output.key)
        if output.error is not None:
            submission.deliver(as_error(*output.error))
        else:
            submission.take(output)
        self._quarantine.clear(submission)


async def _farewell(link: Link, message: Failed) -> str:
    """What a core says of its fault, and how it then ends."""
    kind, text, _ = message.error
    try:
        async with asyncio.timeout(FAREWELL_SECONDS):
            while True:
                await link.receive()
    except CoreGone as gone:
        return f"{kind}: {text}; {gone}"
    except TimeoutError:
        return f"{kind}: {text}"
