"""Baselines: the methods of the paper's tables, each used as our own are.

Every one is an estimator with `fit(X, Y, X_unpaired=…, Y_unpaired=…)`, `sample`, `predict`, `predict_interval`,
`predict_quantiles`, `novelty`, `summary` and `save`, and with `score_samples` and `score` if it has a density (a
`DensityBaseline`). `uses` says what it learns from, `is_stochastic` whether it draws y's or maps x to one. `REGISTRY` finds
them by name, and `fewpairs.load` reads what they saved.

    from fewpairs.baselines import REGISTRY
    model = REGISTRY["cgmm"](random_state=0).fit(X, Y)
"""

from fewpairs.baselines.base import Baseline, DensityBaseline
from fewpairs.baselines.cgmm import CGMM, CGMMSS
from fewpairs.baselines.condnf import CondNF, CondNFSS
from fewpairs.baselines.dcpeme import DCPEME
from fewpairs.baselines.fsbm import FSBM
from fewpairs.baselines.gans import CGAN, UGAN
from fewpairs.baselines.gnot import GNOT
from fewpairs.baselines.otcs import OTCS
from fewpairs.baselines.parot import ParOT
from fewpairs.baselines.regression import Regression
from fewpairs.estimators.loading import make_known

__all__ = [
    "CGAN",
    "CGMM",
    "CGMMSS",
    "DCPEME",
    "FSBM",
    "GNOT",
    "OTCS",
    "REGISTRY",
    "UGAN",
    "Baseline",
    "CondNF",
    "CondNFSS",
    "DensityBaseline",
    "ParOT",
    "Regression",
]

REGISTRY: dict[str, type[Baseline]] = {
    "regression": Regression,
    "cgan": CGAN,
    "ugan": UGAN,
    "condnf": CondNF,
    "condnf-ss": CondNFSS,
    "cgmm": CGMM,
    "cgmm-ss": CGMMSS,
    "gnot": GNOT,
    "dcpeme": DCPEME,
    "parot": ParOT,
    "otcs": OTCS,
    "fsbm": FSBM,
}

make_known(*REGISTRY.values())
