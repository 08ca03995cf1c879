"""Labels: which rows have one, and how common the classes are."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets

from fewpairs import checks

__all__ = ["read_prior", "shrunk", "split_labels"]


def split_labels(y: Any, unlabelled: Any) -> tuple[np.ndarray, np.ndarray]:
    """The labels of the labelled rows, and which rows they are."""
    y = y.detach().cpu().numpy() if isinstance(y, torch.Tensor) else y
    if isinstance(y, pd.Series | pd.DataFrame):
        y = y.astype(object).to_numpy()  # nullable and categorical columns have gaps of their own kinds
    values = y if isinstance(y, np.ndarray) else np.array(y, dtype=object)  # numpy would make words of a list with gaps
    if values.ndim == 2 and values.shape[1] == 1:
        text = "A column-vector y was passed when a 1d array was expected: it is taken as one label a row."
        checks.warn_user(text, DataConversionWarning)
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"y should be a 1d array with one label a row, got an array of shape {values.shape} instead.")
    is_labelled = ~pd.isna(values)
    if values.dtype.kind in "OSU":
        # Words are compared with words alone: numpy would warn, and "1" is not 1.
        is_word = isinstance(unlabelled, str)
        named = values[is_labelled]
        is_labelled[is_labelled] = [isinstance(label, str) != is_word or label != unlabelled for label in named]
    elif isinstance(unlabelled, Real):
        is_labelled &= values != unlabelled
    labels = values[is_labelled]
    if labels.dtype.kind == "O":  # what is left beside the gaps may be plain numbers or words
        kinds = sorted({"words" if isinstance(label, str) else "numbers" for label in labels})
        if len(kinds) > 1:
            raise ValueError(f"Labels must be of one kind, but words and numbers came, such as {labels[:3].tolist()}.")
        labels = np.array(labels.tolist())
    if len(labels):
        check_classification_targets(labels)
    return labels, is_labelled


def read_prior(wanted: Any, classes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The share of each class, as it is wanted: "uniform", as "labelled", or given."""
    if isinstance(wanted, str):
        uniform = np.full(len(counts), 1 / len(counts))
        return shrunk(counts, uniform) if wanted == "labelled" else uniform
    given = [wanted.get(label, math.nan) for label in classes.tolist()] if isinstance(wanted, Mapping) else wanted
    prior = np.asarray(given, dtype=np.float64)
    if prior.shape != counts.shape:
        raise ValueError(
            f"class_prior has {prior.size} numbers, but the labelled rows hold {len(counts)} classes, "
            f"{classes.tolist()}: one number for each is needed, and at least one labelled row of each class."
        )
    if not (np.isfinite(prior).all() and (prior > 0).all()):
        raise ValueError(f"class_prior must hold a positive number for each of {classes.tolist()}, but {wanted} came.")
    return prior / prior.sum()


def shrunk(counts: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Shares drawn towards uniform ones by the part that minimises the expected squared error (James and Stein; Hausser and
    Strimmer, 2009): with few labels chance alone makes them differ."""
    n_rows, shares = counts.sum(), counts / counts.sum()
    spread = ((uniform - shares) ** 2).sum()
    if spread == 0 or n_rows <= 1:
        return uniform
    part = float(np.clip((1 - (shares**2).sum()) / ((n_rows - 1) * spread), 0.0, 1.0))
    return part * uniform + (1 - part) * shares
