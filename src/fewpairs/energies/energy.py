"""Energies: u(x, y) = (c(x, y) − f(y)) / ε with any networks as cost c and potential f.

Alone, an energy is the paper's EBiEOT-NN, p(y|x) ∝ exp(−u(x, y)), with a normaliser that nobody knows. On top of a base whose
density is known it is a correction, p(y|x) = b(y|x) exp(−u(x, y)) / Z(x), and Z(x), the mean of exp(−u) over draws of the base,
can be estimated as well as one likes. Rows of x and y are flat; networks of images get them in their own shape.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fewpairs.networks.perceptrons import make_mlp

__all__ = [
    "Energy",
    "InformedCost",
    "MapCost",
    "NeuralCost",
    "NeuralPotential",
    "at_rest",
    "normalise_spectrally",
    "refuse_unfit_energy",
]


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
        return super().forward(x, torch.cat([y.flatten(1), opinions], dim=-1)) + self.linear(opinions).squeeze(-1)


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
