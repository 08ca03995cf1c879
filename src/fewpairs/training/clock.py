"""The clock of a fit: the seconds that are left, if there is a bound to them at all."""

import math
import time
from dataclasses import dataclass, field

__all__ = ["Clock"]


@dataclass(frozen=True)
class Clock:
    """Creates a clock that runs from now on.

    Arguments:
        budget: The seconds there are; None is no bound.
    """

    budget: float | None
    start: float = field(default_factory=time.perf_counter)

    def left(self) -> float:
        return math.inf if self.budget is None else self.budget - (time.perf_counter() - self.start)

    def part(self, share: float) -> float | None:
        """Part of what is left, for a training run."""
        return None if self.budget is None else max(share * self.left(), 0.0)
