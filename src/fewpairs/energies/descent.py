"""Descent: what learners of energies share. Adam for cost and potential, each with a step size of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewpairs.energies.energy import Energy
from fewpairs.training.learners import Batch, NetworkLearner
from fewpairs.training.loop import one_cycle

__all__ = ["Adam", "Descent", "EnergyLearner"]


@dataclass(frozen=True, kw_only=True)
class Adam:
    """How to descend.

    Attributes:
        learning_rate: The step size of the cost.
        potential_learning_rate: That of the potential.
        betas: Adam's.
        max_grad_norm: Longer gradients are shortened to it; None leaves them.
        one_cycle: Whether the step size rises and falls once, or stays.
    """

    learning_rate: float
    potential_learning_rate: float
    betas: tuple[float, float]
    max_grad_norm: float | None
    one_cycle: bool


class Descent:
    """Creates what takes steps down the gradient of a loss.

    Arguments:
        energy: What is learnt.
        adam: How.
    """

    def __init__(self, energy: Energy, adam: Adam) -> None:
        self.energy, self.adam = energy, adam
        groups: list[dict[str, Any]] = [
            {"params": list(part.parameters()), "peak": rate, "lr": rate}
            for part, rate in (
                (energy.cost, adam.learning_rate),
                (energy.potential, adam.potential_learning_rate),
            )
        ]
        self.optimizer = torch.optim.Adam([group for group in groups if group["params"]], betas=adam.betas)

    def set_rates(self, done: float) -> None:
        """The step sizes for when this part of the work is done."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * (one_cycle(done) if self.adam.one_cycle else 1.0)

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        if self.adam.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.energy.parameters(), self.adam.max_grad_norm)
        self.optimizer.step()


class EnergyLearner(NetworkLearner[Batch]):
    """Abstract: the learner of an energy, whose step sizes follow the work that is done."""

    descent: Descent

    def step(self, done: float) -> Mapping[str, Tensor]:
        self.descent.set_rates(done)
        return super().step(done)
