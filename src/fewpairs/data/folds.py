"""Folds: which pairs each member of an ensemble does not see, and which rows of source and target go with them.

The pairs are cut into folds; member f learns from all others and is judged by fold f. A held-out pair must leave no trace
in what a member learns from: its own x and y are kept out of source and target as well, and so are near-duplicates, such
as the same rows handed in once more as unpaired ones. Near-duplicate pairs share a fold.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from fewpairs.data.repeats import group_near
from fewpairs.data.samples import Samples

__all__ = ["Folds", "hold_out", "row_keys"]

LARGEST = 2000  # pairs in one fold: that many judge to some hundredths of a nat, the others are better learnt from
# Rows are the same thing twice if they are nearer than this part of the distance that evenly laid out rows would have …
NEAR = 0.01
NEAREST = 1e-3  # … and no farther apart than this many standard deviations
NEW = -2  # the fold of a pair before it has one


@dataclass(frozen=True)
class Folds:
    """The fold of each row, −1 where every member may see it.

    Attributes:
        n_folds: How many there are; 1 holds nothing out.
        pairs: (P,).
        source: (Q,).
        target: (R,).
    """

    n_folds: int
    pairs: Tensor
    source: Tensor
    target: Tensor

    @classmethod
    def none(cls, samples: Samples, n_members: int = 1) -> "Folds":
        """Members that see everything."""
        return cls(
            n_members, *(torch.full((len(rows),), -1) for rows in (samples.pairs_x, samples.source, samples.target))
        )

    @classmethod
    def cut(
        cls,
        samples: Samples,
        n_folds: int,
        random: np.random.RandomState,
        known: Sequence[int | None] | None = None,
    ) -> "Folds":
        """Deals the pairs out to folds at random; expects standardised samples.

        Arguments:
            samples: What to cut.
            n_folds: How many folds to make.
            random: The source of randomness.
            known: The folds of pairs that are known from before and must not change (−1: all members have seen the pair), None
                for new pairs.
        """
        x, y = (tensor.double().cpu().numpy() for tensor in (samples.pairs_x, samples.pairs_y))
        if known is None:
            known, n_folds = [None] * len(x), min(n_folds, len(x))
        old = np.array([NEW if one is None else one for one in known])
        pairs = _deal(np.concatenate([x, y], axis=1), n_folds, random, old)
        return cls(
            n_folds,
            torch.from_numpy(pairs),
            torch.from_numpy(_trace(samples.source.double().cpu().numpy(), x, pairs)),
            torch.from_numpy(_trace(samples.target.double().cpu().numpy(), y, pairs)),
        )

    @classmethod
    def cut_by_class(cls, samples: Samples, n_folds: int, random: np.random.RandomState) -> "Folds":
        """Folds in which every class is spread evenly; the only row of a class is held out from nobody."""
        labels = samples.pairs_y.cpu().long().squeeze(-1).numpy()
        pairs, next_fold = np.full(len(labels), -1), 0
        for label in np.unique(labels):
            rows = random.permutation(np.flatnonzero(labels == label))
            if len(rows) > 1:
                pairs[rows] = (next_fold + np.arange(len(rows))) % n_folds
                next_fold += len(rows)
        source = np.full(len(samples.source), -1)
        source[: len(pairs)] = pairs  # its own x is no unlabelled row to the member that it judges
        target = torch.full((len(samples.target),), -1)
        return cls(n_folds, torch.from_numpy(pairs), torch.from_numpy(source), target)

    def to(self, device: torch.device) -> "Folds":
        return Folds(self.n_folds, self.pairs.to(device), self.source.to(device), self.target.to(device))

    def enough_for(self, n_pairs: int) -> int:
        """How many folds it takes to hold out so many pairs; two at the least."""
        sizes = torch.bincount(self.pairs[self.pairs >= 0], minlength=self.n_folds).cumsum(0)
        return min(max(int((sizes < n_pairs).sum()) + 1, 2), self.n_folds)

    def first(self, n_folds: int) -> "Folds":
        """The first folds alone; every member sees the rows of the others."""
        parts = (torch.where(rows < n_folds, rows, -1) for rows in (self.pairs, self.source, self.target))
        return Folds(n_folds, *parts)

    def rows(self) -> Tensor:
        """The pairs of each fold, (n_folds, most), filled up with −1."""
        folds = [torch.nonzero(self.pairs == fold).squeeze(1) for fold in range(self.n_folds)]
        return torch.nn.utils.rnn.pad_sequence(folds, batch_first=True, padding_value=-1)


def row_keys(samples: Samples) -> list[int]:
    """A number for each pair by which it is known again, whatever rows come with it."""
    rows = torch.cat([samples.pairs_x, samples.pairs_y], dim=1).cpu().numpy()
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return [int.from_bytes(digest, "little", signed=True) for digest in digests]


def _deal(rows: np.ndarray, n_folds: int, random: np.random.RandomState, known: np.ndarray) -> np.ndarray:
    """A fold for each row: groups of near-duplicates in random order, each to the fold that is smallest so far. A known fold
    (others are NEW) stays, and draws the rest of its group along."""
    group = group_near(rows, _near(rows))
    sizes = np.bincount(group)
    if sizes.max() > len(rows) / n_folds:  # so many equal rows are the nature of the data
        group, sizes = np.arange(len(rows)), np.ones(len(rows), dtype=int)
    fold_of_group = np.full(len(sizes), NEW)
    np.maximum.at(fold_of_group, group, known)
    filled = np.bincount(fold_of_group[group][fold_of_group[group] >= 0], minlength=n_folds)
    for one in random.permutation(np.flatnonzero(fold_of_group == NEW)):
        fold = int(filled.argmin())
        if filled[fold] >= LARGEST:
            break
        fold_of_group[one] = fold
        filled[fold] += sizes[one]
    return np.maximum(np.where(known == NEW, fold_of_group[group], known), -1)


def _trace(rows: np.ndarray, paired: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """The fold of the pairs that each row gives away, −1 for none.

    A value that pairs of several folds have, or that the rows hold more often than the pairs explain (once as their own,
    once repeated among the unpaired rows), is a common value, such as an integer, and gives nothing away.
    """
    outcome = np.full(len(rows), -1)
    tree = cKDTree(paired)
    for reach in (_near(paired), 0.0):  # what is common among near values may still be told by the exact one
        group = group_near(paired, reach)
        distance, nearest = tree.query(rows, p=np.inf, distance_upper_bound=reach + 1e-12)
        matched = np.flatnonzero(np.isfinite(distance) & (outcome < 0))
        of_row = group[nearest[matched]]
        least = np.full(group.max() + 1, fold.max() + 1)
        most = np.full(group.max() + 1, -2)
        np.minimum.at(least, group, fold)
        np.maximum.at(most, group, fold)
        is_rare = np.bincount(of_row, minlength=len(least)) <= 2 * np.bincount(group)
        outcome[matched] = np.where(is_rare & (least == most), least, -1)[of_row]
    return outcome


def _near(rows: np.ndarray) -> float:
    """How near two rows must be to be the same thing twice. So many rows of spread one, evenly laid out, would be n^(−1/d)
    apart: how far apart they really are does not tell, since all of them may come twice."""
    n_rows, dim = rows.shape
    return min(NEAR * n_rows ** (-1 / dim), NEAREST)


def hold_out(samples: Samples, share: float, random: np.random.RandomState) -> tuple[Samples, Tensor, Tensor]:
    """Keeps a share of the pairs apart, with all their traces in source and target: what is left, and their x's and y's."""
    if share == 0:
        return samples, samples.pairs_x[:0], samples.pairs_y[:0]
    folds = Folds.cut(samples, max(round(1 / share), 2), random).to(samples.source.device)
    here, p, q, r = folds.pairs == 0, folds.pairs != 0, folds.source != 0, folds.target != 0
    left = Samples(samples.pairs_x[p], samples.pairs_y[p], samples.source[q], samples.target[r])
    return left, samples.pairs_x[here], samples.pairs_y[here]
