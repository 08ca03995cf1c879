"""Torch's own generator: threads of Python share it, and none of them notices."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from conftest import searched
from small_networks import DATA, corrected, fit, free

from fewpairs.baselines import REGISTRY
from fewpairs.networks.dice import borrowed_dice

N_THREADS = 4


def rival(name: str) -> Any:
    return REGISTRY[name](max_steps=20, batch_size=16, hidden=(8,), random_state=0, verbose=False)


MAKERS = {
    "mixture": lambda: searched(training__max_steps=3),
    "corrected": corrected,
    "energy": lambda: free(training__max_steps=20),
    "regression": lambda: rival("regression"),
    "cgmm-ss": lambda: rival("cgmm-ss"),
    "fsbm": lambda: rival("fsbm"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_threads_fit_and_draw_alike(make: Any) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    alone = fit(make())
    expected = alone.sample(DATA.X, 3, random_state=0)
    with ThreadPoolExecutor(N_THREADS) as pool:
        fitted = list(pool.map(lambda number: fit(make()), range(N_THREADS)))
        drawn = list(pool.map(lambda number: alone.sample(DATA.X, 3, random_state=0), range(4 * N_THREADS)))
    for draws in [*drawn, *(model.sample(DATA.X, 3, random_state=0) for model in fitted)]:
        np.testing.assert_array_equal(draws, expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_dice_are_put_back_whatever_happens() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), borrowed_dice():
        torch.manual_seed(1)
        first = torch.rand(3)
        with borrowed_dice():  # within is no deadlock
            torch.rand(1)
        second = torch.rand(3)
        _ = 1 / 0
    assert torch.equal(torch.get_rng_state(), before)
    again = torch.rand(6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.cat([first, second]), again)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have() -> None:
    began, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with borrowed_dice():
            began.set()
            ends.wait()

    other = threading.Thread(target=hold)
    other.start()
    began.wait()
    child, found = os.fork(), (0, 0)
    if child == 0:
        with borrowed_dice():
            os._exit(0)
    try:
        deadline = time.monotonic() + 20
        while (found := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found == (child, 0)
    finally:
        ends.set()
        other.join()
        if found == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
