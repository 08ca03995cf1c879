"""What every baseline shares: data at one scale, held-out early stopping, samples and densities in the user's units, files.

A baseline's own file supplies its networks (`_make`), a step of its training (`_start`), how to draw y (`_draw`) and, if it
has a density, its logarithm (`_log_prob`). All of these work in standardised units.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from fewpairs.data import checks
from fewpairs.data.folds import hold_out
from fewpairs.data.samples import Samples
from fewpairs.data.scaling import Scaler
from fewpairs.estimators.base import FARTHEST_Y, DensityTranslator, Translator, as_device, seeded, within_reach
from fewpairs.estimators.learning import learning
from fewpairs.estimators.novelty import Neighbourhood
from fewpairs.estimators.rules import FLAG, NOTHING, RANDOM_STATE, SEQUENCE, TEXT, Rule, above, at_least, between, whole
from fewpairs.estimators.saving import OF_TRAINING, Saved
from fewpairs.training.batches import minibatches
from fewpairs.training.learners import Step, StepLearner, descend, energy_scores
from fewpairs.training.loop import Budget, Outcome, train
from fewpairs.training.modes import usual_modes
from fewpairs.training.progress import progress_bar
from fewpairs.training.threads import FEW_ROWS, one_thread_if_brief

__all__ = ["Baseline", "DensityBaseline", "LikelihoodBaseline"]

N_LOOKS = 30
N_TO_JUDGE = 16  # draws at each held-out x for its energy score
MOST_ROWS = 2**17  # rows of a network at once, in drawing and scoring
WORDS = {"pairs": "pairs", "source": "x's", "target": "y's"}


@dataclass(kw_only=True, eq=False, repr=False)
class Baseline(Saved, Translator):
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
        hidden: The widths of the networks' hidden layers.

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

    learnt_name: ClassVar[str] = "networks_"
    fitted_names: ClassVar[tuple[str, ...]] = OF_TRAINING
    fitted_parts: ClassVar[dict[str, Any]] = {"x_scaler_": Scaler, "y_scaler_": Scaler, "neighbourhood_": Neighbourhood}

    max_steps: int = 3000
    learning_rate: float = 1e-3
    batch_size: int = 256
    held_out: float = 0.2
    time_budget: float | None = None
    random_state: Any = None
    device: str = "auto"
    verbose: bool = True
    hidden: tuple[int, ...] = (128, 128, 128)

    rules: ClassVar[dict[str, Rule]] = {
        "max_steps": whole(1),
        "learning_rate": above(0),
        "batch_size": whole(2),
        "held_out": between(0, 0.5),
        "time_budget": above(0) | NOTHING,
        "random_state": RANDOM_STATE,
        "device": TEXT,
        "verbose": FLAG,
        "hidden": SEQUENCE,
    }

    @property
    def uses(self) -> tuple[str, ...]:
        """What it learns from, of "pairs", "source" (all x's) and "target" (all y's)."""
        return self.learns_from

    @abstractmethod
    def _make(self, dim_x: int, dim_y: int) -> nn.Module:
        """Networks with random weights."""

    @abstractmethod
    def _start(self, networks: Any, samples: Samples) -> Step:
        """Gets ready to train, and returns the function that takes one step with a minibatch and tells its losses."""

    @abstractmethod
    def _draw(self, networks: Any, x: Tensor) -> Tensor:
        """One y for each x; torch's own generator draws."""

    def fit(self, X: Any, y: Any, *, X_unpaired: Any = None, Y_unpaired: Any = None) -> Self:
        """Learns from pairs and unpaired rows; what a method has no use for scales the data and no more.

        Ctrl-C ends it after the step under way, with the best networks so far. A second one raises KeyboardInterrupt at once, and
        so does one before the first step: the model is then as it was.

        Arguments:
            X: The x's of the pairs, (P, dim_x).
            y: The y's of the pairs, (P, dim_y) or (P,).
            X_unpaired: More x's.
            Y_unpaired: More y's.
        """
        self._check_arguments()
        with learning(self):
            samples = self._gather(X, y, X_unpaired=X_unpaired, Y_unpaired=Y_unpaired)
            self._learn(samples)
        return self

    def _learn(self, samples: Samples) -> None:
        random, device = check_random_state(self.random_state), as_device(self.device)
        self.x_scaler_ = Scaler.learn(samples.source, samples.source_weight)
        self.y_scaler_ = Scaler.learn(samples.target, samples.target_weight)
        samples = samples.standardise(self.x_scaler_, self.y_scaler_).to(dtype=torch.float32, device=device)
        self.neighbourhood_ = Neighbourhood.learn(samples.source, np.random.RandomState(0))
        samples, x_judge, y_judge = hold_out(samples, self.held_out, random)
        budget = Budget(
            self.max_steps,
            self.time_budget,
            n_looks=N_LOOKS,
            looks_early=True,
            patience=self.patience,
            too_far=self.too_far,
        )
        with seeded(int(random.randint(2**31)), device), progress_bar(is_on=self.verbose) as show:
            networks = self._build(samples).to(device)
            learner = StepLearner(networks, self._start(networks, samples), minibatches(samples, self.batch_size))
            outcome = train(
                learner,
                lambda: self._judge(networks, x_judge, y_judge).unsqueeze(0),
                budget,
                on_step=lambda done: show(f"{self.title} learns p(y|x)", done),
            )
        outcome.refuse_if_nothing_was_learnt()
        self.networks_: Any = networks.cpu().requires_grad_(False)
        self._keep_outcome(outcome)

    def _build(self, samples: Samples) -> nn.Module:
        """The networks to begin with."""
        return self._make(samples.source.shape[1], samples.target.shape[1])

    def _keep_outcome(self, outcome: Outcome) -> None:
        """How training went, in the fitted attributes, and a warning if it did not go well."""
        self.history_, self.ended_, self.n_steps_ = outcome.history(), outcome.ended, outcome.best_step
        if outcome.ended == "diverged":
            checks.warn_user(
                f"{self.title}: training ran away; the networks of step {self.n_steps_} are kept. history_ tells how it went. "
                "A smaller learning_rate helps.",
                ConvergenceWarning,
            )
        if outcome.ended == "interrupted":
            checks.warn_user("Interrupted: the best networks so far are kept.")

    @usual_modes()
    def sample(self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = None) -> np.ndarray:
        """Draws y's given x's: (n_samples, rows, dim_y), without the last axis if Y was one-dimensional.

        Without a `random_state` of its own every call draws afresh. A method that is not stochastic repeats itself.
        """
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        x = self._standardised(X)
        n_draws = n_samples if self.is_stochastic else 1
        with torch.no_grad(), seeded(int(check_random_state(random_state).randint(2**31)), torch.device("cpu")):
            rows = x.repeat(n_draws, 1)
            with one_thread_if_brief(len(rows) <= FEW_ROWS):
                drawn = torch.cat([self._draw(self.networks_, some) for some in rows.split(MOST_ROWS)])
        drawn = drawn.double().unflatten(0, (n_draws, len(x))) * self.y_scaler_.scale + self.y_scaler_.loc
        return self._outputs(drawn.expand(n_samples, -1, -1).contiguous())

    def summary(self) -> str:
        """What was learnt, from what, and how far to trust it, in a paragraph."""
        check_is_fitted(self, "networks_")
        of_data = ", ".join(WORDS[kind] for kind in self.uses)
        told = [f"{self._about_data()} (used: {of_data}) by {self.title}."]
        if not self.is_stochastic:
            told.append("It maps each x to one y.")
        known = [score for score in self.history_["held_out"] if math.isfinite(score)]
        if known:
            told.append(f"{self._name_of_score()} of held-out pairs {min(known):.3f}, in the units of training.")
        else:
            told.append("No pairs were held out to judge it.")
        return " ".join([*told, f"Training {self.ended_}; the networks of step {self.n_steps_} were kept."])

    def _name_of_score(self) -> str:
        return "Energy score" if self.is_stochastic else "Square error"

    def _judge(self, networks: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Minus the energy score E|Y − y| − ½ E|Y − Y′| of each held-out pair, or minus the square error of a map, (rows,)."""
        with torch.no_grad():
            if not self.is_stochastic:
                return -(self._draw(networks, x) - y).square().sum(-1)
            draws = self._draw(networks, x.repeat(N_TO_JUDGE, 1)).unflatten(0, (N_TO_JUDGE, len(x)))
            return -energy_scores(draws, y)

    def _standardised(self, X: Any) -> Tensor:
        check_is_fitted(self, "networks_")
        return within_reach(self.x_scaler_(torch.tensor(self._check_x(X)))).float()

    def _config(self) -> dict[str, Any]:
        return {"dim_x": self.n_features_in_, "dim_y": self.n_outputs_}

    def _empty_plan(self, config: dict[str, Any]) -> nn.Module:
        return self._make(**config)

    @classmethod
    def _read_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        return super()._read_settings({**settings, "hidden": tuple(settings["hidden"])})  # JSON knows lists alone


@dataclass(kw_only=True, eq=False, repr=False)
class DensityBaseline(Baseline, DensityTranslator):
    """Abstract: a baseline that knows log p(y|x)."""

    @abstractmethod
    def _log_prob(self, networks: Any, x: Tensor, y: Tensor) -> Tensor:
        """log p(y|x), one number a row."""

    @usual_modes()
    def score_samples(self, X: Any, y: Any) -> np.ndarray:
        """log p(y|x), one number a row, in the user's units."""
        x = self._standardised(X)
        rows = self._check_y(y)
        checks.refuse_unequal(len(x), len(rows))
        y_scaled = within_reach(self.y_scaler_(torch.tensor(rows)), FARTHEST_Y).float()
        parts = zip(x.split(MOST_ROWS), y_scaled.split(MOST_ROWS), strict=True)
        with torch.no_grad(), one_thread_if_brief(len(x) <= FEW_ROWS):
            scores = torch.cat([self._log_prob(self.networks_, *part) for part in parts]).double()
        return (scores - self.y_scaler_.scale.log().sum()).numpy()

    def _name_of_score(self) -> str:
        return "Negative log-likelihood"

    def _judge(self, networks: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            return self._log_prob(networks, x, y)


@dataclass(kw_only=True, eq=False, repr=False)
class LikelihoodBaseline(DensityBaseline):
    """Abstract: a network whose value at x is the distribution of y, by the likelihood of the pairs.

    Arguments:
        weight_decay: AdamW's.
    """

    # By then training has gone on for some seven times as long: what has learnt the pairs by heart does not come back.
    patience: ClassVar[float] = 10

    weight_decay: float = 0.01

    rules: ClassVar[dict[str, Rule]] = {**DensityBaseline.rules, "weight_decay": at_least(0)}

    def _loss(self, networks: Any, batch: Samples) -> Tensor:
        return -networks(batch.pairs_x).log_prob(batch.pairs_y).mean()

    def _start(self, networks: Any, samples: Samples) -> Step:
        optimizer = torch.optim.AdamW(networks.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        return descend(optimizer, lambda batch: self._loss(networks, batch))

    def _draw(self, networks: Any, x: Tensor) -> Tensor:
        return networks(x).sample()

    def _log_prob(self, networks: Any, x: Tensor, y: Tensor) -> Tensor:
        return networks(x).log_prob(y)
