"""scikit-learn's own checks, and the two places where unpaired rows need care: pipelines and grid search."""

import inspect
import pickle
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
import sklearn
from conftest import fixed
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fewpairs import (
    ChainSettings,
    CorrectedTranslator,
    EnergyTranslator,
    MixtureTranslator,
    NetworkTraining,
    Perceptrons,
    Unpaired,
)
from fewpairs.datasets.made import TwoBranches
from fewpairs.energies.samplers import Langevin
from fewpairs.estimators.settings import Settings

NETWORKS = {
    "perceptrons": Perceptrons(cost_hidden=(4,), potential_hidden=(4,)),
    "training": NetworkTraining(max_steps=2),
    "verbose": False,
}
CHAINS = {"sampler": Langevin(n_steps=2), "chains": ChainSettings(sampling_steps=2)}
DATA = TwoBranches().draw(n_pairs=40, n_source=40, n_target=60, seed=0)


def make_model(**changes) -> MixtureTranslator:
    return fixed(training__max_steps=5, search__n_atoms=5, **changes)


NEEDS_Y = (
    "it calls score_samples(X), but a conditional density log p(y|x) needs a y; test_estimators checks rows one by one"
)
CANNOT_APPLY = {
    "check_sample_weight_equivalence_on_dense_data": "minibatches and held-out pairs are drawn at random: a row of weight two "
    "is a row twice in expectation (test_objectives holds that exactly), not draw by draw",
    "check_methods_sample_order_invariance": NEEDS_Y,
    "check_methods_subset_invariance": NEEDS_Y,
    "check_parameters_default_constructible": "it takes no objects as defaults, since they could be changed; settings objects "
    "are frozen (what else it asks for is asked for below)",
}
MODELS = [make_model(), EnergyTranslator(**NETWORKS, **CHAINS), CorrectedTranslator(make_model(), **NETWORKS)]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    MODELS,
    expected_failed_checks=lambda estimator: CANNOT_APPLY,
)
def test_scikit_learns_checks(estimator, check) -> None:
    check(estimator)


@pytest.mark.parametrize("kind", [type(model) for model in MODELS])
def test_arguments_are_kept_as_they_came_and_no_default_can_change(kind) -> None:
    defaults = {
        name: one.default for name, one in inspect.signature(kind.__init__).parameters.items() if name != "self"
    }
    own = kind().get_params(deep=False)
    assert own.keys() == defaults.keys()
    for name, default in defaults.items():
        assert own[name] is default
        hash(default)
        for field in fields(default) if isinstance(default, Settings) else ():
            with pytest.raises(FrozenInstanceError):
                setattr(default, field.name, None)


def test_clone_and_pickle() -> None:
    model = make_model().fit(DATA.X, DATA.Y)
    assert clone(model).get_params() == model.get_params()
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(DATA.X), model.predict(DATA.X))


def test_a_pipeline_transforms_unpaired_rows_too() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = make_model().set_fit_request(X_unpaired=True, Y_unpaired=True)
        pipe = Pipeline([("scale", StandardScaler()), ("model", model)], transform_input=["X_unpaired"])
        pipe.fit(DATA.X, DATA.Y, X_unpaired=DATA.X_unpaired, Y_unpaired=DATA.Y_unpaired)
        by_hand = StandardScaler().fit(DATA.X)
        alone = make_model().fit(
            by_hand.transform(DATA.X), DATA.Y, X_unpaired=by_hand.transform(DATA.X_unpaired), Y_unpaired=DATA.Y_unpaired
        )
        assert np.array_equal(pipe.predict(DATA.X), alone.predict(by_hand.transform(DATA.X)))


def test_a_pipeline_that_forgets_unpaired_rows_is_warned_of() -> None:
    shifted, unpaired = DATA.X + 1e4, DATA.X_unpaired + 1e4
    pipe = Pipeline([("scale", StandardScaler()), ("model", make_model())])
    with pytest.warns(UserWarning, match="transform_input"):
        pipe.fit(shifted, DATA.Y, model__X_unpaired=unpaired)


def test_grid_search_passes_wrapped_unpaired_rows_on_whole(monkeypatch) -> None:
    """40 unpaired x's for 40 pairs: bare, scikit-learn takes them for a column of the pairs and cuts them into folds."""
    seen = []
    gather = MixtureTranslator._gather

    def spy(self, *arguments, **keywords):
        samples = gather(self, *arguments, **keywords)
        seen.append(len(samples.source) - len(samples.pairs_x))
        return samples

    monkeypatch.setattr(MixtureTranslator, "_gather", spy)
    search = GridSearchCV(make_model(), {"search__smoothing": [0.1, 0.4]}, cv=2)
    search.fit(DATA.X, DATA.Y, X_unpaired=Unpaired(DATA.X_unpaired))
    assert set(seen) == {40}
    assert search.best_params_["search__smoothing"] in (0.1, 0.4)
    assert repr(Unpaired(DATA.X_unpaired)) == "Unpaired(40 rows)"


def test_cross_validation_scores_by_likelihood() -> None:
    scores = cross_val_score(make_model(), DATA.X, DATA.Y, cv=2)
    assert np.isfinite(scores).all()
