"""Images that come as arrays: they become rows of a table, and their shape is kept, so that what comes later can be compared."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from fewpairs.data import checks

__all__ = ["Shape", "flatten_images", "refuse_other_images", "shape_to_keep"]

Shape = tuple[int, ...]  # (channels, height, width)


def flatten_images(X: Any, name: str = "X") -> tuple[Any, Shape | None]:
    """X as a table, and the shape of its images, if it holds some: (rows, height, width) or (rows, channels, height, width)."""
    X = checks.unwrap(X)
    if isinstance(X, list | tuple) and X and _is_image(X[0]):
        each = [np.asarray(checks.unwrap(image)) for image in X]
        if len(shapes := {image.shape for image in each}) > 1:
            raise ValueError(
                f"{name} holds images of different shapes, such as {sorted(shapes)[:2]}: bring them to one."
            )
        X = np.stack(each)
    if getattr(X, "ndim", 2) not in (3, 4):
        return X, None
    images = np.asarray(X)
    shape = (1, *images.shape[1:]) if images.ndim == 3 else images.shape[1:]
    return images.reshape(len(images), math.prod(shape)), shape


def _is_image(row: Any) -> bool:
    try:
        return np.ndim(row) > 1
    except ValueError:  # rows within it are of different lengths
        return False


def shape_to_keep(came: Shape | None, given: Sequence[int] | None, n_columns: int) -> Shape | None:
    """The shape of the images that X holds, by itself or because the user says so; None for tables."""
    wanted = None if given is None else tuple(given)
    if wanted is not None and (
        len(wanted) != 3 or not all(isinstance(size, Integral) and size >= 1 for size in wanted)
    ):
        raise ValueError(f"image_shape must be (channels, height, width), but {wanted} came.")
    if came is None:
        if wanted is not None and math.prod(wanted) != n_columns:
            raise ValueError(f"image_shape={wanted} has {math.prod(wanted)} pixels, X {n_columns}.")
        return wanted
    if wanted not in (None, came):
        raise ValueError(f"image_shape={wanted} came, and X holds images of {came}. Leave image_shape out.")
    if came[-1] in (1, 3, 4) and came[0] > 4:
        checks.warn_user(
            f"X is taken as images of {came[0]} channels and {came[1]} × {came[2]} pixels. If channels come last, "
            "pass X.transpose(0, 3, 1, 2)."
        )
    return came


def refuse_other_images(came: Shape | None, kept: Shape | None, name: str) -> None:
    """Refuses images of another shape than those that came to `fit`; flattened ones say nothing about theirs."""
    if came not in (None, kept):
        wanted = "rows of a table" if kept is None else f"{kept} or flattened ones"
        raise ValueError(f"{name} holds images of (channels, height, width) {came}, but {wanted} were expected.")
