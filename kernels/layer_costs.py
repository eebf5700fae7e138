"""What a linear layer takes on one core, so that its calls are cut into tasks that pay.

`measure_layers` has the costs of the machine at hand; DEFAULT are one machine's. Neither moves a
result. This module knows no layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class LayerCosts:
    """Nanoseconds, of one number format.

    Attributes:
        read: To read a weight.
        compute: To multiply it with a row's input.
        encode: To write an input as digits, where rows are whole numbers.
    """

    read: float = 0.02
    compute: float = 0.008
    encode: float = 0.4

    bounds: ClassVar[Mapping[str, tuple[float, float]]] = {
        "read": (0.002, 0.2),
        "compute": (0.001, 0.3),
        "encode": (0.05, 5.0),
    }


DEFAULT = LayerCosts()
"""What a core with AVX-512 took for 4 and 8 bits."""
