"""Pages of studies: what each says before its first number, and after its last."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewpairs.report.page import Page
from fewpairs.studies.cells import Outcomes, StudyPlan

__all__ = ["HOW_KEPT", "begin_page", "finish_page"]

HOW_KEPT = "The file of each cell under cells/ holds its settings, its seed, the version and all it found."


def begin_page(title: str, plan: StudyPlan, outcomes: Outcomes) -> Page:
    """A page with nothing on it but what its reader must know before the first number."""
    page = Page(title, outcomes.made_with(plan.fits()))
    for caveat in outcomes.caveats(plan):
        page.say(caveat)
    return page


def finish_page(page: Page, folder: Path, outcomes: Outcomes, how: Sequence[str], **results: Any) -> Path:
    """Adds what failed and how each number was made, and writes the page and the results into the folder."""
    if outcomes.failures:
        page.head("What failed")
        page.list([f"{key}: {text}" for key, text in outcomes.failures.items()])
    if how:
        page.list(how, summary="How each number was made")
    return page.write(folder, {"made_by": page.made, **results, "failed": outcomes.failures})
