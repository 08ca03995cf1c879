"""What holds for both translators with networks: repeatable fits, equal methods, files, interrupts, and the door to both."""

import math

import numpy as np
import pytest
import torch
from small_networks import DATA, Colours, Shifted, corrected, fit, free, image_model, images
from torch import nn

from fewpairs import CorrectedTranslator, EnergyTranslator, NeuralTranslator, load
from fewpairs.energies.contrast import Contrast
from fewpairs.energies.correction import Correction
from fewpairs.energies.samplers import AdjustedLangevin, Langevin

BOTH = pytest.mark.parametrize("make", [corrected, free], ids=["corrected", "free"])


@pytest.mark.parametrize("make", [free, corrected, lambda: free(objective="supervised")])
def test_fits_are_repeatable_and_leave_the_generator_alone(make) -> None:
    state = torch.random.get_rng_state()
    one, two = fit(make()), fit(make())
    assert np.array_equal(one.sample(DATA.X, 2, random_state=0), two.sample(DATA.X, 2, random_state=0))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert one.sample(DATA.X, 3).shape == (3, 60, 1)
    assert one.predict(DATA.X[:4]).shape == (4, 1)
    assert one.energy(DATA.X, DATA.Y).shape == (60,)
    assert np.isfinite(one.energy(DATA.X, DATA.Y)).all()


@BOTH
def test_intervals_cover_their_own_draws_and_quantiles_are_ordered(make) -> None:
    """Quantiles of a thousand draws and the share of four thousand others between them, to four standard errors of both."""
    model = fit(make())
    quantiles = model.predict_quantiles(DATA.X[:20], (0.05, 0.25, 0.5, 0.75, 0.95))
    assert quantiles.shape == (5, 20, 1)
    assert (np.diff(quantiles, axis=0) > 0).all()
    lower, upper = model.predict_interval(DATA.X[:20], 0.9)
    assert np.allclose(lower, quantiles[0]) and np.allclose(upper, quantiles[-1])
    drawn = model.sample(DATA.X[:20], 4000, random_state=1)
    covered = ((drawn >= lower) & (drawn <= upper)).mean(0)
    assert (np.abs(covered - 0.9) < 4 * math.sqrt(0.9 * 0.1 * (1 / 1000 + 1 / 4000))).all()


@BOTH
def test_far_rows_are_novel_and_those_of_training_are_not(make) -> None:
    model = fit(make())
    assert model.novelty(DATA.X).shape == (60,)
    assert (model.novelty(DATA.X) <= 1).mean() > 0.95
    assert (model.novelty(DATA.X + 100) > 1).all()


@BOTH
def test_the_score_is_the_mean_of_the_log_likelihoods(make) -> None:
    model = fit(make())
    estimate = model.estimate_log_likelihood(DATA.X[:20], DATA.Y[:20])
    weight = np.arange(20)
    assert model.score(DATA.X[:20], DATA.Y[:20]) == pytest.approx(estimate.log_likelihood.mean())
    weighted = model.score(DATA.X[:20], DATA.Y[:20], sample_weight=weight)
    assert weighted == pytest.approx(np.average(estimate.log_likelihood, weights=weight))


@BOTH
def test_a_one_dimensional_y_comes_back_without_its_last_axis(make, tmp_path) -> None:
    model = make().fit(DATA.X, DATA.Y[:, 0], X_unpaired=DATA.X_unpaired, Y_unpaired=DATA.Y_unpaired[:, 0])
    assert model.sample(DATA.X[:5], 3).shape == (3, 5) and model.predict(DATA.X[:5]).shape == (5,)
    lower, upper = model.predict_interval(DATA.X[:5])
    assert lower.shape == upper.shape == (5,) and (lower < upper).all()
    assert model.predict_quantiles(DATA.X[:5]).shape == (3, 5)
    model.save(tmp_path / "model")
    assert np.array_equal(load(tmp_path / "model").predict(DATA.X[:5]), model.predict(DATA.X[:5]))


def test_images_have_the_same_faces() -> None:
    """Quantiles are of each pixel on its own; images of another brightness are far from all others."""
    model = image_model(sampler=Langevin(n_steps=5))  # without a range, at whose ends many pixels would lie
    model.fit(images(20), images(20, 1), X_unpaired=images(30, 2), Y_unpaired=images(30, 3))
    quantiles = model.predict_quantiles(images(2), (0.1, 0.5, 0.9))
    assert quantiles.shape == (3, 2, 3, 4, 4) and (np.diff(quantiles, axis=0) >= 0).all()
    lower, upper = model.predict_interval(images(2), 0.8)
    assert np.allclose(lower, quantiles[0]) and np.allclose(upper, quantiles[-1])
    drawn = model.sample(images(2), 1000, random_state=1)
    assert ((drawn >= lower) & (drawn <= upper)).mean() == pytest.approx(0.8, abs=0.02)
    assert (model.novelty(images(20)) <= 1).all() and (model.novelty(images(5) + 10) > 1).all()
    assert "20 pairs, 30 unpaired x's and 30 unpaired y's" in model.summary()
    assert math.isfinite(model.score(images(3), images(3, 1)))


@pytest.mark.parametrize(
    "make",
    [free, corrected, lambda: free(sampler=AdjustedLangevin(n_steps=3, clamp=(-3.0, 3.0)))],
    ids=["free", "corrected", "adjusted"],
)
def test_files_bring_back_the_same_model(make, tmp_path) -> None:
    model = fit(make())
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert np.array_equal(again.sample(DATA.X, 2, random_state=0), model.sample(DATA.X, 2, random_state=0))
    assert np.array_equal(again.energy(DATA.X, DATA.Y), model.energy(DATA.X, DATA.Y))
    assert np.array_equal(again.novelty(DATA.X), model.novelty(DATA.X))
    assert again.summary() == model.summary()
    assert type(again) is type(model)
    if isinstance(model, EnergyTranslator):
        assert again.sampler == model.sampler


def test_other_classes_of_networks_are_not_loaded(tmp_path) -> None:
    class Other(Shifted):
        pass

    fit(free(cost=Shifted(0.0))).save(tmp_path / "own.safetensors")
    with pytest.raises(ValueError, match="cost is a Other, but this model was fitted with a Shifted"):
        load(tmp_path / "own.safetensors", cost=Other(0.0))
    fit(free()).save(tmp_path / "default.safetensors")
    with pytest.raises(ValueError, match="none of your own: leave it out"):
        load(tmp_path / "default.safetensors", cost=Shifted(0.0))


def interrupt_in_step(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C within this step of a learner of networks."""
    for kind in (Contrast, Correction):
        count = []

        def stop(self, hand, *, learn=kind._learn, count=count):
            count.append(1)
            if len(count) == number:
                raise KeyboardInterrupt
            return learn(self, hand)

        monkeypatch.setattr(kind, "_learn", stop)


@BOTH
def test_an_interrupt_keeps_the_best_so_far(make, monkeypatch) -> None:
    interrupt_in_step(3, monkeypatch)
    with pytest.warns(UserWarning, match="Interrupted"):
        model = fit(make())
    assert model.ended_ == "interrupted" and model.n_steps_ < 3
    assert model.sample(DATA.X).shape == (1, 60, 1)


def test_an_interrupt_before_the_first_step_leaves_an_energy_as_it_was(monkeypatch) -> None:
    model = fit(free())
    before = dict(vars(model))
    for one in (model, free()):
        interrupt_in_step(1, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            fit(one)
    assert vars(model) == before
    assert not hasattr(one, "plan_")


def test_an_interrupt_before_the_first_step_leaves_a_correction_with_its_base(monkeypatch) -> None:
    """The base has been learnt by then, and is a model of its own."""
    interrupt_in_step(1, monkeypatch)
    with pytest.warns(UserWarning, match="Interrupted"):
        model = fit(corrected())
    assert model.ended_ == "interrupted" and float(model.plan_.strength) == 0
    assert np.array_equal(model.predict(DATA.X), model.base_.predict(DATA.X))


@pytest.mark.parametrize("earlier", [False, True])
def test_a_fit_that_fails_leaves_the_model_as_it_was(earlier: bool) -> None:
    model = fit(free()) if earlier else free()
    before = dict(vars(model))
    with pytest.raises(ValueError, match="equally many rows"):
        model.fit(images(3), DATA.Y[:2])
    assert vars(model) == before


class Difference(nn.Module):
    def forward(self, x, y):
        return (x - y).square().sum(-1)


class Bowl(nn.Module):
    def forward(self, y):
        return -y.square().sum(-1)


class Column(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, y):
        return self.layer(y)


@BOTH
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"potential": Column()}, r"potential must give one number a row, but .* gave \(2, 1\)"),
        ({"cost": nn.Bilinear(7, 1, 1)}, "cost was handed arrays of shape"),
        ({"cost": Difference(), "potential": Bowl()}, "nothing to learn"),
        ({"training__betas": (0.9,)}, "betas"),
    ],
)
def test_networks_that_do_not_fit_are_refused_by_name(make, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(make(**settings))


def test_the_door_gives_the_class_that_was_meant() -> None:
    assert type(NeuralTranslator()) is type(NeuralTranslator("mixture", bound=2.0)) is CorrectedTranslator
    assert type(NeuralTranslator(base=None)) is EnergyTranslator
    assert NeuralTranslator(base=None, epsilon=2.0).epsilon == 2.0 and NeuralTranslator(bound=2.0).bound == 2.0
    assert type(NeuralTranslator.from_recipe("images", cost=Colours())) is EnergyTranslator
