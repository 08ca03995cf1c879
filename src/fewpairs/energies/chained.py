"""Chained plans: p(y|x) ∝ exp(−u(x, y)) of an energy alone. Nobody knows its normaliser; Langevin chains draw from it."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from fewpairs.energies.contrast import draw_afresh
from fewpairs.energies.energy import Energy
from fewpairs.energies.samplers import Langevin
from fewpairs.training.cuda_graphs import Recorder

__all__ = ["ChainedConditional", "ChainedPlan"]

N_TO_AVERAGE = 256  # draws for a mean


class ChainedPlan(nn.Module):
    """Creates the plan of an energy alone; `plan(x)` is the distribution of y given x, as far as chains reach it.

    Arguments:
        energy: u.
        dim_y: The numbers of a y.
        sampler: Moves the chains, each of them for all of its steps.
        start_std: The spread of the places where chains begin.
        n_at_once: The chains that run side by side.
    """

    def __init__(self, energy: Energy, *, dim_y: int, sampler: Langevin, start_std: float, n_at_once: int) -> None:
        super().__init__()
        self.energy, self.dim_y, self.sampler, self.start_std = energy, dim_y, sampler, start_std
        self.n_at_once = n_at_once

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> "ChainedConditional":
        return ChainedConditional(self, x, generator)


class ChainedConditional(Distribution):
    """Creates p(·|x) of a chained plan at some x's: draws, and means over draws.

    Arguments:
        plan: The plan.
        x: The x's, (rows, dim_x).
        generator: The source of randomness; None is torch's own.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real_vector

    def __init__(self, plan: ChainedPlan, x: Tensor, generator: torch.Generator | None) -> None:
        self.plan, self.x, self.generator = plan, x, generator
        super().__init__(x.shape[:1], torch.Size([plan.dim_y]), validate_args=False)

    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Tensor:
        """Draws y's of shape (*sample_shape, rows, dim_y)."""
        shape = torch.Size(sample_shape)
        drawn = torch.cat(list(self._run(shape.numel())), dim=1)
        return drawn.reshape(*shape, *self.batch_shape, *self.event_shape)

    @property
    def mean(self) -> Tensor:
        """The mean over many draws, (rows, dim_y)."""
        return torch.cat([drawn.mean(0) for drawn in self._run(N_TO_AVERAGE)])

    def _run(self, n_samples: int) -> Iterator[Tensor]:
        """y's for some x's after the others, (n_samples, rows, dim_y) in float64 on the CPU."""
        plan, recorder = self.plan, Recorder()
        n_draws = min(n_samples, plan.n_at_once)
        for part in self.x.split(plan.n_at_once // n_draws):
            drawn = []
            for done in range(0, n_samples, n_draws):
                n_now = min(n_draws, n_samples - done)
                y = draw_afresh(
                    plan.energy, part, n_now, plan.dim_y, plan.sampler, plan.start_std, self.generator, recorder
                )
                drawn.append(y.cpu().double())
            yield torch.cat(drawn)
