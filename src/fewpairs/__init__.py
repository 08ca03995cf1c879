"""fewpairs: learn p(y|x) from a few pairs and many unpaired x's and y's.

    model = MixtureTranslator().fit(X, Y, X_unpaired=Xu, Y_unpaired=Yu)
    model.sample(X_new, n_samples=100)

Start at `estimators`, follow it to `plans`; ARCHITECTURE.md has the map.
"""

from fewpairs.checks import Unpaired
from fewpairs.data import Samples, split_frame
from fewpairs.estimators import MixtureTranslator, load

__all__ = ["MixtureTranslator", "Samples", "Unpaired", "load", "split_frame"]

__version__ = "0.1.0"
