"""Novelty: how far a new x is from the x's seen in training. A plan answers for any x; far from all of them it only guesses."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

__all__ = ["Neighbourhood"]

N_KEPT = 1000  # x's of the training data that are remembered
WIDE = 100  # columns: of more, a tree looks at nearly all rows anyway, and one product of matrices does so sooner
FAR = 3.0  # an x is far beyond the 99 % quantile of the distances to the nearest neighbour by this many times its own excess


@dataclass(frozen=True)
class Neighbourhood:
    """Some x's of the training data, and how far from the nearest of them an x may be before it is far."""

    rows: Tensor
    reach: Tensor

    @classmethod
    def learn(cls, source: Tensor, random: np.random.RandomState) -> "Neighbourhood":
        kept = torch.from_numpy(random.permutation(len(source))[:N_KEPT]).to(source.device)
        rows = source[kept].cpu().double().unique(dim=0)
        distance = _distances(rows, rows, are_others=True)
        middle, high = np.quantile(distance, [0.5, 0.99]) if len(rows) > 1 else (0.0, 0.0)
        # The excess is over the median: in many dimensions all distances are alike, and a multiple would reach too far.
        reach = float(high + FAR * (high - middle)) or 1.0
        return cls(rows, torch.tensor(reach, dtype=torch.float64))

    @classmethod
    def unknown(cls, dim_x: int) -> "Neighbourhood":
        """That of a model whose file does not tell where its x's were."""
        return cls(torch.empty(0, dim_x, dtype=torch.float64), torch.tensor(torch.nan, dtype=torch.float64))

    def __call__(self, x: Tensor) -> np.ndarray:
        """The distance of each row to the nearest x, (rows,), as a part of the reach: above 1 is far."""
        if len(self.rows) == 0:
            raise ValueError(
                "This model comes from an older file, which does not hold x's of its training: how far others are from them "
                "is not known. Fit and save it again."
            )
        return _distances(x, self.rows) / float(self.reach)


def _distances(x: Tensor, rows: Tensor, *, are_others: bool = False) -> np.ndarray:
    """The distance of each x to the nearest of the rows, (n,); to the nearest but itself if the x's are these rows."""
    if rows.shape[1] <= WIDE:
        return cKDTree(rows).query(x, k=[2 if are_others else 1])[0][:, 0]
    # Half the squared distance, up to what depends on x alone: it tells which is the nearest, if not how near.
    order = rows.square().sum(1) / 2 - x @ rows.mT
    if are_others:
        order.fill_diagonal_(torch.inf)
    return (x - rows[order.argmin(1)]).norm(dim=1).numpy()
