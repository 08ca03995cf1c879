"""Langevin dynamics against closed forms and quadrature; the replay buffer against a dictionary."""

import math

import pytest
import torch

from fewpairs.energies.samplers import AdjustedLangevin, Langevin, ReplayBuffer, annealed_log_partition

ROWS = 20_000
WITHIN = 4 * math.sqrt(2 / ROWS)  # four standard errors of a variance, as a part of it


def gaussian(std: float):
    return lambda y: y.square().sum(-1) / (2 * std**2)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def start(dim: int = 1) -> torch.Tensor:
    return torch.zeros(ROWS, dim, dtype=torch.float64)


@pytest.mark.parametrize("step_size", [0.05, 0.5, 1.0])
def test_unadjusted_chains_have_the_variance_of_their_recursion(step_size: float) -> None:
    """y ← (1 − η/2s²) y + √η z comes to rest at the variance s² / (1 − η/4s²): with noise √η, and no other, it tends to s²."""
    std = 1.5
    chains = Langevin(n_steps=int(40 / step_size), step_size=step_size, target=None).run(
        gaussian(std), start(), generator()
    )
    assert float(chains.y.var()) == pytest.approx(std**2 / (1 - step_size / (4 * std**2)), rel=WITHIN)


@pytest.mark.parametrize("temperature", [0.25, 4.0])
def test_temperature_scales_the_variance(temperature: float) -> None:
    chains = AdjustedLangevin(n_steps=100, temperature=temperature).run(gaussian(1.0), start(), generator())
    assert float(chains.y.var()) == pytest.approx(temperature, rel=1.5 * WITHIN)


def test_adjusted_chains_are_right_however_long_their_steps() -> None:
    """Two wells: the mean square of y by quadrature. At this step size unadjusted chains are far off."""

    def wells(y):
        return (y.square() - 1).square().sum(-1) * 2

    grid = torch.linspace(-4, 4, 4001, dtype=torch.float64).unsqueeze(-1)
    share = (-wells(grid)).softmax(0)
    truth = float((share * grid.square().squeeze()).sum())
    settings = {"n_steps": 300, "step_size": 0.3, "target": None}
    begin = (
        torch.rand(ROWS, 1, generator=generator(1), dtype=torch.float64) * 3 - 1.5
    )  # farther out, long steps are all refused
    adjusted = AdjustedLangevin(**settings).run(wells, begin, generator())
    error = float(adjusted.y.square().std()) / math.sqrt(ROWS)
    assert float(adjusted.y.square().mean()) == pytest.approx(truth, abs=4 * error)
    assert adjusted.acceptance < 1
    unadjusted = Langevin(**settings).run(wells, begin, generator())
    assert float(unadjusted.y.square().mean()) != pytest.approx(truth, rel=0.05)


def test_step_sizes_come_to_their_targets() -> None:
    """The acceptance that is asked for; and, unadjusted, the drift r: that of a Gaussian is r when η = 4 r² s²."""
    adjusted = AdjustedLangevin(n_steps=400, step_size=1e-4, max_step_size=100.0)
    first = adjusted.run(gaussian(2.0), start(3), generator())
    again = adjusted.after(first).run(gaussian(2.0), first.y, generator(1))
    assert again.acceptance == pytest.approx(0.574, abs=0.02)
    unadjusted = Langevin(n_steps=400, step_size=1e-4, target=0.3, max_step_size=100.0).run(
        gaussian(2.0), start(3), generator()
    )
    assert unadjusted.drift == pytest.approx(0.3, rel=0.05)
    assert unadjusted.step_size == pytest.approx(4 * 0.3**2 * 2.0**2, rel=0.1)


@pytest.mark.parametrize("kind", [Langevin, AdjustedLangevin])
def test_where_the_energy_is_flat_steps_do_not_grow_without_end(kind) -> None:
    chains = kind(n_steps=200, max_step_size=0.3).run(lambda y: 0 * y.sum(-1), start(), generator())
    assert chains.step_size == pytest.approx(0.3)


@pytest.mark.parametrize("kind", [Langevin, AdjustedLangevin])
def test_chains_stay_in_their_range(kind) -> None:
    chains = kind(n_steps=200, step_size=0.1, clamp=(-1.0, 1.0), target=None).run(
        lambda y: 0 * y.sum(-1), start(), generator()
    )
    assert float(chains.y.abs().max()) <= 1
    if kind is AdjustedLangevin:  # refusing moves keeps the uniform distribution uniform; clamping heaps up at the ends
        assert float(chains.y.var()) == pytest.approx(1 / 3, rel=2 * WITHIN)


@pytest.mark.parametrize("kind", [Langevin, AdjustedLangevin])
def test_chains_that_begin_outside_their_range_come_into_it(kind) -> None:
    """All of them from far outside: adjusted ones then have the variance of the Gaussian that ends at ±1, as if they had begun
    inside."""
    chains = kind(n_steps=300, step_size=0.1, clamp=(-1.0, 1.0)).run(gaussian(1.0), start() + 3, generator())
    assert float(chains.y.abs().max()) <= 1
    if kind is AdjustedLangevin:
        points = torch.linspace(-1, 1, 2001, dtype=torch.float64)
        truth = float(((-points.square() / 2).softmax(0) * points.square()).sum())
        assert float(chains.y.var()) == pytest.approx(truth, rel=2 * WITHIN)


def test_moves_to_where_there_is_no_energy_are_refused() -> None:
    chains = AdjustedLangevin(n_steps=50, step_size=0.5).run(lambda y: y.sqrt().sum(-1), start() + 1, generator())
    assert bool((chains.y >= 0).all())


def test_runs_are_repeatable_and_carry_no_gradient() -> None:
    weight = torch.ones((), requires_grad=True)

    def energy(y):
        return weight * y.square().flatten(1).sum(1)

    place = torch.zeros(4, 3, 2, 2)
    one, two = (Langevin(n_steps=5).run(energy, place, generator(3)) for _ in range(2))
    assert torch.equal(one.y, two.y)
    assert one.y.shape == place.shape
    assert not one.y.requires_grad
    assert weight.grad is None
    assert torch.allclose(one.energy, energy(one.y).detach())


@pytest.mark.parametrize(
    "settings",
    [
        {"n_steps": 0},
        {"step_size": 0.0},
        {"temperature": -1.0},
        {"target": 1.5},
        *({"clamp": clamp} for clamp in [(1.0, 0.0), (-1.0,), (-1.0, 0.0, 1.0), ("a", "b"), (0.0, math.inf), 1.0]),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings) -> None:
    with pytest.raises(ValueError, match="but"):
        Langevin(**settings)


def test_a_replayed_y_belongs_to_its_own_x() -> None:
    buffer, known = ReplayBuffer(100, torch.zeros(2)), {}
    for step in range(20):
        rows = torch.randperm(60, generator=generator(step))[:10]
        fresh = torch.full((10, 2), -1.0)
        for row, y in zip(rows.tolist(), buffer.start(rows, fresh), strict=True):
            assert y.tolist() == known.get(row, [-1.0, -1.0])
        y = torch.randn(10, 2, generator=generator(100 + step))
        buffer.keep(rows, y)
        known |= dict(zip(rows.tolist(), y.tolist(), strict=True))


def test_a_full_buffer_forgets_and_never_mixes_up() -> None:
    buffer = ReplayBuffer(1, torch.zeros(1))
    buffer.keep(torch.tensor([3]), torch.ones(1, 1))
    buffer.keep(torch.tensor([7]), 2 * torch.ones(1, 1))
    assert buffer.start(torch.tensor([3, 7]), torch.zeros(2, 1)).tolist() == [[0.0], [2.0]]


def test_of_two_that_share_a_place_the_last_one_stays_whole() -> None:
    buffer = ReplayBuffer(2, torch.zeros(1))
    rows = torch.tensor([1, 3, 5, 2])
    buffer.keep(rows, rows.unsqueeze(-1).float())
    assert buffer.start(rows, torch.full((4, 1), -1.0)).flatten().tolist() == [-1.0, -1.0, 5.0, 2.0]


def test_a_share_of_chains_begins_afresh() -> None:
    buffer, rows = ReplayBuffer(10_000, torch.zeros(1)), torch.arange(10_000)
    buffer.keep(rows, torch.ones(10_000, 1))
    replayed = buffer.start(rows, torch.zeros(10_000, 1), share=0.7, generator=generator()).mean()
    assert float(replayed) == pytest.approx(0.7, abs=4 * math.sqrt(0.21 / 10_000))


def test_the_age_of_a_buffer() -> None:
    """Counted by hand: two chains of three steps ago, of which one has run again since; and, with nothing known, no number."""
    buffer = ReplayBuffer(10, torch.zeros(1))
    assert math.isnan(buffer.age())
    for rows in ([1, 2], [5], [2]):
        buffer.keep(torch.tensor(rows), torch.zeros(len(rows), 1))
    assert buffer.age() == pytest.approx((2 + 1 + 0) / 3)


def test_annealed_importance_sampling_finds_a_known_normaliser() -> None:
    """A Gaussian of other widths and another place than where it begins: log Z = Σ log(s √2π), within four standard errors."""
    stds, place = torch.tensor([0.3, 0.7, 1.5, 1.0], dtype=torch.float64), torch.tensor([1.0, -0.5, 0.0, 2.0]).double()
    log_weight = annealed_log_partition(
        lambda y: ((y - place) / stds).square().sum(-1) / 2, torch.zeros(2000, 4).double(), generator=generator()
    )
    weight = (log_weight - log_weight.max()).exp()
    estimate = float(weight.mean().log() + log_weight.max())
    error = float(weight.std() / weight.mean()) / math.sqrt(len(weight))
    assert error < 0.1
    assert estimate == pytest.approx(float((stds * math.sqrt(2 * math.pi)).log().sum()), abs=4 * error)


def test_annealing_stays_in_the_range_of_y() -> None:
    """A Gaussian cut off on both sides: its mass between them by the error function, within four standard errors."""
    std, (low, high), dim = 0.7, (-0.5, 2.0), 3
    log_weight = annealed_log_partition(
        gaussian(std), torch.zeros(2000, dim).double(), clamp=(low, high), generator=generator()
    )
    mass = (math.erf(high / std / math.sqrt(2)) - math.erf(low / std / math.sqrt(2))) / 2
    weight = log_weight.exp()
    error = float(weight.std() / weight.mean()) / math.sqrt(len(weight))
    assert error < 0.05
    assert float(weight.mean().log()) == pytest.approx(
        dim * math.log(mass * std * math.sqrt(2 * math.pi)), abs=4 * error
    )
