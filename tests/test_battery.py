"""A small part of the battery (`make battery` has all of it): awkward problems end in finite numbers, never in an error."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import battery


@pytest.mark.parametrize(
    "seed", [5, 9, 20, 23]
)  # two to four pairs, integers, doubled and heavy columns, no unpaired rows
def test_an_awkward_problem_ends_in_finite_numbers(seed: int) -> None:
    outcome = battery.run_problem(seed, max_steps=4)
    assert outcome["is_finite"]
    assert np.isfinite([outcome["score"], outcome["gain_over_better"], outcome["told_x_gain"]]).all()


def test_problems_are_of_every_kind() -> None:
    problems = [battery.make_problem(seed) for seed in range(200)]
    sizes = [len(problem.X) for problem in problems]
    assert min(sizes) <= 3 and max(sizes) >= 250
    assert {problem.X_unpaired is None for problem in problems} == {True, False}
    assert {problem.kind.split(",")[0] for problem in problems} == {"none", "linear", "curved", "branches", "spread"}
    assert max(problem.Y.shape[1] for problem in problems) >= 28
    scales = np.concatenate([problem.Y_fresh.std(axis=0) for problem in problems])
    assert scales.min() < 1e-5 and scales.max() > 1e5


def test_worse_means_beyond_the_allowance_and_two_errors() -> None:
    assert battery.is_worse({"gain_over_better": -0.06, "error": 0.01})
    assert not battery.is_worse({"gain_over_better": -0.06, "error": 0.04})
    assert not battery.is_worse({"gain_over_better": -0.04, "error": 0.001})
