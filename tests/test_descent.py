"""Descent: step sizes of cost and potential, each from its own peak, that follow how much of the work is done."""

import itertools
from dataclasses import replace

import pytest
import torch
from small_energies import ADAM, draw, make_energy

from fewpairs.energies.descent import Descent, EnergyLearner
from fewpairs.energies.energy import Energy
from fewpairs.training.loop import Budget, one_cycle, train


def distance(energy: Energy, descent: Descent, done: float) -> dict[str, float]:
    """How far a step moves the numbers of cost and potential at the most."""
    before = {name: parameter.detach().clone() for name, parameter in energy.named_parameters()}
    descent.set_rates(done)
    descent.step(energy(draw(5, 2), draw(5, 1)).mean())
    moved = {
        name: float((parameter.detach() - before[name]).abs().max()) for name, parameter in energy.named_parameters()
    }
    return {part: max(size for name, size in moved.items() if name.startswith(part)) for part in ("cost", "potential")}


@pytest.mark.parametrize("is_cycle", [True, False])
@pytest.mark.parametrize("done", [0.0, 0.3, 0.7, 1.0])
def test_steps_are_as_long_as_that_part_of_the_work_wants_them(done: float, is_cycle: bool) -> None:
    """Adam's first step is as long as its step size, whatever the gradient."""
    energy = make_energy(seed=1)
    adam = replace(ADAM, potential_learning_rate=5e-3, one_cycle=is_cycle)
    moved = distance(energy, Descent(energy, adam), done)
    part = one_cycle(done) if is_cycle else 1.0
    assert moved["cost"] == pytest.approx(1e-3 * part, rel=1e-3)
    assert moved["potential"] == pytest.approx(5e-3 * part, rel=1e-3)


def test_a_step_size_that_rises_and_falls_does_so_within_its_time() -> None:
    """A million steps and a fifth of a second: when the time is over, the step size is at its end."""
    energy, lengths = make_energy(seed=1), []

    class Learner(EnergyLearner):
        def __init__(self) -> None:
            super().__init__(energy, itertools.repeat(None))
            self.descent = Descent(energy, replace(ADAM, one_cycle=True))

        def _learn(self, batch: None) -> dict[str, torch.Tensor]:
            lengths.append(self.descent.optimizer.param_groups[0]["lr"])
            self.descent.step(energy(draw(5, 2), draw(5, 1)).mean())
            return {}

    outcome = train(Learner(), lambda: torch.zeros(1, 0), Budget(1_000_000, seconds=0.2))
    assert outcome.ended == "out of time"
    assert max(lengths) > 0.5 * 1e-3
    assert lengths[-1] < 0.1 * 1e-3  # of an even busier machine the last step would begin earlier


def test_long_gradients_are_shortened() -> None:
    """By the norm of all gradients together; without a limit they stay."""
    for limit in (0.01, None):
        energy = make_energy(seed=1)
        descent = Descent(energy, replace(ADAM, max_grad_norm=limit))
        descent.step(100 * energy(draw(5, 2), draw(5, 1)).mean())
        norm = float(torch.cat([parameter.grad.flatten() for parameter in energy.parameters()]).norm())
        assert norm == pytest.approx(0.01, rel=1e-3) if limit else norm > 1
