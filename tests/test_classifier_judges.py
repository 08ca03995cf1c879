"""Held-out labels: how networks are judged by them and learnt anew, at which pace, and what is said without them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import blobs, quick
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from fewpairs import SemiSupervisedClassifier
from fewpairs.estimators import classifier as classifiers
from fewpairs.estimators.classifier_defaults import LEAST_TO_CHOOSE, LEAST_TO_HOLD_OUT, usual_decisiveness
from fewpairs.estimators.settings import ClassifierTraining
from fewpairs.plans.classes import Constant
from fewpairs.selection.candidates import Candidate, Trial
from fewpairs.selection.choice import _learn_anew
from fewpairs.selection.trials import Trainer
from fewpairs.training.loop import Outcome


def test_few_labels_hold_nothing_out_and_many_do() -> None:
    few = quick().fit(*blobs()[::2])
    assert np.isnan(few.validation_score_) and "nothing is known" in few.summary()
    X, _, labels = blobs(400, LEAST_TO_HOLD_OUT)
    model = quick(training__max_steps=40, training__learning_rate=1e-2).fit(X, labels)
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
    training = {"training__max_steps": max_steps, "training__learning_rate": max_steps / 1e4}
    model = quick(hidden=(32,), search__adversarial=0.01, **training).fit(
        X, labels, X_unpaired=np.random.default_rng(1).normal(size=(200, 2))
    )
    rare = model._scaled(torch.tensor(X[-1:]))
    networks = [plan for plan in model.plan_.members if not isinstance(plan.cost.network, Constant)]
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
    trainer = trainer_of("mlp", LEAST_TO_HOLD_OUT, 30, {}, monkeypatch)
    best = torch.full((1, LEAST_TO_HOLD_OUT), -0.5, dtype=torch.float64)
    swing = spread * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(LEAST_TO_HOLD_OUT // 2)
    steps = {"steps": [0, 10, 20], "scores": [best - 1, best, best - loss - swing], "best": torch.tensor([1])}
    candidate = Candidate("marginal", hidden=(8,), unpaired_weight=1.0, smoothing=0.0, adversarial=0.2)
    trial = Trial(candidate, None, 0, trainer.family.judge.folds.n_folds, Outcome(**steps))
    anew = replace(trial, outcome=Outcome(**{**steps, "scores": [], "best": torch.zeros(1)}))
    monkeypatch.setattr(Trainer, "run", lambda self, *arguments, **options: [anew])
    assert (_learn_anew(trainer, trial) is anew) == is_learnt_anew


def test_stopped_while_learning_all_labels_the_judged_networks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def bar(*, is_on: bool) -> Iterator:
        yield tell

    def tell(title: str, done: float) -> None:
        titles.append(title)
        if title == "Learning from all labels":
            raise KeyboardInterrupt

    titles: list[str] = []
    monkeypatch.setattr(classifiers, "progress_bar", bar)
    X, truth, labels = blobs(400, LEAST_TO_HOLD_OUT)
    with pytest.warns(UserWarning, match="Interrupted"):
        model = quick(training__max_steps=40, training__learning_rate=1e-2).fit(X, labels)
    assert titles.count("Learning from all labels") == 1  # nothing is begun after it
    assert model.ended_ == "interrupted" and model.score(X, truth) > 0.95


def test_a_radius_is_chosen_where_labels_can_tell_and_then_by_more_than_chance() -> None:
    few, many = (
        quick(training__max_steps=4).fit(*blobs(LEAST_TO_CHOOSE + 50, n_labelled)[::2])
        for n_labelled in (LEAST_TO_HOLD_OUT, LEAST_TO_CHOOSE)
    )
    of_marginal = [{one["adversarial"] for one in model.candidates_} - {0.0} for model in (few, many)]
    assert of_marginal == [{0.2}, {0.1, 0.2, 0.3}]
    assert few.chosen_["adversarial"] in (0.0, 0.2)
    # After four steps all radii are alike: the middle it is.
    assert {final["adversarial"] for final in many.finals_} == {0.0, 0.2}


@pytest.mark.parametrize(
    ("network", "n_labelled", "n_unlabelled", "settings", "expected"),
    [
        ("mlp", 20, 30, {}, (1000, 1e-3, 256, 256)),
        ("mlp", 20, 4000, {}, (2000, 1e-3, 256, 256)),  # four times as many unlabelled rows, twice as long
        ("mlp", 20, 4000, {"objective": "supervised"}, (1000, 1e-3, 256, 256)),  # they are nothing to it
        ("cnn", 20, 30, {}, (400, 3e-3, 128, 128)),
        ("auto", 20, 30, {}, (400, 3e-3, 128, 128)),  # 16 × 16 pixels are worth convolutions
        (
            "cnn",
            20,
            30,
            {"training__max_steps": 7, "training__learning_rate": 0.1, "training__batch_size": 5},
            (7, 0.1, 5, 128),
        ),
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
    used = trainer_of(network, n_labelled, n_unlabelled, settings, monkeypatch).settings
    assert (used.max_steps, used.learning_rate, used.batch_size, used.pairs_batch_size) == expected
    assert used.potential_learning_rate == used.learning_rate


@pytest.mark.parametrize(
    ("network", "n_labelled", "settings", "n_judged", "n_steps"),
    [
        ("mlp", LEAST_TO_HOLD_OUT - 1, {}, 2000, 2000),  # nobody judges: the first networks are those that are kept
        ("mlp", LEAST_TO_HOLD_OUT, {}, 1000, 2000),
        ("cnn", LEAST_TO_HOLD_OUT - 1, {}, 400, 400),
        ("cnn", LEAST_TO_HOLD_OUT, {}, 200, 400),
        ("cnn", LEAST_TO_HOLD_OUT, {"training__max_steps": 7}, 7, 7),
        ("cnn", LEAST_TO_HOLD_OUT, {"n_members": 1}, 400, 400),
    ],
)
def test_networks_that_are_kept_learn_for_all_steps(
    network, n_labelled, settings, n_judged, n_steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(network, n_labelled, 4000, settings, monkeypatch)
    assert trainer.settings.max_steps == n_steps and round(trainer.trial_part * n_steps) == n_judged
    is_judged = trainer.family.judge.has_pairs
    assert is_judged == (n_judged < n_steps or "training__max_steps" in settings)
    assert (trainer.final_part > 0.9) != is_judged  # of the time: half of it is for learning anew, if that is to come
    assert trainer.adversarial_rows == {"mlp": 128, "cnn": 64}[network]


def trainer_of(network, n_labelled: int, n_unlabelled: int, settings: dict, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """What a fit would learn with, on images of 16 × 16 pixels."""

    class LookedError(Exception):
        pass

    def look(trainer, options, objective):
        came.append(trainer)
        raise LookedError

    came: list[Trainer] = []
    monkeypatch.setattr(classifiers, "choose", look)
    images = np.random.default_rng(0).normal(size=(n_labelled + n_unlabelled, 16, 16))
    labels = np.concatenate([np.arange(n_labelled) % 2, np.full(n_unlabelled, -1)])
    with pytest.raises(LookedError):
        SemiSupervisedClassifier(network=network, verbose=False).set_params(**settings).fit(images, labels)
    return came[0]


def test_decisiveness_grows_with_the_unlabelled_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for n_unlabelled, expected in ((0, 0.1), (10_000, 0.2), (10**9, 0.3)):
        assert usual_decisiveness(n_unlabelled) == pytest.approx(expected, abs=1e-3)
    for given, used in (("auto", usual_decisiveness(30)), (0.0, 0.0)):
        assert trainer_of("mlp", 20, 30, {"search__decisiveness": given}, monkeypatch).family.decisiveness == used


def test_networks_that_nobody_has_judged_are_never_sure() -> None:
    # One label more, of a class by the prior: (n p + prior) / (n + 1), of 20 labels. Its logarithm is bounded from below.
    X, _, labels = blobs(130, 20)
    model = quick(class_prior=[0.5, 0.3, 0.2]).fit(X, labels)
    n_labelled = (labels >= 0).sum()
    said = model.plan_.log_probs(model._scaled(torch.tensor(1e3 * X))).exp().detach().double().numpy()
    expected = (n_labelled * said + [0.5, 0.3, 0.2]) / (n_labelled + 1)
    np.testing.assert_allclose(model.predict_proba(1e3 * X), expected, rtol=1e-5)  # single precision inside
    assert said.min() < 1e-3 < model.predict_proba(1e3 * X).min()
    # Held-out labels have judged these, so that they may say what they think.
    judged = quick().fit(*blobs(130, 110)[::2])
    said = judged.plan_.log_probs(judged._scaled(torch.tensor(X))).exp().detach().numpy()
    np.testing.assert_allclose(judged.predict_proba(X), said, rtol=1e-5)


def test_convolutions_are_kept_steady_further_around_than_perceptrons() -> None:
    # Nothing is held out: the middle of what there is to choose from is taken; a number that was given is.
    images = np.random.default_rng(0).normal(size=(30, 16, 16))
    labels = np.concatenate([np.arange(20) % 2, np.full(10, -1)])
    for settings, radius in [({"network": "mlp"}, 0.2), ({"network": "cnn"}, 0.3), ({"search__adversarial": 0.1}, 0.1)]:
        model = quick(training__max_steps=1, **settings).fit(images, labels)
        assert model.chosen_["adversarial"] == radius


def test_what_was_not_found_out_is_not_told() -> None:
    """No time to see what the network is without unlabelled rows; a label in a hundred that is another; a row a class."""
    X, _, labels = blobs(400, 200)
    settings = {"random_state": 0, "verbose": False, "hidden": (8,)}
    with pytest.warns(ConvergenceWarning, match="more of them would probably learn more"):
        hasty = SemiSupervisedClassifier(**settings, time_budget=0.05).fit(X, labels)
    assert "nan" not in hasty.summary()
    odd = SemiSupervisedClassifier(**settings, training=ClassifierTraining(max_steps=10)).fit(X, np.arange(400) == 0)
    said = re.search(r"gives (\d+)% to objective .* and (\d+)% to the prior alone", odd.summary())
    assert said is not None and abs(sum(map(int, said.groups())) - 100) <= 1  # both are rounded
    many = SemiSupervisedClassifier(**settings, training=ClassifierTraining(max_steps=10)).fit(X[:120], np.arange(120))
    assert "or one row a class, none is held out" in many.summary()
