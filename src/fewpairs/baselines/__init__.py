"""Baselines: the methods of the paper's tables, each with the same face as our own.

Every one is an estimator with `fit(X, Y, X_unpaired=…, Y_unpaired=…)`, `sample` and `predict`, and `score_samples` if it has a
density (a `DensityBaseline`). `uses` says what it learns from, `is_stochastic` whether it draws y's or maps x to one. `REGISTRY`
finds them by name.

    from fewpairs.baselines import REGISTRY
    model = REGISTRY["cgmm"](random_state=0).fit(X, Y)
"""

from fewpairs.baselines.base import Baseline, DensityBaseline
from fewpairs.baselines.cgmm import CGMM, CGMMSS
from fewpairs.baselines.regression import Regression

__all__ = ["CGMM", "CGMMSS", "REGISTRY", "Baseline", "DensityBaseline", "Regression"]

REGISTRY: dict[str, type[Baseline]] = {
    "regression": Regression,
    "cgmm": CGMM,
    "cgmm-ss": CGMMSS,
}
