"""Bad input gets a sentence that says what was expected, what came, and what to do."""

import numpy as np
import pandas as pd
import pytest

from fewpairs import MixtureTranslator

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(30, 3)), RANDOM.normal(size=(30, 2))
FRAME = pd.DataFrame(X, columns=["wind", "rain", "sun"])
QUICK = {"max_steps": 5, "random_state": 0, "verbose": False}


def put(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array[4, 1] = value
    return array


def with_text() -> pd.DataFrame:
    return FRAME.assign(rain=["much"] * 30)


BAD_FITS = {
    "nan in X": ((put(X, np.nan), Y), {}, r"Input X contains NaN in 1 of 30 rows, first in row 4; columns: 1\b.*drop"),
    "inf in Y": ((X, put(Y, np.inf)), {}, r"Input Y contains infinity.*row 4; columns: 1\b"),
    "nan in X_unpaired": ((X, Y), {"X_unpaired": put(X, np.nan)}, r"Input X_unpaired contains NaN"),
    "nan in a named column": ((FRAME.assign(rain=np.nan), Y), {}, r"columns: rain\b"),
    "text column": ((with_text(), Y), {}, r"X must be numbers, but the columns \['rain'\] are not.*'much'.*to_numeric"),
    "unequal rows": ((X, Y[:-1]), {}, r"X has 30 and Y has 29.*X_unpaired or Y_unpaired"),
    "wrong width of unpaired x": ((X, Y), {"X_unpaired": X[:, :2]}, r"X_unpaired has 2 columns, but 3 were expected"),
    "wrong width of unpaired y": ((X, Y), {"Y_unpaired": Y[:, :1]}, r"Y_unpaired has 1 columns, but 2 were expected"),
    "wrong names of unpaired x": (
        (FRAME, Y),
        {"X_unpaired": FRAME.rename(columns={"sun": "moon"})},
        r"X_unpaired has the columns .*'moon'.*'sun'.* were expected",
    ),
    "no rows": ((X[:0], Y[:0]), {}, r"0 sample"),
    "no unpaired rows": ((X, Y), {"Y_unpaired": Y[:0]}, r"Y_unpaired is empty: 0 sample.*left out"),
    "one pair": ((X[:1], Y[:1]), {}, r"Found 1 sample\(s\), while a minimum of 2 pairs is required"),
    "constant y": (
        (X, np.c_[Y[:, 0], np.full(30, 3.5)]),
        {},
        r"zero variance in column 1 \(every row is 3.5\).*Leave that",
    ),
    "no y": ((X, None), {}, r"requires y to be passed"),
    "negative weight": ((X, Y, -np.ones(30)), {}, r"sample_weight must not be negative.*-1"),
    "all weights zero": ((X, Y, np.zeros(30)), {}, r"sample_weight is zero everywhere"),
    "weights without rows": ((X, Y), {"X_unpaired_weight": np.ones(3)}, r"X_unpaired_weight came without X_unpaired"),
}


@pytest.mark.parametrize("positional, keywords, message", BAD_FITS.values(), ids=BAD_FITS)
def test_fit_refuses(positional, keywords, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixtureTranslator(**QUICK).fit(*positional, **keywords)


BAD_SETTINGS = {"objective": "best", "smoothing": -1, "n_atoms": 0, "max_steps": 0, "dtype": "float16", "hidden": 16}


@pytest.mark.parametrize("name, value", BAD_SETTINGS.items())
def test_settings_are_checked(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"The '{name}' parameter of MixtureTranslator must be.*Got {value!r}"):
        MixtureTranslator(**{**QUICK, name: value}).fit(X, Y)


@pytest.fixture(scope="module")
def fitted() -> MixtureTranslator:
    return MixtureTranslator(**QUICK).fit(FRAME, pd.DataFrame(Y, columns=["cold", "warm"]))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_wrong_column_in_use_is_refused(fitted: MixtureTranslator) -> None:
    with pytest.raises(ValueError, match=r"feature names should match(.|\n)*moon(.|\n)*sun"):
        fitted.predict(FRAME.rename(columns={"sun": "moon"}))
    with pytest.raises(ValueError, match="same order"):
        fitted.predict(FRAME[["sun", "rain", "wind"]])
    with pytest.raises(ValueError, match=r"X has 2 features, but MixtureTranslator is expecting 3"):
        fitted.predict(X[:, :2])
    with pytest.raises(ValueError, match=r"Y has the columns \['warm', 'cold'\], but \['cold', 'warm'\] were expected"):
        fitted.score(FRAME, pd.DataFrame(Y, columns=["warm", "cold"]))


def test_unequal_rows_in_use_are_refused(fitted: MixtureTranslator) -> None:
    with pytest.raises(ValueError, match="X has 30 and Y has 29"):
        fitted.score_samples(FRAME, Y[:-1])


@pytest.mark.parametrize("quantiles", [[0.0], [1.2], [0.5, -0.1]])
def test_quantiles_outside_the_unit_interval_are_refused(fitted: MixtureTranslator, quantiles) -> None:
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        fitted.predict_quantiles(FRAME, quantiles)


def test_unpaired_rows_in_other_units_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"X_unpaired looks unlike X: in column 2.*transform_input"):
        MixtureTranslator(**QUICK).fit(X, Y, X_unpaired=X * [1, 1, 1] + [0, 0, 1000])
