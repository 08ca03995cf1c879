"""Ctrl-C: whenever it comes, the process is fit for the next fit."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conftest import blobs, fixed, quick

from fewpairs import (
    CorrectedTranslator,
    EnergyTranslator,
    MixtureTranslator,
    NetworkTraining,
    Perceptrons,
    Search,
    SemiSupervisedClassifier,
    Training,
)
from fewpairs.baselines import Regression
from fewpairs.datasets import TwoBranches
from fewpairs.selection.families import mixture as mixture_family
from fewpairs.selection.trials import Trainer
from fewpairs.training import learners
from fewpairs.training.interrupts import deferred_interrupts, stop_if_asked

DATA = TwoBranches().draw(n_pairs=60, n_source=100, n_target=120, seed=0)
X, _, LABELS = blobs()

NETWORKS: dict[str, Any] = {
    "training": NetworkTraining(max_steps=8, batch_size=32),
    "perceptrons": Perceptrons(cost_hidden=(8,), potential_hidden=(8,)),
    "random_state": 0,
    "verbose": False,
}


def make_mixture() -> MixtureTranslator:
    return fixed(search__n_atoms=3, search__smoothing=0.0, training__max_steps=10)


def make_searched() -> MixtureTranslator:
    training = Training(max_steps=6, batch_size=64)
    return MixtureTranslator(training=training, search=Search(n_atoms=3), n_folds=2, random_state=0, verbose=False)


@pytest.fixture(autouse=True)
def gradients_on() -> Iterator[None]:
    """A test that fails fails alone."""
    yield
    torch.set_grad_enabled(True)


def translate(model: Any) -> Callable[[], np.ndarray]:
    """A fit, and what it has learnt."""

    def fit() -> np.ndarray:
        model.fit(DATA.X, DATA.Y, X_unpaired=DATA.X_unpaired, Y_unpaired=DATA.Y_unpaired)
        return model.predict(DATA.X)

    return fit


def classify() -> np.ndarray:
    return quick().fit(X, LABELS).predict_proba(X)


FITS = {
    "mixture": translate(make_mixture()),
    "search": translate(make_searched()),
    "classifier": classify,
    "networks": translate(EnergyTranslator(**NETWORKS)),
    "networks on a base": translate(CorrectedTranslator(make_mixture(), **NETWORKS)),
    "baseline": translate(Regression(max_steps=10, random_state=0, verbose=False)),
}


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def refuse_damage(fit: Callable[[], np.ndarray], expected: np.ndarray) -> None:
    """After an interrupt: nothing is left behind, and a fit is what it was."""
    assert torch.is_grad_enabled()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    np.testing.assert_array_equal(fit(), expected)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("number", [3, 10])
def test_one_that_comes_as_no_grad_is_left_leaves_gradients_on(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, n_exits, leave = FITS[name], 0, torch.no_grad.__exit__
    expected = fit()

    def leave_late(self: Any, *error: Any) -> None:
        nonlocal n_exits
        n_exits += 1
        if n_exits == number:
            interrupt()
        leave(self, *error)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(torch.no_grad, "__exit__", leave_late)
        fit()
    assert n_exits >= number
    refuse_damage(fit, expected)


def interrupt_at_random_times(names: list[str], n_times: int) -> None:
    random, main = np.random.default_rng(0), threading.main_thread().ident
    for name in names:
        fit = FITS[name]
        expected, start = fit(), time.perf_counter()
        fit()
        seconds = time.perf_counter() - start
        for _ in range(n_times // len(names)):
            timer = threading.Timer(random.uniform(0, seconds), signal.pthread_kill, (main, signal.SIGINT))
            with contextlib.suppress(KeyboardInterrupt):  # before the first step, or when all was over
                timer.start()
                try:
                    fit()
                finally:
                    timer.cancel()
                    timer.join()
            refuse_damage(fit, expected)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_thirty_at_random_times_harm_nothing() -> None:
    interrupt_at_random_times(["mixture", "classifier", "baseline"], 30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_five_hundred_at_random_times_harm_nothing() -> None:
    interrupt_at_random_times(list(FITS), 500)


@pytest.mark.parametrize("fit", [FITS["mixture"], FITS["baseline"]])
def test_the_second_stops_at_once_and_leaves_the_model_as_it_was(
    fit: Callable[[], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, n_came = fit(), 0

    def interrupt_twice(self: Any, *error: Any) -> None:
        nonlocal n_came
        while n_came < 2:
            n_came += 1
            interrupt()
        leave(self, *error)

    leave = torch.no_grad.__exit__
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch.no_grad, "__exit__", interrupt_twice)
        fit()
    refuse_damage(fit, expected)


def interrupt_before(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, is_due: Callable[..., bool]) -> None:
    """Has Ctrl-C come just before a function is called for the first time that the call is due."""
    function, has_come = getattr(where, name), []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if not has_come and is_due(*arguments, **options):
            has_come.append(True)
            interrupt()
        return function(*arguments, **options)

    monkeypatch.setattr(where, name, interrupted)


def always(*arguments: Any, **options: Any) -> bool:
    return True


def test_one_before_the_first_step_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_mixture()
    expected = translate(model)()
    interrupt_before(monkeypatch, mixture_family, "fit_mixture", always)
    with pytest.raises(KeyboardInterrupt):
        model.fit(100 * DATA.X[:, [0, 0]], DATA.Y)
    np.testing.assert_array_equal(model.predict(DATA.X), expected)


def test_one_before_the_first_step_leaves_a_baseline_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Regression(max_steps=10, random_state=0, verbose=False)
    expected = translate(model)()
    interrupt_before(monkeypatch, Regression, "_build", always)
    with pytest.raises(KeyboardInterrupt):
        model.fit(100 * DATA.X[:, [0, 0]], DATA.Y)
    np.testing.assert_array_equal(model.predict(DATA.X), expected)


def test_one_between_search_and_final_training_keeps_what_the_search_has_learnt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt_before(monkeypatch, Trainer, "run", lambda self, candidates, stage, **_: stage.title == "Learning p(y|x)")
    model = make_searched()
    with pytest.warns(UserWarning, match="Interrupted: the best model so far is kept"):
        translate(model)()
    assert model.ended_ == "interrupted" and model.n_steps_ > 0


@pytest.mark.parametrize("name, kind", [("mixture", MixtureTranslator), ("classifier", SemiSupervisedClassifier)])
def test_one_after_the_last_step_loses_nothing_and_is_told(
    name: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = FITS[name]()
    interrupt_before(monkeypatch, kind, "_keep", always)
    with pytest.warns(UserWarning, match="the model is complete") as told:
        found = FITS[name]()
    np.testing.assert_array_equal(found, expected)
    assert [warning.filename for warning in told if "complete" in str(warning.message)] == [__file__]


def test_one_in_the_fit_of_a_base_ends_the_networks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_before(monkeypatch, learners, "one_cycle", always)
    model = CorrectedTranslator(make_mixture(), **NETWORKS)
    with pytest.warns(UserWarning, match="Interrupted") as told:
        translate(model)()
    assert model.base_.ended_ == model.ended_ == "interrupted" and model.n_steps_ == 0
    assert not any("complete" in str(warning.message) for warning in told)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def handle(number: int, frame: Any) -> None:
    raise TimeoutError("a user's own")


@pytest.mark.parametrize("own", [signal.SIG_IGN, handle])
def test_a_handler_of_the_users_own_stays(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, before = FITS["mixture"](), signal.signal(signal.SIGINT, own)
    try:
        with monkeypatch.context() as patch:
            interrupt_before(patch, learners, "one_cycle", always)
            if own is handle:
                with pytest.raises(TimeoutError, match="own"):
                    FITS["mixture"]()
            else:
                np.testing.assert_array_equal(FITS["mixture"](), expected)
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
    refuse_damage(FITS["mixture"], expected)


def test_a_handler_of_the_users_own_that_raises_leaves_gradients_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    model, before = make_mixture(), signal.signal(signal.SIGINT, stop)
    try:
        interrupt_before(monkeypatch, torch.no_grad, "__exit__", lambda self, *_: "neighbourhood_" in vars(model))
        with contextlib.suppress(KeyboardInterrupt):
            translate(model)()
    finally:
        signal.signal(signal.SIGINT, before)
    assert torch.is_grad_enabled()


def test_other_threads_go_on() -> None:
    found, model = [], make_mixture()
    with deferred_interrupts() as interrupts:
        interrupt()
        other = threading.Thread(target=lambda: found.append(translate(model)()))
        other.start()
        other.join()
        assert interrupts.came_late()
        with pytest.raises(KeyboardInterrupt):
            stop_if_asked()
    assert len(found) == 1 and model.ended_ == "finished"
    stop_if_asked()  # it is over
