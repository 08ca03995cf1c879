"""Rules: which values an argument may have, said once, checked when `fit` begins, and told in the error if they are broken."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

__all__ = [
    "ANYTHING",
    "FLAG",
    "NOTHING",
    "RANDOM_STATE",
    "SEQUENCE",
    "TEXT",
    "Rule",
    "above",
    "at_least",
    "between",
    "check_rules",
    "instance_of",
    "one_of",
    "whole",
]


@dataclass(frozen=True)
class Rule:
    """Creates a rule; `rule | other` takes what either takes.

    Arguments:
        says: What a value must be, to stand behind "must be".
        accepts: Whether a value is so.
    """

    says: str
    accepts: Callable[[Any], bool]

    def __or__(self, other: "Rule") -> "Rule":
        return Rule(f"{self.says} or {other.says}", lambda value: self.accepts(value) or other.accepts(value))


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_) and math.isfinite(float(value))


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool | np.bool_) and int(value) >= least


def above(least: float) -> Rule:
    return Rule(f"a number above {least:g}", lambda value: _is_real(value) and value > least)


def at_least(least: float) -> Rule:
    return Rule(f"a number from {least:g} on", lambda value: _is_real(value) and value >= least)


def between(least: float, most: float) -> Rule:
    return Rule(f"a number from {least:g} to {most:g}", lambda value: _is_real(value) and least <= value <= most)


def whole(least: int) -> Rule:
    return Rule(f"a whole number from {least} on", lambda value: _is_whole(value, least))


def one_of(*words: str) -> Rule:
    return Rule(" or ".join(repr(word) for word in words), lambda value: isinstance(value, str) and value in words)


def instance_of(*kinds: type) -> Rule:
    names = (f"{'an' if kind.__name__[0].lower() in 'aeiou' else 'a'} {kind.__name__}" for kind in kinds)
    return Rule(" or ".join(names), lambda value: isinstance(value, kinds))


ANYTHING = Rule("anything", lambda value: True)
FLAG = Rule("True or False", lambda value: isinstance(value, bool | np.bool_))
NOTHING = Rule("None", lambda value: value is None)
TEXT = Rule("a string", lambda value: isinstance(value, str))
SEQUENCE = Rule(
    "a list of numbers", lambda value: isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
)
RANDOM_STATE = Rule(
    "None, a whole number from 0 on or a numpy RandomState",
    lambda value: value is None or isinstance(value, np.random.RandomState) or (_is_whole(value, 0) and value < 2**32),
)


def check_rules(owner: Any, rules: Mapping[str, Rule]) -> None:
    """An error if an argument of an estimator, or of one of its settings objects, is not what it must be."""
    for name, rule in rules.items():
        value = getattr(owner, name)
        if not rule.accepts(value):
            raise ValueError(f"{name} of {type(owner).__name__} must be {rule.says}, but {value!r} came.")
        of_value = getattr(value, "rules", None)
        if isinstance(of_value, Mapping):
            check_rules(value, of_value)
