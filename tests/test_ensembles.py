"""Ensembles: their density is the average of their members', by shares; and they know who has not seen a fold."""

import pytest
import reference
import torch
from conftest import make_plan

from fewpairs.plans.classes import ClassCost, ClassEnsemble, ClassPlan, ClassPotential
from fewpairs.plans.ensemble import IGNORES_X, LINEAR, EnsemblePlan, Part
from fewpairs.plans.mixture import MixturePlan

SHARES = (0.5, 0.2, 0.3)


def alone_in_parts(plans: list[MixturePlan]) -> EnsemblePlan:
    """An ensemble in which every part has a single member."""
    parts = [Part(f"part {number}", [plan]) for number, plan in enumerate(plans)]
    return EnsemblePlan(parts, torch.tensor(SHARES, dtype=torch.float64))


@pytest.fixture
def ensemble(covariance: str) -> EnsemblePlan:
    return alone_in_parts([make_plan(covariance=covariance, n_atoms=3 + seed, seed=seed) for seed in range(3)])


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
    conditional = alone_in_parts(plans)(torch.ones(1, 2).double())
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
    alone = EnsemblePlan(ensemble.parts, torch.tensor([0.0, 1.0, 0.0]).double())
    member = ensemble.members[1]
    torch.testing.assert_close(alone.log_prob(x, y), member.log_prob(x, y), atol=1e-12, rtol=0)
    torch.testing.assert_close(alone(x).mean, member(x).mean, atol=1e-12, rtol=0)
    levels = torch.tensor([0.1, 0.9]).double()
    torch.testing.assert_close(alone(x).icdf(levels), member(x).icdf(levels), atol=1e-9, rtol=0)


N_FOLDS = 3


@pytest.fixture
def in_folds(covariance: str) -> EnsemblePlan:
    """One part for everybody, and two with a member for each of three folds."""
    seeds = iter(range(100))

    def plans(n_members: int) -> list[MixturePlan]:
        return [make_plan(covariance=covariance, seed=next(seeds)) for _ in range(n_members)]

    parts = [Part(IGNORES_X, plans(1)), Part(LINEAR, plans(N_FOLDS)), Part("candidate 0", plans(N_FOLDS))]
    return EnsemblePlan(parts, torch.tensor(SHARES, dtype=torch.float64))


def test_members_of_a_part_share_alike(in_folds: EnsemblePlan) -> None:
    shares = in_folds.member_shares
    assert len(shares) == len(in_folds.members) == 1 + 2 * N_FOLDS
    assert shares.sum().item() == pytest.approx(1)
    torch.testing.assert_close(shares, torch.tensor([0.5, *[0.2 / 3] * 3, *[0.3 / 3] * 3]).double())


@pytest.mark.parametrize("fold", range(N_FOLDS))
def test_without_a_fold_it_is_the_average_of_those_that_have_not_seen_it(
    fold: int, in_folds: EnsemblePlan, generator: torch.Generator
) -> None:
    x, y = torch.randn(2, 20, 2, dtype=torch.float64, generator=generator)
    unseen = in_folds.without(fold)
    for_all, linear, candidate = (list(part) for part in in_folds.parts)
    densities = [
        reference.conditional(member, x).log_prob(y).exp() for member in (*for_all, linear[fold], candidate[fold])
    ]
    expected = sum(share * density for share, density in zip(SHARES, densities, strict=True)).log()
    torch.testing.assert_close(unseen.log_prob(x, y), expected, atol=1e-10, rtol=0)
    assert unseen.member_shares.tolist() == pytest.approx(SHARES)
    assert [part.name for part in unseen.parts] == [part.name for part in in_folds.parts]
    assert len(in_folds.members) == 1 + 2 * N_FOLDS


def test_parts_are_found_by_their_names(in_folds: EnsemblePlan) -> None:
    assert list(in_folds.part(LINEAR)) == in_folds.members[1:4] and len(in_folds.part(LINEAR)) == N_FOLDS
    assert in_folds.share(LINEAR) == pytest.approx(0.2)
    assert in_folds.part("candidate 1") is None and in_folds.share("candidate 1") == 0


def test_by_parts_it_is_the_same_distribution(in_folds: EnsemblePlan, generator: torch.Generator) -> None:
    x, y = torch.randn(2, 20, 2, dtype=torch.float64, generator=generator)
    of_parts = in_folds.conditional_of_parts(x)
    torch.testing.assert_close(of_parts.log_prob(y), in_folds.log_prob(x, y), atol=1e-10, rtol=0)
    for number, part in enumerate(in_folds.parts):
        densities = torch.stack([member.log_prob(x, y).exp() for member in part])
        torch.testing.assert_close(of_parts.log_probs(y)[..., number], densities.mean(0).log(), atol=1e-10, rtol=0)


def test_an_ensemble_of_the_same_config_takes_the_same_tensors(
    in_folds: EnsemblePlan, generator: torch.Generator
) -> None:
    again = EnsemblePlan.from_config(in_folds.config).double()
    again.load_state_dict(in_folds.state_dict())
    x, y = torch.randn(2, 10, 2, dtype=torch.float64, generator=generator)
    assert torch.equal(again.log_prob(x, y), in_folds.log_prob(x, y))
    assert [part.name for part in again.parts] == [part.name for part in in_folds.parts]


def test_classes_have_parts_as_well(generator: torch.Generator) -> None:
    def plan() -> ClassPlan:
        return ClassPlan(ClassCost(torch.nn.Linear(2, 4)), ClassPotential(torch.randn(4, generator=generator))).double()

    parts = [Part(IGNORES_X, [plan()]), Part("candidate 0", [plan() for _ in range(N_FOLDS)])]
    ensemble = ClassEnsemble(parts, torch.tensor([0.4, 0.6], dtype=torch.float64))
    x = torch.randn(10, 2, dtype=torch.float64, generator=generator)
    of_all, of_folds = parts[0].members[0], parts[1].members
    everybody = 0.4 * of_all.log_probs(x).exp() + sum(0.2 * member.log_probs(x).exp() for member in of_folds)
    torch.testing.assert_close(ensemble.log_probs(x).exp(), everybody, atol=1e-12, rtol=0)
    unseen = 0.4 * of_all.log_probs(x).exp() + 0.6 * of_folds[1].log_probs(x).exp()
    torch.testing.assert_close(ensemble.without(1).log_probs(x).exp(), unseen, atol=1e-12, rtol=0)
