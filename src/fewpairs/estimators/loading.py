"""Fitted models, read back from their files."""

import os
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from fewpairs.data.files import FORMAT_VERSION, read_model
from fewpairs.estimators.classifier import SemiSupervisedClassifier
from fewpairs.estimators.corrected import CorrectedTranslator
from fewpairs.estimators.energy_based import EnergyTranslator
from fewpairs.estimators.legacy import modernise
from fewpairs.estimators.mixture import MixtureTranslator
from fewpairs.estimators.saving import Saved

__all__ = ["load", "make_known"]

KINDS: dict[str, type[Saved]] = {}
# On a floor above there are more. They make themselves known when imported: when a file holds what is not known here.
MORE = ("fewpairs.baselines",)


def make_known(*kinds: type[Saved]) -> None:
    """From now on `load` reads what these have saved."""
    KINDS.update({kind.__name__: kind for kind in kinds})


make_known(MixtureTranslator, SemiSupervisedClassifier, CorrectedTranslator, EnergyTranslator)


def load(path: str | os.PathLike, **networks: nn.Module) -> Any:
    """Reads a model that `save` wrote, with this version or an older one.

    Arguments:
        path: The file.
        networks: Modules like those of your own that it was fitted with: `network` of a `SemiSupervisedClassifier`, `cost` and
            `potential` of a `CorrectedTranslator` or an `EnergyTranslator`.
    """
    tensors, description = read_model(path)
    try:
        return _make(tensors, description, networks)
    except (ImportError, MemoryError):
        raise
    except ValueError as error:
        raise ValueError(f"{str(path)!r} cannot be loaded: {error}") from None
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{str(path)!r} is damaged: what it holds does not make a model ({told}). Copy or save it again."
        ) from None


def _make(tensors: dict[str, Tensor], description: dict[str, Any], networks: dict[str, nn.Module]) -> Any:
    if description["format_version"] < FORMAT_VERSION:
        tensors, description = modernise(tensors, description)
    kind = description["estimator"]
    if kind not in KINDS:
        for module in MORE:
            import_module(module)
    if kind not in KINDS:
        raise ValueError(f"It holds a {kind}, and this fewpairs knows {sorted(KINDS)}. Upgrade fewpairs.")
    for name in networks:
        if name not in KINDS[kind].own_networks:
            raise ValueError(f"It holds a {kind}, which takes no {name}. Leave it out.")
    return KINDS[kind].from_file(tensors, description["settings"], description["fitted"], **networks)
