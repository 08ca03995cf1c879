"""`NeuralTranslator`, the name that two estimators once shared: a door to both."""

from typing import Any

from fewpairs.estimators.corrected import CorrectedTranslator
from fewpairs.estimators.energy_based import EnergyTranslator

__all__ = ["NeuralTranslator"]


class NeuralTranslator:
    """Makes a `CorrectedTranslator`, or with base=None an `EnergyTranslator`."""

    def __new__(cls, base: Any = "mixture", **arguments: Any) -> Any:
        return EnergyTranslator(**arguments) if base is None else CorrectedTranslator(base, **arguments)

    from_recipe = EnergyTranslator.from_recipe
