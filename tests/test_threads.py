"""Threads: a fit takes one, gives back what it found, and leaves alone who has said how many."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch
from conftest import blobs, fixed, quick
from threadpoolctl import threadpool_info

from fewpairs import EnergyTranslator, NetworkTraining, Perceptrons, SemiSupervisedClassifier
from fewpairs.baselines import Regression
from fewpairs.datasets import TwoBranches
from fewpairs.training import threads

N_THREADS = 3  # as if a machine had so many cores
DATA = TwoBranches().draw(n_pairs=60, n_source=100, n_target=120, seed=0)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that began with some threads, and whose user has said nothing."""
    for name in threads.USERS_OWN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "BEGAN_WITH", N_THREADS)
    before = torch.get_num_threads()
    torch.set_num_threads(N_THREADS)
    yield
    torch.set_num_threads(before)


def pools() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info()]


def translate(model: Any) -> Any:
    return model.fit(DATA.X, DATA.Y, X_unpaired=DATA.X_unpaired, Y_unpaired=DATA.Y_unpaired)


def classify() -> SemiSupervisedClassifier:
    X, _, labels = blobs()
    return quick().fit(X, labels)


NETWORKS: dict[str, Any] = {
    "training": NetworkTraining(max_steps=3),
    "perceptrons": Perceptrons(cost_hidden=(8,), potential_hidden=(8,)),
    "verbose": False,
}
STEPS = "fewpairs.training.learners.one_cycle"
FITS: dict[str, tuple[Callable[[], Any], str]] = {  # a fit, and a function that it calls
    "mixture": (lambda: translate(fixed(training__max_steps=5)), STEPS),
    "networks": (lambda: translate(EnergyTranslator(**NETWORKS)), "fewpairs.energies.contrast.Contrast._learn"),
    "classifier": (classify, STEPS),
    "baseline": (lambda: translate(Regression(max_steps=5, verbose=False)), "fewpairs.baselines.base.Baseline._judge"),
}


def look_from(place: str, look: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is seen from within a function whenever it is called."""
    where, _, name = place.rpartition(".")
    function, seen = getattr(resolve_name(where), name), []

    def looking(*arguments: Any, **options: Any) -> Any:
        seen.append(look())
        return function(*arguments, **options)

    monkeypatch.setattr(resolve_name(where), name, looking)
    return seen


@pytest.mark.parametrize("name", FITS)
def test_a_fit_takes_one_thread_and_gives_the_others_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (fit, place), before = FITS[name], pools()
    seen = look_from(place, lambda: (torch.get_num_threads(), *pools()), monkeypatch)
    fit()
    assert seen and set(sum(seen, ())) == {1}
    assert torch.get_num_threads() == N_THREADS and pools() == before


def test_a_fit_that_fails_gives_them_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise MemoryError

    before = pools()
    fit, place = FITS["mixture"]
    look_from(place, fail, monkeypatch)
    with pytest.raises(MemoryError):
        fit()
    assert torch.get_num_threads() == N_THREADS and pools() == before


@pytest.mark.parametrize("way", ["environment", "torch"])
def test_who_has_said_how_many_is_obeyed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "environment":
        monkeypatch.setenv("OMP_NUM_THREADS", str(N_THREADS))
    else:
        torch.set_num_threads(2)
    expected, (fit, place) = torch.get_num_threads(), FITS["mixture"]
    seen = look_from(place, torch.get_num_threads, monkeypatch)
    fit().predict(DATA.X)
    assert set(seen) == {expected} and torch.get_num_threads() == expected


def test_what_is_read_off_in_a_moment_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FITS["mixture"][0]()
    seen = look_from("fewpairs.plans.conditionals.ConditionalMixture.log_weights", torch.get_num_threads, monkeypatch)
    model.sample(DATA.X), model.predict(DATA.X), model.predict_interval(DATA.X)
    assert len(seen) >= 3 and set(seen) == {1}
    assert torch.get_num_threads() == N_THREADS
    seen.clear()
    model.predict(np.repeat(DATA.X, 10_000, axis=0))
    assert set(seen) == {N_THREADS}  # long enough for all of them


@pytest.mark.parametrize(
    "name, place",
    [
        ("networks", "fewpairs.energies.chained.draw_afresh"),
        ("classifier", "fewpairs.plans.classes.ClassEnsemble.log_probs"),
        ("baseline", "fewpairs.baselines.Regression._draw"),
    ],
)
def test_so_do_the_answers_of_networks(name: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = FITS[name][0]()
    seen = look_from(place, torch.get_num_threads, monkeypatch)
    if name == "classifier":
        model.predict(blobs()[0])
    else:
        model.sample(DATA.X)
    assert seen and set(seen) == {1}
    assert torch.get_num_threads() == N_THREADS


def test_fits_in_several_threads_end_with_what_they_began_with() -> None:
    before, found, fit = pools(), [], FITS["mixture"][0]
    within = threading.Barrier(3)

    def overlap(n_fits: int) -> None:
        with threads.one_thread():
            within.wait()  # all are within at once, and leave in any order
            for _ in range(n_fits):
                fit()
        found.append(torch.get_num_threads())

    others = [threading.Thread(target=overlap, args=(n_fits,)) for n_fits in (1, 2, 0)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert found == [N_THREADS] * 3
    assert torch.get_num_threads() == N_THREADS and pools() == before


FIT_FOR_SOME_SECONDS = """
import time, warnings
from fewpairs import MixtureTranslator, Training
from fewpairs.datasets import TwoBranches

warnings.simplefilter("ignore")
data = TwoBranches().draw(n_pairs=80, n_source=300, n_target=300, seed=0)
start = time.process_time()
model = MixtureTranslator(training=Training(max_steps=25), n_folds=2, random_state=0, verbose=False)
model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired).predict_interval(data.X)
print(time.process_time() - start)
"""


def cpu_seconds(n_busy: int) -> float:
    """The CPU seconds of a fit beside some programs that never rest."""
    environment = {name: value for name, value in os.environ.items() if name not in threads.USERS_OWN}
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_busy)]
    try:
        command = [sys.executable, "-c", FIT_FOR_SOME_SECONDS]
        return float(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
    finally:
        for program in busy:
            program.kill()
            program.wait()


@pytest.mark.slow
def test_a_fit_beside_busy_programs_costs_little_more() -> None:
    """In CPU seconds, which do not count the time that others have."""
    alone = min(cpu_seconds(0) for _ in range(2))
    beside = min(cpu_seconds(os.cpu_count() or 1) for _ in range(2))
    assert beside < 1.3 * alone
