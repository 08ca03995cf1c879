"""Estimators: the scikit-learn face. `MixtureTranslator` learns p(y|x) from a few pairs and many single x's and y's.

`fit` checks and standardises the data, starts the plan as a mixture of all y's that ignores x, and lets training earn every
departure from there (`training`, `objectives`, `smoothing`). Everything afterwards is read off the fitted plan (`plans`)
in float64 and in the user's units.
"""

import os
import warnings
from collections.abc import Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fewpairs import objectives
from fewpairs.conditionals import ConditionalMixture
from fewpairs.costs import SlopeCost
from fewpairs.data import Samples, Scaler
from fewpairs.faces import LEAST_PAIRS, Translator
from fewpairs.files import read_model, write_model
from fewpairs.nn import ACTIVATIONS
from fewpairs.plans import MixturePlan
from fewpairs.potentials import ATOMS, MixturePotential
from fewpairs.progress import progress_bar
from fewpairs.smoothing import NoiseSmoothing, NoSmoothing, Smoothing
from fewpairs.starts import n_atoms_for, start_from_mixture, start_from_samples
from fewpairs.training import Outcome, Settings, train

__all__ = ["MixtureTranslator", "load"]

FARTHEST = 1e6  # standard deviations: x's farther out are taken as being there, where squares still fit into a float
DTYPES = {"float32": torch.float32, "float64": torch.float64}

# What a fitted model remembers besides its tensors; all of it goes into a file as JSON.
FITTED = (
    "ended_",
    "history_",
    "is_1d_",
    "n_atoms_",
    "n_features_in_",
    "n_outputs_",
    "n_steps_",
    "target_names_",
    "validation_score_",
    "variance_floor_",
)

# The paper's settings for the Swiss roll, by its text and by what the authors' notebook runs (linear a and v).
PAPER: dict[str, Any] = {
    "objective": "inverse_eot",
    "n_atoms": 50,
    "n_slopes": 25,
    "hidden": (25,),
    "weight_hidden": (),
    "activation": "relu",
    "slope_std": None,
    "learn_scale": False,
    "start": "samples",
    "start_variance": 0.1,
    "variance_floor": 0.0,
    "standardise": False,
    "smoothing": 0.0,
    "validation_fraction": 0.0,
    "learning_rate": 3e-4,
    "potential_learning_rate": 1e-3,
    "one_cycle": False,
    "max_grad_norm": None,
    "batch_size": 128,
    "max_steps": 25_000,
}
RECIPES: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    "authors": {**PAPER, "hidden": (), "slope_std": 0.01, "dtype": "float64"},
}


class MixtureTranslator(Translator):
    """Learns p(y|x) as a mixture of Gaussians in closed form, from pairs and unpaired rows (EBiEOT-GMM).

    Arguments you may want:
        objective: "marginal", the bounded objective; "supervised" ignores unpaired rows; "inverse_eot" is the paper's loss.
        unpaired_weight: The weight μ of the unpaired rows under "marginal".
        smoothing: The noise added to x in training, in standard deviations of x. More of it, smoother in x.
        max_steps: The training steps at the most.
        time_budget: The seconds of training at the most; the schedule fits itself into them.
        random_state: A number makes the fit repeatable on the same machine.
        verbose: Whether to show a progress bar when a fit takes longer than a moment on a terminal.

    Arguments you should not need:
        n_atoms: The Gaussians of the potential, at the most (fewer where there are few y's).
        n_slopes: The slopes of the cost.
        covariance: "diagonal" or "full" atoms.
        hidden: The hidden widths of the network of x.
        weight_hidden: The hidden widths of a network of its own for the weights v; None shares one.
        activation: "silu", "relu" or "tanh".
        slope_std: The scale of the first slopes; None is PyTorch's own initialisation.
        learn_scale: Whether the slopes have a scale of their own, which lets a sharp p(y|x) be learnt in few steps.
        start: "mixture" fits the atoms to all y's before training; "samples" puts them onto random y's.
        start_variance: The variance of the atoms that start on samples.
        variance_floor: The least variance of an atom, as a part of the variance of y. "auto" is one over the number of
            pairs, that are not held out, within 1e-4 and 0.03: finer detail of p(y|x) than that, so few pairs cannot show.
        standardise: Whether x and y are brought to mean zero and variance one inside. Without it, data far from that scale
            lose accuracy in float32, and smoothing and floor are in the data's own units.
        validation_fraction: The part of the pairs held out to choose the best step; 0 keeps the last.
        learning_rate: Adam's step size; its peak under the one-cycle schedule.
        potential_learning_rate: The same for the potential; None is the same.
        one_cycle: Whether the step size rises and falls once over the fit, or stays constant.
        batch_size: The rows of source, target and pairs in a step.
        max_grad_norm: Longer gradients are shortened to it; None leaves them.
        dtype: "float32" or "float64", in training. What is read off a fitted model is computed in float64.
        device: "auto" takes a CUDA device if there is one, or name one.

    Attributes:
        plan_: The fitted plan, in float64 and standardised units.
        history_: A dictionary of lists, one entry for each look at the held-out pairs: "step", "objective",
            "held_out_nll" (in the user's units) and "seconds".
        validation_score_: The mean log-likelihood of the held-out pairs, by which the best step was chosen; NaN if none were.
        n_steps_: The step whose plan was kept.
        ended_: Why training ended: "finished", "out of time", "interrupted" or "diverged".
        n_atoms_, variance_floor_: The atoms and the floor that were used.
        n_features_in_, feature_names_in_: The columns of X.
        n_outputs_: The columns of Y.

    Example:
        >>> from fewpairs.datasets import TwoBranches
        >>> data = TwoBranches().draw(n_pairs=40, n_source=200, n_target=200, seed=0)
        >>> model = MixtureTranslator(max_steps=50, random_state=0)
        >>> model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired).sample(data.X, 3).shape
        (3, 40, 1)
    """

    _parameter_constraints = {
        "objective": [StrOptions({"marginal", "inverse_eot", "supervised"})],
        "unpaired_weight": [Interval(Real, 0, None, closed="left")],
        "smoothing": [Interval(Real, 0, None, closed="left")],
        "max_steps": [Interval(Integral, 1, None, closed="left")],
        "time_budget": [Interval(Real, 0, None, closed="neither"), None],
        "random_state": ["random_state"],
        "verbose": ["boolean"],
        "n_atoms": [Interval(Integral, 1, None, closed="left")],
        "n_slopes": [Interval(Integral, 1, None, closed="left")],
        "covariance": [StrOptions(set(ATOMS))],
        "hidden": ["array-like"],
        "weight_hidden": ["array-like", None],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "slope_std": [Interval(Real, 0, None, closed="left"), None],
        "learn_scale": ["boolean"],
        "start": [StrOptions({"mixture", "samples"})],
        "start_variance": [Interval(Real, 0, None, closed="neither")],
        "variance_floor": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "standardise": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 0.9, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "potential_learning_rate": [Interval(Real, 0, None, closed="neither"), None],
        "one_cycle": ["boolean"],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "max_grad_norm": [Interval(Real, 0, None, closed="neither"), None],
        "dtype": [StrOptions(set(DTYPES))],
        "device": [str],
    }

    def __init__(
        self,
        *,
        objective: Literal["marginal", "inverse_eot", "supervised"] = "marginal",
        unpaired_weight: float = 3.0,
        smoothing: float = 0.2,
        max_steps: int = 1000,
        time_budget: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = True,
        n_atoms: int = 50,
        n_slopes: int = 8,
        covariance: Literal["diagonal", "full"] = "diagonal",
        hidden: Sequence[int] = (16, 16),
        weight_hidden: Sequence[int] | None = None,
        activation: Literal["silu", "relu", "tanh"] = "silu",
        slope_std: float | None = 0.01,
        learn_scale: bool = True,
        start: Literal["mixture", "samples"] = "mixture",
        start_variance: float = 0.1,
        variance_floor: float | Literal["auto"] = "auto",
        standardise: bool = True,
        validation_fraction: float = 0.2,
        learning_rate: float = 2e-2,
        potential_learning_rate: float | None = None,
        one_cycle: bool = True,
        batch_size: int = 256,
        max_grad_norm: float | None = 10.0,
        dtype: Literal["float32", "float64"] = "float32",
        device: str = "auto",
    ) -> None:
        self.objective = objective
        self.unpaired_weight = unpaired_weight
        self.smoothing = smoothing
        self.max_steps = max_steps
        self.time_budget = time_budget
        self.random_state = random_state
        self.verbose = verbose
        self.n_atoms = n_atoms
        self.n_slopes = n_slopes
        self.covariance = covariance
        self.hidden = hidden
        self.weight_hidden = weight_hidden
        self.activation = activation
        self.slope_std = slope_std
        self.learn_scale = learn_scale
        self.start = start
        self.start_variance = start_variance
        self.variance_floor = variance_floor
        self.standardise = standardise
        self.validation_fraction = validation_fraction
        self.learning_rate = learning_rate
        self.potential_learning_rate = potential_learning_rate
        self.one_cycle = one_cycle
        self.batch_size = batch_size
        self.max_grad_norm = max_grad_norm
        self.dtype = dtype
        self.device = device

    @classmethod
    def from_recipe(cls, name: Literal["paper", "authors"], **changes: Any) -> Self:
        """The paper's own method, to reproduce it: "paper" as its text says, "authors" as their notebook runs it."""
        if name not in RECIPES:
            raise ValueError(f"There is no recipe {name!r}; the recipes are {sorted(RECIPES)}.")
        return cls(**{**RECIPES[name], **changes})

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_unpaired: Any = None,
        Y_unpaired: Any = None,
        X_unpaired_weight: Any = None,
        Y_unpaired_weight: Any = None,
    ) -> Self:
        """Learns from pairs and unpaired rows.

        Arguments:
            X: The x's of the pairs, (P, dim_x).
            y: The y's of the pairs, (P, dim_y) or (P,).
            sample_weight: One weight for each pair.
            X_unpaired: More x's. None leaves the pairs' own.
            Y_unpaired: More y's. None leaves the pairs' own; with neither the fit is supervised.
            X_unpaired_weight: One weight for each of them.
            Y_unpaired_weight: One weight for each of them.
        """
        self._validate_params()
        before = dict(self.__dict__)
        try:
            samples = self._gather(X, y, sample_weight, X_unpaired, Y_unpaired, X_unpaired_weight, Y_unpaired_weight)
            self._learn(samples, has_unpaired=X_unpaired is not None or Y_unpaired is not None)
        except BaseException:  # whatever it was, half of a new model on top of an old one would be worse
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _learn(self, samples: Samples, *, has_unpaired: bool) -> None:
        random = check_random_state(self.random_state)
        device = self._device()
        generator = torch.Generator(device).manual_seed(int(random.randint(2**31)))

        self.x_scaler_, self.y_scaler_ = self._scalers(samples)
        samples = samples.standardise(self.x_scaler_, self.y_scaler_).to(dtype=DTYPES[self.dtype], device=device)
        held_out = None
        n_pairs = len(samples.pairs_x)
        n_held_out = min(round(self.validation_fraction * n_pairs), n_pairs - LEAST_PAIRS)
        if n_held_out >= 1:
            samples, held_out = samples.split(n_held_out, generator)

        plan = self._start(samples, random).to(device)
        with progress_bar("Learning p(y|x)", is_on=self.verbose) as on_step:
            outcome = train(
                plan,
                samples,
                self._objective(has_unpaired),
                settings=self._settings(),
                smoothing=self._smoothing(),
                held_out=held_out,
                generator=generator,
                on_step=on_step,
            )
        self._keep(plan, outcome)

    def conditional(self, X: Any) -> ConditionalMixture:
        """p(y|x) for each row, as a torch distribution in the user's units: `log_prob`, `sample`, `mean`, `cdf`, `icdf`."""
        check_is_fitted(self, "plan_")
        x = self.x_scaler_(torch.tensor(self._check_x(X)))
        x = x.clamp(-FARTHEST, FARTHEST)
        with torch.no_grad():
            return self.plan_.conditional(x, self.y_scaler_.loc, self.y_scaler_.scale)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the fitted model to a safetensors file; `fewpairs.load` reads it. The old file stays if anything fails."""
        check_is_fitted(self, "plan_")
        settings = self.get_params()
        if not isinstance(self.random_state, Integral | None):
            settings["random_state"] = None  # a generator is no setting, and the fitted model does not need it
        fitted = {name: getattr(self, name) for name in FITTED}
        fitted["feature_names_in_"] = list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None
        tensors = {f"plan.{name}": tensor for name, tensor in self.plan_.state_dict().items()}
        for name in ("x_scaler_", "y_scaler_"):
            scaler = getattr(self, name)
            tensors |= {f"{name}.loc": scaler.loc, f"{name}.scale": scaler.scale}
        write_model(path, tensors, {"estimator": type(self).__name__, "settings": settings, "fitted": fitted})

    @classmethod
    def _from_file(cls, tensors: dict[str, Tensor], settings: dict[str, Any], fitted: dict[str, Any]) -> Self:
        model = cls(**settings)
        feature_names = fitted.pop("feature_names_in_")
        if feature_names is not None:
            model.feature_names_in_ = np.array(feature_names, dtype=object)
        for name, value in fitted.items():
            setattr(model, name, value)
        for name in ("x_scaler_", "y_scaler_"):
            setattr(model, name, Scaler(tensors[f"{name}.loc"], tensors[f"{name}.scale"]))
        plan = model._make_plan().double()
        plan.load_state_dict({name[5:]: tensor for name, tensor in tensors.items() if name.startswith("plan.")})
        model.plan_ = plan.eval().requires_grad_(False)
        return model

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise ValueError(f'device must be "auto", "cpu" or "cuda", but {self.device!r} came.') from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f'device={self.device!r} was asked for, but torch sees no CUDA device here; use "auto" or "cpu".'
            )
        return device

    def _objective(self, has_unpaired: bool) -> objectives.Objective:
        if self.objective == "inverse_eot":
            return objectives.inverse_eot
        if self.objective == "supervised" or not has_unpaired or self.unpaired_weight == 0:
            return objectives.supervised
        return partial(objectives.marginal, unpaired_weight=self.unpaired_weight)

    def _smoothing(self) -> Smoothing:
        return NoiseSmoothing(self.smoothing) if self.smoothing > 0 else NoSmoothing()

    def _settings(self) -> Settings:
        return Settings(
            learning_rate=self.learning_rate,
            potential_learning_rate=self.potential_learning_rate or self.learning_rate,
            one_cycle=self.one_cycle,
            batch_size=self.batch_size,
            max_steps=self.max_steps,
            time_budget=self.time_budget,
            max_grad_norm=self.max_grad_norm,
        )

    def _scalers(self, samples: Samples) -> tuple[Scaler, Scaler]:
        if not self.standardise:
            return Scaler.none(samples.source), Scaler.none(samples.target)
        return (
            Scaler.learn(samples.source, samples.source_weight),
            Scaler.learn(samples.target, samples.target_weight),
        )

    def _make_plan(self) -> MixturePlan:
        cost = SlopeCost(
            dim_x=self.n_features_in_,
            dim_y=self.n_outputs_,
            n_slopes=self.n_slopes,
            hidden=self.hidden,
            weight_hidden=self.weight_hidden,
            activation=self.activation,
            slope_std=self.slope_std,
            learn_scale=self.learn_scale,
        )
        potential = MixturePotential(
            dim_y=self.n_outputs_,
            n_atoms=self.n_atoms_,
            covariance=self.covariance,
            variance_floor=self.variance_floor_,
        )
        return MixturePlan(cost, potential)

    def _start(self, samples: Samples, random: np.random.RandomState) -> MixturePlan:
        """The plan before training: atoms where the y's are, slopes near zero."""
        self.n_atoms_ = self.n_atoms
        if self.start == "mixture":
            self.n_atoms_ = n_atoms_for(len(samples.target), self.n_atoms)
        self.variance_floor_ = float(
            np.clip(1 / len(samples.pairs_x), 1e-4, 0.03) if self.variance_floor == "auto" else self.variance_floor
        )
        with torch.random.fork_rng(devices=[]):  # networks draw their first weights from torch's global generator
            torch.manual_seed(int(random.randint(2**31)))
            plan = self._make_plan().to(samples.source.dtype)
        if self.start == "mixture":
            start_from_mixture(plan.potential, samples.target, samples.target_weight, random)
        else:
            start_from_samples(plan.potential, samples.target, self.start_variance, random)
        return plan

    def _keep(self, plan: MixturePlan, outcome: Outcome) -> None:
        """Puts what training brought into the fitted attributes, and says what the user must know."""
        self.plan_ = plan.cpu().double().eval().requires_grad_(False)
        log_det = float(self.y_scaler_.scale.log().sum())
        self.history_ = outcome.history
        self.history_["held_out_nll"] = [nll + log_det for nll in outcome.history["held_out_nll"]]
        self.n_steps_ = outcome.best_step
        self.ended_ = outcome.ended
        self.validation_score_ = -self.history_["held_out_nll"][self.history_["step"].index(outcome.best_step)]
        if outcome.ended == "interrupted":
            warnings.warn(
                f"Interrupted after {self.history_['step'][-1]} steps: the best model so far, of step {self.n_steps_}, is kept. "
                "A loop around this fit goes on; interrupt again to stop that.",
                stacklevel=3,
            )
        if outcome.ended == "diverged":
            warnings.warn(
                f"Training met numbers that are not finite and stopped; the best model before, of step {self.n_steps_}, is "
                "kept. A smaller learning_rate or a larger variance_floor helps.",
                ConvergenceWarning,
                stacklevel=3,
            )


def load(path: str | os.PathLike) -> MixtureTranslator:
    """Reads a model that `save` wrote."""
    tensors, description = read_model(path)
    if description["estimator"] not in ESTIMATORS:
        raise ValueError(
            f"{str(path)!r} holds a {description['estimator']}, and this fewpairs knows {sorted(ESTIMATORS)}. Upgrade fewpairs."
        )
    return ESTIMATORS[description["estimator"]]._from_file(tensors, description["settings"], description["fitted"])


ESTIMATORS = {"MixtureTranslator": MixtureTranslator}
