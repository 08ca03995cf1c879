"""GNOT: neural optimal transport with a pair-guided cost (Asadulaev et al.): a map T from the source onto the target.

    max over f, min over T of   w E_pairs |y − T(x)|² − E_source f(T(x)) + E_target f(y)

The potential f is what keeps T's cloud on the target; the pairs say which of the maps onto it is meant.
"""

from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import torch
from torch import Tensor, nn

from fewpairs.baselines.base import Baseline
from fewpairs.data.samples import Samples
from fewpairs.estimators.rules import Rule, above, at_least, whole
from fewpairs.networks.perceptrons import make_mlp
from fewpairs.training.learners import Step, descend

__all__ = ["GNOT"]


@dataclass(kw_only=True, eq=False, repr=False)
class GNOT(Baseline):
    """A deterministic map onto the target that keeps the pairs.

    Where p(y|x) is wide no map predicts y, and a look at held-out pairs would keep the first networks, whose cloud is far from
    the target; so nothing is held out unless `held_out` says so, and the last networks are kept.

    Arguments:
        hidden: The widths of the hidden layers of both networks.
        pair_weight: w, the weight of the pairs.
        n_map_steps: The steps of the map for each of the potential; `max_steps` counts the map's.
        potential_rate: The potential's learning rate; `learning_rate` is the map's.

    See `Baseline` for the others.
    """

    title: ClassVar[str] = "GNOT"
    learns_from: ClassVar[tuple[str, ...]] = ("pairs", "source", "target")
    is_stochastic: ClassVar[bool] = False

    hidden: tuple[int, ...] = (128, 128, 128)
    pair_weight: float = 1.0
    n_map_steps: int = 5
    potential_rate: float = 1e-4
    learning_rate: float = 1e-4
    max_steps: int = 6000
    batch_size: int = 128
    held_out: float = 0.0

    rules: ClassVar[dict[str, Rule]] = {
        **Baseline.rules,
        "pair_weight": at_least(0),
        "n_map_steps": whole(1),
        "potential_rate": above(0),
    }

    def _make(self, dim_x: int, dim_y: int) -> nn.ModuleDict:
        return nn.ModuleDict(
            {
                "map": make_mlp(dim_x, dim_y, hidden=self.hidden, activation="relu"),
                "potential": make_mlp(dim_y, 1, hidden=self.hidden, activation="relu"),
            }
        )

    def _start(self, networks: nn.ModuleDict, samples: Samples) -> Step:
        transport, potential = networks["map"], networks["potential"]

        def map_loss(batch: Samples) -> Tensor:
            cost = (batch.pairs_y - transport(batch.pairs_x)).square().sum(-1).mean()
            return self.pair_weight * cost - potential(transport(batch.source)).mean()

        def potential_loss(batch: Samples) -> Tensor:
            return potential(transport(batch.source).detach()).mean() - potential(batch.target).mean()

        move = descend(torch.optim.Adam(transport.parameters(), lr=self.learning_rate), map_loss)
        price = descend(torch.optim.Adam(potential.parameters(), lr=self.potential_rate), potential_loss)
        numbers = count()

        def step(batch: Samples) -> dict[str, Tensor]:
            if next(numbers) % self.n_map_steps == 0:
                price(batch)
            return {"map": move(batch)["loss"]}

        return step

    def _draw(self, networks: nn.ModuleDict, x: Tensor) -> Tensor:
        return networks["map"](x)
