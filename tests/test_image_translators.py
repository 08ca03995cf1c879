"""Images in translators with networks: they keep their shape, their pixels stay as they are, and networks are the user's own."""

import numpy as np
import pytest
import torch
from small_networks import Brightness, Colours, corrected, free, image_model, images
from torch import nn

from fewpairs import EnergyTranslator, load
from fewpairs.energies.energy import MapCost
from fewpairs.energies.samplers import Langevin


def test_images_go_in_and_come_out_in_their_shape(tmp_path) -> None:
    model = image_model().fit(images(20), images(20, 1), X_unpaired=images(30, 2), Y_unpaired=images(30, 3))
    assert model.sample(images(5), 2).shape == (2, 5, 3, 4, 4)
    assert model.predict(images(2)).shape == (2, 3, 4, 4)
    assert np.abs(model.sample(images(5))).max() <= 1
    assert model.energy(images(5), images(5, 1)).shape == (5,)
    assert float(model.x_scaler_.scale.min()) == 1  # pixels stay as they are
    model.save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"cost of your own \(MapCost\)"):
        load(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", cost=MapCost(Colours()), potential=Brightness())
    assert np.array_equal(again.sample(images(3), random_state=0), model.sample(images(3), random_state=0))
    with pytest.raises(ValueError, match="not like those"):
        load(tmp_path / "model.safetensors", cost=MapCost(nn.Conv2d(3, 3, 3)), potential=Brightness())
    with pytest.raises(ValueError, match=r"images of shape \(3, 4, 4\)"):
        model.sample(images(2)[:, :, :3])


@pytest.mark.filterwarnings("ignore:.*far from every x")
@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_images_can_be_corrected_as_well(strength: float, tmp_path) -> None:
    """Of a mixture of their pixels, which takes rows."""
    y = images(40, 1)[:, :1, :2, :2]
    model = corrected().fit(images(40), y, X_unpaired=images(30, 2), Y_unpaired=images(30, 3)[:, :1, :2, :2])
    model.plan_.strength.fill_(strength)
    assert model.sample(images(3), 2).shape == (2, 3, 1, 2, 2)
    assert model.predict(images(3)).shape == (3, 1, 2, 2)
    lower, upper = model.predict_interval(images(3))
    assert lower.shape == (3, 1, 2, 2) and (lower < upper).all()
    assert (model.novelty(images(40)) <= 1).all() and (model.novelty(images(3) + 10) > 1).all()
    assert np.isfinite(model.energy(images(3), y[:3])).all()
    assert model.score(images(3), y[:3]) == pytest.approx(model.score_samples(images(3), y[:3]).mean())
    model.save(tmp_path / "model")
    assert np.array_equal(load(tmp_path / "model").predict(images(3)), model.predict(images(3)))


def test_the_recipe_for_images_takes_networks_and_learns() -> None:
    settings = {"training__max_steps": 3, "chains__sampling_steps": 5, "device": "cpu", "verbose": False}
    model = EnergyTranslator.from_recipe("images", cost=MapCost(Colours()), potential=Brightness(), **settings)
    model.fit(images(20), images(20, 1), X_unpaired=images(30, 2), Y_unpaired=images(30, 3))
    assert model.objective_ == "transport"
    assert np.abs(model.sample(images(5))).max() <= 1


def test_a_black_margin_is_no_constant_column() -> None:
    """In a table it would be one, and without a density."""
    framed, others = images(20), images(30, 1)
    framed[:, :, 0], others[:, :, 0] = -1, -1
    model = image_model().fit(framed, framed, X_unpaired=others, Y_unpaired=others)
    assert model.sample(framed[:2]).shape == (1, 2, 3, 4, 4)
    with pytest.raises(ValueError, match="zero variance"):
        free().fit(framed.reshape(20, -1), framed.reshape(20, -1))


def test_the_users_networks_are_left_alone() -> None:
    cost = MapCost(Colours())
    before = cost.map.layer.weight.detach().clone()
    image_model(cost=cost).fit(images(20), images(20, 1))
    assert torch.equal(cost.map.layer.weight, before)


def test_means_ask_the_map_about_each_image_once(monkeypatch) -> None:
    """However many chains it has. In blocks of bounded size, on which neither means nor energies depend."""
    model = image_model(sampler=Langevin(n_steps=5, temperature=1e-6, step_size=1e-6, target=None))
    model.fit(images(20), images(20, 1))
    whole, energies = model.predict(images(7)), model.energy(images(2000), images(2000, 1))
    sizes, forward = [], Colours.forward

    def count(self, x):
        sizes.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(Colours, "forward", count)
    monkeypatch.setattr("fewpairs.estimators.networks.MOST_NUMBERS", 3 * 256 * 48)
    assert np.allclose(
        model.predict(images(7)), whole, atol=0.01
    )  # chains as cold as these have all but found the least u
    assert sizes == [3, 3, 1]
    assert model.sample(images(2), 1000).shape == (1000, 2, 3, 4, 4)
    assert np.allclose(model.energy(images(2000), images(2000, 1)), energies, rtol=1e-4)
    assert max(sizes) == 3 * 256


def test_images_have_perceptrons_where_no_network_is_given() -> None:
    model = free().fit(images(20), images(20, 1))
    assert model.sample(images(2)).shape == (1, 2, 3, 4, 4)
    assert free().fit(list(images(20)), list(images(20, 1))).x_shape_ == (3, 4, 4)


def test_a_module_begins_with_the_weights_it_has() -> None:
    model = image_model(training__learning_rate=1e-12, training__one_cycle=False)
    model.fit(images(20), images(20, 1))
    assert torch.allclose(model.plan_.cost.map.layer.weight, model.cost.map.layer.weight, atol=1e-6)
