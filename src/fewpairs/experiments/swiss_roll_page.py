"""The page of the Swiss-roll study: tables, figures and what they say, made of what the cells found.

Nothing here computes a result: every number is read from a cell, and every sentence about which method is best is made from
the numbers.
"""

import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fewpairs
from fewpairs.experiments.cells import Outcomes
from fewpairs.experiments.swiss_roll import OURS, Plan
from fewpairs.experiments.swiss_roll_cells import ANALYTIC, POINTS, ROLL, Fit
from fewpairs.files import write_atomically
from fewpairs.methods import METHODS
from fewpairs.plots import plot_curves, plot_heatmaps, plot_mappings
from fewpairs.report import Entry, Picture, as_page, as_png, as_table

__all__ = ["write_page"]

COLUMNS = {
    "mmd": "MMD²",
    "transport": "W₂²/2",
    "conditional_mmd": "conditional MMD²",
    "conditional_transport": "conditional W₂²/2",
    "nll": "NLL",
    "kl": "KL to the truth",
    "seconds": "seconds",
}
CONDITIONAL = ("conditional_mmd", "conditional_transport", "nll", "kl")  # what says how well p(y|x) itself was learnt

# The paper's own figures (its two tables of the Swiss roll): MMD², “W₂”, conditional MMD², conditional “W₂”.
PAPER: dict[tuple[str, int], dict[str, tuple[float, float, float, float]]] = {
    (ROLL, 128): {
        "Regression": (8.25e-5, 3.77e-2, 37.61e-3, 89.76e-2),
        "CGAN": (666.68e-5, 21.78e-2, 41.72e-3, 101.09e-2),
        "UGAN + ℓ²": (46.60e-5, 1.93e-2, 40.32e-3, 94.35e-2),
        "CondNF": (39.76e-5, 0.02e-2, 26.56e-3, 142.93e-2),
        "CondNF (SS)": (70.74e-5, 3.84e-2, 26.94e-3, 71.09e-2),
        "OTCS": (102.52e-5, 19.61e-2, 39.38e-3, 91.73e-2),
        "FSBM": (15.88e-5, 0.93e-2, 33.75e-3, 126.06e-2),
        "EBiEOT-GMM, the paper's text": (4.19e-5, 0.43e-2, 28.35e-3, 100.59e-2),
    },
    (ROLL, 16_000): {
        "Regression": (59.90e-5, 33.40e-2, 18.35e-3, 48.42e-2),
        "CGAN": (15.65e-5, 0.98e-2, 22.48e-3, 96.24e-2),
        "UGAN + ℓ²": (23.89e-5, 2.70e-2, 9.55e-3, 30.20e-2),
        "CondNF": (30.83e-5, 1.88e-2, 20.59e-3, 84.79e-2),
        "CondNF (SS)": (57.42e-5, 0.94e-2, 14.77e-3, 69.69e-2),
        "OTCS": (6.05e-5, 0.69e-2, 9.13e-3, 54.11e-2),
        "FSBM": (4.65e-5, 0.52e-2, 30.88e-3, 126.17e-2),
        "EBiEOT-GMM, the paper's text": (6.18e-5, 1.00e-2, 35.72e-3, 109.16e-2),
    },
    # The unconditional columns of the baselines are left out here: the paper repeats those of another table.
    (ANALYTIC, 128): {
        "Regression": (math.nan, math.nan, 88.91e-3, 24.94e-1),
        "CGAN": (math.nan, math.nan, 91.31e-3, 25.55e-1),
        "UGAN + ℓ²": (math.nan, math.nan, 91.96e-3, 25.76e-1),
        "CondNF": (math.nan, math.nan, 85.34e-3, 23.99e-1),
        "CondNF (SS)": (math.nan, math.nan, 84.94e-3, 23.87e-1),
        "OTCS": (math.nan, math.nan, 41.70e-3, 19.57e-1),
        "FSBM": (math.nan, math.nan, 43.63e-3, 17.68e-1),
        "EBiEOT-GMM, the paper's text": (0.03e-3, 0.36e-2, 68.84e-3, 22.08e-1),
    },
}


def write_page(folder: Path, plan: Plan, outcomes: Outcomes) -> Path:
    """Writes `report.html`, `results.json` and the figures into the folder; returns the page's path."""
    scale = plan.scale
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    parts: list[str | Picture] = []
    tables: list[dict[str, Any]] = []
    verdicts: list[str] = []

    def show(name: str, figure: Any, caption: str) -> None:
        picture = Picture(as_png(figure), caption)
        write_atomically(folder / "figures" / f"{name}.png", picture.png)
        parts.append(picture)

    if scale.name != "full":
        parts.append(
            f"<p><strong>A {scale.name} run, to see that everything works: {scale.effort:.0%} of the training, fewer seeds, "
            "points and draws. Its figures are not the study's.</strong></p>"
        )
    place_of_verdict = len(parts)
    for problem in (ROLL, ANALYTIC):
        for n_pairs, n_unpaired in scale.sizes:
            rows = {
                name: [outcomes[fit] for fit in fits if fit in outcomes]
                for name, fits in plan.main(problem, n_pairs, n_unpaired).items()
            }
            sizes = f"{n_pairs:,} pairs, {n_unpaired:,} unpaired x's, {n_unpaired:,} unpaired y's"
            title = f"{problem[0].upper()}{problem[1:]}: {sizes}"
            parts.append(f"<h2>{html.escape(title)}</h2>")
            parts.append(_main_table(rows, PAPER.get((problem, n_pairs), {})))
            verdict = _verdict(rows)
            parts.append(f"<p>{html.escape(verdict)}</p>")
            verdicts.append(f"{title}: {verdict}")
            tables.append({"problem": problem, "P": n_pairs, "Q": n_unpaired, "R": n_unpaired, "rows": _numbers(rows)})
            if (n_pairs, n_unpaired) == scale.sizes[0] or problem == ROLL:
                show(
                    f"mappings-{'roll' if problem == ROLL else 'analytic'}-{n_pairs}",
                    _mappings(plan, outcomes, problem, n_pairs, n_unpaired),
                    "Squares: three x's; red: y's drawn for each of them; grey: one y for each of many x's. First draw.",
                )
    parts.append(HOW_MEASURED.format(scale=scale))
    parts.append("<h2>What each method learns from</h2>")
    parts.append(_usage_table())

    parts.append("<h2>With and without unpaired rows</h2>")
    parts.append(_ablation_table(plan, outcomes, tables))
    parts.append("<h2>How many pairs are the unpaired rows worth?</h2>")
    show("pairs", _sweep(plan, outcomes, tables), "Mean over draws of the data; bands from least to most.")
    parts.append(f"<p>{html.escape(_worth(plan, outcomes))}</p>")
    parts.append("<h2>Numbers of slopes M and of atoms N</h2>")
    for method, figure in _heatmaps(plan, outcomes, tables).items():
        parts.append(f"<h3>{html.escape(method)}</h3>")
        show("grid-ours" if method == OURS else "grid-paper", figure, "Mean over draws of the data; darker is worse.")
    parts.append("<h2>Why the paper's loss runs away</h2>")
    show("runaway", _runaway(plan, outcomes), "Against training steps; the held-out pairs of five folds.")
    parts.append(WHY_RUNAWAY)
    if outcomes.failures:
        failures = "".join(
            f"<li>{html.escape(key)}: {html.escape(text)}</li>" for key, text in outcomes.failures.items()
        )
        parts.append(f"<h2>What failed</h2><ul>{failures}</ul>")
    parts.append(_how_made(plan, outcomes))
    parts.insert(place_of_verdict, "<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in verdicts) + "</ul>")

    made = f"fewpairs {fewpairs.__version__}, torch {torch.__version__}"
    summary = {
        "made_by": made,
        "scale": vars(scale),
        "verdicts": verdicts,
        "tables": tables,
        "failed": outcomes.failures,
    }
    write_atomically(folder / "results.json", json.dumps(summary, indent=1, allow_nan=True).encode())
    page = as_page("Gaussian → Swiss roll: p(y|x) from a few pairs", parts, made)
    write_atomically(folder / "report.html", page.encode())
    return folder / "report.html"


def _main_table(rows: Mapping[str, list[dict[str, Any]]], paper: Mapping[str, Sequence[float]]) -> str:
    columns = [name for name in COLUMNS if any(name in one for outcomes in rows.values() for one in outcomes)]
    best = {column: _tied_for_best(rows, column) for column in columns}
    lines = []
    for method, outcomes in rows.items():
        line = [Entry(method)]
        for column in columns:
            values = [outcome[column] for outcome in outcomes if column in outcome]
            of_paper = dict(zip(COLUMNS, paper.get(method, ()), strict=False)).get(column, math.nan)
            note = "" if math.isnan(of_paper) else f"paper {of_paper:.2g}"
            line.append(Entry(_mean_and_spread(values), note, column != "seconds" and method in best[column]))
        lines.append(line)
    return as_table(["", *(COLUMNS[column] for column in columns)], lines)


def _mean_and_spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = float(np.mean(values))
    digits = 0 if abs(mean) >= 100 else 1 if abs(mean) >= 10 else 2 if abs(mean) >= 1 else 3 if abs(mean) >= 0.1 else 4
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{spread}"


def _tied_for_best(rows: Mapping[str, list[dict[str, Any]]], column: str) -> list[str]:
    """The methods that are best, or not worse than the best by two standard errors of the difference over the same seeds."""
    values = {
        method: np.array([outcome[column] for outcome in outcomes])
        for method, outcomes in rows.items()
        if outcomes and all(column in outcome for outcome in outcomes)
    }
    if not values:
        return []
    top = min(values, key=lambda method: values[method].mean())
    tied = [top]
    for method, mine in values.items():
        if method != top and len(mine) == len(values[top]) > 1:
            loss = mine - values[top]
            if loss.mean() <= 2 * loss.std(ddof=1) / math.sqrt(len(loss)):
                tied.append(method)
    return tied


def _verdict(rows: Mapping[str, list[dict[str, Any]]]) -> str:
    """Where our default stands, in a sentence."""
    columns = [name for name in CONDITIONAL if any(name in one for outcomes in rows.values() for one in outcomes)]
    tied = {column: _tied_for_best(rows, column) for column in columns}
    behind = [column for column in columns if OURS not in tied[column]]
    if not behind:
        return f"{OURS} is the best or tied for best in {', '.join(COLUMNS[column] for column in columns)}."
    words = [f"{COLUMNS[column]} (best: {', '.join(tied[column]) or 'nobody'})" for column in behind]
    rest = [COLUMNS[column] for column in columns if column not in behind]
    return f"{OURS} is not the best in {'; '.join(words)}" + (f"; it is in {', '.join(rest)}." if rest else ".")


def _numbers(rows: Mapping[str, list[dict[str, Any]]]) -> dict[str, dict[str, list[float]]]:
    return {
        method: {
            column: [outcome[column] for outcome in outcomes if column in outcome]
            for column in COLUMNS
            if any(column in outcome for outcome in outcomes)
        }
        for method, outcomes in rows.items()
    }


def _usage_table() -> str:
    """Asked of the methods themselves."""
    kinds, lines = {"pairs": "pairs", "source": "unpaired x's", "target": "unpaired y's"}, []
    for name, method in METHODS.items():
        model = method.make(random_state=0, device="cpu")
        answers = [kind in model.uses for kind in kinds]
        answers += [model.is_stochastic, hasattr(model, "score_samples")]
        lines.append([name, *("✓" if answer else "" for answer in answers)])
    return as_table(["", *kinds.values(), "draws y at random", "has a density"], lines)


def _mappings(plan: Plan, outcomes: Outcomes, problem: str, n_pairs: int, n_unpaired: int) -> Any:
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


def _ablation_table(plan: Plan, outcomes: Outcomes, tables: list[dict[str, Any]]) -> str:
    columns = ("conditional_mmd", "conditional_transport", "nll")
    lines = []
    for (method, n_source, n_target), fits in plan.ablation().items():
        found = [outcomes[fit] for fit in fits if fit in outcomes]
        cells = [_mean_and_spread([outcome[column] for outcome in found]) for column in columns]
        lines.append([method, str(n_source), str(n_target), *cells])
        tables.append({"ablation": method, "Q": n_source, "R": n_target, "rows": _numbers({method: found})})
    return as_table(["", "unpaired x's", "unpaired y's", *(COLUMNS[column] for column in columns)], lines)


def _sweep(plan: Plan, outcomes: Outcomes, tables: list[dict[str, Any]]) -> Any:
    curves: dict[str, list[tuple[float, list[float]]]] = {}
    for (method, n_pairs), fits in plan.sweep().items():
        values = [outcomes[fit]["nll"] for fit in fits if fit in outcomes]
        if values:
            curves.setdefault(method, []).append((n_pairs, values))
            tables.append({"sweep": method, "P": n_pairs, "nll": values})
    return plot_curves({"held-out NLL (nats)": curves}, "pairs", is_log=True, top=4.0)


def _worth(plan: Plan, outcomes: Outcomes) -> str:
    """For each number of pairs, with how many pairs the supervised model would be as good; read off the curve."""

    def means(method: str) -> tuple[np.ndarray, np.ndarray]:
        points = [
            (n_pairs, float(np.mean([outcomes[fit]["nll"] for fit in fits])))
            for (name, n_pairs), fits in plan.sweep().items()
            if name == method and all(fit in outcomes for fit in fits)
        ]
        return np.array([point[0] for point in points], dtype=float), np.array([point[1] for point in points])

    pairs, with_unpaired = means(OURS)
    pairs_alone, alone = means("supervised")
    if len(pairs) == 0 or len(pairs_alone) < 2:
        return "Too few numbers of pairs were tried to tell."
    sentences = []
    falling = np.minimum.accumulate(alone)  # the curve of the supervised model, without its wiggles
    for n_pairs, nll in zip(pairs, with_unpaired, strict=True):
        if nll <= falling[-1] or n_pairs == pairs[-1]:
            continue
        equal = float(np.exp(np.interp(-nll, -falling, np.log(pairs_alone))))
        sentences.append(f"{n_pairs:,.0f} pairs with unpaired rows are as good as {equal:,.0f} without")
    return "Read off the two curves: " + "; ".join(sentences) + "." if sentences else "The curves do not meet."


def _heatmaps(plan: Plan, outcomes: Outcomes, tables: list[dict[str, Any]]) -> dict[str, Any]:
    columns, grid = ("mmd", "transport", "conditional_mmd", "conditional_transport"), plan.scale.grid
    maps: dict[str, dict[str, np.ndarray]] = {}
    for (method, n_slopes, n_atoms), fits in plan.grid().items():
        found = [outcomes[fit] for fit in fits if fit in outcomes]
        of_method = maps.setdefault(method, {column: np.full((len(grid), len(grid)), math.nan) for column in columns})
        for column in columns:
            if found:
                of_method[column][grid.index(n_slopes), grid.index(n_atoms)] = np.mean([one[column] for one in found])
        tables.append({"grid": method, "M": n_slopes, "N": n_atoms, "rows": _numbers({method: found})})
    return {
        method: plot_heatmaps({COLUMNS[column]: table for column, table in of_method.items()}, grid, grid, "M", "N")
        for method, of_method in maps.items()
    }


def _runaway(plan: Plan, outcomes: Outcomes) -> Any:
    names = {"marginal": "bounded (marginal)", "supervised": "pairs alone", "inverse_eot": "the paper's loss"}
    histories = {
        names[objective]: outcomes[fit]["history"] for objective, fit in plan.runaway().items() if fit in outcomes
    }
    panels = {
        "training objective": {
            name: [(step, [value]) for step, value in zip(history["step"][1:], history["objective"][1:], strict=True)]
            for name, history in histories.items()
        },
        "held-out NLL (nats)": {
            name: [(step, [value]) for step, value in zip(history["step"], history["held_out_nll"], strict=True)]
            for name, history in histories.items()
        },
    }
    return plot_curves(panels, "step", top=6.0, bottom=-10.0)


def _how_made(plan: Plan, outcomes: Outcomes) -> str:
    fits: list[Fit] = [fit for fit in dict.fromkeys(plan.fits()) if fit in outcomes]
    warned = sorted({text for fit in fits for text in outcomes[fit].get("warnings", [])})
    scale = ", ".join(f"{name} = {value}" for name, value in vars(plan.scale).items())
    made = {
        name: method.make(random_state=0, device="cpu", effort=plan.scale.effort) for name, method in METHODS.items()
    }
    methods = "".join(
        f"<li>{html.escape(name)}: <code>{html.escape(repr(model))}</code></li>" for name, model in made.items()
    )
    warned_text = "".join(f"<li>{html.escape(text)}</li>" for text in warned)
    return (
        "<details><summary>How each number was made</summary>"
        f"<p>{len(fits)} fits. Scale: {html.escape(scale)}. Seeds count from 0; the seed of a cell draws its data and its model. "
        "The file of each cell under <code>cells/</code> holds its settings, its seed, the version and all it found.</p>"
        f"<ul>{methods}</ul>" + (f"<p>Warnings of fits:</p><ul>{warned_text}</ul>" if warned else "") + "</details>"
    )


HOW_MEASURED = (
    "<p><small>Mean ± standard deviation over {scale.n_seeds} draws of the data; bold: best, or not worse than the best by "
    "two standard errors of the difference over the same draws. MMD² is unbiased (it can be negative), with the paper's "
    "five kernels around the median distance. W₂²/2 is the exact transport cost |x−y|²/2 between equally many draws; the "
    "paper's tables estimate it (debiased Sinkhorn divergence, ε = 0.001) and call it W₂. Unconditional: one y for each of "
    "{scale.n_draws} x's. Conditional: {scale.n_draws} draws at each of {scale.n_points} x's, against true draws from the "
    "same coupling as the pairs. NLL: mean −log p(y|x) of {scale.n_test} fresh pairs, in nats. “paper”: the figure in the "
    "paper's table, not comparable in absolute value, because neither the kernel nor the true conditionals that made it are "
    "the documented ones. Our bounded objective at μ = 1 is the loss of the paper's CGMM (SS), computed in full.</small></p>"
)
WHY_RUNAWAY = (
    "<p>One network (two hidden layers of 16) without smoothing, the same start, step size and batches for all three. The "
    "paper's loss has no lower bound on finite samples: cost and potential can be tilted against each other without "
    "changing p(y|x), and the cost can fall at the few paired x's, where the average over the source hardly looks. So it "
    "falls and falls while the held-out likelihood gets worse. The bounded form depends on p(y|x) alone. Values beyond the "
    "frame are cut.</p>"
)
