"""Tables with gaps: one frame becomes pairs and unpaired rows."""

import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["frame_tensor", "split_frame"]


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


def frame_tensor(frame: "pd.DataFrame") -> Tensor:
    """The numbers of a frame, in float64."""
    return torch.tensor(frame.to_numpy(dtype=np.float64))
