"""Scaling: shift and scale of each column, so that every column means as much as any other."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fewpairs.data.checks import HUGE

if TYPE_CHECKING:
    pass

__all__ = ["Scaler", "without_overflow"]


@dataclass(frozen=True)
class Scaler:
    """Shift and scale of each column, learnt from all rows; a constant column is shifted to zero and left unscaled."""

    loc: Tensor
    scale: Tensor

    @classmethod
    def learn(cls, rows: Tensor, weight: Tensor, *, is_wanted: bool = True) -> "Scaler":
        """Shift and scale of rows with weights; where none is wanted, those that change nothing."""
        if not is_wanted:
            return cls.none(rows)
        share = (weight.to(rows) / weight.to(rows).sum()).unsqueeze(-1)
        loc = (share * rows).sum(0)
        reach = (rows - loc).abs().amax(0)
        reach = torch.where(reach == 0, 1.0, reach)
        scale = reach * (share * ((rows - loc) / reach) ** 2).sum(0).sqrt()  # squares of raw numbers could overflow
        # Rounding leaves a constant column a tiny spread: dividing by that would invent a signal.
        is_constant = (rows == rows[0]).all(0)
        return cls(torch.where(is_constant, rows[0], loc), torch.where(is_constant | (scale == 0), 1.0, scale))

    @classmethod
    def none(cls, rows: Tensor) -> "Scaler":
        return cls(torch.zeros_like(rows[0]), torch.ones_like(rows[0]))

    def __call__(self, rows: Tensor) -> Tensor:
        return (rows - self.loc) / self.scale


def without_overflow(rows: Tensor) -> Tensor:
    """Columns of numbers whose squares would be infinite are divided by the largest of them; others are left as they are."""
    largest = rows.abs().amax(0)
    return rows / torch.where(largest > HUGE, largest, 1.0)
