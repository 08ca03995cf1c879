"""Bad input gets a sentence that says what was expected, what came, and what to do."""

import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import fixed
from sklearn.exceptions import NotFittedError

from fewpairs import MixtureTranslator

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(30, 3)), RANDOM.normal(size=(30, 2))
FRAME = pd.DataFrame(X, columns=["wind", "rain", "sun"])


def make_model(**changes) -> MixtureTranslator:
    return fixed(**{"training__max_steps": 5, **changes})


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
    "no unpaired rows": ((X, Y), {"Y_unpaired": Y[:0]}, r"Y_unpaired is empty: 0 sample.*leave it out"),
    "one pair": ((X[:1], Y[:1]), {}, r"Found 1 sample\(s\), while a minimum of 2 pairs is required"),
    "constant y": (
        (X, np.c_[Y[:, 0], np.full(30, 3.5)]),
        {},
        r"zero variance in column 1 \(every row is 3.5\).*Leave that",
    ),
    "no y": ((X, None), {}, r"requires y to be passed"),
    "negative weight": ((X, Y, -np.ones(30)), {}, r"sample_weight must not be negative.*-1"),
    "all weights zero": ((X, Y, np.zeros(30)), {}, r"sample_weight is zero everywhere"),
    "weight of wrong length": (
        (X, Y),
        {"X_unpaired": X, "X_unpaired_weight": np.ones(3)},
        r"X_unpaired_weight.*\(30,\) was",
    ),
    "text in an array": ((np.full((30, 3), "a"), Y), {}, r"X must be a table of numbers"),
    "three dimensions": ((X, Y[:, :, None]), {}, r"Y must be a table of numbers.*dim 3"),
    "empty lists": (([], []), {}, r"X must be a table|X is empty"),
    "weights without rows": ((X, Y), {"X_unpaired_weight": np.ones(3)}, r"X_unpaired_weight came without X_unpaired"),
}


@pytest.mark.parametrize("positional, keywords, message", BAD_FITS.values(), ids=BAD_FITS)
def test_fit_refuses(positional, keywords, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_model().fit(*positional, **keywords)


@pytest.mark.parametrize(
    "settings, message", [({"device": "cuda"}, "no CUDA device"), ({"device": "gpu"}, '"auto", "cpu"')]
)
def test_a_missing_device_is_named(settings, message: str, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        make_model(**settings).fit(X, Y)


@pytest.mark.parametrize("hidden", [(-1,), (16.5,), (0,), ("a",)])
def test_widths_are_checked(hidden) -> None:
    with pytest.raises(ValueError, match="whole numbers from 1 on"):
        make_model(search__hidden=hidden).fit(X, Y)


BAD_SETTINGS = {
    "objective": "best",
    "search__smoothing": -1,
    "search__unpaired_weight": "much",
    "search__adversarial": -0.1,
    "search__covariance": "round",
    "search__n_atoms": 0,
    "n_folds": 0,
    "training__max_steps": 0,
    "time_budget": 0,
    "training__dtype": "float16",
    "search__hidden": 16,
    "search__emphasis": "some",
    "architecture__start": "anywhere",
    "architecture__start_variance": 0.0,
    "training__learning_rate": 0.0,
    "search": None,
    "training": {"max_steps": 3},
}


@pytest.mark.parametrize("name, value", BAD_SETTINGS.items())
def test_settings_are_checked(name: str, value: object) -> None:
    owner, _, inner = name.rpartition("__")
    kind = {"search": "Search", "training": "Training", "architecture": "Architecture"}.get(owner, "MixtureTranslator")
    with pytest.raises(ValueError, match=rf"^{inner} of {kind} must be .*, but {value!r} came\.$"):
        fixed(**{name: value}).fit(X, Y)


@pytest.fixture(scope="module")
def fitted() -> MixtureTranslator:
    return make_model().fit(FRAME, pd.DataFrame(Y, columns=["cold", "warm"]))


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


@pytest.mark.parametrize("n_samples", [0, -1, 2.5])
def test_a_strange_number_of_samples_is_refused(fitted: MixtureTranslator, n_samples) -> None:
    with pytest.raises((TypeError, ValueError), match="n_samples"):
        fitted.sample(FRAME, n_samples)


@pytest.mark.parametrize("quantiles", [[0.0], [1.2], [0.5, -0.1], []])
def test_quantiles_outside_the_unit_interval_are_refused(fitted: MixtureTranslator, quantiles) -> None:
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        fitted.predict_quantiles(FRAME, quantiles)


def test_unpaired_rows_in_other_units_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"X_unpaired looks unlike X: in column 2.*transform_input"):
        make_model().fit(X, Y, X_unpaired=X * [1, 1, 1] + [0, 0, 1000])


def test_a_fit_that_fails_leaves_the_model_as_it_was(fitted: MixtureTranslator, monkeypatch) -> None:
    before = fitted.predict(FRAME)
    with pytest.raises(ValueError, match="sample_weight"):
        fitted.fit(X[:, :2], Y[:, 0], np.ones(3))
    monkeypatch.setattr("fewpairs.selection.families.mixture.fit_mixture", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(100 * X + 7, Y)
    assert np.array_equal(fitted.predict(FRAME), before)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_first_fit_that_fails_leaves_an_unfitted_model() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="NaN"):
        model.fit(X, put(Y, np.nan))
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_pandas_rows_in_another_order_are_pointed_out() -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["a", "b"])
    model = make_model(training__max_steps=1)
    with pytest.warns(UserWarning, match=r"different indices.*Y.loc\[X.index\]"):
        model.fit(frame[["a"]], frame[["b"]].iloc[::-1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(frame[["a"]], frame[["b"]])  # the same index
        model.fit(
            frame[["a"]], frame[["b"]].set_axis(range(100, 120))
        )  # another index altogether says nothing of order
