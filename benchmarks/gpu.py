"""Populations on a CUDA device: milliseconds a step as members are added, and one default fit. Run by hand:

    PYTHONPATH=src python benchmarks/gpu.py

It prints its date and versions with the tables.
"""

import argparse
import datetime
import time
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import fewpairs
from fewpairs import MixtureTranslator
from fewpairs.data.folds import Folds
from fewpairs.data.samples import Samples
from fewpairs.datasets.made import SwissRoll
from fewpairs.plans.costs import SlopeCost
from fewpairs.plans.initial import fit_mixture
from fewpairs.plans.mixture import MixturePlan
from fewpairs.training import objectives
from fewpairs.training.batches import Dealer
from fewpairs.training.learners import PopulationLearner, PopulationSettings, score_held_out
from fewpairs.training.loop import Budget, train
from fewpairs.training.populations import Population
from fewpairs.training.smoothing import NoiseSmoothing

N_STEPS = 300


def milliseconds_a_step(samples: Samples, n_members: int, device: str) -> float:
    """One step of the default's shape (linear slopes, ten full atoms) for so many members, five folds a candidate."""
    random = np.random.RandomState(0)
    folds = Folds.cut(samples, 5, random)
    start = fit_mixture(samples.target, samples.target_weight, "full", 10, random)[0]
    plans = [
        MixturePlan(SlopeCost(dim_x=2, dim_y=2, n_slopes=4, hidden=()), start.potential(0.01)).float()
        for _ in range(n_members)
    ]
    settings = PopulationSettings(
        learning_rate=3e-2,
        potential_learning_rate=3e-2,
        one_cycle=True,
        batch_size=256,
        pairs_batch_size=1024,
        max_steps=N_STEPS,
        max_grad_norm=10.0,
    )
    weights = torch.full((n_members,), 3.0, device=device)
    for _ in range(2):  # the first warms up
        begin = time.perf_counter()
        population, here = Population(plans).to(torch.device(device)), samples.to(torch.device(device))
        generator = torch.Generator(device).manual_seed(0)
        learner = PopulationLearner(
            population,
            folds,
            objectives.marginal,
            settings=settings,
            smoothing=NoiseSmoothing(0.1),
            dealer=Dealer(here, batch_size=256, pairs_batch_size=1024, generator=generator),
            traits={"unpaired_weight": weights},
            generator=generator,
        )
        train(learner, partial(score_held_out, population, here, folds), Budget(N_STEPS, n_looks=1))
        seconds = time.perf_counter() - begin
    return 1e3 * seconds / N_STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[5, 50, 500])
    parser.add_argument("--no-fit", action="store_true", help="leave out the default fits")
    parser.add_argument("--devices", nargs="+", choices=["cpu", "cuda"], help="those that are there, if not given")
    options = parser.parse_args()
    console = Console(width=120)
    devices = options.devices or ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    of_device = {"cpu": lambda: f"cpu ({torch.get_num_threads()} threads)", "cuda": torch.cuda.get_device_name}
    names = [of_device[device]() for device in devices]
    console.print(
        f"{datetime.date.today()}, fewpairs {fewpairs.__version__}, torch {torch.__version__}, {', '.join(names)}"
    )

    problem = SwissRoll()
    data = problem.draw(n_pairs=128, n_source=1024, n_target=1024, seed=0)
    rows = [torch.from_numpy(part).float() for part in (data.X, data.Y, data.X_unpaired, data.Y_unpaired)]
    samples = Samples.gather(rows[0], rows[1], unpaired_x=rows[2], unpaired_y=rows[3])
    table = Table("members", *(f"{device}: ms a step" for device in devices), title="One training step of a population")
    for n_members in options.members:
        table.add_row(str(n_members), *(f"{milliseconds_a_step(samples, n_members, device):.1f}" for device in devices))
    console.print(table)
    if options.no_fit:
        return
    x, y = problem.draw_pairs(4000, seed=1_000_000)
    table = Table("device", "seconds", "NLL", title="A default fit: Swiss roll, 128 pairs, draw 0, 4,000 fresh pairs")
    for device in devices:
        begin = time.perf_counter()
        model = MixtureTranslator(random_state=0, device=device, verbose=False)
        model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
        table.add_row(device, f"{time.perf_counter() - begin:.0f}", f"{-model.score(x, y):.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
