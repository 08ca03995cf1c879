"""Summaries: what a fitted model says of itself, in a paragraph."""

import math
from typing import TYPE_CHECKING

from fewpairs.estimators.classifier_defaults import LEAST_TO_HOLD_OUT
from fewpairs.plans.ensemble import IGNORES_X

if TYPE_CHECKING:
    from fewpairs.estimators.classifier import SemiSupervisedClassifier
    from fewpairs.estimators.mixture import MixtureTranslator

__all__ = ["summarise_classifier", "summarise_mixture"]


def summarise_mixture(model: "MixtureTranslator") -> str:
    """What was learnt, from what, and how far to trust it."""
    data = model._about_data()
    if math.isnan(model.validation_score_):
        return f"{data}; nothing was held out, so nothing is known about how good it is. Training {model.ended_}."
    score = _with_error(f"{model.validation_score_:.3f}", model.validation_score_error_)
    idle = {"share", "part"} if model.bias_["is_biased"] else {"share", "part", "emphasis"}
    settings = ", ".join(f"{name} {value}" for name, value in model.chosen_.items() if name not in idle)
    return (
        f"{data}. Held-out log-likelihood {score} nats per pair{_about_judges(model)}. x brought "
        f"{_gain(model.x_gain_, model.x_gain_error_)} against ignoring it{_about_unpaired(model)}. Of "
        f"{len(model.candidates_)} candidates, the ensemble gives the largest share, {model.chosen_['share']:.0%}, to: "
        f"{settings}; a linear regression has {model.linear_share_:.0%}, and {model.plan_.share(IGNORES_X):.0%} ignore x. "
        f"Training {model.ended_}."
    )


def summarise_classifier(model: "SemiSupervisedClassifier") -> str:
    """What was learnt, from what, and how far to trust it."""
    data = f"Learnt {len(model.classes_)} classes from {model.n_labelled_} labelled and {model.n_unlabelled_} unlabelled rows"
    if math.isnan(model.validation_score_):
        return (
            f"{data}; with fewer than {LEAST_TO_HOLD_OUT} labelled rows, one member, or one row a class, none is held out, "
            f"so nothing is known about how good it is. Training {model.ended_}."
        )
    gain = ""
    # There may have been no time to see how it is without them.
    if model.n_unlabelled_ and not math.isnan(model.unpaired_gain_):
        gain = f"; the unlabelled rows brought {model.unpaired_gain_:+.3f} ± {model.unpaired_gain_error_:.3f}"
    return (
        f"{data}. Held-out log-probability {model.validation_score_:.3f} ± {model.validation_score_error_:.3f} nats a label. x "
        f"brought {model.x_gain_:+.3f} ± {model.x_gain_error_:.3f} against the prior{gain}. The "
        f"ensemble gives {model.chosen_['share']:.0%} to objective {model.chosen_['objective']}, adversarial "
        f"{model.chosen_['adversarial']}, and {model.plan_.share(IGNORES_X):.0%} to the prior alone. "
        f"Training {model.ended_}."
    )


def _about_judges(model: "MixtureTranslator") -> str:
    if not model.bias_["is_biased"]:
        return ""
    return (
        f" (weighted towards the unpaired x's, like {model.bias_['effective_sample_size']:.0f} pairs from there; "
        f"{model.bias_['coverage']:.0%} of them lie among the pairs)"
    )


def _about_unpaired(model: "MixtureTranslator") -> str:
    n_x, n_y = model.n_unpaired_
    if n_y == 0 < n_x and model.objective != model._objective():
        return "; the unpaired x's, without unpaired y's, tell nothing about y and helped to scale x alone"
    if n_x + n_y == 0:
        return ""
    gain = _gain(model.unpaired_gain_, model.unpaired_gain_error_)
    return f"; the unpaired rows brought {gain} against the best model without them"


def _gain(gain: float, error: float) -> str:
    return "an unknown gain (there was no time to find out)" if math.isnan(gain) else _with_error(f"{gain:+.3f}", error)


def _with_error(figure: str, error: float) -> str:
    return f"{figure} (too few pairs for an error bar)" if math.isnan(error) else f"{figure} ± {error:.3f}"
