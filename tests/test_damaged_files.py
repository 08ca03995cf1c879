"""Damaged and forged files: each is refused with its name, or gives the model that was saved; nothing else ever comes of it."""

import copy
import json
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import fixed
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from fewpairs import load
from fewpairs.baselines import CondNF
from fewpairs.data import files

MODELS = Path(__file__).parent / "models"
OLD = ["format3_mixture_one_fold", "format3_classifier_few", "format3_energy", "format3_corrected"]
# What a value of JSON may have become.
SPLICED = [
    None,
    True,
    -1,
    0,
    3,
    10**30,
    1e300,
    -0.5,
    float("nan"),
    "",
    "predict",
    [],
    {},
    [[]],
    [20000, 20000],
    {"a": 1},
]


def take_apart(content: bytes) -> tuple[dict[str, torch.Tensor], dict]:
    length = int.from_bytes(content[:8], "little")
    return load_tensors(content), json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["fewpairs"])


def put_together(tensors: dict[str, torch.Tensor], description: object, *, is_checked: bool = False) -> bytes:
    header = json.dumps(description)
    checksum = {"blake2b": files._checksum(tensors, header)} if is_checked else {}
    return save_tensors(tensors, metadata={"fewpairs": header, **checksum})


def places_in(value: object) -> list[tuple]:
    """Ways to all that a value of JSON holds."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, one in inner for place in [(key,), *((key, *rest) for rest in places_in(one))]]


def spliced(description: dict, random: np.random.Generator) -> dict:
    """The same with one value removed, replaced or added somewhere."""
    description = copy.deepcopy(description)
    depths: dict[str, list] = {}  # long lists, such as histories, would be all that is ever hit
    for place in places_in(description):
        depths.setdefault(str([key for key in place if isinstance(key, str)]), []).append(place)
    choice = list(depths.values())[random.integers(len(depths))]
    *way, last = choice[random.integers(len(choice))]
    inside = description
    for key in way:
        inside = inside[key]
    what = random.integers(5)
    if what == 0:
        del inside[last]
    elif what == 1 and isinstance(inside, dict):
        inside["predict"] = SPLICED[random.integers(len(SPLICED))]
    else:
        inside[last] = SPLICED[random.integers(len(SPLICED))]
    return description


def bent(tensors: dict[str, torch.Tensor], random: np.random.Generator) -> dict[str, torch.Tensor]:
    """The same with one tensor gone, of another shape or type, or with a number in it that is none."""
    tensors = dict(tensors)
    name = sorted(tensors)[random.integers(len(tensors))]
    tensor = tensors.pop(name)
    what = random.integers(5)
    if what == 1:
        tensors[name] = torch.cat([tensor.reshape(-1), tensor.reshape(-1)])
    elif what == 2:
        tensors[name] = tensor.to(torch.int32)
    elif what == 3 and tensor.is_floating_point():
        tensors[name] = torch.full_like(tensor, [torch.nan, torch.inf, -1.0][random.integers(3)])
    elif what == 4:
        tensors[f"{name}.more"] = tensor
    return tensors


def marred(content: bytes, random: np.random.Generator) -> bytes:
    """The same with a bit flipped, cut off, or with bytes that were not there."""
    what, place = random.integers(4), random.integers(len(content))
    if what == 0:
        return content[:place]
    if what == 1:
        return content[:place] + random.bytes(3) + content[place:]
    place = random.integers(3000) % len(content) if what == 2 else place  # the description is what can say most
    return content[:place] + bytes([content[place] ^ 1 << int(random.integers(8))]) + content[place + 1 :]


def answer(model, X: np.ndarray) -> np.ndarray:
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.sample(X, 1, random_state=0)


def outcome(path: Path, content: bytes, X: np.ndarray) -> np.ndarray | None:
    """What a model in a file of this content says, or None if it is refused with the file's name."""
    path.write_bytes(content)
    try:
        model = load(path)
    except ValueError as error:
        assert str(path) in str(error) and (error.__suppress_context__ or not error.__context__), error
        return None
    return answer(model, X)


@pytest.fixture(scope="module")
def today(tmp_path_factory) -> bytes:
    X = np.linspace(0, 1, 20)[:, None]
    path = tmp_path_factory.mktemp("files") / "model"
    fixed(training__max_steps=2).fit(X, X).save(path)
    return path.read_bytes()


@pytest.mark.filterwarnings("ignore:.*far from every x")
def test_a_damaged_file_of_today_is_refused_or_says_the_same(today, tmp_path) -> None:
    random, X = np.random.default_rng(0), np.linspace(0, 1, 5)[:, None]
    tensors, description = take_apart(today)
    expected = outcome(tmp_path / "model", today, X)
    metadata = json.loads(today[8 : 8 + int.from_bytes(today[:8], "little")])["__metadata__"]
    n_refused = 0
    for number in range(300):
        header = json.dumps(spliced(description, random))
        mutants = [
            marred(today, random),
            save_tensors(tensors, metadata={**metadata, "fewpairs": header}),
            save_tensors(bent(tensors, random), metadata=metadata),
        ]
        found = outcome(tmp_path / "model", mutants[number % 3], X)
        n_refused += found is None
        assert found is None or np.array_equal(found, expected)
    assert n_refused > 250


@pytest.mark.filterwarnings("ignore:.*far from every x")
@pytest.mark.parametrize("name", OLD)
def test_a_damaged_older_file_is_refused_or_makes_a_model(name: str, tmp_path) -> None:
    """These have no checksum: another number in them is another model, but one that answers in numbers."""
    random, X = np.random.default_rng(0), np.load(MODELS / f"{name}.npz")["X"][:3]
    content = (MODELS / f"{name}.safetensors").read_bytes()
    tensors, description = take_apart(content)
    expected = outcome(tmp_path / "model", content, X)
    for number in range(90):
        mutants = [
            marred(content, random),
            put_together(tensors, spliced(description, random)),
            put_together(bent(tensors, random), description),
        ]
        found = outcome(tmp_path / "model", mutants[number % 3], X)
        assert found is None or (found.shape == expected.shape and np.isfinite(found).all())


@pytest.mark.filterwarnings("ignore:.*far from every x")
def test_a_forged_file_of_today_is_refused_or_makes_a_model(today, tmp_path) -> None:
    random, X = np.random.default_rng(1), np.linspace(0, 1, 5)[:, None]
    tensors, description = take_apart(today)
    for number in range(150):
        some = bent(tensors, random) if number % 3 == 0 else tensors
        told = spliced(description, random) if number % 3 else description
        found = outcome(tmp_path / "model", put_together(some, told, is_checked=True), X)
        assert found is None or (len(found.ravel()) == 5 and np.isfinite(found).all())


@pytest.mark.parametrize("of_settings", [False, True])
def test_networks_that_a_file_has_no_room_for_are_not_made(of_settings: bool, tmp_path) -> None:
    name = "format3_energy" if of_settings else "format3_mixture_one_fold"
    tensors, description = take_apart((MODELS / f"{name}.safetensors").read_bytes())
    if of_settings:
        description["settings"]["cost_hidden"] = [20000, 20000]
    else:
        description["fitted"]["shape"][0]["hidden"] = [20000, 20000]
    (tmp_path / "model").write_bytes(put_together(tensors, description))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"the size of .* is \(20000"):
        load(tmp_path / "model")
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18
    )  # thousands of bytes, or on some systems bytes


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ([1], "format_version"),
        ({}, "format_version"),
        ({"format_version": 3}, "estimator"),
        ({"format_version": 3, "estimator": "MixtureTranslator", "settings": 1, "fitted": 2}, "does not make a model"),
        ({"format_version": 3, "estimator": ["MixtureTranslator"], "settings": {}, "fitted": {}}, "does not make a mo"),
    ],
)
def test_descriptions_of_no_model_are_refused(description, reason: str, tmp_path) -> None:
    (tmp_path / "model").write_bytes(put_together({"weight": torch.zeros(3)}, description))
    with pytest.raises(ValueError, match=rf"model' (is damaged|has).*{reason}"):
        load(tmp_path / "model")


@pytest.mark.parametrize("header", ["", "no JSON", "[" * 100_000, '{"format_version": ' + "9" * 5000 + "}"])
def test_descriptions_that_are_no_json_are_refused(header: str, tmp_path) -> None:
    (tmp_path / "model").write_bytes(save_tensors({"weight": torch.zeros(3)}, metadata={"fewpairs": header}))
    with pytest.raises(ValueError, match="model' is damaged: its description is no JSON"):
        load(tmp_path / "model")


def test_a_file_sets_no_attribute_that_is_not_its_own(today, tmp_path) -> None:
    tensors, description = take_apart(today)
    description["fitted"]["predict"] = 3
    (tmp_path / "model").write_bytes(put_together(tensors, description, is_checked=True))
    with pytest.raises(ValueError, match=r"fitted has the unknown \['predict'\]; known are bias_"):
        load(tmp_path / "model")


def test_a_flow_that_a_file_has_no_room_for_is_not_made(tmp_path) -> None:
    pytest.importorskip("zuko")
    X = np.linspace(0, 1, 20)[:, None]
    CondNF(max_steps=1, hidden=(4,), n_transforms=1).fit(X, X).save(tmp_path / "model")
    tensors, description = take_apart((tmp_path / "model").read_bytes())
    description["settings"]["hidden"] = [20000, 20000]
    (tmp_path / "model").write_bytes(put_together(tensors, description, is_checked=True))
    with pytest.raises(ValueError, match=r"at least 400040000 numbers, and the file holds fewer"):
        load(tmp_path / "model")


def test_settings_that_would_not_be_loaded_are_not_saved(today, tmp_path) -> None:
    (tmp_path / "model").write_bytes(today)
    model = load(tmp_path / "model").set_params(n_folds=0)
    with pytest.raises(ValueError, match="n_folds of MixtureTranslator must be"):
        model.save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == today
