"""What the paper says of the Swiss roll: its claims about other methods, and the figures of its tables."""

import math

from fewpairs.studies.swiss_roll.cells import ANALYTIC, ROLL

__all__ = ["CLAIMS", "PAPER"]

# What the paper says of the others in its discussion of this task, and the column in which it should be seen.
CLAIMS: dict[str, tuple[str, str]] = {
    "Regression": ("predicts the conditional mean and nothing else", "conditional_mmd"),
    "CGAN": ("does not learn the target", "mmd"),
    "UGAN + ℓ²": ("does not learn p(y|x), which it averages", "conditional_mmd"),
    "CondNF": ("overfits the few pairs", "nll"),
    "CondNF (SS)": ("needs many more pairs", "conditional_mmd"),
    "CGMM (SS)": ("overfits quickly", "nll"),
    "GNOT": ("is a map, and p(y|x) is none", "conditional_mmd"),
    "DCPEME": ("is a map, and p(y|x) is none", "conditional_mmd"),
    "parOT": ("is a map, and p(y|x) is none", "conditional_mmd"),
    "OTCS": ("does not learn p(y|x)", "conditional_mmd"),
    "FSBM": ("has a noisy target", "mmd"),
}

# The paper's own figures (its two tables of the Swiss roll): MMD², “W₂”, conditional MMD², conditional “W₂”.
PAPER: dict[tuple[str, int], dict[str, tuple[float, float, float, float]]] = {
    (ROLL, 128): {
        "Regression": (8.25e-5, 3.77e-2, 37.61e-3, 89.76e-2),
        "CGAN": (666.68e-5, 21.78e-2, 41.72e-3, 101.09e-2),
        "UGAN + ℓ²": (46.60e-5, 1.93e-2, 40.32e-3, 94.35e-2),
        "CondNF": (39.76e-5, 0.02e-2, 26.56e-3, 142.93e-2),
        "CondNF (SS)": (70.74e-5, 3.84e-2, 26.94e-3, 71.09e-2),
        "OTCS": (102.52e-5, 19.61e-2, 39.38e-3, 91.73e-2),
        "FSBM": (15.88e-5, 0.93e-2, 33.75e-3, 126.06e-2),
        "EBiEOT-GMM, the paper's text": (4.19e-5, 0.43e-2, 28.35e-3, 100.59e-2),
    },
    (ROLL, 16_000): {
        "Regression": (59.90e-5, 33.40e-2, 18.35e-3, 48.42e-2),
        "CGAN": (15.65e-5, 0.98e-2, 22.48e-3, 96.24e-2),
        "UGAN + ℓ²": (23.89e-5, 2.70e-2, 9.55e-3, 30.20e-2),
        "CondNF": (30.83e-5, 1.88e-2, 20.59e-3, 84.79e-2),
        "CondNF (SS)": (57.42e-5, 0.94e-2, 14.77e-3, 69.69e-2),
        "OTCS": (6.05e-5, 0.69e-2, 9.13e-3, 54.11e-2),
        "FSBM": (4.65e-5, 0.52e-2, 30.88e-3, 126.17e-2),
        "EBiEOT-GMM, the paper's text": (6.18e-5, 1.00e-2, 35.72e-3, 109.16e-2),
    },
    # The unconditional columns of the baselines are left out here: the paper repeats those of another table.
    (ANALYTIC, 128): {
        "Regression": (math.nan, math.nan, 88.91e-3, 24.94e-1),
        "CGAN": (math.nan, math.nan, 91.31e-3, 25.55e-1),
        "UGAN + ℓ²": (math.nan, math.nan, 91.96e-3, 25.76e-1),
        "CondNF": (math.nan, math.nan, 85.34e-3, 23.99e-1),
        "CondNF (SS)": (math.nan, math.nan, 84.94e-3, 23.87e-1),
        "OTCS": (math.nan, math.nan, 41.70e-3, 19.57e-1),
        "FSBM": (math.nan, math.nan, 43.63e-3, 17.68e-1),
        "EBiEOT-GMM, the paper's text": (0.03e-3, 0.36e-2, 68.84e-3, 22.08e-1),
    },
}
