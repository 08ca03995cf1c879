"""A population is its members: values, objectives and gradients are those of each plan on its own."""

from functools import partial

import pytest
import torch
from conftest import make_plan

from fewpairs.data.samples import Samples
from fewpairs.networks.classifiers import make_cnn
from fewpairs.plans.classes import ClassCost, ClassPlan, ClassPotential
from fewpairs.plans.mixture import MixturePlan
from fewpairs.training.objectives import inverse_eot, marginal, supervised
from fewpairs.training.populations import Population

N_MEMBERS = 3


def log_marginal(plan: MixturePlan, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return plan.log_marginal(batch["target"], batch["source"], batch["source_weight"]).sum()


def log_prob(plan: MixturePlan, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return plan.log_prob(batch["pairs_x"], batch["pairs_y"]).sum()


def of_samples(objective, plan: MixturePlan, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return objective(plan, Samples(**batch))


FUNCTIONS = {
    "log_prob": log_prob,
    "log_marginal": log_marginal,
    "supervised": partial(of_samples, supervised),
    "inverse_eot": partial(of_samples, inverse_eot),
    "marginal": partial(of_samples, marginal),
}


@pytest.fixture
def plans(covariance: str) -> list[MixturePlan]:
    return [make_plan(covariance=covariance, seed=seed) for seed in range(N_MEMBERS)]


@pytest.fixture
def batch(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """A minibatch of its own for every member, with weights."""
    draw = lambda *shape: torch.randn(N_MEMBERS, *shape, dtype=torch.float64, generator=generator)  # noqa: E731
    return vars(Samples(draw(7, 2), draw(7, 2), draw(9, 2), draw(11, 2), draw(7).exp(), draw(9).exp(), draw(11).exp()))


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_values_and_gradients_are_the_members_own(function, plans, batch) -> None:
    population = Population(plans)
    values = population(function, batch)
    names = list(population.parameters)
    grads = torch.autograd.grad(values.sum(), list(population.parameters.values()), materialize_grads=True)
    for k, plan in enumerate(plans):
        own = function(plan, {name: part[k] for name, part in batch.items()})
        torch.testing.assert_close(values[k], own, atol=1e-10, rtol=0)
        own_grads = torch.autograd.grad(own, [plan.get_parameter(name) for name in names], materialize_grads=True)
        assert max(float(grad.abs().max()) for grad in own_grads) > 1e-3
        for grad, wanted in zip(grads, own_grads, strict=True):
            torch.testing.assert_close(grad[k], wanted, atol=1e-10, rtol=1e-10)


def test_a_member_comes_back_as_a_plan(plans, generator: torch.Generator) -> None:
    population = Population(plans)
    x, y = torch.randn(2, 20, 2, dtype=torch.float64, generator=generator)
    for k, plan in enumerate(plans):
        assert torch.equal(population.plan(k).log_prob(x, y), plan.log_prob(x, y))
    with torch.no_grad():
        population.plan(0).potential.b.add_(1)  # what comes out is a copy
    assert torch.equal(population.plan(0).log_prob(x, y), plans[0].log_prob(x, y))


def test_each_member_has_a_floor_of_its_own(generator: torch.Generator) -> None:
    plans = [make_plan() for _ in range(2)]
    plans[1].potential.variance_floor.fill_(0.5)
    x, y = torch.randn(2, 20, 2, dtype=torch.float64, generator=generator)
    values = Population(plans)(MixturePlan.log_prob, x.expand(2, -1, -1), y.expand(2, -1, -1))
    for value, plan in zip(values, plans, strict=True):
        torch.testing.assert_close(value, plan.log_prob(x, y), atol=1e-10, rtol=0)
    assert (values[0] - values[1]).abs().max() > 0.01


def test_a_state_can_be_set_back(plans) -> None:
    population = Population(plans)
    before = population.state()
    with torch.no_grad():
        for tensor in population.parameters.values():
            tensor.add_(1)
    population.set_state(before)
    for k, plan in enumerate(plans):
        for name, tensor in population.plan(k).state_dict().items():
            assert torch.equal(tensor, plan.state_dict()[name])


def test_one_broken_member_is_told_from_the_others(plans) -> None:
    with torch.no_grad():
        plans[1].potential.raw_w[0] = torch.nan
    assert Population(plans).is_finite().tolist() == [True, False, True]


def test_convolutional_members_are_their_own_as_well() -> None:
    """They are run one after the other on a CPU, where stacked convolutions are slow."""
    torch.manual_seed(0)
    plans = [
        ClassPlan(ClassCost(make_cnn((1, 8, 8), 3)), ClassPotential(torch.zeros(3))).double() for _ in range(N_MEMBERS)
    ]
    x, y = torch.randn(N_MEMBERS, 5, 64, dtype=torch.float64), torch.randint(3, (N_MEMBERS, 5, 1)).double()
    scale = torch.rand(N_MEMBERS, dtype=torch.float64)

    def function(plan: ClassPlan, batch: dict[str, torch.Tensor], *, scale: torch.Tensor) -> torch.Tensor:
        return scale * plan.log_prob(batch["x"], batch["y"]).sum()

    population = Population(plans)
    values = population(function, {"x": x, "y": y}, scale=scale)
    names = list(population.parameters)
    grads = torch.autograd.grad(values.sum(), list(population.parameters.values()))
    for k, plan in enumerate(plans):
        own = function(plan, {"x": x[k], "y": y[k]}, scale=scale[k])
        torch.testing.assert_close(values[k], own)
        own_grads = torch.autograd.grad(own, [plan.get_parameter(name) for name in names])
        for grad, own_grad in zip(grads, own_grads, strict=True):
            torch.testing.assert_close(grad[k], own_grad)


def test_convolutions_find_their_channels_side_by_side() -> None:
    """On a CPU they are several times as fast then. Images of one channel lie so in any order: it is the weights that tell."""
    plans = [ClassPlan(ClassCost(make_cnn((1, 8, 8), 3)), ClassPotential(torch.zeros(3))) for _ in range(2)]
    found = []

    def first_convolution(plan: ClassPlan, x: torch.Tensor) -> torch.Tensor:
        y = plan.cost.network[:2](x)
        found.append(y.is_contiguous(memory_format=torch.channels_last))
        return y.sum()

    Population(plans)(first_convolution, torch.zeros(2, 5, 64))
    assert found == [True, True]
