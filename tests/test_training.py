"""Populations learn: every member by itself, held-out pairs judge and do not teach, the best look is kept, come what may."""

import math
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from conftest import make_plan

from fewpairs.data.folds import Folds
from fewpairs.data.samples import Samples
from fewpairs.plans.classes import ClassCost, ClassPlan, ClassPotential
from fewpairs.plans.mixture import MixturePlan
from fewpairs.training.batches import Dealer
from fewpairs.training.learners import MAX_SKIPPED, PopulationLearner, PopulationSettings, score_held_out
from fewpairs.training.loop import Budget, Outcome, train
from fewpairs.training.objectives import marginal, supervised
from fewpairs.training.populations import Population
from fewpairs.training.smoothing import AdversarialSmoothing, NoiseSmoothing, NoSmoothing

N_FOLDS = 3


def settings(**changes) -> PopulationSettings:
    base = dict(
        learning_rate=1e-2,
        potential_learning_rate=1e-2,
        one_cycle=True,
        batch_size=32,
        pairs_batch_size=32,
        max_steps=60,
    )
    return PopulationSettings(**{**base, **changes})


@pytest.fixture
def samples(generator: torch.Generator) -> Samples:
    x, source, noise = torch.randn(3, 60, 2, dtype=torch.float64, generator=generator)
    return Samples.gather(x, x + 0.1 * noise, unpaired_x=source, unpaired_y=source.flip(0))


@pytest.fixture
def folds(samples: Samples) -> Folds:
    return Folds.cut(samples, N_FOLDS, np.random.RandomState(0))


def make_population(n_members: int = N_FOLDS) -> Population:
    return Population([make_plan(seed=seed) for seed in range(n_members)])


def run(
    population: Population,
    samples: Samples,
    folds: Folds,
    objective=supervised,
    *,
    settings: PopulationSettings = settings(),  # noqa: B008 (it is frozen)
    seconds: float | None = None,
    on_step=lambda done: None,
    **arguments,
) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    dealer = Dealer(
        samples,
        batch_size=settings.batch_size,
        pairs_batch_size=settings.pairs_batch_size,
        generator=generator,
    )
    arguments = {"smoothing": NoSmoothing(), **arguments}
    learner = PopulationLearner(
        population, folds, objective, settings=settings, dealer=dealer, generator=generator, **arguments
    )
    judge = partial(score_held_out, population, samples, folds)
    return train(learner, judge, Budget(settings.max_steps, seconds), on_step=on_step)


def interrupt_at(stop: int):
    steps = iter(range(1, 1000))

    def on_step(done: float) -> None:
        if next(steps) == stop:
            raise KeyboardInterrupt

    return on_step


def held_out_means(outcome: Outcome) -> torch.Tensor:
    """The mean score of each candidate at each look."""
    return torch.stack(outcome.scores).nanmean(-1)


def test_it_learns_and_keeps_the_best_look(samples: Samples, folds: Folds) -> None:
    population = make_population(2 * N_FOLDS)
    outcome = run(population, samples, folds, settings=settings(learning_rate=1.0, one_cycle=False))
    means = held_out_means(outcome)  # (looks, candidates)
    assert torch.equal(outcome.best, means.argmax(0))
    assert (means.amax(0) > means[0] + 0.1).all()
    assert (outcome.best < len(outcome.steps) - 1).any()  # steps that large overshoot: the last look is not the best
    torch.testing.assert_close(
        score_held_out(population, samples, folds).nanmean(1), means.amax(0), atol=1e-12, rtol=0
    )  # what was kept is what was seen
    assert outcome.ended == "finished" and outcome.steps[0] == 0 and outcome.steps[-1] == 60
    assert len(outcome.steps) == len(outcome.seconds) == len(outcome.losses) == len(outcome.scores)


def test_cost_and_potential_have_step_sizes_of_their_own(samples: Samples, folds: Folds) -> None:
    # Adam's first step moves every parameter with a gradient by its step size: g / (√g² + 1e-8).
    population = make_population()
    before = {name: tensor.detach().clone() for name, tensor in population.parameters.items()}
    run(
        population,
        samples,
        folds,
        marginal,
        settings=settings(learning_rate=1e-3, potential_learning_rate=1e-5, one_cycle=False, max_steps=1),
        traits={"unpaired_weight": torch.ones(N_FOLDS, dtype=torch.float64)},
    )
    for name, tensor in population.parameters.items():
        moved = (tensor.detach() - before[name]).abs().amax()
        assert float(moved) == pytest.approx(1e-3 if name.startswith("cost.") else 1e-5, rel=1e-2), name


def test_scores_are_those_of_the_member_that_has_not_seen_the_pair(samples: Samples, folds: Folds) -> None:
    plans = [make_plan(seed=seed) for seed in range(2 * N_FOLDS)]
    some = replace(folds, pairs=torch.where(torch.arange(60) < 10, -1, folds.pairs))
    scores = score_held_out(Population(plans), samples, some)
    assert scores.shape == (2, 60) and torch.isnan(scores[:, :10]).all()
    for row in range(10, 60):
        for candidate in range(2):
            plan = plans[candidate * N_FOLDS + int(folds.pairs[row])]
            expected = plan.log_prob(samples.pairs_x[row], samples.pairs_y[row])
            torch.testing.assert_close(scores[candidate, row], expected, atol=1e-10, rtol=0)


def test_without_folds_the_last_step_is_kept(samples: Samples) -> None:
    population, last = make_population(1), {}

    def remember(done: float) -> None:
        last.update(population.state())

    outcome = run(population, samples, Folds.none(samples), on_step=remember)
    assert outcome.best.tolist() == [len(outcome.steps) - 1]
    assert all(torch.equal(tensor, last[name]) for name, tensor in population.parameters.items())


def test_ctrl_c_keeps_the_best_so_far(samples: Samples, folds: Folds) -> None:
    population = make_population()
    outcome = run(population, samples, folds, on_step=interrupt_at(30))
    assert outcome.ended == "interrupted" and outcome.steps[-1] == 30
    kept = score_held_out(population, samples, folds).nanmean(1)
    torch.testing.assert_close(kept, held_out_means(outcome).amax(0), atol=1e-12, rtol=0)
    assert held_out_means(outcome).max() > held_out_means(outcome)[0] + 0.1


def test_a_step_without_a_finite_gradient_harms_nothing(samples: Samples, folds: Folds) -> None:
    calls = iter(range(1000))

    def sometimes_broken(plan: MixturePlan, batch: Samples) -> torch.Tensor:
        return supervised(plan, batch) * (math.nan if next(calls) % 3 == 0 else 1.0)

    population = make_population()
    outcome = run(population, samples, folds, sometimes_broken)
    assert outcome.ended == "finished" and population.is_finite().all()
    assert held_out_means(outcome).max() > held_out_means(outcome)[0] + 0.1


def test_hopeless_numbers_end_the_loop_and_leave_the_plans_alone(samples: Samples, folds: Folds) -> None:
    population = make_population()
    before = population.state()
    outcome = run(population, samples, folds, lambda plan, batch: supervised(plan, batch) * math.inf)
    assert outcome.ended == "diverged" and outcome.steps[-1] == MAX_SKIPPED
    assert all(torch.equal(tensor, before[name]) for name, tensor in population.parameters.items())


def test_one_broken_member_does_not_disturb_the_others(samples: Samples, folds: Folds) -> None:
    """Bit for bit: the member that meets NaN might as well not be there. Two candidates, the second one broken or not."""

    def scaled(plan: MixturePlan, batch: Samples, factor: torch.Tensor) -> torch.Tensor:
        return factor * supervised(plan, batch)

    outcomes = []
    for factor in (1.0, math.nan):
        population = make_population(2 * N_FOLDS)
        traits = {"factor": torch.tensor([1.0] * N_FOLDS + [factor] * N_FOLDS, dtype=torch.float64)}
        outcome = run(population, samples, folds, scaled, traits=traits)
        outcomes.append((outcome, population.state()))
    (clean, clean_state), (broken, broken_state) = outcomes
    assert broken.ended == "finished"
    for name, tensor in clean_state.items():
        assert torch.equal(tensor[:N_FOLDS], broken_state[name][:N_FOLDS])
    assert torch.equal(held_out_means(clean)[:, 0], held_out_means(broken)[:, 0])
    begin = make_population(2 * N_FOLDS).state()
    assert all(torch.equal(tensor[N_FOLDS:], begin[name][N_FOLDS:]) for name, tensor in broken_state.items())
    assert (clean_state["potential.b"] - begin["potential.b"])[N_FOLDS:].abs().max() > 0


SMOOTHINGS = {"none": NoSmoothing(), "noise": NoiseSmoothing(0.1), "adversarial": AdversarialSmoothing(0.1)}


@pytest.mark.parametrize("what", ["x", "y"])
@pytest.mark.parametrize("kind", SMOOTHINGS)
def test_held_out_pairs_do_not_teach_their_member(kind: str, what: str, samples: Samples, folds: Folds) -> None:
    """Other values in the held-out pairs, and in their rows of source and target, move every member but their own."""
    column = {"x": ("pairs_x", "source"), "y": ("pairs_y", "target")}[what]
    changed = dict(vars(samples))
    for name in column:
        of_row = folds.pairs if name.startswith("pairs") else getattr(folds, name)
        changed[name] = torch.where((of_row == 0)[:, None], -0.5 * changed[name], changed[name])
    states = []
    for data in (samples, Samples(**changed)):
        population, last = make_population(), {}

        def remember(done: float, population=population, last=last) -> None:
            last.update(population.state())  # the last step: the best one may well differ, since fold 0 judges too

        run(
            population,
            data,
            folds,
            marginal,
            smoothing=SMOOTHINGS[kind],
            on_step=remember,
            settings=settings(max_steps=20),
        )
        states.append(last)
    before, after = states
    for name, tensor in before.items():
        # A row of weight zero leaves exp(−60) in a sum, far below the last digit.
        torch.testing.assert_close(after[name][0], tensor[0], atol=1e-12, rtol=0)
    assert min((after["potential.b"] - before["potential.b"])[k].abs().max() for k in (1, 2)) > 1e-4


def test_the_time_budget_is_kept_and_the_schedule_fits_into_it(samples: Samples, folds: Folds) -> None:
    start, done = time.perf_counter(), []
    outcome = run(
        make_population(),
        samples,
        folds,
        settings=settings(max_steps=10**9),
        seconds=0.5,
        on_step=done.append,
    )
    assert outcome.ended == "out of time"
    assert 0.5 <= time.perf_counter() - start < 5  # a bound on a stuck loop, not a measurement
    assert done == sorted(done) and 0.5 < done[-1] < 1
    assert len(outcome.steps) <= 2 + Budget(1).n_looks + 1


def test_no_time_at_all_leaves_the_plans_as_they_were(samples: Samples, folds: Folds) -> None:
    population = make_population()
    before = population.state()
    outcome = run(population, samples, folds, seconds=0.0)
    assert outcome.ended == "out of time" and outcome.steps == [0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in population.parameters.items())


@pytest.mark.parametrize("is_coarse", [True, False])
def test_coarse_products_teach_and_do_not_judge(is_coarse: bool, generator: torch.Generator) -> None:
    """Looks at held-out pairs have no gradients, steps of training have. (Products alone are coarse: a bias is added in full.)"""
    seen = set()

    class Spy(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            seen.add((torch.is_grad_enabled(), y.dtype))
            return y

    x, y = torch.randn(30, 2, generator=generator), torch.arange(30).remainder(3).float().unsqueeze(1)
    samples = Samples.gather(x, y)
    plans = [ClassPlan(ClassCost(Spy(2, 3, bias=False)), ClassPotential(torch.zeros(3))) for _ in range(N_FOLDS)]
    folds = Folds.cut(samples, N_FOLDS, np.random.RandomState(0))
    run(Population(plans), samples, folds, settings=settings(max_steps=2, is_coarse=is_coarse))
    assert seen == {(True, torch.bfloat16 if is_coarse else torch.float32), (False, torch.float32)}
