"""Threads that go through a list of calls together, without coming back to Python between them.

A call is cut into tasks, and whoever is free takes the next; the next call begins when all tasks of
the last have ended. Who waits for that spins for some microseconds, yields its core at every turn
for some more, and then sleeps in between. Nobody waits for a thread that has taken nothing: one
that is late, or has lost its core, goes past what is done. This module knows no kernel.
"""
# ruff: noqa: ANN001, ANN201, ANN202, ARG001 -- see `simd`
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from llvmlite.binding import get_default_triple  # type: ignore[import-untyped]
from numba import int64, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from .calls import Words, call
from .compiled import entry_point, sources
from .workers import Workers

SPINS, YIELDS = 2000, 50
"""Turns of waiting, of some 10 nanoseconds, before the core is yielded at each; and how many of
these before the thread sleeps at each, so that one which holds a task but no core gets this one."""

SLEEP = 50
"""Microseconds of such a sleep."""

LINE = 16
"""Words between the counters of a call, so that no two share a line of the cache."""


LEAST = 6_000.0
"""Nanoseconds of a task below which sharing a call costs more than it gives."""

TASKS = 4
"""Tasks a thread at most, so that a thread that is late does less."""


def share(costs: NDArray[np.float64], threads: int) -> Words:
    """How many tasks each call is to be cut into, given the nanoseconds it takes alone, about."""
    if threads == 1:
        return np.ones(len(costs), np.int64)
    return (costs / LEAST).astype(np.int64).clip(1, threads * TASKS)


def run_calls(workers: Workers, calls: Words, tasks: Words, step: Words) -> None:
    """Run all tasks of all calls, with any threads that come to help.

    Args:
        workers: Who is asked to help.
        calls: [calls, 2]: the address of a function and that of its `args`.
        tasks: [calls]: how many tasks of each; 0 leaves it out.
        step: What all calls get.
    """
    run = run_tasks()
    counters = np.zeros((len(calls), 2, LINE), np.int64)

    def help_(_: Any) -> None:
        run(calls, tasks, step, counters)

    if tasks.max() > 1:
        workers.invite(help_)
    help_(None)


@cache
def run_tasks() -> Callable[..., None]:
    """Compile, or load from disk, what each thread does; whoever makes calls asks at a start.

    Its arguments are those of `run_calls`, and counters [calls, 2, LINE]: tasks taken and done.
    """
    version = sources()

    def run(calls: Words, tasks: Words, step: Words, counters: Words) -> None:
        version  # noqa: B018 -- see `entry_point`
        flat = counters.reshape(-1)
        for i in range(len(calls)):
            total = tasks[i]
            taken, done = 2 * LINE * i, 2 * LINE * i + LINE
            if load(flat, done) == total:
                continue
            task = take(flat, taken)
            while task < total:
                call(calls[i, 0], calls[i, 1], step.ctypes.data, task, total)
                take(flat, done)
                task = take(flat, taken)
            turns = 0
            while load(flat, done) < total:
                turns += 1
                rest(turns)

    return entry_point(run, int64[:, ::1], int64[::1], int64[::1], int64[:, :, ::1])


@intrinsic
def take(typing_context, counters, index):
    """What a counter was before one was added to it; what was written before is seen by others."""
    signature = types.int64(counters, types.intp)

    def generate(context, builder, signature, values):
        place = _element(context, builder, signature, values)
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "seq_cst")

    return signature, generate


@intrinsic
def load(typing_context, counters, index):
    """A counter; what was written before it was counted is seen."""
    signature = types.int64(counters, types.intp)

    def generate(context, builder, signature, values):
        place = _element(context, builder, signature, values)
        return builder.load_atomic(place, "acquire", 8)

    return signature, generate


def _element(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, values[0])
    return builder.gep(array.data, [values[1]])


@intrinsic
def rest(typing_context, turns):
    """Wait for a moment, the `turns`-th time."""
    signature = types.void(types.int64)
    int32 = ir.IntType(32)

    def call_c(builder: Any, result: Any, name: str, *args: Any) -> None:
        kind = ir.FunctionType(result, [arg.type for arg in args])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

    def generate(context, builder, signature, values):
        def later_than(bound: int) -> Any:
            return builder.icmp_signed(">", values[0], ir.Constant(values[0].type, bound))

        with builder.if_else(later_than(SPINS)) as (long, short):
            with long, builder.if_else(later_than(SPINS + YIELDS)) as (longer, shorter):
                with longer:
                    call_c(builder, int32, "usleep", ir.Constant(int32, SLEEP))
                with shorter:
                    call_c(builder, int32, "sched_yield")
            with short:
                if get_default_triple().startswith(("x86_64", "i686")):
                    call_c(builder, ir.VoidType(), "llvm.x86.sse2.pause")
        return context.get_dummy_value()

    return signature, generate
