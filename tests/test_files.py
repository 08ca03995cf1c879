"""Model files: damaged, foreign and newer ones are refused with a reason, and a failed write leaves the old file."""

import json
import pickle

import numpy as np
import pytest
import torch
from conftest import fixed
from safetensors.torch import save_file

from fewpairs import load
from fewpairs.data import files


@pytest.fixture
def model_file(tmp_path):
    X = np.linspace(0, 1, 20)[:, None]
    path = tmp_path / "model.safetensors"
    fixed(training__max_steps=2).fit(X, X).save(path)
    return path


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no model file .*nowhere"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("length", [0, 5, 500, -1])
def test_a_cut_off_file_is_refused(model_file, length: int) -> None:
    model_file.write_bytes(model_file.read_bytes()[:length])
    with pytest.raises(ValueError, match="not a fewpairs model, or it is damaged"):
        load(model_file)


def test_folders_are_told_from_files(model_file, tmp_path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        load(model_file).save(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        load(model_file).save(tmp_path / "nowhere" / "model")


def test_other_files_are_refused(tmp_path) -> None:
    path = tmp_path / "other"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="not a fewpairs model"):
        load(path)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="safetensors file, but not a fewpairs model"):
        load(path)


def test_a_pickle_is_never_run(tmp_path) -> None:
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    (tmp_path / "trap").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="not a fewpairs model"):
        load(tmp_path / "trap")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("version, remedy", [(1, "Fit and save the model again"), (99, "Upgrade fewpairs")])
def test_another_format_is_refused(version: int, remedy: str, model_file, monkeypatch) -> None:
    tensors, description = files.read_model(model_file)
    monkeypatch.setattr(files, "FORMAT_VERSION", version)
    files.write_model(model_file, tensors, description)
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match=rf"format version {version}, and this fewpairs reads versions 2 to 4. .*{remedy}"
    ):
        load(model_file)


def test_an_unknown_kind_of_model_is_refused(model_file) -> None:
    tensors, description = files.read_model(model_file)
    files.write_model(model_file, tensors, {**description, "estimator": "Oracle"})
    with pytest.raises(ValueError, match=r"holds a Oracle.*MixtureTranslator.*Upgrade"):
        load(model_file)


def test_a_failed_write_leaves_the_old_file_and_no_litter(model_file, monkeypatch) -> None:
    before = model_file.read_bytes()

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        load(model_file).save(model_file)
    assert model_file.read_bytes() == before
    assert [path.name for path in model_file.parent.iterdir()] == [model_file.name]


def test_settings_of_numpy_types_are_saved(tmp_path) -> None:
    X = np.linspace(0, 1, 20)[:, None]
    settings = {
        "training__max_steps": np.int64(2),
        "search__smoothing": np.float32(0.25),
        "search__hidden": np.array([4]),
    }
    model = fixed(**settings).fit(X, X)
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.search.smoothing == 0.25
    assert loaded.chosen_["smoothing"] == 0.25 and loaded.chosen_["hidden"] == (4,)


def test_the_header_is_plain_json(model_file) -> None:
    length = int.from_bytes(model_file.read_bytes()[:8], "little")
    header = json.loads(model_file.read_bytes()[8 : 8 + length])
    assert json.loads(header["__metadata__"]["fewpairs"])["estimator"] == "MixtureTranslator"
