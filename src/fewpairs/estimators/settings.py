"""Settings objects: what few users touch, out of the way of what many do.

    MixtureTranslator(search=Search(smoothing=0.1), training=Training(max_steps=200))

An estimator's arguments are what one decides; its settings objects hold the rest, by what they are about. They never change:
`set_params(training__max_steps=100)` on the estimator puts a new one in their place, as in a grid search.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from inspect import signature
from numbers import Real
from typing import Any, ClassVar, Literal, Self

from sklearn.base import BaseEstimator

from fewpairs.estimators.rules import (
    FLAG,
    NOTHING,
    SEQUENCE,
    Rule,
    above,
    at_least,
    between,
    check_rules,
    one_of,
    whole,
)
from fewpairs.networks.perceptrons import ACTIVATIONS
from fewpairs.plans.potentials import ATOMS

__all__ = [
    "Architecture",
    "ChainSettings",
    "ClassifierSearch",
    "ClassifierTraining",
    "Configured",
    "NetworkTraining",
    "Perceptrons",
    "Search",
    "Settings",
    "Training",
]

AUTO = one_of("auto")


def _are_betas(value: Any) -> bool:
    return (
        SEQUENCE.accepts(value)
        and len(value) == 2
        and all(isinstance(one, Real) and 0 <= float(one) < 1 for one in value)
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Settings:
    """Abstract: some settings of an estimator, which never change."""

    rules: ClassVar[dict[str, Rule]]

    def __repr__(self) -> str:
        """What is not as usual, as scikit-learn shows an estimator."""
        changed = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in changed)})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name, as scikit-learn asks for them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """The same with other values of some; a new object, since the old one may be shared."""
        unknown = sorted(set(params) - set(self.get_params()))
        if unknown:
            raise ValueError(f"{type(self).__name__} has no {unknown[0]!r}; it has {', '.join(self.get_params())}.")
        return replace(self, **params)


class Configured(BaseEstimator):
    """Abstract: an estimator with rules for its arguments and settings objects among them."""

    rules: ClassVar[dict[str, Rule]]

    def __new__(cls, *args: Any, **arguments: Any) -> Self:
        """Says in which settings object an argument is that is none of the estimator's own."""
        for name, (group, kind) in _find_groups(cls, arguments).items():
            raise TypeError(
                f"{cls.__name__} takes {name} in {group}: {cls.__name__}({group}={kind.__name__}({name}={arguments[name]!r}))."
            )
        return super().__new__(cls)

    def set_params(self, **params: Any) -> Self:
        """Sets arguments, `training__max_steps` among them: settings objects are replaced by changed ones."""
        for name, (group, _) in _find_groups(type(self), params).items():
            raise ValueError(f"{type(self).__name__} takes {name} in {group}: set {group}__{name}.")
        of_settings: dict[str, dict[str, Any]] = {}
        own = dict(params)
        for key in params:
            name, _, inner = key.partition("__")
            if inner and isinstance(getattr(self, name, None), Settings):
                of_settings.setdefault(name, {})[inner] = own.pop(key)
        for name, changes in of_settings.items():
            given = own.get(name, getattr(self, name))
            if not isinstance(given, Settings):
                raise ValueError(
                    f"{name} of {type(self).__name__} must be {self.rules[name].says}, but {given!r} came."
                )
            own[name] = given.set_params(**changes)
        return super().set_params(**own)

    def _check_arguments(self) -> None:
        check_rules(self, self.rules)


def _find_groups(kind: type, names: Iterable[str]) -> dict[str, tuple[str, type[Settings]]]:
    """Of names that are no arguments of an estimator: the settings objects that have them, by argument and class."""
    usual = {name: argument.default for name, argument in signature(kind.__init__).parameters.items()}  # type: ignore[misc]
    groups = {name: type(one) for name, one in usual.items() if isinstance(one, Settings)}
    return {
        name: (group, of_group)
        for name in names
        if name not in usual
        for group, of_group in groups.items()
        if name in of_group().get_params()
    }


@dataclass(frozen=True, kw_only=True, repr=False)
class Search(Settings):
    """What a `MixtureTranslator` chooses from the data. A value fixes one; with all of them fixed, nothing is searched for.

    Arguments:
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
    """

    unpaired_weight: float | Literal["auto"] = "auto"
    smoothing: float | Literal["auto"] = "auto"
    adversarial: float | Literal["auto"] = "auto"
    variance_floor: float | Literal["auto"] = "auto"
    hidden: Sequence[int] | Literal["auto"] = "auto"
    covariance: Literal["diagonal", "full", "auto"] = "auto"
    n_atoms: int | Literal["auto"] = "auto"
    emphasis: float | Literal["auto"] = "auto"

    rules: ClassVar[dict[str, Rule]] = {
        "unpaired_weight": at_least(0) | AUTO,
        "smoothing": at_least(0) | AUTO,
        "adversarial": at_least(0) | AUTO,
        "variance_floor": between(0, 1e30) | AUTO,
        "hidden": SEQUENCE | AUTO,
        "covariance": one_of(*ATOMS, "auto"),
        "n_atoms": whole(1) | AUTO,
        "emphasis": at_least(0) | AUTO,
    }


@dataclass(frozen=True, kw_only=True, repr=False)
class Architecture(Settings):
    """What the plans of a `MixtureTranslator` are made of, beside what its search finds.

    Arguments:
        n_slopes: The slopes of the cost.
        weight_hidden: The hidden widths of a network of its own for the weights v; None shares one.
        activation: "silu", "relu", "tanh" or "leaky_relu".
        slope_std: The scale of the first slopes; None is PyTorch's own initialisation.
        learn_scale: Whether the slopes have a scale of their own, which lets a sharp p(y|x) be learnt in few steps.
        start: "mixture" fits the atoms to all y's before training; "samples" puts them onto random y's.
        start_variance: The variance of the atoms that start on samples.
    """

    n_slopes: int = 4
    weight_hidden: Sequence[int] | None = None
    activation: Literal["silu", "relu", "tanh", "leaky_relu"] = "silu"
    slope_std: float | None = 0.01
    learn_scale: bool = True
    start: Literal["mixture", "samples"] = "mixture"
    start_variance: float = 0.1

    rules: ClassVar[dict[str, Rule]] = {
        "n_slopes": whole(1),
        "weight_hidden": SEQUENCE | NOTHING,
        "activation": one_of(*ACTIVATIONS),
        "slope_std": at_least(0) | NOTHING,
        "learn_scale": FLAG,
        "start": one_of("mixture", "samples"),
        "start_variance": above(0),
    }


@dataclass(frozen=True, kw_only=True, repr=False)
class Training(Settings):
    """How the plans of a `MixtureTranslator` are trained.

    Arguments:
        max_steps: The training steps at the most; "auto" is 400, and more for more than 512 pairs.
        learning_rate: Adam's step size; its peak under the one-cycle schedule.
        potential_learning_rate: The same for the potential; None is the same.
        one_cycle: Whether the step size rises and falls once over the fit, or stays constant.
        batch_size: The rows of source and of target in a step.
        pairs_batch_size: The pairs in a step.
        max_grad_norm: Longer gradients are shortened to it; None leaves them.
        dtype: "float32" or "float64", in training. What is read off a fitted model is computed in float64.
    """

    max_steps: int | Literal["auto"] = "auto"
    learning_rate: float = 3e-2
    potential_learning_rate: float | None = None
    one_cycle: bool = True
    batch_size: int = 256
    pairs_batch_size: int = 1024
    max_grad_norm: float | None = 10.0
    dtype: Literal["float32", "float64"] = "float32"

    rules: ClassVar[dict[str, Rule]] = {
        "max_steps": whole(1) | AUTO,
        "learning_rate": above(0),
        "potential_learning_rate": above(0) | NOTHING,
        "one_cycle": FLAG,
        "batch_size": whole(1),
        "pairs_batch_size": whole(1),
        "max_grad_norm": above(0) | NOTHING,
        "dtype": one_of("float32", "float64"),
    }


@dataclass(frozen=True, kw_only=True, repr=False)
class ClassifierSearch(Settings):
    """What keeps a `SemiSupervisedClassifier` steady where labels are few.

    Arguments:
        adversarial: The length, as a part of √dim_x standard deviations, of the step in x that changes p(class|x) most, and
            against which it is kept steady. "auto" chooses it if at least five hundred rows are labelled; with fewer it is 0.2,
            and 0.3 for the "cnn"; nothing under other objectives than "marginal".
        unpaired_weight: The weight μ of the class prior under "marginal".
        decisiveness: The weight of the entropy of p(class|x) at unlabelled rows under "marginal": classes are taken to be
            set apart by places with few rows. 0 leaves the objective as it is for continuous y. "auto" is 0.1, and
            more with many unlabelled rows, which a network does not know by heart so soon: 0.2 with 10,000, 0.3 at the most.
        smoothing: The noise added to x in training, in standard deviations.
    """

    adversarial: float | Literal["auto"] = "auto"
    unpaired_weight: float = 1.0
    decisiveness: float | Literal["auto"] = "auto"
    smoothing: float = 0.0

    rules: ClassVar[dict[str, Rule]] = {
        "adversarial": at_least(0) | AUTO,
        "unpaired_weight": at_least(0),
        "decisiveness": at_least(0) | AUTO,
        "smoothing": at_least(0),
    }


@dataclass(frozen=True, kw_only=True, repr=False)
class ClassifierTraining(Settings):
    """How the networks of a `SemiSupervisedClassifier` are trained.

    Arguments:
        max_steps: The training steps. "auto" is 400 for the "cnn", which learns in few, and 1000 for other networks; with more
            than a thousand unlabelled rows these take more by the root of their number, 4000 at the most. Networks that are
            only there to be judged by labels held out get no more than 200 and 1000.
        learning_rate: Adam's step size, at its peak. "auto" is 0.001, and 0.003 for the "cnn" if there are unlabelled rows or
            five hundred labelled ones: with fewer alone it would be sure of too much.
        batch_size: The unlabelled rows in a step. "auto" is 256, and 128 for the "cnn".
        labelled_batch_size: The labelled rows in a step; likewise.
        precision: "bfloat16" or "float32", of the products of networks while they learn; what is read off a fitted model is
            computed in full. "auto" is the former on a CPU that has instructions for it: fits take half as long there.
    """

    max_steps: int | Literal["auto"] = "auto"
    learning_rate: float | Literal["auto"] = "auto"
    batch_size: int | Literal["auto"] = "auto"
    labelled_batch_size: int | Literal["auto"] = "auto"
    precision: Literal["auto", "bfloat16", "float32"] = "auto"

    rules: ClassVar[dict[str, Rule]] = {
        "max_steps": whole(1) | AUTO,
        "learning_rate": above(0) | AUTO,
        "batch_size": whole(1) | AUTO,
        "labelled_batch_size": whole(1) | AUTO,
        "precision": one_of("auto", "bfloat16", "float32"),
    }


@dataclass(frozen=True, kw_only=True, repr=False)
class Perceptrons(Settings):
    """The perceptrons that stand for cost and potential where no modules are given.

    Arguments:
        cost_hidden: The hidden widths of the cost.
        potential_hidden: Those of the potential.
        activation: "silu", "relu", "tanh" or "leaky_relu".
        spectral_norm: Whether every layer's largest singular value is held at one; of modules of your own as well.
    """

    cost_hidden: Sequence[int] = (256, 256, 256)
    potential_hidden: Sequence[int] = (128, 128)
    activation: str = "leaky_relu"
    spectral_norm: bool = False

    rules: ClassVar[dict[str, Rule]] = {
        "cost_hidden": SEQUENCE,
        "potential_hidden": SEQUENCE,
        "activation": one_of(*ACTIVATIONS),
        "spectral_norm": FLAG,
    }


@dataclass(frozen=True, kw_only=True, repr=False)
class NetworkTraining(Settings):
    """How cost and potential of a `CorrectedTranslator` or an `EnergyTranslator` are trained.

    Arguments:
        max_steps: The steps at the most; "auto" is 1,000, and more for more than a thousand pairs.
        learning_rate, potential_learning_rate, betas, one_cycle, max_grad_norm: Adam's; None for the potential is as for the
            cost.
        batch_size: The rows of each kind in a step.
        held_out: The share of the pairs that judge and do not teach: the networks of the best look are kept. 0 keeps the last
            ones. With a base, its first fold judges instead (a base without folds has seen the pairs that judge).
    """

    max_steps: int | Literal["auto"] = "auto"
    learning_rate: float = 1e-3
    potential_learning_rate: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    one_cycle: bool = True
    max_grad_norm: float | None = 10.0
    batch_size: int = 128
    held_out: float = 0.2

    rules: ClassVar[dict[str, Rule]] = {
        "max_steps": whole(1) | AUTO,
        "learning_rate": above(0),
        "potential_learning_rate": above(0) | NOTHING,
        "betas": Rule("the two of Adam, each from 0 on and below 1, such as (0.9, 0.999)", _are_betas),
        "one_cycle": FLAG,
        "max_grad_norm": above(0) | NOTHING,
        "batch_size": whole(2),
        "held_out": between(0, 0.5),
    }


@dataclass(frozen=True, kw_only=True, repr=False)
class ChainSettings(Settings):
    """The Langevin chains of an `EnergyTranslator`, beside the sampler that moves them.

    Arguments:
        sampling_steps: The steps of a chain that draws a y for you.
        start_std: The spread of the places where chains begin.
        replay: The chance that a chain in training goes on from where that of its x was.
        buffer_size: The x's whose chains are remembered.
    """

    sampling_steps: int = 500
    start_std: float = 1.0
    replay: float = 0.95
    buffer_size: int = 10_000

    rules: ClassVar[dict[str, Rule]] = {
        "sampling_steps": whole(1),
        "start_std": above(0),
        "replay": between(0, 1),
        "buffer_size": whole(1),
    }
