"""fewpairs: learn p(y|x) from a few pairs and many unpaired x's and y's.

    model = MixtureTranslator().fit(X, Y, X_unpaired=Xu, Y_unpaired=Yu)
    model.sample(X_new, n_samples=100)

Start at `estimators`, follow it to `plans`; ARCHITECTURE.md has the map.
"""

from importlib.metadata import PackageNotFoundError, version

from fewpairs.checks import Unpaired
from fewpairs.data import Samples, split_frame
from fewpairs.estimators import MixtureTranslator, load

__all__ = ["MixtureTranslator", "Samples", "Unpaired", "load", "split_frame"]

try:
    __version__ = version("fewpairs")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+source"
