"""Energies: u(x, y) = (c(x, y) − f(y)) / ε with any networks as cost c and potential f.

Alone, an energy is the paper's EBiEOT-NN, p(y|x) ∝ exp(−u(x, y)), with a normaliser that nobody knows. On top of a base whose
density is known it is a correction, p(y|x) = b(y|x) exp(−u(x, y)) / Z(x), and Z(x), the mean of exp(−u) over draws of the base,
can be estimated as well as one likes. Rows of x and y are flat; networks of images get them in their own shape.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fewpairs.nn import make_mlp

__all__ = [
    "CorrectedPlan",
    "Energy",
    "MapCost",
    "NeuralCost",
    "NeuralPotential",
    "at_rest",
    "normalise_spectrally",
    "refuse_unfit_energy",
]

MOST_TRIES = 256  # draws of a base at once for one draw of its correction


class NeuralCost(nn.Module):
    """Creates a perceptron of x beside y.

    Example:
        >>> NeuralCost(dim_x=2, dim_y=3)(torch.zeros(5, 2), torch.zeros(5, 3)).shape
        torch.Size([5])
    """

    def __init__(self, *, dim_x: int, dim_y: int, hidden: Sequence[int] = (256, 256, 256), **options: Any) -> None:
        super().__init__()
        self.network = make_mlp(dim_x + dim_y, 1, hidden=hidden, **{"activation": "leaky_relu", **options})

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.network(torch.cat([x.flatten(1), y.flatten(1)], dim=-1)).squeeze(-1)


class NeuralPotential(nn.Module):
    """Creates a perceptron of y.

    Example:
        >>> NeuralPotential(dim_y=3)(torch.zeros(5, 3)).shape
        torch.Size([5])
    """

    def __init__(self, *, dim_y: int, hidden: Sequence[int] = (128, 128), **options: Any) -> None:
        super().__init__()
        self.network = make_mlp(dim_y, 1, hidden=hidden, **{"activation": "leaky_relu", **options})

    def forward(self, y: Tensor) -> Tensor:
        return self.network(y.flatten(1)).squeeze(-1)


class MapCost(nn.Module):
    """Creates the cost of leaving a map: the mean square of map(x) − y over the numbers of y.

    Arguments:
        map: A network that takes x to something of y's shape.
    """

    def __init__(self, map: nn.Module) -> None:
        super().__init__()
        self.map = map

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.prepared(self.prepare(x), y)

    def prepare(self, x: Tensor) -> Tensor:
        """map(x), which is asked for once, however often y moves."""
        return self.map(x)

    def prepared(self, place: Tensor, y: Tensor) -> Tensor:
        """The cost of y, given map(x)."""
        return (place - y).flatten(1).square().mean(1)


class Energy(nn.Module):
    """Creates u(x, y) = (c(x, y) − f(y)) / ε; `energy(x, y)` is one number a row.

    Arguments:
        cost: c, a module that takes x and y to one number a row.
        potential: f, a module that takes y to one number a row.
        epsilon: ε.
        bound: If given, u is bent so that it stays between −bound and bound.
        confinement: If given, a Gaussian of this spread is a factor of exp(f/ε): with networks that grow no faster than linearly,
            p(y|x) is then a density from the first step on, and chains stay where data can be.
        x_shape: The shape of an x, if it is not a vector.
        y_shape: The shape of a y, if it is not a vector.

    Attributes:
        strength: A factor of u, one unless set otherwise; zero is no energy at all.
    """

    def __init__(
        self,
        cost: nn.Module,
        potential: nn.Module,
        *,
        epsilon: float = 1.0,
        bound: float | None = None,
        confinement: float | None = None,
        x_shape: Sequence[int] = (-1,),
        y_shape: Sequence[int] = (-1,),
    ) -> None:
        super().__init__()
        self.cost, self.potential = cost, potential
        self.epsilon, self.bound, self.confinement = epsilon, bound, confinement
        self.x_shape, self.y_shape = tuple(x_shape), tuple(y_shape)
        self.strength: Tensor
        self.register_buffer("strength", torch.ones(()))

    def costs(self, x: Tensor, y: Tensor) -> Tensor:
        """c(x, y) / ε."""
        return self.cost(x.unflatten(-1, self.x_shape), y.unflatten(-1, self.y_shape)) / self.epsilon

    def prepare(self, x: Tensor) -> Tensor:
        """What u needs to know of these x's, for y's that move: a cost that has a method `prepare` is asked about x once."""
        prepare: Any = getattr(self.cost, "prepare", None)
        return x if prepare is None else prepare(x.unflatten(-1, self.x_shape))

    def prepared(self, y: Tensor, known: Tensor) -> Tensor:
        """u(x, y), given what `prepare` said of x."""
        if not hasattr(self.cost, "prepare"):
            return self(known, y)
        cost: Any = self.cost
        return self._bend(cost.prepared(known, y.unflatten(-1, self.y_shape)) / self.epsilon - self.potentials(y))

    def potentials(self, y: Tensor) -> Tensor:
        """f(y) / ε, and the confinement."""
        potentials = self.potential(y.unflatten(-1, self.y_shape)) / self.epsilon
        if self.confinement is not None:
            potentials = potentials - y.square().sum(-1) / (2 * self.confinement**2)
        return potentials

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self._bend(self.costs(x, y) - self.potentials(y))

    def _bend(self, energy: Tensor) -> Tensor:
        if self.bound is not None:
            energy = self.bound * torch.tanh(energy / self.bound)
        return self.strength * energy

    def of_draws(self, x: Tensor, draws: Tensor) -> Tensor:
        """u of several y's for each x: draws are (n, rows, dim_y), and so is the energy without its last axis."""
        n = len(draws)
        return self(x.repeat(n, 1), draws.flatten(0, 1)).unflatten(0, (n, len(x)))

    def between(self, x: Tensor, y: Tensor) -> Tensor:
        """u of every x with every y, (Q, R)."""
        q, r = len(x), len(y)
        return self(x.repeat_interleave(r, 0), y.repeat(q, 1)).unflatten(0, (q, r))


class CorrectedPlan(nn.Module):
    """Creates the plan p(y|x) = b(y|x) exp(−u(x, y)) / Z(x).

    Arguments:
        base: b, a plan that is known in closed form.
        energy: u, with a bound: it is what makes draws possible in bounded time.
    """

    def __init__(self, base: Any, energy: Energy) -> None:
        super().__init__()
        if energy.bound is None:
            raise ValueError(
                "The energy of a correction needs a bound: without one, no draw of the base would ever be kept."
            )
        self.base, self.energy = base, energy
        self.bound = energy.bound

    def log_partition(self, x: Tensor, draws: Tensor) -> Tensor:
        """log Z(x), estimated from draws of the base at each x, (n, rows, dim_y).

        The logarithm of a mean over n draws is too low by some c / n, which would reward an energy that varies much; over n / 2
        draws by twice as much. The difference is added.
        """
        log_weight, half = -self.energy.of_draws(x, draws), len(draws) // 2
        whole, *halves = (_log_mean(part) for part in (log_weight, log_weight[:half], log_weight[half:]))
        return 2 * whole - (halves[0] + halves[1]) / 2

    def log_marginal(self, y: Tensor, source: Tensor, draws: Tensor) -> Tensor:
        """log p̂(y), p̂ the average of p(·|x) over the source, with log Z from draws of the base at each of its x's."""
        log_joint = self.base.log_prob_between(source, y) - self.energy.between(source, y)
        return torch.logsumexp(log_joint - self.log_partition(source, draws).unsqueeze(-1), dim=0) - math.log(
            len(source)
        )

    def log_prob(self, x: Tensor, y: Tensor, n_draws: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """log p(y|x) with log Z(x) estimated from so many draws, and its standard error, one number a row each."""
        conditional = self.base.conditional(x)
        if float(self.energy.strength) == 0:
            return (exactly := conditional.log_prob(y)), torch.zeros_like(exactly)
        weight = (-self.energy.of_draws(x, conditional.sample((n_draws,), generator=generator))).exp()
        log_prob = conditional.log_prob(y) - self.energy(x, y) - weight.mean(0).log()
        return log_prob, weight.std(0) / (weight.mean(0) * math.sqrt(n_draws))

    def mean(self, x: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
        """The mean of y at each x, (rows, dim_y), by so many draws of the base, each with the weight exp(−u)."""
        draws = self.base.conditional(x).sample((n_draws,), generator=generator)
        share = (-self.energy.of_draws(x, draws)).softmax(dim=0)
        return (share.unsqueeze(-1) * draws).sum(0)

    def sample(self, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draws y's of shape (n_samples, rows, dim_y), exactly: a draw of the base stays with the chance exp(−u) / exp(bound)."""
        y = self.base.conditional(x).sample((n_samples,), generator=generator).flatten(0, 1).unsqueeze(0)
        found, rows, waiting = y[0].clone(), x.repeat(n_samples, 1), torch.arange(y.shape[1], device=x.device)
        least = -self.energy.strength * self.bound
        while True:
            chance = torch.rand(y.shape[:2], generator=generator, dtype=y.dtype, device=y.device)
            stays = chance.log() <= least - self.energy.of_draws(rows[waiting], y)
            is_done, first = stays.max(dim=0)
            found[waiting[is_done]] = y[first, torch.arange(len(first), device=x.device)][is_done]
            waiting = waiting[~is_done]
            if len(waiting) == 0:
                return found.unflatten(0, (n_samples, len(x)))
            # As many tries for each of the rest as would have been for all: the last ones do not keep anybody waiting.
            tries = min(max(len(rows) // len(waiting), 1), MOST_TRIES)
            y = self.base.conditional(rows[waiting]).sample((tries,), generator=generator)


def _log_mean(log_weight: Tensor) -> Tensor:
    """The logarithm of the mean weight over the first axis."""
    return log_weight.logsumexp(0) - math.log(len(log_weight))


@contextmanager
def at_rest(network: nn.Module) -> Iterator[None]:
    """Inside, a network is a function and no more: no parameter gathers a gradient, no dropout draws, no normalisation learns."""
    modes = [(module, module.training) for module in network.modules()]
    is_learnt = [(parameter, parameter.requires_grad) for parameter in network.parameters()]
    network.eval().requires_grad_(False)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, was in is_learnt:
            parameter.requires_grad_(was)


def refuse_unfit_energy(energy: Energy, x: Tensor, y: Tensor) -> None:
    """An error if cost or potential, asked about two rows, do not give one number for each."""
    of_x, of_y = x.unflatten(-1, energy.x_shape), y.unflatten(-1, energy.y_shape)
    for name, module, rows in (("cost", energy.cost, (of_x, of_y)), ("potential", energy.potential, (of_y,))):
        shapes = " and ".join(str(tuple(part.shape)) for part in rows)
        try:
            with at_rest(module):
                came = tuple(module(*rows).shape)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ValueError(
                f"{name} was handed arrays of shape {shapes}, and said: {error}. It must be a module that takes "
                f"{'x and y' if name == 'cost' else 'y'} in these shapes and gives one number a row."
            ) from error
        if came != (len(x),):
            raise ValueError(
                f"{name} must give one number a row, but arrays of shape {shapes} gave {came}: {(len(x),)} is right."
            )
    if next(energy.parameters(), None) is None:
        raise ValueError("Neither cost nor potential has parameters: there is nothing to learn.")


def normalise_spectrally(network: nn.Module) -> nn.Module:
    """Holds the largest singular value of every linear and convolutional layer at one, in place: u changes no faster than y."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            nn.utils.parametrizations.spectral_norm(layer)
    return network
