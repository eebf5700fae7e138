"""Flags made from the fields of a config: name, type, choices, help and default stand there once.

This module knows no command and no setting.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from boughs.lang.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)


def add_flags(
    parser: argparse.ArgumentParser,
    config: type[msgspec.Struct],
    title: str,
    skip: Collection[str] = (),
) -> None:
    """Add a flag for each field: `page_size` is `--page-size`.

    Args:
        parser: A command's.
        config: The struct.
        title: Of the group in the help.
        skip: Fields that the command asks for by other means.
    """
    group = parser.add_argument_group(title)
    info = inspect.type_info(config)
    assert isinstance(info, inspect.StructType), "a config is a struct"
    for field in info.fields:
        if field.name not in skip:
            group.add_argument(
                "--" + field.name.replace("_", "-"),
                dest=field.name,
                default=argparse.SUPPRESS,
                **_keywords(field),
            )


def read_flags(args: argparse.Namespace, config: type[T], **others: Any) -> T:
    """The config that the flags given on the command line describe.

    Args:
        args: Parsed by a parser that `add_flags` filled.
        config: The struct.
        others: Fields that have no flag.

    Raises:
        InvalidRequest: A value out of range; names the field.
    """
    return config(**{**given_flags(args, config), **others})


def given_flags(args: argparse.Namespace, config: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields whose flags were given on the command line."""
    given = {name: vars(args)[name] for name in config.__struct_fields__ if name in args}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }


def _keywords(field: inspect.Field) -> dict[str, Any]:
    """What `add_argument` is told about a field."""
    kind, description = field.type, ""
    if isinstance(kind, inspect.Metadata):
        description = (kind.extra_json_schema or {}).get("description", "")
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        (kind,) = (one for one in kind.types if not isinstance(one, inspect.NoneType))
    shown = field.default
    text = description if shown in (None, (), False) else f"{description} (default {shown})"
    text = text.replace("%", "%%")
    if isinstance(kind, inspect.BoolType):
        assert shown is False, "a flag can only turn something on"
        return {"action": "store_true", "help": text}
    if isinstance(kind, inspect.LiteralType):
        return {"choices": kind.values, "help": text}
    if isinstance(kind, inspect.VarTupleType):
        metavar = field.name.removesuffix("s").rpartition("_")[2].upper()
        return {"action": "append", "metavar": metavar, "help": text}
    convert = {inspect.IntType: int, inspect.FloatType: float, inspect.StrType: str}[type(kind)]
    number = "SECONDS" if "seconds" in text else "SHARE" if "share" in text else "X"
    metavar = {int: "N", float: number, str: field.name.rpartition("_")[2].upper()}[convert]
    return {"type": convert, "metavar": metavar, "help": text}


def usage_error(parser: argparse.ArgumentParser, error: InvalidRequest) -> NoReturn:
    """End as argparse does for a wrong command line: the usage, the message, status 2."""
    message = str(error)
    if error.param is not None:
        message = message.replace(error.param, "--" + error.param.replace("_", "-"), 1)
    parser.error(message)
