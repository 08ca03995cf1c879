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

from fewpairs.networks.perceptrons import make_mlp
from fewpairs.plans.conditionals import ConditionalEnsemble
from fewpairs.plans.mixture import EnsemblePlan

__all__ = [
    "CorrectedPlan",
    "Energy",
    "InformedCost",
    "MapCost",
    "NeuralCost",
    "NeuralPotential",
    "at_rest",
    "hear_opinions",
    "n_opinions",
    "normalise_spectrally",
    "refuse_unfit_energy",
]

MOST_AT_ONCE = 2**16  # draws of a base at once, of which some stay
NEAR = 0.7  # standard deviations of y, the root mean square over its outputs


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


class InformedCost(NeuralCost):
    """Creates a perceptron of x beside y and opinions on both, to which the opinions contribute linearly as well.

    Most of what is wrong with a base can be said in terms of what it thinks: that it should be sharper, or trust one of its parts
    more than another. A network of x and y alone learns that slowly, place by place.

    Example:
        >>> InformedCost(dim_x=2, dim_y=3, n_opinions=4)(torch.zeros(5, 2), torch.zeros(5, 3), torch.zeros(5, 4)).shape
        torch.Size([5])
    """

    def __init__(self, *, dim_x: int, dim_y: int, n_opinions: int, **options: Any) -> None:
        super().__init__(dim_x=dim_x, dim_y=dim_y + n_opinions, **options)
        self.linear = nn.Linear(n_opinions, 1, bias=False)
        nn.init.normal_(self.linear.weight, std=1e-3)  # nearly nothing, but not nothing: spectral norms divide by it

    def forward(self, x: Tensor, y: Tensor, opinions: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, torch.cat([y, opinions], dim=-1)) + self.linear(opinions).squeeze(-1)


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
        cost: c, a module that takes x and y to one number a row; an `InformedCost` takes opinions as well.
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

    def costs(self, x: Tensor, y: Tensor, *opinions: Tensor) -> Tensor:
        """c(x, y) / ε."""
        return self.cost(x.unflatten(-1, self.x_shape), y.unflatten(-1, self.y_shape), *opinions) / self.epsilon

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

    def forward(self, x: Tensor, y: Tensor, *opinions: Tensor) -> Tensor:
        return self._bend(self.costs(x, y, *opinions) - self.potentials(y))

    def _bend(self, energy: Tensor) -> Tensor:
        if self.bound is not None:
            energy = self.bound * torch.tanh(energy / self.bound)
        return self.strength * energy

    def of_draws(self, x: Tensor, draws: Tensor, *opinions: Tensor) -> Tensor:
        """u of several y's for each x: draws are (n, rows, dim_y), and so is the energy without its last axis."""
        n = len(draws)
        flat = (part.flatten(0, 1) for part in (draws, *opinions))
        return self(x.repeat(n, 1), *flat).unflatten(0, (n, len(x)))

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

    def __init__(self, base: EnsemblePlan, energy: Energy) -> None:
        super().__init__()
        if energy.bound is None:
            raise ValueError(
                "The energy of a correction needs a bound: without one, no draw of the base would ever be kept."
            )
        self.base, self.energy = base, energy
        self.bound = energy.bound

    def energies(self, x: Tensor, y: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """u of several y's for each x, (n, rows, dim_y), without the last axis. Noise is added to the x that networks see; the
        base is asked about x itself."""
        return self._energies(self.base.conditional(x), x + noise, y)

    def _energies(self, conditional: ConditionalEnsemble, x: Tensor, y: Tensor) -> Tensor:
        if not isinstance(self.energy.cost, InformedCost):
            return self.energy.of_draws(x, y)
        with torch.no_grad():
            opinions = hear_opinions(conditional, y)
        return self.energy.of_draws(x, y, opinions)

    def weigh(self, x: Tensor, y: Tensor, draws: Tensor, noise: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        """u(x, y), one number a row, and log Z(x), estimated from draws of the base at each x, (n, rows, dim_y)."""
        energies = self.energies(x, torch.cat([y.unsqueeze(0), draws]), noise)
        return energies[0], _log_mean_unbiased(-energies[1:])

    def log_partition(self, x: Tensor, draws: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """log Z(x), estimated from draws of the base at each x, (n, rows, dim_y)."""
        return _log_mean_unbiased(-self.energies(x, draws, noise))

    def log_marginal(self, y: Tensor, source: Tensor, draws: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """log p̂(y), p̂ the average of p(·|x) over the source, with log Z from draws of the base at each of its x's."""
        everywhere = y.unsqueeze(1).expand(-1, len(source), -1)
        log_joint = self.base.log_prob_between(source, y) - self.energies(source, everywhere, noise).mT
        log_share = -self.log_partition(source, draws, noise) - math.log(len(source))
        return torch.logsumexp(log_joint + log_share.unsqueeze(-1), dim=0)

    def log_ratio(self, x: Tensor, y: Tensor, n_draws: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """log p(y|x) − log b(y|x), with log Z(x) estimated from so many draws, and its standard error, one number a row each."""
        if float(self.energy.strength) == 0:
            return torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        conditional = self.base.conditional(x)
        draws = conditional.sample((n_draws,), generator=generator)
        energies = self._energies(conditional, x, torch.cat([y.unsqueeze(0), draws]))
        weight = (-energies[1:]).exp()
        log_ratio = -energies[0] - weight.mean(0).log()
        return log_ratio, weight.std(0) / (weight.mean(0) * math.sqrt(n_draws))

    def mean(self, x: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
        """The mean of y at each x, (rows, dim_y), by so many draws of the base, each with the weight exp(−u)."""
        conditional = self.base.conditional(x)
        draws = conditional.sample((n_draws,), generator=generator)
        share = (-self._energies(conditional, x, draws)).softmax(dim=0)
        return (share.unsqueeze(-1) * draws).sum(0)

    def sample(self, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draws y's of shape (n_samples, rows, dim_y), exactly: a draw of the base stays with the chance exp(−u) / exp(bound)."""
        most = float(self.energy.strength) * self.bound
        n_found = torch.zeros(len(x), dtype=torch.long, device=x.device)
        kept = x.new_empty((n_samples, len(x), *self.base.conditional(x[:1]).event_shape))
        waiting = torch.arange(len(x), device=x.device)
        while len(waiting):
            conditional = self.base.conditional(x[waiting])
            # As many as are likely to be enough for the row that lacks most.
            n_tries = math.ceil((n_samples - int(n_found[waiting].min())) * math.exp(most))
            n_tries = max(min(n_tries, MOST_AT_ONCE // len(waiting)), 1)
            y = conditional.sample((n_tries,), generator=generator)
            chance = torch.rand(y.shape[:2], generator=generator, dtype=y.dtype, device=y.device)
            stays = chance.log() <= -self._energies(conditional, x[waiting], y) - most
            place = n_found[waiting] + stays.cumsum(0) - 1
            draw, column = (stays & (place < n_samples)).nonzero(as_tuple=True)
            kept[place[draw, column], waiting[column]] = y[draw, column]
            n_found[waiting] += stays.sum(0)
            waiting = (n_found < n_samples).nonzero().squeeze(1)
        return kept


def hear_opinions(conditional: ConditionalEnsemble, y: Tensor) -> Tensor:
    """What a base thinks of y's of shape (n, rows, dim_y), in numbers of the order of one, (n, rows, `n_opinions`): how likely it
    finds them, how much more likely each of its parts does, and how much of its mass is anywhere near.

    The last one lets networks sharpen p(y|x) without taking mass from one mode to another: a step that makes every mode
    narrower and the largest one larger gains a lot for the one and loses little for the other, as far as likelihoods can tell.
    """
    of_parts = conditional.log_probs(y)
    log_prob = torch.logsumexp(of_parts + conditional.shares.log(), dim=-1, keepdim=True)
    nearness = conditional.log_nearness(y, NEAR).unsqueeze(-1)
    return torch.cat(
        [log_prob.clamp(-12, 12) / 3, (of_parts - log_prob).clamp(-5, 5) / 2, nearness.clamp(min=-9) / 3], dim=-1
    )


def n_opinions(base: EnsemblePlan) -> int:
    """How many numbers `hear_opinions` gives."""
    return len(base.members) + 2


def _log_mean_unbiased(log_weight: Tensor) -> Tensor:
    """The logarithm of the mean weight over the first axis.

    The logarithm of a mean over n draws is too low by some c / n, which would reward an energy that varies much; over n / 2 draws
    by twice as much. The difference is added.
    """
    half = len(log_weight) // 2
    whole, *halves = (_log_mean(part) for part in (log_weight, log_weight[:half], log_weight[half:]))
    return 2 * whole - (halves[0] + halves[1]) / 2


def _log_mean(log_weight: Tensor) -> Tensor:
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
    asked: list[tuple[str, nn.Module, tuple[Tensor, ...]]] = [("potential", energy.potential, (of_y,))]
    if not isinstance(energy.cost, InformedCost):
        asked.insert(0, ("cost", energy.cost, (of_x, of_y)))
    for name, module, rows in asked:
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
