"""Networks of images, for `NeuralTranslator`: a U-Net takes an image to another, a potential takes one to a number."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["ConvPotential", "UNet"]


class UNet(nn.Module):
    """Creates a map from images to images of the same height and width, with values between −1 and 1.

    Height and width are multiples of four. Three levels: twice the image is halved and the width doubled, and on the way up each
    level sees again what it was on the way down (Ronneberger and others, 2015).

    Arguments:
        channels: Those of the image, in and out.
        width: The channels of the first level.

    Example:
        >>> UNet(3, width=4)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, channels: int, *, width: int = 64) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        ins = (channels, *widths[:2])
        self.down = nn.ModuleList(_convolve_twice(before, after) for before, after in zip(ins, widths, strict=True))
        self.lift = nn.ModuleList(nn.ConvTranspose2d(2 * side, side, 2, stride=2) for side in widths[1::-1])
        self.up = nn.ModuleList(_convolve_twice(2 * side, side) for side in widths[1::-1])
        self.last = nn.Conv2d(width, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 4 or x.shape[-2] % 4:
            raise ValueError(
                f"Height and width must be multiples of four, but {tuple(x.shape[-2:])} came. Pad the images."
            )
        seen: list[Tensor] = []
        for level in self.down:
            x = level(nn.functional.max_pool2d(x, 2) if seen else x)
            seen.append(x)
        for lift, level, before in zip(self.lift, self.up, reversed(seen[:-1]), strict=True):
            x = level(torch.cat([lift(x), before], dim=1))
        return torch.tanh(self.last(x))


class ConvPotential(nn.Module):
    """Creates a network that takes an image to one number: four convolutions, three of which halve it, and a linear layer.

    Arguments:
        image_shape: Channels, height and width; the last two are multiples of eight.
        width: The channels after the first convolution; they double with each halving.

    Example:
        >>> ConvPotential((3, 32, 32), width=4)(torch.zeros(5, 3, 32, 32)).shape
        torch.Size([5])
    """

    def __init__(self, image_shape: Sequence[int], *, width: int = 32) -> None:
        super().__init__()
        channels, height, side = image_shape
        if height % 8 or side % 8:
            raise ValueError(
                f"Height and width must be multiples of eight, but {height} × {side} came. Pad the images."
            )
        widths = (width, 2 * width, 4 * width, 8 * width)
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.SiLU()]
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.SiLU()]
        self.features = nn.Sequential(*layers, nn.Flatten(1))
        self.last = nn.Linear(widths[-1] * (height // 8) * (side // 8), 1)

    def forward(self, y: Tensor) -> Tensor:
        return self.last(self.features(y)).squeeze(-1)


def _convolve_twice(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1),
        nn.GroupNorm(math.gcd(8, after), after),
        nn.SiLU(),
        nn.Conv2d(after, after, 3, padding=1),
        nn.GroupNorm(math.gcd(8, after), after),
        nn.SiLU(),
    )
