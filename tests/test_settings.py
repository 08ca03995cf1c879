"""Settings objects never change and are set from outside like any argument; rules accept and refuse what they say."""

import math
import warnings
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from conftest import FIXED, FIXED_SEARCH, fixed
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import fewpairs
from fewpairs import (
    Architecture,
    ChainSettings,
    ClassifierSearch,
    ClassifierTraining,
    CorrectedTranslator,
    EnergyTranslator,
    MixtureTranslator,
    NetworkTraining,
    Perceptrons,
    Search,
    SemiSupervisedClassifier,
    Training,
)
from fewpairs.datasets.made import TwoBranches
from fewpairs.estimators import rules, settings
from fewpairs.estimators.rules import Rule, check_rules

KINDS = (
    Search,
    Architecture,
    Training,
    ClassifierSearch,
    ClassifierTraining,
    Perceptrons,
    NetworkTraining,
    ChainSettings,
)
MODELS = (MixtureTranslator, SemiSupervisedClassifier, CorrectedTranslator, EnergyTranslator)


@pytest.mark.parametrize("kind", KINDS)
def test_settings_are_frozen_and_their_defaults_keep_to_their_rules(kind) -> None:
    one = kind()
    assert set(kind.rules) == {field.name for field in fields(kind)} == set(one.get_params())
    check_rules(one, kind.rules)
    for name, value in one.get_params().items():
        with pytest.raises(FrozenInstanceError):
            setattr(one, name, value)
    assert getattr(fewpairs, kind.__name__) is kind
    with pytest.raises(TypeError):
        kind(3)


@pytest.mark.parametrize("kind", MODELS)
def test_every_argument_has_a_rule_and_defaults_keep_to_them(kind) -> None:
    model = kind()
    assert set(kind.rules) == set(model.get_params(deep=False))
    check_rules(model, kind.rules)


@pytest.mark.parametrize("kind", MODELS)
def test_setting_one_replaces_the_object_and_leaves_the_default_alone(kind) -> None:
    default = kind().training
    before = default.get_params()
    model, other = kind(), kind()
    assert model.set_params(training__max_steps=7) is model
    assert model.training.max_steps == 7 and model.training is not default
    assert other.training is default is kind().training and default.get_params() == before
    assert model.training.get_params() == {**before, "max_steps": 7}


def test_names_reach_every_depth() -> None:
    names = MixtureTranslator().get_params()
    assert names["search__smoothing"] == "auto" and names["training__max_steps"] == "auto"
    assert names["search"] is MixtureTranslator().search
    corrected = CorrectedTranslator(base=fixed()).set_params(base__training__max_steps=3, training__max_steps=4)
    assert corrected.base.training.max_steps == 3 and corrected.training.max_steps == 4


def test_an_object_and_one_of_its_settings_come_together() -> None:
    model = MixtureTranslator().set_params(training__max_steps=3, training=Training(learning_rate=0.5))
    assert (model.training.max_steps, model.training.learning_rate) == (3, 0.5)


def test_unknown_names_are_told_what_there_is() -> None:
    model = MixtureTranslator()
    before = model.get_params()
    with pytest.raises(ValueError, match=r"Training has no 'steps'; it has max_steps, learning_rate, .*, dtype\."):
        model.set_params(training__steps=3)
    with pytest.raises(
        ValueError, match=r"Search has no 'max_steps'; it has unpaired_weight, smoothing, .*, emphasis\."
    ):
        model.set_params(search__max_steps=3)
    with pytest.raises(ValueError, match="takes max_steps in training: set training__max_steps"):
        model.set_params(max_steps=3)
    with pytest.raises(ValueError, match="Invalid parameter 'network'"):
        model.set_params(network__max_steps=3)
    assert model.get_params() == before


def test_a_clone_has_equal_settings() -> None:
    model = fixed(training__max_steps=3, architecture__n_slopes=2)
    again = clone(model)
    assert again.get_params() == model.get_params()
    again.set_params(training__max_steps=9, search__smoothing=0.7)
    assert model.training.max_steps == 3 and model.search.smoothing == FIXED_SEARCH.smoothing


def test_a_grid_search_goes_over_settings() -> None:
    data = TwoBranches().draw(n_pairs=30, n_source=10, n_target=10, seed=0)
    grid = {"search__smoothing": [0.1, 0.4], "training__learning_rate": [1e-2, 3e-2]}
    found = GridSearchCV(fixed(training__max_steps=30), grid, cv=2).fit(data.X, data.Y)
    assert len(np.unique(found.cv_results_["mean_test_score"])) == 4  # each of them was fitted with settings of its own
    best = found.best_estimator_
    assert (best.search.smoothing, best.training.learning_rate) == tuple(found.best_params_.values())
    assert FIXED["search"].smoothing == 0.2 and FIXED["training"].learning_rate == Training().learning_rate


def test_whole_objects_can_be_searched_over_as_well() -> None:
    data = TwoBranches().draw(n_pairs=30, n_source=10, n_target=10, seed=0)
    grid = {"training": [Training(max_steps=1), Training(max_steps=10)], "training__batch_size": [16]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = GridSearchCV(fixed(), grid, cv=2).fit(data.X, data.Y)
    assert found.best_estimator_.training.batch_size == 16


NUMBERS = (math.nan, math.inf, True, np.bool_(True), "1", None, [1])
RULES: dict[str, tuple[Rule, tuple, tuple]] = {
    "a number above 0": (rules.above(0), (1e-300, 3, np.float32(0.5), np.int64(2)), (0, 0.0, -1, *NUMBERS)),
    "a number from 0.5 on": (rules.at_least(0.5), (0.5, 3, np.float64(0.5)), (0.49, -3, *NUMBERS)),
    "a number from 0 to 0.5": (rules.between(0, 0.5), (0, 0.5, 0.25), (-1e-9, 0.51, *NUMBERS)),
    "a whole number from 2 on": (rules.whole(2), (2, 10**6, np.int64(3)), (1, 2.0, 2.5, np.float64(3), *NUMBERS)),
    "'a' or 'b'": (
        rules.one_of("a", "b"),
        ("a", "b", np.str_("a")),
        ("c", "", "A", 0, None, ["a"], np.array(["a", "b"])),
    ),
    "an int or a Training": (rules.instance_of(int, Training), (3, Training()), (3.0, Training, Search(), None)),
    "anything": (rules.ANYTHING, (None, [], "a", np.zeros(3)), ()),
    "True or False": (rules.FLAG, (True, False, np.bool_(True)), (0, 1, "True", None, [])),
    "None": (rules.NOTHING, (None,), (0, False, "", [], math.nan)),
    "a string": (rules.TEXT, ("", "a"), (None, 0, b"a", ["a"])),
    "a list of numbers": (rules.SEQUENCE, ([], (1, 2), np.array([3])), ("12", 3, None, {1, 2})),
    "None, a whole number from 0 on or a numpy RandomState": (
        rules.RANDOM_STATE,
        (None, 0, 2**32 - 1, np.int64(3), np.random.RandomState(0)),
        (-1, 2**32, 1.5, True, "0", np.random.default_rng(0)),
    ),
    "a number from 0 on or 'auto' or None": (
        rules.at_least(0) | rules.one_of("auto") | rules.NOTHING,
        (0, 2.5, "auto", None),
        (-1, "none", [], True),
    ),
    "the two of Adam, each from 0 on and below 1, such as (0.9, 0.999)": (
        NetworkTraining.rules["betas"],
        ((0.9, 0.999), [0.0, 0.9], np.array([0.5, 0.9])),
        ((0.9,), 0.9, "ab", None),
    ),
}


@pytest.mark.parametrize("says", RULES)
def test_rules_accept_and_refuse_what_they_say(says: str) -> None:
    rule, good, bad = RULES[says]
    assert rule.says == says
    assert [value for value in good if not rule.accepts(value)] == []
    assert [value for value in bad if rule.accepts(value)] == []


def test_every_rule_there_is_was_tried() -> None:
    tried = {id(rule) for rule, _, _ in RULES.values()}
    constants = {name for name in rules.__all__ if isinstance(getattr(rules, name), Rule)}
    assert all(id(getattr(rules, name)) in tried for name in constants)
    assert {"above", "at_least", "between", "instance_of", "one_of", "whole"} == {
        name for name in rules.__all__ if name not in {*constants, "Rule", "check_rules"}
    }


def test_a_broken_rule_is_told_with_its_owner() -> None:
    model = fixed(training=Training(learning_rate=-1.0))
    with pytest.raises(ValueError, match=r"^learning_rate of Training must be a number above 0, but -1.0 came\.$"):
        check_rules(model, model.rules)
    with pytest.raises(ValueError, match=r"^search of MixtureTranslator must be a Search, but Training\(.*\) came\.$"):
        check_rules(model.set_params(search=Training()), model.rules)


def test_all_settings_are_told_of_here() -> None:
    assert {kind.__name__ for kind in KINDS} == set(settings.__all__) - {"Configured", "Settings"}
