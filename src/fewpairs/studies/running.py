"""Running cells: what others need first, several at a time, in processes of their own; a failure or Ctrl-C loses what is under
way, and nothing that has finished."""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

from fewpairs.studies.cells import Cell, Outcome, Outcomes, Store, StudyPlan

__all__ = ["n_cores", "named", "run_cells", "run_study", "store_of"]

ASKED_TO_STOP = signal.default_int_handler  # what Python does on Ctrl-C; the command has SIGTERM do it too
Done = tuple[list[Cell], list[Outcome] | None, str]  # cells, what they found, and if nothing, what went wrong


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
    outcomes = Outcomes()
    if needed:
        outcomes = run_cells(needed, store, n_jobs=n_jobs, device=device, title="Preparing", tell=tell)
    there, todo = _split(cells, store, tell)
    outcomes.of_key |= there
    if not todo:
        return outcomes
    if there:
        tell(f"{title}: {len(there)} of {len(there) + len(todo)} were there already.")
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


def _split(cells: Sequence[Cell], store: Store, tell: Callable[[str], None]) -> tuple[dict[str, Outcome], list[Cell]]:
    """What cells that have run before have found, by their keys; and the others."""
    there, todo = dict[str, Outcome](), list[Cell]()
    for cell in dict.fromkeys(cells):
        outcome, complaint = store.look(cell)
        if outcome is None:
            todo.append(cell)
        else:
            there[cell.key] = outcome
        if complaint:
            tell(f"{store.path(cell).name}: {complaint}; it is made anew.")
    return there, todo


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
