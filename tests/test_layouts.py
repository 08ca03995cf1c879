"""The numbers count, and not how they lie in memory: reversed, cut out, by columns or read-only."""

from typing import Any

import numpy as np
import pytest
from conftest import blobs, brief, quick
from small_networks import DATA, corrected, free
from small_networks import fit as fit_both

from fewpairs import metrics
from fewpairs.baselines import REGISTRY


def read_only(rows: np.ndarray) -> np.ndarray:
    rows = rows.copy()
    rows.flags.writeable = False
    return rows


LAYOUTS = {
    "reversed": lambda rows: rows[::-1].copy()[::-1],
    "one row, reversed": lambda rows: rows[:1][::-1],
    "every other row": lambda rows: np.repeat(rows, 2, axis=0)[::2],
    "every other column": lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
    "columns reversed": lambda rows: rows[:, ::-1].copy()[:, ::-1],
    "by columns": np.asfortranarray,
    "read-only": read_only,
    "other bytes": lambda rows: rows.astype(rows.dtype.newbyteorder()),
}
MODELS = {
    "mixture": brief(training__max_steps=5),
    "corrected": corrected(),
    "energy": free(),
    "regression": REGISTRY["regression"](max_steps=5, random_state=0, verbose=False),
    "CGMM": REGISTRY["cgmm"](max_steps=5, random_state=0, verbose=False),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return fit_both(MODELS[request.param])


@pytest.mark.parametrize("lay_out", LAYOUTS.values(), ids=LAYOUTS)
def test_translators_read_any_layout(model: Any, lay_out: Any) -> None:
    X, Y = lay_out(DATA.X[:6]), lay_out(DATA.Y[:6])
    plain_x, plain_y = DATA.X[: len(X)], DATA.Y[: len(Y)]
    np.testing.assert_array_equal(model.predict(X), model.predict(plain_x))
    if hasattr(model, "score_samples"):
        np.testing.assert_array_equal(model.score_samples(X, Y), model.score_samples(plain_x, plain_y))
    if hasattr(model, "energy"):
        np.testing.assert_array_equal(model.energy(X, Y), model.energy(plain_x, plain_y))


@pytest.mark.parametrize("lay_out", LAYOUTS.values(), ids=LAYOUTS)
def test_classifiers_read_any_layout(lay_out: Any) -> None:
    X, _, labels = blobs()
    model = quick(training__max_steps=2).fit(X, labels)
    rows = lay_out(X)
    np.testing.assert_array_equal(model.predict_proba(rows), model.predict_proba(X[: len(rows)]))
    assert 0 <= model.score(X[::-1], labels[::-1], np.arange(len(X))[::-1]) <= 1


def test_fits_take_any_layout() -> None:
    flat = brief(training__max_steps=5)
    weight = np.linspace(1, 2, len(DATA.X))
    first = flat.fit(DATA.X, DATA.Y, weight).predict(DATA.X)
    backwards = [rows[::-1].copy()[::-1] for rows in (DATA.X, DATA.Y, weight)]
    np.testing.assert_array_equal(flat.fit(*backwards).predict(DATA.X), first)
    by_columns = [np.asfortranarray(rows) for rows in (DATA.X, DATA.Y, weight)]
    np.testing.assert_array_equal(flat.fit(*by_columns).predict(DATA.X), first)


def test_quantiles_and_metrics_too() -> None:
    levels = np.array([0.1, 0.5, 0.9])
    model = fit_both(brief(training__max_steps=5))
    np.testing.assert_array_equal(
        model.predict_quantiles(DATA.X, levels[::-1]), model.predict_quantiles(DATA.X, levels)[::-1]
    )
    assert metrics.wasserstein(DATA.Y[::-1], DATA.Y) == pytest.approx(0.0)
