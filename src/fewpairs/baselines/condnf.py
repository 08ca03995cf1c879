"""CondNF: a conditional normalising flow, by the likelihood of the pairs; and the same with a marginal likelihood of y.

p(y|x) = p_z(G⁻¹(y|x)) |∂G⁻¹/∂y|, G made of affine couplings (RealNVP) or of splines. `CondNFSS` adds the paper's natural loss,
−mean_target log mean_source p(y|x), with all cross terms formed: every y of a minibatch meets every x of it.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor, nn

from fewpairs.baselines.base import LikelihoodBaseline
from fewpairs.data.samples import Samples
from fewpairs.estimators.rules import Rule, one_of, whole

__all__ = ["CondNF", "CondNFSS"]


@dataclass(kw_only=True, eq=False, repr=False)
class CondNF(LikelihoodBaseline):
    """A conditional normalising flow, by −mean_pairs log p(y|x).

    Arguments:
        flow: "realnvp" has affine couplings, as in the paper; "spline" has monotonic rational-quadratic splines, one output
            after the other. A single output has nothing to couple: "realnvp" is then one Gaussian for each x, while "spline"
            can have any shape.
        n_transforms: The couplings, or the splines.
        hidden: The widths of the hidden layers of each one's network.
        weight_decay: AdamW's.

    See `Baseline` for the others.
    """

    title: ClassVar[str] = "CondNF"
    learns_from: ClassVar[tuple[str, ...]] = ("pairs",)

    flow: str = "realnvp"
    n_transforms: int = 5
    hidden: tuple[int, ...] = (128, 128)
    learning_rate: float = 3e-4

    rules: ClassVar[dict[str, Rule]] = {
        **LikelihoodBaseline.rules,
        "flow": one_of("realnvp", "spline"),
        "n_transforms": whole(1),
    }

    def _make(self, dim_x: int, dim_y: int) -> nn.Module:
        flows = _import_flows()
        make = {"realnvp": flows.RealNVP, "spline": flows.NSF}[self.flow]
        return make(
            dim_y,
            dim_x,
            transforms=self.n_transforms,
            hidden_features=list(self.hidden),
        )

    def _check_sizes(self, config: Any, state: dict[str, Tensor]) -> None:
        least = self.n_transforms * sum(first * second for first, second in pairwise((1, *self.hidden, 1)))
        if least > sum(tensor.numel() for tensor in state.values()):  # flows cannot be asked for their sizes alone
            raise RuntimeError(f"by its settings it has at least {least} numbers, and the file holds fewer")


@dataclass(kw_only=True, eq=False, repr=False)
class CondNFSS(CondNF):
    """The same flow, by −mean_pairs log p(y|x) − mean_target log p̂(y), p̂ the average of p(·|x) over the source.

    Arguments:
        cross_size: The x's of the source, and the y's of the target, that meet in a step: its cost grows with the square.

    See `CondNF` and `Baseline` for the others.
    """

    title: ClassVar[str] = "CondNF (SS)"
    learns_from: ClassVar[tuple[str, ...]] = ("pairs", "source", "target")

    cross_size: int = 64
    max_steps: int = 2000

    rules: ClassVar[dict[str, Rule]] = {
        **CondNF.rules,
        "cross_size": whole(1),
    }

    def _loss(self, networks: nn.Module, batch: Samples) -> Tensor:
        some_x, some_y = batch.source[: self.cross_size], batch.target[: self.cross_size]
        return super()._loss(networks, batch) - log_marginal(networks, some_x, some_y).mean()


def log_marginal(networks: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """log mean_q p(y_r | x_q) for each y of the target, over all x's of the source."""
    x, y = source.repeat(len(target), 1), target.repeat_interleave(len(source), 0)
    cross = networks(x).log_prob(y).unflatten(0, (len(target), len(source)))  # (R, Q)
    return cross.logsumexp(1) - math.log(len(source))


def _import_flows() -> Any:
    try:
        from zuko import flows
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Normalising flows need the library zuko: pip install 'fewpairs[baselines]' brings it."
        ) from error
    return flows
