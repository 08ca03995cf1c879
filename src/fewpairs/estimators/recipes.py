"""Recipes: settings of `MixtureTranslator` and `EnergyTranslator` for a purpose; most make them the paper's own methods."""

from dataclasses import replace
from typing import Any

from fewpairs.energies.samplers import Langevin
from fewpairs.estimators.settings import Architecture, ChainSettings, NetworkTraining, Perceptrons, Search, Training

__all__ = ["ENERGY_RECIPES", "RECIPES"]

# The paper's settings for the Swiss roll, by its text and by what the authors' notebook runs (linear a and v).
PAPER_SEARCH = Search(
    unpaired_weight=0.0,
    hidden=(25,),
    variance_floor=0.0,
    smoothing=0.0,
    adversarial=0.0,
    covariance="diagonal",
    n_atoms=50,
)
PAPER_ARCHITECTURE = Architecture(
    n_slopes=25,
    weight_hidden=(),
    activation="relu",
    slope_std=None,
    learn_scale=False,
    start="samples",
    start_variance=0.1,
)
PAPER_TRAINING = Training(
    learning_rate=3e-4,
    potential_learning_rate=1e-3,
    one_cycle=False,
    max_grad_norm=None,
    batch_size=128,
    pairs_batch_size=128,
    max_steps=25_000,
)
PAPER: dict[str, Any] = {
    "objective": "inverse_eot",
    "pairs_are": "representative",
    "n_folds": 1,
    "standardise": False,
    "search": PAPER_SEARCH,
    "architecture": PAPER_ARCHITECTURE,
    "training": PAPER_TRAINING,
}
RECIPES: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    "authors": {
        **PAPER,
        "search": replace(PAPER_SEARCH, hidden=()),
        "architecture": replace(PAPER_ARCHITECTURE, slope_std=0.01),
        "training": replace(PAPER_TRAINING, dtype="float64"),
    },
}

# EBiEOT-NN on the Swiss roll: networks and rates of the paper's text; batch, steps and chains, which it does not tell, as in the
# authors' code.
NEURAL_TRAINING = NetworkTraining(
    learning_rate=5e-4,
    potential_learning_rate=2e-4,
    one_cycle=False,
    max_grad_norm=None,
    batch_size=1024,
    max_steps=3000,
    held_out=0.0,
)
NEURAL_PAPER: dict[str, Any] = {
    "objective": "inverse_eot",
    "confinement": None,
    "energy_penalty": 0.0,
    "smoothing": 0.0,
    "standardise": False,
    "sampler": Langevin(n_steps=100, step_size=0.05, target=None),
    "chains": ChainSettings(replay=0.95, buffer_size=10_000, start_std=1.0, sampling_steps=100),
    "perceptrons": Perceptrons(cost_hidden=(256, 256, 256), potential_hidden=(128, 128), activation="leaky_relu"),
    "training": NEURAL_TRAINING,
}
ENERGY_RECIPES: dict[str, dict[str, Any]] = {
    "paper": NEURAL_PAPER,
    # Their noise is 0.005 beside a step of 0.05, where the theory asks for its root, 0.22: chains at a temperature of 1/2000.
    "authors": {
        **NEURAL_PAPER,
        "sampler": Langevin(n_steps=100, step_size=2.5e-5, temperature=5e-4, target=None),
        "perceptrons": Perceptrons(cost_hidden=(128, 128), potential_hidden=(256, 256, 256), activation="leaky_relu"),
        "training": replace(NEURAL_TRAINING, learning_rate=3e-4, betas=(0.2, 0.99)),
    },
    # For images between −1 and 1, a range that chains do not leave, and a `MapCost`, whose least value is zero: found on digits
    # of 3 × 32 × 32, in colour.
    "images": {
        "objective": "transport",
        "epsilon": 0.01,
        # Cold chains, as in the authors' code: at temperature one their noise would drown what a picture is made of.
        "sampler": Langevin(n_steps=40, step_size=4e-4, temperature=2e-4, clamp=(-1.0, 1.0), target=None),
        "chains": ChainSettings(sampling_steps=200, start_std=0.5),
        "confinement": None,
        "energy_penalty": 0.01,
        "smoothing": 0.3,
        "training": NetworkTraining(
            learning_rate=1e-3,
            potential_learning_rate=3e-4,
            betas=(0.0, 0.99),
            batch_size=64,
            held_out=0.0,
            max_steps=1500,
        ),
    },
}
