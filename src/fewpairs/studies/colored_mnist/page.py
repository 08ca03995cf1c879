"""The page of the study of coloured digits: every number is read from a cell."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fewpairs.report.page import Entry
from fewpairs.report.plots import plot_image_rows
from fewpairs.studies.cells import Outcomes
from fewpairs.studies.colored_mnist.fits import METHODS, SLUGS, StudyPlan
from fewpairs.studies.comparisons import mean_and_spread, tied_for_best
from fewpairs.studies.pages import begin_page, finish_page

__all__ = ["write_page"]

# The measure, its title, and what has to fall for it to get better.
MEASURES = {
    "hue_error": ("mean hue error (°)", 1),
    "median_hue_error": ("median hue error (°)", 1),
    "identity": ("taken for a 3", -1),
    "seconds": ("seconds", None),
}


def write_page(folder: Path, plan: StudyPlan, outcomes: Outcomes) -> Path:
    """Writes the page, the figures and all numbers into the folder; returns the page's path."""
    page = begin_page("Coloured digits: from a 2 to a 3, turned by 120° in hue", plan, outcomes)
    page.say(WHAT)
    tables = []
    for n_pairs in plan.scale.pairs:
        page.head(f"{n_pairs} pairs")
        found = {
            method: {measure: _values(plan, outcomes, method, n_pairs, measure) for measure in MEASURES}
            for method in METHODS
        }
        page.tabulate(*_table(found))
        tables += [{"method": method, "pairs": n_pairs, **values} for method, values in found.items()]
    for method in METHODS:
        if rows := _pictures(plan, outcomes, method):
            page.show(SLUGS[method], plot_image_rows(rows), f"{method[0].upper()}{method[1:]}. {SHOWN}")
    judged = sorted({outcomes[fit.judge]["accuracy"] for fit in plan.fits() if fit.judge in outcomes})
    accuracy = " ".join(f"{one:.1%}" for one in judged)
    page.say(HOW_MEASURED.format(n_test=plan.scale.n_test, accuracy=accuracy), is_small=True)
    warned = sorted({text for fit in plan.fits() if fit in outcomes for text in outcomes[fit]["warnings"]})
    if warned:
        page.list(warned, summary="What fits warned of")
    return finish_page(page, folder, outcomes, [], tables=tables)


def _table(found: Mapping[str, Mapping[str, list[float]]]) -> tuple[list[str], list[list[str | Entry]]]:
    """A row for each method, a column for each measure, of values by method and measure."""
    lines: list[list[str | Entry]] = [[method] for method in found]
    for measure, (_, sign) in MEASURES.items():
        known = {method: values[measure] for method, values in found.items() if values[measure]}
        losses = {method: [sign * one for one in values] for method, values in known.items()} if sign else {}
        best = tied_for_best(losses)
        for line, method in zip(lines, found, strict=True):
            line.append(Entry(mean_and_spread(known.get(method, [])), is_best=method in best))
    return ["", *(title for title, _ in MEASURES.values())], lines


def _values(plan: StudyPlan, outcomes: Outcomes, method: str, n_pairs: int, measure: str) -> list[float]:
    return [outcomes[fit][measure] for fit in plan.of(method, n_pairs) if fit in outcomes]


def _pictures(plan: StudyPlan, outcomes: Outcomes, method: str) -> dict[str, np.ndarray]:
    """The paper's rows: source, truth, and the translation by each number of pairs, of the first seed."""
    rows: dict[str, np.ndarray] = {}
    for n_pairs in plan.scale.pairs:
        fit = plan.of(method, n_pairs)[0]
        if fit in outcomes:
            outcome = outcomes[fit]
            rows |= {"source": np.array(outcome["source"]), "true colour": np.array(outcome["truth"])}
            rows[f"{n_pairs} pairs"] = np.array(outcome["translated"])
    return {name: np.moveaxis(images, 1, -1).astype(np.uint8) for name, images in rows.items()}


WHAT = (
    "Handwritten 2's in random hues are translated to 3's. A pair is a 2 and a 3 whose hue is 120° further; all other images "
    "are unpaired. The networks are the paper's: cost ‖U-Net(x) − y‖²/D, a convolutional potential, ε = 0.01, Langevin chains. "
    "By our objective (“transport”) the pairs teach the cost, and unpaired images the potential; by the paper's loss chains "
    "teach both, and all other settings are the same: those of the recipe “images”, found by fits to training images of one more "
    "seed, cold chains, noise on x and a penalty of energies among them. It was run with one seed. “Mixture of principal "
    "components” is our default translator between the first components of all images."
)
SHOWN = "Columns: 2's of different hues; true colour: some 3 in the right colour, not the only right answer."
HOW_MEASURED = (
    "Mean ± standard deviation over seeds, {n_test} 2's of the test images, one draw each. Hue: that of the mean colour of a "
    "picture, against the source's plus 120°; guessing gives 90°. Taken for a 3: by a small convolutional network on the "
    "brightest channel, which is right on {accuracy} of the test digits, and knows nothing of noise: what it takes for a 3 may "
    "be no picture at all, so look at them. Bold: best, or not behind by two standard errors."
)
