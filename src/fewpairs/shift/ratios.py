"""Density ratios: how much more likely a row is under one sample's distribution than under another's.

A classifier that tells the rows of the two samples apart knows their ratio. With s(x) the probability that a row at x is of the
numerator, and n₁ rows of the numerator, n₀ of the denominator,

    numerator(x) / denominator(x)  =  (n₀ / n₁) · s(x) / (1 − s(x)).

Every row is scored by a classifier that has not seen it, and the scores are calibrated. "least_squares" (uLSIF, Kanamori et
al.) fits the ratio itself instead. `compare_samples` is the classifier as a two-sample test.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import logit
from sklearn.base import ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils import check_random_state, check_scalar

from fewpairs.data import checks
from fewpairs.data.repeats import find_repeats, first_of_each

__all__ = ["DensityRatio", "compare_samples", "effective_size", "estimate_density_ratio"]

N_FOLDS = 5
MOST_ROWS = 5000  # rows of a sample that a classifier learns from: more hardly move it
LEAST_PROBABILITY = 1e-6
N_CENTRES = 100
N_PERMUTATIONS = 999
MOST_COLUMNS = 25
RIDGE = 0.03


@dataclass(frozen=True)
class DensityRatio:
    """An estimated ratio of two densities.

    Attributes:
        weights: The ratio at the denominator's rows, clipped and scaled to a mean of one. Repeats of a row share the weight that
            it has if it comes once.
        effective_sample_size: (Σ weights)² / Σ weights²: so many rows of equal weight say as much about a mean.
        n_clipped: How many weights were cut at the largest one allowed; repeats are one.
        overlap: The part of the numerator's distribution that lies where the denominator has rows, at most one: the mean ratio
            at these rows before it was scaled.
        ratio: The ratio at new rows, neither clipped nor scaled: an array (rows, columns) → (rows,).
        n_columns: The columns of a row.
        names: Their names, if the numerator had any.
    """

    weights: np.ndarray
    effective_sample_size: float
    n_clipped: int
    overlap: float
    ratio: Callable[[np.ndarray], np.ndarray]
    n_columns: int
    names: list[str] | None = None

    def __call__(self, rows: Any) -> np.ndarray:
        return self.ratio(checks.as_rows(rows, "rows", n_columns=self.n_columns, names=self.names))


def estimate_density_ratio(
    numerator: Any,
    denominator: Any,
    *,
    method: str | ClassifierMixin = "classifier",
    largest: float = 20.0,
    random_state: int | np.random.RandomState | None = None,
) -> DensityRatio:
    """Estimates numerator(x) / denominator(x) from a sample of each, at the denominator's rows and as a function.

    Averages over the denominator's rows with these weights are averages over the numerator's distribution, as far as that lies
    where the denominator has rows: look at `overlap`. A difference that squares and products of columns do not show, such as
    a gap in the middle, needs a classifier of its own as `method`.

    Arguments:
        numerator: Rows of the distribution above the line, (n₁, columns).
        denominator: Rows of the distribution below it, (n₀, columns).
        method: "classifier", a logistic regression on squares and products; "least_squares"; or any scikit-learn classifier
            with `predict_proba`.
        largest: Weights are cut at so many times their mean.
        random_state: The source of randomness.

    Example:
        >>> random = np.random.default_rng(0)
        >>> ratio = estimate_density_ratio(random.normal(1, 1, (2000, 1)), random.normal(0, 1, (2000, 1)), random_state=0)
        >>> float(np.round(ratio([[0.5]])[0], 1))
        1.0
    """
    check_scalar(largest, "largest", Real, min_val=1)
    above, below = _two_samples(numerator, "numerator", denominator, "denominator")
    # A repeat in another fold would tell what a classifier should not have seen, so each fold has different rows alone.
    number = find_repeats(below, above)
    above, below = above[first_of_each(find_repeats(above, below))], below[first_of_each(number)]
    if min(len(above), len(below)) < N_FOLDS:
        raise ValueError(
            f"A ratio needs at least {N_FOLDS} rows of each sample that differ, but {len(above)} and {len(below)} came. With so "
            "few, take all weights as equal."
        )
    random = check_random_state(random_state)
    if isinstance(method, str) and method == "least_squares":
        ratio = _fit_least_squares(above, below, random)
        values = ratio(below)
    elif isinstance(method, str) and method != "classifier":
        raise ValueError(f'method must be "classifier", "least_squares" or a classifier, but {method!r} came.')
    elif not isinstance(method, str) and not hasattr(method, "predict_proba"):
        raise ValueError(
            f"method must be a classifier with predict_proba, but {method!r} came. CalibratedClassifierCV gives it "
            "to those that have none."
        )
    else:
        classifier = _quadratic(above.shape[1]) if isinstance(method, str) else method
        values, ratio = _classify(above, below, classifier, random)
    weights, n_clipped = _clip(values, largest)
    weights = (weights / np.bincount(number))[number] * (len(number) / len(below))
    overlap, names = min(float(values.mean()), 1.0), checks.column_names(checks.unwrap(numerator))
    return DensityRatio(weights, effective_size(weights), n_clipped, overlap, ratio, above.shape[1], names)


def effective_size(weight: np.ndarray) -> float:
    """(Σ w)² / Σ w²: so many rows of equal weight say as much about a mean."""
    weight = weight / weight.max()  # squares of tiny numbers are zero
    return float(weight.sum() ** 2 / (weight**2).sum())


def compare_samples(rows: Any, others: Any, *, random_state: int | np.random.RandomState | None = None) -> float:
    """The p-value of "both samples come from one distribution", by a classifier and permutations.

    A linear classifier on squares and products scores rows that it has not seen, and the statistic is how well its scores go with
    the labels. Labels dealt out anew have the same chance under the hypothesis. The scores are linear in the labels, so all
    permutations are one matrix product. Repeats of a row are one row: the years of a station were not drawn one by one.

    Arguments:
        rows: One sample, (n, columns).
        others: The other, (m, columns).
        random_state: The source of randomness.
    """
    random = check_random_state(random_state)
    x, y = (_some(sample, random) for sample in _two_samples(rows, "rows", others, "others"))
    x, y = x[first_of_each(find_repeats(x, y))], y[first_of_each(find_repeats(y, x))]
    both = np.concatenate([x, y])
    known = make_pipeline(*_features(both.shape[1])).fit_transform(both)
    label = (np.arange(len(both)) < len(x)) - len(x) / len(both)
    labels = np.stack([label, *(random.permutation(label) for _ in range(N_PERMUTATIONS))], axis=1)
    fold, statistic = random.permutation(len(both)) % N_FOLDS, np.zeros(labels.shape[1])
    for number in range(N_FOLDS):
        here = fold == number
        square = known[~here].T @ known[~here] / (~here).sum() + RIDGE * np.eye(known.shape[1])
        slopes = np.linalg.solve(square, known[~here].T @ labels[~here])
        statistic += (labels[here] * (known[here] @ slopes)).sum(0)
    return float((statistic >= statistic[0] - 1e-12 * abs(statistic[0])).mean())


def _two_samples(rows: Any, name: str, others: Any, name_of_others: str) -> tuple[np.ndarray, np.ndarray]:
    names = checks.column_names(checks.unwrap(rows))
    x, y = checks.as_rows(rows, name), checks.as_rows(others, name_of_others, names=names)
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"Both samples must have the same columns, but {name} has {x.shape[1]} and {name_of_others} has {y.shape[1]}. Pass "
            "the columns that both have, in one order."
        )
    return x, y


def _features(n_columns: int) -> list[Any]:
    """Squares and products of the columns, at one scale; of very many columns, which have more of them than rows, none."""
    degree = 2 if n_columns <= MOST_COLUMNS else 1
    return [StandardScaler(), PolynomialFeatures(degree, include_bias=False), StandardScaler()]


def _quadratic(n_columns: int) -> ClassifierMixin:
    """Logistic regression on squares and products: exact where both samples are Gaussian. Its penalty is chosen by their rows."""
    last = LogisticRegression(max_iter=300)
    search = GridSearchCV(last, {"C": np.logspace(-3, 2, 6)}, cv=3, scoring="neg_log_loss")
    return make_pipeline(*_features(n_columns), search)


def _classify(
    above: np.ndarray, below: np.ndarray, classifier: ClassifierMixin, random: np.random.RandomState
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """The ratio at the denominator's rows, each by a classifier that has not seen it, and as a function."""
    scores, label = _score_out_of_fold(above, below, classifier, random)
    # A straight line from scores to log-odds: classifiers that are too sure of themselves are brought back by it.
    calibration = LogisticRegression(C=np.inf).fit(scores[:, None], label)
    log_factor = np.log(len(below) / len(above))
    values = np.exp(calibration.decision_function(scores[label == 0][:, None]) + log_factor)
    everything = np.concatenate([_some(above, random), _some(below, random)])
    n_above = min(len(above), MOST_ROWS)
    final = clone(classifier).fit(everything, np.arange(len(everything)) < n_above)
    # The last classifier saw a part of larger samples: its odds are those of the parts.
    seen = np.log((len(above) / n_above) / (len(below) / (len(everything) - n_above)))

    def ratio(rows: np.ndarray) -> np.ndarray:
        own = _log_odds(final, rows) + seen
        return np.exp(calibration.decision_function(own[:, None]) + log_factor)

    return values, ratio


def _score_out_of_fold(
    above: np.ndarray, below: np.ndarray, classifier: ClassifierMixin, random: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """The log-odds of every row for the first sample, by a classifier that has not seen it, and its label."""
    rows = np.concatenate([above, below])
    label = (np.arange(len(rows)) < len(above)).astype(int)
    scores = np.empty(len(rows))
    for train, test in StratifiedKFold(N_FOLDS, shuffle=True, random_state=random).split(rows, label):
        of_above, of_below = train[label[train] == 1], train[label[train] == 0]
        some = np.concatenate([_some(of_above, random), _some(of_below, random)])
        seen = np.log(len(of_above) / min(len(of_above), MOST_ROWS) * min(len(of_below), MOST_ROWS) / len(of_below))
        scores[test] = _log_odds(clone(classifier).fit(rows[some], label[some]), rows[test]) + seen
    return scores, label


def _some(rows: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    return rows if len(rows) <= MOST_ROWS else rows[random.choice(len(rows), MOST_ROWS, replace=False)]


def _log_odds(classifier: Any, rows: np.ndarray) -> np.ndarray:
    probability = classifier.predict_proba(rows)[:, 1]
    return logit(probability.clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY))


def _fit_least_squares(
    above: np.ndarray, below: np.ndarray, random: np.random.RandomState
) -> Callable[[np.ndarray], np.ndarray]:
    """r(x) = Σ α_c K(x, c) with Gaussian kernels on the numerator's rows, minimising ½ E_below r² − E_above r + ½ λ|α|².

    Width and λ are chosen by the same loss on rows that were held out.
    """
    scaler = StandardScaler().fit(np.concatenate([above, below]))
    above, below = scaler.transform(_some(above, random)), scaler.transform(_some(below, random))
    centres = above[random.permutation(len(above))[:N_CENTRES]]
    median = np.median(cdist(centres, below[:1000]))
    held = [random.permutation(len(rows)) % N_FOLDS == 0 for rows in (above, below)]

    def kernel(rows: np.ndarray, width: float) -> np.ndarray:
        return np.exp(-cdist(rows, centres, "sqeuclidean") / (2 * width**2))

    def solve(of_above: np.ndarray, of_below: np.ndarray, penalty: float) -> np.ndarray:
        square = of_below.T @ of_below / len(of_below)
        return np.linalg.solve(square + penalty * np.eye(len(square)), of_above.mean(0))

    tried = []
    for width in median * np.array([0.25, 0.5, 1.0, 2.0]):
        of_above, of_below = kernel(above, width), kernel(below, width)
        for penalty in (1e-3, 1e-2, 1e-1, 1.0):
            alpha = solve(of_above[~held[0]], of_below[~held[1]], penalty)
            loss = ((of_below[held[1]] @ alpha) ** 2).mean() / 2 - (of_above[held[0]] @ alpha).mean()
            tried.append((loss, width, penalty))
    _, width, penalty = min(tried)
    alpha = solve(kernel(above, width), kernel(below, width), penalty)
    return lambda rows: (kernel(scaler.transform(rows), width) @ alpha).clip(min=0.0)


def _clip(values: np.ndarray, largest: float) -> tuple[np.ndarray, int]:
    """Scales to a mean of one and cuts what is then above the largest, until both hold."""
    weights = values / values.mean() if values.mean() > 0 else np.ones_like(values)
    is_clipped = np.zeros(len(weights), dtype=bool)
    while len(weights) > largest and (weights > largest * (1 + 1e-9)).any():
        is_clipped |= weights > largest
        weights = np.where(is_clipped, largest, weights)
        free = len(weights) - largest * is_clipped.sum()
        weights[~is_clipped] *= free / max(weights[~is_clipped].sum(), 1e-300)
    return weights, int(is_clipped.sum())
