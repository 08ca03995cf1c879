"""The map holds: a room imports only from rooms above it, and the core neither prints nor seeds."""

import ast
from pathlib import Path

import pytest

import fewpairs

SOURCE = Path(fewpairs.__file__).parent

# Top to bottom: each room may import from those before it, and from no other. ARCHITECTURE.md explains them.
ROOMS = [
    "products",
    "data",
    "checks",
    "nn",
    "costs",
    "potentials",
    "conditionals",
    "plans",
    "populations",
    "objectives",
    "folds",
    "smoothing",
    "training",
    "starts",
    "makers",
    "choice",
    "recipes",
    "novelty",
    "progress",
    "files",
    "faces",
    "estimators",
    "metrics",
    "datasets",
    "plots",
    "report",
    "__init__",
    "demo",
    "cli",
    "__main__",
]
CORE = ROOMS[: ROOMS.index("starts")]


def imports_of(room: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse((SOURCE / f"{room}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fewpairs":
            found |= {name.name if (SOURCE / f"{name.name}.py").exists() else "__init__" for name in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fewpairs."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import) and any(name.name == "fewpairs" for name in node.names):
            found.add("__init__")
    return found


def test_every_file_is_a_room() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    above = set(ROOMS[: ROOMS.index(room)])
    assert imports_of(room) <= above, f"{room} imports from below: {imports_of(room) - above}"


@pytest.mark.parametrize("room", CORE)
def test_the_core_neither_prints_nor_seeds(room: str) -> None:
    text = (SOURCE / f"{room}.py").read_text()
    assert "print(" not in text and "manual_seed" not in text and "is_available" not in text


@pytest.mark.parametrize("room", ROOMS)
def test_a_file_opens_with_the_truth_about_itself(room: str) -> None:
    assert len(ast.get_docstring(ast.parse((SOURCE / f"{room}.py").read_text())) or "") > 40


def test_the_map_names_every_room() -> None:
    text = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
    for room in ROOMS:
        assert room.startswith("__") or f"`{room}`" in text, f"ARCHITECTURE.md does not name the room {room}"
