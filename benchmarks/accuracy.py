"""The accuracy tables of the README: five draws of a made problem, judged on fresh pairs: `make results`.

Every model is the one that `fit` returns (no best in hindsight), every draw has its own 8,000 evaluation pairs, and nothing
was tuned on draws 0 to 4. By default fits run one after the other on all cores, so that their seconds mean something.
"""

import argparse
import math
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import fewpairs
from fewpairs import MixtureTranslator, Search
from fewpairs.datasets.made import Clusters, Problem, SwissRoll

PROBLEMS: dict[str, Callable[[], Problem]] = {
    "swiss-roll": SwissRoll,
    "clusters-8": partial(Clusters, 8),
    "clusters-32": partial(Clusters, 32),
}
OURS: dict[str, dict[str, Any]] = {
    "default": {},
    "supervised": {"objective": "supervised"},
    "inverse_eot": {"objective": "inverse_eot"},
    # Good settings found by hand in the world of clusters, one model: what the choice has to match there.
    "by_hand": {
        "search": Search(
            hidden=(64,),
            covariance="diagonal",
            n_atoms=20,
            unpaired_weight=3.0,
            smoothing=0.5,
            adversarial=0.0,
            variance_floor=0.01,
        )
    },
}
RECIPES = ("authors", "paper")


def make_model(way: str, seed: int, time_budget: float | None) -> MixtureTranslator:
    if way in RECIPES:
        return MixtureTranslator.from_recipe(way, random_state=seed, time_budget=time_budget)
    return MixtureTranslator(random_state=seed, time_budget=time_budget, **OURS[way])


def run_draw(
    seed: int,
    *,
    problem_name: str,
    ways: list[str],
    n_pairs: int,
    n_unpaired: int,
    n_threads: int,
    time_budget: float | None,
) -> dict[str, tuple[float, float]]:
    """Fits every model to one draw: its NLL on fresh pairs, and the seconds of its fit. Where it is known, the truth as well."""
    torch.set_num_threads(n_threads)
    problem = PROBLEMS[problem_name]()
    data = problem.draw(n_pairs=n_pairs, n_source=n_unpaired, n_target=n_unpaired, seed=seed)
    x, y = problem.draw_pairs(8000, seed=1_000_000 + seed)
    outcome = {}
    if hasattr(problem, "conditional"):
        outcome["the truth"] = -float(problem.conditional(x).log_prob(torch.from_numpy(y)).mean()), math.nan
    for name in ways:
        model = make_model(name, seed, time_budget)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
            seconds = time.perf_counter() - start
            outcome[name] = -model.score(x, y), seconds
        print(f"draw {seed}: {name}: {outcome[name][0]:.3f} in {outcome[name][1]:.0f} s", flush=True)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=PROBLEMS, default="swiss-roll")
    parser.add_argument("--pairs", type=int, default=128)
    parser.add_argument("--unpaired", type=int, default=1024)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the number of the first draw")
    parser.add_argument(
        "--ways", nargs="+", choices=[*OURS, *RECIPES], default=["default", "supervised", "inverse_eot", *RECIPES]
    )
    parser.add_argument("--time-budget", type=float, help="seconds a fit; the default bounds steps instead")
    parser.add_argument("--jobs", type=int, default=1, help="draws at the same time, sharing the cores")
    options = parser.parse_args()

    n_threads = max(len(os.sched_getaffinity(0)) // options.jobs, 1)
    run = partial(
        run_draw,
        problem_name=options.problem,
        ways=options.ways,
        n_pairs=options.pairs,
        n_unpaired=options.unpaired,
        n_threads=n_threads,
        time_budget=options.time_budget,
    )
    with ProcessPoolExecutor(options.jobs) as pool:
        draws = list(pool.map(run, range(options.first, options.first + options.draws)))

    table = Table("", "median NLL", "least", "most", "seconds")
    sizes = f"P = {options.pairs}, Q = R = {options.unpaired}"
    table.title = f"{options.problem}, {sizes}, {options.draws} draws, 8,000 fresh pairs each"
    for name in draws[0]:
        values, seconds = zip(*(draw[name] for draw in draws), strict=True)
        cells = [f"{value:.2f}" for value in (np.median(values), min(values), max(values))]
        table.add_row(name, *cells, f"{np.median(seconds):.0f}")
    console = Console(width=120)
    console.print(table)
    console.print(f"fewpairs {fewpairs.__version__}, torch {torch.__version__}, {n_threads} threads a fit")


if __name__ == "__main__":
    main()
