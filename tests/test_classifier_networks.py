"""Networks of a classifier: images in their own shapes, modules of the user's own, and files."""

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import blobs, fixed, quick
from sklearn.datasets import load_digits
from torch import nn

from fewpairs import load


def test_images_come_in_their_own_shapes() -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:60], np.where(np.arange(60) < 30, y[:60], -1)
    settings = {"training__max_steps": 3, "scale": "together"}
    flat = quick(**settings, network="cnn", image_shape=(1, 8, 8)).fit(X, y)
    grey = quick(**settings, network="cnn").fit(X.reshape(-1, 8, 8), y)
    deep = quick(**settings, network="cnn").fit(X.reshape(-1, 1, 8, 8), y)
    assert grey.image_shape_ == deep.image_shape_ == flat.image_shape_ == (1, 8, 8)
    for other in (grey.predict_proba(X.reshape(-1, 8, 8)), deep.predict_proba(X)):
        assert np.array_equal(flat.predict_proba(X), other)
    small, large = (quick(**settings).fit(np.kron(X.reshape(-1, 8, 8), np.ones((size, size))), y) for size in (1, 2))
    kinds = [[type(layer) for layer in model.plan_.modules()] for model in (small, large)]
    assert nn.Conv2d not in kinds[0] and nn.Conv2d in kinds[1]  # "auto" begins to convolve at 16 × 16 pixels
    with pytest.raises(ValueError, match=r"\(1, 4, 16\), but \(1, 8, 8\) or flattened ones were expected"):
        grey.predict(X.reshape(-1, 4, 16))
    images = X.reshape(-1, 8, 8)
    for same in (list(images), images.tolist(), [torch.from_numpy(image) for image in images]):
        assert np.array_equal(grey.predict_proba(same), flat.predict_proba(X))


def test_channels_that_come_last_are_told() -> None:
    images = np.random.default_rng(0).normal(size=(40, 8, 8, 3))
    with pytest.warns(UserWarning, match=r"8 channels and 8 × 3 pixels.*transpose\(0, 3, 1, 2\)"):
        quick().fit(images, np.arange(40) % 2)


@pytest.mark.parametrize("network", ["mlp", "own", "embedded"])
def test_a_saved_model_predicts_the_same(network: str, tmp_path) -> None:
    X, _, labels = blobs(260, 120)
    words = np.array(["?" if k < 0 else ("short", "a longer word", "x")[k] for k in labels])
    own = nn.Sequential(nn.Linear(2, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3))
    more = {"own": {"network": own}, "embedded": {"label_embedding": 4, "hidden": (8, 8)}}.get(network, {})
    settings = {"training__max_steps": 60, "training__learning_rate": 1e-2, "unlabelled": "?", **more}
    model = quick(**settings).fit(pd.DataFrame(X, columns=["a", "b"]), words)
    assert len(model.plan_.members) > 1  # beside the prior
    model.save(tmp_path / "model")
    if network == "own":
        with pytest.raises(ValueError, match=r"load\(path, network=…\)"):
            load(tmp_path / "model")
        with pytest.raises(ValueError, match="not like the one this classifier was fitted with"):
            load(tmp_path / "model", network=nn.Linear(2, 3))
    else:
        with pytest.raises(ValueError, match="needs no other"):
            load(tmp_path / "model", network=own)
    again = load(tmp_path / "model", **({"network": own} if network == "own" else {}))
    frame = pd.DataFrame(X, columns=["a", "b"])
    assert np.array_equal(model.predict_proba(frame), again.predict_proba(frame))
    assert np.array_equal(model.predict(frame), again.predict(frame)) and again.classes_.dtype == model.classes_.dtype
    assert again.summary() == model.summary()
    assert again.candidates_ == model.candidates_


def test_a_network_is_for_classifiers_alone(tmp_path) -> None:
    X = np.linspace(0, 1, 20)[:, None]
    fixed(training__max_steps=2).fit(X, X).save(tmp_path / "model")
    with pytest.raises(ValueError, match="takes no network"):
        load(tmp_path / "model", network=nn.Linear(1, 1))
