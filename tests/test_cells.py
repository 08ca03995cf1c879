"""Cells: finished work is never done again, files that cannot be trusted are noticed, one failure does not stop the rest."""

import contextlib
import json
import math
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fewpairs
from fewpairs import MixtureTranslator
from fewpairs.studies.cells import Cell, Outcomes, Store, StudyPlan
from fewpairs.studies.mnist import fits as mnist
from fewpairs.studies.running import run_cells
from fewpairs.studies.settings import with_settings
from fewpairs.studies.swiss_roll import fits as swiss_roll


@dataclass(frozen=True)
class Square(Cell):
    """Squares a number, and leaves a mark each time it does."""

    number: int
    marks: str

    @property
    def name(self) -> str:
        return f"square-{self.number}"

    def run(self, store: Store, device: str) -> dict:
        with open(self.marks, "a") as file:
            file.write(f"{self.number}\n")
        if self.number < 0:
            raise ValueError("no negative numbers, please")
        return {"square": self.number**2, "rough": self.number / 3}


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    path = tmp_path / "marks"
    path.touch()
    return path


def runs(marks: Path) -> list[int]:
    return sorted(int(line) for line in marks.read_text().split())


WHERE = f"torch {torch.__version__}, cpu"


def run(numbers: list[int], marks: Path, *, n_jobs: int = 1, **options) -> Outcomes:
    cells = [Square(number, str(marks)) for number in numbers]
    return run_cells(cells, Store(marks.parent / "cells"), n_jobs=n_jobs, **options)


def test_packed_cells_are_not_run_again_elsewhere(marks: Path, tmp_path: Path) -> None:
    cells = [Square(number, str(marks)) for number in (1, 2, 3)]
    run([1, 2], marks)
    Store(marks.parent / "cells").pack(cells, tmp_path / "fits.jsonl")
    elsewhere = Store(tmp_path / "elsewhere")
    assert elsewhere.unpack(tmp_path / "fits.jsonl") == 2
    assert elsewhere.unpack(tmp_path / "fits.jsonl") == 0  # what is there stays
    outcomes = run_cells(cells, elsewhere, n_jobs=1)
    assert runs(marks) == [1, 2, 3]
    assert [outcomes[cell]["square"] for cell in cells] == [1, 4, 9]


@pytest.mark.parametrize(
    "room, plan",
    [("mnist", mnist.StudyPlan(mnist.FULL)), ("swiss-roll-networks", swiss_roll.StudyPlan(swiss_roll.FULL))],
)
def test_packed_fits_of_the_documentation_are_still_taken(room: str, plan: StudyPlan, tmp_path: Path) -> None:
    """Their names hold a digest of all that describes them: were that to change, they would have to be run again."""
    packed, store = Path(__file__).parents[1] / "docs" / room / "fits.jsonl", Store(tmp_path)
    n_packed = store.unpack(packed)
    assert n_packed == sum(store.read(fit) is not None for fit in dict.fromkeys(plan.fits())) > 40


def test_a_setting_is_found_wherever_an_estimator_keeps_it() -> None:
    model = with_settings(MixtureTranslator(), {"max_steps": 5, "hidden": (), "n_slopes": 2, "n_folds": 3})
    assert (model.training.max_steps, model.search.hidden, model.architecture.n_slopes, model.n_folds) == (5, (), 2, 3)
    with pytest.raises(ValueError, match="no_such_thing"):
        with_settings(MixtureTranslator(), {"no_such_thing": 5})


def test_a_packed_cell_that_was_changed_is_run_again(marks: Path, tmp_path: Path) -> None:
    run([2], marks)
    packed, cell = tmp_path / "fits.jsonl", Square(2, str(marks))
    Store(marks.parent / "cells").pack([cell], packed)
    packed.write_text(packed.read_text().replace('"square": 4', '"square": 5'))
    elsewhere = Store(tmp_path / "elsewhere")
    elsewhere.unpack(packed)
    assert elsewhere.look(cell) == (None, "damaged")
    assert run_cells([cell], elsewhere, n_jobs=1)[cell]["square"] == 4
    packed.write_text("square\n")
    with pytest.raises(ValueError, match="is no cell of a study"):
        elsewhere.unpack(packed)


def test_finished_cells_are_not_run_again(marks: Path) -> None:
    first = run([1, 2], marks)
    second = run([1, 2, 3, 3], marks)
    assert runs(marks) == [1, 2, 3]  # once each, the repeated cell included
    for outcomes, number in ((first, 2), (second, 2), (second, 3)):
        assert outcomes[Square(number, str(marks))] == {
            "square": number**2,
            "rough": number / 3,
            "made_with": WHERE,
        }  # numbers to the last bit
    assert second.made_with([Square(3, str(marks))]) == f"fewpairs {fewpairs.__version__}; fits made with {WHERE}"


@pytest.mark.parametrize(
    "damage",
    {
        "cut off": lambda content: content[: len(content) // 2],
        "empty": lambda content: b"",
        "one digit": lambda content: content.replace(b'"square": 49', b'"square": 48'),
        "not text": lambda content: b"\xff\xfe" + content,
        "something else": lambda content: b"[1, 2]",
    }.items(),
    ids=lambda item: item[0],
)
def test_a_damaged_file_is_noticed_and_made_anew(damage, marks: Path) -> None:
    run([7], marks)
    cell, store = Square(7, str(marks)), Store(marks.parent / "cells")
    path = store.path(cell)
    assert damage[1](path.read_bytes()) != path.read_bytes()
    path.write_bytes(damage[1](path.read_bytes()))
    assert store.read(cell) is None
    told: list[str] = []
    outcomes = run([7], marks, tell=told.append)
    assert outcomes[cell]["square"] == 49 and runs(marks) == [7, 7]
    assert any("damaged" in line for line in told)


def test_another_version_is_made_anew(marks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run([7], marks)
    monkeypatch.setattr(fewpairs, "__version__", "99")
    told: list[str] = []
    run([7], marks, tell=told.append)
    assert runs(marks) == [7, 7] and any("made by fewpairs" in line for line in told)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_failure_is_told_and_stops_nothing(n_jobs: int, marks: Path) -> None:
    outcomes = run([-1, 2], marks, n_jobs=n_jobs)
    assert Square(2, str(marks)) in outcomes and Square(-1, str(marks)) not in outcomes
    (failure,) = outcomes.failures.values()
    assert failure == "ValueError: no negative numbers, please"
    run([-1, 2], marks)
    assert runs(marks) == [-1, -1, 2]  # what failed is tried again


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_an_interruption_keeps_what_has_finished(n_jobs: int, marks: Path) -> None:
    def interrupt(line: str) -> None:
        if "1/3" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([1, 2, 3], marks, n_jobs=n_jobs, tell=interrupt)
    kept = len(list((marks.parent / "cells").glob("*.json")))
    assert kept >= 1
    outcomes = run([1, 2, 3], marks)
    assert len(outcomes.of_key) == 3
    assert len(runs(marks)) <= 3 + 3 - kept  # at the worst, what was under way is begun a second time


@dataclass(frozen=True)
class Stubborn(Square):
    """Is told to stop, and returns what it has so far, as fits do."""

    by: int

    def run(self, store: Store, device: str) -> dict:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(self.by)
            pytest.fail("nobody heard the signal")
        return {"square": math.nan}


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_half_of_a_fit_is_no_fit(by: signal.Signals, marks: Path) -> None:
    store, before = Store(marks.parent / "cells"), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command does
    try:
        with pytest.raises(KeyboardInterrupt):
            run_cells([Stubborn(3, str(marks), int(by)), Square(4, str(marks))], store, n_jobs=1)
        assert signal.getsignal(by) is signal.default_int_handler  # as it was before
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not list(store.folder.glob("*.json"))
    assert runs(marks) == []  # nothing was begun after it either


@dataclass(frozen=True)
class Shared(Square):
    """Squares that are done in one go, by parity."""

    @property
    def batch(self) -> str:
        return f"parity {self.number % 2}"

    def run_batch(self, cells, store: Store, device: str) -> list[dict]:
        with open(self.marks, "a") as file:
            file.write(f"{len(cells)}\n")
        return [{"square": cell.number**2} for cell in cells]


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_cells_of_a_batch_are_run_in_one_go_and_kept_apart(n_jobs: int, marks: Path) -> None:
    store = Store(marks.parent / "cells")
    cells = [Shared(number, str(marks)) for number in range(5)]
    run_cells(cells[:1], store, n_jobs=1)
    outcomes = run_cells(cells, store, n_jobs=n_jobs)
    assert runs(marks) == [1, 2, 2]  # 0 was there already; then 2 and 4, and 1 and 3
    for cell in cells:
        assert outcomes[cell] == store.read(cell) == {"square": cell.number**2, "made_with": WHERE}


def test_the_file_says_what_was_done(marks: Path) -> None:
    run([5], marks)
    content = json.loads(next((marks.parent / "cells").glob("square-5-*.json")).read_text())["content"]
    assert content["cell"]["number"] == 5 and content["version"] == fewpairs.__version__


def test_different_work_has_different_files() -> None:
    assert Square(1, "a").key != Square(1, "b").key != Square(2, "b").key
    assert Square(1, "a").key == Square(1, "a").key
