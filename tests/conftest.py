"""What the tests share: small plans with random parameters, in float64 so that laws hold to rounding."""

from typing import Any

import numpy as np
import pytest
import torch

from fewpairs.datasets.made import TranslationData, TwoBranches
from fewpairs.estimators.classifier import SemiSupervisedClassifier
from fewpairs.estimators.mixture import MixtureTranslator
from fewpairs.estimators.settings import ClassifierTraining, Search, Training
from fewpairs.plans.costs import SlopeCost
from fewpairs.plans.ensemble import IGNORES_X
from fewpairs.plans.mixture import MixturePlan
from fewpairs.plans.potentials import ATOMS, MixturePotential

torch.set_num_threads(1)  # two test processes share two cores

# Everything that a fit would otherwise search for, at a value: nothing is searched, and a fit takes a second.
FIXED_SEARCH = Search(
    unpaired_weight=3.0,
    smoothing=0.2,
    adversarial=0.0,
    variance_floor=0.01,
    hidden=(8,),
    covariance="diagonal",
    n_atoms=10,
    emphasis=0.0,
)
FIXED = {
    "search": FIXED_SEARCH,
    "training": Training(batch_size=64),
    "n_folds": 2,
    "random_state": 0,
    "verbose": False,
}

# A classifier in a moment.
QUICK = {
    "hidden": (8,),
    "training": ClassifierTraining(max_steps=15),
    "n_members": 2,
    "random_state": 0,
    "verbose": False,
}


def fixed(**changes: Any) -> MixtureTranslator:
    """A `MixtureTranslator` with nothing to search for; settings, or `training__max_steps`, may be among the changes."""
    return MixtureTranslator(**FIXED).set_params(**changes)


def brief(**changes: Any) -> MixtureTranslator:
    """The same in thirty steps."""
    return fixed(training=Training(max_steps=30, batch_size=64)).set_params(**changes)


def searched(**changes: Any) -> MixtureTranslator:
    """One that searches for everything, in a moment."""
    training = Training(max_steps=20, batch_size=64)
    return MixtureTranslator(training=training, random_state=0, verbose=False).set_params(**changes)


def quick(**changes: Any) -> SemiSupervisedClassifier:
    """A `SemiSupervisedClassifier` that is fitted in a moment, with changes as in `fixed`."""
    return SemiSupervisedClassifier(**QUICK).set_params(**changes)


def blobs(n_rows: int = 120, n_labelled: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three well separated heaps: rows, true classes, and labels with −1 for none; the first labelled rows have every class."""
    random = np.random.default_rng(seed)
    truth = np.arange(n_rows) % 3
    X = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])[truth] + 0.5 * random.normal(size=(n_rows, 2))
    labels = np.where(np.arange(n_rows) < n_labelled, truth, -1)
    return X, truth, labels


def draw_branches(n_pairs: int = 60, seed: int = 0) -> TranslationData:
    return TwoBranches().draw(n_pairs=n_pairs, n_source=100, n_target=120, seed=seed)


def fit(model: MixtureTranslator, data: TranslationData) -> MixtureTranslator:
    return model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)


def ignoring_x(model: MixtureTranslator, y: np.ndarray) -> float:
    """The mean log-likelihood of y's under the part that ignores x."""
    (plan,) = model.plan_.part(IGNORES_X)
    x = torch.zeros(len(y), model.n_features_in_, dtype=torch.float64)
    conditional = plan.conditional(x, model.y_scaler_.loc, model.y_scaler_.scale)
    return float(conditional.log_prob(torch.from_numpy(y)).mean())


def make_plan(
    *, dim_x: int = 2, dim_y: int = 2, n_slopes: int = 3, n_atoms: int = 4, covariance: str = "diagonal", seed: int = 0
) -> MixturePlan:
    """A plan that is nothing special: slopes of size one, atoms of different widths and weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        cost = SlopeCost(dim_x=dim_x, dim_y=dim_y, n_slopes=n_slopes, hidden=(8,), slope_std=0.5)
        potential = MixturePotential(dim_y=dim_y, n_atoms=n_atoms, covariance=covariance)
        root = 0.6 * torch.randn(n_atoms, dim_y, dim_y, dtype=torch.float64)
        full = root @ root.mT + 0.2 * torch.eye(dim_y, dtype=torch.float64)
        B = full if covariance == "full" else full.diagonal(dim1=-2, dim2=-1)
        plan = MixturePlan(cost, potential).double()
        plan.cost.log_scale.data.copy_(0.3 * torch.randn(dim_y))
        plan.potential.set_atoms(torch.randn(n_atoms), torch.randn(n_atoms, dim_y, dtype=torch.float64), B)
    return plan


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(params=list(ATOMS))
def covariance(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def plan(covariance: str) -> MixturePlan:
    return make_plan(covariance=covariance)
