"""Energies and corrections against quadrature and loops; the gradient of the paper's surrogate against that of its loss."""

import copy
import dataclasses
import math
from typing import ClassVar

import pytest
import reference
import torch
from conftest import make_plan
from fewpairs.energies.learning import (
    ANCHOR,
    LOOK_AHEAD,
    N_AVERAGED,
    Contrast,
    Correction,
    Optimizer,
    draw_afresh,
    draw_negatives,
)
from reference import grid

from fewpairs.data.samples import Samples
from fewpairs.energies.energy import (
    CorrectedPlan,
    Energy,
    InformedCost,
    MapCost,
    NeuralCost,
    NeuralPotential,
    hear_opinions,
    n_opinions,
    normalise_spectrally,
    refuse_unfit_energy,
)
from fewpairs.energies.samplers import Chains, Langevin
from fewpairs.plans.mixture import EnsemblePlan

RADIUS, POINTS = 12.0, 4001  # of quadratures in one dimension; the plans are within ±6


def make_energy(*, dim_x: int = 2, dim_y: int = 1, seed: int = 0, n_opinions: int = 0, **options) -> Energy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shape = {"dim_x": dim_x, "dim_y": dim_y, "hidden": (8,), "activation": "tanh"}
        cost = InformedCost(**shape, n_opinions=n_opinions) if n_opinions else NeuralCost(**shape)
        if n_opinions:
            cost.linear.weight.data.normal_(std=0.3)
        energy = Energy(cost, NeuralPotential(dim_y=dim_y, hidden=(8,), activation="tanh"), **options).double()
        for parameter in energy.parameters():
            parameter.data.mul_(2.0)
    return energy


def make_base(seed: int = 0) -> EnsemblePlan:
    plans = [make_plan(dim_y=1, seed=seed), make_plan(dim_y=1, seed=seed + 1)]
    return EnsemblePlan(plans, torch.tensor([0.3, 0.7], dtype=torch.float64)).requires_grad_(False)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


def test_an_energy_is_cost_less_potential_over_epsilon() -> None:
    energy, x, y = make_energy(epsilon=0.5), draw(5, 2), draw(5, 1, seed=1)
    assert torch.allclose(energy(x, y), (energy.cost(x, y) - energy.potential(y)) / 0.5)
    assert torch.allclose(energy(x, y), energy.costs(x, y) - energy.potentials(y))


def test_a_confinement_is_a_gaussian_factor() -> None:
    free, x, y = make_energy(), draw(5, 2), draw(5, 1, seed=1)
    confined = Energy(free.cost, free.potential, confinement=0.7)
    gaussian = torch.distributions.Normal(0.0, 0.7).log_prob(y).squeeze(-1) + math.log(0.7 * math.sqrt(2 * math.pi))
    assert torch.allclose(confined(x, y), free(x, y) - gaussian)


def test_a_bound_holds_and_leaves_small_energies_alone() -> None:
    free, x, y = make_energy(), draw(200, 2), 5 * draw(200, 1, seed=1)
    bounded = Energy(free.cost, free.potential, bound=0.5)
    assert float(bounded(x, y).abs().max().detach()) <= 0.5
    wide = Energy(free.cost, free.potential, bound=1e4)
    assert torch.allclose(wide(x, y), free(x, y), atol=1e-6)  # tanh(u/b) b = u − u³/3b² …
    bounded.strength.fill_(0.0)
    assert float(bounded(x, y).abs().max().detach()) == 0


def test_energies_of_many_are_energies_one_by_one() -> None:
    energy, x, y = make_energy(), draw(3, 2), draw(4, 1, seed=1)
    between, draws = energy.between(x, y), draw(6, 3, 1, seed=2)
    of_draws = energy.of_draws(x, draws)
    for q in range(3):
        for r in range(4):
            assert float(between[q, r]) == pytest.approx(float(energy(x[q : q + 1], y[r : r + 1])))
        for n in range(6):
            assert float(of_draws[n, q]) == pytest.approx(float(energy(x[q : q + 1], draws[n, q : q + 1])))


def test_an_energy_at_x_is_the_energy() -> None:
    energy, x, y = make_energy(bound=1.0), draw(5, 2), draw(5, 1, seed=1)
    assert torch.equal(energy.prepared(y, energy.prepare(x)), energy(x, y))
    asked = []

    class Map(torch.nn.Module):
        def forward(self, x):
            asked.append(len(x))
            return x.sum(-1, keepdim=True)

    of_map = Energy(MapCost(Map()), energy.potential, epsilon=0.5)
    known = of_map.prepare(x)
    assert torch.equal(of_map.prepared(y, known), of_map.prepared(y, known))
    assert asked == [5]  # once for all y's
    assert torch.allclose(of_map.prepared(y, known), of_map(x, y))


def test_images_reach_their_networks_in_shape() -> None:
    shapes = {"x": (), "y": ()}

    class Map(torch.nn.Module):
        def forward(self, x):
            shapes["x"] = tuple(x.shape[1:])
            return x.mean(1, keepdim=True)

    class Potential(torch.nn.Module):
        def forward(self, y):
            shapes["y"] = tuple(y.shape[1:])
            return y.sum((1, 2, 3))

    energy = Energy(MapCost(Map()), Potential(), x_shape=(3, 4, 5), y_shape=(1, 4, 5))
    x, y = draw(2, 60), draw(2, 20, seed=1)
    by_hand = (x.view(2, 3, 20).mean(1) - y).square().mean(1) - y.sum(1)
    assert torch.allclose(energy(x, y), by_hand)
    assert shapes == {"x": (3, 4, 5), "y": (1, 4, 5)}


def test_spectral_norm_holds_the_slope_of_every_layer() -> None:
    torch.manual_seed(0)  # of some draws the two largest singular values are so close that 50 steps do not part them
    network = normalise_spectrally(NeuralCost(dim_x=2, dim_y=2, hidden=(16,)))
    network.train()
    for _ in range(50):  # each pass is a step of the power method that it is made of
        network(torch.randn(4, 2), torch.randn(4, 2))
    for layer in network.network:
        if isinstance(layer, torch.nn.Linear):
            assert float(torch.linalg.matrix_norm(layer.weight.detach(), 2)) == pytest.approx(1.0, abs=1e-3)


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
    heard = hear_opinions(base.conditional(x), y)
    assert heard.shape == (4, 3, n_opinions(base))
    expected = torch.stack([torch.stack([opinions_of(base, x[q], y[n, q]) for q in range(3)]) for n in range(4)])
    torch.testing.assert_close(heard, expected)


def test_networks_see_noise_and_the_base_does_not() -> None:
    base, x, y = make_base(), draw(3, 2), draw(4, 3, 1, seed=1)
    energy = make_energy(bound=3.0, n_opinions=n_opinions(base))
    found = CorrectedPlan(base, energy).energies(x, y, noise=draw(3, 2, seed=2))
    expected = energy.of_draws(x + draw(3, 2, seed=2), y, hear_opinions(base.conditional(x), y))
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
        opinions = [hear_opinions(base.conditional(row[None]), points[:, None])[:, 0]]
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
        found, error = CorrectedPlan(base, energy).log_ratio(x, y, 4000, torch.Generator().manual_seed(0))
        found = base.log_prob(x, y) + found
    expected = truth[range(6), [1900, 1950, 2000, 2050, 2100, 2150]]
    assert float(error.max()) < 0.1
    assert bool(((found - expected).abs() < 4 * error).all())
    assert bool(((found - expected).abs() > 0.01 * error).any())


def test_draws_of_a_corrected_plan_are_exact(energy: Energy) -> None:
    """Kolmogorov's distance to the distribution by quadrature; 1.95/√n is exceeded once in a thousand times."""
    base, x, n = make_base(), draw(3, 2, seed=3), 20_000
    points, truth, volume = corrected_on_grid(base, energy, x)
    with torch.no_grad():
        drawn = CorrectedPlan(base, energy).sample(x, n, torch.Generator().manual_seed(0))
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
        found, error = CorrectedPlan(base, energy).log_ratio(x, y, 10, torch.Generator().manual_seed(0))
    assert float(found.abs().max()) == 0
    assert float(error.abs().max()) == 0


def keep_gradient(optimizer: Optimizer, kept: dict) -> Optimizer:
    """The optimizer, taking no step but keeping the loss that it is handed."""
    optimizer = copy.copy(optimizer)
    optimizer.start = lambda energy: lambda loss: kept.update(loss=loss)  # type: ignore[method-assign]
    return optimizer


OPTIMIZER = Optimizer(learning_rate=1e-3, potential_learning_rate=1e-3, betas=(0.9, 0.999), max_grad_norm=None)


class Exact(Langevin):
    """In place of chains: y's of p(y|x) itself, read off a grid."""

    def run(self, energy, y, generator=None, *, given=(), recorder=None):
        points, _ = grid(1, 5.0, 2001)
        with torch.no_grad():
            log_density = torch.stack([-energy(point.expand(len(y), -1), *given) for point in points], dim=1)
            chosen = torch.multinomial(log_density.softmax(1), 1).squeeze(1)
        return Chains(points[chosen], y.new_zeros(len(y)), 1.0, 0.0, self.step_size)


@pytest.mark.parametrize("objective", ["inverse_eot", "supervised", "transport"])
def test_the_surrogate_has_the_gradient_of_the_loss(objective: str) -> None:
    """∂L = ∂ mean c(pairs) − ∂ mean f(target) + ∂ mean log Z(source), log Z by quadrature. Negatives are drawn, so gradients
    agree within their noise: many rows, and a cosine near one. Under transport log Z teaches the potential alone."""
    torch.manual_seed(0)
    energy = make_energy(confinement=0.7)
    n = 6000
    x, source = draw(50, 2).repeat(n // 50, 1), draw(40, 2, seed=5).repeat(n // 40, 1)
    samples = Samples(x, draw(50, 1, seed=1).repeat(n // 50, 1), source, draw(50, 1, seed=2).repeat(n // 50, 1))
    kept: dict = {}
    lesson = Contrast(
        energy=energy,
        samples=samples,
        x_judge=x[:0],
        y_judge=x[:0, :1],
        objective=objective,
        sampler=Exact(),
        sampling_steps=1,
        start_std=1.0,
        replay=0.5,
        buffer_size=n,
        smoothing=0.0,
        energy_penalty=0.0,
        batch_size=n,
        optimizer=keep_gradient(OPTIMIZER, kept),
    )
    lesson.step(next(lesson.batches()))
    parameters = list(energy.parameters())
    found = torch.cat(
        [g.flatten() for g in torch.autograd.grad(kept["loss"], parameters, allow_unused=True) if g is not None]
    )
    points, volume = grid(1, 5.0, 2001)
    of = samples.pairs_x[:50] if objective == "supervised" else source[:40]
    log_z = (torch.logsumexp(-energy.between(of, points), dim=1) + math.log(volume)).mean()
    of_pairs, of_target = (
        energy.costs(samples.pairs_x, samples.pairs_y).mean(),
        energy.potentials(samples.target).mean(),
    )
    if objective == "supervised":
        of_target = energy.potentials(samples.pairs_y).mean()
    of_cost = of_pairs if objective == "transport" else of_pairs + log_z
    exact = torch.cat(
        [
            torch.autograd.grad(loss, parameter, retain_graph=True)[0].flatten()
            for loss, part in ((of_cost, energy.cost), (log_z - of_target, energy.potential))
            for parameter in part.parameters()
        ]
    )
    assert float(torch.cosine_similarity(found, exact, dim=0)) > 0.99
    assert float(found.norm() / exact.norm()) == pytest.approx(1.0, abs=0.1)


class Told(Langevin):
    """In place of chains: it notes at which x's and from where they would begin, and moves each y to 10 times its x."""

    seen: ClassVar[list] = []

    def run(self, energy, y, generator=None, *, given=(), recorder=None):
        self.seen.append((given[0], y))
        return Chains(10 * given[0][:, :1], y.new_zeros(len(y)), 1.0, 0.0, self.step_size)


def contrast(**settings) -> Contrast:
    """A lesson on 50 source rows that are their own numbers, in hands of 20."""
    rows = torch.arange(1.0, 51.0).unsqueeze(1).double()
    Told.seen.clear()
    defaults = {
        "energy": make_energy(dim_x=1),
        "samples": Samples(rows[:30], rows[:30], rows, rows),
        "x_judge": rows[:0],
        "y_judge": rows[:0],
        "objective": "inverse_eot",
        "sampler": Told(),
        "sampling_steps": 1,
        "start_std": 0.0,
        "replay": 1.0,
        "buffer_size": 50,
        "smoothing": 0.0,
        "energy_penalty": 0.0,
        "batch_size": 20,
        "optimizer": OPTIMIZER,
    }
    return Contrast(**{**defaults, **settings})


def test_chains_go_on_where_that_of_the_same_x_was() -> None:
    lesson, met = contrast(), set()
    batches = lesson.batches()
    for _ in range(10):
        lesson.step(next(batches))
        x, start = (rows.flatten().tolist() for rows in Told.seen[-1])
        assert start == [10 * one if one in met else 0.0 for one in x]
        met |= set(x)
    assert len(met) == 50
    # 2 hands and a half deal every x once: they were moved in one of the last five steps
    assert 0 < lesson.buffer_age() < 4


def test_smoothing_moves_the_xs_of_chains() -> None:
    """By a Gaussian of the spread that is asked for; four standard errors of a spread of 200 rows."""
    lesson = contrast(smoothing=0.1)
    batches = lesson.batches()
    for _ in range(10):
        lesson.step(next(batches))
    noise = torch.cat([x - x.round() for x, _ in Told.seen])  # rows are whole numbers, five spreads apart at least
    assert float(noise.std()) == pytest.approx(0.1, rel=4 / math.sqrt(2 * 200))


def test_the_gap_is_energy_of_chains_less_that_of_pairs_over_the_last_steps() -> None:
    energy = make_energy(dim_x=1)
    lesson = contrast(energy=energy, optimizer=keep_gradient(OPTIMIZER, {}))
    batches, gaps = lesson.batches(), []
    for _ in range(N_AVERAGED + 5):
        hand = next(batches)
        told = lesson.step(hand)["energy_gap"]
        with torch.no_grad():
            gaps.append(energy(hand.source, 10 * hand.source).mean() - energy(hand.pairs_x, hand.pairs_y).mean())
    assert float(told) == pytest.approx(float(torch.stack(gaps[5:]).mean()))


class Restless(torch.nn.Module):
    """A cost with layers that draw and learn in passing."""

    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        self.network = torch.nn.Sequential(*layers)

    def forward(self, x, y):
        return self.network(torch.cat([x, y], 1)).squeeze(-1)


def test_chains_and_checks_run_on_networks_at_rest() -> None:
    """Energies that are told are those in use, statistics stay as they were, and training goes on as it was."""
    torch.manual_seed(0)
    energy, x = Energy(Restless(), make_energy().potential, confinement=1.0).double().train(), draw(40, 2)
    before = copy.deepcopy(energy.state_dict())
    refuse_unfit_energy(energy, x[:2], draw(2, 1))
    chains = draw_negatives(energy, x, Langevin(n_steps=3), draw(40, 1, seed=1))
    assert all(torch.equal(tensor, before[name]) for name, tensor in energy.state_dict().items())
    assert all(module.training for module in energy.modules()) and all(p.requires_grad for p in energy.parameters())
    assert torch.allclose(chains.energy, energy.eval()(x, chains.y))


def test_several_chains_for_an_x_know_it() -> None:
    """At next to no temperature they come to the least of (x − y)²."""

    class Difference(torch.nn.Module):
        def forward(self, x, y):
            return (x[:, :1] - y).square().sum(-1)

    cold, x = Langevin(n_steps=100, step_size=1e-8, temperature=1e-8, target=None), draw(5, 2)
    drawn = draw_afresh(Energy(Difference(), NoPotential()), x, 3, 1, cold, 1.0)
    assert torch.allclose(drawn, x[:, :1].expand(3, 5, 1), atol=1e-3)


class NoPotential(torch.nn.Module):
    def forward(self, y):
        return 0 * y.sum(-1)


def test_a_step_size_that_rises_and_falls_does_so_within_its_time() -> None:
    """A thousand steps and no time at all: after one step the step size is at its end."""
    sizes = []
    for seconds in (None, 1e-9):
        energy = make_energy(seed=1)
        descend = dataclasses.replace(OPTIMIZER, one_cycle=1000, seconds=seconds).start(energy)
        for _ in range(2):
            before = torch.cat([p.detach().flatten().clone() for p in energy.parameters()])
            descend(energy(draw(5, 2), draw(5, 1)).mean())
        sizes.append(float((torch.cat([p.detach().flatten() for p in energy.parameters()]) - before).abs().max()))
    assert sizes[1] < 1e-3 * sizes[0]


def test_the_loss_of_a_correction_is_the_likelihood_by_quadrature() -> None:
    """Less the base's own density of the pairs, which no step changes."""
    torch.manual_seed(0)
    base, energy = make_base(), make_energy(bound=2.0)
    unpaired = {"unpaired_x": draw(6, 2, seed=2), "unpaired_y": draw(7, 1, seed=3)}
    samples = Samples.gather(draw(8, 2), draw(8, 1, seed=1), **unpaired)
    kept: dict = {}
    lesson = Correction(
        energy=energy,
        samples=samples,
        folds=torch.ones(8),
        bases=[base, base],
        objective="marginal",
        unpaired_weight=2.0,
        n_draws=20_000,
        smoothing=0.0,
        batch_size=100,
        optimizer=keep_gradient(OPTIMIZER, kept),
    )
    lesson.step(next(lesson.batches()))

    def log_prob_between(x, y):
        points, volume = grid(1, RADIUS, POINTS)
        log_z = torch.logsumexp(base.log_prob_between(x, points) - energy.between(x, points), dim=1) + math.log(volume)
        return base.log_prob_between(x, y) - energy.between(x, y) - log_z.unsqueeze(-1), log_z

    of_pairs, log_z = log_prob_between(samples.pairs_x, samples.pairs_y)
    of_pairs = of_pairs.diagonal() - base.log_prob(samples.pairs_x, samples.pairs_y)
    of_target = torch.logsumexp(log_prob_between(samples.source, samples.target)[0], dim=0) - math.log(14)
    expected = -of_pairs.mean() - 2 * of_target.mean() + ANCHOR * log_z.square().mean()
    assert float(kept["loss"]) == pytest.approx(float(expected), abs=0.03)


class Marked:
    """In place of a base: its draws say whose they are, and at which x."""

    def __init__(self, fold):
        self.fold = fold

    def conditional(self, x):
        self.x = x
        return self

    def sample(self, shape):
        return (1000 * self.fold + self.x[:, :1]).expand(*shape, -1, -1)


def test_pairs_that_judge_teach_nothing_and_others_meet_a_base_that_has_not_seen_them() -> None:
    """Judges teach neither as pairs nor as points of source and target; every other row comes, with draws at its own x of the
    base of its own fold."""
    energy = make_energy(bound=2.0)
    x, y = torch.arange(10.0).unsqueeze(1).expand(-1, 2).double(), torch.arange(10.0).unsqueeze(1).double()
    samples = Samples(x, y, torch.cat([x, x + 100]), torch.cat([y, y + 100]))
    settings = {"objective": "marginal", "unpaired_weight": 1.0, "n_draws": 8, "smoothing": 0.0, "batch_size": 100}
    folds = torch.arange(10) % 3
    bases = [Marked(fold) for fold in range(3)]
    lesson = Correction(energy=energy, samples=samples, folds=folds, bases=bases, **settings, optimizer=OPTIMIZER)
    judges = {0.0, 3.0, 6.0, 9.0}
    batches = lesson.batches()
    for number in range(3 * LOOK_AHEAD):  # drawn ahead, and again
        task = next(batches)
        fold, hand = task.fold, task.hand
        assert fold == 1 + number % 2
        for draws, rows in ((task.draws_of_pairs, hand.pairs_x), (task.draws, hand.source)):
            assert torch.equal(draws, (1000 * fold + rows[:, :1]).expand(8, -1, -1))
        assert set(hand.pairs_y.flatten().tolist()) == {float(one) for one in range(10) if one % 3 == fold}
        for rows in (hand.source[:, 0], hand.target.flatten()):
            assert set(rows.tolist()) == ({float(one) for one in range(10)} - judges) | {
                100.0 + one for one in range(10)
            }


def test_a_correction_that_brings_nothing_is_not_kept() -> None:
    """Pairs drawn from the base itself: any energy makes them less probable, and no part of it stays."""
    torch.manual_seed(0)
    base, energy = make_base(), make_energy(bound=2.0)
    x = draw(400, 2)
    samples = Samples(x, base.conditional(x).sample((1,))[0], x, draw(10, 1))
    options = {"objective": "supervised", "unpaired_weight": 1.0, "n_draws": 8, "smoothing": 0.0}
    settings = {**options, "batch_size": 10, "optimizer": OPTIMIZER}
    lesson = Correction(energy=energy, samples=samples, folds=torch.zeros(400), bases=[base], **settings)
    strength, gain, error = lesson.weigh((0.5, 1.0))
    assert strength == 0
    assert gain < error
    assert float(energy.strength) == 1  # what is kept is the caller's business
    reversed_ = Energy(Negative(energy.cost), Negative(energy.potential), bound=2.0)
    plan = CorrectedPlan(base, reversed_)
    drawn = Samples(x, plan.sample(x, 1, torch.Generator().manual_seed(0))[0].detach(), x, draw(10, 1))
    lesson = Correction(energy=reversed_, samples=drawn, folds=torch.zeros(400), bases=[base], **settings)
    strength, gain, error = lesson.weigh((0.5, 1.0))
    assert strength == 1
    assert gain > error


class Negative(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *arguments):
        return -self.inner(*arguments)
