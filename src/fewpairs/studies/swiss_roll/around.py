"""What stands around the main tables of the Swiss-roll study: a section each, with a table or a figure of its own."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fewpairs.report.page import Page
from fewpairs.report.plots import plot_curves, plot_heatmaps
from fewpairs.studies.cells import Outcome, Outcomes
from fewpairs.studies.comparisons import mean_and_spread
from fewpairs.studies.swiss_roll.fits import OURS, StudyPlan
from fewpairs.studies.swiss_roll.numbers import COLUMNS, Found, Rows, Tables, found_of, numbers_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_ablation", "write_grid", "write_networks", "write_runaway", "write_sweep"]


def write_ablation(page: Page, plan: StudyPlan, outcomes: Outcomes) -> Tables:
    """What either kind of unpaired rows brings. Fits of the main table are among them: on their own they would be a comparison
    with nothing."""
    rows = found_of(plan.ablation(), outcomes)
    if len(rows) < 2:
        return []
    page.head("With and without unpaired rows")
    page.tabulate(*_ablation_table(rows))
    return [
        {"ablation": method, "Q": n_source, "R": n_target, "rows": numbers_of({method: found})}
        for (method, n_source, n_target), found in rows.items()
    ]


def write_sweep(page: Page, plan: StudyPlan, outcomes: Outcomes) -> Tables:
    """The likelihood as pairs grow; here too, fits of the main table are not enough."""
    rows = {key: [one["nll"] for one in found] for key, found in found_of(plan.sweep(), outcomes).items()}
    if len({n_pairs for _, n_pairs in rows}) < 2:
        return []
    page.head("How many pairs are the unpaired rows worth?")
    page.show("pairs", _sweep(rows), "Mean over draws of the data; bands from least to most.")
    page.say(_worth(plan, outcomes))
    return [{"sweep": method, "P": n_pairs, "nll": values} for (method, n_pairs), values in rows.items()]


def write_grid(page: Page, plan: StudyPlan, outcomes: Outcomes) -> Tables:
    """Over slopes and atoms."""
    rows = found_of(plan.grid(), outcomes)
    if not rows:
        return []
    page.head("Numbers of slopes M and of atoms N")
    for method, figure in _heatmaps(plan, rows).items():
        page.head(method, level=3)
        name = "grid-ours" if method == OURS else "grid-paper"
        page.show(name, figure, "Mean over draws of the data; darker is worse.")
    return [
        {"grid": method, "M": n_slopes, "N": n_atoms, "rows": numbers_of({method: found})}
        for (method, n_slopes, n_atoms), found in rows.items()
    ]


def write_networks(page: Page, plan: StudyPlan, outcomes: Outcomes) -> Tables:
    """Free networks with one means of stability after the other; the correction and the mixture beside them are no such means."""
    rows = found_of(plan.networks(), outcomes)
    if not any(name in plan.scale.means for name in rows):
        return []
    page.head("What keeps free networks stable")
    page.tabulate(*_networks_table(rows))
    page.say(HOW_STABLE, is_small=True)
    return [{"networks": name, "rows": numbers_of({name: found})} for name, found in rows.items()]


def write_runaway(page: Page, plan: StudyPlan, outcomes: Outcomes) -> None:
    """The three objectives, step by step."""
    if rows := {objective: outcomes[fit] for objective, fit in plan.runaway().items() if fit in outcomes}:
        page.head("Why the paper's loss runs away")
        page.show("runaway", _runaway(rows), "Against training steps; the held-out pairs of five folds.")
        page.say(WHY_RUNAWAY)


def _ablation_table(rows: Mapping[tuple[str, int, int], Found]) -> tuple[list[str], list[list[str]]]:
    columns = ("conditional_mmd", "conditional_transport", "nll")
    lines = []
    for (method, n_source, n_target), found in rows.items():
        cells = [mean_and_spread([outcome[column] for outcome in found]) for column in columns]
        lines.append([method, str(n_source), str(n_target), *cells])
    return ["", "unpaired x's", "unpaired y's", *(COLUMNS[column] for column in columns)], lines


def _networks_table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    columns = ("energy_score", "nll", "seconds")
    lines = []
    for name, found in rows.items():
        stable = f"{sum(map(_is_stable, found))} of {len(found)}"
        cells = [mean_and_spread([outcome[column] for outcome in found if column in outcome]) for column in columns]
        lines.append([name, stable, *cells])
    return ["", "stable fits", *(COLUMNS[column] for column in columns)], lines


def _is_stable(outcome: Outcome) -> bool:
    """Whether training neither met numbers that are not finite, nor ran away, nor drifted by its own account."""
    warned = " ".join(outcome.get("warnings", []))
    return outcome.get("ended") != "diverged" and "ran away" not in warned and "drifts" not in warned


def _sweep(rows: Mapping[tuple[str, int], list[float]]) -> "Figure":
    curves: dict[str, list[tuple[float, list[float]]]] = {}
    for (method, n_pairs), values in rows.items():
        curves.setdefault(method, []).append((n_pairs, values))
    return plot_curves({"held-out NLL (nats)": curves}, "pairs", is_log=True, top=4.0)


def _worth(plan: StudyPlan, outcomes: Outcomes) -> str:
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


def _heatmaps(plan: StudyPlan, rows: Mapping[tuple[str, int, int], Found]) -> dict[str, "Figure"]:
    columns, grid = ("mmd", "transport", "conditional_mmd", "conditional_transport"), plan.scale.grid
    maps: dict[str, dict[str, np.ndarray]] = {}
    for (method, n_slopes, n_atoms), found in rows.items():
        of_method = maps.setdefault(method, {column: np.full((len(grid), len(grid)), math.nan) for column in columns})
        for column in columns:
            of_method[column][grid.index(n_slopes), grid.index(n_atoms)] = np.mean([one[column] for one in found])
    return {
        method: plot_heatmaps({COLUMNS[column]: table for column, table in of_method.items()}, grid, grid, "M", "N")
        for method, of_method in maps.items()
    }


def _runaway(rows: Mapping[str, Outcome]) -> "Figure":
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
