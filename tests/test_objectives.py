"""The three objectives: where they agree, what moves them, and what bounds them."""

import pytest
import torch
from conftest import make_plan
from reference import tilt

from fewpairs.data.samples import Samples
from fewpairs.plans.mixture import MixturePlan
from fewpairs.training.objectives import inverse_eot, marginal, supervised

OBJECTIVES = {"supervised": supervised, "inverse_eot": inverse_eot, "marginal": marginal}


@pytest.fixture
def samples(generator: torch.Generator) -> Samples:
    rows = torch.randn(4, 40, 2, dtype=torch.float64, generator=generator)
    return Samples.gather(rows[0], rows[1], unpaired_x=rows[2], unpaired_y=rows[3] + 0.5)


def test_inverse_eot_is_supervised_on_the_pairs_own_points(plan: MixturePlan, samples: Samples) -> None:
    own = Samples.gather(samples.pairs_x, samples.pairs_y)
    torch.testing.assert_close(inverse_eot(plan, own), supervised(plan, own), atol=1e-10, rtol=0)


def test_inverse_eot_is_the_papers_formula(plan: MixturePlan, samples: Samples) -> None:
    cost = sum(plan.cost(x, y) for x, y in zip(samples.pairs_x, samples.pairs_y, strict=True)) / 40
    potential = sum(plan.potential(y) for y in samples.target) / 80
    log_z = sum(plan.log_partition(x) for x in samples.source) / 80
    torch.testing.assert_close(inverse_eot(plan, samples), cost - potential + log_z, atol=1e-10, rtol=0)


def test_tilt_moves_inverse_eot_alone(plan: MixturePlan, samples: Samples) -> None:
    t = torch.tensor([0.7, -1.1], dtype=torch.float64)
    tilted = tilt(plan, t)
    torch.testing.assert_close(supervised(tilted, samples), supervised(plan, samples), atol=1e-10, rtol=0)
    torch.testing.assert_close(marginal(tilted, samples), marginal(plan, samples), atol=1e-10, rtol=0)
    moved = inverse_eot(tilted, samples) - inverse_eot(plan, samples)
    expected = t @ (samples.pairs_y.mean(0) - samples.target.mean(0))
    torch.testing.assert_close(moved, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_a_weight_of_two_is_a_row_twice(objective, plan: MixturePlan, samples: Samples) -> None:
    twice = torch.arange(40) < 10
    repeat = torch.cat([torch.arange(40), torch.arange(10)])
    repeat_all = torch.cat([torch.arange(80), torch.arange(10)])
    weight, weight_all = 1.0 + twice.double(), 1.0 + (torch.arange(80) < 10).double()
    weighted = Samples(samples.pairs_x, samples.pairs_y, samples.source, samples.target, weight, weight_all, weight_all)
    repeated = Samples(
        samples.pairs_x[repeat], samples.pairs_y[repeat], samples.source[repeat_all], samples.target[repeat_all]
    )
    torch.testing.assert_close(objective(plan, weighted), objective(plan, repeated), atol=1e-10, rtol=0)


def test_marginal_adds_the_likelihood_of_the_target(plan: MixturePlan, samples: Samples) -> None:
    densities = torch.stack([plan.log_prob(x.expand_as(samples.target), samples.target).exp() for x in samples.source])
    expected = supervised(plan, samples) - 2.5 * densities.mean(0).log().mean()
    torch.testing.assert_close(marginal(plan, samples, unpaired_weight=2.5), expected, atol=1e-10, rtol=0)


def test_on_the_way_down_marginal_is_bounded_and_inverse_eot_is_not(samples: Samples) -> None:
    """Along the tilt that lowers the paper's loss, it falls without end; the bounded form does not move."""
    plan = make_plan()
    direction = samples.target.mean(0) - samples.pairs_y.mean(0)
    values = [inverse_eot(tilt(plan, size * direction), samples) for size in (0.0, 10.0, 100.0)]
    assert values[0] - values[1] > 1
    torch.testing.assert_close(
        (values[0] - values[2]) / (values[0] - values[1]), torch.tensor(10.0).double(), atol=1e-6, rtol=0
    )
