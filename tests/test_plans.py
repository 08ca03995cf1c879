"""The laws of mixture plans and their ensembles, against quadrature, the paper's mixture written out, and loops."""

from functools import partial

import pytest
import reference
import torch
from conftest import make_plan
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from fewpairs.plans import conditionals
from fewpairs.plans.mixture import EnsemblePlan, MixturePlan
from fewpairs.plans.potentials import FullAtoms


def tilt(plan: MixturePlan, t: torch.Tensor) -> MixturePlan:
    """The same plan in other clothes: a → a − t, b → b + Bt, log w → log w + bᵀt + ½ tᵀBt (`tests/test_objectives`)."""
    log_w, b, B = plan.potential.atoms()
    full = reference.full_covariances(plan)
    shift = full @ t
    tilted = make_plan(covariance="full" if B.dim() == 3 else "diagonal")
    tilted.load_state_dict(plan.state_dict())
    tilted.potential.set_atoms(log_w + b @ t + 0.5 * (shift @ t), b + shift, B)
    with torch.no_grad():
        shift = (t / plan.cost.log_scale.exp()).repeat(plan.cost.n_slopes)
        tilted.cost.slope_net[-1].bias[plan.cost.n_slopes :] -= shift
    return tilted


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


SHARES = (0.5, 0.2, 0.3)


@pytest.fixture
def ensemble(covariance: str) -> EnsemblePlan:
    plans = [make_plan(covariance=covariance, n_atoms=3 + seed, seed=seed) for seed in range(len(SHARES))]
    return EnsemblePlan(plans, torch.tensor(SHARES, dtype=torch.float64))


def shift_apart(ensemble: EnsemblePlan, distance: float) -> EnsemblePlan:
    """Moves the atoms of every member so far that a draw tells which member it came from."""
    for number, member in enumerate(ensemble.members):
        log_w, b, B = member.potential.atoms()
        member.potential.set_atoms(log_w, b + number * distance, B)
    return ensemble


def test_an_ensemble_averages_densities(ensemble: EnsemblePlan, generator: torch.Generator) -> None:
    x, y = torch.randn(2, 30, 2, dtype=torch.float64, generator=generator)
    densities = [reference.conditional(member, x).log_prob(y).exp() for member in ensemble.members]
    expected = sum(share * density for share, density in zip(SHARES, densities, strict=True)).log()
    torch.testing.assert_close(ensemble.log_prob(x, y), expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(ensemble(x).log_prob(y), expected, atol=1e-10, rtol=0)
    loc, scale = torch.tensor([3.0, -1.0]).double(), torch.tensor([0.1, 20.0]).double()
    torch.testing.assert_close(
        ensemble.conditional(x, loc, scale).log_prob(loc + scale * y), expected - scale.log().sum(), atol=1e-10, rtol=0
    )


def test_the_marginal_of_an_ensemble_is_the_mean_of_its_conditionals(
    ensemble: EnsemblePlan, generator: torch.Generator
) -> None:
    source, y = torch.randn(2, 17, 2, dtype=torch.float64, generator=generator)
    weight = torch.rand(17, dtype=torch.float64, generator=generator)
    densities = torch.stack([ensemble.log_prob(x.expand_as(y), y).exp() for x in source])
    expected = (weight[:, None] * densities).sum(0) / weight.sum()
    torch.testing.assert_close(ensemble.log_marginal(y, source, weight), expected.log(), atol=1e-10, rtol=0)


def test_moments_of_an_ensemble_are_those_of_its_density(covariance: str) -> None:
    """By quadrature, one output at a time: the trapezoid rule is exact to rounding here."""
    plans = [make_plan(dim_y=1, covariance=covariance, seed=seed) for seed in range(len(SHARES))]
    conditional = EnsemblePlan(plans, torch.tensor(SHARES, dtype=torch.float64))(torch.ones(1, 2).double())
    points, volume = reference.grid(1, 40.0, 20_001)
    share = conditional.log_prob(points[:, None])[:, 0].exp() * volume
    assert share.sum().item() == pytest.approx(1, abs=1e-10)
    mean = (share * points[:, 0]).sum()
    assert conditional.mean.item() == pytest.approx(mean.item(), abs=1e-8)
    variance = (share * (points[:, 0] - mean) ** 2).sum()
    assert conditional.variance.item() == pytest.approx(variance.item(), abs=1e-8)
    below = (share.cumsum(0) - share / 2)[::500]
    torch.testing.assert_close(
        conditional.cdf(points[::500, None])[:, 0, 0], below, atol=1e-6, rtol=0
    )  # h² of the grid


def test_quantiles_of_an_ensemble_undo_its_distribution_function(
    ensemble: EnsemblePlan, generator: torch.Generator
) -> None:
    conditional = shift_apart(ensemble, 4.0)(torch.randn(20, 2, dtype=torch.float64, generator=generator))
    levels = torch.tensor([0.001, 0.3, 0.5, 0.99], dtype=torch.float64)
    quantiles = conditional.icdf(levels)
    assert quantiles.shape == (4, 20, 2)
    reached = conditional.cdf(quantiles)
    torch.testing.assert_close(reached, levels[:, None, None].expand_as(reached), atol=1e-8, rtol=0)


def test_samples_of_an_ensemble_follow_its_density(ensemble: EnsemblePlan, generator: torch.Generator) -> None:
    x = torch.randn(3, 2, dtype=torch.float64, generator=generator)
    conditional, n_samples = ensemble(x), 40_000
    draws = ensemble.sample(x, n_samples, generator)
    assert draws.shape == (n_samples, 3, 2)
    # Six numbers of each kind are compared: five standard errors leave a false alarm one chance in 10^5.
    error = (draws.mean(0) - conditional.mean).abs() / (conditional.variance / n_samples).sqrt()
    assert error.max() < 5
    squares = (draws - conditional.mean) ** 2
    error = (squares.mean(0) - conditional.variance).abs() / (squares.std(0) / n_samples**0.5)
    assert error.max() < 5
    uniform = conditional.cdf(draws)
    for level in (0.1, 0.5, 0.9):
        error = ((uniform < level).double().mean(0) - level).abs() / (level * (1 - level) / n_samples) ** 0.5
        assert error.max() < 5


@pytest.mark.parametrize("n_samples, n_rows", [(1, 4000), (4000, 1), (40, 100)])
def test_every_draw_picks_a_member_by_its_share(
    n_samples: int, n_rows: int, ensemble: EnsemblePlan, generator: torch.Generator
) -> None:
    draws = shift_apart(ensemble, 1000.0).sample(torch.zeros(n_rows, 2).double(), n_samples, generator)
    picked = (draws / 1000).round()
    assert torch.equal(picked[..., 0], picked[..., 1])  # a draw is of one member, all its outputs
    frequency = torch.bincount(picked[..., 0].flatten().long(), minlength=3) / 4000
    assert (frequency - torch.tensor(SHARES)).abs().max() < 5 * (0.25 / 4000) ** 0.5


def test_draws_of_an_ensemble_are_independent(ensemble: EnsemblePlan, generator: torch.Generator) -> None:
    """Neither two rows of a draw nor two draws of a row tell anything about each other, member or value."""
    draws = ensemble.sample(torch.zeros(2, 2).double(), 20_000, generator)[..., 0]
    pairs = {"rows": draws.T, "draws": draws[:, 0].reshape(-1, 2).T}
    for rows in pairs.values():
        assert torch.corrcoef(rows)[0, 1].abs() < 5 / rows.shape[1] ** 0.5
    assert len(draws.unique()) == draws.numel()


def test_a_share_of_nothing_is_no_member(ensemble: EnsemblePlan, generator: torch.Generator) -> None:
    x, y = torch.randn(2, 10, 2, dtype=torch.float64, generator=generator)
    alone = EnsemblePlan(ensemble.members, torch.tensor([0.0, 1.0, 0.0]).double())
    member = ensemble.members[1]
    torch.testing.assert_close(alone.log_prob(x, y), member.log_prob(x, y), atol=1e-12, rtol=0)
    torch.testing.assert_close(alone(x).mean, member(x).mean, atol=1e-12, rtol=0)
    levels = torch.tensor([0.1, 0.9]).double()
    torch.testing.assert_close(alone(x).icdf(levels), member(x).icdf(levels), atol=1e-9, rtol=0)


def test_a_plan_of_the_same_shape_takes_the_same_tensors(plan: MixturePlan, generator: torch.Generator) -> None:
    plan.potential.variance_floor.fill_(0.3)
    again = MixturePlan.of_shape(**plan.shape()).double()
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
