"""Checks at the door: what users hand in becomes a float64 array, or an error that says what came and what to do.

scikit-learn's own validation does the common part; this room adds which column is at fault and the remedy.
"""

import contextlib
import datetime
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils import check_array
from sklearn.utils.validation import _num_samples

__all__ = [
    "HUGE",
    "Unpaired",
    "are_indexed_apart",
    "as_array",
    "as_rows",
    "as_weight",
    "column_names",
    "describe_unlike",
    "forwards",
    "warn_user",
]


HUGE = 1e100  # squares of greater numbers, or sums of them, may be none any more
# Entries of an array that are no numbers, or not one alone.
NO_NUMBERS = (
    complex,
    np.complexfloating,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    np.datetime64,
    np.timedelta64,
)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns about the line of the user's code that called into fewpairs, through however many of our own, and what Python
    puts between them where one is a context manager."""
    ours, frame, level = (f"{Path(__file__).parents[1]}{os.sep}", contextlib.__file__), sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


class Unpaired:
    """Wraps unpaired rows so that GridSearchCV and cross_validate pass them on whole.

    scikit-learn cuts every fit parameter that happens to have as many rows as X into folds, as if its rows were the pairs'.
    What it cannot measure it does not cut: `search.fit(X, Y, X_unpaired=Unpaired(Xu))`.
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __repr__(self) -> str:
        return f"Unpaired({_num_samples(self.rows)} rows)"


def as_rows(
    rows: Any, name: str, *, n_columns: int | None = None, names: list[str] | None = None, may_be_1d: bool = False
) -> np.ndarray:
    """Checks a table of numbers and returns it as (rows, columns) in float64, laid out as tensors are.

    Arguments:
        rows: An array, tensor or frame, wrapped in `Unpaired` or not.
        name: What the caller calls it, for the error.
        n_columns: How many columns it must have.
        names: The names its columns must have, if it is a frame.
        may_be_1d: Whether a one-dimensional array is welcome, as one column.
    """
    rows = unwrap(rows)
    refuse_text_columns(rows, name)
    refuse_other_kinds(rows, name)
    came_names = column_names(rows)
    if names is not None and came_names is not None and came_names != names:
        raise ValueError(
            f"{name} has the columns {came_names}, but {names} were expected, in this order. "
            f"Pick and order them: {name}[{names}]."
        )
    try:
        table = check_array(
            rows,
            dtype=np.float64,
            order="C",
            ensure_2d=not may_be_1d,
            ensure_all_finite=False,
            ensure_min_samples=0,
            input_name=name,
        )
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} must be a table of numbers with one row a sample: {error}") from error
    if table.ndim == 0:
        raise ValueError(f"{name} must be a table of numbers with one row a sample, but {rows!r} came.")
    if len(table) == 0:
        raise ValueError(
            f"{name} is empty: 0 sample(s) came, while a minimum of 1 is required. {_remedy_for_empty(name)}"
        )
    table = forwards(table[:, None] if table.ndim == 1 else table)
    refuse_holes(table, name, came_names)
    if n_columns is not None and table.shape[1] != n_columns:
        hint = (
            " In a Pipeline, unpaired rows must go through the same steps: "
            'Pipeline(steps, transform_input=["X_unpaired"]) with metadata routing enabled.'
        )
        raise ValueError(
            f"{name} has {table.shape[1]} columns, but {n_columns} were expected. Every x needs the same columns, paired or "
            f"not, in training and in use, and so does every y.{hint if name == 'X_unpaired' else ''}"
        )
    return table


def _remedy_for_empty(name: str) -> str:
    if name.endswith("_unpaired"):
        return "If there are no such rows, leave it out."
    return "A fit needs two pairs of rows at least, and anything else one row."


def unwrap(rows: Any) -> Any:
    """What scikit-learn understands: tensors become arrays, series become frames, `Unpaired` its rows, masked entries gaps."""
    rows = rows.rows if isinstance(rows, Unpaired) else rows
    if isinstance(rows, torch.Tensor):
        return as_array(rows)
    if isinstance(rows, np.ma.MaskedArray):
        return (
            np.where(np.ma.getmaskarray(rows), np.nan, rows.data.astype(object)) if np.ma.is_masked(rows) else rows.data
        )
    return rows.to_frame() if isinstance(rows, pd.Series) else rows


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor from anywhere as an array; numpy has no bfloat16."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def forwards(array: np.ndarray) -> np.ndarray:
    """The same numbers without a stride that goes backwards, which no tensor has."""
    return array.copy(order="C") if any(stride < 0 for stride in array.strides) else array


def as_weight(weight: Any, rows: np.ndarray, name: str) -> np.ndarray:
    """Checks one weight a row: finite, not negative, not all zero. None is ones.

    Only their ratios matter. They are brought near one by a power of two, which changes no digit: sums of huge ones are infinite.
    """
    if weight is None:
        return np.ones(len(rows))
    weight = weight if isinstance(weight, pd.Series) else unwrap(weight)
    refuse_other_kinds(weight, name)
    try:
        weight = np.asarray(weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers, one a row: {error}.") from error
    if weight.shape != (len(rows),):
        raise ValueError(
            f"{name} must be a 1D array of one number a row: {(len(rows),)} was expected, {weight.shape} came."
        )
    if not np.isfinite(weight).all():
        rows_without = np.flatnonzero(~np.isfinite(weight))
        raise ValueError(
            f"Input {name} contains NaN or infinity in {len(rows_without)} places, first in row {rows_without[0]}. Fill them in; "
            "a weight of zero leaves a row out."
        )
    if (weight < 0).any():
        raise ValueError(f"{name} must not be negative, but its least entry is {weight.min():g}. Clip it at zero.")
    if not weight.any():
        raise ValueError(f"{name} is zero everywhere: nothing would be learnt. Leave it out for equal weights.")
    return np.ldexp(weight, -int(np.frexp(weight.max())[1]))


def column_names(rows: Any) -> list[str] | None:
    """The names of a frame's columns, if they are strings."""
    columns = getattr(rows, "columns", None)
    if columns is None or not all(isinstance(name, str) for name in columns):
        return None
    return list(columns)


def refuse_text_columns(rows: Any, name: str) -> None:
    if not isinstance(rows, pd.DataFrame):
        return
    places = [place for place, kind in enumerate(rows.dtypes) if not _is_real(kind)]
    if places:
        names = [str(rows.columns[place]) for place in places]
        entries = rows.iloc[:, places[0]]
        strange = entries[pd.to_numeric(entries, errors="coerce").isna()]
        example = f"; {strange.iloc[0]!r} stands in {names[0]!r}" if len(strange) else ""
        raise ValueError(
            f"{name} must be numbers, but the columns {names} are not{example}. "
            "Convert them, for instance with pandas.to_numeric, encode them as numbers, or leave them out."
        )


def _is_real(kind: Any) -> bool:
    return pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_complex_dtype(kind)


def refuse_other_kinds(rows: Any, name: str) -> None:
    """Refuses what numpy would make numbers of without a word, and says where the first of it stands."""
    if isinstance(rows, pd.DataFrame):  # its columns know their kinds
        return
    try:
        entries = np.atleast_1d(np.asarray(rows))
    except ValueError:  # rows of different lengths: scikit-learn says so
        return
    is_other = np.full(entries.shape, entries.dtype.kind in "mMc")
    if entries.dtype.kind == "O" and entries.size:
        is_other = np.vectorize(lambda entry: isinstance(entry, NO_NUMBERS), otypes=[bool])(entries)
    if not is_other.any():
        return
    row, *columns = np.argwhere(is_other)[0].tolist()
    names, first = column_names(rows), entries[row, *columns]
    column = f", column {names[columns[0]] if names else columns[0]}" if columns else ""
    remedy = "Make a number of it, such as the days since a date."
    if isinstance(first, complex | np.complexfloating):
        remedy = "Complex data not supported: make two columns of its two parts."
    raise ValueError(
        f"{name} must be numbers, but {first} came in row {row}{column}, a {type(first).__name__}. {remedy}"
    )


def refuse_holes(table: np.ndarray, name: str, names: list[str] | None) -> None:
    """Refuses NaN and infinity, and says in which columns and from which row on."""
    bad = ~np.isfinite(table)
    if not bad.any():
        return
    labels = names or [str(column) for column in range(table.shape[1])]
    where = [labels[column] for column in np.flatnonzero(bad.any(axis=0))]
    shown = ", ".join(where[:8]) + (f" and {len(where) - 8} more" if len(where) > 8 else "")
    row = int(np.flatnonzero(bad.any(axis=1))[0])
    kind = "NaN" if np.isnan(table).any() else "infinity or a value too large"
    raise ValueError(
        f"Input {name} contains {kind} in {int(bad.any(axis=1).sum())} of {len(table)} rows, first in row {row}; columns: "
        f"{shown}. Every number must be finite, and none masked: drop those rows or fill them in. If the gaps say which of x "
        "and y is missing, fewpairs.split_frame sorts one table with gaps into pairs and unpaired rows."
    )


PAIRED = "X and Y are pairs and", "Pass rows without a partner as X_unpaired or Y_unpaired."


def refuse_unequal(n_x: int, n_y: int, words: tuple[str, str] = PAIRED) -> None:
    """Refuses x's and y's of different numbers; the words say what they are and what to do."""
    if n_x != n_y:
        what, remedy = words
        raise ValueError(
            f"{what} need equally many rows, but X has {n_x} and Y has {n_y} (inconsistent numbers of samples). {remedy}"
        )


def refuse_few_pairs(n_pairs: int, least: int) -> None:
    if n_pairs < least:
        raise ValueError(
            f"Found {n_pairs} sample(s), while a minimum of {least} pairs is required: with fewer, nothing links y to x. "
            "Ten pairs are a start, a hundred make a model; rows without a partner go into X_unpaired or Y_unpaired."
        )


def refuse_constant_y(Y: np.ndarray, names: list[str] | None) -> None:
    constant = np.flatnonzero(np.ptp(Y, axis=0) == 0)
    if len(constant):
        labels = [names[column] if names else str(column) for column in constant]
        raise ValueError(
            f"Y has zero variance in column {', '.join(labels)} (every row is {Y[0, constant[0]]:g}): its density would be "
            "infinite there. Leave that column out of Y."
        )


def describe_unlike(unpaired: np.ndarray, paired: np.ndarray, name: str, names: list[str] | None) -> str | None:
    """A sentence of warning if unpaired rows seem to be in other units than the paired ones, else None."""
    largest = np.maximum(np.abs(paired).max(axis=0), np.abs(unpaired).max(axis=0))
    unit = np.where(largest > HUGE, largest, 1.0)
    paired, unpaired = paired / unit, unpaired / unit
    spread = paired.std(axis=0)
    varies = spread > 0
    if len(paired) < 10 or len(unpaired) < 10 or not varies.any():
        return None
    shift = np.abs(np.median(unpaired, axis=0) - paired.mean(axis=0))[varies] / spread[varies]
    ratio = (unpaired.std(axis=0)[varies] + 1e-300) / spread[varies]
    if shift.max() < 10 and ratio.max() < 100 and ratio.min() > 0.01:
        return None
    column = int(np.flatnonzero(varies)[int(np.argmax(np.maximum(shift / 10, np.abs(np.log10(ratio)) / 2)))])

    def told(numbers: np.ndarray) -> str:
        return f"{numbers[column] * unit[column]:.3g}"

    hint = (
        " If a Pipeline transforms X, unpaired rows must go the same way: "
        'Pipeline(steps, transform_input=["X_unpaired"]) with metadata routing enabled.'
    )
    return (
        f"{name}_unpaired looks unlike {name}: in column {names[column] if names else column} its mean is "
        f"{told(unpaired.mean(axis=0))} and its standard deviation {told(unpaired.std(axis=0))}, against "
        f"{told(paired.mean(axis=0))} and {told(paired.std(axis=0))} in the pairs. Are these other units, or "
        f"outliers?{hint if name == 'X' else ''}"
    )


def are_indexed_apart(X: Any, Y: Any) -> bool:
    """Whether both are pandas tables and their indices name the same rows in another order."""
    if not all(isinstance(table, pd.DataFrame | pd.Series) for table in (X, Y)):
        return False
    return not X.index.equals(Y.index) and set(X.index) == set(Y.index)
