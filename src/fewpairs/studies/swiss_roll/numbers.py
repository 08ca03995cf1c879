"""Numbers of the Swiss-roll study: what the fits of a table found, by the columns that stand for it."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fewpairs.studies.cells import Outcome, Outcomes
from fewpairs.studies.swiss_roll.cells import Fit

__all__ = ["COLUMNS", "Found", "Rows", "Tables", "found_of", "numbers_of", "values_of"]

COLUMNS = {
    "mmd": "MMD²",
    "transport": "W₂²/2",
    "conditional_mmd": "conditional MMD²",
    "conditional_transport": "conditional W₂²/2",
    "nll": "NLL",
    "kl": "KL to the truth",
    "energy_score": "energy score",
    "seconds": "seconds",
}

Key = TypeVar("Key")
Found = list[Outcome]
Rows = Mapping[str, Found]  # what the fits of each method found, one a draw of the data
Tables = list[dict[str, Any]]  # what a section's tables hold, for results.json


def found_of(table: Mapping[Key, Sequence[Fit]], outcomes: Outcomes) -> dict[Key, Found]:
    """What the fits of a table found, without the rows of which none has been run."""
    found = {key: [outcomes[fit] for fit in fits if fit in outcomes] for key, fits in table.items()}
    return {key: some for key, some in found.items() if some}


def values_of(rows: Rows, name: str) -> dict[str, list[float]]:
    """The values of a column, of the methods that have it."""
    return {
        method: [outcome[name] for outcome in outcomes]
        for method, outcomes in rows.items()
        if outcomes and all(name in outcome for outcome in outcomes)
    }


def numbers_of(rows: Rows) -> dict[str, dict[str, list[float]]]:
    """The values of every column, by method."""
    return {
        method: {
            column: [outcome[column] for outcome in outcomes if column in outcome]
            for column in COLUMNS
            if any(column in outcome for outcome in outcomes)
        }
        for method, outcomes in rows.items()
    }
