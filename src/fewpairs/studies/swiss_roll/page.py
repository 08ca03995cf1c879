"""The page of the Swiss-roll study: tables, figures and what they say, made of what the cells found.

Nothing here computes a result: every number is read from a cell, and every sentence about which method is best is made from
the numbers. This file has the main tables; what stands around them is in `around`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fewpairs.report.page import Entry, Page
from fewpairs.report.plots import plot_mappings
from fewpairs.studies.cells import Outcomes
from fewpairs.studies.comparisons import is_behind, mean_and_spread, tied_for_best
from fewpairs.studies.methods import METHODS
from fewpairs.studies.pages import HOW_KEPT, begin_page, finish_page
from fewpairs.studies.swiss_roll.around import write_ablation, write_grid, write_networks, write_runaway, write_sweep
from fewpairs.studies.swiss_roll.cells import ANALYTIC, POINTS, ROLL, Fit, Truth
from fewpairs.studies.swiss_roll.fits import OURS, StudyPlan
from fewpairs.studies.swiss_roll.numbers import COLUMNS, Rows, Tables, found_of, numbers_of, values_of
from fewpairs.studies.swiss_roll.paper import CLAIMS, PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_page"]

CONDITIONAL = ("conditional_mmd", "conditional_transport", "nll", "kl")  # what says how well p(y|x) itself was learnt
Mains = Mapping[tuple[str, int, int], Rows]  # by problem, pairs and unpaired rows of each kind


def write_page(folder: Path, plan: StudyPlan, outcomes: Outcomes) -> Path:
    """Writes the page, the figures and all numbers into the folder; returns the page's path."""
    page = begin_page("Gaussian → Swiss roll: p(y|x) from a few pairs", plan, outcomes)
    mains = {
        (problem, *size): rows
        for problem in (ROLL, ANALYTIC)
        for size in plan.scale.sizes
        if (rows := found_of(plan.main(problem, *size), outcomes))
    }
    verdicts = [f"{_title(*key)}: {_verdict(rows)}" for key, rows in mains.items() if OURS in rows]
    page.list(verdicts)
    tables = _write_mains(page, plan, outcomes, mains)
    _write_methods(page, plan, mains)
    for write_section in (write_ablation, write_sweep, write_grid, write_networks):
        tables += write_section(page, plan, outcomes)
    write_runaway(page, plan, outcomes)
    results = {"scale": vars(plan.scale), "verdicts": verdicts, "tables": tables}
    return finish_page(page, folder, outcomes, _how_made(plan, outcomes), **results)


def _write_mains(page: Page, plan: StudyPlan, outcomes: Outcomes, mains: Mains) -> Tables:
    tables: Tables = []
    for (problem, n_pairs, n_unpaired), rows in mains.items():
        page.head(_title(problem, n_pairs, n_unpaired))
        page.tabulate(*_main_table(rows, PAPER.get((problem, n_pairs), {}), _floor(plan.truth(problem), outcomes)))
        tables.append({"problem": problem, "P": n_pairs, "Q": n_unpaired, "R": n_unpaired, "rows": numbers_of(rows)})
        is_shown = plan.main(problem, n_pairs, n_unpaired)[OURS][0].draw in outcomes
        if is_shown and ((n_pairs, n_unpaired) == plan.scale.sizes[0] or problem == ROLL):
            page.show(
                f"mappings-{'roll' if problem == ROLL else 'analytic'}-{n_pairs}",
                _mappings(plan, outcomes, problem, n_pairs, n_unpaired),
                "Squares: three x's; red: y's drawn for each of them; grey: one y for each of many x's. First draw.",
            )
    page.say(HOW_MEASURED.format(scale=plan.scale), is_small=True)
    return tables


def _write_methods(page: Page, plan: StudyPlan, mains: Mains) -> None:
    """What the methods of the main tables are, and whether they are as the paper says."""
    page.head("What each method learns from")
    page.tabulate(*_usage_table([name for name in METHODS if any(name in rows for rows in mains.values())]))
    head, lines = _claims_table(mains.get((ROLL, *plan.scale.sizes[0]), {}))
    if lines:
        page.head("Where the paper says that the others fail")
        page.tabulate(head, lines)


def _title(problem: str, n_pairs: int, n_unpaired: int) -> str:
    sizes = f"{n_pairs:,} pairs, {n_unpaired:,} unpaired x's, {n_unpaired:,} unpaired y's"
    return f"{problem[0].upper()}{problem[1:]}: {sizes}"


def _floor(truth: Truth, outcomes: Outcomes) -> Mapping[str, float]:
    """What the truth itself gets when it is drawn once more: no method can be expected to get less."""
    return outcomes[truth].get("floor", {}) if truth in outcomes else {}


def _main_table(
    rows: Rows, paper: Mapping[str, Sequence[float]], floor: Mapping[str, float]
) -> tuple[list[str], list[list[Entry]]]:
    columns = {name: values for name in COLUMNS if (values := values_of(rows, name))}
    best = {name: tied_for_best(values) for name, values in columns.items()}
    lines = []
    for method in rows:
        line = [Entry(method)]
        for name, values in columns.items():
            of_paper = dict(zip(COLUMNS, paper.get(method, ()), strict=False)).get(name, math.nan)
            note = "" if math.isnan(of_paper) else f"paper {of_paper:.2g}"
            is_best = name != "seconds" and method in best[name]
            line.append(Entry(mean_and_spread(values.get(method, [])), note, is_best))
        lines.append(line)
    if floor:
        found = [mean_and_spread([floor[name]] if name in floor else []) for name in columns]
        lines.append([Entry("the truth, drawn again"), *map(Entry, found)])
    return ["", *(COLUMNS[name] for name in columns)], lines


def _verdict(rows: Rows) -> str:
    """Where our default stands, in a sentence."""
    tied = {name: tied_for_best(values) for name in CONDITIONAL if (values := values_of(rows, name))}
    behind = [name for name in tied if OURS not in tied[name]]
    if not behind:
        return f"{OURS} is the best or tied for best in {', '.join(COLUMNS[name] for name in tied)}."
    words = [f"{COLUMNS[name]} (best: {', '.join(tied[name]) or 'nobody'})" for name in behind]
    rest = [COLUMNS[name] for name in tied if name not in behind]
    return f"{OURS} is not the best in {'; '.join(words)}" + (f"; it is in {', '.join(rest)}." if rest else ".")


def _claims_table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """What the paper says of each, and whether its figure is behind our default's in the column that should show it."""
    lines = []
    for method, (claim, name) in CLAIMS.items():
        values = values_of(rows, name)
        if method in values and OURS in values:
            figures = [mean_and_spread(values[method]), mean_and_spread(values[OURS])]
            lines.append(
                [method, claim, COLUMNS[name], *figures, "yes" if is_behind(values[method], values[OURS]) else "no"]
            )
    return ["", "the paper says that it", "column", "its figure", OURS, "seen here"], lines


def _usage_table(names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Asked of the methods themselves."""
    kinds, lines = {"pairs": "pairs", "source": "unpaired x's", "target": "unpaired y's"}, []
    for name in names:
        model = METHODS[name].make(random_state=0, device="cpu")
        answers = [kind in model.uses for kind in kinds]
        answers += [model.is_stochastic, hasattr(model, "score_samples")]
        lines.append([name, *("✓" if answer else "" for answer in answers)])
    return ["", *kinds.values(), "draws y at random", "has a density"], lines


def _mappings(plan: StudyPlan, outcomes: Outcomes, problem: str, n_pairs: int, n_unpaired: int) -> "Figure":
    fits = {name: fits[0] for name, fits in plan.main(problem, n_pairs, n_unpaired).items() if fits[0] in outcomes}
    first = plan.main(problem, n_pairs, n_unpaired)[OURS][0]
    data, truth = outcomes[first.draw], outcomes[first.truth]
    learnt = {
        name: (np.array(outcomes[fit]["cloud"]), np.array(outcomes[fit]["shown"]))
        for name, fit in fits.items()
        if "cloud" in outcomes[fit]
    }
    return plot_mappings(
        POINTS,
        pairs=(np.array(data["X"][:n_pairs]), np.array(data["Y"][:n_pairs])),
        source=np.array(data["X_unpaired"][:n_unpaired]),
        target=np.array(data["Y_unpaired"][:n_unpaired]),
        clouds={"the truth": (np.array(truth["cloud"])[:512], np.array(truth["shown"])), **learnt},
    )


def _how_made(plan: StudyPlan, outcomes: Outcomes) -> list[str]:
    fits: list[Fit] = [fit for fit in dict.fromkeys(plan.fits()) if fit in outcomes]
    warned = sorted({text for fit in fits for text in outcomes[fit].get("warnings", [])})
    scale = ", ".join(f"{name} = {value}" for name, value in vars(plan.scale).items())
    made = {
        name: method.make(random_state=0, device="cpu", effort=plan.scale.effort) for name, method in METHODS.items()
    }
    return [
        f"{len(fits)} fits. Scale: {scale}. Seeds count from 0; the seed of a cell draws its data and its model.",
        HOW_KEPT,
        *(f"{name}: {model!r}" for name, model in made.items()),
        *(f"A fit warned: {text}" for text in warned),
    ]


HOW_MEASURED = (
    "Mean ± standard deviation over {scale.n_seeds} draws of the data, or as many as have been run; bold: best, or not worse "
    "than the best by two standard errors of the difference over the same draws. MMD² is unbiased (it can be negative), with the "
    "paper's five kernels around the median distance. W₂²/2 is the exact transport cost |x−y|²/2 between equally many draws; the "
    "paper's tables estimate it (debiased Sinkhorn divergence, ε = 0.001) and call it W₂. Unconditional: one y for each of "
    "{scale.n_draws} x's. Conditional: {scale.n_draws} draws at each of {scale.n_points} x's, against true draws from the "
    "same coupling as the pairs. NLL: mean −log p(y|x) of {scale.n_test} fresh pairs, in nats. “paper”: the figure in the "
    "paper's table, not comparable in absolute value, because neither the kernel nor the true conditionals that made it are "
    "the documented ones. Our bounded objective at μ = 1 is the loss of the paper's CGMM (SS), computed in full. "
    "“Stopped early”: a method that keeps its last networks as the paper has it, here with those that held-out pairs liked best; "
    "all other baselines stop that way. Baselines have the paper's settings, or where these did badly, others found by a few "
    "fits to one more draw."
)
