"""Fitted models, read back from their files."""

import os
from typing import Any

from torch import nn

from fewpairs.classifiers import SemiSupervisedClassifier
from fewpairs.estimators import MixtureTranslator
from fewpairs.files import read_model

__all__ = ["load"]

KINDS: dict[str, Any] = {kind.__name__: kind for kind in (MixtureTranslator, SemiSupervisedClassifier)}


def load(path: str | os.PathLike, *, network: nn.Module | None = None) -> Any:
    """Reads a model that `save` wrote.

    Arguments:
        path: The file.
        network: For a `SemiSupervisedClassifier` with a network of your own: a module like the one it was fitted with.
    """
    tensors, description = read_model(path)
    kind = description["estimator"]
    if kind not in KINDS:
        raise ValueError(f"{str(path)!r} holds a {kind}, and this fewpairs knows {sorted(KINDS)}. Upgrade fewpairs.")
    more = {} if network is None else {"network": network}
    if network is not None and kind != "SemiSupervisedClassifier":
        raise ValueError(f"{str(path)!r} holds a {kind}, which takes no network. Leave it out.")
    return KINDS[kind].from_file(tensors, description["settings"], description["fitted"], **more)
