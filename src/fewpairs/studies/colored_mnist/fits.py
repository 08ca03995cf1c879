"""Coloured digits, 2 → 3: pairs are turned by 120° in hue, and all other images are unpaired (the paper's image experiment).

What is judged: the hue of a translated 2 against its own plus 120°, whether a classifier sees a 3, and the pictures themselves.
The paper's networks learn by our objective and by the paper's own; beside them stands a `MixtureTranslator` of principal
components. Tables, figures and the page are made in `page`.
"""

import time
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from fewpairs.datasets.real import ImageData, color_digits, hues_of
from fewpairs.energies.energy import MapCost
from fewpairs.energies.samplers import Langevin
from fewpairs.estimators.classifier import SemiSupervisedClassifier
from fewpairs.estimators.energy_based import EnergyTranslator
from fewpairs.estimators.mixture import MixtureTranslator
from fewpairs.estimators.settings import ClassifierTraining
from fewpairs.networks.images import ConvPotential, UNet
from fewpairs.studies.cells import Cell, Store
from fewpairs.studies.mnist.fits import Images
from fewpairs.studies.settings import with_settings

__all__ = ["FAST", "FULL", "METHODS", "TINY", "Fit", "Scale", "StudyPlan"]

SOURCE, TARGET, TURN = 2, 3, 120.0
NEURAL, PAPER, COMPONENTS = "networks, our objective", "networks, the paper's loss", "mixture of principal components"
METHODS = (NEURAL, PAPER, COMPONENTS)
SLUGS = {NEURAL: "networks", PAPER: "papers-loss", COMPONENTS: "components"}
N_SHOWN = 8


def draw_colored(digits: ImageData, seed: int) -> dict[str, np.ndarray]:
    """Coloured images of both digits for training and 2's for testing, each in a hue of its own; X and Y are pairs by number."""
    random = np.random.default_rng(seed)
    two, three = (random.permutation(np.flatnonzero(digits.train_labels == digit)) for digit in (SOURCE, TARGET))
    test = np.flatnonzero(digits.test_labels == SOURCE)
    hues, test_hues, more_hues = (random.uniform(0, 360, len(rows)) for rows in (two, test, three))
    n = min(len(two), len(three))
    more_hues[:n] = hues[:n] + TURN
    return {
        "X": color_digits(digits.train_images[two], hues),
        "Y": color_digits(digits.train_images[three], more_hues),
        "test": color_digits(digits.test_images[test], test_hues),
        "test_hues": test_hues,
    }


@dataclass(frozen=True)
class Judge(Cell):
    """How often a small classifier of the digits is right: it says what digit a translated image shows."""

    images: Images
    n_rows: int
    max_steps: int

    @property
    def name(self) -> str:
        return f"judge-{self.images.dataset.replace(' ', '-')}"

    def run(self, store: Store, device: str) -> dict[str, Any]:
        digits = self.images.load()
        return {
            "accuracy": float((self.fitted(device).predict(_grey(digits.test_images)) == digits.test_labels).mean())
        }

    def fitted(self, device: str) -> SemiSupervisedClassifier:
        return _fit_judge(self, device)


@cache
def _fit_judge(judge: Judge, device: str) -> SemiSupervisedClassifier:
    digits = judge.images.load()
    model = SemiSupervisedClassifier(
        objective="supervised",
        network="cnn",
        n_members=1,
        random_state=0,
        device=device,
        verbose=False,
        training=ClassifierTraining(max_steps=judge.max_steps),
    )
    return model.fit(_grey(digits.train_images[: judge.n_rows]), digits.train_labels[: judge.n_rows])


@dataclass(frozen=True)
class Fit(Cell):
    """One method and a number of pairs: what it makes of the 2's for testing."""

    judge: Judge
    method: str
    n_pairs: int
    seed: int
    n_test: int
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.judge.images.dataset.replace(' ', '-')}-{SLUGS[self.method]}-P{self.n_pairs}-seed{self.seed}"

    @property
    def effort(self) -> float:
        return 10.0 if self.method == COMPONENTS else 100.0

    def run(self, store: Store, device: str) -> dict[str, Any]:
        digits = self.judge.images.load()
        data = draw_colored(digits, self.seed)
        test, hues = data["test"][: self.n_test], data["test_hues"][: self.n_test]
        model = self._make(device)
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            n = self.n_pairs
            model.fit(data["X"][:n], data["Y"][:n], X_unpaired=data["X"][n:], Y_unpaired=data["Y"][n:])
        seconds = time.perf_counter() - start
        drawn = model.sample(test, random_state=0)[0]
        turned = np.abs((hues_of(drawn) - hues - TURN + 180) % 360 - 180)
        seen = self.judge.fitted(device).predict(_grey_of_colored(drawn))
        # One image of each hue, from red on, and beside it a true 3 in the colour that its translation should have.
        order = np.argsort(hues)[:: max(len(hues) // N_SHOWN, 1)][:N_SHOWN]
        threes = digits.test_images[np.flatnonzero(digits.test_labels == TARGET)[: len(order)]]
        return {
            "hue_error": float(turned.mean()),
            "median_hue_error": float(np.median(turned)),
            "identity": float((seen == TARGET).mean()),
            "seconds": seconds,
            "warnings": sorted({str(warning.message) for warning in caught}),
            "history": getattr(model, "history_", None),
            "source": _bytes(test[order]),
            "truth": _bytes(color_digits(threes, hues[order] + TURN)),
            "translated": _bytes(drawn[order]),
        }

    def _make(self, device: str) -> Any:
        if self.method == COMPONENTS:
            return make_components(seed=self.seed, device=device, **dict(self.settings))
        objective = "inverse_eot" if self.method == PAPER else "transport"
        return make_neural(seed=self.seed, device=device, objective=objective, **dict(self.settings))


def make_neural(*, seed: int, device: str, width: int = 64, **changes: Any) -> EnergyTranslator:
    """The paper's networks: cost ‖UNet(x) − y‖²/D and a convolutional potential, both over ε = 0.01."""
    cost, potential = MapCost(UNet(3, width=width)), ConvPotential((3, 32, 32), width=max(width // 2, 2))
    settings: dict[str, Any] = {"random_state": seed, "device": device, "verbose": False}
    return with_settings(EnergyTranslator.from_recipe("images", cost=cost, potential=potential, **settings), changes)


def make_components(*, seed: int, device: str, n_components: int = 6, **changes: Any) -> "ComponentTranslator":
    """Our default between principal components."""
    translator = MixtureTranslator(random_state=seed, device=device, verbose=False)
    return ComponentTranslator(with_settings(translator, changes), n_components)


class ComponentTranslator:
    """Creates a translator of images by their principal components, those of x and those of y.

    Arguments:
        translator: What translates components.
        n_components: How many of each.
    """

    def __init__(self, translator: MixtureTranslator, n_components: int) -> None:
        self.translator, self.n_components = translator, n_components

    def fit(
        self, X: np.ndarray, Y: np.ndarray, *, X_unpaired: np.ndarray, Y_unpaired: np.ndarray
    ) -> "ComponentTranslator":
        self.shape_ = Y.shape[1:]
        both = ((X, X_unpaired), (Y, Y_unpaired))
        self.x_components_, self.y_components_ = (
            PCA(self.n_components, svd_solver="randomized", random_state=0).fit(
                np.concatenate([_rows(part) for part in parts])
            )
            for parts in both
        )
        (x, more_x), (y, more_y) = (
            [components.transform(_rows(part)) for part in parts]
            for components, parts in zip((self.x_components_, self.y_components_), both, strict=True)
        )
        self.translator.fit(x, y, X_unpaired=more_x, Y_unpaired=more_y)
        return self

    def sample(self, X: np.ndarray, n_samples: int = 1, random_state: int | None = None) -> np.ndarray:
        drawn = self.translator.sample(self.x_components_.transform(_rows(X)), n_samples, random_state)
        images = self.y_components_.inverse_transform(drawn.reshape(-1, self.n_components))
        return images.clip(-1, 1).reshape(n_samples, len(X), *self.shape_)


def _rows(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1)


def _grey(images: np.ndarray) -> np.ndarray:
    return images / 255.0


def _grey_of_colored(images: np.ndarray) -> np.ndarray:
    """The brightest channel of coloured images, without their margin."""
    return ((images.max(1) + 1) / 2)[:, 2:-2, 2:-2]


def _bytes(images: np.ndarray) -> list[Any]:
    return ((images.clip(-1, 1) + 1) * 127.5).round().astype(int).tolist()


@dataclass(frozen=True)
class Scale:
    """How large the study is: digits, numbers of pairs, seeds, 2's for testing, and settings of methods and judge."""

    name: str
    dataset: str
    pairs: tuple[int, ...]
    n_seeds: int
    n_test: int
    judge_rows: int
    judge_steps: int
    neural: tuple[tuple[str, Any], ...] = ()
    components: tuple[tuple[str, Any], ...] = ()


FULL = Scale("full", "MNIST", (10, 200), 3, 500, 20_000, 1000)
FAST = Scale("fast", "MNIST", (10, 200), 1, 100, 5000, 300, (("width", 16), ("max_steps", 300)))
TINY = Scale(
    "tiny",
    "drawn digits",
    (10, 20),
    1,
    8,
    200,
    5,
    (
        ("width", 4),
        ("max_steps", 3),
        ("sampling_steps", 5),
        ("sampler", Langevin(n_steps=3, step_size=1e-3, clamp=(-1.0, 1.0))),
    ),
    (("n_components", 3), ("max_steps", 20), ("n_folds", 2)),
)


@dataclass(frozen=True)
class StudyPlan:
    """All fits of a study of one scale."""

    scale: Scale

    def fits(self) -> list[Fit]:
        return [fit for method in METHODS for n_pairs in self.scale.pairs for fit in self.of(method, n_pairs)]

    def of(self, method: str, n_pairs: int) -> list[Fit]:
        """One fit a seed."""
        scale = self.scale
        judge = Judge(Images(scale.dataset), scale.judge_rows, scale.judge_steps)
        settings = scale.components if method == COMPONENTS else scale.neural
        seeds = range(1 if method == PAPER else scale.n_seeds)  # how it fails is seen in one
        return [Fit(judge, method, n_pairs, seed, scale.n_test, settings) for seed in seeds]
