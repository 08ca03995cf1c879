"""Files of older formats: models that were saved by them answer what they answered then."""

from pathlib import Path

import numpy as np
import pytest

from fewpairs import CorrectedTranslator, EnergyTranslator, MixtureTranslator, SemiSupervisedClassifier, load
from fewpairs.data.files import read_model, write_model
from fewpairs.plans.ensemble import IGNORES_X, LINEAR

# Model files, and beside each of them what the model said of some rows before it was saved.
MODELS = Path(__file__).parent / "models"
NAMES = sorted(path.stem for path in MODELS.glob("*.safetensors"))
KINDS = {
    "mixture": MixtureTranslator,
    "classifier": SemiSupervisedClassifier,
    "corrected": CorrectedTranslator,
    "energy": EnergyTranslator,
}


def answers(model, told) -> dict[str, np.ndarray]:
    """What a model says today to what was asked then."""
    X, y = told["X"], told["y"]
    asked = {
        "predict": lambda: model.predict(X),
        "predict_proba": lambda: model.predict_proba(X),
        "score_samples": lambda: model.score_samples(X, y),
        "quantiles": lambda: model.predict_quantiles(X),
        "sample": lambda: model.sample(X, 2, random_state=0),
        "novelty": lambda: model.novelty(X),
        "energy": lambda: model.energy(X, y),
        "log_likelihood": lambda: model.estimate_log_likelihood(X, y).log_likelihood,
    }
    return {name: asked[name]() for name in told.files if name in asked}


def same(found: np.ndarray, told: np.ndarray) -> bool:
    if told.dtype.kind in "fc":
        return found.shape == told.shape and np.allclose(found, told, rtol=1e-12, atol=1e-12)
    return np.array_equal(found, told)


@pytest.mark.filterwarnings("ignore:.*far from every x")
@pytest.mark.parametrize("name", NAMES)
def test_models_of_older_files_answer_what_they_answered_then(name: str, tmp_path) -> None:
    model = load(MODELS / f"{name}.safetensors")
    told = np.load(MODELS / f"{name}.npz")
    assert type(model) is next(kind for word, kind in KINDS.items() if word in name)
    found = answers(model, told)
    assert {"predict"} < set(found)
    for asked, answer in found.items():
        assert same(answer, told[asked]), asked
    if "format3" in name:
        assert model.summary() == str(told["summary"])
    assert "nan" not in model.summary()
    model.save(tmp_path / "again")  # and once more, as a file of today
    for asked, answer in answers(load(tmp_path / "again"), told).items():
        assert np.array_equal(answer, found[asked]), asked


@pytest.mark.parametrize("name", ["format2_mixture", "format3_mixture"])
def test_the_parts_of_an_older_ensemble_are_those_it_was_mixed_from(name: str) -> None:
    model = load(MODELS / f"{name}.safetensors")
    plan = model.plan_
    assert [part.name for part in plan.parts][:2] == [IGNORES_X, LINEAR]
    assert [len(part) for part in plan.parts] == [1, 3, 3, 3]
    for final in model.finals_:
        assert plan.share(final["part"]) == pytest.approx(final["share"])
    assert float(plan.shares.sum()) == pytest.approx(1.0)
    assert 0 < model.linear_share_ < 1 and all(len(part) == 1 for part in plan.without(1).parts)


@pytest.mark.filterwarnings("ignore:Training met numbers")
def test_an_older_model_can_go_on_learning() -> None:
    model, told = load(MODELS / "format3_mixture.safetensors"), np.load(MODELS / "format3_mixture.npz")
    model.set_params(warm_start=True, training__max_steps=5)
    X, y = np.repeat(told["X"], 3, axis=0), np.repeat(told["y"], 3, axis=0)
    model.fit(X + 0.01 * np.arange(len(X))[:, None], y, X_unpaired=X, Y_unpaired=y)
    assert np.isfinite(model.validation_score_) and model.n_folds_ == 3


def test_settings_of_older_files_are_grouped_as_todays() -> None:
    model = load(MODELS / "format3_mixture_one_fold.safetensors")
    assert model.search.hidden == [4] and model.search.n_atoms == 4 and model.search.smoothing == "auto"
    assert (model.n_folds, model.training.max_steps, model.architecture.n_slopes) == (1, 10, 4)
    model = load(MODELS / "format3_classifier.safetensors")
    assert (model.n_members, model.training.learning_rate, model.search.decisiveness) == (2, 0.01, "auto")
    model = load(MODELS / "format3_corrected.safetensors")
    assert (model.n_draws, model.smoothing, model.perceptrons.cost_hidden, model.training.max_steps) == (
        8,
        0.1,
        [8],
        40,
    )
    model = load(MODELS / "format3_energy.safetensors")
    assert (model.smoothing, model.chains.sampling_steps, model.sampler.clamp) == (0.0, 20, (-4.0, 4.0))


def test_older_files_that_do_not_know_where_xs_were_say_so() -> None:
    told = np.load(MODELS / "format3_energy.npz")
    with pytest.raises(ValueError, match=r"does not hold x's of its training.*Fit and save it again"):
        load(MODELS / "format3_energy.safetensors").novelty(told["X"])
    told = np.load(MODELS / "format3_corrected.npz")
    assert np.isfinite(load(MODELS / "format3_corrected.safetensors").novelty(told["X"])).all()  # its base knows


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(1, "Only the fewpairs of its time reads it. Fit and"), (5, "A newer fewpairs reads it. Upgr")],
)
def test_formats_that_nobody_here_reads_are_refused_with_who_does(version, remedy, tmp_path, monkeypatch) -> None:
    tensors, description = read_model(MODELS / "format3_energy.safetensors")
    monkeypatch.setattr("fewpairs.data.files.FORMAT_VERSION", version)
    write_model(tmp_path / "model", tensors, description)
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match=rf"format version {version}, and this fewpairs reads versions 2 to 4. {remedy}"
    ):
        load(tmp_path / "model")
