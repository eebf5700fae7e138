"""Text from anywhere made fit to be shown: on a terminal, in HTML, in XML.

This module knows nothing of what is shown.
"""

_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
_CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_CONTROLS |= dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)


def visible(text: str) -> str:
    """A text that can be shown: control characters as their pictures, no lone surrogates."""
    return text.translate(_CONTROLS)
