"""Fits that end early, by Ctrl-C or by the clock, leave a model that can be used like any other."""

import copy
import signal
import time
import warnings

import numpy as np
import pytest
import torch
from conftest import brief, draw_branches, fit, searched

from fewpairs import CorrectedTranslator, MixtureTranslator, NetworkTraining


def raise_at_once(_: int) -> None:
    raise KeyboardInterrupt


def interrupt_after(n_steps: int, monkeypatch: pytest.MonkeyPatch, send=raise_at_once) -> None:
    """Ctrl-C comes in the step after so many, in the middle of it: once, and as a signal if it is sent as one."""
    calls = iter(range(100_000))

    def interrupt(done: float) -> float:
        if next(calls) == n_steps:
            send(signal.SIGINT)
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


@pytest.fixture(scope="module", params=[1, 3], ids=["first steps", "later"])
def interrupted_search(request: pytest.FixtureRequest) -> MixtureTranslator:
    """A search over five folds that Ctrl-C ended in its first round: its trials hold out no more pairs than they need."""
    with pytest.MonkeyPatch.context() as monkeypatch, pytest.warns(UserWarning, match="Interrupted: the best model"):
        interrupt_after(request.param, monkeypatch, signal.raise_signal)
        return fit(searched(n_folds=5, warm_start=True), draw_branches(200))


def test_an_interrupted_search_tells_how_many_folds_its_members_have(interrupted_search: MixtureTranslator) -> None:
    model, data = interrupted_search, draw_branches(200)
    assert model.ended_ == "interrupted" and model.n_folds_ < 5
    assert {len(part) for part in model.plan_.parts} <= {1, model.n_folds_}
    assert {len(model.plan_.part(one["part"])) for one in model.finals_ if one["share"]} <= {model.n_folds_}
    assert sorted(set(model.folds_.tolist())) == [-1, *range(model.n_folds_)]
    x, y = model.x_scaler_(torch.from_numpy(data.X)), model.y_scaler_(torch.from_numpy(data.Y))
    for fold in range(model.n_folds_):
        unseen = model.plan_.without(fold)
        assert {len(part) for part in unseen.parts} == {1}
        assert torch.isfinite(unseen.log_prob(x, y)).all()


def test_an_interrupted_search_can_be_gone_on_with(interrupted_search: MixtureTranslator) -> None:
    """Pairs that all members have seen are held out from none of them now."""
    model, data = copy.deepcopy(interrupted_search), draw_branches(200)
    before = dict(zip(model.fold_keys_.tolist(), model.folds_.tolist(), strict=True))
    fit(model, data)
    assert model.ended_ == "finished" and model.n_folds_ == interrupted_search.n_folds_
    assert dict(zip(model.fold_keys_.tolist(), model.folds_.tolist(), strict=True)) == before
    assert np.isfinite(model.score(data.X, data.Y)) and np.isfinite(model.validation_score_)


def test_an_interrupted_search_can_be_corrected(interrupted_search: MixtureTranslator) -> None:
    """That the base was interrupted when it was fitted does not keep networks from learning now."""
    data = draw_branches(200)
    model = CorrectedTranslator(base=interrupted_search, training=NetworkTraining(max_steps=3), verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
    assert model.ended_ == "finished" and model.history_["step"][-1] == 3
    assert np.isfinite(model.correction_gain_) and np.isfinite(model.score(data.X, data.Y))


def test_a_rival_that_was_interrupted_is_not_beaten(monkeypatch) -> None:
    """Thirty steps of the marginal candidate, and two of the supervised one: no time to find out what unpaired rows brought."""
    interrupt_after(32, monkeypatch)
    with pytest.warns(UserWarning, match="Interrupted: the best model so far is kept"):
        model = fit(brief(), draw_branches())
    assert [one["objective"] for one in model.finals_] == ["marginal", "supervised"]
    assert np.isnan(model.unpaired_gain_) and "no time to find out" in model.summary()


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
