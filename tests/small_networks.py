"""Translators with networks that are fitted in a moment, and networks for images of 3 × 4 × 4; tests share them."""

from typing import Any

import numpy as np
import torch
from conftest import fixed
from torch import nn

from fewpairs import CorrectedTranslator, EnergyTranslator
from fewpairs.datasets.made import TwoBranches
from fewpairs.energies.energy import MapCost
from fewpairs.energies.samplers import Langevin
from fewpairs.estimators.settings import ChainSettings, NetworkTraining, Perceptrons

DATA = TwoBranches().draw(n_pairs=60, n_source=100, n_target=100, seed=0)
UNPAIRED = {"X_unpaired": DATA.X_unpaired, "Y_unpaired": DATA.Y_unpaired}
QUICK_BASE = fixed(training__max_steps=5, search__n_atoms=5)
SMALL = {
    "perceptrons": Perceptrons(cost_hidden=(16,), potential_hidden=(8,)),
    "random_state": 0,
    "verbose": False,
    "device": "cpu",
}


def corrected(**changes: Any) -> CorrectedTranslator:
    """A correction of a quick base; `training__max_steps` may be among the changes."""
    training = NetworkTraining(max_steps=5, batch_size=16)
    return CorrectedTranslator(QUICK_BASE, **SMALL, n_draws=8, training=training).set_params(**changes)


def free(**changes: Any) -> EnergyTranslator:
    """An energy alone, with short chains."""
    settings = {
        "sampler": Langevin(n_steps=5),
        "chains": ChainSettings(sampling_steps=20),
        "training": NetworkTraining(max_steps=5, batch_size=32),
    }
    return EnergyTranslator(**SMALL, **settings).set_params(**changes)


def fit(model: Any) -> Any:
    return model.fit(DATA.X, DATA.Y, **UNPAIRED)


class Colours(nn.Module):
    """A map of images that is one layer of 1 × 1."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        return self.layer(x)


class Brightness(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(48, 1)

    def forward(self, y):
        return self.layer(y.flatten(1)).squeeze(-1)


def images(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, size=(n, 3, 4, 4))


def image_model(**changes: Any) -> EnergyTranslator:
    chains = {"sampler": Langevin(n_steps=5, clamp=(-1.0, 1.0)), "epsilon": 0.1}
    return free(cost=MapCost(Colours()), potential=Brightness(), **chains).set_params(**changes)


class Linear(nn.Module):
    """The cost −⟨slope, y⟩: with a confinement s a Gaussian of this spread around s² slope, wherever that is."""

    def __init__(self, *slopes: float):
        super().__init__()
        self.slopes = nn.Parameter(torch.tensor(slopes))

    def forward(self, x, y):
        return -(self.slopes * y).sum(-1)


class Flat(nn.Module):
    def forward(self, y):
        return 0 * y.sum(-1)


class Shifted(nn.Module):
    """A linear map's cost and a number that depends on x alone."""

    def __init__(self, shift: float):
        super().__init__()
        self.slope, self.shift = nn.Parameter(torch.tensor(0.5)), shift

    def forward(self, x, y):
        return (y - self.slope * x).square().sum(-1) + self.shift * x.sin().sum(-1)
