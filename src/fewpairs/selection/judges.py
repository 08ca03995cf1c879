"""Judges: what each held-out pair counts, and the mean that scores have then. Search, stacking and bias share one."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewpairs.data.folds import Folds
from fewpairs.data.samples import Samples
from fewpairs.shift.bias import temper

__all__ = ["Judge"]

LEAST_FOR_ERROR = 5  # pairs: the spread of fewer says nothing about how far off their mean is


@dataclass(frozen=True)
class Judge:
    """Weighs the scores of held-out pairs.

    Attributes:
        folds: Who has not seen which pair.
        weight: What each pair counts in a choice, (P,); they sum up to as many pairs as they are worth.
        weight_to_tell: What it counts in what the user is told: without the tempering that keeps a choice from being a lottery.
        uncovered: The part of the population about which the pairs say nothing.
    """

    folds: Folds
    weight: Tensor
    weight_to_tell: Tensor
    uncovered: float = 0.0

    @classmethod
    def of(cls, samples: Samples, folds: Folds, uncovered: float = 0.0) -> "Judge":
        """The judge by the weights and the relevance of pairs."""
        relevance, weight = samples.relevance.cpu().double(), samples.pairs_weight.cpu().double()
        # What held-out pairs count, less the part of the population they say nothing about.
        to_tell = relevance.mean() * _evidence(weight * relevance)
        to_choose = relevance.mean() * _evidence(weight * torch.from_numpy(temper(relevance.numpy())))
        return cls(folds, to_choose, to_tell, uncovered)

    @property
    def is_held_out(self) -> Tensor:
        return self.folds.pairs >= 0

    @property
    def has_pairs(self) -> bool:
        """Whether any pair is held out at all."""
        return bool(self.is_held_out.any())

    def first(self, n_folds: int) -> "Judge":
        """The same with the pairs of the first folds alone."""
        return replace(self, folds=self.folds.first(n_folds))

    def mean(self, scores: Tensor, *, to_tell: bool = False) -> tuple[float, float]:
        """The weighted mean over the pairs that were held out (the others are NaN), and its standard error; NaN where they are
        too few to tell one. Weights are those to choose by, or those of what the user is told."""
        is_held_out = ~torch.isnan(scores)
        kept, share = scores[is_held_out], (self.weight_to_tell if to_tell else self.weight)[is_held_out]
        if len(kept) == 0:
            return math.nan, math.nan
        share = share / share.sum()
        mean = (share * kept).sum()
        variance = (share**2 * (kept - mean) ** 2).sum() * (len(kept) / max(len(kept) - 1, 1))
        return float(mean), float(variance.sqrt()) if len(kept) >= LEAST_FOR_ERROR else math.nan


def _evidence(weight: Tensor) -> Tensor:
    """Weights at the scale where they add up to as many pairs as they are worth: their effective sample size."""
    return weight * weight.sum() / (weight**2).sum()
