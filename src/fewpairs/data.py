"""Samples: a few pairs (x, y), and all x's (the source) and all y's (the target), each row with a weight.

Source and target hold the pairs' own points too, so a missing kind of unpaired rows leaves the pairs' points in its place.
Arrays come in through `checks` and `faces`, tables with gaps through `split_frame`.
"""

import warnings
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Samples", "Scaler", "split_frame"]


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
            _frame_tensor(X),
            _frame_tensor(Y),
            unpaired_x=None if more_x is None else _frame_tensor(more_x),
            unpaired_y=None if more_y is None else _frame_tensor(more_y),
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


@dataclass(frozen=True)
class Scaler:
    """Shift and scale of each column, learnt from all rows; a constant column is shifted to zero and left unscaled."""

    loc: Tensor
    scale: Tensor

    @classmethod
    def learn(cls, rows: Tensor, weight: Tensor) -> "Scaler":
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


def split_frame(
    frame: "pd.DataFrame", *, x: str | list[str], y: str | list[str], on_holes: str = "raise"
) -> tuple["pd.DataFrame", "pd.DataFrame", "pd.DataFrame | None", "pd.DataFrame | None"]:
    """One table with gaps is a data set: splits it into X, Y (the pairs), X_unpaired and Y_unpaired.

    A kind of unpaired rows that the table does not have is None, as `fit` takes it.

    Arguments:
        frame: A table in which a missing x or y is an empty cell (NaN).
        x: The name or names of the columns of x.
        y: The name or names of the columns of y.
        on_holes: What to do with rows in which only some of the x's, or some of the y's, are missing, or all of both:
            "raise" refuses them, "drop" leaves them out and says how many.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"before": [1.0, 2.0, None], "after": [3.0, None, 4.0]})
        >>> [len(part) for part in split_frame(frame, x=["before"], y=["after"])]
        [1, 1, 1, 1]
    """
    x, y = [x] if isinstance(x, str) else list(x), [y] if isinstance(y, str) else list(y)
    if not hasattr(frame, "columns"):
        raise ValueError(f"split_frame takes a pandas frame with named columns, but a {type(frame).__name__} came.")
    if on_holes not in ("raise", "drop"):
        raise ValueError(f'on_holes must be "raise" or "drop", but {on_holes!r} came.')
    if set(x) & set(y):
        raise ValueError(f"A column is either of x or of y, but {sorted(set(x) & set(y))} came as both.")
    missing = [name for name in [*x, *y] if name not in frame.columns]
    if missing:
        raise ValueError(f"The table has no column {missing}; it has {list(frame.columns)}.")
    x_gaps, y_gaps = frame[x].isna(), frame[y].isna()
    has_x, has_y = ~x_gaps.any(axis=1), ~y_gaps.any(axis=1)
    no_x, no_y = x_gaps.all(axis=1), y_gaps.all(axis=1)
    whole = (has_x & has_y) | (has_x & no_y) | (no_x & has_y)
    if on_holes == "raise" and not whole.all():
        holes = [name for name in [*x, *y] if frame.loc[~whole, name].isna().any()]
        raise ValueError(
            f"{(~whole).sum()} of {len(frame)} rows have holes inside x or y (columns with holes there: {holes}). "
            'A row must have all of x, all of y, or both. Fill the holes, or pass on_holes="drop" to leave these rows out.'
        )
    if not whole.all():
        warnings.warn(f"Left out {(~whole).sum()} of {len(frame)} rows with holes inside x or y.", stacklevel=2)
    pairs, alone_x, alone_y = frame[has_x & has_y], frame[has_x & no_y], frame[no_x & has_y]
    return pairs[x], pairs[y], alone_x[x] if len(alone_x) else None, alone_y[y] if len(alone_y) else None


def _frame_tensor(frame: "pd.DataFrame") -> Tensor:
    return torch.tensor(frame.to_numpy(dtype=np.float64))


def _append(rows: Tensor, weight: Tensor, more: Tensor | None, more_weight: Tensor | None) -> tuple[Tensor, Tensor]:
    if more is None:
        return rows, weight
    more_weight = torch.ones_like(more[:, 0]) if more_weight is None else more_weight / more_weight.mean()
    return torch.cat([rows, more]), torch.cat([weight, more_weight])
