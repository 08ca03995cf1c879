"""Bias: do the pairs come from where the population is?

Pairs may exist for a corner of the population alone. If they were selected by x, p(y|x) is the same there, and the likelihood
of the pairs stays right: training needs no weights. But held-out pairs then measure how good a model is where *pairs* are. To
say how good it is where the *population* is, a held-out pair counts with population(x) / pairs(x), estimated from its x and the
unpaired ones. If y had a part in the selection beyond x, no ratio of x repairs it, and nothing here can tell.

No ratio helps where there are no pairs at all. Held-out pairs say nothing about that part of the population, so it is taken at
its worst: as if every model but the one that ignores x were worth nothing there.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from fewpairs.data.checks import warn_user
from fewpairs.data.repeats import find_repeats, first_of_each
from fewpairs.shift.ratios import compare_samples, effective_size, estimate_density_ratio

__all__ = ["Bias", "find_coverage", "look_for_bias", "temper"]

LEVEL = 0.01  # a p-value below it is taken as bias
LEAST_ROWS = 10  # of pairs, repeats of an x being one, and of unpaired x's: fewer cannot tell
LEAST_EFFECTIVE = 0.1  # below this part of the pairs, they hardly overlap with the population
ENOUGH_COVERED = 0.8  # of the population: a model reaches a little beyond its pairs
MOST_ROWS = 2000  # of the population that are looked at for it
LEAST_TO_CHOOSE = 0.8  # a choice is made by as many effective pairs as this part of them


@dataclass(frozen=True)
class Bias:
    """What was found.

    Attributes:
        is_biased: Whether the pairs are taken to come from somewhere else than the population.
        p_value: Of "they do not"; NaN where it was not asked.
        relevance: How much each pair counts when it is held out; on average, the part of the population that lies where pairs
            are.
        effective_sample_size: As many pairs from the population itself would judge a model as well.
        n_clipped: The pairs whose relevance was cut.
        coverage: The part of the population that lies among the pairs.
    """

    is_biased: bool
    p_value: float
    relevance: np.ndarray
    effective_sample_size: float
    n_clipped: int
    coverage: float = 1.0

    @property
    def uncovered(self) -> float:
        """The part of the population about which the pairs say nothing; zero if it is small."""
        return max(1 - self.coverage / ENOUGH_COVERED, 0.0)

    def describe(self) -> dict[str, Any]:
        """All of it but the relevance of single pairs."""
        return {
            "is_biased": self.is_biased,
            "p_value": self.p_value,
            "effective_sample_size": self.effective_sample_size,
            "n_clipped": self.n_clipped,
            "coverage": self.coverage,
        }


def temper(relevance: np.ndarray) -> np.ndarray:
    """Relevance for choosing: its largest power, up to one, by which the pairs still count like most of them.

    What is told about a model takes the full relevance, which has no bias. But a choice between models by a quarter of the
    pairs is a lottery: where the pairs' corner was small, its noise cost more than the bias it removed.
    """
    relevance = relevance / relevance.max()

    def tempered(power: float) -> np.ndarray:
        return np.where(relevance > 0, relevance**power, 0.0)  # and not one, which 0⁰ is

    def effective_part(power: float) -> float:
        return effective_size(tempered(power)) / len(relevance)

    low, high = 0.0, 1.0
    if effective_part(high) >= LEAST_TO_CHOOSE:
        return relevance
    for _ in range(30):
        power = (low + high) / 2
        low, high = (power, high) if effective_part(power) >= LEAST_TO_CHOOSE else (low, power)
    return tempered(low)


def find_coverage(pairs_x: np.ndarray, unpaired_x: np.ndarray) -> float:
    """The part of the unpaired x's that are as near to a pair as some pair is to its nearest fellow, which is no repeat of it."""
    pairs_x = pairs_x[first_of_each(find_repeats(pairs_x, unpaired_x))]
    some = unpaired_x[np.random.default_rng(0).permutation(len(unpaired_x))[:MOST_ROWS]]
    spread = unpaired_x.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    tree = cKDTree(pairs_x / spread)
    reach = tree.query(pairs_x / spread, k=2)[0][:, 1].max()
    return float((tree.query(some / spread)[0] <= reach).mean())


def look_for_bias(
    pairs_x: np.ndarray, unpaired_x: np.ndarray, pairs_are: str, relevance: np.ndarray | None = None
) -> Bias:
    """Compares the x's of the pairs with the unpaired ones, and warns of what it finds.

    Arguments:
        pairs_x: The x's of the pairs, (P, dim_x).
        unpaired_x: The unpaired x's, which are the population, (Q, dim_x).
        pairs_are: "representative" asks nothing; "biased" takes it as known; "auto" tests for it.
        relevance: Population over pairs at the pairs' x's, up to a factor, if it is known. Then nothing is estimated.
    """
    n_pairs = len(pairs_x)
    none = Bias(False, float("nan"), np.ones(n_pairs), float(n_pairs), 0)
    n_places = _count_places(pairs_x, unpaired_x)
    if relevance is not None:
        if pairs_are == "representative":
            raise ValueError(
                'relevance says how biased the pairs are, and pairs_are="representative" that they are not: leave one out.'
            )
        has_enough = min(n_places, len(unpaired_x)) >= LEAST_ROWS
        coverage = find_coverage(pairs_x, unpaired_x) if has_enough else 1.0
        found = Bias(True, none.p_value, relevance / relevance.mean(), effective_size(relevance), 0, coverage)
        _warn_of_gaps(found)
        return found
    if pairs_are == "representative":
        return none
    if pairs_are == "biased" and len(unpaired_x) == 0:
        raise ValueError(
            'pairs_are="biased" needs X_unpaired: rows of the population that the pairs are a biased part of. None came.'
        )
    if min(n_places, len(unpaired_x)) < LEAST_ROWS:
        if pairs_are == "biased":
            warn_user(
                f"Pairs at {n_places} x's and {len(unpaired_x)} unpaired x's are too few to estimate how biased the pairs are; "
                "they all count alike."
            )
        return none
    p_value = compare_samples(pairs_x, unpaired_x, random_state=0)
    if pairs_are == "auto" and p_value > LEVEL:
        return Bias(False, p_value, np.ones(n_pairs), float(n_pairs), 0)
    ratio = estimate_density_ratio(unpaired_x, pairs_x, random_state=0)
    effective = ratio.overlap * ratio.effective_sample_size
    coverage = find_coverage(pairs_x, unpaired_x)
    found = Bias(True, p_value, ratio.overlap * ratio.weights, effective, ratio.n_clipped, coverage)
    if not _warn_of_gaps(found) and pairs_are == "auto":
        warn_user(
            f"The x's of the pairs are distributed unlike the unpaired x's (p = {p_value:.2g}). Held-out pairs are weighted "
            f"towards the unpaired ones, and count like {effective:.0f} of {n_pairs} pairs. "
            'pairs_are="biased" says that you know, "representative" that it does not matter.'
        )
    return found


def _count_places(pairs_x: np.ndarray, unpaired_x: np.ndarray) -> int:
    """How many x's the pairs have, repeats being one."""
    return len(pairs_x) if len(unpaired_x) == 0 else int(find_repeats(pairs_x, unpaired_x).max()) + 1


def _warn_of_gaps(bias: Bias) -> bool:
    """Warns if pairs and population hardly overlap; says whether it did."""
    n_pairs = len(bias.relevance)
    if bias.uncovered == 0 and bias.effective_sample_size >= LEAST_EFFECTIVE * n_pairs:
        return False
    text = (
        f"The pairs hardly overlap with the population: weighted towards it, {n_pairs} pairs count like "
        f"{bias.effective_sample_size:.1f}, and scores are as uncertain as that."
    )
    if bias.uncovered > 0:
        text += (
            f" {bias.coverage:.0%} of the unpaired x's lie among the pairs. Elsewhere p(y|x) is a guess, and scores are not "
            "about it; the model leans towards ignoring x. More pairs from there are what helps."
        )
    warn_user(text)
    return True
