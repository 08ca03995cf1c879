"""`fewpairs demo`: the Swiss roll three ways, as a table and a page."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["demo"]


def demo(
    folder: Annotated[Path, typer.Option(help="Where to write the page and the picture.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="The draw of the data.")] = 0,
    max_steps: Annotated[int | None, typer.Option(help="Training steps; fewer is quicker and worse.", min=1)] = None,
) -> None:
    """Fit the Swiss roll three ways, print a table, and write a page that shows the learnt p(y|x)."""
    from fewpairs.studies.demo import HEADER, run_demo

    console = Console()
    rows = run_demo(folder, seed=seed, max_steps=max_steps, tell=lambda text: console.print(f"[dim]{text} …[/dim]"))
    table = Table(*HEADER)
    for row in rows:
        table.add_row(*row.cells())
    console.print(table)
    console.print(f"The learnt conditionals beside the true ones: {folder / 'report.html'}")
