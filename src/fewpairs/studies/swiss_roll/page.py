"""The page of the Swiss-roll study: tables, figures and what they say, made of what the cells found.

Nothing here computes a result: every number is read from a cell, and every sentence about which method is best is made from
the numbers.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fewpairs.report.page import Entry, Page
from fewpairs.report.plots import plot_curves, plot_heatmaps, plot_mappings
from fewpairs.studies.cells import Outcomes
from fewpairs.studies.comparisons import is_behind, mean_and_spread, tied_for_best
from fewpairs.studies.methods import METHODS
from fewpairs.studies.swiss_roll.cells import ANALYTIC, POINTS, ROLL, Fit, Truth
from fewpairs.studies.swiss_roll.fits import OURS, Plan

__all__ = ["write_page"]

COLUMNS = {
    "mmd": "MMD²",
    "transport": "W₂²/2",
    "conditional_mmd": "conditional MMD²",
    "conditional_transport": "conditional W₂²/2",
    "nll": "NLL",
    "kl": "KL to the truth",
    "energy_score": "energy score",
    "seconds": "seconds",
}
CONDITIONAL = ("conditional_mmd", "conditional_transport", "nll", "kl")  # what says how well p(y|x) itself was learnt

# What the paper says of the others in its discussion of this task, and the column in which it should be seen.
CLAIMS: dict[str, tuple[str, str]] = {
    "Regression": ("predicts the conditional mean and nothing else", "conditional_mmd"),
    "CGAN": ("does not learn the target", "mmd"),
    "UGAN + ℓ²": ("does not learn p(y|x), which it averages", "conditional_mmd"),
    "CondNF": ("overfits the few pairs", "nll"),
    "CondNF (SS)": ("needs many more pairs", "conditional_mmd"),
    "CGMM (SS)": ("overfits quickly", "nll"),
    "GNOT": ("is a map, and p(y|x) is none", "conditional_mmd"),
    "DCPEME": ("is a map, and p(y|x) is none", "conditional_mmd"),
    "parOT": ("is a map, and p(y|x) is none", "conditional_mmd"),
    "OTCS": ("does not learn p(y|x)", "conditional_mmd"),
    "FSBM": ("has a noisy target", "mmd"),
}

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


Key = TypeVar("Key")
Found = list[dict[str, Any]]
Rows = Mapping[str, Found]  # what the fits of each method found, one a draw of the data


def write_page(folder: Path, plan: Plan, outcomes: Outcomes) -> Path:
    """Writes the page, the figures and all numbers into the folder; returns the page's path."""
    scale = plan.scale
    made = outcomes.made_with(plan.fits())
    page = Page("Gaussian → Swiss roll: p(y|x) from a few pairs", made)
    tables: list[dict[str, Any]] = []
    mains = {
        (problem, *size): rows
        for problem in (ROLL, ANALYTIC)
        for size in scale.sizes
        if (rows := _found(plan.main(problem, *size), outcomes))
    }
    verdicts = [f"{_title(*key)}: {_verdict(rows)}" for key, rows in mains.items() if OURS in rows]

    for caveat in outcomes.caveats(plan):
        page.say(caveat)
    page.list(verdicts)
    for (problem, n_pairs, n_unpaired), rows in mains.items():
        page.head(_title(problem, n_pairs, n_unpaired))
        page.tabulate(*_main_table(rows, PAPER.get((problem, n_pairs), {}), _floor(plan.truth(problem), outcomes)))
        tables.append({"problem": problem, "P": n_pairs, "Q": n_unpaired, "R": n_unpaired, "rows": _numbers(rows)})
        is_shown = plan.main(problem, n_pairs, n_unpaired)[OURS][0].draw in outcomes
        if is_shown and ((n_pairs, n_unpaired) == scale.sizes[0] or problem == ROLL):
            page.show(
                f"mappings-{'roll' if problem == ROLL else 'analytic'}-{n_pairs}",
                _mappings(plan, outcomes, problem, n_pairs, n_unpaired),
                "Squares: three x's; red: y's drawn for each of them; grey: one y for each of many x's. First draw.",
            )
    page.say(HOW_MEASURED.format(scale=scale), is_small=True)
    page.head("What each method learns from")
    page.tabulate(*_usage_table([name for name in METHODS if any(name in rows for rows in mains.values())]))
    head, lines = _claims_table(mains.get((ROLL, *scale.sizes[0]), {}))
    if lines:
        page.head("Where the paper says that the others fail")
        page.tabulate(head, lines)
    # Fits of the main table belong to these too: on their own they would be a comparison with nothing.
    ablation, sweep, networks = (_found(table, outcomes) for table in (plan.ablation(), plan.sweep(), plan.networks()))
    if len(ablation) > 1:
        page.head("With and without unpaired rows")
        page.tabulate(*_ablation_table(ablation, tables))
    if len({n_pairs for _, n_pairs in sweep}) > 1:
        page.head("How many pairs are the unpaired rows worth?")
        page.show("pairs", _sweep(sweep, tables), "Mean over draws of the data; bands from least to most.")
        page.say(_worth(plan, outcomes))
    if grid := _found(plan.grid(), outcomes):
        page.head("Numbers of slopes M and of atoms N")
        for method, figure in _heatmaps(plan, grid, tables).items():
            page.head(method, level=3)
            page.show(
                "grid-ours" if method == OURS else "grid-paper", figure, "Mean over draws of the data; darker is worse."
            )
    if any(name in plan.scale.means for name in networks):
        page.head("What keeps free networks stable")
        page.tabulate(*_networks_table(networks, tables))
        page.say(HOW_STABLE, is_small=True)
    if runaway := {objective: outcomes[fit] for objective, fit in plan.runaway().items() if fit in outcomes}:
        page.head("Why the paper's loss runs away")
        page.show("runaway", _runaway(runaway), "Against training steps; the held-out pairs of five folds.")
        page.say(WHY_RUNAWAY)
    if outcomes.failures:
        page.head("What failed")
        page.list([f"{key}: {text}" for key, text in outcomes.failures.items()])
    page.list(_how_made(plan, outcomes), summary="How each number was made")
    results = {"made_by": made, "scale": vars(scale), "verdicts": verdicts, "tables": tables}
    return page.write(folder, {**results, "failed": outcomes.failures})


def _found(table: Mapping[Key, Sequence[Fit]], outcomes: Outcomes) -> dict[Key, Found]:
    """What the fits of a table found, without the rows of which none has been run."""
    found = {key: [outcomes[fit] for fit in fits if fit in outcomes] for key, fits in table.items()}
    return {key: some for key, some in found.items() if some}


def _title(problem: str, n_pairs: int, n_unpaired: int) -> str:
    sizes = f"{n_pairs:,} pairs, {n_unpaired:,} unpaired x's, {n_unpaired:,} unpaired y's"
    return f"{problem[0].upper()}{problem[1:]}: {sizes}"


def _column(rows: Rows, column: str) -> dict[str, list[float]]:
    """The column's values of the methods that have it."""
    return {
        method: [outcome[column] for outcome in outcomes]
        for method, outcomes in rows.items()
        if outcomes and all(column in outcome for outcome in outcomes)
    }


def _floor(truth: Truth, outcomes: Outcomes) -> Mapping[str, float]:
    """What the truth itself gets when it is drawn once more: no method can be expected to get less."""
    return outcomes[truth].get("floor", {}) if truth in outcomes else {}


def _main_table(
    rows: Rows, paper: Mapping[str, Sequence[float]], floor: Mapping[str, float]
) -> tuple[list[str], list[list[Entry]]]:
    columns = {name: values for name in COLUMNS if (values := _column(rows, name))}
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
    tied = {name: tied_for_best(values) for name in CONDITIONAL if (values := _column(rows, name))}
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
        values = _column(rows, name)
        if method in values and OURS in values:
            figures = [mean_and_spread(values[method]), mean_and_spread(values[OURS])]
            lines.append(
                [method, claim, COLUMNS[name], *figures, "yes" if is_behind(values[method], values[OURS]) else "no"]
            )
    return ["", "the paper says that it", "column", "its figure", OURS, "seen here"], lines


def _numbers(rows: Rows) -> dict[str, dict[str, list[float]]]:
    return {
        method: {
            column: [outcome[column] for outcome in outcomes if column in outcome]
            for column in COLUMNS
            if any(column in outcome for outcome in outcomes)
        }
        for method, outcomes in rows.items()
    }


def _usage_table(names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Asked of the methods themselves."""
    kinds, lines = {"pairs": "pairs", "source": "unpaired x's", "target": "unpaired y's"}, []
    for name in names:
        model = METHODS[name].make(random_state=0, device="cpu")
        answers = [kind in model.uses for kind in kinds]
        answers += [model.is_stochastic, hasattr(model, "score_samples")]
        lines.append([name, *("✓" if answer else "" for answer in answers)])
    return ["", *kinds.values(), "draws y at random", "has a density"], lines


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


def _ablation_table(
    rows: Mapping[tuple[str, int, int], Found], tables: list[dict[str, Any]]
) -> tuple[list[str], list[list[str]]]:
    columns = ("conditional_mmd", "conditional_transport", "nll")
    lines = []
    for (method, n_source, n_target), found in rows.items():
        cells = [mean_and_spread([outcome[column] for outcome in found]) for column in columns]
        lines.append([method, str(n_source), str(n_target), *cells])
        tables.append({"ablation": method, "Q": n_source, "R": n_target, "rows": _numbers({method: found})})
    return ["", "unpaired x's", "unpaired y's", *(COLUMNS[column] for column in columns)], lines


def _networks_table(rows: Rows, tables: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    columns = ("energy_score", "nll", "seconds")
    lines = []
    for name, found in rows.items():
        stable = f"{sum(map(_is_stable, found))} of {len(found)}"
        cells = [mean_and_spread([outcome[column] for outcome in found if column in outcome]) for column in columns]
        lines.append([name, stable, *cells])
        tables.append({"networks": name, "rows": _numbers({name: found})})
    return ["", "stable fits", *(COLUMNS[column] for column in columns)], lines


def _is_stable(outcome: dict[str, Any]) -> bool:
    """Whether training neither met numbers that are not finite, nor ran away, nor drifted by its own account."""
    warned = " ".join(outcome.get("warnings", []))
    return outcome.get("ended") != "diverged" and "ran away" not in warned and "drifts" not in warned


def _sweep(rows: Mapping[tuple[str, int], Found], tables: list[dict[str, Any]]) -> Any:
    curves: dict[str, list[tuple[float, list[float]]]] = {}
    for (method, n_pairs), found in rows.items():
        values = [outcome["nll"] for outcome in found]
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


def _heatmaps(plan: Plan, rows: Mapping[tuple[str, int, int], Found], tables: list[dict[str, Any]]) -> dict[str, Any]:
    columns, grid = ("mmd", "transport", "conditional_mmd", "conditional_transport"), plan.scale.grid
    maps: dict[str, dict[str, np.ndarray]] = {}
    for (method, n_slopes, n_atoms), found in rows.items():
        of_method = maps.setdefault(method, {column: np.full((len(grid), len(grid)), math.nan) for column in columns})
        for column in columns:
            of_method[column][grid.index(n_slopes), grid.index(n_atoms)] = np.mean([one[column] for one in found])
        tables.append({"grid": method, "M": n_slopes, "N": n_atoms, "rows": _numbers({method: found})})
    return {
        method: plot_heatmaps({COLUMNS[column]: table for column, table in of_method.items()}, grid, grid, "M", "N")
        for method, of_method in maps.items()
    }


def _runaway(rows: Mapping[str, dict[str, Any]]) -> Any:
    names = {"marginal": "bounded (marginal)", "supervised": "pairs alone", "inverse_eot": "the paper's loss"}
    histories = {names[objective]: outcome["history"] for objective, outcome in rows.items()}
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


def _how_made(plan: Plan, outcomes: Outcomes) -> list[str]:
    fits: list[Fit] = [fit for fit in dict.fromkeys(plan.fits()) if fit in outcomes]
    warned = sorted({text for fit in fits for text in outcomes[fit].get("warnings", [])})
    scale = ", ".join(f"{name} = {value}" for name, value in vars(plan.scale).items())
    made = {
        name: method.make(random_state=0, device="cpu", effort=plan.scale.effort) for name, method in METHODS.items()
    }
    return [
        f"{len(fits)} fits. Scale: {scale}. Seeds count from 0; the seed of a cell draws its data and its model.",
        "The file of each cell under cells/ holds its settings, its seed, the version and all it found.",
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
HOW_STABLE = (
    "Cost and potential are perceptrons, trained by the paper's loss with Langevin chains; the first row has the paper's "
    "settings, in a tenth of its steps with batches of 128, the others one thing more, or several. Then a correction of the "
    "fitted mixture, and the mixture itself. Stable: "
    "no numbers that are not finite, held-out score not twice its best at the end, energies of chains and data not 20 nats "
    "apart. NLL of free networks: by quadrature, of 100 of the fresh pairs. The energy score is of 1,000 fresh pairs, with 16 "
    "draws each for free networks and 50 for the others."
)
WHY_RUNAWAY = (
    "One network (two hidden layers of 16) without smoothing, the same start, step size and batches for all three. The "
    "paper's loss has no lower bound on finite samples: cost and potential can be tilted against each other without "
    "changing p(y|x), and the cost can fall at the few paired x's, where the average over the source hardly looks. So it "
    "falls and falls while the held-out likelihood gets worse. The bounded form depends on p(y|x) alone. Values beyond the "
    "frame are cut."
)
