"""Made problems whose true p(y|x) is known, and real data from package registries, checked by their hash.

    from fewpairs.datasets import SwissRoll

A data set knows no model.
"""

from fewpairs.datasets.made import (
    AnalyticSwissRoll,
    Clusters,
    LinearGaussian,
    Problem,
    SwissRoll,
    TranslationData,
    TwoBranches,
)

__all__ = ["AnalyticSwissRoll", "Clusters", "LinearGaussian", "Problem", "SwissRoll", "TranslationData", "TwoBranches"]
