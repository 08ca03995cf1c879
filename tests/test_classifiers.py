"""SemiSupervisedClassifier: what unlabelled rows bring, how networks are judged and kept, and what is refused."""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import QUICK, blobs
from fewpairs.estimators.class_defaults import LEAST_TO_CHOOSE, LEAST_TO_HOLD_OUT, usual_decisiveness
from fewpairs.selection.class_makers import ClassMaker, Silent
from fewpairs.selection.makers import Candidate, Trial
from sklearn.base import clone
from sklearn.datasets import load_digits, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from fewpairs import SemiSupervisedClassifier, load
from fewpairs.estimators import classifier as classifiers
from fewpairs.training.loop import Outcome

DATA = {"X", "y", "X_unpaired"}


def test_coarse_products_learn_what_full_ones_do() -> None:
    """bfloat16 has eight bits: networks differ, by more than rounding at the end would make, and say the same."""
    X, truth, labels = blobs()
    settings = {**QUICK, "max_steps": 100, "learning_rate": 1e-2}
    coarse, full = (
        SemiSupervisedClassifier(**settings, precision=precision).fit(X, labels)
        for precision in ("bfloat16", "float32")
    )
    apart = np.abs(coarse.predict_proba(X) - full.predict_proba(X)).max()
    assert 1e-6 < apart < 0.05
    assert coarse.score(X, truth) == full.score(X, truth) == 1.0
    assert {tensor.dtype for tensor in coarse.plan_.parameters()} == {
        tensor.dtype for tensor in full.plan_.parameters()
    }


@pytest.fixture(scope="module")
def fitted() -> SemiSupervisedClassifier:
    X, _, labels = blobs()
    return SemiSupervisedClassifier(**{**QUICK, "max_steps": 100, "learning_rate": 1e-2}).fit(X, labels)


# scikit-learn's checks that use −1 as a class of its own, which here says that a row has no label.
MINUS_ONE = "it takes -1 for a class, and here -1 says that a row has no label (unlabelled= sets another marker)"
CANNOT_APPLY = {
    "check_classifiers_classes": MINUS_ONE,
    "check_class_weight_classifiers": MINUS_ONE,
    "check_sample_weight_equivalence_on_dense_data": "minibatches are drawn at random: a row of weight two is a row twice in "
    "expectation, not draw by draw",
}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [SemiSupervisedClassifier(**{**QUICK, "max_steps": 60, "learning_rate": 1e-2})],
    expected_failed_checks=lambda estimator: CANNOT_APPLY,
)
def test_scikit_learns_checks(estimator, check) -> None:
    check(estimator)


def test_unlabelled_rows_show_where_a_class_ends() -> None:
    """Two moons with three labels each: the supervised network cuts straight through, the unlabelled rows show the gap."""
    X, truth = make_moons(600, noise=0.06, random_state=0)
    labels = np.full(600, -1)
    for label in (0, 1):
        labels[np.flatnonzero(truth == label)[:3]] = label
    settings = {"hidden": (64, 64), "max_steps": 300, "learning_rate": 5e-3, "random_state": 0, "verbose": False}
    accuracy = {
        objective: SemiSupervisedClassifier(**settings, objective=objective).fit(X, labels).score(X, truth)
        for objective in ("marginal", "supervised")
    }
    assert accuracy["marginal"] > 0.97 > 0.92 > accuracy["supervised"]


def test_fifty_digits_are_enough_for_most() -> None:
    """Fifty labels of 1,350 small digits, a perceptron and short training: of twenty errors in a hundred less than half are left;
    the paper's loss does worse than no unlabelled rows at all."""
    X, y = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(X))
    test, rest = order[:447], order[447:]
    labels = np.full(len(rest), -1)
    for label in range(10):
        places = np.flatnonzero(y[rest] == label)[:5]
        labels[places] = label
    settings = {"network": "mlp", "max_steps": 300, "n_members": 3, "random_state": 0, "verbose": False}
    accuracy, log_loss = {}, {}
    for objective in ("marginal", "supervised", "inverse_eot"):
        model = SemiSupervisedClassifier(**settings, objective=objective, image_shape=(1, 8, 8)).fit(X[rest], labels)
        accuracy[objective] = model.score(X[test], y[test])
        log_loss[objective] = -model.predict_log_proba(X[test])[np.arange(len(test)), y[test]].mean()
    # A standard error of an accuracy of 0.93 on 447 rows is 0.012.
    assert accuracy["marginal"] > 0.9 and accuracy["marginal"] > accuracy["supervised"] + 0.06
    assert log_loss["marginal"] < log_loss["supervised"] - 0.1
    assert accuracy["inverse_eot"] < accuracy["supervised"] and log_loss["inverse_eot"] > log_loss["supervised"]


def test_the_average_prediction_has_the_prior() -> None:
    """Overlapping heaps of 90 and 10 % with ten labels of each: told the prior, predictions over all rows keep to it."""
    random = np.random.default_rng(0)
    truth = (np.arange(1000) % 10 == 0).astype(int)
    X = 1.5 * truth[:, None] + random.normal(size=(1000, 2))
    labels = np.full(1000, -1)
    for label in (0, 1):
        labels[np.flatnonzero(truth == label)[:10]] = label
    settings = {"hidden": (16,), "max_steps": 200, "n_members": 2, "unpaired_weight": 10.0, "decisiveness": 0.0}
    shares = {}
    for name, prior in (("told", {1: 0.1, 0: 0.9}), ("uniform", "uniform"), ("labelled", "labelled")):
        model = SemiSupervisedClassifier(**settings, class_prior=prior, random_state=0, verbose=False).fit(X, labels)
        np.testing.assert_allclose(model.class_prior_, [0.9, 0.1] if name == "told" else [0.5, 0.5])
        shares[name] = model.predict_proba(X)[:, 1].mean()
    assert shares["told"] == pytest.approx(0.1, abs=0.05)
    assert shares["uniform"] == pytest.approx(0.5, abs=0.05)


def test_decisiveness_grows_with_the_unlabelled_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for n_unlabelled, expected in ((0, 0.1), (10_000, 0.2), (10**9, 0.3)):
        assert usual_decisiveness(n_unlabelled) == pytest.approx(expected, abs=1e-3)
    for given, used in (("auto", usual_decisiveness(30)), (0.0, 0.0)):
        assert maker_of("mlp", 20, 30, {"decisiveness": given}, monkeypatch).decisiveness == used


def test_unlabelled_rows_may_come_on_their_own() -> None:
    X, _, labels = blobs()
    together = SemiSupervisedClassifier(**QUICK).fit(X, labels)
    apart = SemiSupervisedClassifier(**QUICK).fit(X[:12], labels[:12], X_unpaired=X[12:])
    assert np.array_equal(together.predict_proba(X), apart.predict_proba(X))


def test_without_unlabelled_rows_it_is_the_supervised_one() -> None:
    X, truth, _ = blobs()
    fits = [
        SemiSupervisedClassifier(**QUICK, objective=objective).fit(X, truth) for objective in ("marginal", "supervised")
    ]
    assert np.array_equal(fits[0].predict_proba(X), fits[1].predict_proba(X))


def test_probabilities_are_probabilities(fitted: SemiSupervisedClassifier) -> None:
    X, truth, _ = blobs(seed=1)
    far = np.concatenate([X, [[1e9, -1e9]]])
    probability = fitted.predict_proba(far)
    np.testing.assert_allclose(probability.sum(1), 1.0, atol=1e-12)
    assert np.isfinite(fitted.predict_log_proba(far)).all()
    assert fitted.score(X, truth) > 0.95
    np.testing.assert_allclose(fitted.predict_proba(far[:7]), probability[:7], atol=1e-6)


def test_few_labels_hold_nothing_out_and_many_do(fitted: SemiSupervisedClassifier) -> None:
    assert np.isnan(fitted.validation_score_) and "nothing is known" in fitted.summary()
    X, _, labels = blobs(400, LEAST_TO_HOLD_OUT)
    model = SemiSupervisedClassifier(**{**QUICK, "max_steps": 40, "learning_rate": 1e-2}).fit(X, labels)
    fresh_X, fresh, _ = blobs(3000, seed=5)
    score = -model.predict_log_proba(fresh_X)[np.arange(3000), fresh].mean()
    assert -model.validation_score_ > score - 3 * model.validation_score_error_  # told no better than it is
    assert model.x_gain_ > 5 * model.x_gain_error_
    assert {final["objective"] for final in model.finals_} == {"marginal", "supervised"}
    assert {"Held-out", "unlabelled rows brought"} <= set(
        re.findall("Held-out|unlabelled rows brought", model.summary())
    )


@pytest.mark.parametrize(("flipped", "max_steps", "is_learnt"), [(0, 100, True), (8, 300, False)])
def test_in_the_end_every_network_has_learnt_every_label(flipped: int, max_steps: int, is_learnt: bool) -> None:
    """Folds judge, and then let go: a row far out, of a class that nobody would guess, is known to the network that it judged
    too. Not so where networks had to be stopped early, here by wrong labels: who would say when to stop?"""
    X = np.concatenate([np.random.default_rng(0).normal(size=(LEAST_TO_HOLD_OUT, 2)), [[9.0, 0.0]]])
    labels = (X[:, 0] > 0) & (X[:, 0] < 9)
    if flipped:
        labels ^= np.arange(len(X)) % flipped == 0
    settings = {**QUICK, "hidden": (32,), "max_steps": max_steps, "learning_rate": max_steps / 1e4, "adversarial": 0.01}
    model = SemiSupervisedClassifier(**settings).fit(
        X, labels, X_unpaired=np.random.default_rng(1).normal(size=(200, 2))
    )
    rare = model._scaled(torch.tensor(X[-1:]))
    networks = [plan for plan in model.plan_.members if not isinstance(plan.cost.network, Silent)]
    assert networks and is_learnt == all(network.log_probs(rare).argmax() == labels[-1] for network in networks)


@pytest.mark.parametrize(
    ("loss", "spread", "is_learnt_anew"),
    [
        (0.0, 0.0, True),
        (0.09, 0.0, True),  # of a log-loss of 0.5: clear, and less than what all labels bring
        (0.11, 0.0, False),
        (0.11, 2.0, True),  # within a standard error, of some 0.2
        (0.6, 2.0, False),
    ],
)
def test_losing_little_to_no_early_stop_is_no_reason_to_leave_labels_out(
    loss: float, spread: float, is_learnt_anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = maker_of("mlp", LEAST_TO_HOLD_OUT, 30, {}, monkeypatch)
    best = torch.full((1, LEAST_TO_HOLD_OUT), -0.5, dtype=torch.float64)
    swing = spread * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(LEAST_TO_HOLD_OUT // 2)
    steps = {"steps": [0, 10, 20], "scores": [best - 1, best, best - loss - swing], "best": torch.tensor([1])}
    candidate = Candidate("marginal", hidden=(8,), unpaired_weight=1.0, smoothing=0.0, adversarial=0.2)
    trial = Trial(candidate, None, 0, maker.folds.n_folds, Outcome(**steps), 0)
    anew = replace(trial, outcome=Outcome(**{**steps, "scores": [], "best": torch.zeros(1)}))
    monkeypatch.setattr(ClassMaker, "run", lambda self, *arguments, **options: [anew])
    assert (maker.finish(trial) is anew) == is_learnt_anew


def test_stopped_while_learning_all_labels_the_judged_networks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(self, title: str, *where: float) -> None:
        titles.append(title)
        if title == "Learning from all labels":
            raise KeyboardInterrupt

    titles: list[str] = []
    monkeypatch.setattr(ClassMaker, "_tell", tell)
    X, truth, labels = blobs(400, LEAST_TO_HOLD_OUT)
    settings = {**QUICK, "max_steps": 40, "learning_rate": 1e-2}
    with pytest.warns(UserWarning, match="Interrupted"):
        model = SemiSupervisedClassifier(**settings).fit(X, labels)
    assert titles.count("Learning from all labels") == 1  # nothing is begun after it
    assert model.ended_ == "interrupted" and model.score(X, truth) > 0.95


def test_a_radius_is_chosen_where_labels_can_tell_and_then_by_more_than_chance() -> None:
    few, many = (
        SemiSupervisedClassifier(**{**QUICK, "max_steps": 4}).fit(*blobs(LEAST_TO_CHOOSE + 50, n_labelled)[::2])
        for n_labelled in (LEAST_TO_HOLD_OUT, LEAST_TO_CHOOSE)
    )
    of_marginal = [{one["adversarial"] for one in model.candidates_} - {0.0} for model in (few, many)]
    assert of_marginal == [{0.2}, {0.1, 0.2, 0.3}]
    assert few.chosen_["adversarial"] in (0.0, 0.2)
    # After four steps all radii are alike: the middle it is.
    assert {final["adversarial"] for final in many.finals_} == {0.0, 0.2}


def test_images_come_in_their_own_shapes() -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:60], np.where(np.arange(60) < 30, y[:60], -1)
    settings = {**QUICK, "max_steps": 3, "scale": "together"}
    flat = SemiSupervisedClassifier(**settings, network="cnn", image_shape=(1, 8, 8)).fit(X, y)
    grey = SemiSupervisedClassifier(**settings, network="cnn").fit(X.reshape(-1, 8, 8), y)
    deep = SemiSupervisedClassifier(**settings, network="cnn").fit(X.reshape(-1, 1, 8, 8), y)
    assert grey.image_shape_ == deep.image_shape_ == flat.image_shape_ == (1, 8, 8)
    for other in (grey.predict_proba(X.reshape(-1, 8, 8)), deep.predict_proba(X)):
        assert np.array_equal(flat.predict_proba(X), other)
    small, large = (
        SemiSupervisedClassifier(**settings).fit(np.kron(X.reshape(-1, 8, 8), np.ones((size, size))), y)
        for size in (1, 2)
    )
    kinds = [[type(layer) for layer in model.plan_.modules()] for model in (small, large)]
    assert nn.Conv2d not in kinds[0] and nn.Conv2d in kinds[1]  # "auto" begins to convolve at 16 × 16 pixels
    with pytest.raises(ValueError, match=r"\(1, 4, 16\), but \(1, 8, 8\) or flattened ones were expected"):
        grey.predict(X.reshape(-1, 4, 16))
    images = X.reshape(-1, 8, 8)
    for same in (list(images), images.tolist(), [torch.from_numpy(image) for image in images]):
        assert np.array_equal(grey.predict_proba(same), flat.predict_proba(X))


@pytest.mark.parametrize(
    ("network", "n_labelled", "n_unlabelled", "settings", "expected"),
    [
        ("mlp", 20, 30, {}, (1000, 1e-3, 256, 256)),
        ("mlp", 20, 4000, {}, (2000, 1e-3, 256, 256)),  # four times as many unlabelled rows, twice as long
        ("mlp", 20, 4000, {"objective": "supervised"}, (1000, 1e-3, 256, 256)),  # they are nothing to it
        ("cnn", 20, 30, {}, (400, 3e-3, 128, 128)),
        ("auto", 20, 30, {}, (400, 3e-3, 128, 128)),  # 16 × 16 pixels are worth convolutions
        ("cnn", 20, 30, {"max_steps": 7, "learning_rate": 0.1, "batch_size": 5}, (7, 0.1, 5, 128)),
        ("cnn", 20, 0, {}, (400, 1e-3, 128, 128)),  # few labels and nothing else: shorter steps
        ("cnn", 20, 30, {"objective": "supervised"}, (400, 1e-3, 128, 128)),
        ("cnn", LEAST_TO_CHOOSE - 1, 0, {}, (400, 1e-3, 128, 128)),
        ("cnn", LEAST_TO_CHOOSE, 0, {}, (400, 3e-3, 128, 128)),
        (nn.Linear(256, 2), 20, 30, {}, (1000, 1e-3, 256, 256)),  # nobody knows what is inside: the patient pace
    ],
)
def test_each_network_learns_at_its_own_pace(
    network, n_labelled, n_unlabelled, settings, expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = maker_of(network, n_labelled, n_unlabelled, settings, monkeypatch).settings
    assert (used.max_steps, used.learning_rate, used.batch_size, used.pairs_batch_size) == expected
    assert used.potential_learning_rate == used.learning_rate


@pytest.mark.parametrize(
    ("network", "n_labelled", "settings", "n_judged", "n_steps"),
    [
        ("mlp", LEAST_TO_HOLD_OUT - 1, {}, 2000, 2000),  # nobody judges: the first networks are those that are kept
        ("mlp", LEAST_TO_HOLD_OUT, {}, 1000, 2000),
        ("cnn", LEAST_TO_HOLD_OUT - 1, {}, 400, 400),
        ("cnn", LEAST_TO_HOLD_OUT, {}, 200, 400),
        ("cnn", LEAST_TO_HOLD_OUT, {"max_steps": 7}, 7, 7),
        ("cnn", LEAST_TO_HOLD_OUT, {"n_members": 1}, 400, 400),
    ],
)
def test_networks_that_are_kept_learn_for_all_steps(
    network, n_labelled, settings, n_judged, n_steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = maker_of(network, n_labelled, 4000, settings, monkeypatch)
    assert maker.settings.max_steps == n_steps and round(maker.trial_part * n_steps) == n_judged
    is_judged = bool((maker.folds.pairs >= 0).any())
    assert is_judged == (n_judged < n_steps or "max_steps" in settings)
    assert (maker.final_part > 0.9) != is_judged  # of the time: half of it is for learning anew, if that is to come
    assert maker.adversarial_rows == {"mlp": 128, "cnn": 64}[network]


def maker_of(
    network, n_labelled: int, n_unlabelled: int, settings: dict, monkeypatch: pytest.MonkeyPatch
) -> ClassMaker:
    """What a fit would learn with, on images of 16 × 16 pixels."""

    class LookedError(Exception):
        pass

    def look(maker, wishes, objective):
        came.append(maker)
        raise LookedError

    came: list[ClassMaker] = []
    monkeypatch.setattr(classifiers, "choose", look)
    images = np.random.default_rng(0).normal(size=(n_labelled + n_unlabelled, 16, 16))
    labels = np.concatenate([np.arange(n_labelled) % 2, np.full(n_unlabelled, -1)])
    with pytest.raises(LookedError):
        SemiSupervisedClassifier(network=network, verbose=False, **settings).fit(images, labels)
    return came[0]


def test_networks_that_nobody_has_judged_are_never_sure() -> None:
    # One label more, of a class by the prior: (n p + prior) / (n + 1), of 20 labels. Its logarithm is bounded from below.
    X, _, labels = blobs(130, 20)
    model = SemiSupervisedClassifier(class_prior=[0.5, 0.3, 0.2], **QUICK).fit(X, labels)
    n_labelled = (labels >= 0).sum()
    said = model.plan_.log_probs(model._scaled(torch.tensor(1e3 * X))).exp().detach().double().numpy()
    expected = (n_labelled * said + [0.5, 0.3, 0.2]) / (n_labelled + 1)
    np.testing.assert_allclose(model.predict_proba(1e3 * X), expected, rtol=1e-5)  # single precision inside
    assert said.min() < 1e-3 < model.predict_proba(1e3 * X).min()
    # Held-out labels have judged these, so that they may say what they think.
    judged = SemiSupervisedClassifier(**QUICK).fit(*blobs(130, 110)[::2])
    said = judged.plan_.log_probs(judged._scaled(torch.tensor(X))).exp().detach().numpy()
    np.testing.assert_allclose(judged.predict_proba(X), said, rtol=1e-5)


def test_convolutions_are_kept_steady_further_around_than_perceptrons() -> None:
    # Nothing is held out: the middle of what there is to choose from is taken; a number that was given is.
    images = np.random.default_rng(0).normal(size=(30, 16, 16))
    labels = np.concatenate([np.arange(20) % 2, np.full(10, -1)])
    for settings, radius in [({"network": "mlp"}, 0.2), ({"network": "cnn"}, 0.3), ({"adversarial": 0.1}, 0.1)]:
        model = SemiSupervisedClassifier(**{**QUICK, "max_steps": 1}, **settings).fit(images, labels)
        assert model.chosen_["adversarial"] == radius


@pytest.mark.parametrize("network", ["mlp", "own", "embedded"])
def test_a_saved_model_predicts_the_same(network: str, tmp_path) -> None:
    X, _, labels = blobs(260, 120)
    words = np.array(["?" if k < 0 else ("short", "a longer word", "x")[k] for k in labels])
    own = nn.Sequential(nn.Linear(2, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3))
    more = {"own": {"network": own}, "embedded": {"label_embedding": 4, "hidden": (8, 8)}}.get(network, {})
    settings = {**QUICK, "max_steps": 60, "learning_rate": 1e-2, "unlabelled": "?", **more}
    model = SemiSupervisedClassifier(**settings).fit(pd.DataFrame(X, columns=["a", "b"]), words)
    assert len(model.plan_.members) > 1  # beside the prior
    model.save(tmp_path / "model")
    if network == "own":
        with pytest.raises(ValueError, match=r"load\(path, network=…\)"):
            load(tmp_path / "model")
        with pytest.raises(ValueError, match="not like the one this classifier was fitted with"):
            load(tmp_path / "model", network=nn.Linear(2, 3))
    else:
        with pytest.raises(ValueError, match="needs no other"):
            load(tmp_path / "model", network=own)
    again = load(tmp_path / "model", **({"network": own} if network == "own" else {}))
    frame = pd.DataFrame(X, columns=["a", "b"])
    assert np.array_equal(model.predict_proba(frame), again.predict_proba(frame))
    assert np.array_equal(model.predict(frame), again.predict(frame)) and again.classes_.dtype == model.classes_.dtype
    assert again.summary() == model.summary()
    assert again.candidates_ == model.candidates_


def test_a_network_is_for_classifiers_alone(tmp_path) -> None:
    from conftest import FIXED

    from fewpairs import MixtureTranslator

    X = np.linspace(0, 1, 20)[:, None]
    MixtureTranslator(**FIXED, max_steps=2).fit(X, X).save(tmp_path / "model")
    with pytest.raises(ValueError, match="takes no network"):
        load(tmp_path / "model", network=nn.Linear(1, 1))


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
        SemiSupervisedClassifier(**{**QUICK, **settings}).fit(**{"X": X, "y": labels, **data})


def test_a_refused_fit_leaves_the_old_model(fitted: SemiSupervisedClassifier) -> None:
    X, _, _ = blobs()
    before = fitted.predict_proba(X)
    with pytest.raises(ValueError, match="unlabelled"):
        fitted.fit(X, np.full(120, -1))
    assert np.array_equal(fitted.predict_proba(X), before)


def test_a_class_without_labels_cannot_be_known() -> None:
    """Rows of a class that nobody labelled go to the classes that are known, and the rest works."""
    X, truth, labels = blobs()
    labels[labels == 2] = -1
    model = SemiSupervisedClassifier(**{**QUICK, "max_steps": 100}).fit(X, labels)
    assert model.classes_.tolist() == [0, 1]
    known = truth < 2
    assert model.score(X[known], truth[known]) > 0.9


def test_weights_count_rows() -> None:
    """Rows of weight zero are as good as absent, and labels with more weight win where both claim a place."""
    X = np.tile([[0.0, 0.0], [0.1, 0.0]], (20, 1))
    y = np.tile([0, 1], 20)
    weight = np.where(y == 1, 9.0, 1.0)
    model = SemiSupervisedClassifier(**{**QUICK, "max_steps": 100}, scale="none").fit(X, y, weight)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 0.9, atol=0.03)
    X, _, labels = blobs()
    some = np.arange(120) % 4 != 3
    fits = [
        SemiSupervisedClassifier(**QUICK).fit(X, labels, some),
        SemiSupervisedClassifier(**QUICK).fit(X[some], labels[some]),
    ]
    assert np.array_equal(*(model.predict_proba(X) for model in fits))


def test_time_budget_holds() -> None:
    """The bound of a tenth is the issue of `test_estimators`; here a fit of minutes must end within seconds."""
    X, _, labels = blobs(3000, 200)
    start = time.perf_counter()
    model = SemiSupervisedClassifier(max_steps=100_000, time_budget=3.0, random_state=0, verbose=False).fit(X, labels)
    assert time.perf_counter() - start < 10 and model.ended_ == "out of time"


def test_what_was_not_found_out_is_not_told() -> None:
    """No time to see what the network is without unlabelled rows; a label in a hundred that is another; a row a class."""
    X, _, labels = blobs(400, 200)
    settings = {"random_state": 0, "verbose": False, "hidden": (8,)}
    with pytest.warns(ConvergenceWarning, match="more of them would probably learn more"):
        hasty = SemiSupervisedClassifier(**settings, time_budget=0.05).fit(X, labels)
    assert "nan" not in hasty.summary()
    odd = SemiSupervisedClassifier(**settings, max_steps=10).fit(X, np.arange(400) == 0)
    said = re.search(r"gives (\d+)% to objective .* and (\d+)% to the prior alone", odd.summary())
    assert said is not None and abs(sum(map(int, said.groups())) - 100) <= 1  # both are rounded
    many = SemiSupervisedClassifier(**settings, max_steps=10).fit(X[:120], np.arange(120))
    assert "or one row a class, none is held out" in many.summary()


def test_no_time_at_all_is_told() -> None:
    X, _, labels = blobs()
    with pytest.warns(ConvergenceWarning, match=r"time_budget=0.001 was over after \d+ steps"):
        SemiSupervisedClassifier(time_budget=0.001, random_state=0, verbose=False).fit(X, labels)


def test_channels_that_come_last_are_told() -> None:
    images = np.random.default_rng(0).normal(size=(40, 8, 8, 3))
    with pytest.warns(UserWarning, match=r"8 channels and 8 × 3 pixels.*transpose\(0, 3, 1, 2\)"):
        SemiSupervisedClassifier(**QUICK).fit(images, np.arange(40) % 2)


def test_scikit_learns_tools_take_it() -> None:
    X, truth, _ = blobs()
    model = SemiSupervisedClassifier(**QUICK)
    assert clone(model).get_params() == model.get_params()
    assert cross_val_score(model, X, truth, cv=3).shape == (3,)
