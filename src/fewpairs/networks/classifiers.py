"""Networks that take x to one number a class: a perceptron, a small convolutional network, or the user's own.

Each is features of x and a head. With a label embedding the head is the paper's: features beside a learnt vector of the class,
and one more layer that takes both to a number.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fewpairs.networks.perceptrons import ACTIVATIONS, make_mlp

__all__ = ["MANY_ROWS", "make_cnn", "make_mlp_classifier", "refuse_unfit", "reset"]

CNN_FEATURES = 128
MANY_ROWS = 256  # at which a network that draws at random does not give the same answer twice by chance


def make_mlp_classifier(
    dim_x: int, n_classes: int, *, hidden: Sequence[int], activation: str = "relu", n_embedded: int | None = None
) -> nn.Module:
    """Creates a perceptron; with an embedding, its last hidden layer is that of the head.

    Example:
        >>> make_mlp_classifier(4, 3, hidden=(16, 16), n_embedded=8)(torch.zeros(5, 4)).shape
        torch.Size([5, 3])
    """
    if n_embedded is None:
        return make_mlp(dim_x, n_classes, hidden=hidden, activation=activation)
    if len(hidden) < 2:
        raise ValueError(
            f"label_embedding needs two hidden layers, one before and one after it joins, but hidden={tuple(hidden)} came."
        )
    features = make_mlp(dim_x, hidden[-2], hidden=hidden[:-2], activation=activation)
    return nn.Sequential(
        features, ACTIVATIONS[activation](), _EmbeddedHead(hidden[-2], n_classes, n_embedded, hidden[-1])
    )


def make_cnn(image_shape: tuple[int, ...], n_classes: int, *, n_embedded: int | None = None) -> nn.Module:
    """Creates two convolutions with pooling and a layer of 128, for flattened images of (channels, height, width).

    Example:
        >>> make_cnn((1, 8, 8), 3)(torch.zeros(5, 64)).shape
        torch.Size([5, 3])
    """
    channels, height, width = image_shape
    if min(height, width) < 4:
        raise ValueError(
            f"A convolutional network halves images twice: they need 4 × 4 pixels at least, but {height} × {width} came. "
            'Use network="mlp".'
        )
    head: nn.Module = nn.Linear(CNN_FEATURES, n_classes)
    if n_embedded is not None:
        head = _EmbeddedHead(CNN_FEATURES, n_classes, n_embedded, CNN_FEATURES)
    return nn.Sequential(
        nn.Unflatten(-1, image_shape),
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.MaxPool2d(2),  # before the ReLU: the same function, with a quarter of its work
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(-3),
        nn.Linear(64 * (height // 4) * (width // 4), CNN_FEATURES),
        nn.ReLU(),
        head,
    )


class _EmbeddedHead(nn.Module):
    """Features of x beside an embedding of each class, and a layer that takes both to one number."""

    def __init__(self, n_features: int, n_classes: int, n_embedded: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(n_classes, n_embedded))
        self.layers = make_mlp(n_features + n_embedded, 1, hidden=(width,), activation="relu")

    def reset_parameters(self) -> None:
        nn.init.normal_(self.embedding)

    def forward(self, features: Tensor) -> Tensor:
        shape = (len(features), len(self.embedding))
        both = [features.unsqueeze(1).expand(*shape, -1), self.embedding.unsqueeze(0).expand(*shape, -1)]
        return self.layers(torch.cat(both, dim=-1)).squeeze(-1)


def reset(network: nn.Module) -> nn.Module:
    """A copy of the network with fresh random weights, where its layers know how to draw some."""
    network = copy.deepcopy(network)
    for layer in network.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()  # type: ignore[operator]
    return network


def refuse_unfit(network: nn.Module, x: Tensor, n_classes: int) -> None:
    """An error if the user's network cannot be one of a population of classifiers: by what it is made of, by what it makes of
    rows, and by what it makes of them beside another of its kind.

    Arguments:
        x: Some of the rows that it is to learn from, (rows, dim_x).
    """
    parameter = _refuse_layers(network)
    rows = x.to(parameter)
    rows = rows.repeat(-(-MANY_ROWS // len(rows)), 1)[:MANY_ROWS]
    trained, given = copy.deepcopy(network).train(), rows.clone()
    try:
        came = trained(given)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"network must take rows of {rows.shape[1]} numbers (images come flattened: begin with nn.Unflatten): {error}"
        ) from error
    shape = tuple(came.shape) if isinstance(came, Tensor) else type(came).__name__
    if shape != (MANY_ROWS, n_classes):
        raise ValueError(
            f"network must give one number for each of {n_classes} classes, but {MANY_ROWS} rows gave {shape}."
        )
    if not torch.equal(given, rows):
        raise ValueError(
            "network changes the rows it is given in place, and other networks get the same ones. Copy them."
        )
    if not came.requires_grad:
        raise ValueError(
            "network gives numbers without a gradient: there is no way to learn. Leave out detach and no_grad."
        )
    if not torch.isfinite(came).all():
        raise ValueError("network gives NaN or infinity for rows of X, as they are once scaled (see scale).")
    if not torch.equal(came, trained(rows)):
        raise ValueError(
            "network gives two answers for the same rows: networks that are trained together can neither draw at random nor "
            "change with every call. Leave dropout, noise and spectral norms out; smoothing= may take their place."
        )
    copies = [copy.deepcopy(network) for _ in range(2)]
    try:
        with torch.no_grad():
            vmap(lambda state, x: functional_call(copies[0], state, (x,)))(
                stack_module_state(copies), rows.expand(2, -1, -1)
            )
    except RuntimeError as error:
        raise ValueError(
            "network cannot be trained beside others of its kind by torch.vmap, which knows no ifs on numbers, no .item(), no "
            f"x[x > 0], and no recurrent layers. It said: {error}"
        ) from error


def _refuse_layers(network: nn.Module) -> nn.Parameter:
    """An error if the network is made of what cannot be learnt beside others; the first of its parameters if not."""
    for layer in network.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
            raise ValueError(
                f"network has a {type(layer).__name__}, and networks that are trained together can neither keep statistics of "
                "batches nor draw at random. Use LayerNorm or GroupNorm, and smoothing= in place of dropout."
            )
    parameters = list(network.parameters())
    if not parameters:
        raise ValueError("network has no parameters: there is nothing to learn.")
    if len(list(network.named_parameters(remove_duplicate=False))) > len(parameters):
        raise ValueError(
            "network has a layer or a parameter in two places, which networks that are trained together cannot share. Give each "
            "place one of its own."
        )
    if frozen := [name for name, one in network.named_parameters() if not one.requires_grad]:
        raise ValueError(
            f"network has parameters that want no gradient ({', '.join(frozen[:3])}), but all layers are drawn afresh and "
            "learnt for each member. To build on a network that is known, pass what it makes of the rows as X."
        )
    return parameters[0]
