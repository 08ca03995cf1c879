"""A progress bar that appears once a task has taken longer than a moment, and only where somebody is looking."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]

MOMENT = 1.0  # seconds


@contextmanager
def progress_bar(title: str, *, is_on: bool) -> Iterator[Callable[[int, float], None]]:
    """Yields a function that takes the number of steps and the part of the work done so far."""
    if not (is_on and sys.stderr.isatty()):
        yield lambda step, done: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[step]} steps"),
        TimeRemainingColumn(),
    )
    start = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=1.0, step=0, visible=False)

        def show(step: int, done: float) -> None:
            progress.update(task, completed=done, step=step, visible=time.monotonic() - start > MOMENT)

        yield show
