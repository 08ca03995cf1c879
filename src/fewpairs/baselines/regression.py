"""Regression: one network x → y, least squares on the pairs. It predicts the conditional mean, and no more."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fewpairs.baselines.base import Baseline
from fewpairs.data.samples import Samples
from fewpairs.estimators.rules import Rule, at_least
from fewpairs.networks.perceptrons import make_mlp
from fewpairs.training.learners import Step, descend

__all__ = ["Regression"]


@dataclass(kw_only=True, eq=False, repr=False)
class Regression(Baseline):
    """min over G of E |y − G(x)|².

    Arguments:
        hidden: The widths of its hidden layers; the paper has five of 256.
        weight_decay: AdamW's.

    See `Baseline` for the others.
    """

    title: ClassVar[str] = "Regression"
    learns_from: ClassVar[tuple[str, ...]] = ("pairs",)
    is_stochastic: ClassVar[bool] = False

    hidden: tuple[int, ...] = (256, 256, 256, 256, 256)
    weight_decay: float = 0.01
    learning_rate: float = 3e-4

    rules: ClassVar[dict[str, Rule]] = {**Baseline.rules, "weight_decay": at_least(0)}

    def _make(self, dim_x: int, dim_y: int) -> nn.Module:
        return make_mlp(dim_x, dim_y, hidden=self.hidden, activation="relu")

    def _start(self, networks: nn.Module, samples: Samples) -> Step:
        optimizer = torch.optim.AdamW(networks.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        return descend(optimizer, lambda batch: (networks(batch.pairs_x) - batch.pairs_y).square().sum(-1).mean())

    def _draw(self, networks: nn.Module, x: Tensor) -> Tensor:
        return networks(x)
