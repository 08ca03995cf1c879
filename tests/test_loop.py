"""The loop, with a learner whose every state is written down beforehand: what is kept, when it looks, and how it ends."""

import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
import torch

from fewpairs.training.interrupts import deferred_interrupts
from fewpairs.training.loop import Budget, Outcome, one_cycle, train


class Script:
    """Candidates whose held-out score after each step is known: scores[step][candidate]."""

    def __init__(self, scores: Sequence[Sequence[float]], *, ends_at: int | None = None, seconds: float = 0.0) -> None:
        self.scores, self.ends_at, self.seconds = torch.tensor(scores, dtype=torch.float64), ends_at, seconds
        self.place = self.kept = torch.zeros(self.n_candidates, dtype=torch.long)
        self.done: list[float] = []
        self.n_restored = self.n_judged = 0

    @property
    def n_candidates(self) -> int:
        return self.scores.shape[1]

    def step(self, done: float) -> Mapping[str, torch.Tensor]:
        time.sleep(self.seconds)
        self.done.append(done)
        self.place = self.place + 1
        return {"objective": -self.judge()[:, 0]}

    def judge(self) -> torch.Tensor:
        """Three rows with the same score."""
        self.n_judged += 1
        at = self.place.clamp(max=len(self.scores) - 1)
        return self.scores.gather(0, at[None]).T.expand(-1, 3)

    def is_finite(self) -> torch.Tensor:
        return torch.isfinite(self.judge()[:, 0])

    def is_lost(self) -> bool:
        return self.ends_at is not None and bool((self.place >= self.ends_at).all())

    def remember(self, which: torch.Tensor) -> None:
        self.kept = torch.where(which, self.place, self.kept)

    def restore(self) -> None:
        self.place, self.n_restored = self.kept, self.n_restored + 1


def rise_and_fall(n_steps: int, top: int) -> list[list[float]]:
    return [[-abs(step - top)] for step in range(n_steps + 1)]


def run(learner: Script, budget: Budget, **options) -> Outcome:
    return train(learner, learner.judge, budget, **options)


def test_each_candidate_goes_back_to_its_best_look() -> None:
    learner = Script([[-abs(step - 3), -abs(step - 7)] for step in range(11)])
    outcome = run(learner, Budget(10))
    assert learner.place.tolist() == [3, 7] and learner.n_restored == 1
    assert outcome.ended == "finished" and outcome.steps == list(range(11))
    assert outcome.best.tolist() == [3, 7]
    assert [float(mean[0]) for mean in outcome.means] == [-abs(step - 3) for step in range(11)]
    assert learner.done == pytest.approx([step / 10 for step in range(10)])


def test_a_tie_is_the_earlier_look() -> None:
    learner = Script([[0.0]] * 6)
    assert run(learner, Budget(5)).best_step == 0


def test_rows_count_by_their_weight_and_holes_not_at_all() -> None:
    scores = iter([[1.0, 5.0, math.nan], [2.0, 3.0, math.nan], [3.0, 0.0, math.nan]])
    learner = Script([[0.0]] * 3)
    weight = torch.tensor([3.0, 1.0, 100.0])
    outcome = train(learner, lambda: torch.tensor([next(scores)]), Budget(2), weight=weight)
    assert [float(mean[0]) for mean in outcome.means] == pytest.approx([2.0, 2.25, 2.25])
    assert outcome.best_step == 1


def test_without_held_out_rows_the_last_finite_state_is_kept() -> None:
    learner = Script([[0.0], [1.0], [2.0], [math.nan]])
    outcome = train(learner, lambda: torch.full((1, 3), math.nan), Budget(3))
    assert learner.place.tolist() == [2] and outcome.best_step == 2


@pytest.mark.parametrize("looks_early", [False, True])
def test_out_of_time_it_keeps_what_it_has_looked_at(looks_early: bool) -> None:
    learner = Script(rise_and_fall(10_000, top=10_000), seconds=1e-3)
    start = time.perf_counter()
    outcome = run(learner, Budget(10_000, seconds=0.2, looks_early=looks_early))
    assert outcome.ended == "out of time" and time.perf_counter() - start < 2  # a bound on a stuck loop
    assert learner.done == sorted(learner.done) and 0.5 < learner.done[-1] < 1
    assert outcome.best_step == outcome.steps[-1] == int(learner.place) == len(learner.done)


def test_no_time_is_no_step() -> None:
    learner = Script(rise_and_fall(5, top=5))
    outcome = run(learner, Budget(5, seconds=0.0))
    assert outcome.ended == "out of time" and outcome.steps == [0] and int(learner.place) == 0


@pytest.mark.parametrize("ends_at, steps", [(4, [0, 1, 2, 3, 4]), (1, [0, 1])])
def test_what_is_lost_has_diverged(ends_at: int, steps: list[int]) -> None:
    learner = Script(rise_and_fall(10, top=2), ends_at=ends_at)
    outcome = run(learner, Budget(10))
    assert outcome.ended == "diverged" and outcome.steps == steps
    assert int(learner.place) == min(ends_at, 2)


def test_scores_that_are_no_numbers_have_diverged() -> None:
    learner = Script([[0.0], [1.0], [math.nan], [5.0]])
    outcome = run(learner, Budget(3))
    assert outcome.ended == "diverged" and outcome.steps == [0, 1, 2] and int(learner.place) == 1


def test_one_candidate_that_broke_does_not_end_the_others() -> None:
    learner = Script([[0.0, 0.0], [1.0, 1.0], [2.0, math.nan], [3.0, math.nan]])
    outcome = run(learner, Budget(3))
    assert outcome.ended == "finished" and learner.place.tolist() == [3, 1]


def test_scores_above_zero_are_no_runaway_losses() -> None:
    """Log-densities may have either sign; only who sets `too_far` promises losses that are never negative."""
    outcome = run(Script([[1.0], [2.0], [1.5]]), Budget(2))
    assert outcome.ended == "finished" and outcome.best_step == 1


def test_a_loss_far_above_its_best_has_run_away() -> None:
    scores = [[-1.0], [-0.5], [-2.0]]
    assert run(Script(scores), Budget(2, too_far=3.9)).ended == "diverged"
    assert run(Script(scores), Budget(2, too_far=4.1)).ended == "finished"
    assert int(run(Script(scores), Budget(2, too_far=3.9)).best[0]) == 1


@pytest.mark.parametrize("patience", [1, 3])
def test_patience_ends_it_after_so_many_looks_without_a_better_one(patience: int) -> None:
    learner = Script(rise_and_fall(20, top=4))
    outcome = run(learner, Budget(20, patience=patience))
    assert outcome.ended == "finished" and outcome.steps[-1] == 4 + patience and int(learner.place) == 4


def test_looks_are_spread_evenly_or_close_together_at_first() -> None:
    evenly = run(Script(rise_and_fall(1000, top=1000)), Budget(1000, n_looks=10)).steps
    assert evenly == list(range(0, 1001, 100))
    early = run(Script(rise_and_fall(1000, top=1000)), Budget(1000, n_looks=10, looks_early=True)).steps
    assert early[0] == 10 and early[-1] == 1000 and len(early) == 10
    gaps = [after - before for before, after in pairwise(early)]
    assert gaps == sorted(gaps)


def test_looks_that_cost_are_kept_apart() -> None:
    """A look that costs as much as thirty steps comes no sooner than thirty steps after the last one, but for the last."""
    steps = run(Script(rise_and_fall(100, top=100)), Budget(100, looks_early=True, look_cost=30)).steps
    assert steps[-1] == 100
    assert all(after - before >= 30 for before, after in pairwise(steps[:-1]))


def test_looks_that_would_take_most_of_the_time_are_left_out() -> None:
    learner = Script(rise_and_fall(10_000, top=10_000), seconds=2e-3)
    outcome = run(learner, Budget(10_000, seconds=0.1, looks_early=True, look_cost=10_000))
    assert outcome.ended == "out of time" and len(outcome.steps) == 1
    assert torch.isnan(outcome.scores[0]).all()  # what there is is kept, and nobody has judged it
    assert int(learner.place) == len(learner.done) == outcome.best_step > 0


@pytest.mark.parametrize("looks_early", [False, True])
def test_ctrl_c_between_steps_keeps_the_best(looks_early: bool) -> None:
    """The signal comes in a step, which is finished; the loop says so, and nothing is raised."""
    learner = Script(rise_and_fall(100, top=12))

    def send(done: float) -> None:
        if len(learner.done) == 20:
            os.kill(os.getpid(), signal.SIGINT)

    with deferred_interrupts() as interrupts:
        outcome = run(learner, Budget(100, n_looks=50, looks_early=looks_early), on_step=send)
    assert outcome.ended == "interrupted" and len(learner.done) == 20 and outcome.steps[-1] == 20
    assert int(learner.place) == outcome.best_step and -outcome.means[outcome.best[0]] <= 1
    assert interrupts.n_came == 1 and not interrupts.came_late()
    outcome.refuse_if_nothing_was_learnt()


def test_ctrl_c_before_the_first_step_is_passed_on() -> None:
    learner = Script(rise_and_fall(10, top=5))
    with deferred_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        outcome = run(learner, Budget(10))
    assert outcome.ended == "interrupted" and learner.done == []
    with pytest.raises(KeyboardInterrupt):
        outcome.refuse_if_nothing_was_learnt()


def test_a_second_ctrl_c_ends_more_than_the_loop() -> None:
    def send(done: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        run(Script(rise_and_fall(10, top=5)), Budget(10), on_step=send)


def test_whoever_interrupts_does_not_wait_for_a_look_that_costs() -> None:
    learner = Script(rise_and_fall(100, top=50))

    def stop(done: float) -> None:
        if len(learner.done) == 43:
            raise KeyboardInterrupt

    outcome = run(learner, Budget(100, looks_early=True, look_cost=20), on_step=stop)
    assert outcome.ended == "interrupted" and outcome.steps[-1] < 43 and int(learner.place) == outcome.steps[-1]


def test_history_is_a_list_for_each_name() -> None:
    outcome = run(Script(rise_and_fall(4, top=2)), Budget(4))
    history = outcome.history()
    assert list(history) == ["step", "seconds", "held_out", "objective"]
    assert history["step"] == [0, 1, 2, 3, 4] and history["held_out"] == [2, 1, 0, 1, 2]
    assert math.isnan(history["objective"][0]) and history["objective"][1:] == [1, 0, 1, 2]


def test_one_cycle_rises_over_the_first_third_and_ends_near_nothing() -> None:
    sizes = [one_cycle(done / 1000) for done in range(1001)]
    top = sizes.index(max(sizes))
    assert sizes[0] == pytest.approx(0.04) and max(sizes) == pytest.approx(1.0) and top == 300
    assert sizes[:301] == sorted(sizes[:301]) and sizes[300:] == sorted(sizes[300:], reverse=True)
    assert sizes[-1] == pytest.approx(1e-3)
