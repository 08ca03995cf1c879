"""The `fewpairs` command. No logic of its own: it calls public names and prints what they return."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import fewpairs

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"fewpairs {fewpairs.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Learn p(y|x) from a few pairs and many unpaired x's and y's."""


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where to write the page and the picture.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="The draw of the data.")] = 0,
    max_steps: Annotated[int | None, typer.Option(help="Training steps; fewer is quicker and worse.")] = None,
) -> None:
    """Fit the Swiss roll three ways, print a table, and write a page that shows the learnt p(y|x)."""
    from fewpairs.demo import HEADER, run_demo

    console = Console()
    rows = run_demo(folder, seed=seed, max_steps=max_steps, tell=lambda text: console.print(f"[dim]{text} …[/dim]"))
    table = Table(*HEADER)
    for row in rows:
        table.add_row(*row.cells())
    console.print(table)
    console.print(f"The learnt conditionals beside the true ones: {folder / 'report.html'}")
