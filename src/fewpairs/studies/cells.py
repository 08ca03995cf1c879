"""Cells: the pieces of work of a study, each kept in a file of its own, so that nothing finished is ever done again.

A cell is a frozen dataclass whose fields say all there is to say about the work, and a `run` that does it and returns what
JSON can hold. Its file holds the fields, the outcome, the version of fewpairs and a checksum: a file that is cut off, damaged,
or made by another version is noticed, and the cell is run again.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import fewpairs
from fewpairs.data.files import write_atomically

__all__ = ["Cell", "Outcome", "Outcomes", "Store", "StudyPlan"]

Outcome = dict[str, Any]


@dataclass(frozen=True)
class Cell(ABC):
    """One piece of work. The fields of a subclass are plain values, or cells whose outcome it reads."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called, in words that can be part of a file's name."""

    @property
    def effort(self) -> float:
        """A guess at the seconds it takes: for the time left, and so that long cells begin first."""
        return 1.0

    @property
    def needs(self) -> list["Cell"]:
        """The cells that must have run before: those among its fields."""
        return [value for value in vars(self).values() if isinstance(value, Cell)]

    @abstractmethod
    def run(self, store: "Store", device: str) -> Outcome:
        """Does the work; may read from the store what the cells it needs have left there."""

    @property
    def batch(self) -> str | None:
        """Cells with the same name of a batch are done in one go by `run_batch`; None is on its own."""
        return None

    def run_batch(self, cells: Sequence["Cell"], store: "Store", device: str) -> list[Outcome]:
        """Does the work of all cells of a batch, this one among them."""
        return [cell.run(store, device) for cell in cells]

    @property
    def key(self) -> str:
        """The name of its file: readable, and different for different work."""
        digest = hashlib.sha256(_json(asdict(self)).encode()).hexdigest()[:10]
        return f"{self.name}-{digest}"


@dataclass(frozen=True)
class Store:
    """The folder of the files."""

    folder: Path

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.key}.json"

    def write(self, cell: Cell, outcome: Outcome) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        content = _json({"cell": asdict(cell), "version": fewpairs.__version__, "outcome": outcome})
        checksum = hashlib.sha256(content.encode()).hexdigest()
        write_atomically(self.path(cell), f'{{"sha256": "{checksum}", "content": {content}}}\n'.encode())

    def read(self, cell: Cell) -> Outcome | None:
        """What the cell found, or None if it has not run yet or its file cannot be trusted."""
        outcome, _ = self.look(cell)
        return outcome

    def need(self, cell: Cell) -> Outcome:
        """What the cell found; an error if it has not run."""
        outcome = self.read(cell)
        if outcome is None:
            raise RuntimeError(f"{cell.name} is not there, and another cell needs it. Run it first.")
        return outcome

    def look(self, cell: Cell) -> tuple[Outcome | None, str]:
        """What the cell found, and if nothing can be used, what is wrong with its file ("" where there is none)."""
        try:
            text = self.path(cell).read_text()
        except FileNotFoundError:
            return None, ""
        except UnicodeDecodeError:
            return None, "damaged"
        try:
            parsed = json.loads(text)
            checksum, content = parsed["sha256"], parsed["content"]
            version, outcome = content["version"], content["outcome"]
        except (ValueError, KeyError, TypeError):
            return None, "damaged"
        if hashlib.sha256(_json(content).encode()).hexdigest() != checksum:
            return None, "damaged"
        if version != fewpairs.__version__:
            return None, f"made by fewpairs {version}"
        return outcome, ""

    def pack(self, cells: Sequence[Cell], path: Path) -> None:
        """Writes the files of some cells, those that are there, into one: a line each, with the name of its file."""
        lines = [
            f'{{"name": {json.dumps(self.path(cell).name)}, "file": {self.path(cell).read_text().strip()}}}\n'
            for cell in dict.fromkeys(cells)
            if self.read(cell) is not None
        ]
        write_atomically(path, "".join(lines).encode())

    def unpack(self, path: Path) -> int:
        """Takes over the cells that another run has packed, unless they are here already. Says how many it took. Whether they can
        be trusted, and belong to this study, is found out when they are looked for."""
        n_taken = 0
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            try:
                packed = json.loads(line)
                name, content = Path(packed["name"]).name, _json(packed["file"])
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"Line {number} of {path} is no cell of a study.") from None
            if not (self.folder / name).exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                write_atomically(self.folder / name, f"{content}\n".encode())
                n_taken += 1
        return n_taken


class Scale(Protocol):
    """How large a study is."""

    @property
    def name(self) -> str: ...


class StudyPlan(Protocol):
    """All fits of a study of one scale."""

    @property
    def scale(self) -> Scale: ...

    def fits(self) -> Sequence[Cell]: ...


@dataclass
class Outcomes:
    """What the cells of a study found, and why some of them found nothing."""

    of_key: dict[str, Outcome] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, cell: Cell) -> Outcome:
        return self.of_key[cell.key]

    def __contains__(self, cell: Cell) -> bool:
        return cell.key in self.of_key

    def made_with(self, cells: Sequence[Cell]) -> str:
        """The version of fewpairs, and where the cells were run, which need not be where their page is made."""
        found = {self[cell].get("made_with", "what is not recorded") for cell in cells if cell in self}
        return f"fewpairs {fewpairs.__version__}; fits made with {' and '.join(sorted(found)) or 'nothing'}"

    def caveats(self, plan: "StudyPlan") -> list[str]:
        """What a reader of the study's page must know before the first number."""
        texts, fits = [], dict.fromkeys(plan.fits())
        if plan.scale.name != "full":
            texts.append(f"A {plan.scale.name} run, to see that everything works. Its figures are not the study's.")
        if n_missing := sum(fit not in self for fit in fits):
            texts.append(f"{n_missing} of {len(fits)} fits have not been run, or failed. What needs them is left out.")
        return texts


def _json(content: Any) -> str:
    return json.dumps(content, sort_keys=True, allow_nan=True)
