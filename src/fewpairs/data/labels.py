"""Labels: which rows have one, and how common the classes are."""

import datetime
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets

from fewpairs.data import checks

__all__ = ["is_gap", "read_prior", "shares_in_order", "shrunk", "split_labels"]

# A Timestamp is a date too.
KINDS: dict[str, Any] = {"words": str, "numbers": (Real, np.bool_), "dates": (datetime.date, np.datetime64)}
WORDS_OF_GAPS = {"nan", "NaN", "None", "<NA>"}  # what numpy makes of them in an array of words
LEAST_SHARE = 1e-9  # of a class: logarithms in float32 want a number above zero


def split_labels(y: Any, unlabelled: Any) -> tuple[np.ndarray, np.ndarray]:
    """The labels of the labelled rows, and which rows they are."""
    marker, values = _as_marker(unlabelled), _as_values(y)
    if values.ndim == 2 and values.shape[1] == 1:
        text = "A column-vector y was passed when a 1d array was expected: it is taken as one label a row."
        checks.warn_user(text, DataConversionWarning)
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"y should be a 1d array with one label a row, got an array of shape {values.shape} instead.")
    is_labelled = ~pd.isna(values)
    if values.dtype.kind in "OSU":
        # Words are compared with words alone: numpy would warn, and "1" is not 1.
        is_word = isinstance(marker, str)
        named = values[is_labelled]
        is_labelled[is_labelled] = [isinstance(label, str) != is_word or label != marker for label in named]
    elif isinstance(marker, Real):
        is_labelled &= values != marker
    labels = values[is_labelled]
    if labels.dtype.kind == "O":  # what is left beside the gaps may be plain numbers or words
        labels = _of_one_kind(labels)
    if len(labels):
        if labels.dtype.kind == "m":
            raise ValueError(f"Labels must be {', '.join(KINDS)}, but lengths of time came. Give each class a word.")
        check_classification_targets(labels)
        _doubt_marker(labels, marker, is_text=values.dtype.kind == "U")
    return labels, is_labelled


def is_gap(label: Any) -> bool:
    """Whether this is None, or NaN of whatever kind."""
    return bool(pd.api.types.is_scalar(label) and pd.isna(label))


def _as_marker(unlabelled: Any) -> str | Real | None:
    """What stands for no label, beside None and NaN; None if nothing does."""
    if is_gap(unlabelled):
        return None
    unlabelled = unlabelled.item() if isinstance(unlabelled, np.generic) else unlabelled
    if not isinstance(unlabelled, str | Real):
        raise ValueError(f"unlabelled must be one word, one number or None, but {unlabelled!r} came.")
    return unlabelled


def _as_values(y: Any) -> np.ndarray:
    """Labels and gaps as an array, in which numpy has made no words of gaps."""
    if isinstance(y, torch.Tensor):
        return checks.as_array(y)
    if isinstance(y, pd.Series | pd.DataFrame):
        return y.astype(object).to_numpy()  # nullable and categorical columns have gaps of their own kinds
    if isinstance(y, np.ma.MaskedArray):
        values = y.data.astype(object)
        values[np.ma.getmaskarray(y)] = None
        return values
    return y if isinstance(y, np.ndarray) else np.array(y, dtype=object)


def _of_one_kind(labels: np.ndarray) -> np.ndarray:
    """Objects as an array of words, of numbers or of dates."""
    first: dict[str, Any] = {}
    for label in labels:
        kind = next((kind for kind, types in KINDS.items() if isinstance(label, types)), None)
        if kind is None:
            raise ValueError(
                f"Labels must be {', '.join(KINDS)}, but {label!r} came, of type {type(label).__name__}. Give each class a word."
            )
        if getattr(label, "tzinfo", None) is not None:
            raise ValueError(
                f"Dates must be without time zones, but {label!r} came. Convert them: series.dt.tz_convert(None)."
            )
        first.setdefault(kind, label)
    if len(first) > 1:
        raise ValueError(
            f"Labels must be of one kind, but {' and '.join(first)} came, such as {' and '.join(map(repr, first.values()))}."
        )
    return np.array(labels.tolist(), dtype="datetime64[us]" if "dates" in first else None)


def _doubt_marker(labels: np.ndarray, marker: Any, *, is_text: bool) -> None:
    """Complains if rows that were to have no label seem to have become a class; in an array of text numpy has made words of
    them."""
    if isinstance(marker, str) and labels.dtype.kind not in "SU":
        raise ValueError(
            f"unlabelled={marker!r} is a word, but labels such as {labels.tolist()[0]!r} are none: it would stand for no row. "
            "Pass what y has where there is no label."
        )
    suspects = sorted(set(labels.tolist()) & {*WORDS_OF_GAPS, str(marker)}) if is_text else []
    if suspects:
        checks.warn_user(
            f"The word {suspects[0]!r} is taken as a class. If it stands for no label (numpy makes such words of gaps), pass y "
            f"as a list or with dtype=object, or give unlabelled={suspects[0]!r}."
        )


def read_prior(wanted: Any, classes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The share of each class, as it is wanted: "uniform", as "labelled", or given, in the order of the classes or by name."""
    if isinstance(wanted, str):
        uniform = np.full(len(counts), 1 / len(counts))
        return shrunk(counts, uniform) if wanted == "labelled" else uniform
    shares = shares_in_order(wanted, classes)
    try:
        prior = np.asarray(shares, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"class_prior must hold numbers, one for each of {_names(classes)}: {error}.") from error
    if prior.shape != counts.shape:
        raise ValueError(
            f"class_prior has {prior.size} numbers, but the labelled rows hold {len(counts)} classes, "
            f"{_names(classes)}: one number for each is needed, and at least one labelled row of each class."
        )
    if not (np.isfinite(prior).all() and (prior > 0).all()):
        raise ValueError(f"class_prior must hold a positive number for each of {_names(classes)}, but {wanted} came.")
    prior = prior / prior.sum()
    if prior.min() < LEAST_SHARE:
        raise ValueError(
            f"class_prior gives {_names(classes)[prior.argmin()]!r} a part of {prior.min():.1g}; {LEAST_SHARE:.0e} is the least."
        )
    return prior


def shares_in_order(wanted: Any, classes: np.ndarray) -> Any:
    """What was given as shares, one for each class in their order, if it was given by name; as it came if not."""
    if isinstance(wanted, torch.Tensor):
        return checks.as_array(wanted)
    if isinstance(wanted, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(wanted), math.nan, wanted.data)
    if not isinstance(wanted, Mapping | pd.Series):
        return wanted
    names, known = _names(list(wanted.keys())), _names(classes)
    strange = [name for name in names if name not in known]
    if strange or len(set(names)) < len(names):
        what = f"names {strange}" if strange else f"names a class twice: {names}"
        raise ValueError(
            f"class_prior {what}, but the labelled rows hold {len(known)} classes, {known}: at least one labelled row of each "
            "class is needed, and one share."
        )
    share = dict(zip(names, (wanted.array if isinstance(wanted, pd.Series) else wanted.values()), strict=True))
    return [share.get(name, math.nan) for name in known]


def _names(labels: Any) -> list[Any]:
    """What classes are called: words and numbers as they are, and the same date alike whatever held it."""
    plain = labels if isinstance(labels, list) or labels.dtype.kind == "M" else labels.tolist()
    is_date = KINDS["dates"]
    return [pd.Timestamp(label).to_pydatetime(warn=False) if isinstance(label, is_date) else label for label in plain]


def shrunk(counts: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Shares drawn towards uniform ones by the part that minimises the expected squared error (James and Stein; Hausser and
    Strimmer, 2009): with few labels chance alone makes them differ."""
    n_rows, shares = counts.sum(), counts / counts.sum()
    spread = ((uniform - shares) ** 2).sum()
    if spread == 0 or n_rows <= 1:
        return uniform
    part = float(np.clip((1 - (shares**2).sum()) / ((n_rows - 1) * spread), 0.0, 1.0))
    return part * uniform + (1 - part) * shares
