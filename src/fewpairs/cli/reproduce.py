"""`fewpairs reproduce STUDY`: tables, figures and one page of a study of the paper."""

import re
import signal
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["reproduce"]

reproduce = typer.Typer(no_args_is_help=True, help="Run a study of the paper: tables, figures and one page.")

Where = Annotated[
    Path | None, typer.Option(help="Where to write; results/ and the study's name if not given.", file_okay=False)
]
Fast = Annotated[bool, typer.Option("--fast", help="Minutes instead of hours; to look, not to quote.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="A minute; whether everything runs.")]
Device = Annotated[str, typer.Option(help='"cpu" or "cuda".')]
Jobs = Annotated[int | None, typer.Option(help="Fits at the same time; one a core if not given.", min=1)]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Run only fits with this word (or regular expression) in the names of their files; repeatable."),
]
Known = Annotated[
    Path | None,
    typer.Option(help="The fits.jsonl of another run, whose fits are taken as done.", exists=True, dir_okay=False),
]


STUDIES = {
    "swiss-roll": "The paper's main experiment and everything around it.",
    "biased-pairs": "Pairs from a corner of the population: what each way of weighing them brings.",
    "mnist": "Digits with few labels: accuracy by labelled and unlabelled images, and beside rivals.",
    "colored-mnist": "Coloured digits, from a 2 to a 3 in another hue, by networks and Langevin chains.",
}


def _add_study(study: str, what: str) -> None:
    @reproduce.command(study, help=f"{what} Stopped, it goes on where it was.")
    def run(
        folder: Where = None,
        fast: Fast = False,
        tiny: Tiny = False,
        device: Device = "cpu",
        jobs: Jobs = None,
        only: Only = None,
        known: Known = None,
    ) -> None:
        _run(study, folder, fast=fast, tiny=tiny, device=device, jobs=jobs, only=only, known=known)


for _study, _what in STUDIES.items():
    _add_study(_study, _what)


def _run(
    name: str,
    folder: Path | None,
    *,
    fast: bool,
    tiny: bool,
    device: str,
    jobs: int | None,
    only: list[str] | None,
    known: Path | None,
) -> None:
    """Runs a study of `studies` and writes its page."""
    from fewpairs.studies.running import n_cores, named, run_study, store_of

    room = name.replace("-", "_")
    study, page = (import_module(f"fewpairs.studies.{room}.{one}") for one in ("fits", "page"))
    folder = folder or Path("results") / name
    if fast and tiny:
        raise typer.BadParameter("--fast and --tiny are two scales: give one of them, or neither for the full study.")
    _refuse_missing(device)
    tell = partial(Console(stderr=True, highlight=False).print, soft_wrap=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us ends our workers too
    plan = study.StudyPlan(study.TINY if tiny else study.FAST if fast else study.FULL)
    try:
        fits = named(plan.fits(), only or [])
    except (ValueError, re.error) as error:
        raise typer.BadParameter(f"--only: {error}") from error
    if known is not None:
        try:
            tell(f"{store_of(plan, folder).unpack(known)} cells were taken from {known}.")
        except ValueError as error:
            raise typer.BadParameter(f"--known: {error}") from error
    try:
        outcomes = run_study(plan, folder, fits, n_jobs=jobs or n_cores(), device=device, tell=tell)
    except KeyboardInterrupt:
        tell("Stopped. What has finished is kept: the same command goes on from there.")
        raise typer.Exit(130) from None
    tell(f"The page: {page.write_page(folder, plan, outcomes)}")
    if outcomes.failures:
        tell(f"{len(outcomes.failures)} cells failed; the page lists them.")
        raise typer.Exit(1)


def _refuse_missing(device: str) -> None:
    import torch

    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"--device is cpu or cuda, but {device!r} came.")
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("--device cuda was asked for, but torch sees no CUDA device here. Use --device cpu.")
