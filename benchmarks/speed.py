"""Speed and memory, measured in one run and printed as tables: `make bench`.

Each figure is taken in a process of its own, so that nobody's memory counts for somebody else. Times are the median of
repeated calls; peak memory is what a call needed above what stood there before it (Linux).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import plain
import torch
from rich.console import Console
from rich.table import Table

import fewpairs
from fewpairs import MixtureTranslator, Training
from fewpairs.data.samples import Samples
from fewpairs.datasets.made import SwissRoll
from fewpairs.plans.costs import SlopeCost
from fewpairs.plans.mixture import MixturePlan
from fewpairs.plans.potentials import MixturePotential
from fewpairs.training import objectives

# rows, atoms N, slopes M, dimensions D, and whether the gradient is taken too
SIZES = [(1024, 50, 25, 2, True), (4096, 10, 1, 94, True), (1024, 64, 16, 64, True), (1024, 64, 16, 512, False)]


def make_plan(n_atoms: int, n_slopes: int, dim: int) -> MixturePlan:
    torch.manual_seed(0)
    cost = SlopeCost(dim_x=dim, dim_y=dim, n_slopes=n_slopes)
    potential = MixturePotential(dim_y=dim, n_atoms=n_atoms)
    potential.set_atoms(torch.zeros(n_atoms), torch.randn(n_atoms, dim), torch.rand(n_atoms, dim) + 0.1)
    return MixturePlan(cost, potential)


def step(form: str, size: int) -> dict[str, float]:
    """One step of the paper's loss in product form or in the plain one."""
    n_rows, n_atoms, n_slopes, dim, with_gradient = SIZES[size]
    plan = make_plan(n_atoms, n_slopes, dim)
    samples = Samples.gather(torch.randn(n_rows, dim), torch.randn(n_rows, dim))
    objective = {"product": objectives.inverse_eot, "plain": plain.inverse_eot}[form]

    def run() -> float:
        with torch.set_grad_enabled(with_gradient):
            loss = objective(plan, samples)
        if with_gradient:
            plan.zero_grad()
            loss.backward()
        return float(loss.detach())

    return {**measure(run), "loss": run()}


def marginal(n_rows: int, n_slopes: int) -> dict[str, float]:
    """log p̂ of n_rows target points against n_rows source points, with its gradient."""
    plan = make_plan(50, n_slopes, 2)
    y, source = torch.randn(2, n_rows, 2)

    def run() -> float:
        plan.zero_grad()
        value = plan.log_marginal(y, source).mean()
        value.backward()
        return float(value.detach())

    return measure(run, n_repeats=1, is_warm=True)


def use(n_rows: int) -> dict[str, float]:
    """Draws, densities and means per second from a model fitted with default settings (but few steps)."""
    data = SwissRoll().draw(n_pairs=128, n_source=1024, n_target=1024, seed=0)
    model = MixtureTranslator(training=Training(max_steps=50), random_state=0, verbose=False)
    model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
    n_members = len(model.plan_.members)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, n_rows, 2))
    calls = {
        "samples": lambda: model.sample(x, 1, random_state=0),
        "densities": lambda: model.score_samples(x, y),
        "means": lambda: model.predict(x),
    }
    return {"members": n_members} | {
        name: n_rows / measure(call, n_repeats=3)["seconds"] for name, call in calls.items()
    }


def fit(n_unpaired: int, dim: int) -> dict[str, float]:
    """A default fit to 200 pairs and so many unpaired rows of each kind; the data stand there before it."""
    random = np.random.default_rng(0)
    matrix = random.normal(size=(dim, dim)) / np.sqrt(dim)

    def draw(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
        x = random.normal(size=(n_rows, dim))
        return x, np.tanh(x @ matrix) + 0.3 * random.normal(size=(n_rows, dim))

    (x, y), (more_x, _), (_, more_y) = draw(200), draw(n_unpaired), draw(n_unpaired)
    model = MixtureTranslator(random_state=0, verbose=False)
    outcome = measure(lambda: model.fit(x, y, X_unpaired=more_x, Y_unpaired=more_y), n_repeats=1, is_warm=True)
    return {**outcome, "nll": -model.score(*draw(2000))}


def race(way: str, seconds: float) -> dict[str, float]:
    """The NLL of fresh pairs of the Swiss roll that a fit reaches in so many seconds, and the seconds it took."""
    problem = SwissRoll()
    data = problem.draw(n_pairs=128, n_source=1024, n_target=1024, seed=0)
    options = {"random_state": 0, "verbose": False, "time_budget": seconds}
    model = (
        MixtureTranslator.from_recipe(way, **options) if way in ("paper", "authors") else MixtureTranslator(**options)
    )
    if way == "supervised":
        model.set_params(objective="supervised")
    start = time.perf_counter()
    model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
    taken = time.perf_counter() - start
    return {"seconds": taken, "nll": -model.score(*problem.draw_pairs(2000, seed=1_000_000))}


def measure(call: Callable[[], object], *, n_repeats: int = 7, is_warm: bool = False) -> dict[str, float]:
    if not is_warm:
        call()
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = memory("VmRSS")
    times = []
    for _ in range(n_repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return {"seconds": statistics.median(times), "megabytes": (memory("VmHWM") - before) / 1e6}


def memory(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


TASKS = {"step": step, "marginal": marginal, "use": use, "fit": fit, "race": race}


def alone(task: str, *arguments: object) -> dict[str, float]:
    """Times one measurement in a fresh process, and takes its peak memory in another.

    Freed memory stays with a process unless malloc is told to hand it back, and peaks would hide in it; being told so
    costs time, hence the second process.
    """
    lean = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    outcome = run_alone(task, arguments, dict(os.environ))
    if "megabytes" in outcome:
        outcome["megabytes"] = run_alone(task, arguments, lean)["megabytes"]
    return outcome


def run_alone(task: str, arguments: tuple[object, ...], environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, __file__, "--task", task, json.dumps(arguments)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if outcome.returncode != 0:
        raise RuntimeError(f"The measurement {task}{arguments} failed:\n{outcome.stderr}")
    return json.loads(outcome.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", nargs=2, metavar=("NAME", "ARGUMENTS"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--fits", action="store_true", help="also whole fits: unpaired rows to 10⁶, and who is first (half an hour)"
    )
    parser.add_argument("--long", action="store_true", help="also 10⁵ target against 10⁵ source points (minutes)")
    options = parser.parse_args()
    if options.task:
        name, arguments = options.task
        print(json.dumps(TASKS[name](*json.loads(arguments))))
        return

    console = Console(width=120)
    cores = len(os.sched_getaffinity(0))
    console.print(
        f"fewpairs {fewpairs.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {cores} cores"
    )
    console.print(table_of_steps())
    console.print(table_of_use(100_000))
    console.print(table_of_marginals([10_000, *([100_000] if options.long else [])]))
    if options.fits:
        console.print(table_of_sizes())
        console.print(table_of_races())


def table_of_steps() -> Table:
    table = Table("rows, N, M, D", "", "plain", "product", "faster", "plain MB", "product MB", "smaller")
    table.title = "One step of the paper's loss, matrix-product form against a rows × M × N × D tensor"
    for index, (*size, with_gradient) in enumerate(SIZES):
        slow, fast = alone("step", "plain", index), alone("step", "product", index)
        if abs(slow["loss"] - fast["loss"]) > 1e-3 * abs(slow["loss"]):
            raise RuntimeError(f"The two forms disagree at {size}: {slow['loss']} and {fast['loss']}.")
        table.add_row(
            ", ".join(map(str, size)),
            "forward, backward" if with_gradient else "forward",
            f"{1e3 * slow['seconds']:.1f} ms",
            f"{1e3 * fast['seconds']:.1f} ms",
            f"{slow['seconds'] / fast['seconds']:.1f} ×",
            f"{slow['megabytes']:.0f}",
            f"{fast['megabytes']:.1f}",
            f"{slow['megabytes'] / fast['megabytes']:.0f} ×",
        )
    return table


def table_of_use(n_rows: int) -> Table:
    speeds = alone("use", n_rows)
    title = f"A fitted ensemble of {speeds.pop('members'):.0f} members, two outputs, at {n_rows:,} rows"
    table = Table("", "per second", title=title)
    for name, speed in speeds.items():
        table.add_row(name, f"{speed:,.0f}")
    return table


def table_of_marginals(sizes: list[int], n_slopes: int = 8) -> Table:
    table = Table("target × source", "M", "seconds", "peak MB", title="log p̂(y) with its gradient, block by block")
    for rows in sizes:
        cost = run_alone("marginal", (rows, n_slopes), dict(os.environ))
        table.add_row(f"{rows:,} × {rows:,}", str(n_slopes), f"{cost['seconds']:.1f}", f"{cost['megabytes']:.0f}")
    return table


def table_of_sizes() -> Table:
    table = Table("Q = R", "seconds", "against 10⁴", "MB above the data", "NLL")
    table.title = "A default fit, 200 pairs, 16 → 16 dimensions, as the unpaired rows grow"
    costs = {n_rows: run_alone("fit", (n_rows, 16), dict(os.environ)) for n_rows in (1000, 10_000, 100_000, 1_000_000)}
    for n_rows, cost in costs.items():
        ratio = cost["seconds"] / costs[10_000]["seconds"]
        table.add_row(
            f"{n_rows:,}", f"{cost['seconds']:.0f}", f"{ratio:.1f} ×", f"{cost['megabytes']:.0f}", f"{cost['nll']:.2f}"
        )
    return table


def table_of_races() -> Table:
    """Doubles the time budget until the NLL is reached; the paper's loss and the pairs alone may never reach it."""
    goal, budgets = 0.6, (3, 6, 12, 24, 48, 96)
    table = Table("", *(f"{budget} s" for budget in budgets), f"seconds to {goal}")
    table.title = "NLL of fresh pairs of the Swiss roll (128 pairs) that a fit reaches in a time budget"
    for way in ("default", "supervised", "authors", "paper"):
        cells, reached = [], ""
        for budget in budgets:
            outcome = run_alone("race", (way, budget), dict(os.environ))
            cells.append(f"{outcome['nll']:.2f} ({outcome['seconds']:.0f} s)")
            if outcome["nll"] <= goal and not reached:
                reached = f"{outcome['seconds']:.0f}"
        table.add_row(way, *cells, reached or "never")
    return table


if __name__ == "__main__":
    main()
