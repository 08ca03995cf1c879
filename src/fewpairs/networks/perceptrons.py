"""Small networks: a multilayer perceptron whose last layer may start near zero."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from numbers import Integral

import torch
from torch import nn

__all__ = ["ACTIVATIONS", "as_widths", "make_mlp"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": nn.SiLU,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "leaky_relu": partial(nn.LeakyReLU, 0.2),
}


def as_widths(hidden: Sequence[int]) -> tuple[int, ...]:
    """The widths of hidden layers, if that is what they are."""
    widths = tuple(hidden)
    if not all(isinstance(width, Integral) and width >= 1 for width in widths):
        raise ValueError(f"The widths of hidden layers must be whole numbers from 1 on, but {list(widths)} came.")
    return widths


def make_mlp(
    dim_in: int,
    dim_out: int,
    *,
    hidden: Sequence[int] = (),
    activation: str = "silu",
    last_std: float | None = None,
) -> nn.Sequential:
    """Creates a multilayer perceptron; with no hidden layer it is a linear map.

    Arguments:
        dim_in: The number of inputs.
        dim_out: The number of outputs.
        hidden: The widths of the hidden layers.
        activation: The name of the nonlinearity, a key of `ACTIVATIONS`.
        last_std: The standard deviation of the last layer's first weights, its biases being zero. None keeps PyTorch's
            own initialisation.

    Example:
        >>> make_mlp(2, 3, hidden=(16,))(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """
    hidden = as_widths(hidden)
    layers: list[nn.Module] = []
    widths = [dim_in, *hidden]
    for width_in, width_out in pairwise(widths):
        layers += [nn.Linear(width_in, width_out), ACTIVATIONS[activation]()]
    last = nn.Linear(widths[-1], dim_out)
    if last_std is not None:
        with torch.no_grad():
            last.weight.normal_(std=last_std)
            last.bias.zero_()
    return nn.Sequential(*layers, last)
