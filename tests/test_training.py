"""The loop: it learns, keeps the best, and survives time, Ctrl-C and numbers that are not finite."""

import math
import time

import pytest
import torch
from conftest import make_plan

from fewpairs.data import Samples
from fewpairs.objectives import supervised
from fewpairs.plans import MixturePlan
from fewpairs.smoothing import NoiseSmoothing, NoSmoothing
from fewpairs.training import MAX_SKIPPED, Settings, train


def settings(**changes) -> Settings:
    base = dict(
        learning_rate=1e-2,
        potential_learning_rate=1e-2,
        one_cycle=True,
        batch_size=32,
        max_steps=60,
    )
    return Settings(**{**base, **changes})


@pytest.fixture
def samples(generator: torch.Generator) -> Samples:
    x = torch.randn(64, 2, dtype=torch.float64, generator=generator)
    return Samples.gather(x, x + 0.1 * torch.randn(64, 2, dtype=torch.float64, generator=generator))


def run(plan: MixturePlan, samples: Samples, objective=supervised, **arguments):
    arguments = {"settings": settings(), "smoothing": NoSmoothing(), **arguments}
    return train(plan, samples, objective, generator=torch.Generator().manual_seed(0), **arguments)


def test_it_learns_and_keeps_the_best(samples: Samples) -> None:
    left, held = samples.split(16, torch.Generator().manual_seed(1))
    plan = make_plan()
    before = supervised(plan, held).item()
    outcome = run(plan, left, held_out=held)
    after = supervised(plan, held).item()
    assert after < before - 0.1
    assert after == pytest.approx(min(outcome.history["held_out_nll"]), abs=1e-12)
    assert outcome.ended == "finished" and outcome.history["step"][-1] == 60
    assert all(len(values) == len(outcome.history["step"]) for values in outcome.history.values())


def test_ctrl_c_keeps_the_best_so_far(samples: Samples) -> None:
    def interrupt(step: int, done: float) -> None:
        if step == 30:
            raise KeyboardInterrupt

    left, held = samples.split(16, torch.Generator().manual_seed(1))
    plan = make_plan()
    outcome = run(plan, left, held_out=held, on_step=interrupt)
    assert outcome.ended == "interrupted" and outcome.history["step"][-1] == 30
    assert supervised(plan, held).item() == pytest.approx(min(outcome.history["held_out_nll"]), abs=1e-12)


def test_a_step_without_a_finite_gradient_is_not_taken(samples: Samples) -> None:
    calls = iter(range(1000))

    def sometimes_broken(plan: MixturePlan, batch: Samples) -> torch.Tensor:
        return supervised(plan, batch) * (math.nan if next(calls) % 3 == 0 else 1.0)

    plan = make_plan()
    outcome = run(plan, samples, sometimes_broken)
    assert outcome.n_skipped == 20 and outcome.ended == "finished"
    assert all(bool(torch.isfinite(parameter).all()) for parameter in plan.parameters())


def test_hopeless_numbers_end_the_loop_and_leave_the_plan_finite(samples: Samples) -> None:
    plan = make_plan()
    before = {name: tensor.clone() for name, tensor in plan.state_dict().items()}
    outcome = run(plan, samples, lambda plan, batch: supervised(plan, batch) * math.inf)
    assert outcome.ended == "diverged" and outcome.n_skipped == MAX_SKIPPED
    for name, tensor in plan.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_time_budget_is_kept_and_the_schedule_fits_into_it(samples: Samples) -> None:
    start = time.perf_counter()
    outcome = run(make_plan(), samples, settings=settings(max_steps=10**9, time_budget=0.5))
    assert outcome.ended == "out of time"
    assert 0.5 <= time.perf_counter() - start < 5  # a bound on a stuck loop, not a measurement


def test_noise_moves_x_and_nothing_else(samples: Samples, generator: torch.Generator) -> None:
    smoothed = NoiseSmoothing(0.3, n_copies=4).smooth(samples, generator)
    assert torch.equal(smoothed.pairs_y, samples.pairs_y.repeat(4, 1))
    assert torch.equal(smoothed.target, samples.target)
    moved = torch.cat([smoothed.pairs_x - samples.pairs_x.repeat(4, 1), smoothed.source - samples.source])
    assert float(moved.detach().std()) == pytest.approx(0.3, abs=0.03)  # 640 numbers: 3.5 standard errors
