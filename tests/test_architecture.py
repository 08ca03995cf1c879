"""The house holds: a folder imports only from floors below its own, and the lower floors neither print nor seed."""

import ast
from pathlib import Path

import pytest

import fewpairs

SOURCE = Path(fewpairs.__file__).parent

# From the ground up. What stands in one line are siblings, who do not import each other.
FLOORS = [
    {"data"},
    {"networks"},
    {"plans"},
    {"training"},
    {"shift"},
    {"selection", "energies"},
    {"estimators"},
    {"datasets", "baselines", "metrics", "report"},
    {"studies"},
    {"cli"},
]
QUIET = {"data", "networks", "plans", "training", "shift"}
# Short names for what lives deeper in the house; the package's own door knows the estimators.
DOORS = {"__init__": "estimators", "ratios": "shift", "samplers": "energies", "image_networks": "networks"}
TYPED = {"plans", "training", "selection"}
TORCHS_OWN = {"setup_context", "vmap", "backward", "one"}  # of autograd, and what vmap takes apart: trees of tensors
MOST_LINES = 400
FILES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__main__.py")


def room_of(path: Path) -> str:
    """The folder at the top of the house, or the file if there is none."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def floor_of(room: str) -> int:
    room = DOORS.get(room, room)
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def imports_of(path: Path) -> set[str]:
    """The rooms that a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "fewpairs":
            found |= {f"fewpairs.{name.name}" if floor_exists(name.name) else "fewpairs" for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    ours = [name.split(".") for name in found if name.split(".")[0] == "fewpairs"]
    return {parts[1] if len(parts) > 1 else "__init__" for parts in ours}


def floor_exists(name: str) -> bool:
    return any(name in rooms for rooms in FLOORS)


def test_every_file_has_a_floor() -> None:
    rooms = {room_of(path) for path in FILES}
    assert rooms == set().union(*FLOORS) | set(DOORS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    room = room_of(path)
    for other in imports_of(path) - {room}:
        is_below = floor_of(other) < floor_of(room) or DOORS.get(room) == other
        assert is_below, f"{room} imports from {other}, which is not on a floor below"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_doors_are_for_users(path: Path) -> None:
    """Inside, one goes straight to where a thing lives; only studies may come in by the front door."""
    doors = set(DOORS) if floor_of(room_of(path)) < floor_of("studies") else set(DOORS) - {"__init__"}
    assert not imports_of(path) & doors


@pytest.mark.parametrize(
    "path", [path for path in FILES if room_of(path) in QUIET], ids=lambda path: str(path.relative_to(SOURCE))
)
def test_the_lower_floors_neither_print_nor_seed(path: Path) -> None:
    text = path.read_text()
    assert "print(" not in text and "manual_seed" not in text and "is_available" not in text


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_opens_with_the_truth_about_itself(path: Path) -> None:
    assert len(ast.get_docstring(ast.parse(path.read_text())) or "") > 40


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks"])
def test_files_are_small(folder: str) -> None:
    files = (Path(__file__).parents[1] / folder).rglob("*.py")
    lengths = {path: len(path.read_text().splitlines()) for path in files}
    assert not {path: length for path, length in lengths.items() if length > MOST_LINES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_private_part_of_scikit_learn(path: Path) -> None:
    modules = [node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    assert not [module for module in modules if module.startswith("sklearn") and "._" in module]


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) in TYPED], ids=lambda path: path.stem)
def test_joints_say_what_they_take(path: Path) -> None:
    """Public functions and fields between the middle floors are of known types; `Config` is what JSON can hold."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in TORCHS_OWN:
            of_arguments = [argument.annotation for argument in (*node.args.args, *node.args.kwonlyargs)]
            for annotation in (*of_arguments, node.returns):
                assert annotation is None or "Any" not in ast.unparse(annotation), f"{path.name}: {node.name}"
        elif isinstance(node, ast.ClassDef):
            fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
            assert not [field for field in fields if "Any" in ast.unparse(field.annotation)], (
                f"{path.name}: {node.name}"
            )


def test_the_map_names_every_floor() -> None:
    text = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
    for room in set().union(*FLOORS):
        assert f"`{room}`" in text or f"{room}/" in text, f"ARCHITECTURE.md does not name {room}"
