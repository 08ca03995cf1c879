"""Model files: tensors and JSON in one safetensors file. Nothing in it can run code; fewpairs never loads a pickle.

A file is written beside its final place and moved there in one step, so a crash or a full disk leaves the old one whole, and
who reads meets the old one or the new one. It carries a checksum of all that it holds, and is read into memory once: what
becomes of it afterwards is nothing to a loaded model.
This room turns tensors and plain settings into bytes and back; which class they make is the business of `estimators`.
"""

import json
import os
import re
import secrets
import stat
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

__all__ = ["FORMAT_VERSION", "READABLE", "read_model", "write_atomically", "write_model"]

FORMAT_VERSION = 4  # of files that are written
READABLE = (2, 3, 4)
FIRST_CHECKED = 4  # the first format that has a checksum
KEY, CHECKSUM = "fewpairs", "blake2b"
LEFT_OVER = 3600.0  # seconds after which a file that was to be moved to its place never will be


def write_model(path: str | os.PathLike, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Writes tensors and a JSON-able description."""
    header = json.dumps({**description, "format_version": FORMAT_VERSION}, default=_plain)
    flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, save(flat, metadata={KEY: header, CHECKSUM: _checksum(flat, header)}))


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy as JSON knows them: a grid search hands in settings of such types, and labels may be dates."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "M":
        value = value.astype(str)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(
        f"A setting of type {type(value).__name__} ({value!r}) cannot be saved; use plain numbers, strings and lists."
    )


def _checksum(tensors: dict[str, Tensor], header: str) -> str:
    """A number that another description, or another name, type, shape or byte of a tensor, would change."""
    digest = blake2b(header.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_model(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `write_model` wrote, its "format_version" among the description, or says why it cannot."""
    path = Path(path)
    content = _read(path)
    try:
        tensors = load(content)
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, RecursionError) as error:
        raise ValueError(
            f"{str(path)!r} is not a fewpairs model, or it is damaged or cut off ({error}). "
            "fewpairs reads the files that model.save(...) writes; copy or save it again."
        ) from None
    if KEY not in metadata:
        raise ValueError(
            f"{str(path)!r} is a safetensors file, but not a fewpairs model: it was not written by model.save(...)."
        )
    description = _read_description(path, metadata[KEY])
    if CHECKSUM in metadata or description["format_version"] >= FIRST_CHECKED:
        _check(path, metadata.get(CHECKSUM), _checksum(tensors, metadata[KEY]))
    return tensors, description


def _read(path: Path) -> bytes:
    """All bytes of a file, if it is one."""
    if path.is_dir():
        raise IsADirectoryError(
            f"{str(path)!r} is a folder, not a model file. Name the file that model.save(...) wrote."
        )
    if not path.exists():
        raise FileNotFoundError(f"There is no model file {str(path)!r}. Save one with model.save({str(path)!r}).")
    if not path.is_file():
        raise ValueError(f"{str(path)!r} is a device or a pipe, not a file. Name the file that model.save(...) wrote.")
    return path.read_bytes()


def _read_description(path: Path, header: str) -> dict[str, Any]:
    """What the JSON of a model file says, if this fewpairs knows its format."""
    try:
        description = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{str(path)!r} is damaged: its description is no JSON ({error}). Copy or save it again."
        ) from None
    version = description.get("format_version") if isinstance(description, dict) else None
    if type(version) is not int:
        raise ValueError(
            f"{str(path)!r} is damaged: its description must have a whole number as format_version, but {version!r} came. "
            "Copy or save it again."
        )
    if version not in READABLE:
        what_reads_it = (
            "A newer fewpairs reads it" if version > FORMAT_VERSION else "Only the fewpairs of its time reads it"
        )
        remedy = "Upgrade fewpairs" if version > FORMAT_VERSION else "Fit and save the model again"
        raise ValueError(
            f"{str(path)!r} has format version {version}, and this fewpairs reads versions {READABLE[0]} to {READABLE[-1]}. "
            f"{what_reads_it}. {remedy}."
        )
    return description


def _check(path: Path, expected: str | None, found: str) -> None:
    if expected != found:
        raise ValueError(
            f"{str(path)!r} is damaged: its checksum says {expected}, and what it holds makes {found}. Copy or save it again."
        )


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file whole or not at all. One that is there keeps its mode, and a link to it stays a link."""
    path, mode = _find_target(Path(path))
    _sweep(path)
    # In the same folder, since a move within one disk is atomic; of a name that nobody can guess, or has.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")

    def create(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 if mode is None else mode)

    try:
        with open(temporary, "xb", opener=create) as file:
            if mode is not None:
                temporary.chmod(mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _find_target(path: Path) -> tuple[Path, int | None]:
    """The file that is to be written, at the end of links, and its mode if it is there."""
    try:
        target = path.resolve() if path.is_symlink() else path
    except (OSError, RuntimeError):
        raise OSError(f"{str(path)!r} is a link that leads round in a circle. Remove it.") from None
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {str(target.parent)!r} to write {target.name!r} into. Make it first."
        )
    if target.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder. Name a file to write, for instance in it.")
    if not target.exists():
        return target, None
    if not target.is_file():
        raise OSError(f"{str(path)!r} is a device or a pipe, which cannot be replaced. Name a file to write.")
    return target, stat.S_IMODE(target.stat().st_mode)


def _sweep(path: Path) -> None:
    """Removes what crashes have left of earlier attempts to write this file; a save under way is younger."""
    left_over = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]+\.tmp")
    with suppress(OSError):  # nobody's business here: another save may have been faster
        for name in filter(left_over.fullmatch, os.listdir(path.parent)):  # noqa: PTH208 (names alone)
            other = path.with_name(name)
            if time.time() - other.lstat().st_mtime > LEFT_OVER:
                other.unlink()
