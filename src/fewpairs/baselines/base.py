"""What every baseline shares: data at one scale, held-out early stopping, samples and densities in the user's units.

A baseline's own file supplies its networks (`_build`), a step of its training (`_start`), how to draw y (`_draw`) and, if it
has a density, its logarithm (`_log_prob`). All of these work in standardised units.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from fewpairs.data import checks
from fewpairs.data.folds import hold_out
from fewpairs.data.samples import Samples
from fewpairs.data.scaling import Scaler
from fewpairs.estimators.base import DensityTranslator, Translator, as_device, seeded
from fewpairs.training.loops import N_TO_JUDGE, Loop, Step, deal, descend, energy_scores
from fewpairs.training.progress import progress_bar

__all__ = ["Baseline", "DensityBaseline", "LikelihoodBaseline"]

N_TO_AVERAGE = 256  # draws for a mean
MOST_ROWS = 2**17  # rows of a network at once, in drawing and scoring


@dataclass(kw_only=True, eq=False, repr=False)
class Baseline(Translator):
    """Abstract: a method of the paper's tables.

    Arguments:
        max_steps: The steps of training at the most.
        learning_rate: Adam's.
        batch_size: The rows of each kind in a step.
        held_out: The share of the pairs that judge and do not teach: the networks of the best look at them are kept. 0 keeps
            the last networks.
        time_budget: The seconds that training may take.
        random_state: A number makes the fit repeatable on the same machine, unless the time ends it.
        device: "auto" takes a CUDA device if there is one, or name one.
        verbose: Whether to show a progress bar when a fit takes longer than a moment on a terminal.

    Attributes:
        networks_: What was learnt, in standardised units.
        history_: A list for each of "step", "seconds", "held_out" (negative log-likelihood where there is a density, energy
            score where not, square error of a map; standardised units) and the losses of the method.
        n_steps_: The step whose networks were kept.
        ended_: "finished", "out of time", "interrupted" or "diverged".
    """

    title: ClassVar[str]
    learns_from: ClassVar[tuple[str, ...]]
    # A held-out energy score that ends so many times above its best has run away.
    too_far: ClassVar[float] = math.inf
    # Looks without a better one, after which training ends.
    patience: ClassVar[float] = math.inf

    max_steps: int = 3000
    learning_rate: float = 1e-3
    batch_size: int = 256
    held_out: float = 0.2
    time_budget: float | None = None
    random_state: Any = None
    device: str = "auto"
    verbose: bool = True

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "max_steps": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "held_out": [Interval(Real, 0, 0.5, closed="both")],
        "time_budget": [Interval(Real, 0, None, closed="neither"), None],
        "random_state": ["random_state"],
        "device": [str],
        "verbose": ["boolean"],
        "hidden": ["array-like"],  # what several methods have, checked once
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "pair_weight": [Interval(Real, 0, None, closed="left")],
    }

    @property
    def uses(self) -> tuple[str, ...]:
        """What it learns from, of "pairs", "source" (all x's) and "target" (all y's)."""
        return self.learns_from

    @abstractmethod
    def _build(self, samples: Samples) -> nn.Module:
        """The networks to begin with."""

    @abstractmethod
    def _start(self, networks: Any, samples: Samples) -> Step:
        """Gets ready to train, and returns the function that takes one step with a minibatch and tells its losses."""

    @abstractmethod
    def _draw(self, networks: Any, x: Tensor) -> Tensor:
        """One y for each x; torch's own generator draws."""

    def fit(self, X: Any, y: Any, *, X_unpaired: Any = None, Y_unpaired: Any = None) -> Self:
        """Learns from pairs and unpaired rows; what a method has no use for scales the data and no more.

        Arguments:
            X: The x's of the pairs, (P, dim_x).
            y: The y's of the pairs, (P, dim_y) or (P,).
            X_unpaired: More x's.
            Y_unpaired: More y's.
        """
        self._validate_params()
        samples = self._gather(X, y, X_unpaired=X_unpaired, Y_unpaired=Y_unpaired)
        random, device = check_random_state(self.random_state), as_device(self.device)
        x_scaler = Scaler.learn(samples.source, samples.source_weight)
        y_scaler = Scaler.learn(samples.target, samples.target_weight)
        samples = samples.standardise(x_scaler, y_scaler).to(dtype=torch.float32, device=device)
        samples, x_judge, y_judge = hold_out(samples, self.held_out, random)
        with seeded(int(random.randint(2**31)), device), progress_bar(is_on=self.verbose) as show:
            networks = self._build(samples).to(device)
            step = self._start(networks, samples)
            loop = Loop(
                self.max_steps,
                time_budget=self.time_budget,
                too_far=self.too_far,
                patience=self.patience,
                on_step=lambda done: show(f"{self.title} learns p(y|x)", done),
            )
            loop.run(
                networks, step, deal(samples, self.batch_size), lambda: self._judge(networks.eval(), x_judge, y_judge)
            )
        self.x_scaler_, self.y_scaler_ = x_scaler, y_scaler
        self.networks_ = networks.cpu().requires_grad_(False)
        self.history_, self.ended_ = loop.history, loop.ended
        self.n_steps_ = int(loop.history["step"][loop.best]) if loop.history else 0
        if loop.ended == "diverged":
            checks.warn_user(
                f"{self.title}: training ran away; the networks of step {self.n_steps_} are kept. history_ tells how it went. "
                "A smaller learning_rate helps.",
                ConvergenceWarning,
            )
        if loop.ended == "interrupted":
            checks.warn_user("Interrupted: the best networks so far are kept.")
        return self

    def sample(self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = None) -> np.ndarray:
        """Draws y's given x's: (n_samples, rows, dim_y), without the last axis if Y was one-dimensional.

        Without a `random_state` of its own every call draws afresh. A method that is not stochastic repeats itself.
        """
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        x = self._standardised(X)
        n_draws = n_samples if self.is_stochastic else 1
        with torch.no_grad(), seeded(int(check_random_state(random_state).randint(2**31)), torch.device("cpu")):
            rows = x.repeat(n_draws, 1)
            drawn = torch.cat([self._draw(self.networks_, some) for some in rows.split(MOST_ROWS)])
        drawn = drawn.double().unflatten(0, (n_draws, len(x))) * self.y_scaler_.scale + self.y_scaler_.loc
        return self._outputs(drawn.expand(n_samples, -1, -1).contiguous())

    def predict(self, X: Any) -> np.ndarray:
        """The conditional mean, over many draws where the method is stochastic: (rows, dim_y), or (rows,)."""
        return self.sample(X, N_TO_AVERAGE if self.is_stochastic else 1, random_state=0).mean(axis=0)

    def _judge(self, networks: nn.Module, x: Tensor, y: Tensor) -> float:
        """The mean energy score E|Y − y| − ½ E|Y − Y′| of the held-out pairs, or the square error of a map; NaN without pairs."""
        with torch.no_grad():
            if not self.is_stochastic:
                return float((self._draw(networks, x) - y).square().sum(-1).mean())
            draws = self._draw(networks, x.repeat(N_TO_JUDGE, 1)).unflatten(0, (N_TO_JUDGE, len(x)))
            return float(energy_scores(draws, y).mean())

    def _standardised(self, X: Any) -> Tensor:
        check_is_fitted(self, "networks_")
        return self.x_scaler_(torch.tensor(self._check_x(X))).float()


@dataclass(kw_only=True, eq=False, repr=False)
class DensityBaseline(Baseline, DensityTranslator):
    """Abstract: a baseline that knows log p(y|x)."""

    @abstractmethod
    def _log_prob(self, networks: Any, x: Tensor, y: Tensor) -> Tensor:
        """log p(y|x), one number a row."""

    def score_samples(self, X: Any, y: Any) -> np.ndarray:
        """log p(y|x), one number a row, in the user's units."""
        x = self._standardised(X)
        rows = self._check_y(y)
        checks.refuse_unequal(len(x), len(rows))
        y_scaled = self.y_scaler_(torch.tensor(rows)).float()
        parts = zip(x.split(MOST_ROWS), y_scaled.split(MOST_ROWS), strict=True)
        with torch.no_grad():
            scores = torch.cat([self._log_prob(self.networks_, *part) for part in parts]).double()
        return (scores - self.y_scaler_.scale.log().sum()).numpy()

    def _judge(self, networks: nn.Module, x: Tensor, y: Tensor) -> float:
        with torch.no_grad():
            return float(-self._log_prob(networks, x, y).mean())


@dataclass(kw_only=True, eq=False, repr=False)
class LikelihoodBaseline(DensityBaseline):
    """Abstract: a network whose value at x is the distribution of y, by the likelihood of the pairs.

    Arguments:
        weight_decay: AdamW's.
    """

    # By then training has gone on for some seven times as long: what has learnt the pairs by heart does not come back.
    patience: ClassVar[float] = 10

    weight_decay: float = 0.01

    def _loss(self, networks: Any, batch: Samples) -> Tensor:
        return -networks(batch.pairs_x).log_prob(batch.pairs_y).mean()

    def _start(self, networks: Any, samples: Samples) -> Step:
        optimizer = torch.optim.AdamW(networks.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        return descend(optimizer, lambda batch: self._loss(networks, batch))

    def _draw(self, networks: Any, x: Tensor) -> Tensor:
        return networks(x).sample()

    def _log_prob(self, networks: Any, x: Tensor, y: Tensor) -> Tensor:
        return networks(x).log_prob(y)
