"""What every translator has: what comes in is checked, and what goes out is in the user's units and shapes.

A `Translator` supplies `fit` and `sample`; means, quantiles, intervals and novelty are read off draws here. A
`DensityTranslator` knows log p(y|x) too. A `ClosedFormTranslator` supplies the distribution of y given x (`conditional`), and
everything is read off that.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from torch.distributions import Distribution

from fewpairs.data import checks
from fewpairs.data.samples import Samples
from fewpairs.data.scaling import Scaler
from fewpairs.estimators.novelty import Neighbourhood
from fewpairs.estimators.settings import Configured
from fewpairs.networks.dice import borrowed_dice
from fewpairs.plans.conditionals import ConditionalEnsemble, ConditionalMixture
from fewpairs.training.threads import FEW_ROWS, one_thread_if_brief

__all__ = [
    "FARTHEST_Y",
    "ClosedFormTranslator",
    "DensityTranslator",
    "Translator",
    "as_device",
    "seeded",
    "within_reach",
]

LEAST_PAIRS = 2
FARTHEST = 1e6  # standard deviations: x's farther out are taken as being there, where squares still fit into a float
FARTHEST_Y = 1e15  # for networks in float32: as improbable as a number can say
N_TO_AVERAGE, N_TO_RANK = 256, 1000  # draws for a mean, and for quantiles


def _has_density(model: Any) -> bool:
    if hasattr(model, "score_samples") or hasattr(model, "estimate_log_likelihood"):
        return True
    raise AttributeError(
        f"{type(model).__name__} draws y's and knows no density, so it has no log-likelihood to score by. "
        "metrics.energy_score(model.sample(X, 100), Y) compares draws."
    )


class Translator(RegressorMixin, Configured):
    """Abstract: an estimator of p(y|x) that can be sampled from. See `estimators` and `baselines` for the ones to use.

    Attributes:
        n_features_in_, feature_names_in_: The columns of X.
        n_outputs_, target_names_: The columns of Y.
        x_scaler_, y_scaler_: Shift and scale of each column.
        neighbourhood_: Where x's have been seen.
    """

    is_stochastic: ClassVar[bool] = True  # whether it draws y's, or maps x to one

    x_scaler_: Scaler
    y_scaler_: Scaler
    neighbourhood_: Neighbourhood
    n_pairs_: int
    n_unpaired_: list[int]

    @property
    @abstractmethod
    def uses(self) -> tuple[str, ...]:
        """What it learns from, of "pairs", "source" (all x's) and "target" (all y's)."""

    @abstractmethod
    def fit(self, X: Any, y: Any, *, X_unpaired: Any = None, Y_unpaired: Any = None) -> Self:
        """Learns from pairs and unpaired rows."""

    @abstractmethod
    def sample(self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = None) -> np.ndarray:
        """Draws y's given x's: (n_samples, rows, dim_y), without the last axis if Y was one-dimensional.

        Without a `random_state` of its own every call draws afresh, whatever the model's.
        """

    def predict(self, X: Any) -> np.ndarray:
        """The conditional mean, over many draws: (rows, dim_y), or (rows,) if Y was one-dimensional."""
        return self.sample(X, N_TO_AVERAGE if self.is_stochastic else 1, random_state=0).mean(axis=0)

    def predict_quantiles(self, X: Any, quantiles: float | Sequence[float] = (0.05, 0.5, 0.95)) -> np.ndarray:
        """The quantiles of each output on its own, over many draws: (quantiles, rows, dim_y), or (quantiles, rows)."""
        levels = _as_levels(quantiles)
        return np.quantile(self.sample(X, N_TO_RANK if self.is_stochastic else 1, random_state=0), levels, axis=0)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of the central interval of each output on its own."""
        if not (isinstance(coverage, Real) and 0 < coverage < 1):
            raise ValueError(f"coverage must be a share strictly between 0 and 1, such as 0.9, but {coverage!r} came.")
        lower, upper = self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2])
        return lower, upper

    def novelty(self, X: Any) -> np.ndarray:
        """How far each x is from those seen in training, one number a row: above 1 is far, and p(y|x) a guess."""
        return self.neighbourhood_(self._standardised(X).double())

    @available_if(_has_density)
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The mean log-likelihood log p(y|x): higher is better. (Not R²: this model predicts a distribution.)

        Methods that only draw have no density, and no `score`; `metrics` has scores of draws.
        """
        ask = self.score_samples if hasattr(self, "score_samples") else self._estimated_scores
        scores = ask(X, y)
        return float(np.average(scores, weights=checks.as_weight(sample_weight, scores[:, None], "sample_weight")))

    def _estimated_scores(self, X: Any, y: Any) -> np.ndarray:
        return self.estimate_log_likelihood(X, y).log_likelihood

    @abstractmethod
    def summary(self) -> str:
        """What was learnt, from what, and how far to trust it, in a paragraph."""

    def _about_data(self) -> str:
        return f"Learnt from {self.n_pairs_} pairs, {self.n_unpaired_[0]} unpaired x's and {self.n_unpaired_[1]} unpaired y's"

    @abstractmethod
    def _standardised(self, X: Any) -> Tensor:
        """Checked x's at the scale of training."""

    def _gather(
        self,
        X: Any,
        Y: Any,
        *,
        X_unpaired: Any,
        Y_unpaired: Any,
        sample_weight: Any = None,
        X_unpaired_weight: Any = None,
        Y_unpaired_weight: Any = None,
        relevance: Any = None,
    ) -> Samples:
        """Checks everything that comes in, remembers its columns, and puts it together as float64 tensors."""
        if Y is None:
            raise ValueError("fit requires y to be passed, but the target y is None: fit(X, Y) takes pairs of rows.")
        x, y = self._check_x(X, is_new=True), checks.as_rows(Y, "Y", may_be_1d=True)
        checks.refuse_unequal(len(x), len(y))
        if checks.are_indexed_apart(X, Y):
            checks.warn_user(
                "X and Y have different indices, and rows are paired by their position. If the index says which rows belong "
                "together, pass Y.loc[X.index]."
            )
        self.is_1d_ = np.asarray(checks.unwrap(Y)).ndim == 1 or isinstance(Y, pd.Series)
        self.n_outputs_ = y.shape[1]
        self.target_names_ = checks.column_names(Y)
        weight = checks.as_weight(sample_weight, x, "sample_weight")
        relevance = checks.as_weight(relevance, x, "relevance")[weight > 0]
        if not relevance.any():
            raise ValueError("relevance is zero at every pair whose sample_weight is not: no pair would count.")
        x, y, weight = x[weight > 0], y[weight > 0], weight[weight > 0]  # a pair of weight zero is no pair
        checks.refuse_few_pairs(len(x), LEAST_PAIRS)
        more_x, more_x_weight = self._check_unpaired(X_unpaired, X_unpaired_weight, x, "X", self._check_x)
        more_y, more_y_weight = self._check_unpaired(Y_unpaired, Y_unpaired_weight, y, "Y", self._check_y)
        if self._is_table("Y"):
            checks.refuse_constant_y(y if more_y is None else np.concatenate([y, more_y.numpy()]), self.target_names_)
        samples = Samples.gather(
            _tensor(x),
            _tensor(y),
            unpaired_x=more_x,
            unpaired_y=more_y,
            pairs_weight=_tensor(weight),
            unpaired_x_weight=more_x_weight,
            unpaired_y_weight=more_y_weight,
        )
        self.n_pairs_ = len(x)
        self.n_unpaired_ = [len(samples.source) - len(x), len(samples.target) - len(x)]
        return replace(samples, relevance=_tensor(relevance))

    def _is_table(self, name: str) -> bool:
        """Whether X or Y is a table, in which a column means something of its own and must not be constant; not images."""
        return True

    def _check_unpaired(
        self, rows: Any, weight: Any, paired: np.ndarray, name: str, check: Any
    ) -> tuple[Tensor | None, Tensor | None]:
        if rows is None:
            if weight is not None:
                raise ValueError(f"{name}_unpaired_weight came without {name}_unpaired. Pass the rows it belongs to.")
            return None, None
        rows = check(rows, f"{name}_unpaired")
        weight = checks.as_weight(weight, rows, f"{name}_unpaired_weight")
        rows, weight = rows[weight > 0], weight[weight > 0]  # as with pairs: a row of weight zero is no row
        feature_names = getattr(self, "feature_names_in_", None)
        names = self.target_names_ if name == "Y" else None if feature_names is None else list(feature_names)
        warning = checks.describe_unlike(rows, paired, name, names) if self._is_table(name) else None
        if warning:
            checks.warn_user(warning)
        return _tensor(rows), _tensor(weight)

    def _check_x(self, X: Any, name: str = "X", is_new: bool = False) -> np.ndarray:
        if name == "X":
            table = checks.as_rows(X, name)
            # scikit-learn's own check of columns and their names; a new X sets what is expected from then on.
            validate_data(self, checks.unwrap(X), reset=is_new, skip_check_array=True)
            return table
        names = getattr(self, "feature_names_in_", None)
        return checks.as_rows(X, name, n_columns=self.n_features_in_, names=None if names is None else list(names))

    def _check_y(self, Y: Any, name: str = "Y") -> np.ndarray:
        return checks.as_rows(Y, name, n_columns=self.n_outputs_, names=self.target_names_, may_be_1d=True)

    def _outputs(self, y: Tensor) -> np.ndarray:
        return y.numpy()[..., 0] if self.is_1d_ else y.numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.regressor_tags.poor_score = True  # it is made for distributions: `score` need not be R², nor high
        return tags


class DensityTranslator(Translator):
    """Abstract: a translator that knows log p(y|x)."""

    @abstractmethod
    def score_samples(self, X: Any, y: Any) -> np.ndarray:
        """log p(y|x), one number a row, in the user's units."""


class ClosedFormTranslator(DensityTranslator):
    """Abstract: a translator whose p(y|x) is known in closed form."""

    @abstractmethod
    def conditional(self, X: Any) -> ConditionalMixture | ConditionalEnsemble:
        """p(y|x) for each row, as a torch distribution in the user's units: `log_prob`, `sample`, `mean`, `cdf`, `icdf`."""

    def sample(self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = None) -> np.ndarray:
        """Draws y's given x's: (n_samples, rows, dim_y), without the last axis if Y was one-dimensional.

        Without a `random_state` of its own every call draws afresh, whatever the model's.
        """
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31)))
        conditional = self.conditional(X)
        with _few_threads(conditional):
            return self._outputs(conditional.sample((n_samples,), generator=generator))

    def score_samples(self, X: Any, y: Any) -> np.ndarray:
        """log p(y|x), one number a row, in the user's units."""
        conditional = self.conditional(X)
        y = self._check_y(y)
        checks.refuse_unequal(conditional.batch_shape[0], len(y))
        with torch.no_grad(), _few_threads(conditional):
            return conditional.log_prob(_tensor(y)).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The conditional mean: (rows, dim_y), or (rows,) if Y was one-dimensional."""
        conditional = self.conditional(X)
        with _few_threads(conditional):
            return self._outputs(conditional.mean)

    def predict_quantiles(self, X: Any, quantiles: float | Sequence[float] = (0.05, 0.5, 0.95)) -> np.ndarray:
        """The quantiles of each output on its own: (quantiles, rows, dim_y), or (quantiles, rows)."""
        conditional, levels = self.conditional(X), torch.from_numpy(_as_levels(quantiles))
        with _few_threads(conditional):
            return self._outputs(conditional.icdf(levels))

    def _standardised(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return within_reach(self.x_scaler_(torch.tensor(self._check_x(X))))


def _few_threads(conditional: Distribution) -> AbstractContextManager[None]:
    return one_thread_if_brief(conditional.batch_shape[0] <= FEW_ROWS)


def _as_levels(quantiles: float | Sequence[float]) -> np.ndarray:
    levels = checks.forwards(np.atleast_1d(np.asarray(quantiles, dtype=np.float64)))
    if levels.size == 0 or not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"Quantiles must lie strictly between 0 and 1, but {levels.tolist()} came.")
    return levels


def as_device(name: str) -> torch.device:
    """The device of this name, "auto" being a CUDA device if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f'device must be "auto", "cpu" or "cuda", but {name!r} came.') from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f'device={name!r} was asked for, but torch sees no CUDA device here; use "auto" or "cpu".')
    return device


def within_reach(rows: Tensor, farthest: float = FARTHEST) -> Tensor:
    """Standardised rows, those beyond the farthest as if they were there."""
    return rows.clamp(-farthest, farthest)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Everything inside draws from torch's own generators, which begin at this seed and are put back afterwards."""
    with borrowed_dice(device):
        torch.manual_seed(seed)
        yield
