"""A warm start goes on from where the first fit ended: the same settings, members, folds and scales."""

import numpy as np
import pytest
import torch
from conftest import brief, draw_branches, fit, searched

from fewpairs import MixtureTranslator, Search, load
from fewpairs.datasets.made import TwoBranches


def warm(**changes) -> MixtureTranslator:
    return brief(**{"training__max_steps": 60, "warm_start": True, **changes})


@pytest.fixture(scope="module")
def begun() -> MixtureTranslator:
    return fit(warm(), draw_branches())


def test_a_warm_start_goes_on_from_where_it_was(begun: MixtureTranslator, tmp_path) -> None:
    """One more step leaves it where it was; one step from the start is far from there. A file in between changes nothing."""
    data = draw_branches()
    x, y = TwoBranches().draw_pairs(2000, seed=1)
    begun.save(tmp_path / "model")
    first, second = (load(tmp_path / "model").set_params(training__max_steps=1) for _ in range(2))
    before = first.score(x, y)
    fit(first, data)
    assert abs(first.score(x, y) - before) < 0.02
    assert fit(warm(training__max_steps=1), data).score(x, y) < before - 0.1
    fit(second, data)
    assert np.array_equal(first.score_samples(x, y), second.score_samples(x, y))


def test_a_warm_start_takes_new_rows_and_keeps_the_folds(begun: MixtureTranslator, tmp_path) -> None:
    begun.save(tmp_path / "model")
    model = load(tmp_path / "model")
    x, y = TwoBranches().draw_pairs(2000, seed=1)
    before, folds = model.score(x, y), dict(zip(model.fold_keys_.tolist(), model.folds_.tolist(), strict=True))
    scales = [model.x_scaler_.scale.clone(), model.y_scaler_.loc.clone()]
    old, new = draw_branches(), TwoBranches().draw(n_pairs=30, n_source=300, n_target=200, seed=5)
    X, Y = np.concatenate([new.X, old.X]), np.concatenate([new.Y, old.Y])
    model.fit(X, Y, X_unpaired=new.X_unpaired, Y_unpaired=new.Y_unpaired)
    after = dict(zip(model.fold_keys_.tolist(), model.folds_.tolist(), strict=True))
    assert len(after) == 90 and folds.items() <= after.items()
    assert model.n_pairs_ == 90 and model.n_unpaired_ == [300, 200]
    assert torch.equal(scales[0], model.x_scaler_.scale) and torch.equal(scales[1], model.y_scaler_.loc)
    assert model.score(x, y) > before - 0.05  # half as many pairs again; they do not make it worse
    assert model.novelty(new.X_unpaired).max() <= 1


def test_without_warm_start_a_second_fit_forgets_the_first() -> None:
    data = draw_branches()
    model = fit(brief(), draw_branches(30))
    assert np.array_equal(fit(model, data).predict(data.X), fit(brief(), data).predict(data.X))


@pytest.mark.parametrize("seed", [5, 8])
def test_a_warm_start_trains_those_that_had_no_share_next_to_those_that_had(seed: int) -> None:
    """Finals without a share have no members left: new ones stand beside the old in one population."""
    search = Search(hidden=(), covariance="full", variance_floor=0.01, adversarial=0.0, n_atoms=3, emphasis=0.0)
    model = searched(search=search, n_folds=2, random_state=seed, warm_start=True)
    data = draw_branches(40, seed)
    fit(model, data)
    settings = [{**final, "share": None} for final in model.finals_]
    of_ours = [final["share"] for final in model.finals_ if final["objective"] == "marginal"]
    assert min(of_ours) == 0 < max(of_ours)
    fit(model, data)
    assert model.ended_ == "finished" and [{**final, "share": None} for final in model.finals_] == settings
    assert np.isfinite(model.score(data.X, data.Y))
