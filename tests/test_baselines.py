"""What all baselines share: held-out pairs judge and do not teach, the best networks are kept, and units are the user's."""

import math
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from fewpairs import load
from fewpairs.baselines import CGMM, CGMMSS, REGISTRY, Baseline, DensityBaseline, Regression
from fewpairs.data.folds import hold_out
from fewpairs.data.samples import Samples
from fewpairs.datasets.made import LinearGaussian, TranslationData, TwoBranches
from fewpairs.training.batches import minibatches
from fewpairs.training.learners import StepLearner
from fewpairs.training.loop import Budget, Outcome, train

QUICK = {"max_steps": 20, "random_state": 0, "verbose": False}


def draw(n_pairs: int = 60, seed: int = 0):
    problem = LinearGaussian(matrix=((1.0, -0.5), (0.5, 1.0)), shift=(3.0, -20.0), covariance=((0.5, 0.0), (0.0, 0.25)))
    return problem, problem.draw(n_pairs=n_pairs, n_source=200, n_target=200, seed=seed)


def fit_quickly(name: str) -> tuple[TranslationData, Baseline]:
    """Data, and a baseline after twenty steps, which may leave a GAN anywhere."""
    _, data = draw()
    model = clone(REGISTRY[name]()).set_params(**QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return data, model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)


@pytest.fixture
def samples() -> Samples:
    torch.manual_seed(0)
    x = torch.randn(50, 2)
    return Samples.gather(x, x + 0.1, unpaired_x=torch.randn(30, 2), unpaired_y=torch.randn(40, 2))


@pytest.mark.parametrize("name", REGISTRY)
def test_every_baseline_is_used_alike(name: str) -> None:
    """Made without arguments, fitted to all kinds of rows, drawn from and asked for a mean, in the user's units and shapes."""
    data, model = fit_quickly(name)
    draws = model.sample(data.X[:7], 3, random_state=0)
    assert draws.shape == (3, 7, 2) and np.isfinite(draws).all()
    np.testing.assert_array_equal(draws, model.sample(data.X[:7], 3, random_state=0))
    assert np.array_equal(draws[0], draws[1]) == (not model.is_stochastic)
    assert model.predict(data.X[:7]).shape == (7, 2)
    assert "pairs" in model.uses and set(model.uses) <= {"pairs", "source", "target"}
    has_density = isinstance(model, DensityBaseline)
    assert hasattr(model, "score_samples") == hasattr(model, "score") == has_density
    if has_density:
        assert model.score(data.X, data.Y) == pytest.approx(model.score_samples(data.X, data.Y).mean())
    assert {"step", "seconds", "held_out"} < set(model.history_) and model.ended_ in ("finished", "diverged")


@pytest.mark.parametrize("name", REGISTRY)
def test_intervals_and_quantiles_are_those_of_draws(name: str) -> None:
    data, model = fit_quickly(name)
    lower, upper = model.predict_interval(data.X[:7], coverage=0.5)
    assert lower.shape == (7, 2) and ((lower < upper).all() if model.is_stochastic else (lower == upper).all())
    draws = model.sample(data.X[:7], 1000, random_state=0)
    np.testing.assert_allclose(
        model.predict_quantiles(data.X[:7], [0.25, 0.75]), np.quantile(draws, [0.25, 0.75], axis=0)
    )
    np.testing.assert_allclose([lower, upper], np.quantile(draws, [0.25, 0.75], axis=0))


@pytest.mark.parametrize("name", REGISTRY)
def test_every_baseline_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    data, model = fit_quickly(name)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert type(again) is type(model) and again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.sample(data.X, 3, random_state=0), model.sample(data.X, 3, random_state=0))
    np.testing.assert_array_equal(again.novelty(3 * data.X), model.novelty(3 * data.X))
    assert again.summary() == model.summary() and again.uses == model.uses


def test_baselines_are_found_by_a_program_that_has_not_imported_them(tmp_path: Path) -> None:
    _, model = fit_quickly("cgmm")
    model.save(tmp_path / "model")
    ask = "import sys, fewpairs; print(fewpairs.load(sys.argv[1]).summary())"
    told = subprocess.run(
        [sys.executable, "-c", ask, str(tmp_path / "model")], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == model.summary()


def test_far_xs_are_novel_and_near_ones_are_not() -> None:
    data, model = fit_quickly("regression")
    assert (model.novelty(data.X_unpaired) == 0).all() and (model.novelty(data.X + 100) > 1).all()


def test_a_summary_tells_what_was_learnt_from_what() -> None:
    _, model = fit_quickly("cgan")
    for part in ("CGAN", "60 pairs, 200 unpaired x's and 200 unpaired y's", "pairs, x's", "Energy score", model.ended_):
        assert part in model.summary()
    _, model = fit_quickly("gnot")
    assert "each x to one y" in model.summary() and "No pairs were held out" in model.summary()


@pytest.mark.parametrize("name", [name for name, kind in REGISTRY.items() if len(kind.learns_from) < 3])
def test_what_is_not_used_changes_nothing_but_the_scale(name: str) -> None:
    """`uses` is the truth: unpaired rows whose mean and variance are those of the others, but in another order of magnitude of
    detail, leave a method alone that says it does not use them."""
    _, data = draw()
    model = REGISTRY[name](**QUICK)
    extra = {"source": "X_unpaired", "target": "Y_unpaired"}
    unused = [extra[kind] for kind in extra if kind not in model.uses]
    other = {"X_unpaired": 2 * data.X_unpaired.mean(0) - data.X_unpaired}
    other["Y_unpaired"] = 2 * data.Y_unpaired.mean(0) - data.Y_unpaired  # mirrored: mean and variance stay
    for argument in unused:
        both = []
        for rows in (getattr(data, argument), other[argument]):
            arguments = {"X_unpaired": data.X_unpaired, "Y_unpaired": data.Y_unpaired, argument: rows}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                both.append(clone(model).fit(data.X, data.Y, **arguments).sample(data.X[:5], 2, random_state=0))
        np.testing.assert_allclose(both[0], both[1], rtol=1e-3, atol=1e-3)  # rounding of the scale, through 20 steps


def test_units_are_the_users() -> None:
    """Other units of x and y change the numbers and nothing else; a density changes by the units of y."""
    _, data = draw()
    plain = CGMM(**QUICK).fit(data.X, data.Y)
    other = CGMM(**QUICK).fit(1e3 * data.X + 7, 1e-2 * data.Y - 5)
    x = 1e3 * data.X + 7
    np.testing.assert_allclose(
        other.sample(x, 2, random_state=1), 1e-2 * plain.sample(data.X, 2, random_state=1) - 5, atol=1e-4
    )
    shift = -2 * math.log(1e-2)
    np.testing.assert_allclose(
        other.score_samples(x, 1e-2 * data.Y - 5), plain.score_samples(data.X, data.Y) + shift, atol=1e-2
    )


def test_one_dimensional_y_stays_one_dimensional() -> None:
    _, data = draw()
    model = Regression(**QUICK).fit(data.X, data.Y[:, 0])
    assert model.predict(data.X).shape == (60,) and model.sample(data.X, 4).shape == (4, 60)


def test_regression_recovers_the_conditional_mean() -> None:
    """A linear network on a linear problem: the error of least squares is σ√(3/P) in the mean; three times that."""
    problem, data = draw(n_pairs=400)
    model = Regression(hidden=(), learning_rate=1e-2, weight_decay=0.0, max_steps=800, random_state=0, verbose=False)
    model.fit(data.X, data.Y)
    x, _ = problem.draw_pairs(500, seed=1)
    error = np.sqrt(np.mean((model.predict(x) - problem.conditional(x).mean.numpy()) ** 2, axis=0))
    assert (error < 3 * np.sqrt([0.5, 0.25]) * np.sqrt(3 / 320)).all()  # a fifth of the pairs is held out


@pytest.mark.parametrize("model", [CGMM(n_parts=2, hidden=(16,)), CGMMSS(hidden=(), n_slopes=1, n_atoms=1)], ids=str)
def test_a_mixture_reaches_a_known_density(model: DensityBaseline) -> None:
    problem, data = draw(n_pairs=1000)
    model = clone(model).set_params(max_steps=1500, learning_rate=1e-2, random_state=0, verbose=False)
    model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
    x, y = problem.draw_pairs(4000, seed=1)
    truth = float(problem.conditional(x).log_prob(torch.from_numpy(y)).mean())
    # k numbers learnt from P pairs cost k/2P nats: some hundred of a network from 800 pairs 0.07; twice that.
    assert -0.01 < truth - model.score(x, y) < 0.15


def test_the_plan_of_cgmm_ss_is_the_papers_loss() -> None:
    """What is minimised is −mean log p(y|x) − mean log p̂(y) with all cross terms: formed one by one."""
    data = TwoBranches().draw(n_pairs=12, n_source=5, n_target=6, seed=0)
    model = CGMMSS(held_out=0.0, max_steps=1, random_state=0, verbose=False, learning_rate=1e-12)
    model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
    x = np.concatenate([data.X, data.X_unpaired])
    y = np.concatenate([data.Y, data.Y_unpaired])
    log_p = np.array([model.score_samples(x, np.tile(row, (len(x), 1))) for row in y])  # (targets, sources)
    by_hand = -model.score(data.X, data.Y) - np.log(np.exp(log_p).mean(1)).mean()
    shift = 2 * float(model.y_scaler_.scale.log().sum())  # the loss is in standardised units, twice
    assert model.history_["loss"][0] == pytest.approx(by_hand - shift, abs=1e-4)


def test_held_out_pairs_leave_no_trace(samples: Samples) -> None:
    left, x, y = hold_out(samples, 0.2, np.random.RandomState(0))
    assert len(x) == len(y) == 10 and len(left.pairs_x) == 40
    for rows, held in ((left.pairs_x, x), (left.source, x), (left.pairs_y, y), (left.target, y)):
        assert torch.cdist(rows, held).min() > 1e-6
    assert len(left.source) == 70 and len(left.target) == 80
    whole, x, _ = hold_out(samples, 0.0, np.random.RandomState(0))
    assert whole is samples and len(x) == 0


def test_minibatches_hold_pairs_together_and_every_row_in_turn(samples: Samples) -> None:
    batches = minibatches(samples, 20)
    some = [next(batches) for _ in range(5)]
    for batch in some:
        torch.testing.assert_close(batch.pairs_y, batch.pairs_x + 0.1)
    assert len(torch.cat([batch.source for batch in some[:4]]).unique(dim=0)) == 80


def _run(scores: list[float], step=lambda network: None, **options) -> tuple[nn.Module, Outcome]:
    """A network that counts steps and is judged by a list of losses; NaN for nobody who judges."""
    network, judged = nn.Linear(1, 1), iter(scores)
    nn.init.zeros_(network.weight)

    def take(batch: Samples) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            network.weight += 1
        step(network)
        return {"loss": network.weight.detach().sum()}

    def judge() -> torch.Tensor:
        return torch.tensor([[-next(judged)]])

    nothing = torch.zeros(2, 1)
    learner = StepLearner(network, take, minibatches(Samples(nothing, nothing, nothing, nothing), 2))
    return network, train(learner, judge, Budget(len(scores), n_looks=30, looks_early=True, **options))


def test_the_best_look_is_kept() -> None:
    network, outcome = _run([3.0, 1.0, 2.0])
    history = outcome.history()
    assert network.weight.item() == outcome.best_step
    assert history["held_out"][history["step"].index(outcome.best_step)] == min(history["held_out"])
    assert outcome.ended == "finished"


def test_without_held_out_pairs_the_last_networks_are_kept() -> None:
    network, _ = _run([math.nan] * 4)
    assert network.weight.item() == 4


def test_a_score_that_turns_into_no_number_is_no_best() -> None:
    network, outcome = _run([1.0, 0.5, math.nan, 5.0, 9.0])
    assert outcome.ended == "diverged" and network.weight.item() == 2


def test_numbers_that_are_not_finite_end_the_loop_and_are_not_kept() -> None:
    def poison(network: nn.Module) -> None:
        if network.weight.item() >= 15:
            network.weight.data.fill_(math.nan)

    network, outcome = _run([1.0 / number for number in range(1, 31)], poison)
    assert outcome.ended == "diverged" and math.isfinite(network.weight.item()) and outcome.steps[-1] < 30


def test_training_ends_when_it_has_not_got_better_for_long() -> None:
    network, outcome = _run([1.0, 0.5, *[0.7] * 28], patience=5)
    assert outcome.ended == "finished" and len(outcome.steps) == 2 + 5 and outcome.steps[-1] < 30
    assert network.weight.item() == outcome.steps[1]


def test_a_score_that_runs_away_is_told() -> None:
    assert _run([1.0, 2.0], too_far=1.5)[1].ended == "diverged"
    assert _run([1.0, 1.2], too_far=1.5)[1].ended == "finished"


def test_a_loss_below_zero_runs_away_from_nobody_who_did_not_ask() -> None:
    """A negative log-likelihood may be negative; without `too_far`, that it ends above its best is no news."""
    assert _run([-1.0, -0.5])[1].ended == "finished"


def test_ctrl_c_keeps_the_best_so_far() -> None:
    def interrupt(network: nn.Module) -> None:
        if network.weight.item() == 3:
            raise KeyboardInterrupt

    network, outcome = _run([1.0 / number for number in range(1, 31)], interrupt)
    assert outcome.ended == "interrupted" and network.weight.item() >= 2  # of the third step, or of the second


def test_ctrl_c_before_the_first_step_leaves_a_fitted_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = fit_quickly("regression")
    before = model.predict(data.X)

    def interrupt(self: Regression, networks: nn.Module, samples: Samples) -> Any:
        signal.raise_signal(signal.SIGINT)
        return begin(self, networks, samples)

    begin = Regression._start
    monkeypatch.setattr(Regression, "_start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(data.X, -data.Y)
    np.testing.assert_array_equal(model.predict(data.X), before)


def test_ctrl_c_within_a_fit_keeps_what_was_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    _, data = draw()

    def interrupt(self: Regression, networks: nn.Module, samples: Samples) -> Any:
        step = begin(self, networks, samples)

        def take(batch: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return step(batch)

        return take

    begin = Regression._start
    monkeypatch.setattr(Regression, "_start", interrupt)
    with pytest.warns(UserWarning, match="Interrupted"):
        model = Regression(**QUICK).fit(data.X, data.Y)
    assert model.ended_ == "interrupted" and np.isfinite(model.predict(data.X)).all()


def test_time_is_kept() -> None:
    _, data = draw()
    model = Regression(max_steps=10**6, time_budget=0.3, random_state=0, verbose=False).fit(data.X, data.Y)
    assert (
        model.ended_ == "out of time" and model.history_["seconds"][-1] < 3
    )  # a slow machine may take its time for a step


def test_an_unfitted_baseline_and_bad_settings_are_refused() -> None:
    _, data = draw()
    with pytest.raises(ValueError, match="not fitted"):
        Regression().sample(data.X)
    with pytest.raises(ValueError, match="held_out"):
        Regression(held_out=0.9).fit(data.X, data.Y)
    with pytest.raises(ValueError, match="hidden"):
        REGISTRY["cgan"](hidden=64).fit(data.X, data.Y)
    with pytest.raises(ValueError, match="n_parts"):
        CGMM(n_parts=0).fit(data.X, data.Y)
    with pytest.raises(ValueError, match="Y"):
        CGMM(**QUICK).fit(data.X, data.Y).score_samples(data.X, data.Y[:, :1])


def test_the_registry_has_the_names_of_the_paper() -> None:
    names = "regression cgan ugan condnf condnf-ss cgmm cgmm-ss gnot dcpeme parot otcs fsbm"
    assert set(REGISTRY) == set(names.split()) and all(issubclass(kind, Baseline) for kind in REGISTRY.values())
    assert len({kind.title for kind in REGISTRY.values()}) == len(REGISTRY)
