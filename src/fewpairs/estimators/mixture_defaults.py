"""What the "auto" of a `MixtureTranslator` stands for, by how many pairs, outputs and unpaired rows there are."""

from fewpairs.estimators.settings import Search
from fewpairs.networks.perceptrons import as_widths
from fewpairs.selection.candidates import Options
from fewpairs.selection.families.mixture import VALUES

__all__ = ["find_objective", "find_options", "usual_steps"]

MANY_PAIRS = 1000  # from here on the widest network is tried too: fewer pairs cannot fill it
MOST_OUTPUTS_FULL = 16  # full atoms hold the square of it each: beyond, only diagonal ones are tried
USUAL_STEPS, USUAL_PAIRS = 400, 512  # so many steps for so many pairs, and more for more …
MOST_TIMES = 5  # … up to so many times as many
TIMES_WITH_BUDGET = 20  # where seconds are the bound, steps need not be one


def usual_steps(n_pairs: int, *, has_budget: bool) -> int:
    """The training steps at the most."""
    usual = round(USUAL_STEPS * min(max((n_pairs / USUAL_PAIRS) ** 0.4, 1), MOST_TIMES))
    return TIMES_WITH_BUDGET * usual if has_budget else usual


def find_objective(objective: str, search: Search, n_unpaired_x: int, n_unpaired_y: int) -> str:
    """Without unpaired rows, or without weight on them, the marginal objective is the supervised one. Unpaired x's without
    unpaired y's say nothing about y (they brought 0.01 nats in the battery, and half the noise): they get no weight unless one
    was given."""
    is_idle = n_unpaired_y == 0 and (n_unpaired_x == 0 or isinstance(search.unpaired_weight, str))
    is_supervised = objective == "marginal" and (is_idle or search.unpaired_weight == 0)
    return "supervised" if is_supervised else objective


def find_options(search: Search, objective: str, *, n_pairs: int, n_outputs: int, is_biased: bool) -> Options:
    """For each setting the values to choose from."""
    options = dict(VALUES)
    if n_outputs > MOST_OUTPUTS_FULL:
        options["covariance"] = ("diagonal",)
    if n_pairs < MANY_PAIRS:
        options["hidden"] = options["hidden"][1:]
    if not is_biased:
        options["emphasis"] = (0.0,)
    elif objective == "inverse_eot":
        options["emphasis"] = (1.0,)
    for name in options:
        value = getattr(search, name)
        if not (isinstance(value, str) and value == "auto"):
            options[name] = (as_widths(value) if name == "hidden" else value,)
    return options
