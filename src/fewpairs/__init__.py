"""fewpairs: learn p(y|x) from a few pairs and many unpaired x's and y's.

    model = MixtureTranslator().fit(X, Y, X_unpaired=Xu, Y_unpaired=Yu)
    model.sample(X_new, n_samples=100)

and p(class|x) from a few labels and many rows without one:

    SemiSupervisedClassifier().fit(X, y)  # y = -1 where there is no label

`CorrectedTranslator` lets networks correct the mixture, where pairs are many; `EnergyTranslator` is networks alone, for images.

Start at `estimators`, follow it to `plans`; ARCHITECTURE.md has the map.
"""

from fewpairs.data.checks import Unpaired
from fewpairs.data.frames import split_frame
from fewpairs.data.samples import Samples
from fewpairs.estimators.classifier import SemiSupervisedClassifier
from fewpairs.estimators.corrected import CorrectedTranslator
from fewpairs.estimators.energy_based import EnergyTranslator
from fewpairs.estimators.loading import load
from fewpairs.estimators.mixture import MixtureTranslator
from fewpairs.estimators.neural import NeuralTranslator
from fewpairs.estimators.settings import (
    Architecture,
    ChainSettings,
    ClassifierSearch,
    ClassifierTraining,
    NetworkTraining,
    Perceptrons,
    Search,
    Training,
)

__all__ = [
    "Architecture",
    "ChainSettings",
    "ClassifierSearch",
    "ClassifierTraining",
    "CorrectedTranslator",
    "EnergyTranslator",
    "MixtureTranslator",
    "NetworkTraining",
    "NeuralTranslator",
    "Perceptrons",
    "Samples",
    "Search",
    "SemiSupervisedClassifier",
    "Training",
    "Unpaired",
    "load",
    "split_frame",
]

__version__ = "0.1.0"
