"""SemiSupervisedClassifier: what unlabelled rows bring, priors, weights, time, and scikit-learn's own checks."""

import inspect
import time

import numpy as np
import pytest
from conftest import blobs, quick
from sklearn.base import clone
from sklearn.datasets import load_digits, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from fewpairs import SemiSupervisedClassifier
from fewpairs.estimators.settings import ClassifierSearch, ClassifierTraining

# scikit-learn's checks that use −1 as a class of its own, which here says that a row has no label.
MINUS_ONE = "it takes -1 for a class, and here -1 says that a row has no label (unlabelled= sets another marker)"


CANNOT_APPLY = {
    "check_classifiers_classes": MINUS_ONE,
    "check_class_weight_classifiers": MINUS_ONE,
    "check_sample_weight_equivalence_on_dense_data": "minibatches are drawn at random: a row of weight two is a row twice in "
    "expectation, not draw by draw",
    "check_parameters_default_constructible": "it takes no objects as defaults, since they could be changed; settings objects "
    "are frozen (what else it asks for is asked for below)",
}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [quick(training__max_steps=60, training__learning_rate=1e-2)],
    expected_failed_checks=lambda estimator: CANNOT_APPLY,
)
def test_scikit_learns_checks(estimator, check) -> None:
    check(estimator)


def test_arguments_are_kept_as_they_came_and_no_default_can_change() -> None:
    parameters = inspect.signature(SemiSupervisedClassifier.__init__).parameters
    defaults = {name: one.default for name, one in parameters.items() if name != "self"}
    own = SemiSupervisedClassifier().get_params(deep=False)
    assert own.keys() == defaults.keys()
    for name, default in defaults.items():
        assert own[name] is default
        hash(default)  # what can be changed has none


def test_scikit_learns_tools_take_it() -> None:
    X, truth, _ = blobs()
    model = quick()
    assert clone(model).get_params() == model.get_params()
    assert cross_val_score(model, X, truth, cv=3).shape == (3,)


def test_coarse_products_learn_what_full_ones_do() -> None:
    """bfloat16 has eight bits: networks differ, by more than rounding at the end would make, and say the same."""
    X, truth, labels = blobs()
    training = {"training__max_steps": 100, "training__learning_rate": 1e-2}
    coarse, full = (
        quick(**training, training__precision=precision).fit(X, labels) for precision in ("bfloat16", "float32")
    )
    apart = np.abs(coarse.predict_proba(X) - full.predict_proba(X)).max()
    assert 1e-6 < apart < 0.05
    assert coarse.score(X, truth) == full.score(X, truth) == 1.0
    assert {tensor.dtype for tensor in coarse.plan_.parameters()} == {
        tensor.dtype for tensor in full.plan_.parameters()
    }


def test_unlabelled_rows_show_where_a_class_ends() -> None:
    """Two moons with three labels each: the supervised network cuts straight through, the unlabelled rows show the gap."""
    X, truth = make_moons(600, noise=0.06, random_state=0)
    labels = np.full(600, -1)
    for label in (0, 1):
        labels[np.flatnonzero(truth == label)[:3]] = label
    training = ClassifierTraining(max_steps=300, learning_rate=5e-3)
    settings = {"hidden": (64, 64), "training": training, "random_state": 0, "verbose": False}
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
    training = ClassifierTraining(max_steps=300)
    settings = {"network": "mlp", "training": training, "n_members": 3, "random_state": 0, "verbose": False}
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
    search, training = ClassifierSearch(unpaired_weight=10.0, decisiveness=0.0), ClassifierTraining(max_steps=200)
    settings = {"hidden": (16,), "search": search, "training": training, "n_members": 2}
    shares = {}
    for name, prior in (("told", {1: 0.1, 0: 0.9}), ("uniform", "uniform"), ("labelled", "labelled")):
        model = SemiSupervisedClassifier(**settings, class_prior=prior, random_state=0, verbose=False).fit(X, labels)
        np.testing.assert_allclose(model.class_prior_, [0.9, 0.1] if name == "told" else [0.5, 0.5])
        shares[name] = model.predict_proba(X)[:, 1].mean()
    assert shares["told"] == pytest.approx(0.1, abs=0.05)
    assert shares["uniform"] == pytest.approx(0.5, abs=0.05)


def test_unlabelled_rows_may_come_on_their_own() -> None:
    X, _, labels = blobs()
    together = quick().fit(X, labels)
    apart = quick().fit(X[:12], labels[:12], X_unpaired=X[12:])
    assert np.array_equal(together.predict_proba(X), apart.predict_proba(X))


def test_without_unlabelled_rows_it_is_the_supervised_one() -> None:
    X, truth, _ = blobs()
    fits = [quick(objective=objective).fit(X, truth) for objective in ("marginal", "supervised")]
    assert np.array_equal(fits[0].predict_proba(X), fits[1].predict_proba(X))


@pytest.fixture(scope="module")
def fitted() -> SemiSupervisedClassifier:
    X, _, labels = blobs()
    return quick(training__max_steps=100, training__learning_rate=1e-2).fit(X, labels)


def test_probabilities_are_probabilities(fitted: SemiSupervisedClassifier) -> None:
    X, truth, _ = blobs(seed=1)
    far = np.concatenate([X, [[1e9, -1e9]]])
    probability = fitted.predict_proba(far)
    np.testing.assert_allclose(probability.sum(1), 1.0, atol=1e-12)
    assert np.isfinite(fitted.predict_log_proba(far)).all()
    assert fitted.score(X, truth) > 0.95
    np.testing.assert_allclose(fitted.predict_proba(far[:7]), probability[:7], atol=1e-6)


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
    model = quick(training__max_steps=100).fit(X, labels)
    assert model.classes_.tolist() == [0, 1]
    known = truth < 2
    assert model.score(X[known], truth[known]) > 0.9


def test_weights_count_rows() -> None:
    """Rows of weight zero are as good as absent, and labels with more weight win where both claim a place."""
    X = np.tile([[0.0, 0.0], [0.1, 0.0]], (20, 1))
    y = np.tile([0, 1], 20)
    weight = np.where(y == 1, 9.0, 1.0)
    model = quick(training__max_steps=100, scale="none").fit(X, y, weight)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 0.9, atol=0.03)
    X, _, labels = blobs()
    some = np.arange(120) % 4 != 3
    fits = [
        quick().fit(X, labels, some),
        quick().fit(X[some], labels[some]),
    ]
    assert np.array_equal(*(model.predict_proba(X) for model in fits))


def test_time_budget_holds() -> None:
    """The bound of a tenth is the issue of `test_estimators`; here a fit of minutes must end within seconds."""
    X, _, labels = blobs(3000, 200)
    start = time.perf_counter()
    training = ClassifierTraining(max_steps=100_000)
    model = SemiSupervisedClassifier(training=training, time_budget=3.0, random_state=0, verbose=False).fit(X, labels)
    assert time.perf_counter() - start < 10 and model.ended_ == "out of time"


def test_no_time_at_all_is_told() -> None:
    X, _, labels = blobs()
    with pytest.warns(ConvergenceWarning, match=r"time_budget=0.001 was over after \d+ steps"):
        SemiSupervisedClassifier(time_budget=0.001, random_state=0, verbose=False).fit(X, labels)
