"""Estimators: the scikit-learn face. `MixtureTranslator` learns p(y|x) from a few pairs and many single x's and y's.

`fit` checks and standardises the data, cuts the pairs into folds, and hands them to `choice`, which finds the settings that
suit them, trains an ensemble (one member a fold) and says what it is worth. Everything afterwards is read off the fitted
plan (`plans`) in float64 and in the user's units.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fewpairs.data.checks import warn_user
from fewpairs.data.folds import Folds, row_keys
from fewpairs.data.samples import Samples
from fewpairs.data.scaling import Scaler
from fewpairs.estimators.base import ClosedFormTranslator, as_device
from fewpairs.estimators.novelty import Neighbourhood
from fewpairs.estimators.recipes import RECIPES
from fewpairs.estimators.saving import SavedEnsemble
from fewpairs.networks.perceptrons import ACTIVATIONS, as_widths
from fewpairs.plans.conditionals import ConditionalEnsemble
from fewpairs.plans.mixture import EnsemblePlan, MixturePlan
from fewpairs.plans.potentials import ATOMS
from fewpairs.selection.choice import MANY_PAIRS, MOST_OUTPUTS_FULL, RUNGS, Choice, choose, choose_together, resume
from fewpairs.selection.makers import Candidate, Clock, MixtureMaker
from fewpairs.shift.bias import look_for_bias
from fewpairs.training.loop import Settings
from fewpairs.training.progress import progress_bar

__all__ = ["MixtureTranslator", "fit_together"]

FARTHEST = 1e6  # standard deviations: x's farther out are taken as being there, where squares still fit into a float
LEAST_POPULATION = 50  # unpaired rows of each kind that can stand for the population without the pairs' help
DTYPES = {"float32": torch.float32, "float64": torch.float64}

# What a fitted model remembers besides its tensors; all of it goes into a file as JSON.
FITTED = (
    "bias_",
    "candidates_",
    "chosen_",
    "ended_",
    "finals_",
    "history_",
    "is_1d_",
    "linear_share_",
    "n_features_in_",
    "n_folds_",
    "n_outputs_",
    "n_pairs_",
    "n_steps_",
    "n_unpaired_",
    "target_names_",
    "unpaired_gain_",
    "unpaired_gain_error_",
    "validation_score_",
    "validation_score_error_",
    "x_gain_",
    "x_gain_error_",
)
PARTS: dict[str, Any] = {"x_scaler_": Scaler, "y_scaler_": Scaler, "neighbourhood_": Neighbourhood}
TENSORS = ("fold_keys_", "folds_")


class MixtureTranslator(SavedEnsemble, ClosedFormTranslator):
    """Learns p(y|x) as a mixture of Gaussians in closed form, from pairs and unpaired rows (EBiEOT-GMM).

    Arguments you may want:
        objective: "marginal", the bounded objective; "supervised" ignores unpaired rows; "inverse_eot" is the paper's loss.
        time_budget: The seconds a fit may take; training and search fit themselves into them.
        random_state: A number makes the fit repeatable on the same machine, unless time_budget ends it.
        warm_start: Whether a second `fit` goes on from the first, with the settings chosen then: for new unpaired rows, and
            for more pairs of the same kind.
        pairs_are: "auto" tests whether the pairs' x's are distributed like the unpaired ones; if not, held-out pairs count by
            how common their x is among the unpaired ones, so that choice and scores are about the population, and some members
            of the ensemble lean on common ones in training too. "biased" takes that as known, "representative" leaves it out.
            Squares and products of columns must show the difference, and rows count alike, whatever their weights. See `bias`.
        verbose: Whether to show a progress bar when a fit takes longer than a moment on a terminal.

    Arguments that are chosen from the data. A value fixes one; with all of them fixed, nothing is searched for:
        unpaired_weight: The weight μ of the unpaired rows under "marginal".
        smoothing: The noise added to x in training, in standard deviations of x. More of it, smoother in x.
        adversarial: The length, as a part of √dim_x standard deviations, of the step in x that changes p(y|x) most, and against
            which it is kept steady; 0 leaves that out.
        variance_floor: The least variance of an atom, as a part of the variance of y.
        hidden: The hidden widths of the network of x; () is a linear map.
        covariance: "diagonal" or "full" atoms.
        n_atoms: The Gaussians of the potential, at the most (fewer where there are few y's).
        emphasis: Where pairs are biased: the power of its relevance with which a pair counts in training. 0 is all alike, 1 is as
            in judging. "auto" tries both; under "inverse_eot", which is wrong without, it is 1.

    Arguments you should not need:
        max_steps: The training steps at the most; "auto" is 400, and more for more than 512 pairs.
        n_folds: The folds that the pairs are cut into. Each member of the ensemble learns from all but one, which judges it.
            1 holds nothing out: one member, the last step, no choice and no scores.
        n_slopes: The slopes of the cost.
        weight_hidden: The hidden widths of a network of its own for the weights v; None shares one.
        activation: "silu", "relu", "tanh" or "leaky_relu".
        slope_std: The scale of the first slopes; None is PyTorch's own initialisation.
        learn_scale: Whether the slopes have a scale of their own, which lets a sharp p(y|x) be learnt in few steps.
        start: "mixture" fits the atoms to all y's before training; "samples" puts them onto random y's.
        start_variance: The variance of the atoms that start on samples.
        standardise: Whether x and y are brought to mean zero and variance one inside. Without it, data far from that scale
            lose accuracy in float32, and smoothing and floor are in the data's own units.
        learning_rate: Adam's step size; its peak under the one-cycle schedule.
        potential_learning_rate: The same for the potential; None is the same.
        one_cycle: Whether the step size rises and falls once over the fit, or stays constant.
        batch_size: The rows of source and of target in a step.
        pairs_batch_size: The pairs in a step.
        max_grad_norm: Longer gradients are shortened to it; None leaves them.
        dtype: "float32" or "float64", in training. What is read off a fitted model is computed in float64.
        device: "auto" takes a CUDA device if there is one, or name one.

    Attributes:
        plan_: The fitted plan, an ensemble in float64 and standardised units.
        validation_score_, validation_score_error_: The mean log-likelihood of the pairs, each by a member that has not seen
            it, and its standard error. Settings, steps and shares were chosen without the pair that is scored; members
            are scored one by one, so the ensemble is usually a little better. NaN if nothing was held out.
        unpaired_gain_, unpaired_gain_error_: What the unpaired rows brought against the best model without them, in nats
            per pair; NaN if there was no time to train that one. Errors are NaN with fewer than five pairs.
        x_gain_, x_gain_error_: What x brought, against the best mixture of all y's that ignores it.
        bias_: What was found about where the pairs come from: "is_biased", "p_value", "effective_sample_size" (so many pairs
            from the population would judge as well), "n_clipped", "coverage" (the part of the unpaired x's that lie among the
            pairs; the scores are about it alone).
        chosen_: The settings with the largest share in the ensemble.
        finals_: All settings in the ensemble and their shares; the linear plan and the model that ignores x have the rest.
        linear_share_: The share of the linear plan, y = A x + b + Gaussian noise.
        candidates_: Every candidate that was tried, with its score on the held-out pairs and a standard error (of biased pairs,
            with the tempered weights of the choice).
        history_: Of the chosen settings, a list for each of "step", "objective", "held_out_nll" (in the user's units, mean
            over the folds) and "seconds".
        n_steps_: The step whose plans were kept.
        ended_: Why training ended: "finished", "out of time", "interrupted" or "diverged".
        n_features_in_, feature_names_in_: The columns of X.
        n_outputs_: The columns of Y.

    Example:
        >>> from fewpairs.datasets.made import TwoBranches
        >>> data = TwoBranches().draw(n_pairs=40, n_source=200, n_target=200, seed=0)
        >>> model = MixtureTranslator(max_steps=20, n_folds=2, hidden=(), smoothing=0.1, random_state=0)
        >>> model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired).sample(data.X, 3).shape
        (3, 40, 1)
    """

    fitted_names, fitted_tensors, fitted_parts = FITTED, TENSORS, PARTS
    plan_: EnsemblePlan
    n_folds_: int
    folds_: Tensor
    fold_keys_: Tensor

    _parameter_constraints = {
        "objective": [StrOptions({"marginal", "inverse_eot", "supervised"})],
        "time_budget": [Interval(Real, 0, None, closed="neither"), None],
        "random_state": ["random_state"],
        "warm_start": ["boolean"],
        "pairs_are": [StrOptions({"auto", "biased", "representative"})],
        "verbose": ["boolean"],
        "unpaired_weight": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "smoothing": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "adversarial": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "variance_floor": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "hidden": ["array-like", StrOptions({"auto"})],
        "covariance": [StrOptions({*ATOMS, "auto"})],
        "n_atoms": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "emphasis": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "max_steps": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "n_folds": [Interval(Integral, 1, None, closed="left")],
        "n_slopes": [Interval(Integral, 1, None, closed="left")],
        "weight_hidden": ["array-like", None],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "slope_std": [Interval(Real, 0, None, closed="left"), None],
        "learn_scale": ["boolean"],
        "start": [StrOptions({"mixture", "samples"})],
        "start_variance": [Interval(Real, 0, None, closed="neither")],
        "standardise": ["boolean"],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "potential_learning_rate": [Interval(Real, 0, None, closed="neither"), None],
        "one_cycle": ["boolean"],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "pairs_batch_size": [Interval(Integral, 1, None, closed="left")],
        "max_grad_norm": [Interval(Real, 0, None, closed="neither"), None],
        "dtype": [StrOptions(set(DTYPES))],
        "device": [str],
    }

    def __init__(
        self,
        *,
        objective: Literal["marginal", "inverse_eot", "supervised"] = "marginal",
        time_budget: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        warm_start: bool = False,
        pairs_are: Literal["auto", "biased", "representative"] = "auto",
        verbose: bool = True,
        unpaired_weight: float | Literal["auto"] = "auto",
        smoothing: float | Literal["auto"] = "auto",
        adversarial: float | Literal["auto"] = "auto",
        variance_floor: float | Literal["auto"] = "auto",
        hidden: Sequence[int] | Literal["auto"] = "auto",
        covariance: Literal["diagonal", "full", "auto"] = "auto",
        n_atoms: int | Literal["auto"] = "auto",
        emphasis: float | Literal["auto"] = "auto",
        max_steps: int | Literal["auto"] = "auto",
        n_folds: int = 5,
        n_slopes: int = 4,
        weight_hidden: Sequence[int] | None = None,
        activation: Literal["silu", "relu", "tanh", "leaky_relu"] = "silu",
        slope_std: float | None = 0.01,
        learn_scale: bool = True,
        start: Literal["mixture", "samples"] = "mixture",
        start_variance: float = 0.1,
        standardise: bool = True,
        learning_rate: float = 3e-2,
        potential_learning_rate: float | None = None,
        one_cycle: bool = True,
        batch_size: int = 256,
        pairs_batch_size: int = 1024,
        max_grad_norm: float | None = 10.0,
        dtype: Literal["float32", "float64"] = "float32",
        device: str = "auto",
    ) -> None:
        self.objective = objective
        self.time_budget = time_budget
        self.random_state = random_state
        self.warm_start = warm_start
        self.pairs_are = pairs_are
        self.verbose = verbose
        self.unpaired_weight = unpaired_weight
        self.smoothing = smoothing
        self.adversarial = adversarial
        self.variance_floor = variance_floor
        self.hidden = hidden
        self.covariance = covariance
        self.n_atoms = n_atoms
        self.emphasis = emphasis
        self.max_steps = max_steps
        self.n_folds = n_folds
        self.n_slopes = n_slopes
        self.weight_hidden = weight_hidden
        self.activation = activation
        self.slope_std = slope_std
        self.learn_scale = learn_scale
        self.start = start
        self.start_variance = start_variance
        self.standardise = standardise
        self.learning_rate = learning_rate
        self.potential_learning_rate = potential_learning_rate
        self.one_cycle = one_cycle
        self.batch_size = batch_size
        self.pairs_batch_size = pairs_batch_size
        self.max_grad_norm = max_grad_norm
        self.dtype = dtype
        self.device = device

    @property
    def uses(self) -> tuple[str, ...]:
        """What it learns from, of "pairs", "source" (all x's) and "target" (all y's)."""
        return ("pairs",) if self.objective == "supervised" else ("pairs", "source", "target")

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
        relevance: Any = None,
    ) -> Self:
        """Learns from pairs and unpaired rows.

        Arguments:
            X: The x's of the pairs, (P, dim_x).
            y: The y's of the pairs, (P, dim_y) or (P,).
            sample_weight: One weight for each pair.
            X_unpaired: More x's. None leaves the pairs' own. Without Y_unpaired they help to scale x, and no more.
            Y_unpaired: More y's. None leaves the pairs' own; with neither the fit is supervised.
            X_unpaired_weight: One weight for each of them.
            Y_unpaired_weight: One weight for each of them.
            relevance: Where the pairs are a biased part of the population and it is known how: population over pairs at the x of
                each pair, up to a factor. None estimates it if need be; see `pairs_are`.
        """
        self._validate_params()
        clock = Clock(self.time_budget, time.perf_counter())
        before = dict(self.__dict__)
        columns = getattr(self, "n_features_in_", None), getattr(self, "n_outputs_", None)
        try:
            samples = self._gather(
                X,
                y,
                X_unpaired=X_unpaired,
                Y_unpaired=Y_unpaired,
                sample_weight=sample_weight,
                X_unpaired_weight=X_unpaired_weight,
                Y_unpaired_weight=Y_unpaired_weight,
                relevance=relevance,
            )
            if self.warm_start and "plan_" in before and columns != (self.n_features_in_, self.n_outputs_):
                raise ValueError(
                    f"warm_start goes on with a model of {columns[0]} columns of X and {columns[1]} of Y, but "
                    f"{self.n_features_in_} and {self.n_outputs_} came. Use warm_start=False to begin anew."
                )
            self._learn(samples, clock, is_bias_known=relevance is not None)
        except BaseException:  # whatever it was, half of a new model on top of an old one would be worse
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def conditional(self, X: Any) -> ConditionalEnsemble:
        """p(y|x) for each row, as a torch distribution in the user's units: `log_prob`, `sample`, `mean`, `cdf`, `icdf`."""
        x = self._standardised(X)
        n_far = int((self.neighbourhood_(x) > 1).sum())
        if n_far:
            warn_user(
                f"{n_far} of {len(x)} rows of X are far from every x seen in training: p(y|x) is a guess there. "
                "novelty(X) tells which (above 1 is far).",
            )
        with torch.no_grad():
            return self.plan_.conditional(x.clamp(-FARTHEST, FARTHEST), self.y_scaler_.loc, self.y_scaler_.scale)

    def plan_in_parts(self, unseen: int | None = None) -> EnsemblePlan:
        """The plan, in standardised units, as an ensemble of its parts, each of them an ensemble of one member a fold; or of
        those members alone that have not seen the pairs of a fold."""
        members, shares = self.plan_.members, self.plan_.shares
        if self.n_folds_ == 1:
            return EnsemblePlan([self.plan_], torch.ones_like(shares[:1]))
        # In front is the model that ignores x; behind it stand the members of each part of the ensemble, one a fold.
        parts = [members[first : first + self.n_folds_] for first in range(1, len(members), self.n_folds_)]
        of_parts = torch.cat([shares[:1], shares[1:].unflatten(0, (len(parts), self.n_folds_)).sum(1)])
        if unseen is not None:
            return EnsemblePlan([members[0], *(part[unseen] for part in parts)], of_parts)
        even = torch.full_like(shares[: self.n_folds_], 1 / self.n_folds_)
        return EnsemblePlan([members[0], *(EnsemblePlan(part, even) for part in parts)], of_parts)

    def novelty(self, X: Any) -> np.ndarray:
        """How far each x is from those seen in training, one number a row: above 1 is far, and p(y|x) a guess."""
        return self.neighbourhood_(self._standardised(X))

    def summary(self) -> str:
        """What was learnt, from what, and how far to trust it, in a paragraph."""
        check_is_fitted(self, "plan_")
        data = f"Learnt from {self.n_pairs_} pairs, {self.n_unpaired_[0]} unpaired x's and {self.n_unpaired_[1]} unpaired y's"
        if math.isnan(self.validation_score_):
            return f"{data}; nothing was held out, so nothing is known about how good it is. Training {self.ended_}."
        idle = {"share"} if self.bias_["is_biased"] else {"share", "emphasis"}
        settings = ", ".join(f"{name} {value}" for name, value in self.chosen_.items() if name not in idle)
        judges = ""
        if self.bias_["is_biased"]:
            judges = (
                f" (weighted towards the unpaired x's, like {self.bias_['effective_sample_size']:.0f} pairs from there; "
                f"{self.bias_['coverage']:.0%} of them lie among the pairs)"
            )
        of_unpaired = ""
        if self.n_unpaired_[1] == 0 < self.n_unpaired_[0] and self.objective != self._objective():
            of_unpaired = "; the unpaired x's, without unpaired y's, tell nothing about y and helped to scale x alone"
        elif sum(self.n_unpaired_) > 0:
            gain = _gain(self.unpaired_gain_, self.unpaired_gain_error_)
            of_unpaired = f"; the unpaired rows brought {gain} against the best model without them"
        return (
            f"{data}. Held-out log-likelihood {_with_error(f'{self.validation_score_:.3f}', self.validation_score_error_)} nats "
            f"per pair{judges}. x brought {_gain(self.x_gain_, self.x_gain_error_)} against ignoring it{of_unpaired}. Of "
            f"{len(self.candidates_)} candidates, the ensemble gives the largest share, {self.chosen_['share']:.0%}, to: "
            f"{settings}; a linear regression has {self.linear_share_:.0%}, and "
            f"{1 - self.linear_share_ - sum(final['share'] for final in self.finals_):.0%} ignore x. Training {self.ended_}."
        )

    def _shape_of(self, plan: MixturePlan) -> dict[str, Any]:
        return plan.shape()

    def _empty_plan(self, shapes: list[Any]) -> EnsemblePlan:
        return EnsemblePlan([MixturePlan.of_shape(**shape) for shape in shapes], torch.ones(len(shapes))).double()

    def _learn(self, samples: Samples, clock: Clock, *, is_bias_known: bool) -> None:
        is_continued = self.warm_start and hasattr(self, "plan_")
        with progress_bar(is_on=self.verbose) as on_step:
            maker = self._prepare(samples, clock, on_step, is_continued=is_continued, is_bias_known=is_bias_known)
            choice = (
                resume(maker, *self._members()) if is_continued else choose(maker, self._wishes(), self._objective())
            )
        self._keep(choice)

    def _objective(self) -> str:
        """Without unpaired rows, or without weight on them, the marginal objective is the supervised one. Unpaired x's without
        unpaired y's say nothing about y (they brought 0.01 nats in the battery, and half the noise): they get no weight unless
        one was given."""
        n_x, n_y = self.n_unpaired_
        is_idle = n_y == 0 and (n_x == 0 or isinstance(self.unpaired_weight, str))
        is_supervised = self.objective == "marginal" and (is_idle or self.unpaired_weight == 0)
        return "supervised" if is_supervised else self.objective

    def _prepare(
        self, samples: Samples, clock: Clock, on_step: Any, *, is_continued: bool = False, is_bias_known: bool = False
    ) -> MixtureMaker:
        """Scales the data, cuts them into folds, and hands them to a maker."""
        random, device = check_random_state(self.random_state), as_device(self.device)
        self.n_pairs_ = len(samples.pairs_x)
        self.n_unpaired_ = [len(samples.source) - self.n_pairs_, len(samples.target) - self.n_pairs_]
        keys = row_keys(samples)
        known = samples.relevance.numpy() if is_bias_known else None
        bias = look_for_bias(samples.pairs_x.numpy(), samples.source[self.n_pairs_ :].numpy(), self.pairs_are, known)
        self.bias_ = bias.describe()
        samples = replace(samples, relevance=torch.from_numpy(bias.relevance))
        if bias.is_biased:
            # The pairs' own points are not from the population. Where it has enough points they leave source and target, and
            # else they stay with the weight that brings them there.
            has_plenty = min(self.n_unpaired_) >= max(LEAST_POPULATION, self.n_pairs_ / 2)
            own = torch.zeros_like(samples.relevance) if has_plenty else samples.relevance / samples.relevance.mean()
            samples = samples.weigh_own_points(own)
        if not is_continued:
            self.x_scaler_, self.y_scaler_ = self._scalers(samples)
        samples = samples.standardise(self.x_scaler_, self.y_scaler_).to(dtype=DTYPES[self.dtype], device=device)
        known_folds = dict(zip(self.fold_keys_.tolist(), self.folds_.tolist(), strict=True)) if is_continued else {}
        if not is_continued:  # members have their folds for good
            self.n_folds_ = min(self.n_folds, self.n_pairs_)
        folds = Folds.none(samples)
        if self.n_folds_ > 1:
            folds = Folds.cut(samples, self.n_folds_, random, [known_folds.get(key) for key in keys])
        self.fold_keys_, self.folds_ = torch.tensor(keys), folds.pairs
        self.neighbourhood_ = Neighbourhood.learn(samples.source, random)
        return self._maker(samples, folds, random, clock, on_step, bias.uncovered)

    def _maker(
        self,
        samples: Samples,
        folds: Folds,
        random: np.random.RandomState,
        clock: Clock,
        on_step: Any,
        uncovered: float,
    ) -> MixtureMaker:
        usual = round(400 * float(np.clip((self.n_pairs_ / 512) ** 0.4, 1, 5)))
        longest = usual if self.time_budget is None else 20 * usual  # with a budget, the time is the bound
        settings = Settings(
            learning_rate=self.learning_rate,
            potential_learning_rate=self.potential_learning_rate or self.learning_rate,
            one_cycle=self.one_cycle,
            batch_size=self.batch_size,
            pairs_batch_size=self.pairs_batch_size,
            max_steps=longest if self.max_steps == "auto" else self.max_steps,
            max_grad_norm=self.max_grad_norm,
        )
        cost_options = {
            name: getattr(self, name) for name in ("weight_hidden", "activation", "slope_std", "learn_scale")
        }
        return MixtureMaker(
            samples=samples,
            folds=folds,
            settings=settings,
            n_slopes=self.n_slopes,
            n_atoms=self.n_atoms,
            kinds=self._wishes()["covariance"],
            cost_options=cost_options,
            start=self.start,
            start_variance=self.start_variance,
            random=random,
            generator=torch.Generator(samples.source.device).manual_seed(int(random.randint(2**31))),
            clock=clock,
            on_step=on_step,
            uncovered=uncovered,
            has_linear=() in self._wishes()["hidden"] and self.objective != "inverse_eot",
        )

    def _wishes(self) -> dict[str, tuple[Any, ...]]:
        """For each knob the values to choose from."""
        wishes = dict(RUNGS)
        if self.n_outputs_ > MOST_OUTPUTS_FULL:
            wishes["covariance"] = ("diagonal",)
        if self.n_pairs_ < MANY_PAIRS:
            wishes["hidden"] = wishes["hidden"][1:]
        if not self.bias_["is_biased"]:
            wishes["emphasis"] = (0.0,)
        elif self.objective == "inverse_eot":
            wishes["emphasis"] = (1.0,)
        for name in wishes:
            value = getattr(self, name)
            if not (isinstance(value, str) and value == "auto"):
                wishes[name] = (as_widths(value) if name == "hidden" else value,)
        return wishes

    def _members(self) -> tuple[list[Candidate], list[list[MixturePlan]]]:
        """The candidates in the fitted ensemble, and the members of each; none for those that got no share."""
        candidates, members, first = [], [], len(self.plan_.members) - sum(final["n_members"] for final in self.finals_)
        emphasis = self._wishes()["emphasis"]
        for final in self.finals_:
            settings = {name: final[name] for name in Candidate.__dataclass_fields__}
            if len(emphasis) == 1:  # the new pairs may be biased where the old ones were not
                settings["emphasis"] = emphasis[0]
            candidates.append(Candidate(**{**settings, "hidden": tuple(settings["hidden"])}))
            members.append(self.plan_.members[first : first + final["n_members"]])
            first += final["n_members"]
        return candidates, members

    def _keep(self, choice: Choice) -> None:
        """Puts what came out into the fitted attributes, and says what the user must know."""
        self.plan_ = choice.plan.cpu().double().eval().requires_grad_(False)
        log_det = float(self.y_scaler_.scale.log().sum())
        self.validation_score_, self.validation_score_error_ = choice.score[0] - log_det, choice.score[1]
        self.unpaired_gain_, self.unpaired_gain_error_ = choice.unpaired_gain
        self.x_gain_, self.x_gain_error_ = choice.x_gain
        self.finals_ = [
            {**asdict(trial.candidate), "share": share, "n_members": trial.n_folds if share > 0 else 0}
            for trial, share in choice.finals
        ]
        self.linear_share_ = choice.linear_share
        trial, share = max(choice.finals, key=lambda final: final[1])
        self.chosen_ = {**asdict(trial.candidate), "share": share}
        self.candidates_ = [
            {**asdict(candidate), "score": score - log_det, "error": error} for candidate, score, error in choice.table
        ]
        outcome = trial.outcome
        self.history_ = {
            "step": outcome.steps,
            "objective": [
                float(losses[trial.first : trial.first + trial.n_folds].mean()) for losses in outcome.objectives
            ],
            "held_out_nll": [log_det - float(scores.nanmean()) for scores in trial.looks()],
            "seconds": outcome.seconds,
        }
        self.n_steps_ = outcome.steps[trial.best_look]
        self.ended_ = choice.ended
        if choice.ended == "interrupted":
            warn_user(
                "Interrupted: the best model so far is kept. A loop around this fit goes on; interrupt again to stop that.",
            )
        if choice.ended == "diverged":
            warn_user(
                f"Training met numbers that are not finite and stopped; the best model before, of step {self.n_steps_}, is "
                "kept. A smaller learning_rate or a larger variance_floor helps.",
                ConvergenceWarning,
            )

    def _scalers(self, samples: Samples) -> tuple[Scaler, Scaler]:
        if not self.standardise:
            return Scaler.none(samples.source), Scaler.none(samples.target)
        return (
            Scaler.learn(samples.source, samples.source_weight),
            Scaler.learn(samples.target, samples.target_weight),
        )

    def _standardised(self, X: Any) -> Tensor:
        check_is_fitted(self, "plan_")
        return self.x_scaler_(torch.tensor(self._check_x(X)))


def _gain(gain: float, error: float) -> str:
    return "an unknown gain (there was no time to find out)" if math.isnan(gain) else _with_error(f"{gain:+.3f}", error)


def _with_error(figure: str, error: float) -> str:
    return f"{figure} (too few pairs for an error bar)" if math.isnan(error) else f"{figure} ± {error:.3f}"


def fit_together(models: Sequence[MixtureTranslator], data: Sequence[Mapping[str, Any]]) -> None:
    """Fits each model to its own data, all of them as one population: the seeds of a study for little more than one.

    Each outcome is that of a fit on its own, up to rounding.

    Arguments:
        models: They differ in `random_state` alone, and leave nothing to choose: every knob is given, and n_folds is 1.
        data: For each model the arguments of its `fit`, with equally many rows of each kind.
    """
    settings = [{**model.get_params(), "random_state": None} for model in models]
    if len(models) != len(data) or any(one != settings[0] for one in settings):
        raise ValueError("fit_together takes one set of data a model, and models that differ in random_state alone.")
    makers = []
    for model, arguments in zip(models, data, strict=True):
        model._validate_params()
        more_x, more_y = arguments.get("X_unpaired"), arguments.get("Y_unpaired")
        samples = model._gather(arguments["X"], arguments["y"], X_unpaired=more_x, Y_unpaired=more_y)
        clock = Clock(model.time_budget, time.perf_counter())
        makers.append(model._prepare(samples, clock, lambda title, done: None))
    choices = choose_together(makers, models[0]._wishes(), models[0]._objective())
    for model, choice in zip(models, choices, strict=True):
        model._keep(choice)
