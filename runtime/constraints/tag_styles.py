"""How models write the arguments of calls: what stands around a property's name and value.

The names of styles are xgrammar's. This module knows no schemas.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """How a property is written.

    Attributes:
        open: What stands before its name.
        middle: Between its name and its value; where it has two parts, white space may be between
            them. `{}` stands for the type.
        close: Behind its value.
        types: The types by what stands for them in `middle`.
    """

    open: str
    middle: tuple[str, ...]
    close: str
    types: dict[str, str] | None = None


_BARS = "\uff5cDSML\uff5c"
_IS_STRING = dict.fromkeys(("null", "boolean", "object", "array", "number"), "false")
_DSML = {"string": "true", **_IS_STRING}
_KIMI = {name: name for name in ("null", "boolean", "object", "array", "number", "string")}
STYLES = {
    "qwen_xml": Style("<parameter=", (">",), "</parameter>"),
    "minimax_xml": Style('<parameter name="', ('">',), "</parameter>"),
    "glm_xml": Style("<arg_key>", ("</arg_key>", "<arg_value>"), "</arg_value>"),
    "deepseek_xml": Style(
        f'<{_BARS}parameter name="', ('" string="{}">',), f"</{_BARS}parameter>", _DSML
    ),
    "deepseek_v4_1_xml": Style(
        f'<{_BARS} parameter name="', ('" string="{}">',), f"</{_BARS} parameter>", _DSML
    ),
    "kimi_k3_xml": Style(
        '<|open|>argument key="',
        ('" type="{}"<|sep|>',),
        "<|close|>argument<|sep|>",
        _KIMI,
    ),
}
