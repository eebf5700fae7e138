"""Token ids as arrays and as bytes. This module knows no request."""

from __future__ import annotations

from array import array

import numpy as np


def common(a: array[int] | bytes, b: array[int] | bytes) -> int:
    """How many leading tokens two sequences of int32 share."""
    one, other = np.frombuffer(a, np.int32), np.frombuffer(b, np.int32)
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length
