"""The Swiss-roll study: the page says what the cells found, no more and no less."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fewpairs.cli.app import app
from fewpairs.estimators.mixture import MixtureTranslator
from fewpairs.studies.cells import Outcomes, Store
from fewpairs.studies.comparisons import is_behind, tied_for_best
from fewpairs.studies.methods import METHODS, Method, register
from fewpairs.studies.running import run_study
from fewpairs.studies.swiss_roll import page as swiss_roll_page
from fewpairs.studies.swiss_roll.around import _worth
from fewpairs.studies.swiss_roll.cells import ANALYTIC, ROLL, Draw, Fit, Truth, compare_draws
from fewpairs.studies.swiss_roll.fits import FULL, NETWORKS, OURS, TINY, StudyPlan


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyPlan, Outcomes]:
    """The smallest study there is, run once by the command."""
    folder = tmp_path_factory.mktemp("study")
    result = CliRunner().invoke(app, ["reproduce", "swiss-roll", "--tiny", "--jobs", "1", "--folder", str(folder)])
    assert result.exit_code == 0, result.output
    plan = StudyPlan(TINY)
    return folder, plan, run_study(plan, folder, n_jobs=1)  # everything is there already


def test_every_cell_was_run_and_is_finite(study: tuple[Path, StudyPlan, Outcomes]) -> None:
    _, plan, outcomes = study
    assert not outcomes.failures
    for fit in plan.fits():
        numbers = [value for value in outcomes[fit].values() if isinstance(value, float)]
        assert len(numbers) >= 2 and np.isfinite(numbers).all()


def test_the_page_shows_every_method_and_section(study: tuple[Path, StudyPlan, Outcomes]) -> None:
    folder, _, _ = study
    page = (folder / "report.html").read_text()
    for method in METHODS:
        assert method.replace("'", "&#x27;") in page
    for title in (
        "With and without unpaired rows",
        "How many pairs",
        "slopes M",
        "runs away",
        "networks stable",
        "How each number was made",
    ):
        assert title in page
    assert "not the study" in page  # a tiny run must not be taken for the full one
    figures = {path.stem for path in (folder / "figures").glob("*.png")}
    assert figures == {"mappings-roll-24", "mappings-analytic-24", "pairs", "grid-ours", "grid-paper", "runaway"}


def test_a_part_of_the_study_is_a_page_without_the_rest(tmp_path: Path) -> None:
    command = ["reproduce", "swiss-roll", "--tiny", "--jobs", "1", "--folder", str(tmp_path)]
    result = CliRunner().invoke(app, [*command, "--only", "regression", "--only", "no-such-fit"])
    assert result.exit_code == 0, result.output
    page, plan = (tmp_path / "report.md").read_text(), StudyPlan(TINY)
    n_fits = len(set(plan.fits()))
    assert f"{n_fits - 2} of {n_fits} fits have not been run" in page  # Regression is in the tables of two problems
    assert "| Regression |" in page and "With and without" not in page and "networks stable" not in page


def test_what_is_there_is_shown_whatever_is_run(study: tuple[Path, StudyPlan, Outcomes]) -> None:
    folder, plan, outcomes = study
    some = run_study(plan, folder, plan.fits()[:1], n_jobs=1)
    assert some.of_key == outcomes.of_key


def test_the_numbers_are_those_of_the_cells(study: tuple[Path, StudyPlan, Outcomes]) -> None:
    folder, plan, outcomes = study
    tables = json.loads((folder / "results.json").read_text())["tables"]
    for table in tables[:2]:
        for method, fits in plan.main(table["problem"], table["P"], table["Q"]).items():
            assert table["rows"][method]["mmd"] == [outcomes[fit]["mmd"] for fit in fits]
    assert "kl" in tables[1]["rows"][OURS] and "kl" not in tables[0]["rows"][OURS]


def test_a_cell_can_be_repeated_bit_for_bit(study: tuple[Path, StudyPlan, Outcomes]) -> None:
    folder, plan, outcomes = study
    fit = plan.main(ANALYTIC, 24, 40)["EBiEOT-GMM, the paper's text"][0]
    again = fit.run(Store(folder / "cells" / "tiny"), "cpu")
    found = outcomes[fit]
    assert found["made_with"].endswith("cpu")
    assert {**again, "seconds": 0, "made_with": found["made_with"]} == {**found, "seconds": 0}


def test_the_plan_has_the_papers_sizes_and_shares_its_fits() -> None:
    plan = StudyPlan(FULL)
    assert FULL.sizes == ((128, 1024), (16_000, 16_000)) and FULL.n_points == 30 and FULL.n_draws == 1024
    assert {key[1:] for key in plan.ablation()} == {(q, r) for q in (0, 1024) for r in (0, 1024)}
    assert {key[1:] for key in plan.grid()} == {(m, n) for m in (8, 16, 32, 64) for n in (8, 16, 32, 64)}
    # What sections have in common is run once: the sweep at 128 pairs is in the main table.
    assert set(plan.sweep()[OURS, 128]) <= set(plan.main(ROLL, 128, 1024)[OURS])
    assert set(plan.ablation()[OURS, 1024, 1024]) == set(plan.main(ROLL, 128, 1024)[OURS])


def test_a_registered_method_is_in_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    from fewpairs.studies import methods

    monkeypatch.setattr(methods, "_methods", dict(methods._methods))
    monkeypatch.setattr("fewpairs.studies.swiss_roll.fits.METHODS", methods._methods)
    register(Method("a new one", METHODS[OURS].make))
    assert "a new one" in StudyPlan(TINY).main(ROLL, 24, 40)
    with pytest.raises(ValueError, match="a new one"):
        register(Method("a new one", METHODS[OURS].make))


def rows(**values: list[float]) -> dict[str, list[dict[str, float]]]:
    return {name.replace("ours", OURS): [{"nll": value} for value in column] for name, column in values.items()}


def test_the_verdict_follows_the_numbers() -> None:
    best = swiss_roll_page._verdict(rows(ours=[0.1, 0.2, 0.3], other=[0.5, 0.6, 0.7]))
    assert best == f"{OURS} is the best or tied for best in NLL."
    worse = swiss_roll_page._verdict(rows(ours=[0.5, 0.6, 0.7], other=[0.1, 0.2, 0.3]))
    assert worse == f"{OURS} is not the best in NLL (best: other)."


def test_a_tie_is_judged_by_differences_on_the_same_draws() -> None:
    # The draws differ more than the methods do; of the two methods behind, one is so on every draw, the other is not.
    table = {"first": [0.0, 1.0, 2.0], "steadily behind": [0.1, 1.1, 2.1], "level": [0.3, 0.9, 2.1]}
    assert tied_for_best(table) == ["first", "level"]
    assert is_behind(table["steadily behind"], table["first"]) and not is_behind(table["level"], table["first"])


def test_what_unpaired_rows_are_worth_is_read_off_the_curves() -> None:
    plan = StudyPlan(FULL)
    outcomes = Outcomes()
    for (method, n_pairs), fits in plan.sweep().items():
        for fit in fits:  # ours needs a quarter of the pairs
            outcomes.of_key[fit.key] = {"nll": -np.log(n_pairs * (4 if method == OURS else 1))}
    text = _worth(plan, outcomes)
    assert "16 pairs with unpaired rows are as good as 64 without" in text
    assert "1,024 pairs with unpaired rows are as good as 4,096 without" in text


def test_a_fit_has_the_first_rows_of_its_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    draw, truth = Draw(ANALYTIC, 30, seed=0), Truth(ANALYTIC, 8, 2, 16)
    for cell in (draw, truth):
        store.write(cell, cell.run(store, "cpu"))
    seen = {}

    class Spy:
        def get_params(self, deep=True):
            return {}

        def set_params(self, **settings):
            return self

        def fit(self, X, y, X_unpaired=None, Y_unpaired=None):
            seen.update(X=X, y=y, X_unpaired=X_unpaired, Y_unpaired=Y_unpaired)

        def score_samples(self, X, y):
            return np.zeros(len(X))

    spy = Method("spy", lambda **options: Spy())
    monkeypatch.setattr("fewpairs.studies.swiss_roll.cells.METHODS", {"spy": spy})
    Fit(draw, truth, "spy", n_pairs=5, n_source=0, n_target=7, has_metrics=False).run(store, "cpu")
    data = store.read(draw)
    assert data is not None and seen["X"].tolist() == data["X"][:5] and seen["y"].tolist() == data["Y"][:5]
    assert seen["X_unpaired"] is None and seen["Y_unpaired"].tolist() == data["Y_unpaired"][:7]


def test_a_method_that_improves_another_is_handed_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixture and networks on top of it, fitted in one go: two fits of a mixture become one, and nothing else changes."""
    draw, truth, store = Draw(ROLL, 24, 0), Truth(ROLL, 8, 1, 4), Store(tmp_path)
    for cell in (draw, truth):
        store.write(cell, cell.run(store, "cpu"))
    default, networks = (Fit(draw, truth, method, 24, 0, 0, 0.01, has_metrics=False) for method in (OURS, NETWORKS))
    assert default.batch == networks.batch is not None
    alone = networks.run(store, "cpu")
    n_fits, fit = 0, MixtureTranslator.fit

    def counted(*arguments, **options):
        nonlocal n_fits
        n_fits += 1
        return fit(*arguments, **options)

    monkeypatch.setattr(MixtureTranslator, "fit", counted)
    of_default, of_networks = default.run_batch([default, networks], store, "cpu")
    assert n_fits == 1 and of_networks["nll"] == alone["nll"] and of_networks["seconds"] > of_default["seconds"]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--fast", "--tiny"], "give one of them"),
        (["--device", "tpu"], "is cpu or cuda"),
        (["--folder", __file__], "is a file"),
        (["--jobs", "0"], "--jobs"),
        (["--only", "nobody"], "No fit has 'nobody' in its name"),
    ],
)
def test_a_wrong_option_is_refused_before_any_work(arguments: list[str], sentence: str) -> None:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["reproduce", "swiss-roll", *arguments])
    assert result.exit_code == 2 and sentence in result.output


def test_the_floor_is_what_the_truth_itself_gets(tmp_path: Path) -> None:
    """Draws compared with themselves are no distance apart; drawn again, a little; draws at another x, a lot."""
    found = Truth(ROLL, 8, 3, 128).run(Store(tmp_path), "cpu")
    draws = torch.tensor(found["draws"])
    same, moved = (compare_draws(draws, others, found["bandwidth"]) for others in (draws, draws.roll(1, dims=1)))
    assert same["conditional_transport"] == pytest.approx(0, abs=1e-12)
    assert 0 < found["floor"]["conditional_transport"] < 0.5 * moved["conditional_transport"]
