"""`MixtureTranslator` learns p(y|x) from a few pairs and many single x's and y's: EBiEOT-GMM, with its settings chosen for it.

`fit` checks and standardises the data, cuts the pairs into folds, and hands them to `selection`, which finds the settings that
suit them, trains an ensemble (one member a fold) and says what it is worth. Everything afterwards is read off the fitted
plan (`plans`) in float64 and in the user's units.
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fewpairs.data.checks import warn_user
from fewpairs.data.folds import Folds, row_keys
from fewpairs.data.samples import Samples
from fewpairs.data.scaling import Scaler, without_overflow
from fewpairs.estimators.base import ClosedFormTranslator, as_device
from fewpairs.estimators.learning import learning
from fewpairs.estimators.mixture_defaults import find_objective, find_options, usual_steps
from fewpairs.estimators.novelty import Neighbourhood
from fewpairs.estimators.recipes import RECIPES
from fewpairs.estimators.rules import FLAG, NOTHING, RANDOM_STATE, TEXT, Rule, above, instance_of, one_of, whole
from fewpairs.estimators.saving import FINDINGS, SavedEnsemble
from fewpairs.estimators.settings import Architecture, Search, Training
from fewpairs.estimators.summaries import summarise_mixture
from fewpairs.plans.conditionals import ConditionalEnsemble
from fewpairs.plans.costs import SlopeCost
from fewpairs.plans.ensemble import LINEAR, EnsemblePlan
from fewpairs.selection.candidates import Candidate, Options
from fewpairs.selection.choice import Choice, choose, resume
from fewpairs.selection.families.mixture import MixtureFamily
from fewpairs.selection.judges import Judge
from fewpairs.selection.trials import Trainer
from fewpairs.shift.bias import look_for_bias
from fewpairs.training.clock import Clock
from fewpairs.training.learners import PopulationSettings
from fewpairs.training.objectives import OBJECTIVES
from fewpairs.training.progress import progress_bar

__all__ = ["MixtureTranslator"]

LEAST_POPULATION = 50  # unpaired rows of each kind that can stand for the population without the pairs' help
DTYPES = {"float32": torch.float32, "float64": torch.float64}

# What a fitted model remembers besides its tensors; all of it goes into a file as JSON.
FITTED = (
    *FINDINGS,
    "bias_",
    "history_",
    "is_1d_",
    "n_folds_",
    "n_outputs_",
    "n_pairs_",
    "n_steps_",
    "n_unpaired_",
    "target_names_",
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

    Arguments you should not need:
        n_folds: The folds that the pairs are cut into. Each member of the ensemble learns from all but one, which judges it.
            1 holds nothing out: one member, the last step, no choice and no scores.
        standardise: Whether x and y are brought to mean zero and variance one inside. Without it, data far from that scale
            lose accuracy in float32, and smoothing and floor are in the data's own units.
        device: "auto" takes a CUDA device if there is one, or name one.
        search: What is chosen from the data, or fixed; see `Search`.
        architecture: What the plans are made of; see `Architecture`.
        training: How they are trained; see `Training`.

    Attributes:
        plan_: The fitted plan, an ensemble in float64 and standardised units.
        validation_score_, validation_score_error_: The mean log-likelihood of the pairs, each by a member that has not seen
            it, and its standard error. PopulationSettings, steps and shares were chosen without the pair that is scored; members
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
        n_folds_: The folds whose pairs some member has not seen.
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
        >>> model = MixtureTranslator(n_folds=2, training=Training(max_steps=20), search=Search(hidden=()), random_state=0)
        >>> model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired).sample(data.X, 3).shape
        (3, 40, 1)
    """

    fitted_names, fitted_tensors, fitted_parts = FITTED, TENSORS, PARTS
    plan_: EnsemblePlan
    chosen_: dict[str, Any]
    finals_: list[dict[str, Any]]
    n_folds_: int
    folds_: Tensor
    fold_keys_: Tensor

    rules: ClassVar[dict[str, Rule]] = {
        "objective": one_of(*OBJECTIVES),
        "time_budget": above(0) | NOTHING,
        "random_state": RANDOM_STATE,
        "warm_start": FLAG,
        "pairs_are": one_of("auto", "biased", "representative"),
        "n_folds": whole(1),
        "standardise": FLAG,
        "device": TEXT,
        "verbose": FLAG,
        "search": instance_of(Search),
        "architecture": instance_of(Architecture),
        "training": instance_of(Training),
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
        n_folds: int = 5,
        standardise: bool = True,
        device: str = "auto",
        search: Search = Search(),  # noqa: B008 (settings never change)
        architecture: Architecture = Architecture(),  # noqa: B008
        training: Training = Training(),  # noqa: B008
    ) -> None:
        self.objective = objective
        self.time_budget = time_budget
        self.random_state = random_state
        self.warm_start = warm_start
        self.pairs_are = pairs_are
        self.verbose = verbose
        self.n_folds = n_folds
        self.standardise = standardise
        self.device = device
        self.search = search
        self.architecture = architecture
        self.training = training

    @property
    def uses(self) -> tuple[str, ...]:
        """What it learns from, of "pairs", "source" (all x's) and "target" (all y's)."""
        return ("pairs",) if self.objective == "supervised" else ("pairs", "source", "target")

    @classmethod
    def from_recipe(cls, name: Literal["paper", "authors"], **changes: Any) -> Self:
        """The paper's own method, to reproduce it: "paper" as its text says, "authors" as their notebook runs it.

        Arguments:
            name: Which of them.
            changes: Arguments that are to be otherwise, `training__max_steps` among them.
        """
        if name not in RECIPES:
            raise ValueError(f"There is no recipe {name!r}; the recipes are {sorted(RECIPES)}.")
        return cls(**RECIPES[name]).set_params(**changes)

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

        Ctrl-C ends it after the step under way, with the best model so far. A second one raises KeyboardInterrupt at once, and
        so does one before the first step: the model is then as it was.

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
        self._check_arguments()
        clock = Clock(self.time_budget)
        columns = getattr(self, "n_features_in_", None), getattr(self, "n_outputs_", None)
        with learning(self):
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
            goes_on = self.warm_start and hasattr(self, "plan_")
            if goes_on and columns != (self.n_features_in_, self.n_outputs_):
                raise ValueError(
                    f"warm_start goes on with a model of {columns[0]} columns of X and {columns[1]} of Y, but "
                    f"{self.n_features_in_} and {self.n_outputs_} came. Use warm_start=False to begin anew."
                )
            with progress_bar(is_on=self.verbose) as on_step:
                trainer = self._prepare(samples, clock, on_step, goes_on=goes_on, is_bias_known=relevance is not None)
                if goes_on:
                    choice = resume(trainer, self._known_members())
                else:
                    choice = choose(trainer, self._options(), self._objective())
            self._keep(choice)
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
            return self.plan_.conditional(x, self.y_scaler_.loc, self.y_scaler_.scale)

    @property
    def linear_share_(self) -> float:
        return self.plan_.share(LINEAR)

    def summary(self) -> str:
        """What was learnt, from what, and how far to trust it, in a paragraph."""
        check_is_fitted(self, "plan_")
        return summarise_mixture(self)

    def _empty_plan(self, config: list[dict[str, Any]]) -> EnsemblePlan:
        return EnsemblePlan.from_config(config).double()

    def _objective(self) -> str:
        return find_objective(self.objective, self.search, *self.n_unpaired_)

    def _prepare(
        self, samples: Samples, clock: Clock, on_step: Any, *, goes_on: bool = False, is_bias_known: bool = False
    ) -> Trainer:
        """Weighs pairs by where they come from, scales the data, cuts them into folds, and hands them to a trainer."""
        random, device = check_random_state(self.random_state), as_device(self.device)
        keys = row_keys(samples)
        samples, uncovered = self._weigh(samples, is_bias_known=is_bias_known)
        if not goes_on:
            self.x_scaler_ = Scaler.learn(samples.source, samples.source_weight, is_wanted=self.standardise)
            self.y_scaler_ = Scaler.learn(samples.target, samples.target_weight, is_wanted=self.standardise)
        samples = samples.standardise(self.x_scaler_, self.y_scaler_).to(
            dtype=DTYPES[self.training.dtype], device=device
        )
        known_folds = dict(zip(self.fold_keys_.tolist(), self.folds_.tolist(), strict=True)) if goes_on else {}
        n_folds = self.n_folds_ if goes_on else min(self.n_folds, self.n_pairs_)  # members have their folds for good
        folds = Folds.none(samples)
        if n_folds > 1:
            folds = Folds.cut(samples, n_folds, random, [known_folds.get(key) for key in keys])
        self.fold_keys_ = torch.tensor(keys)
        self.neighbourhood_ = Neighbourhood.learn(samples.source, random)
        return self._trainer(samples, Judge.of(samples, folds, uncovered), random, clock, on_step)

    def _weigh(self, samples: Samples, *, is_bias_known: bool) -> tuple[Samples, float]:
        """Samples with the relevance of each pair, and the part of the population about which the pairs say nothing."""
        known = samples.relevance.numpy() if is_bias_known else None
        x = without_overflow(samples.source).numpy()
        bias = look_for_bias(x[: self.n_pairs_], x[self.n_pairs_ :], self.pairs_are, known)
        self.bias_ = bias.describe()
        samples = replace(samples, relevance=torch.from_numpy(bias.relevance))
        if bias.is_biased:
            # The pairs' own points are not from the population. Where it has enough points they leave source and target, and
            # else they stay with the weight that brings them there.
            has_plenty = min(self.n_unpaired_) >= max(LEAST_POPULATION, self.n_pairs_ / 2)
            own = torch.zeros_like(samples.relevance) if has_plenty else samples.relevance / samples.relevance.mean()
            samples = samples.weigh_own_points(own)
        return samples, bias.uncovered

    def _trainer(
        self, samples: Samples, judge: Judge, random: np.random.RandomState, clock: Clock, on_step: Any
    ) -> Trainer:
        training, architecture, options = self.training, self.architecture, self._options()
        usual = usual_steps(self.n_pairs_, has_budget=self.time_budget is not None)
        generator = torch.Generator(samples.source.device).manual_seed(int(random.randint(2**31)))
        seed = int(random.randint(2**31))
        family = MixtureFamily(
            samples=samples,
            judge=judge,
            random=random,
            make_cost=self._make_cost,
            n_atoms=self.search.n_atoms,
            covariances=[str(kind) for kind in options["covariance"]],
            start=architecture.start,
            start_variance=architecture.start_variance,
            has_linear=() in options["hidden"] and self.objective != "inverse_eot",
        )
        settings = PopulationSettings(
            learning_rate=training.learning_rate,
            potential_learning_rate=training.potential_learning_rate or training.learning_rate,
            one_cycle=training.one_cycle,
            batch_size=training.batch_size,
            pairs_batch_size=training.pairs_batch_size,
            max_steps=usual if training.max_steps == "auto" else training.max_steps,
            max_grad_norm=training.max_grad_norm,
        )
        return Trainer(family=family, settings=settings, seed=seed, generator=generator, clock=clock, on_step=on_step)

    def _make_cost(self, hidden: tuple[int, ...]) -> SlopeCost:
        """A cost with fresh random weights; torch's own generator draws them."""
        return SlopeCost(
            dim_x=self.n_features_in_,
            dim_y=self.n_outputs_,
            n_slopes=self.architecture.n_slopes,
            hidden=hidden,
            weight_hidden=self.architecture.weight_hidden,
            activation=self.architecture.activation,
            slope_std=self.architecture.slope_std,
            learn_scale=self.architecture.learn_scale,
        )

    def _options(self) -> Options:
        """For each setting the values to choose from."""
        return find_options(
            self.search,
            self.objective,
            n_pairs=self.n_pairs_,
            n_outputs=self.n_outputs_,
            is_biased=self.bias_["is_biased"],
        )

    def _known_members(self) -> dict[Candidate, list[Any]]:
        """The candidates in the fitted ensemble, and the members of each; none for those that got no share."""
        known, emphasis = {}, self._options()["emphasis"]
        for final in self.finals_:
            settings = {name: final[name] for name in Candidate.__dataclass_fields__}
            if len(emphasis) == 1:  # the new pairs may be biased where the old ones were not
                settings["emphasis"] = emphasis[0]
            known[Candidate(**settings)] = list(self.plan_.part(final["part"]) or ())
        return known

    def _keep(self, choice: Choice) -> None:
        """Puts what came out into the fitted attributes, and says what the user must know."""
        self.plan_ = choice.plan.cpu().double().eval().requires_grad_(False)  # type: ignore[assignment]
        self.n_folds_, self.folds_ = choice.folds.n_folds, choice.folds.pairs
        log_det = float(self.y_scaler_.scale.log().sum())
        trial = choice.winner.trial
        self.history_ = {
            "step": trial.outcome.steps,
            "objective": trial.objectives(),
            "held_out_nll": [log_det - float(scores.nanmean()) for scores in trial.looks()],
            "seconds": trial.outcome.seconds,
        }
        self.n_steps_ = trial.best_step
        self._keep_findings(choice, log_det)
        if choice.ended == "diverged":
            warn_user(
                f"Training met numbers that are not finite and stopped; the best model before, of step {self.n_steps_}, is "
                "kept. A smaller learning_rate or a larger variance_floor helps.",
                ConvergenceWarning,
            )
