"""Repeats: rows that are the same thing once more, such as the years of one station.

Three years of forty stations are forty places and not a hundred and twenty. Where it matters how many independent rows there
are, or how far apart they lie, all repeats of a row are one. They may be equal, or nearly: a place that was measured twice.

A value that comes twice may be the nature of the data as well: integers, categories, a clump of the population. Then every
row is a draw of its own, how often a value comes is all there is to see, and nothing is a repeat. Two samples tell one from the
other: independent draws meet rows of the other sample as often as their own fellows, repeats meet their own alone.
"""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial import cKDTree
from scipy.stats import binom

__all__ = ["find_repeats", "first_of_each", "group_near"]

FARTHEST = 0.05  # standard deviations between a row and its repeat
GAP = 3  # times that: hardly two different rows are nearer …
MOST_IN_GAP = 0.2  # … which means this part of them
CHANCE = 1e-4  # of so few in the gap among rows without repeats
LEAST_DIFFERENT = 10  # rows: fewer may be clumps of anything
N_NEIGHBOURS = 10
MOST_COLUMNS = 25  # with more of them finding neighbours is slow, and repeats must be equal
MORE_FELLOWS = 2  # times as many in its own sample as in the other: a row is repeated
FEW_VALUES = 2  # repeats that a row has by chance where values are few


def find_repeats(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Numbers the rows in the order in which they come; all repeats of a row share a number.

    Arguments:
        rows: The sample in question, (n, columns).
        others: Independent rows that tell which values are common, (m, columns).
    """
    spread = (rows.std(axis=0) + others.std(axis=0)) / 2
    spread = np.where(spread > 0, spread, 1.0)
    rows, others = rows / spread, others / spread
    reach = _find_reach(rows)
    group = group_near(rows, reach)
    if group.max() + 1 == len(rows) or _is_nature(rows, others, group, reach):
        return np.arange(len(rows))
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    return first.argsort().argsort()[group]


def first_of_each(numbers: np.ndarray) -> np.ndarray:
    """Where each number comes first."""
    return np.unique(numbers, return_index=True)[1]


def group_near(rows: np.ndarray, reach: float) -> np.ndarray:
    """Numbers rows so that those within reach of each other, directly or through others, share one."""
    _, same = np.unique(rows, axis=0, return_inverse=True)
    if reach == 0:
        return same.reshape(-1)
    different = rows[np.unique(same, return_index=True)[1]]
    links = cKDTree(different).query_pairs(reach, p=np.inf, output_type="ndarray")
    graph = coo_array((np.ones(len(links)), (links[:, 0], links[:, 1])), shape=(len(different), len(different)))
    return connected_components(graph, directed=False)[1][same.reshape(-1)]


def _find_reach(rows: np.ndarray) -> float:
    """How far a row may be from its repeat: as far as there is a wide gap between that and other rows; zero if there is none.

    The steps of a tree through all rows are within repeats or between them. Without repeats steps have all lengths: on a line
    they are exponential, and of those longer than t the part that is shorter than 2t is the part of all that is shorter than t;
    in more dimensions, and up to 3t, it is larger.
    """
    different = np.unique(rows, axis=0)
    n_steps = len(different) - 1
    if n_steps < LEAST_DIFFERENT or rows.shape[1] > MOST_COLUMNS:
        return 0.0
    length, fellow = cKDTree(different).query(different, k=min(N_NEIGHBOURS, n_steps) + 1, p=np.inf)
    start = np.repeat(np.arange(n_steps + 1), length.shape[1] - 1)
    graph = coo_array((length[:, 1:].ravel(), (start, fellow[:, 1:].ravel())), shape=(n_steps + 1, n_steps + 1))
    step = np.sort(minimum_spanning_tree(graph.tocsr()).data)  # without those that lead farther than to neighbours
    within = np.searchsorted(step, step, side="right")
    between = n_steps - within
    in_gap = np.searchsorted(step, GAP * step, side="right") - within
    is_reach = (step <= FARTHEST) & (between >= LEAST_DIFFERENT - 1) & (in_gap <= MOST_IN_GAP * between)
    is_reach &= binom.cdf(in_gap, between, within / n_steps) < CHANCE
    return float(step[is_reach].max(initial=0.0)) * (1 + 1e-9)  # steps of a grid are equal up to rounding


def _is_nature(rows: np.ndarray, others: np.ndarray, group: np.ndarray, reach: float) -> bool:
    """Whether rows of one group are independent draws all the same."""
    alike = rows[first_of_each(group)][group]
    if reach > 0:
        distance, nearest = cKDTree(rows).query(others, p=np.inf)
        others = np.where((distance <= reach)[:, None], alike[nearest], others)
    value = np.unique(np.concatenate([alike, others]), axis=0, return_inverse=True)[1].reshape(-1)
    n, m = len(rows), len(others)
    n_own, n_theirs = (np.bincount(part, minlength=value.max() + 1) for part in (value[:n], value[n:]))
    # How likely two rows are equal: of this sample, of the other, one of each.
    own = (n_own * (n_own - 1)).sum() / max(n * (n - 1), 1)
    theirs = (n_theirs * (n_theirs - 1)).sum() / max(m * (m - 1), 1)
    if own <= MORE_FELLOWS * (n_own * n_theirs).sum() / (n * m):
        return True
    # Of few values one sample may have what the other hardly has: that is a difference between them, and no repeat.
    is_shared = max(n_own[n_theirs > 0].sum() / n, n_theirs[n_own > 0].sum() / m) > 0.5
    return bool(is_shared and min(n, m) * min(own, theirs) >= FEW_VALUES)
