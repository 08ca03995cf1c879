"""fewpairs: learn p(y|x) from a few pairs and many unpaired x's and y's.

    model = MixtureTranslator().fit(X, Y, X_unpaired=Xu, Y_unpaired=Yu)
    model.sample(X_new, n_samples=100)

and p(class|x) from a few labels and many rows without one:

    SemiSupervisedClassifier().fit(X, y)  # y = -1 where there is no label

`NeuralTranslator` has free networks in the place of the mixture, or on top of it.

Start at `estimators`, follow it to `plans`; ARCHITECTURE.md has the map.
"""

from fewpairs.checks import Unpaired
from fewpairs.classifiers import SemiSupervisedClassifier
from fewpairs.data import Samples, split_frame
from fewpairs.estimators import MixtureTranslator
from fewpairs.models import load
from fewpairs.neural import NeuralTranslator

__all__ = [
    "MixtureTranslator",
    "NeuralTranslator",
    "Samples",
    "SemiSupervisedClassifier",
    "Unpaired",
    "load",
    "split_frame",
]

__version__ = "0.1.0"
