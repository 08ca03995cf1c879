"""Correction: its loss against quadrature, who judges and who teaches, and that it has to earn its place."""

import math

import pytest
import torch
from reference import grid
from small_energies import ADAM, POINTS, RADIUS, draw, keep_loss, make_base, make_energy

from fewpairs.data.samples import Samples
from fewpairs.energies.corrected import CorrectedPlan
from fewpairs.energies.correction import ANCHOR, LOOK_AHEAD, Correction
from fewpairs.energies.energy import Energy


def test_the_loss_of_a_correction_is_the_likelihood_by_quadrature() -> None:
    """Less the base's own density of the pairs, which no step changes."""
    torch.manual_seed(0)
    base, energy = make_base(), make_energy(bound=2.0)
    unpaired = {"unpaired_x": draw(6, 2, seed=2), "unpaired_y": draw(7, 1, seed=3)}
    samples = Samples.gather(draw(8, 2), draw(8, 1, seed=1), **unpaired)
    learner = Correction(
        energy=energy,
        samples=samples,
        folds=torch.ones(8),
        bases=[base, base],
        objective="marginal",
        unpaired_weight=2.0,
        n_draws=20_000,
        smoothing=0.0,
        batch_size=100,
        adam=ADAM,
    )
    kept = keep_loss(learner)
    learner.step(0.0)

    def log_prob_between(x, y):
        points, volume = grid(1, RADIUS, POINTS)
        log_z = torch.logsumexp(base.log_prob_between(x, points) - energy.between(x, points), dim=1) + math.log(volume)
        return base.log_prob_between(x, y) - energy.between(x, y) - log_z.unsqueeze(-1), log_z

    of_pairs, log_z = log_prob_between(samples.pairs_x, samples.pairs_y)
    of_pairs = of_pairs.diagonal() - base.log_prob(samples.pairs_x, samples.pairs_y)
    of_target = torch.logsumexp(log_prob_between(samples.source, samples.target)[0], dim=0) - math.log(14)
    expected = -of_pairs.mean() - 2 * of_target.mean() + ANCHOR * log_z.square().mean()
    assert float(kept["loss"]) == pytest.approx(float(expected), abs=0.03)


class Marked:
    """In place of a base: its draws say whose they are, and at which x."""

    def __init__(self, fold):
        self.fold = fold

    def conditional(self, x):
        self.x = x
        return self

    def sample(self, shape):
        return (1000 * self.fold + self.x[:, :1]).expand(*shape, -1, -1)


def test_pairs_that_judge_teach_nothing_and_others_meet_a_base_that_has_not_seen_them() -> None:
    """Judges teach neither as pairs nor as points of source and target; every other row comes, with draws at its own x of the
    base of its own fold."""
    energy = make_energy(bound=2.0)
    x, y = torch.arange(10.0).unsqueeze(1).expand(-1, 2).double(), torch.arange(10.0).unsqueeze(1).double()
    samples = Samples(x, y, torch.cat([x, x + 100]), torch.cat([y, y + 100]))
    settings = {"objective": "marginal", "unpaired_weight": 1.0, "n_draws": 8, "smoothing": 0.0, "batch_size": 100}
    folds = torch.arange(10) % 3
    bases = [Marked(fold) for fold in range(3)]
    learner = Correction(energy=energy, samples=samples, folds=folds, bases=bases, **settings, adam=ADAM)
    judges = {0.0, 3.0, 6.0, 9.0}
    for number in range(3 * LOOK_AHEAD):  # drawn ahead, and again
        task = next(learner.batches)
        fold, hand = task.fold, task.hand
        assert fold == 1 + number % 2
        for draws, rows in ((task.draws_of_pairs, hand.pairs_x), (task.draws, hand.source)):
            assert torch.equal(draws, (1000 * fold + rows[:, :1]).expand(8, -1, -1))
        assert set(hand.pairs_y.flatten().tolist()) == {float(one) for one in range(10) if one % 3 == fold}
        for rows in (hand.source[:, 0], hand.target.flatten()):
            assert set(rows.tolist()) == ({float(one) for one in range(10)} - judges) | {
                100.0 + one for one in range(10)
            }


class Negative(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *arguments):
        return -self.inner(*arguments)


def test_a_correction_that_brings_nothing_is_not_kept() -> None:
    """Pairs drawn from the base itself: any energy makes them less probable, and no part of it stays."""
    torch.manual_seed(0)
    base, energy = make_base(), make_energy(bound=2.0)
    x = draw(400, 2)
    samples = Samples(x, base.conditional(x).sample((1,))[0], x, draw(10, 1))
    options = {"objective": "supervised", "unpaired_weight": 1.0, "n_draws": 8, "smoothing": 0.0}
    settings = {**options, "batch_size": 10, "adam": ADAM}
    learner = Correction(energy=energy, samples=samples, folds=torch.zeros(400), bases=[base], **settings)
    strength, gain, error = learner.weigh((0.5, 1.0))
    assert strength == 0
    assert gain < error
    assert float(energy.strength) == 1  # what is kept is the caller's business
    reversed_ = Energy(Negative(energy.cost), Negative(energy.potential), bound=2.0)
    plan = CorrectedPlan(base, reversed_)
    drawn = Samples(x, plan(x, generator=torch.Generator().manual_seed(0)).sample(), x, draw(10, 1))
    learner = Correction(energy=reversed_, samples=drawn, folds=torch.zeros(400), bases=[base], **settings)
    strength, gain, error = learner.weigh((0.5, 1.0))
    assert strength == 1
    assert gain > error
