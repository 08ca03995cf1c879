"""Samples: a few pairs (x, y), and all x's (the source) and all y's (the target), each row with a weight.

Source and target hold the pairs' own points too, so a missing kind of unpaired rows leaves the pairs' points in its place.
Arrays come in through `checks`, tables with gaps through `frames`.
"""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fewpairs.data.frames import frame_tensor, split_frame
from fewpairs.data.scaling import Scaler

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Samples"]


@dataclass(frozen=True)
class Samples:
    """What a plan is learnt from. Weights left out are ones; given ones are scaled to a mean of one.

    Attributes:
        pairs_x: The x's of the pairs, (P, dim_x).
        pairs_y: The y's of the pairs, (P, dim_y).
        source: All x's, (Q, dim_x).
        target: All y's, (R, dim_y).
        pairs_weight: One weight for each pair, (P,).
        source_weight: One weight for each x of the source, (Q,).
        target_weight: One weight for each y of the target, (R,).
        relevance: How common the x of each pair is in the population, as a multiple of how common it is among pairs, (P,).

    Example:
        >>> samples = Samples.gather(torch.zeros(4, 2), torch.ones(4, 1), unpaired_x=torch.zeros(6, 2))
        >>> len(samples.source), len(samples.target)
        (10, 4)
    """

    pairs_x: Tensor
    pairs_y: Tensor
    source: Tensor
    target: Tensor
    pairs_weight: Tensor = None  # type: ignore[assignment]  # filled in below
    source_weight: Tensor = None  # type: ignore[assignment]
    target_weight: Tensor = None  # type: ignore[assignment]
    relevance: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, rows in (
            ("pairs_weight", self.pairs_x),
            ("source_weight", self.source),
            ("target_weight", self.target),
        ):
            weight = getattr(self, name)
            weight = torch.ones_like(rows[..., 0]) if weight is None else weight / weight.mean(-1, keepdim=True)
            object.__setattr__(self, name, weight)
        if self.relevance is None:
            object.__setattr__(self, "relevance", torch.ones_like(self.pairs_weight))

    @classmethod
    def gather(
        cls,
        pairs_x: Tensor,
        pairs_y: Tensor,
        *,
        unpaired_x: Tensor | None = None,
        unpaired_y: Tensor | None = None,
        pairs_weight: Tensor | None = None,
        unpaired_x_weight: Tensor | None = None,
        unpaired_y_weight: Tensor | None = None,
    ) -> "Samples":
        """Puts pairs and unpaired rows together: the source is the pairs' x's and the unpaired ones, likewise the target."""
        weight = torch.ones_like(pairs_x[:, 0]) if pairs_weight is None else pairs_weight / pairs_weight.mean()
        source, source_weight = _append(pairs_x, weight, unpaired_x, unpaired_x_weight)
        target, target_weight = _append(pairs_y, weight, unpaired_y, unpaired_y_weight)
        return cls(pairs_x, pairs_y, source, target, weight, source_weight, target_weight)

    @classmethod
    def from_frame(cls, frame: "pd.DataFrame", *, x: list[str], y: list[str], on_holes: str = "raise") -> "Samples":
        """One table with gaps as samples: see `split_frame`, whose parts `fit` takes too."""
        X, Y, more_x, more_y = split_frame(frame, x=x, y=y, on_holes=on_holes)
        return cls.gather(
            frame_tensor(X),
            frame_tensor(Y),
            unpaired_x=None if more_x is None else frame_tensor(more_x),
            unpaired_y=None if more_y is None else frame_tensor(more_y),
        )

    def to(self, *args: Any, **kwargs: Any) -> "Samples":
        """The same samples on another device or in another precision."""
        return Samples(**{field.name: getattr(self, field.name).to(*args, **kwargs) for field in fields(self)})

    def weigh_own_points(self, factor: Tensor) -> "Samples":
        """Source and target with the weights of the pairs' own points, which lie in front, times a factor for each."""
        parts = {name: getattr(self, name).clone() for name in ("source_weight", "target_weight")}
        for weight in parts.values():
            weight[: len(self.pairs_x)] *= factor
        return replace(self, **parts)

    def standardise(self, x_scaler: "Scaler", y_scaler: "Scaler") -> "Samples":
        """The same samples with every x and every y brought to scale."""
        return replace(
            self,
            pairs_x=x_scaler(self.pairs_x),
            pairs_y=y_scaler(self.pairs_y),
            source=x_scaler(self.source),
            target=y_scaler(self.target),
        )


def _append(rows: Tensor, weight: Tensor, more: Tensor | None, more_weight: Tensor | None) -> tuple[Tensor, Tensor]:
    if more is None:
        return rows, weight
    more_weight = torch.ones_like(more[:, 0]) if more_weight is None else more_weight / more_weight.mean()
    return torch.cat([rows, more]), torch.cat([weight, more_weight])
