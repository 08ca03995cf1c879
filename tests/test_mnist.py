"""The study of digits: draws are nested and fair, every cell reaches the page, and what is said follows the numbers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fewpairs.cli.app import app
from fewpairs.studies.cells import Outcomes
from fewpairs.studies.mnist import page as mnist_page
from fewpairs.studies.mnist.fits import (
    BOUNDED,
    FULL,
    METHODS,
    PAPER,
    SELF_TRAINING,
    SPREADING,
    SUPERVISED,
    TINY,
    Fit,
    Images,
    StudyPlan,
)
from fewpairs.studies.mnist.page import _Numbers
from fewpairs.studies.running import run_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyPlan, Outcomes]:
    """The smallest study there is, run once by the command."""
    folder = tmp_path_factory.mktemp("study")
    result = CliRunner().invoke(app, ["reproduce", "mnist", "--tiny", "--jobs", "1", "--folder", str(folder)])
    assert result.exit_code == 0, result.output
    return folder, StudyPlan(TINY), run_study(StudyPlan(TINY), folder, n_jobs=1)  # everything is there already


def test_every_fit_was_run_and_the_page_shows_it(study: tuple[Path, StudyPlan, Outcomes]) -> None:
    folder, plan, outcomes = study
    assert not outcomes.failures and {fit.method for fit in plan.fits()} == set(METHODS)
    for fit in plan.fits():
        assert 0 <= outcomes[fit]["accuracy"] <= 1 and np.isfinite(outcomes[fit]["log_loss"])
    page = (folder / "report.html").read_text()
    assert all(method.replace("'", "&#x27;") in page for method in METHODS)
    (grid,) = plan.scale.grids
    tables = json.loads((folder / "results.json").read_text())["tables"]
    assert len(tables) == len(METHODS) * len(grid.networks)
    for table in tables:
        fits = plan.of(grid, table["method"], table["network"], table["labelled"], table["unlabelled"])
        assert table["accuracy"] == [outcomes[fit]["accuracy"] for fit in fits]


def test_a_part_of_a_study_is_compared_seed_by_seed() -> None:
    plan, grid = StudyPlan(FULL), FULL.grids[0]
    ours, alone = (plan.of(grid, method, "mlp", 50, 500) for method in (BOUNDED, SUPERVISED))
    known = [(ours[0], 0.9), (ours[1], 0.8), (alone[1], 0.5), (alone[2], 0.1)]
    numbers = _Numbers(plan, Outcomes({fit.key: {"accuracy": accuracy} for fit, accuracy in known}))
    (cell, (gain, error)), *others = numbers.gains("accuracy", grid, SUPERVISED, "mlp").items()
    assert cell == (50, 500) and not others
    assert gain == pytest.approx(0.3) and np.isnan(error)  # seed 1 alone has both
    assert numbers.of("accuracy", grid, BOUNDED, "mlp", 50, 500) == [0.9, 0.8]


def draw(n_labelled: int, n_unlabelled: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y, test_X, test_y = Fit(Images("drawn digits"), BOUNDED, "mlp", n_labelled, n_unlabelled, seed, 50).draw()
    assert len(test_X) == len(test_y) == 50
    return X, y


def test_draws_are_balanced_nested_and_apart() -> None:
    X, y = draw(20, 100)
    assert np.bincount(y[y >= 0]).tolist() == [2] * 10 and (y == -1).sum() == 100
    assert X.min() >= 0 and X.max() <= 1
    rows = {row.tobytes() for row in X}
    assert len(rows) == 120  # no image comes twice, labelled or not
    more, more_y = draw(50, 150)
    labelled, unlabelled = ({row.tobytes() for row in more[part]} for part in (more_y >= 0, more_y == -1))
    assert {row.tobytes() for row in X[y >= 0]} <= labelled
    assert {row.tobytes() for row in X[y == -1]} <= unlabelled | labelled  # a label more is an unlabelled row less
    assert {row.tobytes() for row in draw(20, 100, seed=1)[0]} != rows
    with pytest.raises(ValueError, match="15 labels cannot be shared out evenly"):
        draw(15, 10)


MADE = {"seconds": 7.0, "made_with": "torch"}


def test_fits_that_cannot_differ_are_made_once() -> None:
    plan, grid = StudyPlan(FULL), FULL.grids[0]
    assert plan.of(grid, SUPERVISED, "mlp", 50, 500) == plan.of(grid, SUPERVISED, "mlp", 50, 1000)
    assert plan.of(grid, SPREADING, "cnn", 50, 500) == plan.of(grid, SPREADING, "mlp", 50, 500)[:3]
    assert plan.of(grid, SELF_TRAINING, "cnn", 50, 500) == plan.of(grid, SELF_TRAINING, "cnn", 20, 10_000) == []
    for method, seeds in ((BOUNDED, [0, 1, 2]), (SELF_TRAINING, [0, 1, 2]), (PAPER, [0])):
        assert [fit.seed for fit in plan.of(grid, method, "cnn", 50, 10_000)] == seeds
    fits = plan.fits()
    assert len(fits) == len(set(fits)) == len({fit.key for fit in fits})


def test_what_is_said_follows_the_numbers() -> None:
    """Made-up outcomes: unlabelled rows bring seven points, but with 1,000 labels and 500 of them they cost two; label spreading
    is a point behind, self-training a point ahead."""
    plan, outcomes = StudyPlan(FULL), Outcomes()
    random = np.random.default_rng(0)
    for fit in plan.fits():
        accuracy = {BOUNDED: 0.90, SUPERVISED: 0.83, PAPER: 0.5, SPREADING: 0.89, SELF_TRAINING: 0.91}[fit.method]
        if fit.method == BOUNDED and (fit.n_labelled, fit.n_unlabelled) == (1000, 500):
            accuracy = 0.81
        noise = 1e-4 * random.normal()
        outcomes.of_key[fit.key] = {"accuracy": accuracy + noise, "log_loss": 1 - accuracy, "calibration": 0.1, **MADE}
    numbers = mnist_page._Numbers(plan, outcomes)
    said = mnist_page._verdicts(numbers, plan.scale.grids[0], "mlp")
    assert "in 25 of 25 places of the grid, by more than two standard errors in 25" in said[0]
    assert "Least gain anywhere: -2.0" in said[0] and "with 1,000 labels and 500 unlabelled rows" in said[0]
    assert "two standard errors in 1 of 35 places with two seeds or more. Log-loss fell in 34 of 35" in said[0]
    assert "50 labels and 10,000 unlabelled rows: 90.0 % right, +7.0" in said[1]
    assert "the paper's loss: behind labelled rows alone in 35 of 35 places, by 33.0 to 33.0 points" in said[5]
    _, (mlp, *_) = mnist_page._overview(numbers, {plan.scale.grids[0]: ["mlp"]})
    assert mlp[0] == "MNIST, perceptron" and mlp[-1] == "34 of 35"
    assert [re.sub(r" ± \S+", "", entry) for entry in mlp[1:4]] == [
        "-2.0 (34 of 35)",
        "-8.0 (24 of 25)",
        "-1.0 (0 of 5)",
    ]
    assert (
        "against label spreading, from 50 labels on: behind in 1 of 25 places, by two standard errors in 1;" in said[3]
    )
    # Which is done with the most unlabelled rows alone.
    assert "against self-training, from 50 labels on: behind in 5 of 5 places, by two standard errors in 5;" in said[4]


def test_missing_cells_leave_gaps_and_no_claims() -> None:
    plan = StudyPlan(FULL)
    numbers = mnist_page._Numbers(plan, Outcomes())
    assert mnist_page._verdicts(numbers, plan.scale.grids[0], "mlp") == []
    header, lines = mnist_page._table(numbers, plan.scale.grids[0], "mlp", "accuracy")
    assert len(header) == len(lines[0]) and all(entry.text == "–" for entry in lines[0][1:])


def test_one_seed_is_no_evidence_and_networks_that_were_not_run_are_not_on_the_page(tmp_path: Path) -> None:
    plan, outcomes = StudyPlan(FULL), Outcomes()
    for fit in plan.fits():
        if fit.seed == 0 and fit.network == "mlp" and fit.images.dataset == "MNIST":
            accuracy = 0.9 if fit.method == BOUNDED else 0.8
            outcomes.of_key[fit.key] = {"accuracy": accuracy, "log_loss": 1 - accuracy, "calibration": 0.1, **MADE}
    said = mnist_page._verdicts(mnist_page._Numbers(plan, outcomes), plan.scale.grids[0], "mlp")
    assert "in 25 of 25 places of the grid, by more than two standard errors in 0." in said[0]
    assert "in 0 of 0 places with two seeds or more" in said[0]
    assert said[-2].startswith(
        "Perceptron, against self-training, from 50 labels on: behind in 0 of 5 places (one seed)"
    )
    page = mnist_page.write_page(tmp_path, plan, outcomes).with_suffix(".md").read_text()
    assert "perceptron, 10,000 unlabelled rows" in page
    assert "convolutional network, 10,000" not in page and "Fashion" not in page
    assert "+10.0 (35 of 35)" in page  # no ± from one seed
    assert "Made with torch: 35 fits of the default, 7 to 7 s each" in page
