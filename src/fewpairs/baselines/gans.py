"""GANs: a generator G(x, z) of y from noise z, against a discriminator D that tells real y's from drawn ones.

D minimises E softplus(−D(real)) + E softplus(D(drawn)) + γ/2 E |∇_y D(real)|², G minimises E softplus(−D(drawn)): the
non-saturating loss with Mescheder et al.'s R1 penalty. `CGAN` asks D about pairs; `UGAN` asks it about y alone, and learns
which y belongs to which x by least squares.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from fewpairs.baselines.base import Baseline
from fewpairs.data.samples import Samples
from fewpairs.estimators.rules import Rule, above, at_least, whole
from fewpairs.networks.perceptrons import make_mlp
from fewpairs.training.learners import Step, descend

__all__ = ["CGAN", "UGAN", "logistic_error"]

BETAS = (0.5, 0.9)  # Adam's: little momentum, since what a network plays against keeps changing


class _Players(nn.Module):
    """Generator and discriminator, both perceptrons."""

    def __init__(self, dim_x: int, dim_y: int, dim_z: int, hidden: tuple[int, ...], *, sees_x: bool) -> None:
        super().__init__()
        self.dim_z = dim_z
        self.generator = make_mlp(dim_x + dim_z, dim_y, hidden=hidden, activation="leaky_relu")
        self.discriminator = make_mlp(dim_y + dim_x if sees_x else dim_y, 1, hidden=hidden, activation="leaky_relu")

    def draw(self, x: Tensor) -> Tensor:
        z = torch.randn(len(x), self.dim_z, dtype=x.dtype, device=x.device)
        return self.generator(torch.cat([x, z], dim=-1))


@dataclass(kw_only=True, eq=False, repr=False)
class _GAN(Baseline):
    """Abstract: what the two GANs share."""

    too_far: ClassVar[float] = 1.5
    sees_x: ClassVar[bool]  # whether the discriminator does

    hidden: tuple[int, ...] = (256, 256, 256)
    dim_z: int = 1
    batch_size: int = 128
    max_steps: int = 2000
    learning_rate: float = 1e-3
    discriminator_rate: float = 3e-4
    penalty: float = 0.01

    rules: ClassVar[dict[str, Rule]] = {
        **Baseline.rules,
        "dim_z": whole(1),
        "discriminator_rate": above(0),
        "penalty": at_least(0),
    }

    @abstractmethod
    def _discriminator_loss(self, players: _Players, batch: Samples) -> Tensor: ...

    @abstractmethod
    def _generator_loss(self, players: _Players, batch: Samples) -> Tensor: ...

    def _make(self, dim_x: int, dim_y: int) -> _Players:
        return _Players(dim_x, dim_y, self.dim_z, self.hidden, sees_x=self.sees_x)

    def _start(self, networks: _Players, samples: Samples) -> Step:
        adam_d = torch.optim.Adam(networks.discriminator.parameters(), lr=self.discriminator_rate, betas=BETAS)
        adam_g = torch.optim.Adam(networks.generator.parameters(), lr=self.learning_rate, betas=BETAS)
        tell_apart = descend(adam_d, lambda batch: self._discriminator_loss(networks, batch))
        deceive = descend(adam_g, lambda batch: self._generator_loss(networks, batch))
        return lambda batch: {"discriminator": tell_apart(batch)["loss"], "generator": deceive(batch)["loss"]}

    def _draw(self, networks: _Players, x: Tensor) -> Tensor:
        return networks.draw(x)


@dataclass(kw_only=True, eq=False, repr=False)
class CGAN(_GAN):
    """The discriminator sees pairs (x, y): it learns from the real ones, and judges what is drawn at all x's.

    Arguments:
        hidden: The widths of the hidden layers of both networks.
        dim_z: The dimension of the noise.
        discriminator_rate: The discriminator's learning rate; `learning_rate` is the generator's.
        penalty: γ, the weight of the R1 penalty; a larger one calms a game that swings.

    See `Baseline` for the others.
    """

    title: ClassVar[str] = "CGAN"
    learns_from: ClassVar[tuple[str, ...]] = ("pairs", "source")
    sees_x: ClassVar[bool] = True

    def _discriminator_loss(self, players: _Players, batch: Samples) -> Tensor:
        def belongs(y: Tensor) -> Tensor:
            return players.discriminator(torch.cat([y, batch.pairs_x], dim=-1))

        return logistic_error(belongs, batch.pairs_y, players.draw(batch.pairs_x).detach(), self.penalty)

    def _generator_loss(self, players: _Players, batch: Samples) -> Tensor:
        drawn = torch.cat([players.draw(batch.source), batch.source], dim=-1)
        return softplus(-players.discriminator(drawn)).mean()


@dataclass(kw_only=True, eq=False, repr=False)
class UGAN(_GAN):
    """The discriminator sees y alone, so every unpaired y teaches it; λ E |y − G(x, z)|² on the pairs ties y to x.

    The two terms disagree where p(y|x) is wide: least squares asks for its mean. So a look at held-out pairs would keep the first
    networks, whose cloud is far from the target; nothing is held out unless `held_out` says so, and the last networks are kept.

    Arguments:
        hidden: The widths of the hidden layers of both networks.
        dim_z: The dimension of the noise.
        discriminator_rate: The discriminator's learning rate; `learning_rate` is the generator's.
        penalty: γ, the weight of the R1 penalty.
        pair_weight: λ, the weight of the pairs.

    See `Baseline` for the others.
    """

    title: ClassVar[str] = "UGAN + ℓ²"
    learns_from: ClassVar[tuple[str, ...]] = ("pairs", "source", "target")
    sees_x: ClassVar[bool] = False

    learning_rate: float = 1e-4
    discriminator_rate: float = 1e-4
    pair_weight: float = 1.0
    held_out: float = 0.0

    rules: ClassVar[dict[str, Rule]] = {**_GAN.rules, "pair_weight": at_least(0)}

    def _discriminator_loss(self, players: _Players, batch: Samples) -> Tensor:
        return logistic_error(players.discriminator, batch.target, players.draw(batch.source).detach(), self.penalty)

    def _generator_loss(self, players: _Players, batch: Samples) -> Tensor:
        away = (batch.pairs_y - players.draw(batch.pairs_x)).square().sum(-1).mean()
        return softplus(-players.discriminator(players.draw(batch.source))).mean() + self.pair_weight * away


def logistic_error(discriminator: Callable[[Tensor], Tensor], real: Tensor, drawn: Tensor, penalty: float) -> Tensor:
    """The discriminator's logistic loss, and the R1 penalty on its slope at the real y's."""
    real = real.detach().requires_grad_()
    logit = discriminator(real)
    (slope,) = torch.autograd.grad(logit.sum(), real, create_graph=True)
    steep = slope.square().sum(-1).mean()
    return softplus(-logit).mean() + softplus(discriminator(drawn)).mean() + penalty / 2 * steep
