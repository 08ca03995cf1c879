"""Methods: whatever learns p(y|x) and can stand in a table, by name.

A study asks this list for its rows; to be in it is to be registered:

    register(Method("my method", make_my_estimator))

where make_my_estimator(random_state=…, device=…, effort=…) returns an estimator with `fit`, `uses`, `sample` and, if it has a
density, `score_samples`. An effort below one asks for that part of the usual training.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar

from fewpairs.baselines import REGISTRY, Baseline, CondNF
from fewpairs.estimators.base import Translator
from fewpairs.estimators.corrected import CorrectedTranslator
from fewpairs.estimators.energy_based import EnergyTranslator
from fewpairs.estimators.mixture import MixtureTranslator

__all__ = ["DEFAULT", "METHODS", "Make", "Method", "register"]

USUAL_STEPS = 400  # of a mixture whose steps are "auto", for the few pairs of most studies
USUAL_STEPS_OF_NETWORKS = 1000

Trained = TypeVar("Trained", MixtureTranslator, CorrectedTranslator, EnergyTranslator)


class Make(Protocol):
    """Makes an estimator that is not fitted yet."""

    def __call__(self, *, random_state: int, device: str = "auto", effort: float = 1.0) -> Translator: ...


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes:
        name: What it is called there.
        make: Makes its estimator.
        is_fixed: Whether it leaves nothing to choose, so that `fit_together` can fit several seeds at once.
        is_variant: Whether it is a second setting of another method, for which a study may spare itself a table.
        improves: The method whose model it begins with, to be handed over as `base` if it has been fitted to the same rows.
    """

    name: str
    make: Make
    is_fixed: bool = False
    is_variant: bool = False
    improves: str | None = None


DEFAULT = "fewpairs default"
_methods: dict[str, Method] = {}
METHODS: Mapping[str, Method] = MappingProxyType(_methods)  # in the order in which they were registered


def register(method: Method) -> None:
    """Adds a method to every table to come."""
    if method.name in _methods:
        raise ValueError(f"There is a method {method.name!r} already. Give the new one a name of its own.")
    _methods[method.name] = method


def _ours(**settings: Any) -> Callable[..., MixtureTranslator]:
    def make(*, random_state: int, device: str = "auto", effort: float = 1.0) -> MixtureTranslator:
        model = MixtureTranslator(random_state=random_state, device=device, verbose=False, **settings)
        return _with_effort(model, effort, USUAL_STEPS)

    return make


def _recipe(name: Literal["paper", "authors"]) -> Make:
    def make(*, random_state: int, device: str = "auto", effort: float = 1.0) -> Translator:
        options = {"random_state": random_state, "device": device, "verbose": False}
        return _with_effort(MixtureTranslator.from_recipe(name, **options), effort, USUAL_STEPS)

    return make


def _corrected() -> Make:
    def make(*, random_state: int, device: str = "auto", effort: float = 1.0) -> Translator:
        options: dict[str, Any] = {"random_state": random_state, "device": device}
        base = _ours()(**options, effort=effort)  # the very model of the default's row
        return _with_effort(CorrectedTranslator(base, **options, verbose=False), effort, USUAL_STEPS_OF_NETWORKS)

    return make


def _energies(make_model: Callable[[], EnergyTranslator]) -> Make:
    def make(*, random_state: int, device: str = "auto", effort: float = 1.0) -> Translator:
        model = make_model().set_params(random_state=random_state, device=device, verbose=False)
        return _with_effort(model, effort, USUAL_STEPS_OF_NETWORKS)

    return make


def _with_effort(model: Trained, effort: float, usual: int) -> Trained:
    """The model with this part of its usual training."""
    steps = model.training.max_steps
    if effort >= 1:
        return model
    return model.set_params(training__max_steps=max(round((usual if steps == "auto" else steps) * effort), 1))


def _baseline(kind: type[Baseline], **settings: Any) -> Make:
    def make(*, random_state: int, device: str = "auto", effort: float = 1.0) -> Translator:
        model = kind(random_state=random_state, device=device, verbose=False, **settings)
        return model.set_params(max_steps=max(round(model.max_steps * effort), 1))

    return make


register(Method(DEFAULT, _ours()))
register(Method("supervised", _ours(objective="supervised")))
register(Method("paper's loss, our settings", _ours(objective="inverse_eot")))
register(Method("EBiEOT-GMM, the paper's text", _recipe("paper"), is_fixed=True))
register(Method("EBiEOT-GMM, the authors' notebook", _recipe("authors"), is_fixed=True))
register(Method("fewpairs with networks", _corrected(), improves=DEFAULT))
register(
    Method("EBiEOT-NN, the paper's text", _energies(partial(EnergyTranslator.from_recipe, "paper")), is_variant=True)
)
register(Method("EBiEOT-NN, our settings", _energies(EnergyTranslator), is_variant=True))
for _kind in REGISTRY.values():
    register(Method(_kind.title, _baseline(_kind)))
    if issubclass(_kind, CondNF):
        register(Method(f"{_kind.title}, splines", _baseline(_kind, flow="spline"), is_variant=True))
    if not _kind.held_out:  # it keeps its last networks; this one, those that held-out pairs like best
        stopped = _baseline(_kind, held_out=Baseline.held_out)
        register(Method(f"{_kind.title}, stopped early", stopped, is_variant=True))
