"""scikit-learn's own checks, and the two places where unpaired rows need care: pipelines and grid search."""

import pickle

import numpy as np
import pytest
import sklearn
from conftest import FIXED
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fewpairs import MixtureTranslator, NeuralTranslator, Unpaired
from fewpairs.datasets.made import TwoBranches
from fewpairs.energies.samplers import Langevin

QUICK = {**FIXED, "max_steps": 5, "n_atoms": 5}
QUICK_NETWORKS = {
    "base": None,
    "cost_hidden": (4,),
    "potential_hidden": (4,),
    "sampler": Langevin(n_steps=2),
    "sampling_steps": 2,
    "max_steps": 2,
    "verbose": False,
}
DATA = TwoBranches().draw(n_pairs=40, n_source=40, n_target=60, seed=0)

NEEDS_Y = (
    "it calls score_samples(X), but a conditional density log p(y|x) needs a y; test_estimators checks rows one by one"
)
CANNOT_APPLY = {
    "check_sample_weight_equivalence_on_dense_data": "minibatches and held-out pairs are drawn at random: a row of weight two "
    "is a row twice in expectation (test_objectives holds that exactly), not draw by draw",
    "check_methods_sample_order_invariance": NEEDS_Y,
    "check_methods_subset_invariance": NEEDS_Y,
}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [MixtureTranslator(**QUICK), NeuralTranslator(**QUICK_NETWORKS)],
    expected_failed_checks=lambda estimator: CANNOT_APPLY,
)
def test_scikit_learns_checks(estimator, check) -> None:
    check(estimator)


def test_clone_and_pickle() -> None:
    model = MixtureTranslator(**QUICK).fit(DATA.X, DATA.Y)
    assert clone(model).get_params() == model.get_params()
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(DATA.X), model.predict(DATA.X))


def test_a_pipeline_transforms_unpaired_rows_too() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = MixtureTranslator(**QUICK).set_fit_request(X_unpaired=True, Y_unpaired=True)
        pipe = Pipeline([("scale", StandardScaler()), ("model", model)], transform_input=["X_unpaired"])
        pipe.fit(DATA.X, DATA.Y, X_unpaired=DATA.X_unpaired, Y_unpaired=DATA.Y_unpaired)
        by_hand = StandardScaler().fit(DATA.X)
        alone = MixtureTranslator(**QUICK).fit(
            by_hand.transform(DATA.X), DATA.Y, X_unpaired=by_hand.transform(DATA.X_unpaired), Y_unpaired=DATA.Y_unpaired
        )
        assert np.array_equal(pipe.predict(DATA.X), alone.predict(by_hand.transform(DATA.X)))


def test_a_pipeline_that_forgets_unpaired_rows_is_warned_of() -> None:
    shifted, unpaired = DATA.X + 1e4, DATA.X_unpaired + 1e4
    pipe = Pipeline([("scale", StandardScaler()), ("model", MixtureTranslator(**QUICK))])
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
    search = GridSearchCV(MixtureTranslator(**QUICK), {"smoothing": [0.1, 0.4]}, cv=2)
    search.fit(DATA.X, DATA.Y, X_unpaired=Unpaired(DATA.X_unpaired))
    assert set(seen) == {40}
    assert search.best_params_["smoothing"] in (0.1, 0.4)
    assert repr(Unpaired(DATA.X_unpaired)) == "Unpaired(40 rows)"


def test_cross_validation_scores_by_likelihood() -> None:
    scores = cross_val_score(MixtureTranslator(**QUICK), DATA.X, DATA.Y, cv=2)
    assert np.isfinite(scores).all()
