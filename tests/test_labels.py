"""Labels and priors: of every kind, from whatever holds them, and back out of a file."""

from datetime import datetime

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import blobs, quick

from fewpairs import load
from fewpairs.data.labels import shrunk

DAYS = [datetime(2020, 1, 1), datetime(2020, 5, 1), datetime(2021, 1, 1, 12)]


def test_minus_one_can_be_a_class() -> None:
    X, truth, _ = blobs()
    labels = np.where(truth == 2, -1, truth)
    labels[60:] = 99
    model = quick(unlabelled=99).fit(X, labels)
    assert model.classes_.tolist() == [-1, 0, 1] and model.n_unlabelled_ == 60


def test_counts_of_labels_become_a_prior_as_far_as_they_are_no_chance() -> None:
    """Labels drawn from a known prior: the shrunk shares are nearer to it than the counts where few labels or even classes leave
    most to chance, and become the counts as labels grow."""
    random = np.random.default_rng(0)
    uniform = np.full(5, 0.2)
    for prior, n_labels in ((uniform, 20), (np.array([0.25, 0.25, 0.2, 0.15, 0.15]), 20), (uniform, 1000)):
        counts = random.multinomial(n_labels, prior, size=300)
        shares = np.array([shrunk(one, uniform) for one in counts])
        np.testing.assert_allclose(shares.sum(1), 1.0)
        assert ((shares - prior) ** 2).sum(1).mean() < 0.6 * ((counts / n_labels - prior) ** 2).sum(1).mean()
    many = np.array([50_000, 20_000, 20_000, 5_000, 5_000])
    np.testing.assert_allclose(shrunk(many, uniform), many / many.sum(), atol=1e-3)
    assert shrunk(np.array([3, 3, 3, 3, 3]), uniform).tolist() == uniform.tolist()


@pytest.mark.parametrize(
    "as_labels, classes",
    [
        (lambda y: y, [0, 1, 2]),
        (lambda y: y.astype(float), [0.0, 1.0, 2.0]),
        (lambda y: np.where(y < 0, np.nan, y.astype(float)), [0.0, 1.0, 2.0]),
        (lambda y: np.array([None if k < 0 else "abc"[k] for k in y], dtype=object), ["a", "b", "c"]),
        (lambda y: [None if k < 0 else "abc"[k] for k in y], ["a", "b", "c"]),
        (lambda y: pd.Series([None if k < 0 else "abc"[k] for k in y]), ["a", "b", "c"]),
        (lambda y: pd.Series([None if k < 0 else "abc"[k] for k in y], dtype="category"), ["a", "b", "c"]),
        (lambda y: np.array([None if k < 0 else k == 1 for k in y], dtype=object), [False, True]),
        (lambda y: torch.from_numpy(y), [0, 1, 2]),
        (lambda y: np.array([None if k < 0 else k for k in y], dtype=object), [0, 1, 2]),
        (lambda y: ["abc"[k] if k >= 0 else np.nan for k in y], ["a", "b", "c"]),
        (lambda y: ["abc"[k] if k >= 0 else -1 for k in y], ["a", "b", "c"]),
        (lambda y: pd.Series([pd.NA if k < 0 else "abc"[k] for k in y], dtype="string"), ["a", "b", "c"]),
        (lambda y: pd.Series([pd.NA if k < 0 else k for k in y], dtype="Int64"), [0, 1, 2]),
        (lambda y: pd.Series([pd.NA if k < 0 else k == 1 for k in y], dtype="boolean"), [False, True]),
        (lambda y: torch.from_numpy(y).bfloat16(), [0.0, 1.0, 2.0]),
        (lambda y: np.ma.masked_array(y, y < 0), [0, 1, 2]),
        (lambda y: pd.Series([None if k < 0 else pd.Timestamp(DAYS[k]) for k in y]), DAYS),
        (lambda y: [None if k < 0 else DAYS[k] for k in y], DAYS),
        (lambda y: np.array(["NaT" if k < 0 else DAYS[k] for k in y], dtype="datetime64[s]"), DAYS),
    ],
    ids=[
        *("int", "float", "nan", "text", "list", "series", "category", "bool", "tensor", "objects"),
        *(
            "list-nan",
            "list-1",
            "NA-words",
            "NA-ints",
            "NA-bools",
            "bfloat16",
            "masked",
            "series-dates",
            "dates",
            "numpy-dates",
        ),
    ],
)
def test_labels_of_every_kind(as_labels, classes) -> None:
    X, _, labels = blobs()
    model = quick().fit(X, as_labels(labels))
    assert model.classes_.tolist() == classes
    assert set(model.predict(X).tolist()) <= set(classes) and {type(k) for k in model.classes_.tolist()} == {
        type(classes[0])
    }
    assert model.score(X, as_labels(labels)) == model.score(
        X[:12], as_labels(labels)[:12]
    )  # rows without a label do not count
    assert (model.n_labelled_, model.n_unlabelled_) == (12, 108)


def test_words_may_have_a_word_for_no_label() -> None:
    X, _, labels = blobs()
    words = np.array(["?" if k < 0 else "abc"[k] for k in labels])
    assert quick(unlabelled="?").fit(X, words).classes_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("gap", ["nan", "None", "-1"])
def test_words_that_numpy_made_of_gaps_are_told(gap: str) -> None:
    X, _, labels = blobs()
    words = np.array([gap if k < 0 else "abc"[k] for k in labels])
    with pytest.warns(UserWarning, match=f"The word '{gap}' is taken as a class.*unlabelled='{gap}'"):
        assert len(quick().fit(X, words).classes_) == 4


@pytest.mark.parametrize("marker", [None, np.nan, pd.NA, pd.NaT])
def test_gaps_may_be_the_only_ones_without_a_label(marker) -> None:
    X, _, labels = blobs()
    y = pd.Series(np.where(labels == 2, -1, labels), dtype="Int64")
    y[12:] = pd.NA
    model = quick(unlabelled=marker).fit(X, y)
    assert model.classes_.tolist() == [-1, 0, 1] and model.n_unlabelled_ == 108


def test_a_prior_may_be_given_by_name(tmp_path) -> None:
    """As pandas counts labels, most frequent first; and what is saved can be fitted again."""
    X, truth, labels = blobs()
    series = pd.Series(truth).replace({0: 7, 1: 5, 2: 6})
    shares = pd.Series({6: 0.5, 7: 0.3, 5: 0.2})
    y = series.where(labels >= 0, -1)
    for prior in (shares, shares.to_dict(), dict(zip(shares.index.to_numpy(), shares, strict=True)), [0.2, 0.5, 0.3]):
        model = quick(class_prior=prior).fit(X, y)
        np.testing.assert_allclose(model.class_prior_, [0.2, 0.5, 0.3])
        model.save(tmp_path / "model")
        np.testing.assert_allclose(load(tmp_path / "model").fit(X, y).class_prior_, [0.2, 0.5, 0.3])


def test_the_scale_of_weights_is_nothing() -> None:
    X, _, labels = blobs()
    labels[6:12] = 0
    models = [quick().fit(X, labels, np.full(120, scale)) for scale in (1, 1e-170, 1e160)]
    assert models[0].class_prior_[0] > 0.4
    for other in models[1:]:
        assert np.array_equal(other.class_prior_, models[0].class_prior_)
        assert np.array_equal(other.predict_proba(X), models[0].predict_proba(X))


def test_a_heavy_row_is_one_row() -> None:
    """Twelve labels of which one weighs a thousand say as little about the shares of classes as one label does."""
    X, _, labels = blobs()
    weight = np.where(np.arange(120) == 0, 1000.0, 1.0)
    prior = quick().fit(X, labels, weight).class_prior_
    np.testing.assert_allclose(prior, 1 / 3, atol=0.05)  # were it a thousand rows, nearly all would be of its class


@pytest.mark.parametrize("unit", ["D", "s", "us", "ns", None])
def test_dates_are_saved_as_dates_and_named_by_whatever_is_the_same_date(unit: str | None, tmp_path) -> None:
    X, _, labels = blobs()
    days = [datetime(2020, 1, day) for day in (1, 2, 3)]
    y = [None if k < 0 else days[k] for k in labels]
    y = y if unit is None else np.array(y, dtype=f"datetime64[{unit}]")
    own = quick().fit(X, y).classes_
    for names in (own, days, [pd.Timestamp(day) for day in days], [day.date() for day in days]):
        prior = dict(zip(names[::-1], (0.5, 0.3, 0.2), strict=True))
        model = quick(class_prior=prior, unlabelled=pd.NaT).fit(X, y)
        np.testing.assert_allclose(model.class_prior_, [0.2, 0.3, 0.5])
        model.save(tmp_path / "model")
        again = load(tmp_path / "model")
        assert again.classes_.dtype == model.classes_.dtype and np.array_equal(again.predict(X), model.predict(X))
        np.testing.assert_allclose(again.fit(X, y).class_prior_, [0.2, 0.3, 0.5])
