"""The battery: random problems of every awkward kind, fitted with default settings and judged on fresh pairs: `make battery`.

Each problem has its own relation between x and y (or none), noise, sizes (2 to 300 pairs, 1 to 30 columns), units (1e-6 to
1e6), constant, duplicated, integer and heavy-tailed columns, and unpaired rows of both kinds, of one, or none. The model is
held against two yardsticks: the same estimator without the unpaired rows, and the best mixture of all y's, which ignores x.
Finished problems are kept in a file and not run again.
"""

import argparse
import json
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console

from fewpairs import MixtureTranslator, Training
from fewpairs.data.files import write_atomically

N_FRESH = 1000
ALLOWED = 0.05  # nats


@dataclass(frozen=True)
class Problem:
    """Data to fit and fresh pairs to judge by."""

    kind: str
    X: np.ndarray
    Y: np.ndarray
    X_unpaired: np.ndarray | None
    Y_unpaired: np.ndarray | None
    X_fresh: np.ndarray
    Y_fresh: np.ndarray


def make_problem(seed: int) -> Problem:
    """Random problem number `seed`."""
    random = np.random.default_rng([20, seed])
    n_pairs = int(np.exp(random.uniform(np.log(2), np.log(301))))
    dim_x, dim_y = (int(np.exp(random.uniform(0, np.log(31)))) for _ in range(2))
    n_source, n_target = (int(n) for n in random.choice([0, 100, 500, 2000], size=2))
    relation = str(random.choice(["none", "linear", "curved", "branches", "spread"], p=[0.15, 0.25, 0.25, 0.2, 0.15]))
    noise = str(random.choice(["normal", "heavy"], p=[0.75, 0.25]))

    n_rows = n_pairs + n_source + n_target + N_FRESH
    x, y = draw_rows(random, n_rows, dim_x, dim_y, relation, noise)
    awkward = [str(name) for name in random.choice(["integers", "constant", "twice", "heavy", ""], size=2)]
    for name in awkward:
        x, y = make_awkward(random, name, x, y, dim_x)
    y = y + 0.02 * random.normal(size=y.shape) * ("integers" not in awkward)  # some true width in every direction
    x, y = (
        rows * 10 ** random.uniform(-6, 6, size=rows.shape[1]) + random.normal(size=rows.shape[1]) for rows in (x, y)
    )
    if np.ptp(y[:n_pairs], axis=0).min() == 0:
        y = y + 1e-3 * y.std(0).clip(1e-12) * random.normal(size=y.shape)

    parts = np.split(np.arange(n_rows), np.cumsum([n_pairs, n_source, n_target]))
    return Problem(
        f"{relation}, {noise}, P={n_pairs}, {x.shape[1]}→{y.shape[1]}, Q={n_source}, R={n_target}, {'/'.join(awkward)}",
        x[parts[0]],
        y[parts[0]],
        x[parts[1]] if n_source else None,
        y[parts[2]] if n_target else None,
        x[parts[3]],
        y[parts[3]],
    )


def draw_rows(
    random: np.random.Generator, n_rows: int, dim_x: int, dim_y: int, relation: str, noise: str
) -> tuple[np.ndarray, np.ndarray]:
    """x's in a few heaps, and y's that stand in this relation to them."""
    centres = 1.5 * random.normal(size=(random.integers(1, 6), dim_x))
    x = centres[random.integers(len(centres), size=n_rows)] + random.normal(size=(n_rows, dim_x))
    inner = x @ random.normal(size=(dim_x, dim_y)) / np.sqrt(dim_x)
    level = random.choice([0.1, 0.3, 1.0])
    error = random.normal(size=(n_rows, dim_y)) if noise == "normal" else random.standard_t(2, size=(n_rows, dim_y))
    y = {
        "none": np.zeros_like(inner),
        "linear": inner,
        "curved": np.sin(1.5 * inner),
        "branches": np.where(random.random((n_rows, 1)) < 0.5, inner, -inner),
        "spread": np.zeros_like(inner),
    }[relation] + level * error * (np.exp(inner / 2) if relation == "spread" else 1.0)
    return x, y


def make_awkward(
    random: np.random.Generator, name: str, x: np.ndarray, y: np.ndarray, dim_x: int
) -> tuple[np.ndarray, np.ndarray]:
    """The rows with one of their first columns as tables have them."""
    column = int(random.integers(dim_x))
    if name == "integers":
        x[:, column], y[:, 0] = np.round(2 * x[:, column]), np.round(2 * y[:, 0])
    if name == "heavy":
        x[:, column] = np.sinh(np.clip(x[:, column], -20, 20))  # twice in a column, it would overflow
    if name == "constant":
        x[:, column] = 3.0
    if name == "twice":
        x = np.concatenate([x, x[:, column : column + 1]], axis=1)
        y = np.concatenate([y, y[:, :1] + 1e-3 * random.normal(size=(len(y), 1))], axis=1)
    return x, y


def run_problem(seed: int, *, max_steps: int | Literal["auto"] = "auto", n_threads: int = 1) -> dict[str, Any]:
    """Fits one problem three ways; scores are mean log-likelihoods of fresh pairs, gains come with a standard error."""
    torch.set_num_threads(n_threads)
    problem = make_problem(seed)
    unpaired = {"X_unpaired": problem.X_unpaired, "Y_unpaired": problem.Y_unpaired}
    training = Training(max_steps=max_steps)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixtureTranslator(random_state=seed, verbose=False, training=training)
        model.fit(problem.X, problem.Y, **unpaired)
        seconds = time.perf_counter() - start
        supervised = MixtureTranslator(objective="supervised", random_state=seed, verbose=False, training=training)
        supervised.fit(problem.X, problem.Y, **unpaired)
        ours, without = (one.score_samples(problem.X_fresh, problem.Y_fresh) for one in (model, supervised))
        ignoring = score_ignoring_x(model, problem.X_fresh, problem.Y_fresh)
        drawn = model.sample(problem.X_fresh[:20], 5)
    better = ours - (without if without.mean() > ignoring.mean() else ignoring)
    return {
        "seed": seed,
        "kind": problem.kind,
        "score": float(ours.mean()),
        "gain_over_supervised": float((ours - without).mean()),
        "gain_over_ignoring_x": float((ours - ignoring).mean()),
        "gain_over_better": float(better.mean()),
        "error": float(better.std() / np.sqrt(len(better))),
        "told_unpaired_gain": model.unpaired_gain_,
        "told_x_gain": model.x_gain_,
        "is_finite": bool(np.isfinite(ours).all() and np.isfinite(drawn).all()),
        "chosen": model.chosen_,
        "seconds": seconds,
    }


def score_ignoring_x(model: MixtureTranslator, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """log p(y) by the model's own yardstick, in the user's units."""
    plan, x = model.plan_.members[0], model.x_scaler_(torch.from_numpy(X)).clamp(-1e6, 1e6)
    with torch.no_grad():
        return plan.conditional(x, model.y_scaler_.loc, model.y_scaler_.scale).log_prob(torch.from_numpy(Y)).numpy()


def is_worse(outcome: dict[str, Any]) -> bool:
    return outcome["gain_over_better"] < -max(ALLOWED, 2 * outcome["error"])


def describe(outcomes: list[dict[str, Any]]) -> str:
    """The battery in words and one histogram."""
    gains = np.array([outcome["gain_over_better"] for outcome in outcomes])
    worse = [outcome for outcome in outcomes if is_worse(outcome)]
    edges = [-np.inf, -0.5, -0.2, -0.05, 0.05, 0.2, 0.5, 1, 2, 5, np.inf]
    counts = np.histogram(gains, edges)[0]
    lines = [
        f"{len(outcomes)} problems, {sum(not outcome['is_finite'] for outcome in outcomes)} with numbers that are not finite; "
        f"{np.median([outcome['seconds'] for outcome in outcomes]):.0f} s a fit (median, one thread).",
        f"Worse than the better yardstick by more than {ALLOWED} nats and two standard errors: {len(worse)} "
        f"({len(worse) / len(outcomes):.1%}).",
        f"Median gain over the better yardstick {np.median(gains):+.3f}, over supervised "
        f"{np.median([outcome['gain_over_supervised'] for outcome in outcomes]):+.3f}, over ignoring x "
        f"{np.median([outcome['gain_over_ignoring_x'] for outcome in outcomes]):+.3f} nats a pair.",
        "",
        "gain over the better yardstick",
    ]
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        lines.append(f"{low:6.2f} to {high:5.2f}  {'█' * round(60 * count / len(outcomes))} {count}")
    return "\n".join([*lines, *describe_parts(outcomes)])


def describe_parts(outcomes: list[dict[str, Any]]) -> list[str]:
    """The worst problems, and problems by the unpaired rows that they have."""
    lines = ["", "the worst:"] + [
        f"  {outcome['gain_over_better']:+.3f} ± {outcome['error']:.3f}  problem {outcome['seed']}: {outcome['kind']}"
        for outcome in sorted(outcomes, key=lambda outcome: outcome["gain_over_better"])[:8]
    ]
    kinds: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        kinds.setdefault(unpaired_rows(outcome["kind"]), []).append(outcome)
    lines += ["", "by unpaired rows:"] + [
        f"  {name:11s} {len(some):3d} problems, {sum(map(is_worse, some))} worse, mean gain over supervised (cut at ±2) "
        f"{np.mean([np.clip(outcome['gain_over_supervised'], -2, 2) for outcome in some]):+.3f}"
        for name, some in sorted(kinds.items())
    ]
    return lines


def unpaired_rows(kind: str) -> str:
    """Which unpaired rows a problem of this kind has."""
    has = [name for name, letter in (("x's", "Q"), ("y's", "R")) if f"{letter}=0" not in kind.split(", ")]
    return " and ".join(has) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", default="auto", help="max_steps of every fit, to look quickly")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no problem after so many")
    parser.add_argument("--out", type=Path, default=Path("results/battery.json"))
    options = parser.parse_args()

    options.out.parent.mkdir(parents=True, exist_ok=True)
    key = f"steps {options.steps}"
    kept = json.loads(options.out.read_text()) if options.out.exists() else {}
    outcomes: dict[str, dict[str, Any]] = kept.setdefault(key, {})
    todo = [seed for seed in range(options.first, options.first + options.problems) if str(seed) not in outcomes]
    run = partial(run_problem, max_steps=options.steps if options.steps == "auto" else int(options.steps))
    start = time.monotonic()
    with ProcessPoolExecutor(options.jobs) as pool:
        running = {pool.submit(run, todo.pop(0)) for _ in range(min(options.jobs, len(todo)))}
        while running:
            done = next(as_completed(running))
            running.remove(done)
            outcome = done.result()
            outcomes[str(outcome["seed"])] = outcome
            write_atomically(options.out, json.dumps(kept, indent=1).encode())
            mark = "  WORSE" if is_worse(outcome) else ""
            print(
                f"{len(outcomes):4d}  {outcome['gain_over_better']:+7.3f} ± {outcome['error']:.3f}  {outcome['seconds']:4.0f} s  "
                f"{outcome['seed']}: {outcome['kind']}{mark}",
                flush=True,
            )
            if todo and time.monotonic() - start < options.seconds:
                running.add(pool.submit(run, todo.pop(0)))
    Console(width=120).print(describe(list(outcomes.values())), highlight=False)


if __name__ == "__main__":
    main()
