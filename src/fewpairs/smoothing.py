"""Smoothing: how a plan is kept smooth in x, where a network could be wild between a few pairs.

A strategy changes the minibatch that a training step sees. Strengths are in standard deviations of x.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fewpairs.data import Samples

__all__ = ["NoSmoothing", "NoiseSmoothing", "Smoothing"]


class Smoothing(Protocol):
    def smooth(self, samples: Samples, generator: torch.Generator | None = None) -> Samples:
        """The minibatch as the objective shall see it."""
        ...


@dataclass(frozen=True)
class NoSmoothing:
    """Leaves the data as they are."""

    def smooth(self, samples: Samples, generator: torch.Generator | None = None) -> Samples:
        return samples


@dataclass(frozen=True)
class NoiseSmoothing:
    """Adds fresh Gaussian noise to every x in every step: what holds at x shall hold nearby.

    Arguments:
        std: The standard deviation of the noise.
        n_copies: How often each pair appears in a step, each time with noise of its own: pairs are few and their
            gradients noisy.
    """

    std: float
    n_copies: int = 4

    def smooth(self, samples: Samples, generator: torch.Generator | None = None) -> Samples:
        return replace(
            samples,
            pairs_x=self._shake(samples.pairs_x.repeat(self.n_copies, 1), generator),
            pairs_y=samples.pairs_y.repeat(self.n_copies, 1),
            pairs_weight=samples.pairs_weight.repeat(self.n_copies),
            source=self._shake(samples.source, generator),
        )

    def _shake(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        return x + self.std * torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
