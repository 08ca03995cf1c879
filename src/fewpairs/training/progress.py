"""A progress bar that appears once a task has taken longer than a moment, and only where somebody is looking."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]

MOMENT = 1.0  # seconds


@contextmanager
def progress_bar(*, is_on: bool) -> Iterator[Callable[[str, float], None]]:
    """Yields a function that takes what is going on and the part of the work done so far."""
    if not (is_on and sys.stderr.isatty()):
        yield lambda title, done: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    start = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=1.0, visible=False)

        def show(title: str, done: float) -> None:
            progress.update(task, description=title, completed=done, visible=time.monotonic() - start > MOMENT)

        yield show
