"""Older files: what formats 2 and 3 hold, in the words of today's, so that models answer as they did when they were saved.

In these formats settings were flat, an ensemble was a row of members, each with a share of its own, and one estimator held
corrections as well as energies alone. What a file does not tell, because nobody asked for it then, is told as unknown.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fewpairs.estimators.classifier import SemiSupervisedClassifier
from fewpairs.estimators.corrected import CorrectedTranslator
from fewpairs.estimators.energy_based import EnergyTranslator
from fewpairs.estimators.mixture import MixtureTranslator
from fewpairs.estimators.novelty import Neighbourhood
from fewpairs.estimators.settings import Settings
from fewpairs.plans.ensemble import IGNORES_X, LINEAR

__all__ = ["modernise"]

Tensors = dict[str, Tensor]
MEMBERS = "plan._members."


def modernise(tensors: Tensors, description: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """A file of format 2 or 3 as if it were one of today's."""
    kind, settings, fitted = (description[name] for name in ("estimator", "settings", "fitted"))
    if "members" in fitted:  # their name in format 2
        fitted["shape"] = fitted.pop("members")
    if kind == SemiSupervisedClassifier.__name__:
        return _modern_classifier(tensors, settings, fitted)
    if kind == MixtureTranslator.__name__:
        return _modern_mixture(tensors, settings, fitted)
    if kind == "NeuralTranslator":
        if settings["smoothing"] == "auto":  # what it stood for is what is usual today
            del settings["smoothing"]
        modern = _modern_energy if fitted.get("base_") is None else _modern_correction
        return modern(tensors, settings, fitted)
    return tensors, description


def _modern_mixture(tensors: Tensors, settings: dict[str, Any], fitted: dict[str, Any]) -> tuple[Tensors, dict]:
    tensors = _in_parts(tensors, fitted, fitted.get("linear_share_", 0.0), fitted["shape"])
    if "reference_" in tensors:  # the name of the neighbourhood before it was one thing
        reach = torch.tensor(fitted["reach_"], dtype=torch.float64)
        tensors |= {"neighbourhood_.rows": tensors["reference_"], "neighbourhood_.reach": reach}
    nobody_looked = {"is_biased": False, "p_value": math.nan, "n_clipped": 0, "coverage": 1.0}
    nobody_looked["effective_sample_size"] = float(fitted["n_pairs_"])
    fitted["bias_"] = {**nobody_looked, **fitted.get("bias_", {})}
    return tensors, _describe(MixtureTranslator, settings, fitted)


def _modern_classifier(tensors: Tensors, settings: dict[str, Any], fitted: dict[str, Any]) -> tuple[Tensors, dict]:
    members = [{"is_constant": shape["is_silent"]} for shape in fitted["shape"]]
    tensors = _in_parts(tensors, fitted, 0.0, members)
    return tensors, _describe(SemiSupervisedClassifier, settings, fitted)


def _modern_correction(tensors: Tensors, settings: dict[str, Any], fitted: dict[str, Any]) -> tuple[Tensors, dict]:
    base = fitted.pop("base_")
    of_base = {name.removeprefix("base."): tensor for name, tensor in tensors.items() if name.startswith("base.")}
    of_base, base = modernise(of_base, base)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("base.")}
    tensors |= {f"base.{name}": tensor for name, tensor in of_base.items()}
    tensors |= {name: tensor for name, tensor in of_base.items() if name.startswith("neighbourhood_.")}
    fitted["config"] = fitted["shape"]
    description = _describe(CorrectedTranslator, {**settings, "base": "mixture"}, fitted)
    description["fitted"]["base_"] = base
    return tensors, description


def _modern_energy(tensors: Tensors, settings: dict[str, Any], fitted: dict[str, Any]) -> tuple[Tensors, dict]:
    unknown = Neighbourhood.unknown(fitted["n_features_in_"])
    tensors |= {f"neighbourhood_.{name}": tensor for name, tensor in vars(unknown).items()}
    fitted["config"] = None
    return tensors, _describe(EnergyTranslator, settings, fitted)


def _describe(kind: Any, settings: dict[str, Any], fitted: dict[str, Any]) -> dict[str, Any]:
    """The description of a model of this kind, with flat settings in their groups, and without what it no longer has."""
    known = {*kind.fitted_names, "config", "feature_names_in_"}
    return {
        "estimator": kind.__name__,
        "settings": _in_groups(kind, settings),
        "fitted": {name: value for name, value in fitted.items() if name in known},
    }


def _in_groups(kind: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Flat settings as an estimator groups them today; those that a file does not know are as usual."""
    grouped: dict[str, Any] = {}
    for name, usual in kind().get_params(deep=False).items():
        if isinstance(usual, Settings):
            grouped[name] = {field: settings[field] for field in usual.get_params() if field in settings}
        elif name in settings:
            grouped[name] = settings[name]
    return grouped


def _in_parts(tensors: Tensors, fitted: dict[str, Any], linear_share: float, members: list[Any]) -> Tensors:
    """The tensors of an ensemble by its parts, and what was found, told of parts; `members` is what each member is made of."""
    finals = fitted["finals_"]
    for number, final in enumerate(finals):
        final["part"] = f"candidate {number}"
        final.pop("n_members", None)
    for candidate in (*finals, *fitted["candidates_"]):
        candidate.setdefault("emphasis", 0.0)
    fitted["chosen_"] = max(finals, key=lambda final: final["share"])
    shares: Tensor = tensors["plan.shares"]
    parts = list(_find_parts(shares.tolist(), finals, linear_share, is_judged=bool(fitted["candidates_"])))
    config, renamed, of_parts = [], {}, []
    for number, (name, places) in enumerate(parts):
        config.append({"name": name, "members": [members[place] for place in places]})
        of_parts.append(shares[places.start] * len(places))
        for member, place in enumerate(places):
            renamed[f"{MEMBERS}{place}."] = f"plan._parts.{number}.members.{member}."
    fitted["config"] = config
    told = {name: tensor for name, tensor in tensors.items() if not name.startswith(MEMBERS)}
    for name, tensor in tensors.items():
        if name.startswith(MEMBERS):
            old = MEMBERS + name.removeprefix(MEMBERS).split(".")[0] + "."
            told[renamed[old] + name.removeprefix(old)] = tensor
    return {**told, "plan.shares": torch.stack(of_parts)}


def _find_parts(
    shares: list[float], finals: list[dict[str, Any]], linear_share: float, *, is_judged: bool
) -> Iterator[tuple[str, range]]:
    """The parts of an ensemble by name, and the places of their members, who share alike: first what ignores x, then the linear
    plan, then the candidates that have a share. Where nothing was held out there is one candidate, and it is all there is."""
    if not is_judged:
        yield finals[0]["part"], range(len(shares))
        return
    yield IGNORES_X, range(1)
    place = 1
    for name, share in [(LINEAR, linear_share), *((final["part"], final["share"]) for final in finals)]:
        if share > 0:
            n_members = round(share / shares[place])
            yield name, range(place, place + n_members)
            place += n_members
