"""Fits that end early, by Ctrl-C or by the clock, leave a model that can be used like any other."""

import time

import numpy as np
import pytest
from conftest import brief, draw_branches, fit, searched

from fewpairs import MixtureTranslator


def interrupt_after(n_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes in the step after so many, in the middle of it."""
    calls = iter(range(100_000))

    def interrupt(done: float) -> float:
        if next(calls) >= n_steps:
            raise KeyboardInterrupt
        return 1.0

    monkeypatch.setattr("fewpairs.training.learners.one_cycle", interrupt)


@pytest.mark.parametrize("n_pairs", [60, 200])
@pytest.mark.parametrize(
    "make, n_steps", [(brief, 40), (searched, 30), (searched, 1)], ids=["fixed", "search", "at once"]
)
def test_ctrl_c_warns_and_leaves_a_usable_model(make, n_steps: int, n_pairs: int, monkeypatch) -> None:
    interrupt_after(n_steps, monkeypatch)
    data = draw_branches(n_pairs)
    with pytest.warns(UserWarning, match="Interrupted: the best model so far is kept"):
        model = fit(make(), data)
    assert model.ended_ == "interrupted" and "interrupted" in model.summary()
    assert model.plan_.shares.sum().item() == pytest.approx(1)
    assert np.isfinite(model.score_samples(data.X, data.Y)).all()
    assert np.isfinite(model.validation_score_)


@pytest.mark.parametrize("make", [brief, searched])
def test_ctrl_c_before_the_first_step_leaves_the_model_as_it_was(make, monkeypatch) -> None:
    interrupt_after(0, monkeypatch)
    model = make()
    before = dict(vars(model))
    with pytest.raises(KeyboardInterrupt):
        fit(model, draw_branches())
    assert vars(model) == before


@pytest.mark.parametrize("time_budget", [1e-4, 1.0])
def test_a_fit_keeps_to_its_time(time_budget: float) -> None:
    data, start = draw_branches(), time.perf_counter()
    model = fit(brief(training__max_steps=10**6, time_budget=time_budget), data)
    assert time.perf_counter() - start < time_budget + 3  # starts and first calls of torch are not stopped halfway
    assert model.ended_ == "out of time"
    assert np.isfinite(model.score(data.X, data.Y))


def test_a_rival_without_time_is_not_beaten() -> None:
    """A gain over a model that was hardly trained would be no gain of the unpaired rows."""
    data = draw_branches()
    model = MixtureTranslator(random_state=0, verbose=False, time_budget=0.3)
    model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
    assert np.isnan(model.unpaired_gain_) and "no time to find out" in model.summary()
