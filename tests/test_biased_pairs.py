"""The study of biased pairs: selection is as it says, weights go where they should, the page tells what cells found."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fewpairs.cli.app import app
from fewpairs.studies.biased_pairs import page as biased_pairs_page
from fewpairs.studies.biased_pairs.fits import CORRECTIONS, FULL, TINY, Fit, StudyPlan, SwissRollWorld
from fewpairs.studies.cells import Outcomes, Store
from fewpairs.studies.running import run_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyPlan, Outcomes]:
    """The smallest study there is, run once by the command."""
    folder = tmp_path_factory.mktemp("study")
    result = CliRunner().invoke(app, ["reproduce", "biased-pairs", "--tiny", "--jobs", "1", "--folder", str(folder)])
    assert result.exit_code == 0, result.output
    return folder, StudyPlan(TINY), run_study(StudyPlan(TINY), folder, n_jobs=1)  # everything is there already


def test_every_fit_was_run_and_the_page_shows_it(study: tuple[Path, StudyPlan, Outcomes]) -> None:
    folder, plan, outcomes = study
    assert not outcomes.failures and all(np.isfinite(outcomes[fit]["nll"]) for fit in plan.fits())
    page = (folder / "report.html").read_text()
    for correction in CORRECTIONS:
        assert correction.title.replace("'", "&#x27;") in page
    tables = json.loads((folder / "results.json").read_text())["tables"]
    for table in tables:
        for correction in plan.corrections(table["objective"]):
            fits = plan.of(table["world"], table["objective"], correction, table["strength"])
            assert table["nll"].get(correction.title, []) == [outcomes[fit]["nll"] for fit in fits]


def test_the_selection_is_the_one_that_the_true_ratio_undoes() -> None:
    """Averages over selected x's, weighted with population over pairs, are those of the population: mean zero, variance one."""
    x = SwissRollWorld().draw(0.5, n_pairs=1000, n_unpaired=1, seed=0)["X"]
    weight = np.exp(0.5 * x[:, 0])
    weight /= weight.mean()
    assert x[:, 0].mean() == pytest.approx(-0.5, abs=4 / np.sqrt(1000))
    # The weights have variance e^0.25 − 1 = 0.28, so 1,000 rows are worth some 750; four standard errors, more for a square.
    assert (weight * x[:, 0]).mean() == pytest.approx(0.0, abs=4 / np.sqrt(750))
    assert (weight * x[:, 0] ** 2).mean() == pytest.approx(1.0, abs=6 * np.sqrt(2 / 750))


def test_weights_go_where_a_correction_says(study: tuple[Path, StudyPlan, Outcomes]) -> None:
    folder, plan, _ = study
    store = Store(folder / "cells" / "tiny")
    given = {}
    for fit in plan.fits():
        if fit.objective == "marginal" and fit.draw.strength == 1.0:
            data, truth = ({name: np.array(part) for name, part in store.need(cell).items()} for cell in fit.needs)
            given[fit.correction.title] = data, fit._weights(data, truth)
    for title, (data, weights) in given.items():
        assert ("relevance" in weights) == title.endswith("true ratio")
        assert ("X_unpaired_weight" in weights) == ("Y_unpaired_weight" in weights) == title.startswith("the paper's")
        x = data["X_unpaired"][:, 0]
        if title == "the paper's two-sided form, true ratio":  # pairs over population, where it is not cut
            np.testing.assert_allclose(np.log(weights["X_unpaired_weight"]) + x, 0, atol=1e-9)
        if title == "the paper's printed formula, true ratio":
            kept = np.log(weights["X_unpaired_weight"]) - x
            assert np.isclose(kept, 0, atol=1e-9).mean() > 0.8
    of_y = given["the paper's two-sided form, true ratio"]
    # Of y, on average over the population, it is one (its variance is not known: a wide bound).
    assert 0.3 < of_y[1]["Y_unpaired_weight"].mean() < 3


def test_what_is_said_follows_the_numbers() -> None:
    """Made-up outcomes: true weights gain a nat under the paper's loss, estimated ones 0.8; the default loses a tenth."""
    plan, outcomes = StudyPlan(FULL), Outcomes()
    random = np.random.default_rng(0)
    for fit in plan.fits():
        outcomes.of_key[fit.key] = {"nll": _made_up(fit) + 1e-3 * random.normal()}
    numbers = biased_pairs_page._Numbers(plan, outcomes)
    of_paper = biased_pairs_page._of_paper(numbers, "Swiss roll")
    assert "weighted pairs at 1: 80% of 1.00 nats" in of_paper and "two-sided form at 1: 80%" in of_paper
    assert "at 0:" not in of_paper  # no true ratio is tried there
    assert "1: -0.10" in biased_pairs_page._of_default(numbers, "Swiss roll")


def _made_up(fit: Fit) -> float:
    if fit.objective == "inverse_eot":
        is_plain = fit.correction.emphasis == 0 and fit.correction.sides == 0
        return 1.0 if is_plain else 0.0 if fit.correction.ratio == "true" else 0.2
    return 0.1 if fit.correction.name == "as shipped" else 0.0
