"""What the user has switched on around a call changes nothing: the same model and the same answers, digit for digit."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
import torch
from conftest import blobs, quick, searched
from small_networks import DATA, corrected, fit, free

from fewpairs.baselines import REGISTRY


@contextmanager
def double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(before)


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "float64": double_precision,
    "autocast": autocast,
}


class Classifier:
    """A classifier on heaps, fitted and asked as the translators are."""

    def __init__(self) -> None:
        self.model = quick(training__max_steps=5)

    def fit(self, X: Any, Y: Any, **unpaired: Any) -> "Classifier":
        rows, _, labels = blobs()
        self.model.fit(rows, labels)
        return self

    def predict(self, X: Any) -> np.ndarray:
        return self.model.predict_proba(blobs()[0])


MAKERS = {
    "mixture": lambda: searched(training__max_steps=3),
    "corrected": corrected,
    "energy": free,
    "classifier": Classifier,
    **{
        name: lambda kind=kind: kind(max_steps=3, batch_size=16, hidden=(8,), random_state=0, verbose=False)
        for name, kind in REGISTRY.items()
    },
}


def answers(model: Any) -> dict[str, np.ndarray]:
    X, Y = DATA.X[:5], DATA.Y[:5]
    said = {"predict": model.predict(X)}
    if hasattr(model, "sample"):
        said["sample"] = model.sample(X, 2, random_state=1)
    for name in ("score_samples", "energy"):
        if hasattr(model, name):
            said[name] = getattr(model, name)(X, Y)
    if hasattr(model, "estimate_log_likelihood"):
        said["estimate"] = model.estimate_log_likelihood(X, Y, n_draws=20).log_likelihood
    return said


@pytest.fixture(scope="module", params=MAKERS)
def case(request: pytest.FixtureRequest) -> tuple[Any, Any, dict[str, np.ndarray]]:
    make = MAKERS[request.param]
    model = fit(make())
    return make, model, answers(model)


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_modes_change_nothing(case: Any, mode: Any) -> None:
    make, model, expected = case
    with mode():
        same(answers(model), expected)
        fitted = fit(make())
    same(answers(fitted), expected)


def test_modes_are_put_back() -> None:
    with torch.no_grad(), autocast():
        fit(free())
        assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")
    with torch.inference_mode():
        fit(free())
        assert torch.is_inference_mode_enabled()
    with double_precision(), pytest.raises(ValueError):
        free().fit(DATA.X[:1], DATA.Y[:1])


def test_threads_share_the_default_precision() -> None:
    """The first fit that ends does not put it back under the others."""
    models, barrier = [free(training__max_steps=steps) for steps in (2, 30)], Barrier(2)

    def work(model: Any) -> None:
        barrier.wait()
        fit(model)

    with double_precision():
        threads = [Thread(target=work, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for model in models:
        assert all(parameter.dtype == torch.float32 for parameter in model.plan_.parameters())
