"""What translators with networks of their own share: images as rows, networks to begin with, estimates of densities, files."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from fewpairs.data import checks
from fewpairs.data.samples import Samples
from fewpairs.data.scaling import Scaler
from fewpairs.energies.descent import Adam
from fewpairs.energies.energy import (
    Energy,
    InformedCost,
    NeuralCost,
    NeuralPotential,
    normalise_spectrally,
)
from fewpairs.energies.normalisers import LikelihoodEstimate
from fewpairs.estimators.base import FARTHEST_Y, Translator, as_device, within_reach
from fewpairs.estimators.learning import learning
from fewpairs.estimators.novelty import Neighbourhood
from fewpairs.estimators.rules import FLAG, NOTHING, RANDOM_STATE, TEXT, Rule, above, at_least, instance_of
from fewpairs.estimators.saving import OF_TRAINING, Saved
from fewpairs.estimators.settings import NetworkTraining, Perceptrons
from fewpairs.training.clock import Clock
from fewpairs.training.loop import Outcome
from fewpairs.training.modes import usual_modes
from fewpairs.training.threads import one_thread_if_brief

__all__ = ["COMMON_FITTED", "COMMON_RULES", "NetworkTranslator"]

MOST_ROWS = 2**16  # rows of a network at once
MOST_NUMBERS = 2**20  # numbers in them: rows of images are long
FEW_DRAWS = 256  # some 50 ms with a base; chains take longer, and would save little of it by a second thread
USUAL_STEPS = 1000  # "auto" takes so many steps for up to so many pairs, and more for more

COMMON_RULES: dict[str, Rule] = {
    "cost": instance_of(nn.Module) | NOTHING,
    "potential": instance_of(nn.Module) | NOTHING,
    "time_budget": above(0) | NOTHING,
    "random_state": RANDOM_STATE,
    "verbose": FLAG,
    "device": TEXT,
    "epsilon": above(0),
    "smoothing": at_least(0),
    "perceptrons": instance_of(Perceptrons),
    "training": instance_of(NetworkTraining),
}
COMMON_FITTED = (*OF_TRAINING, "objective_", "x_shape_", "y_shape_")


class NetworkTranslator(Saved, Translator):
    """Abstract: a translator whose cost and potential are networks; X and Y are tables, or images."""

    own_networks: ClassVar[tuple[str, ...]] = ("cost", "potential")
    fitted_parts: ClassVar[dict[str, Any]] = {"x_scaler_": Scaler, "y_scaler_": Scaler, "neighbourhood_": Neighbourhood}

    cost: nn.Module | None
    potential: nn.Module | None
    objective: str
    time_budget: float | None
    random_state: Any
    verbose: bool
    device: str
    epsilon: float
    smoothing: float
    perceptrons: Perceptrons
    training: NetworkTraining

    plan_: Energy
    x_shape_: tuple[int, ...]
    y_shape_: tuple[int, ...]
    n_steps_: int
    history_: dict[str, list[float]]
    objective_: str
    ended_: str

    @property
    def uses(self) -> tuple[str, ...]:
        """What it learns from, of "pairs", "source" (all x's) and "target" (all y's)."""
        return ("pairs",) if self.objective == "supervised" else ("pairs", "source", "target")

    def fit(self, X: Any, y: Any, *, X_unpaired: Any = None, Y_unpaired: Any = None) -> Self:
        """Learns from pairs and unpaired rows.

        Ctrl-C ends it after the step under way, with the best networks so far. A second one raises KeyboardInterrupt at once, and
        so does one before the first step: the model is then as it was.

        Arguments:
            X: The x's of the pairs, (P, dim_x) or (P, channels, height, width).
            y: The y's of the pairs, likewise, or (P,).
            X_unpaired: More x's.
            Y_unpaired: More y's.
        """
        self._check_arguments()
        clock = Clock(self.time_budget)
        with learning(self):
            self.x_shape_, self.y_shape_ = _shape_of(X), _shape_of(y)
            rows = {
                "X": self._flat(X, "X", self.x_shape_),
                "y": self._flat(y, "Y", self.y_shape_),
                "X_unpaired": self._flat(X_unpaired, "X_unpaired", self.x_shape_),
                "Y_unpaired": self._flat(Y_unpaired, "Y_unpaired", self.y_shape_),
            }
            more = {name: rows[name] for name in ("X_unpaired", "Y_unpaired")}
            samples = self._gather(rows["X"], rows["y"], **more)
            self._learn(rows, samples, clock)
        return self

    @abstractmethod
    def _learn(self, rows: dict[str, Any], samples: Samples, clock: Clock) -> None:
        """Learns from rows as the user has them, images flattened, and from the same as samples."""

    @usual_modes()
    def sample(self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = None) -> np.ndarray:
        """Draws y's given x's: (n_samples, rows, dim_y), without the last axis if Y was one-dimensional; images in their own
        shape.

        Without a `random_state` of its own every call draws afresh, whatever the model's.
        """
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        x, seed = self._standardised(X), int(check_random_state(random_state).randint(2**31))
        is_brief = len(x) * n_samples <= FEW_DRAWS and as_device(self.device).type == "cpu"
        with one_thread_if_brief(is_brief):
            drawn = self._draw(x, n_samples, seed)
        return self._outputs(drawn * self.y_scaler_.scale + self.y_scaler_.loc)

    @abstractmethod
    def _draw(self, x: Tensor, n_samples: int, seed: int) -> Tensor:
        """y's in standardised units, (n_samples, rows, dim_y) in float64."""

    @abstractmethod
    def energy(self, X: Any, y: Any) -> np.ndarray:
        """−log p(y|x) up to a number that depends on x alone, one a row."""

    @usual_modes()
    def estimate_log_likelihood(
        self, X: Any, y: Any, *, n_draws: int = 1000, random_state: Any = 0
    ) -> LikelihoodEstimate:
        """log p(y|x) with the normaliser as well as it can be had: by draws of the base; without one by quadrature for one or two
        outputs, and by annealed importance sampling for more.

        A y outside the range that a sampler's `clamp` sets has no density: minus infinity, without an error.

        Arguments:
            X: The x's.
            y: A y for each of them.
            n_draws: The draws, or the annealed chains, for each x.
            random_state: Where draws come from.
        """
        check_scalar(n_draws, "n_draws", Integral, min_val=2)
        x, y = self._both(X, y)
        estimate, method = self._estimator(n_draws, int(check_random_state(random_state).randint(2**31)))
        device, rows = as_device(self.device), max(self._n_at_once() // n_draws, 1)
        parts = [estimate(*some) for some in zip(x.to(device).split(rows), y.to(device).split(rows), strict=True)]
        log_prob, error = (torch.cat(one).double().cpu() for one in zip(*parts, strict=True))
        return LikelihoodEstimate((log_prob - self.y_scaler_.scale.log().sum()).numpy(), error.numpy(), method)

    @abstractmethod
    def _estimator(self, n_draws: int, seed: int) -> tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], str]:
        """What estimates log p(y|x) and its error in standardised units, and by which method."""

    def _make_energy(self, n_opinions: int | None, **limits: Any) -> Energy:
        """Networks to begin with: fresh perceptrons, or copies of the user's own. Those of a correction hear so many opinions of
        its base; None is no correction."""
        dims = {"dim_x": self.n_features_in_, "dim_y": self.n_outputs_}
        options: dict[str, Any] = {"activation": self.perceptrons.activation}
        options["last_std"] = None if n_opinions is None else 0.01
        cost, potential = copy.deepcopy(self.cost), copy.deepcopy(self.potential)
        if cost is None and n_opinions:
            cost = InformedCost(**dims, n_opinions=n_opinions, hidden=self.perceptrons.cost_hidden, **options)
        elif cost is None:
            cost = NeuralCost(**dims, hidden=self.perceptrons.cost_hidden, **options)
        if potential is None:
            potential = NeuralPotential(dim_y=self.n_outputs_, hidden=self.perceptrons.potential_hidden, **options)
        if self.perceptrons.spectral_norm:
            cost, potential = normalise_spectrally(cost), normalise_spectrally(potential)
        return Energy(cost, potential, epsilon=self.epsilon, x_shape=self.x_shape_, y_shape=self.y_shape_, **limits)

    def _adam(self) -> Adam:
        training = self.training
        return Adam(
            learning_rate=training.learning_rate,
            potential_learning_rate=training.potential_learning_rate or training.learning_rate,
            betas=(float(training.betas[0]), float(training.betas[1])),
            max_grad_norm=training.max_grad_norm,
            one_cycle=training.one_cycle,
        )

    def _n_steps(self) -> int:
        steps = self.training.max_steps
        return round(USUAL_STEPS * max(self.n_pairs_ / USUAL_STEPS, 1) ** 0.4) if steps == "auto" else int(steps)

    def _keep_outcome(self, outcome: Outcome) -> None:
        """How training went, in the fitted attributes, and a warning if it did not go well."""
        self.history_, self.ended_, self.n_steps_ = outcome.history(), outcome.ended, outcome.best_step
        if outcome.ended == "diverged":
            checks.warn_user(
                f"Training ran away; the networks of step {self.n_steps_} are kept, and history_ tells how it went. A smaller "
                "learning_rate, an energy_penalty, smoothing or spectral_norm help; a base helps most.",
                ConvergenceWarning,
            )
        if outcome.ended == "interrupted":
            checks.warn_user("Interrupted: the best networks so far are kept.")

    @classmethod
    def from_file(
        cls, tensors: dict[str, Tensor], settings: dict[str, Any], fitted: dict[str, Any], **networks: nn.Module
    ) -> Self:
        """The model that `save` took apart; networks of the user's own are handed in again."""
        for name, module in ((name, networks.get(name)) for name in cls.own_networks):
            if settings[name] is not None and module is None:
                raise ValueError(
                    f"This model was fitted with a {name} of your own ({settings[name]}): load(path, {name}=…) needs a module "
                    "like it."
                )
            if module is not None and settings[name] != type(module).__name__:
                had = f"a {settings[name]}" if settings[name] else "none of your own: leave it out"
                raise ValueError(f"{name} is a {type(module).__name__}, but this model was fitted with {had}.")
            settings[name] = module
        try:
            return super().from_file(tensors, settings, fitted)
        except RuntimeError as error:
            if not networks:
                raise
            raise ValueError(f"cost or potential are not like those this model was fitted with: {error}") from error

    def _plain_settings(self) -> dict[str, Any]:
        settings = super()._plain_settings()
        for name in self.own_networks:
            settings[name] = None if settings[name] is None else type(settings[name]).__name__
        return settings

    def _restore(self) -> None:
        self.x_shape_, self.y_shape_ = tuple(self.x_shape_), tuple(self.y_shape_)

    def _n_at_once(self) -> int:
        """The rows that networks are asked about at once."""
        return max(min(MOST_ROWS, MOST_NUMBERS // max(self.n_features_in_, self.n_outputs_)), 1)

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(as_device(self.device)).manual_seed(seed)

    def _both(self, X: Any, y: Any) -> tuple[Tensor, Tensor]:
        x = self._standardised(X)
        rows = self._check_y(self._flat(y, "Y", self.y_shape_))
        checks.refuse_unequal(len(x), len(rows))
        return x, within_reach(self.y_scaler_(torch.tensor(rows)), FARTHEST_Y).to(x.dtype)

    def _standardised(self, X: Any) -> Tensor:
        check_is_fitted(self, "plan_")
        return within_reach(self.x_scaler_(torch.tensor(self._check_x(self._flat(X, "X", self.x_shape_)))))

    def _is_table(self, name: str) -> bool:
        return len(self.x_shape_ if name == "X" else self.y_shape_) == 1

    def _flat(self, rows: Any, name: str, shape: Sequence[int]) -> Any:
        """Images as rows of numbers; tables as they are."""
        if len(shape) == 1 or rows is None:
            return rows
        inner = checks.unwrap(rows)
        came = np.shape(inner)[1:]
        if came != tuple(shape):
            raise ValueError(f"{name} must hold images of shape {tuple(shape)}, but {came} came.")
        return np.asarray(inner, dtype=np.float64).reshape(len(inner), -1)

    def _outputs(self, y: Tensor) -> np.ndarray:
        return super()._outputs(y) if len(self.y_shape_) == 1 else y.unflatten(-1, tuple(self.y_shape_)).numpy()


def _shape_of(rows: Any) -> tuple[int, ...]:
    """The shape of a row: of an image its channels, height and width; of a row of a table (−1,), whatever its length."""
    inner = checks.unwrap(rows)
    inner = np.asarray(inner[0])[None] if isinstance(inner, list | tuple) and len(inner) else inner  # a list of images
    shape = getattr(inner, "shape", ())
    return tuple(shape[1:]) if len(shape) > 2 else (-1,)
