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
    "labels",
    "images",
    "repeats",
    "ratios",
    "bias",
    "nn",
    "class_networks",
    "image_networks",
    "costs",
    "potentials",
    "conditionals",
    "plans",
    "populations",
    "objectives",
    "classes",
    "folds",
    "smoothing",
    "graphs",
    "training",
    "starts",
    "linear",
    "makers",
    "class_defaults",
    "class_makers",
    "choice",
    "samplers",
    "energies",
    "likelihoods",
    "loops",
    "neural_training",
    "recipes",
    "novelty",
    "progress",
    "files",
    "saving",
    "faces",
    "estimators",
    "classifiers",
    "neural_answers",
    "neural",
    "models",
    "baselines.base",
    "baselines.sinkhorn",
    "baselines.regression",
    "baselines.cgmm",
    "baselines.gans",
    "baselines.condnf",
    "baselines.gnot",
    "baselines.parot",
    "baselines.dcpeme",
    "baselines.otcs",
    "baselines.fsbm",
    "baselines.__init__",
    "methods",
    "metrics",
    "datasets",
    "fetch",
    "real_data",
    "plots",
    "report",
    "__init__",
    "demo",
    "experiments.__init__",
    "experiments.cells",
    "experiments.comparisons",
    "experiments.swiss_roll_cells",
    "experiments.swiss_roll",
    "experiments.swiss_roll_page",
    "experiments.biased_pairs",
    "experiments.biased_pairs_page",
    "experiments.mnist",
    "experiments.mnist_page",
    "experiments.colored_mnist",
    "experiments.colored_mnist_page",
    "cli",
    "__main__",
]
CORE = ROOMS[: ROOMS.index("starts")]


def text_of(room: str) -> str:
    return (SOURCE / f"{room.replace('.', '/')}.py").read_text()


def imports_of(room: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(text_of(room))):
        if isinstance(node, ast.ImportFrom) and node.module == "fewpairs":
            found |= {name.name if (SOURCE / f"{name.name}.py").exists() else "__init__" for name in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fewpairs."):
            room = node.module.removeprefix("fewpairs.")
            found.add(f"{room}.__init__" if (SOURCE / room.replace(".", "/")).is_dir() else room)
        elif isinstance(node, ast.Import) and any(name.name == "fewpairs" for name in node.names):
            found.add("__init__")
    return found


def test_every_file_is_a_room() -> None:
    files = SOURCE.rglob("*.py")
    assert {".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in files} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    above = set(ROOMS[: ROOMS.index(room)])
    assert imports_of(room) <= above, f"{room} imports from below: {imports_of(room) - above}"


@pytest.mark.parametrize("room", CORE)
def test_the_core_neither_prints_nor_seeds(room: str) -> None:
    text = text_of(room)
    assert "print(" not in text and "manual_seed" not in text and "is_available" not in text


@pytest.mark.parametrize("room", ROOMS)
def test_a_file_opens_with_the_truth_about_itself(room: str) -> None:
    assert len(ast.get_docstring(ast.parse(text_of(room))) or "") > 40


def test_the_map_names_every_room() -> None:
    text = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
    for room in ROOMS:
        assert room.endswith("__") or f"`{room}`" in text, f"ARCHITECTURE.md does not name the room {room}"
