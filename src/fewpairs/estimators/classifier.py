"""`SemiSupervisedClassifier` learns p(class|x) from a few labelled rows and many without a label.

The same as for continuous y, with class plans: unlabelled rows say where x is, and the class prior stands for the unpaired y's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from fewpairs.data import checks
from fewpairs.data.folds import Folds
from fewpairs.data.images import Shape
from fewpairs.data.labels import is_gap, shares_in_order, split_labels
from fewpairs.data.samples import Samples
from fewpairs.data.scaling import Scaler
from fewpairs.estimators import classifier_defaults as defaults
from fewpairs.estimators.base import as_device
from fewpairs.estimators.labelled import LABELLED, LabelledRows
from fewpairs.estimators.learning import learning
from fewpairs.estimators.rules import (
    ANYTHING,
    FLAG,
    NOTHING,
    RANDOM_STATE,
    SEQUENCE,
    TEXT,
    Rule,
    above,
    instance_of,
    one_of,
    whole,
)
from fewpairs.estimators.saving import FINDINGS, SavedEnsemble
from fewpairs.estimators.settings import ClassifierSearch, ClassifierTraining
from fewpairs.estimators.summaries import summarise_classifier
from fewpairs.networks.classifiers import MANY_ROWS, make_cnn, make_mlp_classifier, refuse_unfit, reset
from fewpairs.networks.perceptrons import ACTIVATIONS, as_widths
from fewpairs.plans.classes import ClassCost, ClassEnsemble, ClassPlan, ClassPotential, Constant
from fewpairs.plans.ensemble import Part
from fewpairs.selection.candidates import Options, Value
from fewpairs.selection.choice import LEAST_STEPS, Choice, choose
from fewpairs.selection.families.classes import ClassFamily
from fewpairs.selection.judges import Judge
from fewpairs.selection.trials import Trainer
from fewpairs.training.clock import Clock
from fewpairs.training.learners import PopulationSettings
from fewpairs.training.modes import usual_modes
from fewpairs.training.objectives import OBJECTIVES
from fewpairs.training.progress import progress_bar
from fewpairs.training.threads import one_thread_if_brief

__all__ = ["SemiSupervisedClassifier"]

LEAST_SIDE = 16  # pixels of an image that is worth convolutions: a smaller one has no place left after two halvings
ROWS_AT_ONCE = 2000  # in prediction
FITTED = (*FINDINGS, "class_prior_", "classes_", "image_shape_", "label_type_", "n_labelled_", "n_unlabelled_")


class SemiSupervisedClassifier(SavedEnsemble, ClassifierMixin, LabelledRows):
    """Learns p(class|x) from labelled and unlabelled rows.

    Arguments you may want:
        objective: "marginal", the bounded objective; "supervised" ignores unlabelled rows; "inverse_eot" is the paper's loss.
        class_prior: How common the classes are: "uniform"; as among the "labelled" rows, drawn towards uniform by as much as
            their counts could differ by chance; or one positive number for each of `classes_`, in their order, or by name in a
            dictionary or series. They need not sum to one.
        unlabelled: What stands for a missing label in y. None, NaN and masked entries always do.
        network: "mlp", "cnn" (for images), or a torch module that takes rows to one number a class and whose layers are drawn
            afresh for each member (without dropout and batch norm: members are trained together). "auto" is "cnn" for images of
            16 × 16 pixels or more, and "mlp" for all else.
        hidden: The hidden widths of the "mlp"; of no other network.
        time_budget: The seconds a fit may take.
        random_state: A number makes the fit repeatable on the same machine, unless time_budget ends it.
        verbose: Whether to show a progress bar when a fit takes longer than a moment on a terminal.

    Arguments you should not need:
        scale: "columns" brings every column of X to mean zero and variance one; "together" all of them with one shift and one
            factor, as images want it; "none" leaves them. "auto" is "together" for images and "columns" for tables.
        image_shape: (channels, height, width) of images that come flattened, as rows of a table.
        label_embedding: Of the "mlp" and the "cnn": the numbers of a class's embedding, as in the paper; None is one output.
        activation: Of the "mlp": "silu", "relu", "tanh" or "leaky_relu".
        n_members: The networks of the ensemble. "auto" is 5, and 3 for the "cnn", which pays more for each. With a hundred
            labelled rows or more, each learns from all but its part of them, which judges it; networks that had no need to be
            stopped early are then learnt anew from all of them. Without such a judge, no probability is below the prior's over
            one more than the labels.
        device: "auto" takes a CUDA device if there is one, or name one.
        search: What keeps it steady where labels are few; see `ClassifierSearch`.
        training: How networks are trained; see `ClassifierTraining`.

    Attributes:
        classes_: The classes, sorted.
        class_prior_: The shares of them that were used.
        plan_: The fitted ensemble.
        validation_score_, validation_score_error_: The mean log-probability of labels by members that have not seen them, and its
            standard error; those of `plan_` have seen more, for longer, and may be better. NaN if nothing was held out, as are
            the gains.
        unpaired_gain_, unpaired_gain_error_: What unlabelled rows brought against the network without them, in nats a label.
        x_gain_, x_gain_error_: What x brought, against the prior.
        n_labelled_, n_unlabelled_: The rows of either kind that it learnt from, without those of weight zero.
        chosen_, finals_, candidates_, ended_: As in `MixtureTranslator`.
        n_features_in_, feature_names_in_: The columns of X; of images, their pixels.
        image_shape_: (channels, height, width), or None for tables.

    scikit-learn's `check_estimator` passes but for four checks: two take −1 for a class (`unlabelled=None` lets them), one wants
    a row of weight two to be a row that comes twice, which holds on average alone, and one wants no objects as defaults.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(200, 2)); y = np.where(X[:, 0] > 0, "right", "left").astype(object)
        >>> y[20:] = None
        >>> model = SemiSupervisedClassifier(training=ClassifierTraining(max_steps=20), hidden=(8,), random_state=0).fit(X, y)
        >>> model.predict_proba(X[:3]).shape
        (3, 2)
    """

    own_networks = ("network",)
    fitted_names, fitted_parts = FITTED, {"x_scaler_": Scaler}
    plan_: ClassEnsemble
    classes_: np.ndarray
    class_prior_: np.ndarray
    x_scaler_: Scaler
    image_shape_: Shape | None

    rules: ClassVar[dict[str, Rule]] = {
        "objective": one_of(*OBJECTIVES),
        "class_prior": one_of("labelled", "uniform") | SEQUENCE | instance_of(Mapping, pd.Series),
        "unlabelled": ANYTHING,
        "network": one_of("auto", "mlp", "cnn") | instance_of(nn.Module),
        "hidden": SEQUENCE,
        "time_budget": above(0) | NOTHING,
        "random_state": RANDOM_STATE,
        "verbose": FLAG,
        "scale": one_of("auto", "columns", "together", "none"),
        "image_shape": SEQUENCE | NOTHING,
        "label_embedding": whole(1) | NOTHING,
        "activation": one_of(*ACTIVATIONS),
        "n_members": whole(1) | one_of("auto"),
        "device": TEXT,
        "search": instance_of(ClassifierSearch),
        "training": instance_of(ClassifierTraining),
    }

    def __init__(
        self,
        *,
        objective: Literal["marginal", "inverse_eot", "supervised"] = "marginal",
        class_prior: Literal["labelled", "uniform"] | Sequence[float] | Mapping[Any, float] = "labelled",
        unlabelled: Any = -1,
        network: Literal["auto", "mlp", "cnn"] | nn.Module = "auto",
        hidden: Sequence[int] = (256, 256),
        time_budget: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = True,
        scale: Literal["auto", "columns", "together", "none"] = "auto",
        image_shape: Sequence[int] | None = None,
        label_embedding: int | None = None,
        activation: Literal["silu", "relu", "tanh", "leaky_relu"] = "relu",
        n_members: int | Literal["auto"] = "auto",
        device: str = "auto",
        search: ClassifierSearch = ClassifierSearch(),  # noqa: B008 (settings never change)
        training: ClassifierTraining = ClassifierTraining(),  # noqa: B008
    ) -> None:
        self.objective = objective
        self.class_prior = class_prior
        self.unlabelled = unlabelled
        self.network = network
        self.hidden = hidden
        self.time_budget = time_budget
        self.random_state = random_state
        self.verbose = verbose
        self.scale = scale
        self.image_shape = image_shape
        self.label_embedding = label_embedding
        self.activation = activation
        self.n_members = n_members
        self.device = device
        self.search = search
        self.training = training

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, X_unpaired: Any = None) -> Self:
        """Learns from labelled and unlabelled rows.

        Arguments:
            X: The rows: a table (n, columns), or images (n, height, width) or (n, channels, height, width).
            y: The class of each row, or `unlabelled`, None or NaN.
            sample_weight: One weight for each row of X; only their ratios matter.
            X_unpaired: More rows without a label, of weight one.
        """
        self._check_arguments()
        clock = Clock(self.time_budget)
        with learning(self):
            samples = self._gather(X, y, sample_weight, X_unpaired)
            with progress_bar(is_on=self.verbose) as on_step:
                choice = choose(self._trainer(samples, clock, on_step), self._options(), self._objective())
            self._keep(choice)
        return self

    @usual_modes()
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log p(class|x), (rows, classes)."""
        check_is_fitted(self, "plan_")
        rows = torch.tensor(self._check_x(X))
        with torch.no_grad(), one_thread_if_brief(len(rows) <= ROWS_AT_ONCE):
            parts = [self.plan_.log_probs(self._scaled(some)).double() for some in rows.split(ROWS_AT_ONCE)]
        said = torch.cat(parts).log_softmax(-1).numpy()  # float32 sums to one up to a ten millionth
        return self._in_doubt(said) if math.isnan(self.validation_score_) else said

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(class|x), (rows, classes)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        best = self.predict_log_proba(X).argmax(1)
        return self.classes_[best]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy on the rows that have a label."""
        check_is_fitted(self, "plan_")
        labels, is_labelled = split_labels(y, self.unlabelled)
        checks.refuse_unequal(len(self._check_x(X)), len(is_labelled), LABELLED)
        weight = checks.as_weight(sample_weight, is_labelled[:, None], "sample_weight")[is_labelled]
        if not weight.any():
            raise ValueError("No row of y has a label and a weight above zero: there is nothing to score by.")
        is_right = self.predict(X)[is_labelled] == labels
        return float(np.average(is_right, weights=weight))

    def summary(self) -> str:
        """What was learnt, from what, and how far to trust it, in a paragraph."""
        check_is_fitted(self, "plan_")
        return summarise_classifier(self)

    @classmethod
    def from_file(
        cls,
        tensors: dict[str, Tensor],
        settings: dict[str, Any],
        fitted: dict[str, Any],
        network: nn.Module | None = None,
    ) -> Self:
        """The model that `save` took apart; a network of the user's own is handed in again."""
        if settings["network"] is None and network is None:
            raise ValueError(
                "This classifier has a network of your own, and files hold no code: pass the module, load(path, network=…)."
            )
        if settings["network"] is not None and network is not None:
            raise ValueError(f"This classifier has the network {settings['network']!r}, needs no other: leave it out.")
        settings["network"] = settings["network"] or network
        try:
            return super().from_file(tensors, settings, fitted)
        except RuntimeError as error:
            if network is None:
                raise
            raise ValueError(f"The network is not like the one this classifier was fitted with: {error}") from error

    def _plain_settings(self) -> dict[str, Any]:
        settings = super()._plain_settings()
        if not isinstance(self.class_prior, str):  # names of classes need not be what JSON has for names
            settings["class_prior"] = np.asarray(shares_in_order(self.class_prior, self.classes_), dtype=np.float64)
        settings["unlabelled"] = None if is_gap(self.unlabelled) else self.unlabelled
        return {**settings, "network": None} if isinstance(self.network, nn.Module) else settings

    def _empty_plan(self, config: list[dict[str, Any]]) -> ClassEnsemble:
        n_classes, hidden = len(self.classes_), as_widths(self.hidden)

        def member(config: dict[str, Any]) -> ClassPlan:
            network = Constant(n_classes) if config["is_constant"] else self._make_network(hidden)
            return ClassPlan(ClassCost(network), ClassPotential(torch.zeros(n_classes)))

        parts = [Part(part["name"], [member(one) for one in part["members"]]) for part in config]
        return ClassEnsemble(parts, torch.ones(len(parts)))

    def _restore(self) -> None:
        super()._restore()
        self.classes_ = np.array(self.classes_, dtype=np.dtype(self.label_type_))
        self.class_prior_ = np.array(self.class_prior_)
        self.image_shape_ = None if self.image_shape_ is None else tuple(self.image_shape_)

    def _in_doubt(self, log_probability: np.ndarray) -> np.ndarray:
        """What networks say that no held-out label has judged: they may be sure and wrong. By the rule of succession, one more
        label, of a class drawn from the prior, counts as much as each that was seen."""
        own = 1 / (self.n_labelled_ + 1)
        return np.logaddexp(np.log1p(-own) + log_probability, np.log(own * self.class_prior_))

    def _make_network(self, hidden: tuple[int, ...]) -> nn.Module:
        n_columns, n_classes = self.n_features_in_, len(self.classes_)
        if isinstance(self.network, nn.Module):
            return reset(self.network)
        if self._is_cnn():
            if self.image_shape_ is None:
                raise ValueError(
                    'network="cnn" is for images: pass X as (n, height, width) or (n, channels, height, width), or give '
                    "image_shape=(channels, height, width)."
                )
            return make_cnn(self.image_shape_, n_classes, n_embedded=self.label_embedding)
        return make_mlp_classifier(
            n_columns, n_classes, hidden=hidden, activation=self.activation, n_embedded=self.label_embedding
        )

    def _is_cnn(self) -> bool:
        has_room = self.image_shape_ is not None and min(self.image_shape_[1:]) >= LEAST_SIDE
        return self.network == "cnn" or (self.network == "auto" and has_room)

    def _pace(self) -> defaults.Pace:
        """How to learn: what was given, and the rest as the network wants it."""
        usual = defaults.usual_pace(self._objective(), self.n_labelled_, self.n_unlabelled_, is_cnn=self._is_cnn())
        given = {**self.training.get_params(), "n_members": self.n_members}
        given.pop("precision")
        return replace(usual, **{name: value for name, value in given.items() if value != "auto"})

    def _trainer(self, samples: Samples, clock: Clock, on_step: Any) -> Trainer:
        random, device = check_random_state(self.random_state), as_device(self.device)
        if isinstance(self.network, nn.Module):
            if self.label_embedding is not None:
                raise ValueError(
                    'label_embedding is for network="mlp" and "cnn"; a network of your own has its own head.'
                )
            refuse_unfit(self.network, samples.source[:MANY_ROWS], len(self.classes_))
        samples = samples.to(device)
        pace, radii = self._pace(), defaults.usual_radii(self.n_labelled_, is_cnn=self._is_cnn())
        precision, decisiveness, n_members = self.training.precision, self.search.decisiveness, pace.n_members
        folds = Folds.none(samples, n_members)
        parts: dict[str, Any] = {}  # where nothing is held out, the first networks are the last
        if self.n_labelled_ >= defaults.LEAST_TO_HOLD_OUT and n_members > 1:
            folds = Folds.cut_by_class(samples, n_members, random)
            parts = {"trial_part": min(pace.judged_steps / pace.max_steps, 1.0), "final_part": 0.5}
        settings = PopulationSettings(
            learning_rate=pace.learning_rate,
            potential_learning_rate=pace.learning_rate,
            one_cycle=True,
            batch_size=pace.batch_size,
            pairs_batch_size=pace.labelled_batch_size,
            max_steps=pace.max_steps,
            max_grad_norm=10.0,
            is_coarse=precision == "bfloat16" or (precision == "auto" and defaults.is_fast_in_bfloat16(device)),
        )
        first: dict[str, Value] = {
            "hidden": as_widths(self.hidden),
            "smoothing": self.search.smoothing,
            "emphasis": 0.0,
            "adversarial": radii[len(radii) // 2],
        }
        generator = torch.Generator(device).manual_seed(int(random.randint(2**31)))
        seed = int(random.randint(2**31))
        family = ClassFamily(
            samples=samples,
            judge=Judge.of(samples, folds),
            random=random,
            make_network=self._make_network,
            log_prior=torch.from_numpy(self.class_prior_).float().log(),
            decisiveness=defaults.usual_decisiveness(self.n_unlabelled_)
            if decisiveness == "auto"
            else float(decisiveness),
            first={**first, "unpaired_weight": self.search.unpaired_weight},
        )
        return Trainer(
            family=family,
            settings=settings,
            seed=seed,
            generator=generator,
            clock=clock,
            on_step=on_step,
            adversarial_rows=pace.adversarial_rows,
            **parts,
        )

    def _options(self) -> Options:
        """For each setting the values to choose from."""
        radii = defaults.usual_radii(self.n_labelled_, is_cnn=self._is_cnn())
        return defaults.find_options(self.search, self.objective, as_widths(self.hidden), radii)

    def _objective(self) -> str:
        """Without unlabelled rows the marginal objective has nothing to say."""
        return "supervised" if self.objective == "marginal" and self.n_unlabelled_ == 0 else self.objective

    def _keep(self, choice: Choice) -> None:
        """Puts what came out into the fitted attributes, and says what the user must know."""
        self.plan_ = choice.plan.cpu().float().eval().requires_grad_(False)  # type: ignore[assignment]
        self._keep_findings(choice)
        n_steps = min(final.trial.outcome.steps[-1] for final in choice.finals)
        if choice.ended == "out of time" and n_steps < LEAST_STEPS:
            checks.warn_user(
                f"time_budget={self.time_budget:g} was over after {n_steps} steps: more of them would probably learn more.",
                ConvergenceWarning,
            )
        if choice.ended == "diverged":
            checks.warn_user(
                "Training met numbers that are not finite and stopped; the best model before is kept. A smaller learning_rate "
                "helps.",
                ConvergenceWarning,
            )
