"""Settings by their bare names, as the cells of studies have them: `max_steps`, wherever an estimator keeps it."""

from collections.abc import Mapping
from typing import Any, TypeVar

from fewpairs.estimators.settings import Configured, Settings

__all__ = ["with_settings"]

Model = TypeVar("Model", bound=Configured)


def with_settings(model: Model, settings: Mapping[str, Any]) -> Model:
    """Sets arguments of an estimator, and what its settings objects hold, by names without the object's.

    Example:
        >>> from fewpairs import MixtureTranslator
        >>> with_settings(MixtureTranslator(), {"max_steps": 5, "time_budget": 1.0}).training.max_steps
        5
    """
    own = model.get_params(deep=False)
    places = {
        inner: f"{name}__{inner}" for name, one in own.items() if isinstance(one, Settings) for inner in vars(one)
    }
    return model.set_params(**{name if name in own else places.get(name, name): settings[name] for name in settings})
