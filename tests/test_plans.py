"""The laws of mixture plans, against quadrature, the paper's mixture written out, and loops."""

from functools import partial

import pytest
import reference
import torch
from conftest import make_plan
from reference import tilt
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from fewpairs.plans import conditionals
from fewpairs.plans.mixture import MixturePlan
from fewpairs.plans.potentials import FullAtoms


@pytest.mark.parametrize("dim_y, n_points", [(1, 40_001), (2, 1201)])
def test_log_partition_is_the_integral(dim_y: int, n_points: int, covariance: str, generator: torch.Generator) -> None:
    plan = make_plan(dim_y=dim_y, covariance=covariance)
    x = torch.randn(3, 2, dtype=torch.float64, generator=generator)
    expected = reference.log_partition_on_grid(plan, x, radius=30, n_points=n_points)
    torch.testing.assert_close(plan.log_partition(x), expected, atol=1e-8, rtol=0)  # grid error below 1e-12


def test_density_is_the_papers_mixture(plan: MixturePlan, generator: torch.Generator) -> None:
    x, y = torch.randn(2, 50, 2, dtype=torch.float64, generator=generator)
    expected = reference.conditional(plan, x).log_prob(y)
    torch.testing.assert_close(-plan.energy(x, y) - plan.log_partition(x), expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(plan.log_prob(x, y), expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(plan.conditional(x).log_prob(y), expected, atol=1e-10, rtol=0)


def test_moments_and_marginals_are_the_papers_mixture(
    plan: MixturePlan, generator: torch.Generator, monkeypatch
) -> None:
    monkeypatch.setattr(conditionals, "BLOCK", 100)  # several blocks of rows
    x, y = torch.randn(2, 20, 2, dtype=torch.float64, generator=generator)
    conditional, expected = plan.conditional(x), reference.conditional(plan, x)
    torch.testing.assert_close(conditional.mean, expected.mean, atol=1e-10, rtol=0)
    torch.testing.assert_close(conditional.variance, expected.variance, atol=1e-10, rtol=0)
    components = expected.component_distribution
    stds = components.variance.sqrt()
    one_by_one = torch.special.ndtr((y[:, None] - components.mean) / stds)
    cdf = (expected.mixture_distribution.probs[..., None] * one_by_one).sum(1)
    torch.testing.assert_close(conditional.cdf(y), cdf, atol=1e-10, rtol=0)


def test_quantiles_undo_the_distribution_function(plan: MixturePlan, generator: torch.Generator) -> None:
    conditional = plan.conditional(torch.randn(20, 2, dtype=torch.float64, generator=generator))
    levels = torch.tensor([0.001, 0.3, 0.5, 0.99], dtype=torch.float64)
    reached = conditional.cdf(conditional.icdf(levels))
    torch.testing.assert_close(reached, levels[:, None, None].expand_as(reached), atol=1e-10, rtol=0)


def test_samples_follow_the_density(plan: MixturePlan, generator: torch.Generator) -> None:
    x = torch.randn(3, 2, dtype=torch.float64, generator=generator)
    conditional = plan.conditional(x)
    n_samples = 40_000
    draws = plan.sample(x, n_samples, generator)
    assert draws.shape == (n_samples, 3, 2)
    # Six numbers of each kind are compared: five standard errors leave a false alarm one chance in 10^5.
    error = (draws.mean(0) - conditional.mean).abs() / (conditional.variance / n_samples).sqrt()
    assert error.max() < 5
    uniform = conditional.cdf(draws)
    for level in (0.1, 0.5, 0.9):
        error = ((uniform < level).double().mean(0) - level).abs() / (level * (1 - level) / n_samples) ** 0.5
        assert error.max() < 5


def test_sampled_outputs_vary_together(covariance: str, generator: torch.Generator) -> None:
    """Covariances between outputs, which the marginals do not see."""
    plan = make_plan(covariance=covariance)
    x = torch.zeros(1, 2, dtype=torch.float64)
    expected = reference.conditional(plan, x)
    components = expected.component_distribution
    weights = expected.mixture_distribution.probs[0]
    centred = components.mean[0] - expected.mean[0]
    covariances = (
        weights[:, None, None] * (components.covariance_matrix[0] + centred[:, :, None] * centred[:, None])
    ).sum(0)
    drawn = torch.cov(plan.sample(x, 100_000, generator)[:, 0].T)
    torch.testing.assert_close(
        drawn, covariances, atol=0.05 * covariances.diagonal().max().item(), rtol=0
    )  # ~10 std. errors


def test_log_marginal_is_the_mean_of_conditionals(plan: MixturePlan, generator: torch.Generator) -> None:
    source, y = torch.randn(2, 17, 2, dtype=torch.float64, generator=generator)
    weight = torch.rand(17, dtype=torch.float64, generator=generator)
    weight[3] = 0
    densities = torch.stack([plan.log_prob(x.expand_as(y), y).exp() for x in source])
    torch.testing.assert_close(plan.log_marginal(y, source), densities.mean(0).log(), atol=1e-10, rtol=0)
    weighted = (weight[:, None] * densities).sum(0) / weight.sum()
    torch.testing.assert_close(plan.log_marginal(y, source, weight), weighted.log(), atol=1e-10, rtol=0)


def test_gradients_reach_every_parameter(plan: MixturePlan, generator: torch.Generator) -> None:
    source, y = torch.randn(2, 9, 2, dtype=torch.float64, generator=generator)
    names, parameters = zip(*plan.named_parameters(), strict=True)
    grads = torch.autograd.grad(plan.log_marginal(y, source).sum(), parameters)
    # Independent answer: the same sum over the written-out mixture, differentiated by autograd alone.
    log_probs = torch.stack([reference.conditional(plan, source).log_prob(row) for row in y])
    expected = torch.autograd.grad(torch.logsumexp(log_probs, dim=1).sum(), parameters)
    for name, grad, wanted in zip(names, grads, expected, strict=True):
        torch.testing.assert_close(grad, wanted, atol=1e-9, rtol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
        assert grad.abs().max() > 0


def test_negatives_give_the_gradient_of_log_partition(plan: MixturePlan, generator: torch.Generator) -> None:
    """∇ log Z(x) = E[−∇ energy(x, y)], y drawn from the plan: the surrogate's gradient nears the exact one as negatives grow."""
    x = torch.randn(5, 2, dtype=torch.float64, generator=generator)
    parameters = list(plan.parameters())
    exact = torch.cat([grad.flatten() for grad in torch.autograd.grad(plan.log_partition(x).mean(), parameters)])
    negatives = plan.sample(x, 20_000, generator)
    estimates = []
    for some in negatives.split(1000):  # twenty estimates tell the standard error of their mean
        surrogate = -plan.energy(x.expand(len(some), -1, -1), some).mean()
        estimates.append(torch.cat([grad.flatten() for grad in torch.autograd.grad(surrogate, parameters)]))
    estimates = torch.stack(estimates)
    error = (estimates.mean(0) - exact).abs() / (estimates.std(0) / 20**0.5 + 1e-12)
    assert error.max() < 6  # some seventy numbers, each a t-statistic with 19 degrees of freedom
    assert (estimates.mean(0) - exact).norm() < 0.1 * exact.norm()


def test_zero_slopes_ignore_x(covariance: str, generator: torch.Generator) -> None:
    plan = make_plan(covariance=covariance)
    with torch.no_grad():
        plan.cost.slope_net[-1].weight.zero_()
        plan.cost.slope_net[-1].bias.zero_()
    x, y = torch.randn(2, 30, 2, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(plan.log_prob(x, y), plan.potential(y), atol=1e-12, rtol=0)


def test_tilt_changes_nothing(plan: MixturePlan, generator: torch.Generator) -> None:
    x, y = torch.randn(2, 30, 2, dtype=torch.float64, generator=generator)
    tilted = tilt(plan, torch.tensor([0.7, -1.1], dtype=torch.float64))
    assert (tilted.cost(x, y) - plan.cost(x, y)).abs().max() > 0.1
    torch.testing.assert_close(tilted.log_prob(x, y), plan.log_prob(x, y), atol=1e-10, rtol=0)


def test_one_row_is_as_good_as_many(plan: MixturePlan) -> None:
    x, y = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    torch.testing.assert_close(plan.log_prob(x, y), plan.log_prob(x[None], y[None])[0])


def test_a_plan_of_the_same_config_takes_the_same_tensors(plan: MixturePlan, generator: torch.Generator) -> None:
    plan.potential.variance_floor.fill_(0.3)
    again = MixturePlan.from_config(**plan.config).double()
    again.load_state_dict(plan.state_dict())
    x, y = torch.randn(2, 10, 2, dtype=torch.float64, generator=generator)
    assert torch.equal(again.log_prob(x, y), plan.log_prob(x, y))


@pytest.mark.parametrize("n_atoms", [2, 5], ids=["fewer than outputs", "more"])
def test_full_atoms_are_gaussians_however_they_are_summed(n_atoms: int, generator: torch.Generator) -> None:
    """Few full atoms take another road through `products`; both must end at torch's own mixture."""
    dim = 3
    draw = partial(torch.randn, dtype=torch.float64, generator=generator)
    factor = draw(n_atoms, dim, dim)
    atoms = FullAtoms(draw(n_atoms).log_softmax(0), draw(n_atoms, dim), factor @ factor.mT + 0.1 * torch.eye(dim))
    rows = draw(7, dim)
    gaussians = MultivariateNormal(atoms.b, atoms.B)
    expected = MixtureSameFamily(Categorical(logits=atoms.log_w), gaussians).log_prob(rows)
    torch.testing.assert_close(atoms.log_density(rows), expected, atol=1e-10, rtol=0)
    # The tilt of a Gaussian by a slope is its moment generating function.
    moments = (rows @ atoms.b.mT) + torch.einsum("ri,nij,rj->rn", rows, atoms.B, rows) / 2
    torch.testing.assert_close(atoms.log_tilts(rows), torch.logsumexp(moments + atoms.log_w, -1), atol=1e-10, rtol=0)
