"""Energies and bases that are nothing special, in float64, for the tests of whatever is made of them."""

import torch
from conftest import make_plan

from fewpairs.energies.descent import Adam, EnergyLearner
from fewpairs.energies.energy import Energy, InformedCost, NeuralCost, NeuralPotential
from fewpairs.plans.ensemble import EnsemblePlan, Part

ADAM = Adam(learning_rate=1e-3, potential_learning_rate=1e-3, betas=(0.9, 0.999), max_grad_norm=None, one_cycle=False)
RADIUS, POINTS = 12.0, 4001  # of quadratures in one dimension; the plans are within ±6


def make_energy(*, dim_x: int = 2, dim_y: int = 1, seed: int = 0, n_opinions: int = 0, **options) -> Energy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shape = {"dim_x": dim_x, "dim_y": dim_y, "hidden": (8,), "activation": "tanh"}
        cost = InformedCost(**shape, n_opinions=n_opinions) if n_opinions else NeuralCost(**shape)
        if n_opinions:
            cost.linear.weight.data.normal_(std=0.3)
        energy = Energy(cost, NeuralPotential(dim_y=dim_y, hidden=(8,), activation="tanh"), **options).double()
        for parameter in energy.parameters():
            parameter.data.mul_(2.0)
    return energy


def make_base(seed: int = 0) -> EnsemblePlan:
    parts = [Part(f"part {number}", [make_plan(dim_y=1, seed=seed + number)]) for number in range(2)]
    return EnsemblePlan(parts, torch.tensor([0.3, 0.7], dtype=torch.float64)).requires_grad_(False)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def keep_loss(learner: EnergyLearner) -> dict[str, torch.Tensor]:
    """Has it take no step, but keep here the loss that it would take one down."""
    kept: dict[str, torch.Tensor] = {}
    learner.descent.step = lambda loss: kept.update(loss=loss)  # type: ignore[method-assign]
    return kept
