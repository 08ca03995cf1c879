"""The command itself: its name, its version, and the commands it has."""

from typing import Annotated

import typer

import fewpairs
from fewpairs.cli.demo import demo
from fewpairs.cli.reproduce import reproduce

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(demo)
app.add_typer(reproduce, name="reproduce")


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
