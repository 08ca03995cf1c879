"""What a file must hold before a model is made of it: names that are known, values of their kinds, tensors of their sizes.

The settings of an estimator have rules of their own (`rules`). Here are those of what a fit finds, and of its tensors. What is
broken is told as a ValueError, to which `load` adds the file's name.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewpairs.data.scaling import Scaler
from fewpairs.estimators.novelty import Neighbourhood
from fewpairs.estimators.rules import ANYTHING, FLAG, NOTHING, TEXT, Rule, above, between, one_of, whole
from fewpairs.estimators.settings import Settings
from fewpairs.selection.candidates import Candidate

__all__ = ["check_fitted", "check_made", "check_numbers", "check_settings", "check_sizes"]

LARGEST = {bool: 1, int: 2**63 - 1, float: 1e38}  # of each type, as a setting
LARGEST_LEARNT = 1e30  # its square is beyond float32: nothing was ever learnt there
REMEDY = "The file is damaged, or was not written by model.save(...): copy or save it again."


def _list_of(rule: Rule, length: int | None = None) -> Rule:
    of_length = "" if length is None else f"{length} of "
    return Rule(
        f"a list, {of_length}each of them {rule.says}",
        lambda value: isinstance(value, list) and len(value) in (length, len(value)) and all(map(rule.accepts, value)),
    )


def _with(rules: Mapping[str, Rule]) -> Rule:
    return Rule(
        "a dictionary in which " + ", ".join(f"{name} is {rule.says}" for name, rule in rules.items()),
        lambda value: (
            isinstance(value, dict)
            and set(value) >= set(rules)
            and all(rule.accepts(value[name]) for name, rule in rules.items())
        ),
    )


NUMBER = Rule("a number or NaN", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
FINITE = Rule("a finite number", lambda value: NUMBER.accepts(value) and math.isfinite(value))
SHARE = Rule("a number from 0 to 1", lambda value: NUMBER.accepts(value) and -1e-6 <= value <= 1 + 1e-6)
NAMES = NOTHING | _list_of(ANYTHING)
HISTORY = Rule(
    "a dictionary of lists of numbers",
    lambda value: isinstance(value, dict) and all(map(_list_of(NUMBER).accepts, value.values())),
)
SETTINGS = {field.name: NUMBER for field in fields(Candidate)} | {
    "objective": TEXT,
    "hidden": _list_of(whole(1)),
    "covariance": TEXT,
}
FINAL = _with({**SETTINGS, "share": SHARE, "part": TEXT})
FITTED: dict[str, Rule] = {
    **dict.fromkeys(("n_features_in_", "n_folds_", "n_outputs_"), whole(1)),
    **dict.fromkeys(("n_labelled_", "n_pairs_", "n_steps_", "n_unlabelled_"), whole(0)),
    **dict.fromkeys(("is_1d_",), FLAG),
    **dict.fromkeys(("label_type_", "objective_"), TEXT),
    **dict.fromkeys(("feature_names_in_", "target_names_"), NAMES),
    **dict.fromkeys(("x_shape_", "y_shape_"), _list_of(whole(-1))),
    "buffer_age_": NUMBER,
    **{
        f"{name}{error}_": NUMBER
        for name in ("correction_gain", "unpaired_gain", "validation_score", "x_gain")
        for error in ("", "_error")
    },
    "bias_": _with(
        {
            "is_biased": FLAG,
            "p_value": NUMBER,
            "effective_sample_size": NUMBER,
            "n_clipped": whole(0),
            "coverage": NUMBER,
        }
    ),
    "box_": _list_of(_list_of(FINITE), 2),
    "candidates_": _list_of(_with({**SETTINGS, "score": NUMBER, "error": NUMBER})),
    "chosen_": FINAL,
    "class_prior_": _list_of(SHARE),
    "classes_": _list_of(TEXT | FLAG | NUMBER),
    "ended_": one_of("finished", "out of time", "interrupted", "diverged"),
    "finals_": _list_of(FINAL),
    "history_": HISTORY,
    "image_shape_": NOTHING | _list_of(whole(1), 3),
    "n_unpaired_": _list_of(whole(0), 2),
    "step_size_": between(1e-38, 1e38),
}


def check_settings(usual: Mapping[str, Any], settings: Any) -> None:
    """An error if settings of a file are not those of an estimator, whose usual ones are given."""
    _check_names("settings", settings, usual)
    for name, value in settings.items():
        if isinstance(usual[name], Settings):
            _check_names(name, value, usual[name].get_params())
        if name != "unlabelled":  # labels may be whatever they are
            _check_reach(name, value)


def check_fitted(names: Collection[str], fitted: Any) -> None:
    """An error if fitted attributes are not those of an estimator, or not of their kinds, or do not go together."""
    _check_names("fitted", fitted, names)
    for name in names:
        _demand(name in fitted, f"The fitted attribute {name} is missing")
        rule = FITTED.get(name, ANYTHING)
        _demand(rule.accepts(fitted[name]), f"{name} must be {rule.says}, but {_short(fitted[name])} came")
    n_columns = {"x": fitted["n_features_in_"], "y": fitted.get("n_outputs_", 1)}
    for side, n in n_columns.items():
        shape = fitted.get(f"{side}_shape_", [-1])
        _demand(shape == [-1] or _is_image(shape, n), f"{side}_shape_ is {shape}, but rows have {n} columns")
    _demand(all(len(side) == n_columns["y"] for side in fitted.get("box_", ())), "box_ is not of as many columns as Y")
    _check_dims(fitted["config"], n_columns)
    if "classes_" in names:
        _check_classes(fitted)


def _check_names(what: str, came: Any, known: Collection[str]) -> None:
    _demand(isinstance(came, dict), f"{what} must be a dictionary, but {_short(came)} came")
    unknown = sorted(set(came) - set(known))
    _demand(not unknown, f"{what} has the unknown {unknown[:1]}; known are {', '.join(sorted(known))}")


def _check_reach(name: str, value: Any) -> None:
    """Numbers must be such as torch can compute with."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            _check_reach(name, one)
    elif isinstance(value, int | float):
        _demand(not LARGEST[type(value)] < abs(value) < math.inf, f"{name} holds {_short(value)}, which is too large")


def _check_dims(config: Any, n_columns: Mapping[str, int]) -> None:
    """Wherever the making of a network is told, it must be for as many columns as there are."""
    if isinstance(config, list):
        for one in config:
            _check_dims(one, n_columns)
    elif isinstance(config, dict):
        for side, n in n_columns.items():
            came = config.get(f"dim_{side}", n)
            _demand(came == n, f"A network must be for {n} columns of {side}, but dim_{side} is {_short(came)}")
        _check_dims(config.get("members"), n_columns)


def _check_classes(fitted: Mapping[str, Any]) -> None:
    classes, shape = fitted["classes_"], fitted["image_shape_"]
    _demand(len(classes) == len(fitted["class_prior_"]) > 0, "class_prior_ must be a number for each of classes_")
    _demand(shape is None or _is_image(shape, fitted["n_features_in_"]), f"image_shape_ {shape} is not that of a row")
    room = 4 * max(16, *(len(str(label)) for label in classes))  # bytes of a character
    _demand(np.dtype(fitted["label_type_"]).itemsize <= room, "label_type_ is longer than any label")


def _is_image(shape: list[int], n_columns: int) -> bool:
    return len(shape) == 3 and min(shape) > 0 and math.prod(shape) == n_columns


def check_made(model: Any) -> None:
    """An error if tensors that a model keeps as they are do not fit to what else it knows, or its device is none."""
    if model.device != "auto":
        torch.device(model.device)  # torch's own error
    for name in model.fitted_parts:
        n_columns, part = model.n_outputs_ if name.startswith("y_") else model.n_features_in_, getattr(model, name)
        if isinstance(part, Scaler):
            _check_tensor(f"{name}.loc", part.loc, (n_columns,))
            _check_tensor(f"{name}.scale", part.scale, (n_columns,), above(0))
        elif isinstance(part, Neighbourhood):
            _check_tensor(f"{name}.rows", part.rows, (len(part.rows), n_columns))
            _check_tensor(f"{name}.reach", part.reach, (), above(0) if len(part.rows) else ANYTHING)
    if "folds_" in model.fitted_tensors:
        for name in model.fitted_tensors:
            _check_tensor(name, getattr(model, name), (len(model.folds_),), whole(-1 << 63), torch.int64)
        of_fold = _among(-1, model.n_folds_)
        _check_tensor("folds_", model.folds_, (len(model.folds_),), of_fold, torch.int64)


def _among(least: int, end: int) -> Rule:
    return Rule(f"a whole number from {least} to {end - 1}", lambda value: least <= value < end)


def _check_tensor(
    name: str, tensor: Tensor, shape: tuple[int, ...], rule: Rule = FINITE, dtype: torch.dtype = torch.float64
) -> None:
    _demand(
        tensor.dtype == dtype and tensor.shape == shape,
        f"{name} must be of {dtype} and shape {shape}, but one of {tensor.dtype} and {tuple(tensor.shape)} came",
    )
    broken = [one for one in tensor.flatten().tolist() if not rule.accepts(one)]
    _demand(not broken, f"{name} must hold nothing but {rule.says}, but {broken[:1]} came")


def check_sizes(expected: Mapping[str, Tensor], came: Mapping[str, Tensor]) -> None:
    """An error if tensors are not of the names and sizes that networks of these settings have."""
    for name in sorted({*expected, *came}):
        sizes = [(tuple(some[name].shape), some[name].dtype) if name in some else None for some in (expected, came)]
        if sizes[0] != sizes[1]:
            told = " and in the file ".join(
                "there is none" if size is None else f"{size[0]} of {size[1]}" for size in sizes
            )
            raise RuntimeError(f"by its settings the size of {name} is {told}")


def check_numbers(state: Mapping[str, Tensor]) -> None:
    """An error if learnt numbers are not finite or beyond use, least variances below zero, or shares of parts no shares."""
    for name, tensor in state.items():
        is_near = not tensor.is_floating_point() or bool((tensor.abs() <= LARGEST_LEARNT).all())  # NaN is not
        _demand(is_near, f"plan.{name} must hold finite numbers of at most {LARGEST_LEARNT:g}")
        _demand(not name.endswith("variance_floor") or bool((tensor >= 0).all()), f"plan.{name} must be from 0 on")
    shares = state.get("shares")
    if shares is not None:
        is_whole = bool((shares >= 0).all()) and abs(float(shares.sum()) - 1) < 1e-3
        _demand(is_whole, f"plan.shares must be from 0 on and sum to one, but {_short(shares.tolist())} came")


def _demand(is_so: bool, message: str) -> None:
    if not is_so:
        raise ValueError(f"{message}. {REMEDY}")


def _short(value: Any) -> str:
    told = repr(value)
    return told if len(told) <= 80 else f"{told[:77]}..."
