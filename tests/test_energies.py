"""Energies: what they are made of, that many at once are one by one, and that chains and checks leave networks alone."""

import copy
import math

import pytest
import torch
from small_energies import draw, make_energy

from fewpairs.energies.contrast import draw_afresh, draw_negatives
from fewpairs.energies.energy import Energy, MapCost, NeuralCost, normalise_spectrally, refuse_unfit_energy
from fewpairs.energies.samplers import Langevin


def test_an_energy_is_cost_less_potential_over_epsilon() -> None:
    energy, x, y = make_energy(epsilon=0.5), draw(5, 2), draw(5, 1, seed=1)
    assert torch.allclose(energy(x, y), (energy.cost(x, y) - energy.potential(y)) / 0.5)
    assert torch.allclose(energy(x, y), energy.costs(x, y) - energy.potentials(y))


def test_a_confinement_is_a_gaussian_factor() -> None:
    free, x, y = make_energy(), draw(5, 2), draw(5, 1, seed=1)
    confined = Energy(free.cost, free.potential, confinement=0.7)
    gaussian = torch.distributions.Normal(0.0, 0.7).log_prob(y).squeeze(-1) + math.log(0.7 * math.sqrt(2 * math.pi))
    assert torch.allclose(confined(x, y), free(x, y) - gaussian)


def test_a_bound_holds_and_leaves_small_energies_alone() -> None:
    free, x, y = make_energy(), draw(200, 2), 5 * draw(200, 1, seed=1)
    bounded = Energy(free.cost, free.potential, bound=0.5)
    assert float(bounded(x, y).abs().max().detach()) <= 0.5
    wide = Energy(free.cost, free.potential, bound=1e4)
    assert torch.allclose(wide(x, y), free(x, y), atol=1e-6)  # tanh(u/b) b = u − u³/3b² …
    bounded.strength.fill_(0.0)
    assert float(bounded(x, y).abs().max().detach()) == 0


def test_energies_of_many_are_energies_one_by_one() -> None:
    energy, x, y = make_energy(), draw(3, 2), draw(4, 1, seed=1)
    between, draws = energy.between(x, y), draw(6, 3, 1, seed=2)
    of_draws = energy.of_draws(x, draws)
    for q in range(3):
        for r in range(4):
            assert float(between[q, r]) == pytest.approx(float(energy(x[q : q + 1], y[r : r + 1])))
        for n in range(6):
            assert float(of_draws[n, q]) == pytest.approx(float(energy(x[q : q + 1], draws[n, q : q + 1])))


def test_an_energy_at_x_is_the_energy() -> None:
    energy, x, y = make_energy(bound=1.0), draw(5, 2), draw(5, 1, seed=1)
    assert torch.equal(energy.prepared(y, energy.prepare(x)), energy(x, y))
    asked = []

    class Map(torch.nn.Module):
        def forward(self, x):
            asked.append(len(x))
            return x.sum(-1, keepdim=True)

    of_map = Energy(MapCost(Map()), energy.potential, epsilon=0.5)
    known = of_map.prepare(x)
    assert torch.equal(of_map.prepared(y, known), of_map.prepared(y, known))
    assert asked == [5]  # once for all y's
    assert torch.allclose(of_map.prepared(y, known), of_map(x, y))


def test_images_reach_their_networks_in_shape() -> None:
    shapes = {"x": (), "y": ()}

    class Map(torch.nn.Module):
        def forward(self, x):
            shapes["x"] = tuple(x.shape[1:])
            return x.mean(1, keepdim=True)

    class Potential(torch.nn.Module):
        def forward(self, y):
            shapes["y"] = tuple(y.shape[1:])
            return y.sum((1, 2, 3))

    energy = Energy(MapCost(Map()), Potential(), x_shape=(3, 4, 5), y_shape=(1, 4, 5))
    x, y = draw(2, 60), draw(2, 20, seed=1)
    by_hand = (x.view(2, 3, 20).mean(1) - y).square().mean(1) - y.sum(1)
    assert torch.allclose(energy(x, y), by_hand)
    assert shapes == {"x": (3, 4, 5), "y": (1, 4, 5)}


def test_spectral_norm_holds_the_slope_of_every_layer() -> None:
    torch.manual_seed(0)  # of some draws the two largest singular values are so close that 50 steps do not part them
    network = normalise_spectrally(NeuralCost(dim_x=2, dim_y=2, hidden=(16,)))
    network.train()
    for _ in range(50):  # each pass is a step of the power method that it is made of
        network(torch.randn(4, 2), torch.randn(4, 2))
    for layer in network.network:
        if isinstance(layer, torch.nn.Linear):
            assert float(torch.linalg.matrix_norm(layer.weight.detach(), 2)) == pytest.approx(1.0, abs=1e-3)


class Restless(torch.nn.Module):
    """A cost with layers that draw and learn in passing."""

    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        self.network = torch.nn.Sequential(*layers)

    def forward(self, x, y):
        return self.network(torch.cat([x, y], 1)).squeeze(-1)


def test_chains_and_checks_run_on_networks_at_rest() -> None:
    """Energies that are told are those in use, statistics stay as they were, and training goes on as it was."""
    torch.manual_seed(0)
    energy, x = Energy(Restless(), make_energy().potential, confinement=1.0).double().train(), draw(40, 2)
    before = copy.deepcopy(energy.state_dict())
    refuse_unfit_energy(energy, x[:2], draw(2, 1))
    chains = draw_negatives(energy, x, Langevin(n_steps=3), draw(40, 1, seed=1))
    assert all(torch.equal(tensor, before[name]) for name, tensor in energy.state_dict().items())
    assert all(module.training for module in energy.modules()) and all(p.requires_grad for p in energy.parameters())
    assert torch.allclose(chains.energy, energy.eval()(x, chains.y))


class NoPotential(torch.nn.Module):
    def forward(self, y):
        return 0 * y.sum(-1)


def test_several_chains_for_an_x_know_it() -> None:
    """At next to no temperature they come to the least of (x − y)²."""

    class Difference(torch.nn.Module):
        def forward(self, x, y):
            return (x[:, :1] - y).square().sum(-1)

    cold, x = Langevin(n_steps=100, step_size=1e-8, temperature=1e-8, target=None), draw(5, 2)
    drawn = draw_afresh(Energy(Difference(), NoPotential()), x, 3, 1, cold, 1.0)
    assert torch.allclose(drawn, x[:, :1].expand(3, 5, 1), atol=1e-3)
