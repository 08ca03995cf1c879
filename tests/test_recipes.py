"""Recipes, the paper's own methods; and fits made together, the seeds of a study for little more than one."""

import numpy as np
import pytest
import torch
from conftest import draw_branches, fit

from fewpairs import Architecture, MixtureTranslator
from fewpairs.estimators.together import fit_together


@pytest.mark.parametrize("name", ["paper", "authors"])
def test_recipes_fit(name: str) -> None:
    data = draw_branches()
    model = fit(MixtureTranslator.from_recipe(name, training__max_steps=30, random_state=0, verbose=False), data)
    assert model.n_steps_ == 30 and np.isnan(model.validation_score_)
    assert torch.equal(model.x_scaler_.scale, torch.ones(1).double())
    (plan,) = model.plan_.members
    n_layers = sum(isinstance(layer, torch.nn.Linear) for layer in plan.cost.slope_net)
    assert n_layers == {"paper": 2, "authors": 1}[name]
    assert plan.potential.b.shape == (50, 1) and plan.cost.n_slopes == 25


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no recipe 'best'.*authors.*paper"):
        MixtureTranslator.from_recipe("best")


@pytest.mark.parametrize("recipe", ["paper", "authors"])
def test_fits_made_together_are_those_made_alone(recipe: str) -> None:
    """Every member draws its rows from its own generator, so together and alone differ in rounding only."""
    data = [draw_branches(seed=seed) for seed in (1, 2, 3)]
    arguments = [{"X": one.X, "y": one.Y, "X_unpaired": one.X_unpaired, "Y_unpaired": one.Y_unpaired} for one in data]

    def make(seed: int) -> MixtureTranslator:
        settings = {
            "random_state": seed,
            "training__max_steps": 20,
            "search__n_atoms": 6,
            "architecture__n_slopes": 3,
            "training__dtype": "float64",
        }
        return MixtureTranslator.from_recipe(recipe, **settings, verbose=False)

    together = [make(seed) for seed in range(3)]
    fit_together(together, arguments)
    for seed, (model, one) in enumerate(zip(together, arguments, strict=True)):
        alone = make(seed).fit(**one)
        np.testing.assert_allclose(
            model.score_samples(one["X"], one["y"]), alone.score_samples(one["X"], one["y"]), atol=1e-9
        )
        assert model.history_["step"] == alone.history_["step"]


def test_fits_that_leave_something_to_choose_are_not_made_together() -> None:
    data = draw_branches()
    arguments = [{"X": data.X, "y": data.Y}] * 2
    with pytest.raises(ValueError, match="leave nothing to choose"):
        fit_together([MixtureTranslator(verbose=False)] * 2, arguments)
    with pytest.raises(ValueError, match="differ in random_state alone"):
        fit_together([MixtureTranslator(), MixtureTranslator(architecture=Architecture(n_slopes=2))], arguments)
    short = {"X": data.X[:-1], "y": data.Y[:-1]}
    with pytest.raises(ValueError, match="equally many rows"):
        fit_together([MixtureTranslator.from_recipe("paper", verbose=False)] * 2, [arguments[0], short])
