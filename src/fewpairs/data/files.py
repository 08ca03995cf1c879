"""Model files: tensors and JSON in one safetensors file. Nothing in it can run code; fewpairs never loads a pickle.

A file is written beside its final place and moved there in one step, so a crash or a full disk leaves the old one whole.
This room turns tensors and plain settings into bytes and back; which class they make is the business of `estimators`.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

__all__ = ["FORMAT_VERSION", "READABLE", "read_model", "write_atomically", "write_model"]

FORMAT_VERSION = 4  # of files that are written
READABLE = (2, 3, 4)
KEY = "fewpairs"


def write_model(path: str | os.PathLike, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Writes tensors and a JSON-able description."""
    header = json.dumps({**description, "format_version": FORMAT_VERSION}, default=_plain)
    flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, save(flat, metadata={KEY: header}))


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy as JSON knows them: a grid search hands in settings of such types, and labels may be dates."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "M":
        value = value.astype(str)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(
        f"A setting of type {type(value).__name__} ({value!r}) cannot be saved; use plain numbers, strings and lists."
    )


def read_model(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `write_model` wrote, its "format_version" among the description, or says why it cannot."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(
            f"{str(path)!r} is a folder, not a model file. Name the file that model.save(...) wrote."
        )
    if not path.is_file():
        raise FileNotFoundError(f"There is no model file {str(path)!r}. Save one with model.save({str(path)!r}).")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping, only a keys method)
    except (SafetensorError, ValueError) as error:
        raise ValueError(
            f"{str(path)!r} is not a fewpairs model, or it is damaged or cut off ({error}). "
            "fewpairs reads the files that model.save(...) writes; copy or save it again."
        ) from error
    if KEY not in metadata:
        raise ValueError(
            f"{str(path)!r} is a safetensors file, but not a fewpairs model: it was not written by model.save(...)."
        )
    description = json.loads(metadata[KEY])
    version = description["format_version"]
    if version not in READABLE:
        what_reads_it = (
            "A newer fewpairs reads it" if version > FORMAT_VERSION else "Only the fewpairs of its time reads it"
        )
        remedy = "Upgrade fewpairs" if version > FORMAT_VERSION else "Fit and save the model again"
        raise ValueError(
            f"{str(path)!r} has format version {version}, and this fewpairs reads versions {READABLE[0]} to {READABLE[-1]}. "
            f"{what_reads_it}. {remedy}."
        )
    return tensors, description


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file whole or not at all."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(path.parent)!r} to write {path.name!r} into. Make it first.")
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder. Name a file to write, for instance in it.")
    temporary = path.with_name(
        f".{path.name}.{os.getpid()}.tmp"
    )  # in the same folder: a move within one disk is atomic
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
