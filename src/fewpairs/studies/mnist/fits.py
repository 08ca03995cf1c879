"""Digits with few labels: what unlabelled images bring a classifier, by how many there are of both kinds, and beside its rivals.

Labels are balanced, as in the paper. A seed has one order of the images: more labelled or unlabelled ones are the same ones and
others, so that cells of one seed can be compared. Tables, figures and the page are made in `page`.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from fewpairs import metrics
from fewpairs.datasets.real import ImageData, load_fashion_mnist, load_mnist, make_glyphs
from fewpairs.estimators.classifier import SemiSupervisedClassifier
from fewpairs.studies.cells import Cell, Store
from fewpairs.studies.settings import with_settings

__all__ = ["BOUNDED", "FAST", "FULL", "LEAST_TO_BEGIN_WITH", "METHODS", "TINY", "Fit", "Grid", "Images", "StudyPlan"]

BOUNDED, SUPERVISED, PAPER = "bounded (marginal), the default", "labelled rows alone", "the paper's loss"
SELF_TRAINING, SPREADING = "self-training", "label spreading"
METHODS = (BOUNDED, SUPERVISED, PAPER, SELF_TRAINING, SPREADING)
LEAST_TO_BEGIN_WITH = 50  # labels: rivals are compared with from here on
OBJECTIVES: dict[str, Literal["marginal", "supervised", "inverse_eot"]] = {
    BOUNDED: "marginal",
    SUPERVISED: "supervised",
    PAPER: "inverse_eot",
    SELF_TRAINING: "supervised",
}
EMBEDDED = {"mlp": 32, "cnn": 64}  # numbers of a label's embedding in the authors' networks
DATASETS: dict[str, Callable[[], ImageData]] = {
    "MNIST": load_mnist,
    "Fashion-MNIST": load_fashion_mnist,
    "drawn digits": partial(make_glyphs, 400, seed=0),
}


@cache
def _images(dataset: str) -> ImageData:
    return DATASETS[dataset]()


@dataclass(frozen=True)
class Images(Cell):
    """The images are there, and fetched before anybody needs them."""

    dataset: str

    @property
    def name(self) -> str:
        return f"data-{self.dataset.replace(' ', '-')}"

    def load(self) -> ImageData:
        return _images(self.dataset)

    def run(self, store: Store, device: str) -> dict[str, Any]:
        images = self.load()
        return {"n_train": len(images.train_images), "n_test": len(images.test_images), "classes": images.class_names}


@dataclass(frozen=True)
class Fit(Cell):
    """One classifier, and how good it is on the test images."""

    images: Images
    method: str
    network: str
    n_labelled: int
    n_unlabelled: int
    seed: int
    n_test: int
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        words = f"{self.images.dataset}-{self.network}-{self.method}".replace("'", "").replace(" ", "-")
        return f"{words}-P{self.n_labelled}-Q{self.n_unlabelled}-seed{self.seed}"

    @property
    def effort(self) -> float:
        of_method = {BOUNDED: 10.0, SUPERVISED: 1.0, PAPER: 5.0, SELF_TRAINING: 30.0, SPREADING: 0.5}[self.method]
        return of_method * (5.0 if self.network == "cnn" else 1.0) * (2.0 if self.n_labelled >= 100 else 1.0)

    def run(self, store: Store, device: str) -> dict[str, Any]:
        X, y, test_X, test_y = self.draw()
        model = self._make(X.shape[1], device)
        start = time.perf_counter()
        with warnings.catch_warnings():  # what rivals complain of is what their scores show
            warnings.simplefilter("ignore")
            model.fit(X, y)
            seconds = time.perf_counter() - start
            probability = model.predict_proba(test_X)
        # Label spreading has nothing to say where no label reached: all classes alike.
        n_classes = probability.shape[1]
        probability = np.where(np.isfinite(probability).all(1, keepdims=True), probability, 1 / n_classes)
        is_right = model.classes_[probability.argmax(1)] == test_y
        of_truth = probability[np.arange(len(test_y)), np.searchsorted(model.classes_, test_y)]
        return {
            "accuracy": float(is_right.mean()),
            "log_loss": float(-np.log(of_truth.clip(min=1e-12)).mean()),
            "calibration": metrics.calibration_error(probability, is_right),
            "seconds": seconds,
            "finals": getattr(model, "finals_", None),
        }

    def draw(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rows with labels, or −1 for none; and the test rows with theirs. Pixels from 0 to 1."""
        images = self.images.load()
        order = np.random.default_rng(self.seed).permutation(len(images.train_images))
        classes, labels = np.unique(images.train_labels), images.train_labels[order]
        each, rest = divmod(self.n_labelled, len(classes))
        if rest:
            raise ValueError(f"{self.n_labelled} labels cannot be shared out evenly among {len(classes)} classes.")
        first = np.concatenate([np.flatnonzero(labels == label)[:each] for label in classes])
        # The unlabelled ones come from the second half of the order, whatever the number of labels.
        others = np.setdiff1d(np.arange(len(order) // 2, len(order)), first)[: self.n_unlabelled]
        rows = np.concatenate([order[first], order[others]])
        y = np.concatenate([labels[first], np.full(len(others), -1)])
        X, test_X = (_flat(part) for part in (images.train_images[rows], images.test_images[: self.n_test]))
        return X, y, test_X, images.test_labels[: self.n_test]

    def _make(self, n_pixels: int, device: str) -> Any:
        if self.method == SPREADING:
            return LabelSpreading(kernel="knn")
        side = round(n_pixels**0.5)
        settings: dict[str, Any] = {"network": self.network, "image_shape": (1, side, side), **dict(self.settings)}
        if self.method == PAPER:
            settings["label_embedding"] = EMBEDDED[self.network]
        objective = OBJECTIVES[self.method]
        ours = SemiSupervisedClassifier(objective=objective, random_state=self.seed, device=device, verbose=False)
        with_settings(ours, settings)
        return SelfTrainingClassifier(ours) if self.method == SELF_TRAINING else ours


def _flat(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1) / 255.0


@dataclass(frozen=True)
class Grid:
    """Which fits of one data set."""

    dataset: str
    labelled: tuple[int, ...]
    unlabelled: tuple[int, ...]
    networks: tuple[str, ...]
    n_seeds: int


@dataclass(frozen=True)
class Scale:
    """How large the study is: its grids, test images, and settings of all networks."""

    name: str
    grids: tuple[Grid, ...]
    n_test: int
    settings: tuple[tuple[str, Any], ...] = ()


BOTH = ("mlp", "cnn")
DIGITS = Grid("MNIST", (10, 20, 50, 100, 200, 500, 1000), (500, 1000, 2000, 5000, 10_000), BOTH, 3)
CLOTHES = Grid("Fashion-MNIST", (50, 200, 1000), (2000, 10_000), BOTH, 3)
FULL = Scale("full", (DIGITS, CLOTHES), 10_000)
FAST = Scale("fast", (Grid("MNIST", (20, 100), (1000,), ("mlp",), 2),), 2000, (("max_steps", 300),))
TINY = Scale(
    "tiny",
    (Grid("drawn digits", (50,), (100,), BOTH, 2),),
    100,
    (("max_steps", 3), ("n_members", 2), ("hidden", (8, 8))),
)


@dataclass(frozen=True)
class StudyPlan:
    """All fits of a study of one scale."""

    scale: Scale

    def fits(self) -> list[Fit]:
        fits = [
            fit
            for grid in self.scale.grids
            for network in grid.networks
            for method in METHODS
            for n_labelled in grid.labelled
            for n_unlabelled in grid.unlabelled
            for fit in self.of(grid, method, network, n_labelled, n_unlabelled)
        ]
        return list(dict.fromkeys(fits))

    def of(self, grid: Grid, method: str, network: str, n_labelled: int, n_unlabelled: int) -> list[Fit]:
        """One fit a seed. Labelled rows alone are the same for any number of others; label spreading has no network;
        self-training fits a network many times over, and is done with the most unlabelled rows, where there are labels enough
        to begin with; how the paper's loss fails is seen in one seed."""
        is_widest = n_unlabelled == max(grid.unlabelled)
        if method == SELF_TRAINING and (not is_widest or n_labelled < LEAST_TO_BEGIN_WITH):
            return []
        n_seeds = 1 if method == PAPER else grid.n_seeds
        network = "" if method == SPREADING else network
        n_unlabelled = 0 if method == SUPERVISED else n_unlabelled
        return [
            Fit(
                Images(grid.dataset),
                method,
                network,
                n_labelled,
                n_unlabelled,
                seed,
                self.scale.n_test,
                self.scale.settings,
            )
            for seed in range(n_seeds)
        ]
