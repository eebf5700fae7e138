"""What ended a state early, and the error that its readers get.

This module knows no states.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from boughs.lang.errors import located

_order = itertools.count()


@dataclass(frozen=True)
class Failure:
    """What ended a state, and where.

    Attributes:
        error: The error itself.
        where: The program, branch, variable and request. None for an error of the program's own
            body, which is raised as it is.
        order: Failures of a process in the order in which they happened.
    """

    error: BaseException
    where: str | None
    order: int = field(default_factory=lambda: next(_order))

    def make(self) -> BaseException:
        """The error to be raised: a new one at each read, caused by the error itself."""
        if self.where is None:
            return self.error
        return located(self.error, self.where)
