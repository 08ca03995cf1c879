"""Recipes: the settings of `MixtureTranslator` that make it the paper's own method."""

from typing import Any

__all__ = ["RECIPES"]

# The paper's settings for the Swiss roll, by its text and by what the authors' notebook runs (linear a and v).
PAPER: dict[str, Any] = {
    "objective": "inverse_eot",
    "unpaired_weight": 0.0,
    "pairs_are": "representative",
    "n_atoms": 50,
    "n_slopes": 25,
    "hidden": (25,),
    "weight_hidden": (),
    "activation": "relu",
    "slope_std": None,
    "learn_scale": False,
    "start": "samples",
    "start_variance": 0.1,
    "variance_floor": 0.0,
    "standardise": False,
    "smoothing": 0.0,
    "adversarial": 0.0,
    "covariance": "diagonal",
    "n_folds": 1,
    "learning_rate": 3e-4,
    "potential_learning_rate": 1e-3,
    "one_cycle": False,
    "max_grad_norm": None,
    "batch_size": 128,
    "pairs_batch_size": 128,
    "max_steps": 25_000,
}
RECIPES: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    "authors": {**PAPER, "hidden": (), "slope_std": 0.01, "dtype": "float64"},
}
