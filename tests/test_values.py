"""Values that are no plain numbers, or plain numbers of absurd size: a sentence that says where, or a finite answer."""

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import blobs, brief, quick, searched
from small_networks import DATA, UNPAIRED, corrected, fit, free

from fewpairs.baselines import REGISTRY

X, Y = DATA.X, DATA.Y
N = len(X)
DATES = np.arange(N).astype("datetime64[D]")[:, None]
MAKERS = {
    "mixture": lambda: searched(training__max_steps=3),
    "corrected": corrected,
    "energy": free,
    "regression": lambda: REGISTRY["regression"](max_steps=3, random_state=0, verbose=False),
    "cgmm": lambda: REGISTRY["cgmm"](max_steps=3, random_state=0, verbose=False),
}


def put(rows: np.ndarray, value: float) -> np.ndarray:
    rows = rows.copy()
    rows[4, 0] = value
    return rows


def masked(rows: np.ndarray) -> np.ma.MaskedArray:
    mask = np.zeros(rows.shape, dtype=bool)
    mask[3] = True
    return np.ma.array(rows, mask=mask)


def objects(entry: Any) -> np.ndarray:
    rows = X.astype(object)
    rows[2, 0] = entry
    return rows


class Foreign:
    """A frame of another library: columns, and an array."""

    columns = ["day"]
    shape = DATES.shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return DATES if dtype is None else DATES.astype(dtype)

    def __len__(self) -> int:
        return N


NO_NUMBERS = {
    "complex": (X + 1j, r"came in row 0, column 0, a complex128\. Complex data not supported"),
    "complex tensor": (torch.from_numpy(X + 1j), r"row 0, column 0, a complex128"),
    "complex frame": (pd.DataFrame(X + 1j, columns=["wave"]), r"columns \['wave'\] are not"),
    "complex object": (objects(1j), r"1j came in row 2, column 0, a complex"),
    "dates": (DATES, r"1970-01-01 came in row 0, column 0, a datetime64.*days since"),
    "lengths of time": (DATES - DATES[0], r"0 days came in row 0, column 0, a timedelta64"),
    "a date among objects": (objects(datetime.date(2020, 1, 2)), r"2020-01-02 came in row 2, column 0, a date"),
    "a length of time among objects": (objects(np.timedelta64(3, "D")), r"3 days came in row 2, column 0"),
    "a list of dates": ([[date] for date in DATES[:, 0]], r"row 0, column 0, a datetime64"),
    "a frame of dates": (pd.DataFrame(DATES, columns=["day"]), r"columns \['day'\] are not"),
    "another library's frame of dates": (Foreign(), r"row 0, column day, a datetime64"),
    "masked": (masked(X), r"contains NaN in 1 of 60 rows, first in row 3; columns: 0\. .* none masked"),
    "nothing but a number": (3.0, r"must be a table of numbers"),
}


@pytest.mark.parametrize("rows, message", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_what_is_no_number_is_refused(rows: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        brief().fit(rows, Y)
    with pytest.raises(ValueError, match=message):
        brief().fit(X, rows)


WEIGHTS = {
    "complex": (np.ones(N) + 1j, r"sample_weight must be numbers, but \(1\+1j\) came in row 0, a complex128"),
    "dates": (DATES[:, 0], r"sample_weight must be numbers, but 1970-01-01 came in row 0"),
    "masked": (
        masked(np.ones(N)),
        r"sample_weight contains NaN or infinity in 1 places, first in row 3.*leaves a row out",
    ),
}


@pytest.mark.parametrize("weight, message", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_that_are_no_numbers_are_refused(weight: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        brief().fit(X, Y, weight)
    rows, _, labels = blobs(n_rows=N)
    with pytest.raises(ValueError, match=message):
        quick().fit(rows, labels, weight)


def test_nothing_masked_is_an_array() -> None:
    expected = brief(training__max_steps=3).fit(X, Y).predict(X)
    whole = np.ma.array(X, mask=False)
    np.testing.assert_array_equal(brief(training__max_steps=3).fit(whole, Y).predict(whole), expected)


@pytest.mark.parametrize("scale", [1e-300, 1e300, 1.7e308])
def test_weights_of_any_size_are_ratios(scale: float) -> None:
    one = brief(training__max_steps=3).fit(X, Y, np.full(N, 1.0), **UNPAIRED)
    other = brief(training__max_steps=3).fit(X, Y, np.full(N, scale), **UNPAIRED)
    np.testing.assert_allclose(other.predict(X), one.predict(X), rtol=1e-6)
    assert other.score(X, Y, np.full(N, scale)) == pytest.approx(one.score(X, Y), rel=1e-6)


@pytest.mark.filterwarnings("ignore:X_unpaired looks unlike", "ignore:.*far from every x", "ignore:The pairs")
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("size", [1e19, 1e160, 1e200, 1.7e308])
def test_one_huge_x_breaks_no_fit(make: Any, size: float) -> None:
    unpaired = {**UNPAIRED, "X_unpaired": put(UNPAIRED["X_unpaired"], size)}
    for model in (make().fit(put(X, size), Y, **UNPAIRED), make().fit(X, Y, **unpaired)):
        assert np.isfinite(model.predict(X[:6])).all()


@pytest.mark.filterwarnings("ignore:.*far from every x")
@pytest.mark.parametrize(
    "make", [make for name, make in MAKERS.items() if name != "cgmm"]
)  # whose spread is an exponential
def test_huge_values_in_use_have_finite_answers(make: Any) -> None:
    model = fit(make())
    if hasattr(model, "base_"):
        model.plan_.strength.fill_(1.0)
    for size in (1e19, 1e39, 1e200):
        far_x, far_y = put(X[:6], size), put(Y[:6], size)
        assert np.isfinite(model.predict(far_x)).all()
        assert np.isfinite(model.sample(far_x, 2, random_state=0)).all()
        assert np.isfinite(model.novelty(far_x)).all()
        assert model.novelty(far_x)[4] > 1
        for name in ("score_samples", "energy"):
            if hasattr(model, name):
                assert np.isfinite(getattr(model, name)(far_x, Y[:6])).all()
                assert not np.isnan(getattr(model, name)(X[:6], far_y)).any()


@pytest.mark.parametrize("make", [MAKERS["mixture"], MAKERS["corrected"], MAKERS["cgmm"]])
def test_no_y_to_score_is_told(make: Any) -> None:
    with pytest.raises(ValueError, match="Y must be a table of numbers with one row a sample, but None came"):
        fit(make()).score_samples(X, None)


def test_a_floor_beyond_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"variance_floor of Search must be a number from 0 to 1e\+30.*1e\+300 came"):
        brief(search__variance_floor=1e300).fit(X, Y)
    assert np.isfinite(brief(search__variance_floor=1e30).fit(X, Y).predict(X)).all()
