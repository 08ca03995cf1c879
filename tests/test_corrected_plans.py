"""Corrected plans: densities, draws and marginals against quadrature, and what networks hear of their base."""

import math

import pytest
import reference
import torch
from reference import grid
from small_energies import POINTS, RADIUS, draw, make_base, make_energy

from fewpairs.energies.corrected import CorrectedPlan, hear_opinions, n_opinions
from fewpairs.energies.energy import Energy, InformedCost
from fewpairs.plans.ensemble import EnsemblePlan


def test_few_draws_do_not_make_the_normaliser_small() -> None:
    """The mean of 20,000 estimates of log Z by 16 draws each, to three standard errors; logarithms of plain means are too low by
    many of them."""
    base, energy, x = make_base(), make_energy(bound=3.0), draw(1, 2)
    plan, generator = CorrectedPlan(base, energy), torch.Generator().manual_seed(0)
    points, volume = grid(1, RADIUS, POINTS)
    with torch.no_grad():
        log_joint = base.log_prob_between(x, points) - energy.between(x, points)
        exact = torch.logsumexp(log_joint, dim=1) + math.log(volume)
        rows = x.expand(20_000, -1)
        draws = base.conditional(rows).sample((16,), generator=generator)
        found, plain = plan.log_partition(rows, draws), (-energy.of_draws(rows, draws)).logsumexp(0) - math.log(16)
    error = float(found.std()) / math.sqrt(len(rows))
    assert abs(float(found.mean() - exact)) < 3 * error + 1e-3  # what is left is of second order in 1/16
    assert float(exact - plain.mean()) > 10 * error


def opinions_of(base: EnsemblePlan, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What a base thinks of one y at one x, from its parts as plain mixtures of Gaussians."""
    log_probs, near = [], 0.0
    for plan, share in zip(base.members, base.shares, strict=True):
        mixture, n_atoms = reference.conditional(plan, x[None]), len(plan.potential.b)
        log_probs.append(mixture.log_prob(y[None])[0])
        weights = mixture.mixture_distribution.probs[0].unflatten(0, (-1, n_atoms))
        means = mixture.component_distribution.mean[0].unflatten(0, (-1, n_atoms))
        for atom in range(n_atoms):
            weight = weights[:, atom].sum()
            centre = (weights[:, atom, None] * means[:, atom]).sum(0) / weight
            near = near + share * weight * torch.exp(-((y - centre).square().mean() / 0.7**2) / 2)
    log_prob = sum(share * each.exp() for share, each in zip(base.shares, log_probs, strict=True)).log()
    parts = [(each - log_prob).clamp(-5, 5) / 2 for each in log_probs]
    return torch.stack([log_prob.clamp(-12, 12) / 3, *parts, near.log().clamp(min=-9) / 3])


def test_a_correction_hears_what_its_base_thinks() -> None:
    base, x, y = make_base(), draw(3, 2), 2 * draw(4, 3, 1, seed=1)
    heard = hear_opinions(base.conditional_of_parts(x), y)
    assert heard.shape == (4, 3, n_opinions(base))
    expected = torch.stack([torch.stack([opinions_of(base, x[q], y[n, q]) for q in range(3)]) for n in range(4)])
    torch.testing.assert_close(heard, expected)


def test_networks_see_noise_and_the_base_does_not() -> None:
    base, x, y = make_base(), draw(3, 2), draw(4, 3, 1, seed=1)
    energy = make_energy(bound=3.0, n_opinions=n_opinions(base))
    found = CorrectedPlan(base, energy).energies(x, y, noise=draw(3, 2, seed=2))
    expected = energy.of_draws(x + draw(3, 2, seed=2), y, hear_opinions(base.conditional_of_parts(x), y))
    torch.testing.assert_close(found, expected)


@pytest.fixture(params=["told nothing", "informed"])
def energy(request) -> Energy:
    """With a bound of 3, as corrections have it, and as they do or do not hear what the base thinks."""
    return make_energy(bound=3.0, n_opinions=n_opinions(make_base()) if request.param == "informed" else 0)


def corrected_on_grid(base: EnsemblePlan, energy: Energy, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The grid, and b(y|x) exp(−u) / Z on it for each x, normalised by quadrature."""
    points, volume = grid(1, RADIUS, POINTS)
    of_energy = []
    for row in x:
        opinions = [hear_opinions(base.conditional_of_parts(row[None]), points[:, None])[:, 0]]
        is_informed = isinstance(energy.cost, InformedCost)
        of_energy.append(energy(row.expand(len(points), -1), points, *(opinions if is_informed else [])))
    log_joint = base.log_prob_between(x, points) - torch.stack(of_energy)
    log_z = torch.logsumexp(log_joint, dim=1, keepdim=True) + math.log(volume)
    return points, log_joint - log_z, volume


def test_densities_of_a_corrected_plan_are_those_of_quadrature(energy: Energy) -> None:
    """log Z comes from draws: within four of the standard errors that it tells, of which most are then real."""
    base, x = make_base(), draw(6, 2, seed=3)
    points, truth, _ = corrected_on_grid(base, energy, x)
    y = points[[1900, 1950, 2000, 2050, 2100, 2150]]
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        found, error = CorrectedPlan(base, energy)(x, 4000, generator).estimate_log_ratio(y)
        found = base.log_prob(x, y) + found
        generator.manual_seed(0)
        assert torch.equal(CorrectedPlan(base, energy)(x, 4000, generator).log_prob(y), found)
    expected = truth[range(6), [1900, 1950, 2000, 2050, 2100, 2150]]
    assert float(error.max()) < 0.1
    assert bool(((found - expected).abs() < 4 * error).all())
    assert bool(((found - expected).abs() > 0.01 * error).any())


def test_draws_of_a_corrected_plan_are_exact(energy: Energy) -> None:
    """Kolmogorov's distance to the distribution by quadrature; 1.95/√n is exceeded once in a thousand times."""
    base, x, n = make_base(), draw(3, 2, seed=3), 20_000
    points, truth, volume = corrected_on_grid(base, energy, x)
    with torch.no_grad():
        drawn = CorrectedPlan(base, energy)(x, generator=torch.Generator().manual_seed(0)).sample((n,))
    assert drawn.shape == (n, 3, 1)
    for row in range(3):
        at = torch.searchsorted(points.squeeze(-1), drawn[:, row, 0].sort().values).clamp(max=POINTS - 1)
        cdf = (truth[row].exp() * volume).cumsum(0).detach()[at]
        distance = (cdf - torch.arange(n) / n).abs().max()
        assert float(distance) < 1.95 / math.sqrt(n) + volume  # and a cell of the grid
        of_base = (base.log_prob_between(x, points)[row].exp() * volume).cumsum(0)[at]
        assert float((of_base - torch.arange(n) / n).abs().max()) > 0.02  # the correction is no trifle


def test_the_marginal_of_a_corrected_plan_is_the_mean_of_its_conditionals(energy: Energy) -> None:
    base, x = make_base(), draw(4, 2, seed=3)
    points, truth, _ = corrected_on_grid(base, energy, x)
    draws = base.conditional(x).sample((20_000,), generator=torch.Generator().manual_seed(0))
    found = CorrectedPlan(base, energy).log_marginal(points[1800:2200:50], x, draws)
    expected = torch.logsumexp(truth[:, 1800:2200:50], dim=0) - math.log(4)
    assert torch.allclose(
        found, expected, atol=0.04
    )  # four standard errors of log Z with so many draws, u being within ±3


def test_a_correction_without_a_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a bound"):
        CorrectedPlan(make_base(), make_energy())


def test_no_strength_is_no_correction() -> None:
    base, energy, x, y = make_base(), make_energy(bound=2.0), draw(5, 2), draw(5, 1, seed=1)
    energy.strength.fill_(0.0)
    with torch.no_grad():
        found, error = CorrectedPlan(base, energy)(x, 10, torch.Generator().manual_seed(0)).estimate_log_ratio(y)
    assert float(found.abs().max()) == 0
    assert float(error.abs().max()) == 0
