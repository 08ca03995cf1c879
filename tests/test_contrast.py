"""Contrast: the gradient of its surrogate against that of the paper's loss, and where its chains begin and go on."""

import math
from typing import ClassVar

import pytest
import torch
from reference import grid
from small_energies import ADAM, draw, keep_loss, make_energy

from fewpairs.data.samples import Samples
from fewpairs.energies.contrast import N_AVERAGED, Contrast
from fewpairs.energies.samplers import Chains, Langevin


class Exact(Langevin):
    """In place of chains: y's of p(y|x) itself, read off a grid."""

    def run(self, energy, y, generator=None, *, given=(), recorder=None):
        points, _ = grid(1, 5.0, 2001)
        with torch.no_grad():
            log_density = torch.stack([-energy(point.expand(len(y), -1), *given) for point in points], dim=1)
            chosen = torch.multinomial(log_density.softmax(1), 1).squeeze(1)
        return Chains(points[chosen], y.new_zeros(len(y)), 1.0, 0.0, self.step_size)


@pytest.mark.parametrize("objective", ["inverse_eot", "supervised", "transport"])
def test_the_surrogate_has_the_gradient_of_the_loss(objective: str) -> None:
    """∂L = ∂ mean c(pairs) − ∂ mean f(target) + ∂ mean log Z(source), log Z by quadrature. Negatives are drawn, so gradients
    agree within their noise: many rows, and a cosine near one. Under transport log Z teaches the potential alone."""
    torch.manual_seed(0)
    energy = make_energy(confinement=0.7)
    n = 6000
    x, source = draw(50, 2).repeat(n // 50, 1), draw(40, 2, seed=5).repeat(n // 40, 1)
    samples = Samples(x, draw(50, 1, seed=1).repeat(n // 50, 1), source, draw(50, 1, seed=2).repeat(n // 50, 1))
    learner = Contrast(
        energy=energy,
        samples=samples,
        x_judge=x[:0],
        y_judge=x[:0, :1],
        objective=objective,
        sampler=Exact(),
        sampling_steps=1,
        start_std=1.0,
        replay=0.5,
        buffer_size=n,
        smoothing=0.0,
        energy_penalty=0.0,
        batch_size=n,
        adam=ADAM,
    )
    kept = keep_loss(learner)
    learner.step(0.0)
    parameters = list(energy.parameters())
    found = torch.cat(
        [g.flatten() for g in torch.autograd.grad(kept["loss"], parameters, allow_unused=True) if g is not None]
    )
    points, volume = grid(1, 5.0, 2001)
    of = samples.pairs_x[:50] if objective == "supervised" else source[:40]
    log_z = (torch.logsumexp(-energy.between(of, points), dim=1) + math.log(volume)).mean()
    of_pairs, of_target = (
        energy.costs(samples.pairs_x, samples.pairs_y).mean(),
        energy.potentials(samples.target).mean(),
    )
    if objective == "supervised":
        of_target = energy.potentials(samples.pairs_y).mean()
    of_cost = of_pairs if objective == "transport" else of_pairs + log_z
    exact = torch.cat(
        [
            torch.autograd.grad(loss, parameter, retain_graph=True)[0].flatten()
            for loss, part in ((of_cost, energy.cost), (log_z - of_target, energy.potential))
            for parameter in part.parameters()
        ]
    )
    assert float(torch.cosine_similarity(found, exact, dim=0)) > 0.99
    assert float(found.norm() / exact.norm()) == pytest.approx(1.0, abs=0.1)


class Told(Langevin):
    """In place of chains: it notes at which x's and from where they would begin, and moves each y to 10 times its x."""

    seen: ClassVar[list] = []

    def run(self, energy, y, generator=None, *, given=(), recorder=None):
        self.seen.append((given[0], y))
        return Chains(10 * given[0][:, :1], y.new_zeros(len(y)), 1.0, 0.0, self.step_size)


def contrast(**settings) -> Contrast:
    """A learner of 50 source rows that are their own numbers, in hands of 20."""
    rows = torch.arange(1.0, 51.0).unsqueeze(1).double()
    Told.seen.clear()
    defaults = {
        "energy": make_energy(dim_x=1),
        "samples": Samples(rows[:30], rows[:30], rows, rows),
        "x_judge": rows[:0],
        "y_judge": rows[:0],
        "objective": "inverse_eot",
        "sampler": Told(),
        "sampling_steps": 1,
        "start_std": 0.0,
        "replay": 1.0,
        "buffer_size": 50,
        "smoothing": 0.0,
        "energy_penalty": 0.0,
        "batch_size": 20,
        "adam": ADAM,
    }
    return Contrast(**{**defaults, **settings})


def test_chains_go_on_where_that_of_the_same_x_was() -> None:
    learner, met = contrast(), set()
    for _ in range(10):
        learner.step(0.0)
        x, start = (rows.flatten().tolist() for rows in Told.seen[-1])
        assert start == [10 * one if one in met else 0.0 for one in x]
        met |= set(x)
    assert len(met) == 50
    # 2 hands and a half deal every x once: they were moved in one of the last five steps
    assert 0 < learner.buffer_age() < 4


def test_smoothing_moves_the_xs_of_chains() -> None:
    """By a Gaussian of the spread that is asked for; four standard errors of a spread of 200 rows."""
    learner = contrast(smoothing=0.1)
    for _ in range(10):
        learner.step(0.0)
    noise = torch.cat([x - x.round() for x, _ in Told.seen])  # rows are whole numbers, five spreads apart at least
    assert float(noise.std()) == pytest.approx(0.1, rel=4 / math.sqrt(2 * 200))


def test_the_gap_is_energy_of_chains_less_that_of_pairs_over_the_last_steps() -> None:
    energy = make_energy(dim_x=1)
    learner, gaps = contrast(energy=energy), []
    keep_loss(learner)
    for _ in range(N_AVERAGED + 5):
        hand = next(learner.batches)
        told = learner._learn(hand)["energy_gap"]
        with torch.no_grad():
            gaps.append(energy(hand.source, 10 * hand.source).mean() - energy(hand.pairs_x, hand.pairs_y).mean())
    assert float(told) == pytest.approx(float(torch.stack(gaps[5:]).mean()))
