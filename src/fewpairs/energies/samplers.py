"""Samplers: Langevin dynamics. They know an energy U(y), one number a row, and draw y's with a density ∝ exp(−U(y) / T).

`Langevin` takes y ← y − (η/2) ∇U/T + √η z, and is off by the size of its steps; `AdjustedLangevin` accepts or refuses each move
by Metropolis' rule, and is not. Both are settings that do not change: a run returns where its chains came to and the step size
to go on with. A `ReplayBuffer` keeps where the chains of each x have come to.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from fewpairs.training.cuda_graphs import Recorder

__all__ = ["AdjustedLangevin", "Chains", "Langevin", "ReplayBuffer", "annealed_log_partition"]

Energy = Callable[..., Tensor]  # of y, and of what else it is handed

LEAST_STEP_SIZE = 1e-12
N_STATE = 6  # tensors that say where a run is
N_RECORDED = 10  # steps in a recorded graph: fewer copies of where chains are, and a longer recording
ADAPTATION = 0.1  # how fast log η follows what it is adapted to


@dataclass(frozen=True)
class Chains:
    """Where the chains of a run came to.

    Attributes:
        y: The last place of each, (rows, …).
        energy: U there, (rows,).
        acceptance: The mean part of the moves that were accepted; one for unadjusted chains.
        drift: How far the gradient moves y in a step, as a part of how far the noise does (root mean squares, the last step's).
        step_size: η at the end.
    """

    y: Tensor
    energy: Tensor
    acceptance: float
    drift: float
    step_size: float


class _Place(NamedTuple):
    """Rows with U/T and its gradient there."""

    y: Tensor
    value: Tensor
    gradient: Tensor


@dataclass(frozen=True)
class Langevin:
    """Unadjusted Langevin dynamics.

    Arguments:
        n_steps: The steps of a run.
        step_size: The first η.
        temperature: T.
        clamp: The range of every coordinate of y, if it has one, in the units of the y's that the energy is handed.
        target: What η is adapted to; None leaves η alone. For unadjusted chains the drift (see `Chains`): on a Gaussian a drift
            of r makes the variance r² too large. For adjusted ones the acceptance; 0.574 is best in many dimensions.
        max_step_size: The largest η that it is adapted to: where the energy is flat, nothing else would stop it from growing.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> chains = Langevin(n_steps=200).run(lambda y: y.square().sum(-1) / 2, torch.zeros(1000, 2), generator)
        >>> 0.9 < float(chains.y.std()) < 1.1
        True
    """

    n_steps: int = 100
    step_size: float = 0.05
    temperature: float = 1.0
    clamp: tuple[float, float] | None = None
    target: float | None = 0.2
    max_step_size: float = 0.5

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if self.n_steps < 1 or not (self.step_size > 0 and self.temperature > 0 and self.max_step_size > 0):
            raise ValueError(
                f"{kind} needs n_steps of 1 at least, and step sizes and temperature above 0, but n_steps={self.n_steps}, "
                f"step_size={self.step_size}, max_step_size={self.max_step_size} and temperature={self.temperature} came."
            )
        if self.target is not None and not 0 < self.target < 1:
            raise ValueError(f"The target of {kind} lies between 0 and 1, but {self.target} came.")
        if self.clamp is not None:
            _refuse_unfit_range(self.clamp)

    def run(
        self,
        energy: Energy,
        y: Tensor,
        generator: torch.Generator | None = None,
        *,
        given: tuple[Tensor, ...] = (),
        recorder: Recorder | None = None,
    ) -> Chains:
        """Runs one chain from each row of y. What it returns carries no gradient.

        Arguments:
            energy: U; it is called as energy(y, *given).
            y: Where the chains begin.
            generator: The source of randomness; torch's own if none is given.
            given: What the energy depends on besides.
            recorder: On a CUDA device steps are recorded; a recorder that is handed in keeps them for the next run.
        """
        # From outside its range an adjusted chain could not come back: every move that ends outside is refused.
        y = y.detach() if self.clamp is None else y.detach().clamp(*self.clamp)
        # The step size stays on the device: no step waits for the host.
        sizes = (y.new_tensor(self.step_size), y.new_zeros(()), y.new_zeros(()))
        state: tuple[Tensor, ...] = (*self._look(energy, y, given), *sizes)
        recorder = recorder or Recorder()
        for n_steps in self._parts(is_recorded=y.is_cuda):
            steps: Callable[..., tuple[Tensor, ...]] = partial(self._steps, energy, generator, n_steps)
            if y.is_cuda:
                steps = recorder(steps, (*given, *state), generator, name=(n_steps, len(given)))
            state = steps(*given, *state)
        y, value, _, step_size, accepted, drift = state
        acceptance = float(accepted) / self.n_steps
        return Chains(y, value * self.temperature, acceptance, float(drift), float(step_size))

    def _parts(self, *, is_recorded: bool) -> Iterator[int]:
        """The steps of a run, cut into those that are taken at once."""
        left, most = self.n_steps, N_RECORDED if is_recorded else self.n_steps
        while left:
            yield min(left, most)
            left -= min(left, most)

    def _steps(
        self, energy: Energy, generator: torch.Generator | None, n_steps: int, *given_and_state: Tensor
    ) -> tuple[Tensor, ...]:
        given, state = given_and_state[:-N_STATE], given_and_state[-N_STATE:]
        for _ in range(n_steps):
            state = self._step(energy, generator, given, *state)
        return state

    def _step(
        self,
        energy: Energy,
        generator: torch.Generator | None,
        given: tuple[Tensor, ...],
        y: Tensor,
        value: Tensor,
        gradient: Tensor,
        step_size: Tensor,
        accepted: Tensor,
        drift: Tensor,
    ) -> tuple[Tensor, ...]:
        """The state of the chains after a step: where they are, η, the parts accepted so far, and the drift of the step."""
        noise = torch.randn(y.shape, generator=generator, dtype=y.dtype, device=y.device)
        pull = -step_size / 2 * gradient
        drift = (pull.square().mean() / step_size).sqrt()
        place = _Place(y, value, gradient)
        look = partial(self._look, energy, given=given)
        place, acceptance = self._move(look, place, y + pull + step_size.sqrt() * noise, step_size, generator)
        if self.target is not None:
            change = self._change(drift, acceptance)
            change = torch.where(
                change.isfinite(), change, 1.0
            )  # energies that are not finite are for others to notice
            step_size = (step_size * change).clamp(LEAST_STEP_SIZE, self.max_step_size)
        return *place, step_size, accepted + acceptance, drift

    def after(self, chains: Chains) -> Self:
        """The same dynamics with the step size that a run has come to."""
        return replace(self, step_size=chains.step_size)

    def _look(self, energy: Energy, y: Tensor, given: tuple[Tensor, ...]) -> _Place:
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            value = energy(y, *given) / self.temperature
            (gradient,) = torch.autograd.grad(value.sum(), y)
        return _Place(y.detach(), value.detach(), gradient)

    def _move(
        self,
        look: Callable[[Tensor], _Place],
        place: _Place,
        y: Tensor,
        step_size: Tensor,
        generator: torch.Generator | None,
    ) -> tuple[_Place, Tensor]:
        """Where rows are after they were asked to move to y, and the part of them that went."""
        return look(y if self.clamp is None else y.clamp(*self.clamp)), y.new_ones(())

    def _change(self, drift: Tensor, acceptance: Tensor) -> Tensor:
        """The factor of η after a step: the drift grows with √η."""
        assert self.target is not None
        return (ADAPTATION * (self.target / drift.clamp(min=1e-6)).log().clamp(-1, 1)).exp()


@dataclass(frozen=True)
class AdjustedLangevin(Langevin):
    """Metropolis-adjusted Langevin dynamics: right in the long run, whatever the step size. See `Langevin` for the arguments.

    Moves that leave the range of y are refused, so that chains have the density exp(−U/T) within it; those of `Langevin` stop at
    its ends and heap up there.
    """

    target: float | None = 0.574

    def _move(
        self,
        look: Callable[[Tensor], _Place],
        place: _Place,
        y: Tensor,
        step_size: Tensor,
        generator: torch.Generator | None,
    ) -> tuple[_Place, Tensor]:
        moved = look(y)
        there = (moved.y - place.y + step_size / 2 * place.gradient).flatten(1).square().sum(1)
        back = (place.y - moved.y + step_size / 2 * moved.gradient).flatten(1).square().sum(1)
        log_ratio = place.value - moved.value + (there - back) / (2 * step_size)
        if self.clamp is not None:
            is_inside = ((y >= self.clamp[0]) & (y <= self.clamp[1])).flatten(1).all(1)
            log_ratio = torch.where(is_inside, log_ratio, -math.inf)
        chance = torch.rand(log_ratio.shape, generator=generator, dtype=y.dtype, device=y.device)
        goes = chance.log() < log_ratio  # NaN, a move to where there is no energy, does not go
        each = goes.view(-1, *[1] * (y.ndim - 1))
        settled = _Place(
            torch.where(each, moved.y, place.y),
            torch.where(goes, moved.value, place.value),
            torch.where(each, moved.gradient, place.gradient),
        )
        return settled, goes.to(y.dtype).mean()

    def _change(self, drift: Tensor, acceptance: Tensor) -> Tensor:
        assert self.target is not None
        return (ADAPTATION * (acceptance - self.target)).exp()


def _refuse_unfit_range(clamp: Any) -> None:
    try:
        low, high = (float(end) for end in clamp)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not -math.inf < low < high < math.inf:
        raise ValueError(
            f"clamp is the least and the largest value of y, two finite numbers in this order, such as (-1.0, 1.0), but "
            f"{clamp!r} came."
        )


def annealed_log_partition(
    energy: Energy,
    like: Tensor,
    *,
    std: float = 1.0,
    clamp: tuple[float, float] | None = None,
    n_temperatures: int = 200,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Annealed importance sampling (Neal, 2001): for each row one estimate of log ∫ exp(−U(y)) dy whose exponential is unbiased.

    A y is drawn from a Gaussian and led to exp(−U) over many densities in between, ∝ exp(−β U) times a Gaussian to the power 1
    − β. Where y has a range, the integral ends there, and what is uniform on it takes the Gaussian's place. Modes that no chain
    has found are missing from the estimates, and nothing in them tells.

    Arguments:
        energy: U.
        like: Rows of the shape of y.
        std: The spread of the Gaussian.
        clamp: The range of every coordinate of y, if it has one.
        n_temperatures: The densities in between.
    """
    dim = like[0].numel()
    if clamp is None:
        y = std * torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        log_volume, curvature = math.log(std * math.sqrt(2 * math.pi)), 1 / std**2
    else:
        std, curvature = (clamp[1] - clamp[0]) / math.sqrt(12), 0.0
        y = clamp[0] + (clamp[1] - clamp[0]) * torch.rand(
            like.shape, generator=generator, dtype=like.dtype, device=like.device
        )
        log_volume = math.log(clamp[1] - clamp[0])
    log_weight = like.new_zeros(len(like)) + dim * log_volume
    betas = torch.linspace(0, 1, n_temperatures + 1, dtype=torch.float64)
    sampler = AdjustedLangevin(n_steps=1, step_size=0.1 * std**2, clamp=clamp)
    recorder = Recorder()

    def between(y: Tensor, beta: Tensor) -> Tensor:
        return beta * energy(y) + (1 - beta) * curvature / 2 * y.flatten(1).square().sum(1)

    for before, beta in pairwise(betas.to(like)):
        with torch.no_grad():
            log_weight = log_weight + between(y, before) - between(y, beta)
        chains = sampler.run(between, y, generator, given=(beta,), recorder=recorder)
        y, sampler = chains.y, sampler.after(chains)
    return log_weight


class ReplayBuffer:
    """Creates a memory of where the chains of each x have come to: a y that is replayed belongs to its own x.

    Arguments:
        capacity: The x's that are remembered at the most; of two that share a place, the last one stays.
        like: A row of y: shape, precision and device.

    Example:
        >>> buffer = ReplayBuffer(10, torch.zeros(2))
        >>> buffer.keep(torch.tensor([3]), torch.ones(1, 2))
        >>> buffer.start(torch.tensor([3, 4]), torch.zeros(2, 2))
        tensor([[1., 1.],
                [0., 0.]])
    """

    def __init__(self, capacity: int, like: Tensor) -> None:
        self._y = like.new_zeros((capacity, *like.shape))
        self._owner = torch.full((capacity,), -1, device=like.device)
        self._kept_at = torch.zeros_like(self._owner)
        self._n_kept = 0

    def start(
        self, rows: Tensor, fresh: Tensor, *, share: float = 1.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Where the chains of these x's begin: for a share of those known, where they were; for the others, at the fresh y's.

        Arguments:
            rows: The numbers of the x's.
            fresh: A y for each of them.
            share: The chance that what is known is used.
        """
        place = rows % len(self._owner)
        chance = torch.rand(len(rows), generator=generator, device=fresh.device)
        is_known = (self._owner[place] == rows) & (chance < share)
        return torch.where(is_known.view(-1, *[1] * (fresh.ndim - 1)), self._y[place], fresh)

    def keep(self, rows: Tensor, y: Tensor) -> None:
        """Remembers where the chains of these x's are."""
        place, numbers = rows % len(self._owner), torch.arange(len(rows), device=rows.device)
        last = torch.full_like(self._owner, -1).scatter_reduce(0, place, numbers, "amax")  # of those that share a place
        stays = last[place] == numbers
        place = place[stays]
        self._n_kept += 1
        self._owner[place], self._y[place], self._kept_at[place] = rows[stays], y[stays], self._n_kept

    def age(self) -> float:
        """How often `keep` was called since the chain of an x was there, on average over the x's; NaN if nothing is known."""
        is_known = self._owner >= 0
        return float((self._n_kept - self._kept_at[is_known]).double().mean())
