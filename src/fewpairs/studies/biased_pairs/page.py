"""The page of the study of biased pairs: every number is read from a cell, and every sentence with numbers made from them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewpairs.report.page import Entry
from fewpairs.report.plots import plot_curves
from fewpairs.studies.biased_pairs.fits import AS_SHIPPED, CORRECTIONS, NONE, OBJECTIVES, Correction, StudyPlan
from fewpairs.studies.cells import Outcomes
from fewpairs.studies.comparisons import gain_over, mean_and_spread, tied_for_best
from fewpairs.studies.pages import HOW_KEPT, begin_page, finish_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_page"]

NAMES = {
    "marginal": "bounded (marginal), the default",
    "supervised": "pairs alone",
    "inverse_eot": "the paper's loss",
}
WITHOUT = next(one for one in CORRECTIONS if one.name == NONE)
SHIPPED = next(one for one in CORRECTIONS if one.name == AS_SHIPPED)
AS_TOLD = next(one for one in CORRECTIONS if one.name == "biased, as told" and one.ratio == "estimated")
PAIRS, PAIRS_TRUE = (one for one in CORRECTIONS if one.name == "weighted pairs")
Columns = dict[float, dict[str, list[float]]]  # by strength of the bias and correction: one NLL a draw


class _Numbers:
    """What the cells found, by world, objective, correction and strength: one NLL a draw."""

    def __init__(self, plan: StudyPlan, outcomes: Outcomes) -> None:
        self.plan, self.outcomes = plan, outcomes

    def nll(self, world: str, objective: str, correction: Correction, strength: float) -> list[float]:
        fits = self.plan.of(world, objective, correction, strength)
        return [self.outcomes[fit]["nll"] for fit in fits if fit in self.outcomes]

    def by_strength(self, world: str, objective: str) -> Columns:
        """By strength, all corrections of which something is known."""
        corrections = self.plan.corrections(objective)
        return {
            strength: {one.title: nll for one in corrections if (nll := self.nll(world, objective, one, strength))}
            for strength in self.plan.scale.strengths
        }

    def gain(self, world: str, objective: str, correction: Correction, strength: float) -> tuple[float, float]:
        """How much better than without a correction, over the same draws, and the standard error; NaN where cells are missing."""
        return gain_over(*(self.nll(world, objective, one, strength) for one in (WITHOUT, correction)))


def write_page(folder: Path, plan: StudyPlan, outcomes: Outcomes) -> Path:
    """Writes the page, the figures and all numbers into the folder; returns the page's path."""
    scale, numbers = plan.scale, _Numbers(plan, outcomes)
    page = begin_page("Pairs from a corner of the population", plan, outcomes)
    page.say(ADVICE)
    verdicts = [text for world, *_ in scale.worlds for text in (_of_default(numbers, world), _of_paper(numbers, world))]
    page.list(verdicts)
    tables: list[dict[str, Any]] = []
    for world, n_pairs, n_unpaired, n_draws in scale.worlds:
        page.head(
            f"{world[0].upper()}{world[1:]}: {n_pairs} pairs, {n_unpaired} unpaired x's, {n_unpaired} unpaired y's"
        )
        page.show(world.replace(" ", "-"), _figure(numbers, world), HOW_SHOWN.format(n_draws=n_draws))
        for objective in OBJECTIVES:
            page.head(NAMES[objective], level=3)
            columns = numbers.by_strength(world, objective)
            page.tabulate(*_table(columns, plan.corrections(objective)))
            tables += [
                {"world": world, "objective": objective, "strength": strength, "nll": column}
                for strength, column in columns.items()
            ]
    page.say(HOW_MEASURED, is_small=True)
    settings = ", ".join(f"{name} = {value}" for name, value in vars(scale).items())
    how = [f"{len(plan.fits())} fits. Scale: {settings}", HOW_KEPT]
    return finish_page(page, folder, outcomes, how, scale=vars(scale), verdicts=verdicts, tables=tables)


def _table(columns: Columns, corrections: Sequence[Correction]) -> tuple[list[str], list[list[str | Entry]]]:
    best = {strength: tied_for_best(column) for strength, column in columns.items()}
    lines: list[list[str | Entry]] = [
        [
            one.title,
            *(
                Entry(mean_and_spread(column.get(one.title, [])), is_best=one.title in best[at])
                for at, column in columns.items()
            ),
        ]
        for one in corrections
    ]
    return ["NLL by strength of the bias", *(f"{strength:g}" for strength in columns)], lines


def _figure(numbers: _Numbers, world: str) -> "Figure":
    panels = {}
    for objective in OBJECTIVES:
        curves: dict[str, list[tuple[float, Sequence[float]]]] = {}
        for one in numbers.plan.corrections(objective):
            for strength in numbers.plan.scale.strengths:
                nll = numbers.nll(world, objective, one, strength)
                if nll and one.ratio == "estimated":
                    curves.setdefault(one.name, []).append((strength, nll))
        panels[NAMES[objective]] = curves
    return plot_curves(panels, "strength of the bias")


def _of_default(numbers: _Numbers, world: str) -> str:
    """Whether our default loses by looking for bias, at any strength."""
    words = []
    for strength in numbers.plan.scale.strengths:
        gains = [numbers.gain(world, "marginal", one, strength) for one in (SHIPPED, AS_TOLD)]
        words.append(f"{strength:g}: {_signed(gains[0])} and {_signed(gains[1])}")
    return (
        f"{world}: what the default gains, in nats, by looking for bias itself, and by being told of it, at strength "
        + "; ".join(words)
        + "."
    )


def _of_paper(numbers: _Numbers, world: str) -> str:
    """How much of what true weights gain estimated ones recover, for the paper's loss, where it is there at all."""
    words = []
    for strength in numbers.plan.scale.strengths:
        for estimated, true in _both_ratios():
            gain, error = numbers.gain(world, "inverse_eot", true, strength)
            if gain > 2 * error:
                recovered = numbers.gain(world, "inverse_eot", estimated, strength)[0] / gain
                words.append(f"{estimated.name} at {strength:g}: {recovered:.0%} of {gain:.2f} nats")
    if not words:
        return f"{world}, the paper's loss: true weights gained nothing beyond two standard errors at any strength."
    return f"{world}, the paper's loss: of what true weights gain, estimated ones recover: " + "; ".join(words) + "."


def _both_ratios() -> list[tuple[Correction, Correction]]:
    two_sided = tuple(one for one in CORRECTIONS if one.sides == 1)
    return [(PAIRS, PAIRS_TRUE), (two_sided[0], two_sided[1])]


def _signed(gain: tuple[float, float]) -> str:
    return f"{gain[0]:+.3f}" + ("" if math.isnan(gain[1]) else f" ± {gain[1]:.3f}")


ADVICE = (
    'In short: leave pairs_are at "auto". It weighs held-out pairs by how common their x is in the population, so that what is '
    "told is true of the population, and lets a part of the ensemble learn from pairs that are weighted alike. The likelihood of "
    "the pairs is right with such weights and without, and which is better with few pairs, the data say; the paper's loss is "
    "wrong without."
)
HOW_SHOWN = (
    "Held-out NLL in the whole population against the strength of the bias, with estimated ratios; {n_draws} draws, bands from "
    "least to most."
)
HOW_MEASURED = (
    "Mean ± standard deviation over draws of the mean −log p(y|x) of fresh pairs from the whole population, in nats; bold: best, "
    "or not behind the best by two standard errors over the same draws. A pair is kept with a chance proportional to "
    "exp(−strength · z), z a standardised column of x: the first of the roll, January's air temperature at sea. Weighted "
    "validation: held-out pairs count by population over pairs, tempered in early stopping, choice and mixing so that they are "
    "worth four fifths of their number. Weighted pairs: untempered in training too. “Biased, as told”: held-out pairs do, and "
    "the choice is free whether they do in training. The two-sided form "
    "weighs unpaired x's and y's by pairs over population; the printed formula by the inverse. True ratios of y: of "
    "other fresh pairs nearby, which do not judge. Without bias true ratios are one, and left out."
)
