"""Model files: damaged, foreign and newer ones are refused with a reason, and a failed write leaves the old file."""

import json
import os
import pickle
import stat
from concurrent.futures import ThreadPoolExecutor

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


def test_a_flipped_bit_is_noticed(model_file) -> None:
    whole = model_file.read_bytes()
    length = 8 + int.from_bytes(whole[:8], "little")
    for place in np.random.default_rng(0).integers(length, len(whole), 50):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(place) % 8
        model_file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.safetensors' is damaged: its checksum says"):
            load(model_file)


def test_a_file_of_today_without_its_checksum_is_refused(model_file) -> None:
    model_file.write_bytes(model_file.read_bytes().replace(b'"blake2b":', b'"blake2x":'))
    with pytest.raises(ValueError, match="its checksum says None"):
        load(model_file)


def test_a_loaded_model_is_done_with_its_file(model_file) -> None:
    X = np.linspace(0, 1, 5)[:, None]
    model, size = load(model_file), model_file.stat().st_size
    before = model.predict(X)
    with open(model_file, "r+b") as file:
        file.write(bytes(size))
        file.truncate(10)
    assert np.array_equal(model.predict(X), before)


def test_modes_and_links_stay(model_file) -> None:
    model, link = load(model_file), model_file.with_name("link")
    usual = model_file.stat().st_mode
    model_file.chmod(0o600)
    link.symlink_to(model_file.name)
    before = model_file.stat().st_ino
    model.save(link)
    assert link.is_symlink() and model_file.stat().st_ino != before
    assert stat.S_IMODE(model_file.stat().st_mode) == 0o600
    (model_file.parent / "new").touch()
    assert (model_file.parent / "new").stat().st_mode == usual  # of a file that was not there, as usual


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_what_is_not_a_file_is_not_replaced(model_file, tmp_path) -> None:
    model, pipe, circle = load(model_file), tmp_path / "pipe", tmp_path / "circle"
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    (tmp_path / "link").symlink_to(pipe)
    for place in (pipe, tmp_path / "link"):
        with pytest.raises(OSError, match="is a device or a pipe"):
            model.save(place)
        with pytest.raises(ValueError, match="is a device or a pipe"):
            load(place)
    with pytest.raises(OSError, match="round in a circle"):
        model.save(circle)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and circle.is_symlink()


def test_what_crashes_left_is_removed_by_the_next_save(model_file, tmp_path) -> None:
    model = load(model_file)
    names = [".model.safetensors.0f1e.tmp", ".model.safetensors.beef.tmp", ".other.0f1e.tmp", ".model.safetensors.tmp"]
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    os.utime(tmp_path / names[1])  # a save that is under way
    model.save(model_file)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], model_file.name])


def test_saves_and_loads_at_once_do_not_meet(tmp_path) -> None:
    path = tmp_path / "model"
    tensors = [{"plan": torch.full((5000,), float(number))} for number in range(2)]
    files.write_model(path, tensors[0], {"number": 0})

    def write(number: int) -> None:
        for _ in range(150):
            files.write_model(path, tensors[number], {"number": number})

    def read(_: int) -> None:
        for _ in range(300):
            found, description = files.read_model(path)
            assert (found["plan"] == description["number"]).all()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(write, 0), pool.submit(write, 1), pool.submit(read, 2)]:
            done.result()
    assert [found.name for found in tmp_path.iterdir()] == ["model"]
