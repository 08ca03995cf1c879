"""What a classifier refuses, and what it says should be done."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import blobs, quick
from torch import nn

DATA = {"X", "y", "X_unpaired"}


class Noisy(nn.Linear):
    """A layer that drops numbers at random by a call of its own, which no module gives away."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x), training=self.training)


SHARED = nn.Linear(2, 2)


class Applied(nn.Module):
    """Whatever a function makes of a linear layer and x."""

    def __init__(self, function: Callable[[nn.Linear, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(2, 3), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear, x)


@pytest.mark.parametrize(
    "change, complaint",
    [
        ({"y": np.full(120, -1)}, "All 120 rows are unlabelled.*each class needs one"),
        ({"y": np.where(np.arange(120) < 5, 1, -1)}, "one class, .*1.*: label at least one row of each class"),
        ({"class_prior": [0.5, 0.5]}, r"2 numbers, but the labelled rows hold 3 classes, \[0, 1, 2\]"),
        ({"class_prior": [0.5, 0.5, 0.0]}, "a positive number for each of"),
        ({"class_prior": {0: 0.3, 1: 0.3, 2: 0.2, 3: 0.2}}, r"class_prior names \[3\].*at least one labelled row"),
        ({"class_prior": pd.Series([0.2, 0.8], index=["a", "b"])}, r"class_prior names \['a', 'b'\]"),
        ({"class_prior": ["a", "b", "c"]}, "must hold numbers, one for each of"),
        ({"class_prior": [1e-50, 0.5, 0.5]}, "gives 0 a part of 1e-50; 1e-09 is the least"),
        ({"class_prior": {0: 0.5, 1: 0.5}}, r"a positive number for each of \[0, 1, 2\], but {0: 0.5, 1: 0.5} came"),
        ({"y": np.array([1, 2, 1, "a"] * 30, dtype=object)}, "numbers and words came, such as 1 and 'a'"),
        ({"y": [(0, 1), (1, 1), None] * 40}, r"must be words, numbers, dates, but \(0, 1\) came, of type tuple"),
        ({"unlabelled": [-1, -2]}, r"one word, one number or None, but \[-1, -2\] came"),
        ({"unlabelled": "-1"}, "unlabelled='-1' is a word, but labels such as 0 are none"),
        ({"X_unpaired": pd.DataFrame(np.zeros((5, 2)), columns=["b", "a"])}, r"columns \['b', 'a'\], but \['a', 'b'\]"),
        ({"y": np.linspace(0, 1, 120)}, "Unknown label type"),
        ({"y": None}, "requires y to be passed"),
        ({"y": np.zeros(100)}, "X and its labels need equally many rows, but X has 120 and Y has 100.*X_unpaired"),
        ({"y": np.zeros((120, 2))}, "1d array"),
        ({"network": "cnn"}, "for images.*image_shape="),
        ({"image_shape": (1, 2, 2)}, "4 pixels, X 2"),
        ({"image_shape": (2, 1)}, r"\(channels, height, width\), but \(2, 1\) came"),
        ({"image_shape": (1, 1.5, 2)}, r"\(channels, height, width\), but \(1, 1.5, 2\) came"),
        (
            {"X": [np.zeros((2, 2)), np.zeros((3, 2))] * 60},
            r"images of different shapes, such as \[\(2, 2\), \(3, 2\)\]",
        ),
        ({"class_prior": pd.Series([0.2, 0.3, 0.5], index=[0, 1, 1])}, "names a class twice"),
        ({"class_prior": np.ma.masked_array([0.2, 0.3, 0.5], [False, True, False])}, "a positive number for each of"),
        ({"y": [None if k else pd.Timestamp(k, tz="UTC") for k in range(120)]}, "Dates must be without time zones"),
        ({"y": np.arange(120).astype("timedelta64[s]")}, "lengths of time came"),
        ({"image_shape": (1, -2, -1)}, r"\(channels, height, width\), but \(1, -2, -1\) came"),
        (
            {"image_shape": (1, 4, 4), "X": np.zeros((120, 8, 8))},
            r"\(1, 4, 4\) came, and X holds images of \(1, 8, 8\)",
        ),
        (
            {"X_unpaired": np.zeros((5, 2, 1))},
            r"X_unpaired holds images.*\(1, 2, 1\), but rows of a table were expected",
        ),
        ({"hidden": [[3]]}, r"whole numbers from 1 on, but \[\[3\]\] came"),
        ({"network": Applied(lambda linear, x: linear(x) if x.sum() > 0 else -linear(x))}, "knows no ifs on numbers"),
        ({"network": Applied(lambda linear, x: linear(x.pow_(2)))}, "changes the rows it is given in place"),
        ({"network": Applied(lambda linear, x: linear(x).detach())}, "without a gradient"),
        ({"network": Applied(lambda linear, x: linear(x.log()))}, "gives NaN or infinity"),
        ({"network": Applied(lambda linear, x: (linear(x),))}, "each of 3 classes, but 256 rows gave tuple"),
        ({"network": nn.Sequential(SHARED, SHARED, nn.Linear(2, 3))}, "in two places"),
        ({"network": nn.Linear(2, 3), "label_embedding": 3}, "a network of your own has its own head"),
        ({"network": nn.Linear(2, 4)}, "each of 3 classes"),
        ({"network": nn.Linear(2, 3).requires_grad_(False)}, r"want no gradient \(weight, bias\)"),
        ({"network": Noisy(2, 3)}, "two answers for the same rows"),
        ({"label_embedding": 3}, "two hidden layers"),
        ({"X_unpaired": np.zeros((5, 3))}, "X_unpaired has 3 columns, but 2"),
    ],
)
def test_refusals_say_what_to_do(change: dict, complaint: str) -> None:
    X, _, labels = blobs()
    X = pd.DataFrame(X, columns=["a", "b"]) if isinstance(change.get("X_unpaired"), pd.DataFrame) else X
    data, settings = ({k: v for k, v in change.items() if (k in DATA) is is_data} for is_data in (True, False))
    with pytest.raises(ValueError, match=complaint):
        quick(**settings).fit(**{"X": X, "y": labels, **data})
