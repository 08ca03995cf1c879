"""Cells: the pieces of work of a study, each kept in a file of its own, so that nothing finished is ever done again.

A cell is a frozen dataclass whose fields say all there is to say about the work, and a `run` that does it and returns what
JSON can hold. Its file holds the fields, the outcome, the version of fewpairs and a checksum: a file that is cut off, damaged,
or made by another version is noticed, and the cell is run again.
"""

import hashlib
import json
import os
import re
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

import fewpairs
from fewpairs.data.files import write_atomically

__all__ = [
    "Cell",
    "Outcome",
    "Outcomes",
    "Store",
    "StudyPlan",
    "n_cores",
    "named",
    "run_cells",
    "run_study",
    "store_of",
]

Outcome = dict[str, Any]
ASKED_TO_STOP = signal.default_int_handler  # what Python does on Ctrl-C; the command has SIGTERM do it too
Done = tuple[list["Cell"], list[Outcome] | None, str]  # cells, what they found, and if nothing, what went wrong


@dataclass(frozen=True)
class Cell(ABC):
    """One piece of work. The fields of a subclass are plain values, or cells whose outcome it reads."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called, in words that can be part of a file's name."""

    @property
    def effort(self) -> float:
        """A guess at the seconds it takes: for the time left, and so that long cells begin first."""
        return 1.0

    @property
    def needs(self) -> list["Cell"]:
        """The cells that must have run before: those among its fields."""
        return [value for value in vars(self).values() if isinstance(value, Cell)]

    @abstractmethod
    def run(self, store: "Store", device: str) -> Outcome:
        """Does the work; may read from the store what the cells it needs have left there."""

    @property
    def batch(self) -> str | None:
        """Cells with the same name of a batch are done in one go by `run_batch`; None is on its own."""
        return None

    def run_batch(self, cells: Sequence["Cell"], store: "Store", device: str) -> list[Outcome]:
        """Does the work of all cells of a batch, this one among them."""
        return [cell.run(store, device) for cell in cells]

    @property
    def key(self) -> str:
        """The name of its file: readable, and different for different work."""
        digest = hashlib.sha256(_json(asdict(self)).encode()).hexdigest()[:10]
        return f"{self.name}-{digest}"


@dataclass(frozen=True)
class Store:
    """The folder of the files."""

    folder: Path

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.key}.json"

    def write(self, cell: Cell, outcome: Outcome) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        content = _json({"cell": asdict(cell), "version": fewpairs.__version__, "outcome": outcome})
        checksum = hashlib.sha256(content.encode()).hexdigest()
        write_atomically(self.path(cell), f'{{"sha256": "{checksum}", "content": {content}}}\n'.encode())

    def read(self, cell: Cell) -> Outcome | None:
        """What the cell found, or None if it has not run yet or its file cannot be trusted."""
        outcome, _ = self.look(cell)
        return outcome

    def need(self, cell: Cell) -> Outcome:
        """What the cell found; an error if it has not run."""
        outcome = self.read(cell)
        if outcome is None:
            raise RuntimeError(f"{cell.name} is not there, and another cell needs it. Run it first.")
        return outcome

    def look(self, cell: Cell) -> tuple[Outcome | None, str]:
        """What the cell found, and if nothing can be used, what is wrong with its file ("" where there is none)."""
        try:
            text = self.path(cell).read_text()
        except FileNotFoundError:
            return None, ""
        except UnicodeDecodeError:
            return None, "damaged"
        try:
            parsed = json.loads(text)
            checksum, content = parsed["sha256"], parsed["content"]
            version, outcome = content["version"], content["outcome"]
        except (ValueError, KeyError, TypeError):
            return None, "damaged"
        if hashlib.sha256(_json(content).encode()).hexdigest() != checksum:
            return None, "damaged"
        if version != fewpairs.__version__:
            return None, f"made by fewpairs {version}"
        return outcome, ""

    def pack(self, cells: Sequence[Cell], path: Path) -> None:
        """Writes the files of some cells, those that are there, into one: a line each, with the name of its file."""
        lines = [
            f'{{"name": {json.dumps(self.path(cell).name)}, "file": {self.path(cell).read_text().strip()}}}\n'
            for cell in dict.fromkeys(cells)
            if self.read(cell) is not None
        ]
        write_atomically(path, "".join(lines).encode())

    def unpack(self, path: Path) -> int:
        """Takes over the cells that another run has packed, unless they are here already. Says how many it took. Whether they can
        be trusted, and belong to this study, is found out when they are looked for."""
        n_taken = 0
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            try:
                packed = json.loads(line)
                name, content = Path(packed["name"]).name, _json(packed["file"])
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"Line {number} of {path} is no cell of a study.") from None
            if not (self.folder / name).exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                write_atomically(self.folder / name, f"{content}\n".encode())
                n_taken += 1
        return n_taken


class Scale(Protocol):
    """How large a study is."""

    @property
    def name(self) -> str: ...


class StudyPlan(Protocol):
    """All fits of a study of one scale."""

    @property
    def scale(self) -> Scale: ...

    def fits(self) -> Sequence[Cell]: ...


@dataclass
class Outcomes:
    """What the cells of a study found, and why some of them found nothing."""

    of_key: dict[str, Outcome] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, cell: Cell) -> Outcome:
        return self.of_key[cell.key]

    def __contains__(self, cell: Cell) -> bool:
        return cell.key in self.of_key

    def made_with(self, cells: Sequence[Cell]) -> str:
        """The version of fewpairs, and where the cells were run, which need not be where their page is made."""
        found = {self[cell].get("made_with", "what is not recorded") for cell in cells if cell in self}
        return f"fewpairs {fewpairs.__version__}; fits made with {' and '.join(sorted(found)) or 'nothing'}"

    def caveats(self, plan: "StudyPlan") -> list[str]:
        """What a reader of the study's page must know before the first number."""
        texts, fits = [], dict.fromkeys(plan.fits())
        if plan.scale.name != "full":
            texts.append(f"A {plan.scale.name} run, to see that everything works. Its figures are not the study's.")
        if n_missing := sum(fit not in self for fit in fits):
            texts.append(f"{n_missing} of {len(fits)} fits have not been run, or failed. What needs them is left out.")
        return texts


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    *,
    n_jobs: int,
    device: str = "cpu",
    title: str = "Fitting",
    tell: Callable[[str], None] = lambda text: None,
) -> Outcomes:
    """Runs the cells that have not been run yet, several at a time, and returns what all of them found, needed ones included.

    Cells that others need come first. A cell that fails does not stop the others. Ctrl-C stops all; what has finished is kept.
    """
    needed = list(dict.fromkeys(other for cell in cells for other in cell.needs))
    outcomes, todo = Outcomes(), []
    if needed:
        outcomes = run_cells(needed, store, n_jobs=n_jobs, device=device, title="Preparing", tell=tell)
    n_before = len(outcomes.of_key)
    for cell in dict.fromkeys(cells):
        outcome, complaint = store.look(cell)
        if outcome is None:
            todo.append(cell)
        else:
            outcomes.of_key[cell.key] = outcome
        if complaint:
            tell(f"{store.path(cell).name}: {complaint}; it is made anew.")
    if not todo:
        return outcomes
    n_there = len(outcomes.of_key) - n_before
    if n_there:
        tell(f"{title}: {n_there} of {n_there + len(todo)} were there already.")
    start, batches = time.monotonic(), _batches(todo)
    with _bar(title, todo, tell) as advance:
        # One at a time in this process, with all its threads; several in processes of their own, with one thread each.
        done = _run_here(batches, store, device) if n_jobs == 1 else _run_in_pool(batches, store, n_jobs, device)
        for some, found, failure in done:
            for place, cell in enumerate(some):
                if found is None:
                    outcomes.failures[cell.key] = failure
                    tell(f"{cell.name} failed: {failure}")
                else:
                    outcomes.of_key[cell.key] = found[place]
                advance(cell)
    tell(f"{title}: {len(todo)} cells in {time.monotonic() - start:.0f} s.")
    return outcomes


def named(fits: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
    """The fits in whose name one of the regular expressions is found; all of them if there are none."""
    found = [fit for fit in fits if not patterns or any(re.search(pattern, fit.name) for pattern in patterns)]
    if not found:
        examples = f"{fits[0].name!r} and {fits[-1].name!r}"
        raise ValueError(f"No fit has {' or '.join(map(repr, patterns))} in its name. They are called like {examples}.")
    return found


def store_of(plan: StudyPlan, folder: Path) -> Store:
    """Where a study keeps its cells."""
    return Store(folder / "cells" / plan.scale.name)


def run_study(plan: StudyPlan, folder: Path, fits: Sequence[Cell] | None = None, **options: Any) -> Outcomes:
    """Runs the fits of a study's plan that have no file in the folder yet, all or some of them, and returns what is there of any;
    options are those of `run_cells`. All fits are packed as `fits.jsonl` in the end, for other folders to go on from."""
    store = store_of(plan, folder)
    outcomes = run_cells(plan.fits() if fits is None else fits, store, **options)
    store.pack(plan.fits(), folder / "fits.jsonl")
    left_out = dict.fromkeys(need for fit in plan.fits() for need in (fit, *fit.needs) if need not in outcomes)
    found = {cell.key: outcome for cell in left_out if (outcome := store.read(cell)) is not None}
    outcomes.of_key |= found
    return outcomes


def _batches(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that are done in one go; those that take longest first."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.batch or cell.key, []).append(cell)
    return sorted(groups.values(), key=lambda group: -sum(cell.effort for cell in group))


def _run_here(batches: Sequence[list[Cell]], store: Store, device: str) -> Iterator[Done]:
    for cells in batches:
        try:
            with _interrupts() as interrupts:
                found = _run_batch(cells, store, device, interrupts)
        except Exception as error:  # told by the caller; the other cells have nothing to do with it
            yield cells, None, f"{type(error).__name__}: {error}"
        else:
            yield cells, found, ""


def _run_in_pool(batches: Sequence[list[Cell]], store: Store, n_jobs: int, device: str) -> Iterator[Done]:
    # Spawned, not forked: a forked process must not touch CUDA, and torch's threads do not survive a fork.
    pool = ProcessPoolExecutor(n_jobs, get_context("spawn"), initializer=_begin_worker)
    try:
        running = {pool.submit(_run_batch, cells, store, device): cells for cells in batches}
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                cells, error = running.pop(future), future.exception()
                if error is None:
                    yield cells, future.result(), ""
                else:
                    yield cells, None, f"{type(error).__name__}: {error}"
    except BaseException:
        for process in list((pool._processes or {}).values()):  # they would finish their cells first, for minutes
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    torch.set_num_threads(1)
    threadpool_limits(1)  # BLAS has threads of its own, and with sixteen workers far too many


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Yields the signals that have asked this process to stop. A fit that hears Ctrl-C may return with its best model so
    far; a study must not take that for the fit."""
    came: list[int] = []

    def note(number: int, frame: Any) -> None:
        came.append(number)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()  # no other thread may have a say in signals
    asked = [one for one in (signal.SIGINT, signal.SIGTERM) if is_main and signal.getsignal(one) is ASKED_TO_STOP]
    for one in asked:
        signal.signal(one, note)
    try:
        yield came
    finally:
        for one in asked:
            signal.signal(one, ASKED_TO_STOP)


def _run_batch(cells: list[Cell], store: Store, device: str, interrupts: Sequence[int] = ()) -> list[Outcome]:
    where = f"torch {torch.__version__}, {torch.cuda.get_device_name() if device == 'cuda' else device}"
    outcomes = [{**outcome, "made_with": where} for outcome in cells[0].run_batch(cells, store, device)]
    if interrupts:
        raise KeyboardInterrupt
    for cell, outcome in zip(cells, outcomes, strict=True):
        store.write(cell, outcome)
    return outcomes


@contextmanager
def _bar(title: str, cells: Sequence[Cell], tell: Callable[[str], None]) -> Iterator[Callable[[Cell], None]]:
    """Yields what to call with each finished cell: a progress bar with the time left where somebody is looking, a line for each
    cell where nobody is."""
    numbers = count(1)
    if not sys.stderr.isatty():
        yield lambda cell: tell(f"{title}: {next(numbers)}/{len(cells)} {cell.name}")
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=sum(cell.effort for cell in cells))

        def advance(cell: Cell) -> None:
            progress.update(task, advance=cell.effort, description=f"{title} {next(numbers)}/{len(cells)}")

        yield advance


def n_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _json(content: Any) -> str:
    return json.dumps(content, sort_keys=True, allow_nan=True)
