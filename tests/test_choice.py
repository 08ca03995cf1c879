"""Choice: shares that explain held-out pairs best, judged without the pairs that are scored; no claim where there is nothing."""

import math
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import FIXED, make_plan
from fewpairs.selection.makers import Candidate, Clock, MixtureMaker, Trial

from fewpairs import MixtureTranslator
from fewpairs.data.folds import Folds
from fewpairs.data.samples import Samples
from fewpairs.datasets.made import TwoBranches
from fewpairs.selection import choice
from fewpairs.selection.choice import IGNORE_X_PAIRS, RUNGS
from fewpairs.training.loop import Outcome, Settings
from fewpairs.training.populations import Population

CANDIDATE = Candidate(
    objective="marginal",
    hidden=(16, 16),
    covariance="diagonal",
    unpaired_weight=3.0,
    smoothing=0.2,
    adversarial=0.0,
    variance_floor=0.01,
)
SEARCH = {"max_steps": 20, "batch_size": 64, "random_state": 0, "verbose": False}


def make_maker(n_pairs: int = 60, n_folds: int = 3, shift: float = 0.0) -> MixtureMaker:
    """A maker of members for y = x, with weights; `shift` moves the y's of fold 0."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, n_pairs, 2, dtype=torch.float64, generator=generator)
    samples = Samples.gather(x, x.clone(), unpaired_y=weight.flip(0), pairs_weight=weight[:, 0].exp())
    folds = Folds.cut(samples, n_folds, np.random.RandomState(0))
    moved = {
        name: torch.where((rows == 0)[:, None], getattr(samples, column) + shift, getattr(samples, column))
        for name, column, rows in (("pairs_y", "pairs_y", folds.pairs), ("target", "target", folds.target))
    }
    return MixtureMaker(
        samples=replace(samples, **moved),
        folds=folds,
        settings=Settings(
            learning_rate=0.03,
            potential_learning_rate=0.03,
            one_cycle=True,
            batch_size=32,
            pairs_batch_size=32,
            max_steps=10,
        ),
        n_slopes=2,
        n_atoms=3,
        kinds=("diagonal",),
        cost_options={},
        start="mixture",
        start_variance=0.1,
        random=np.random.RandomState(0),
        generator=torch.Generator().manual_seed(0),
        clock=Clock(None, time.perf_counter()),
        on_step=lambda title, done: None,
    )


def make_trial(scores: torch.Tensor, **changes) -> Trial:
    """A trial of three folds that was looked at once, with these scores of the pairs."""
    outcome = Outcome(scores=[scores[None]], best=torch.zeros(1, dtype=torch.long))
    population = Population([make_plan(seed=seed) for seed in range(3)])
    return Trial(replace(CANDIDATE, **changes), population, 0, 3, outcome, 0)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def log_posterior(shares: torch.Tensor, log_probs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """What `_shares` maximises, for shares of shape (..., models)."""
    log_mixture = torch.logsumexp(log_probs + shares.log().unsqueeze(-1), dim=-2)
    return (weight * log_mixture).sum(-1) + IGNORE_X_PAIRS * shares[..., -1].log()


@pytest.mark.parametrize("lead", [-0.5, 0.0, 0.3, 3.0])
def test_shares_maximise_the_likelihood_of_the_mixture(lead: float) -> None:
    """Against a grid of ten thousand shares. At its top the posterior is flat: the share is known less well than the value."""
    log_probs = draw(2, 40) + torch.tensor([[lead], [0.0]])
    weight = draw(40, seed=1).exp()
    ours = torch.linspace(0, 1, 10_001, dtype=torch.float64)[1:-1]
    values = log_posterior(torch.stack([ours, 1 - ours], dim=-1), log_probs, weight)
    shares = choice._shares(log_probs, weight)
    assert shares.sum().item() == pytest.approx(1)
    assert log_posterior(shares, log_probs, weight) >= values.max() - 1e-6
    assert shares[0].item() == pytest.approx(ours[values.argmax()].item(), abs=1e-3)


def test_shares_of_three_models() -> None:
    log_probs, weight = draw(3, 60) + torch.tensor([[0.3], [0.2], [0.0]]), torch.ones(60).double()
    step = torch.arange(1, 100, dtype=torch.float64) / 100
    grid = torch.cartesian_prod(step, step)
    grid = torch.cat([grid, 1 - grid.sum(1, keepdim=True)], dim=1)
    grid = grid[grid[:, 2] > 1e-9]
    shares = choice._shares(log_probs, weight)
    assert log_posterior(shares, log_probs, weight) >= log_posterior(grid, log_probs, weight).max() - 1e-6


def test_a_model_that_is_worthless_gets_nothing() -> None:
    shares = choice._shares(torch.tensor([[-50.0] * 20, [0.0] * 20], dtype=torch.float64), torch.ones(20).double())
    assert shares[0] < 1e-9
    shares = choice._shares(torch.tensor([[50.0] * 20, [0.0] * 20], dtype=torch.float64), torch.ones(20).double())
    assert shares[1].item() == pytest.approx(IGNORE_X_PAIRS / (20 + IGNORE_X_PAIRS))  # the prior alone


def test_crossfit_is_a_choice_by_the_other_folds() -> None:
    """Written out: for each fold, the best look by the others, and shares from a grid by the others."""
    maker = make_maker()
    looks, ignored = draw(4, 60) + 0.2, draw(60, seed=1)
    outcome = choice._crossfit([looks], ignored, maker)
    ours = torch.linspace(0, 1, 10_001, dtype=torch.float64)[1:-1]
    grid = torch.stack([ours, 1 - ours], dim=-1)
    for fold in range(3):
        here, others = maker.folds.pairs == fold, maker.folds.pairs != fold
        best = max(looks, key=lambda scores: float((scores * maker.weight)[others].sum()))
        both = torch.stack([best, ignored])
        shares = grid[log_posterior(grid, both[:, others], maker.weight[others]).argmax()]
        expected = torch.logsumexp(both[:, here] + shares.log()[:, None], dim=0)
        torch.testing.assert_close(outcome[here], expected, atol=2e-3, rtol=0)  # the width of the grid, times slopes


def test_crossfit_uses_nothing_of_a_pairs_own_fold() -> None:
    """Scores of fold 0 that would turn every choice, moved all together: its own outcome moves with them, and by no more."""
    maker = make_maker()
    looks, ignored = draw(4, 60), draw(60, seed=1)
    here = maker.folds.pairs == 0
    before = choice._crossfit([looks], ignored, maker)
    after = choice._crossfit([looks + 100 * here], ignored + 100 * here, maker)
    torch.testing.assert_close(after[here], before[here] + 100, atol=1e-9, rtol=0)

    chosen = max(range(4), key=lambda look: float((looks[look] * maker.weight)[~here].sum()))
    tempting = looks + 100 * here * (torch.arange(4) != chosen)[:, None]
    after = choice._crossfit([tempting], ignored, maker)
    torch.testing.assert_close(after[here], before[here], atol=1e-12, rtol=0)
    assert (after[~here] - before[~here]).abs().max() > 0.01  # the other folds do listen to it


def test_crossfit_passes_over_a_look_that_broke() -> None:
    maker = make_maker()
    looks, ignored = draw(3, 60), draw(60, seed=1)
    broken = torch.cat([looks, torch.full((1, 60), math.nan)])
    torch.testing.assert_close(
        choice._crossfit([broken], ignored, maker), choice._crossfit([looks], ignored, maker), atol=1e-12, rtol=0
    )


def test_trust_is_the_posterior_of_two_models() -> None:
    """The odds before, times the ratio of the held-out pairs' likelihoods, are the odds after. Computed with plain numbers."""
    maker = make_maker()
    maker.weight = torch.ones(60).double()
    scores, ignored = 0.1 * draw(60), 0.1 * draw(60, seed=1)
    trust, doubted = choice._doubt(scores, ignored, maker)
    before = math.exp(choice.LOG_ODDS)
    ours, theirs = before * float(scores.sum().exp()), float(ignored.sum().exp())
    assert trust == pytest.approx(ours / (ours + theirs), rel=1e-9)
    others = maker.folds.pairs != 0
    ours, theirs = before * float(scores[others].sum().exp()), float(ignored[others].sum().exp())
    share = ours / (ours + theirs)
    expected = (share * scores[~others].exp() + (1 - share) * ignored[~others].exp()).log()
    torch.testing.assert_close(doubted[~others], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("gain", "trust"), [(0.5, 1.0), (-0.5, 0.0)])
def test_many_pairs_leave_no_doubt(gain: float, trust: float) -> None:
    maker, ignored = make_maker(), draw(60)
    found, doubted = choice._doubt(ignored + gain, ignored, maker)  # evidence of 13 nats in a fold's others
    assert found == pytest.approx(trust, abs=1e-4)
    torch.testing.assert_close(doubted, ignored + max(gain, 0.0), atol=1e-2, rtol=0)


def test_weights_add_up_to_what_they_are_worth() -> None:
    """A few heavy pairs among many light ones are few pairs: Σ weights is the effective sample size, whatever their scale."""
    maker = make_maker()
    weight = maker.samples.pairs_weight.double()
    assert float(maker.weight.sum()) == pytest.approx(float(weight.sum() ** 2 / (weight**2).sum()))
    torch.testing.assert_close(maker.weight / maker.weight.sum(), weight / weight.sum())
    alike = replace(maker, samples=replace(maker.samples, pairs_weight=torch.full_like(weight, 2.0)))
    torch.testing.assert_close(alike.weight, torch.ones(60).double())  # equal weights are as good as none


def test_choosing_tempers_relevance_and_telling_does_not() -> None:
    maker = make_maker()
    relevance = torch.exp(2 * draw(60))
    weight = maker.samples.pairs_weight.double() * relevance
    biased = replace(maker, samples=replace(maker.samples, relevance=relevance))
    torch.testing.assert_close(biased.weight_to_tell / biased.weight_to_tell.sum(), weight / weight.sum())
    scores = draw(60, seed=1)
    assert biased.mean(scores, to_tell=True)[0] == pytest.approx(float((weight * scores).sum() / weight.sum()))
    assert float(biased.weight.sum()) > 2 * float(biased.weight_to_tell.sum())
    assert biased.mean(scores)[0] != pytest.approx(biased.mean(scores, to_tell=True)[0])


def test_mean_and_standard_error_are_weighted() -> None:
    maker = make_maker()
    scores = draw(60)
    scores[:20] = math.nan
    weight = maker.weight[20:].numpy() / maker.weight[20:].sum().item()
    mean, error = maker.mean(scores)
    assert mean == pytest.approx(np.average(scores[20:], weights=weight))
    assert error == pytest.approx(np.sqrt(np.sum(weight**2 * (scores[20:].numpy() - mean) ** 2) * 40 / 39))
    maker.weight = torch.ones(60).double()
    assert maker.mean(scores)[1] == pytest.approx(scores[20:].std().item() / 40**0.5)


def test_of_tied_candidates_the_smoothest_is_best() -> None:
    maker, scores = make_maker(), draw(60)
    noise = draw(60, seed=1)
    noise -= (maker.weight * noise).sum() / maker.weight.sum()
    rough, smooth = make_trial(scores + 1e-3, smoothing=0.05), make_trial(scores + noise, smoothing=0.4)
    assert choice._best([rough, smooth], maker) is smooth
    assert choice._best([rough, make_trial(scores - 1, smoothing=0.4)], maker) is rough


def test_flattery_is_what_the_best_of_many_owes_to_luck() -> None:
    """Forty candidates that differ by chance alone: the winner, less the flattery, is as good as any, to three errors."""
    maker = make_maker()
    maker.weight = torch.ones(60).double()
    trials = [make_trial(draw(60, seed=seed)) for seed in range(40)]
    winner = max(maker.mean(trial.scores())[0] for trial in trials)
    flattery = choice._flattery(trials, maker)
    assert winner > 0.2
    assert abs(winner - flattery) < 3 / 60**0.5
    assert choice._flattery([*trials, make_trial(draw(60) + 5)], maker) == 0  # every fold picks the same
    assert choice._flattery(trials[:1], maker) == 0


def test_held_out_ys_have_no_part_in_the_start() -> None:
    plain, moved = (make_maker(shift=shift).starts("diagonal") for shift in (0.0, 5.0))
    for part, other in zip(plain[0].atoms, moved[0].atoms, strict=True):
        assert torch.equal(part, other)
    assert not torch.equal(plain[1].atoms.b, moved[1].atoms.b)


def test_candidates_of_a_fold_begin_alike() -> None:
    maker = make_maker()
    first, second = (maker.members(replace(CANDIDATE, smoothing=strength), 3) for strength in (0.1, 0.4))
    for plan, other in zip(first, second, strict=True):
        for name, tensor in plan.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name])
    assert not torch.equal(first[0].cost.slope_net[0].weight, first[1].cost.slope_net[0].weight)


def test_candidates_train_the_same_together_and_alone() -> None:
    """A population is a matter of speed: each candidate ends where it would by itself, to the rounding of another batch."""
    candidates = [replace(CANDIDATE, unpaired_weight=weight, smoothing=0.1 * weight) for weight in (0.3, 1.0, 10.0)]
    arguments = {"seconds": None, "title": "", "progress": (0.0, 1.0)}
    together = make_maker().run(candidates, **arguments)
    for candidate, trial in zip(candidates, together, strict=True):
        (alone,) = make_maker().run([candidate], **arguments)
        assert trial.candidate == candidate
        torch.testing.assert_close(trial.scores(), alone.scores(), atol=1e-8, rtol=0)
    assert (together[0].scores() - together[2].scores()).abs().max() > 1e-3


def test_what_was_tried_before_does_not_change_the_dice() -> None:
    """The supervised candidates of a fit with unpaired rows are those of a supervised fit: the two can be compared."""
    arguments = {"seconds": None, "title": "", "progress": (0.0, 1.0)}
    supervised = replace(CANDIDATE, objective="supervised", unpaired_weight=0.0)
    maker = make_maker()
    maker.run([replace(CANDIDATE, smoothing=0.4)], **arguments)
    (later,), (first,) = maker.run([supervised], **arguments), make_maker().run([supervised], **arguments)
    torch.testing.assert_close(later.scores(), first.scores(), atol=0, rtol=0)


def ignoring_x(model: MixtureTranslator, y: np.ndarray) -> float:
    """The mean log-likelihood of y's under the member that ignores x."""
    x = torch.zeros(len(y), model.n_features_in_).double()
    conditional = model.plan_.members[0].conditional(x, model.y_scaler_.loc, model.y_scaler_.scale)
    return float(conditional.log_prob(torch.from_numpy(y)).mean())


@pytest.mark.filterwarnings("ignore:.*rows of X are far")
@pytest.mark.parametrize("settings", [{**FIXED, "n_folds": 5, "max_steps": 100}, SEARCH], ids=["fixed", "search"])
def test_pure_noise_teaches_nothing(settings) -> None:
    """On average over draws it costs less than 0.05 nats on fresh pairs, and no gain is claimed beyond its error.

    One draw in some has thirty pairs that do look related (seed 2): no model could tell, so the bound is on the average.
    """
    regrets, models = [], []
    for seed in range(3):
        random = np.random.default_rng(seed)
        X, Y, Xu, Yu = (random.normal(size=(n_rows, 3)) for n_rows in (30, 30, 200, 200))
        model = MixtureTranslator(**settings).fit(X, Y, X_unpaired=Xu, Y_unpaired=Yu)
        x, y = random.normal(size=(2, 4000, 3))
        regrets.append(ignoring_x(model, y) - model.score(x, y))
        models.append(model)
    assert np.mean(regrets) < 0.05
    assert max(regrets) < 0.2
    for model in models:
        assert (
            abs(model.x_gain_) < 3 * model.x_gain_error_ + 1e-6
        )  # rounding, where the model is the one that ignores x


def test_a_strong_relation_is_found() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 2))
    Y = X @ [[1.0, 2.0], [-1.0, 0.5]] + 0.2 * random.normal(size=(60, 2))
    model = MixtureTranslator(**{**FIXED, "hidden": (), "max_steps": 150}).fit(X, Y, X_unpaired=X[::-1] + 0.1)
    assert model.x_gain_ > 5 * model.x_gain_error_
    assert model.plan_.shares[0] < 0.1
    assert model.score(X, Y) > ignoring_x(model, Y) + 1


def data(n_pairs: int = 60):
    drawn = TwoBranches().draw(n_pairs=n_pairs, n_source=100, n_target=120, seed=0)
    return (drawn.X, drawn.Y), {"X_unpaired": drawn.X_unpaired, "Y_unpaired": drawn.Y_unpaired}


def settings_of(record: dict) -> tuple:
    return tuple(record[name] for name in Candidate.__dataclass_fields__)


@pytest.mark.parametrize("objective", ["marginal", "inverse_eot", "supervised"])
def test_with_every_knob_fixed_nothing_is_searched(objective: str) -> None:
    """The finals alone: the objective asked for, and the supervised yardstick beside it."""
    pairs, unpaired = data()
    model = MixtureTranslator(**FIXED, max_steps=10, objective=objective).fit(*pairs, **unpaired)
    expected = [objective] if objective == "supervised" else [objective, "supervised"]
    assert [tried["objective"] for tried in model.candidates_] == expected
    assert list(map(settings_of, model.candidates_)) == list(map(settings_of, model.finals_))
    assert len(model.plan_.members) == 1 + sum(final["n_members"] for final in model.finals_)
    assert all(tried[name] == FIXED[name] for tried in model.candidates_ for name in ("hidden", "smoothing"))


def test_a_search_tries_rungs_and_keeps_to_what_is_fixed() -> None:
    pairs, unpaired = data()
    model = MixtureTranslator(**SEARCH, n_folds=2, smoothing=0.123).fit(*pairs, **unpaired)
    tried = list(map(settings_of, model.candidates_))
    assert len(set(tried)) > 10
    assert settings_of(model.chosen_) in tried
    assert {record["smoothing"] for record in model.candidates_} == {0.123}
    for knob in ("hidden", "covariance", "variance_floor", "adversarial"):
        values = {record[knob] for record in model.candidates_}
        assert values <= set(RUNGS[knob])
        assert len(values) > 1
    assert {record["unpaired_weight"] for record in model.candidates_} <= {0.0, *RUNGS["unpaired_weight"]}


def test_shares_of_the_ensemble_are_those_of_the_finals() -> None:
    pairs, unpaired = data()
    model = MixtureTranslator(**SEARCH, n_folds=2).fit(*pairs, **unpaired)
    shares = model.plan_.shares
    assert shares.sum().item() == pytest.approx(1)
    first = 1
    for final in model.finals_:
        some = shares[first : first + final["n_members"]]
        assert some.sum().item() == pytest.approx(final["share"])
        assert len(some) in (0, 2)
        first += final["n_members"]
    assert first == len(shares)
    assert model.chosen_["share"] == max(final["share"] for final in model.finals_)


def test_a_clock_shares_out_what_is_left() -> None:
    assert Clock(None, 0.0).part(0.5) is None and Clock(None, 0.0).left() == math.inf
    now = time.perf_counter()
    assert Clock(100.0, now).part(0.5) == pytest.approx(50, abs=1)
    assert Clock(1.0, now - 10).part(0.5) == 0


def test_flattery_is_what_picking_the_best_of_noise_brings() -> None:
    """Twenty equal candidates: the best mean of 100 scores lies 1.87 standard errors up by chance (the mean of the largest
    of twenty normal numbers), and what other folds pick does not. A candidate that is best everywhere is not flattered."""
    generator = torch.Generator().manual_seed(0)
    maker = SimpleNamespace(
        folds=SimpleNamespace(pairs=torch.arange(100) % 5), weight=torch.ones(100, dtype=torch.float64)
    )
    maker.mean = partial(MixtureMaker.mean, maker)

    def flattery(table: torch.Tensor) -> float:
        return choice._flattery([SimpleNamespace(scores=lambda row=row: row, n_folds=5) for row in table], maker)

    found = [flattery(torch.randn(20, 100, generator=generator, dtype=torch.float64)) for _ in range(200)]
    assert np.mean(found) == pytest.approx(0.187, abs=0.03)  # 200 draws of spread 0.1: four standard errors
    ahead = torch.randn(20, 100, generator=generator, dtype=torch.float64)
    ahead[3] += 10
    assert flattery(ahead) == 0
