"""Several fits as one: the seeds of a study, trained as one population."""

from collections.abc import Mapping, Sequence
from typing import Any

from fewpairs.estimators.learning import learning
from fewpairs.estimators.mixture import MixtureTranslator
from fewpairs.selection.choice import choose_together
from fewpairs.training.clock import Clock

__all__ = ["fit_together"]


def fit_together(models: Sequence[MixtureTranslator], data: Sequence[Mapping[str, Any]]) -> None:
    """Fits each model to its own data, all of them as one population: the seeds of a study for little more than one.

    Each outcome is that of a fit on its own, up to rounding.

    Arguments:
        models: They differ in `random_state` alone, and leave nothing to choose: every setting is given, and n_folds is 1.
        data: For each model the arguments of its `fit`, with equally many rows of each kind.
    """
    settings = [{**model.get_params(), "random_state": None} for model in models]
    if len(models) != len(data) or any(one != settings[0] for one in settings):
        raise ValueError("fit_together takes one set of data a model, and models that differ in random_state alone.")
    trainers = []
    with learning(*models):
        for model, arguments in zip(models, data, strict=True):
            model._check_arguments()
            more_x, more_y = arguments.get("X_unpaired"), arguments.get("Y_unpaired")
            samples = model._gather(arguments["X"], arguments["y"], X_unpaired=more_x, Y_unpaired=more_y)
            trainers.append(model._prepare(samples, Clock(model.time_budget), lambda title, done: None))
        choices = choose_together(trainers, models[0]._options(), models[0]._objective())
        for model, choice in zip(models, choices, strict=True):
            model._keep(choice)
