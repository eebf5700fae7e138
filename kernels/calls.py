"""Compiled functions that compiled functions call by their address.

All have one signature: what a call is about, what the step is about, which task of how many to do.
Both of the former are int64 words: sizes, and addresses of arrays that whoever made them keeps.
This module knows no kernel.
"""
# ruff: noqa: ANN001, ANN201, ANN202, ARG001, PLR0917 -- see `simd`
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, cfunc, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .compiled import compiled

Words = NDArray[np.int64]

SIGNATURE = types.void(
    types.CPointer(types.int64), types.CPointer(types.int64), types.int64, types.int64
)
"""args, step, task, tasks."""


def callable_by_address(function: Callable[..., None]) -> Any:
    """Compile, or load from disk, a function of SIGNATURE; its attribute `address` is what to call.

    `function` must read a variable of an enclosing function that holds `sources()`.
    """
    assert function.__closure__ is not None
    try:
        return cfunc(SIGNATURE, cache=True, error_model="numpy")(function)
    except RuntimeError:  # there is no folder to write to
        return cfunc(SIGNATURE, error_model="numpy")(function)


@intrinsic
def call(typing_context, address, args, step, task, tasks):
    """Call the function at an address; `args` and `step` are addresses, too."""
    word = types.intp
    signature = types.void(word, word, word, word, word)

    def generate(context, builder, signature, values):
        words = ir.IntType(64).as_pointer()
        # numba's functions for C return nothing here.
        kind = ir.FunctionType(ir.VoidType(), [words, words, ir.IntType(64), ir.IntType(64)])
        function = builder.inttoptr(values[0], kind.as_pointer())
        pointers = [builder.inttoptr(value, words) for value in values[1:3]]
        builder.call(function, [*pointers, *values[3:]])
        return context.get_dummy_value()

    return signature, generate


def _pointer(dtype: Any) -> Any:
    """What makes a pointer to a numba type of an address."""

    @intrinsic
    def make(typing_context, address):
        signature = types.CPointer(dtype)(types.intp)

        def generate(context, builder, signature, values):
            return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

        return signature, generate

    return make


_floats, _bytes = _pointer(types.float32), _pointer(types.uint8)
_words, _ints = _pointer(types.int64), _pointer(types.int32)


@compiled
def floats_at(address: int, size: int) -> NDArray[np.float32]:
    """`size` floats at an address."""
    return carray(_floats(address), (size,), np.float32)  # type: ignore[no-any-return]


@compiled
def rows_at(address: int, rows: int, width: int) -> NDArray[np.float32]:
    """Float32 [rows, width] at an address."""
    return carray(_floats(address), (rows, width), np.float32)  # type: ignore[no-any-return]


@compiled
def bytes_at(address: int, size: int) -> NDArray[np.uint8]:
    """`size` bytes at an address."""
    return carray(_bytes(address), (size,), np.uint8)  # type: ignore[no-any-return]


@compiled
def words_at(address: int, size: int) -> Words:
    """`size` words of 64 bits at an address."""
    return carray(_words(address), (size,), np.int64)  # type: ignore[no-any-return]


@compiled
def ints_at(address: int, size: int) -> NDArray[np.int32]:
    """`size` int32 at an address."""
    return carray(_ints(address), (size,), np.int32)  # type: ignore[no-any-return]


@compiled
def int_rows_at(address: int, rows: int, width: int) -> NDArray[np.int32]:
    """int32 [rows, width] at an address."""
    return carray(_ints(address), (rows, width), np.int32)  # type: ignore[no-any-return]


@compiled
def heads_at(address: int, rows: int, heads: int, dim: int) -> NDArray[np.float32]:
    """Float32 [rows, heads, dim] at an address."""
    return carray(_floats(address), (rows, heads, dim), np.float32)  # type: ignore[no-any-return]


@cache
def elements_at(stored: Any) -> Callable[..., NDArray[Any]]:
    """A compiled function: an array of a shape, of elements as numba has them, at an address."""
    pointer = _pointer(stored)

    def at(address: int, shape: tuple[int, ...]) -> NDArray[Any]:
        return carray(pointer(address), shape)  # type: ignore[no-any-return]

    return compiled(at)
