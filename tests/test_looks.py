"""Looks at held-out rows that cost something: no more than training, and no more time than there is."""

import itertools
import time

import numpy as np
import torch
from torch import nn

from fewpairs.training.learners import StepLearner
from fewpairs.training.loop import Budget, Outcome, train


class Counting:
    """A network whose number is the count of its steps, and what was looked at; the more steps, the better."""

    def __init__(self, pause: float = 0.0):
        self.network, self.looks, self.pause = nn.Linear(1, 1), [], pause
        self.network.weight.data.zero_()

    def step(self, batch):
        time.sleep(self.pause)
        self.network.weight.data.add_(1)
        return {"loss": torch.zeros(())}

    def judge(self) -> torch.Tensor:
        self.looks.append(int(self.network.weight))
        time.sleep(10 * self.pause)
        return self.network.weight.detach().clone()

    def run(self, max_steps: int, **budget) -> Outcome:
        learner = StepLearner(self.network, self.step, itertools.repeat(None))
        return train(learner, self.judge, Budget(max_steps, n_looks=30, looks_early=True, **budget))


def test_looks_cost_no_more_than_training() -> None:
    dear, cheap = Counting(), Counting()
    dear.run(205, look_cost=10.0)
    cheap.run(205)
    assert len(cheap.looks) > len(dear.looks) > 5
    assert np.diff([0, *dear.looks])[:-1].min() >= 10  # the last one is always there
    assert dear.looks[-1] == cheap.looks[-1] == 205


def test_budgets_leave_time_for_the_last_look_or_do_without() -> None:
    """A look is ten steps of a hundredth of a second: within a second there is time for some, and within 0.15 for none. The last
    networks are kept all the same, and nothing is looked at twice."""
    some, none = Counting(pause=0.01), Counting(pause=0.01)
    start = time.perf_counter()
    outcome = some.run(10_000, look_cost=10.0, seconds=1.0)
    assert time.perf_counter() - start < 2  # a busy machine oversleeps
    assert outcome.ended == "out of time" and len(set(some.looks)) == len(some.looks) > 1
    assert int(some.network.weight) == some.looks[-1]
    outcome = none.run(10_000, look_cost=10.0, seconds=0.15)
    assert none.looks == [] and int(none.network.weight) == outcome.best_step > 0
    assert outcome.best_step == outcome.history()["step"][-1]
