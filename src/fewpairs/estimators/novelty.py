"""Novelty: how far a new x is from the x's seen in training. A plan answers for any x; far from all of them it only guesses."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

__all__ = ["Neighbourhood"]

N_KEPT = 1000  # x's of the training data that are remembered
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
        distance = cKDTree(rows).query(rows, k=2)[0][:, 1]
        middle, high = np.quantile(distance, [0.5, 0.99]) if len(rows) > 1 else (0.0, 0.0)
        # The excess is over the median: in many dimensions all distances are alike, and a multiple would reach too far.
        reach = float(high + FAR * (high - middle)) or 1.0
        return cls(rows, torch.tensor(reach, dtype=torch.float64))

    def __call__(self, x: Tensor) -> np.ndarray:
        """The distance of each row to the nearest x, (rows,), as a part of the reach: above 1 is far."""
        return cKDTree(self.rows).query(x.numpy())[0] / float(self.reach)
