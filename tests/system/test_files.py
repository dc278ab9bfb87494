"""Only regular files are opened, and a file that changes while it is open is noticed."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

import pytest
from tracekit.errors import TracekitError
from tracekit.registry.source import Source
from tracekit.system import files
from tracekit.system.files import InputFile
from tracekit.system.platform import open_files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(256, 1000, (1000, 1000)), (256, -1, (1 << 16, -1)), (1 << 20, -1, None), (-1, -1, None)],
)
def test_the_number_of_open_files_is_raised_to_the_maximum(
    soft: int, hard: int, expected: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "RLIM_INFINITY", -1)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    open_files.allow_many_open_files()
    assert limits == ([] if expected is None else [expected])


def test_a_regular_file_is_opened(path: Path) -> None:
    descriptor = files.open_regular_file(path)
    try:
        assert os.read(descriptor, 100) == b"0123456789"
    finally:
        os.close(descriptor)


def test_a_missing_file_stays_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.open_regular_file(tmp_path / "missing")


def special(folder: Path, kind: str) -> Path:
    path = folder / "special"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.path.relpath(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    return path


@pytest.mark.parametrize(
    ("kind", "said"),
    [("pipe", "a named pipe"), ("socket", "a socket"), ("folder", "a folder"), ("device", "a device")],
)
@pytest.mark.parametrize("linked", [False, True])
def test_nothing_but_a_regular_file_is_opened(
    tmp_path: Path, kind: str, said: str, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = special(tmp_path, kind)
    if linked:
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    with pytest.raises(TracekitError) as caught:
        files.open_regular_file(path)
    assert str(caught.value) == f"{path}: this is {said}, not a regular file\nHint: write its content to a file first"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_without_permission(path: Path) -> None:
    path.chmod(0)
    with pytest.raises(TracekitError, match="cannot be read: permission denied\nHint: check its permissions"):
        files.open_regular_file(path)


def test_a_name_too_long(tmp_path: Path) -> None:
    with pytest.raises(TracekitError, match="cannot be read: File name too long"):
        files.open_regular_file(tmp_path / ("x" * 300))


def test_an_unchanged_file_passes(path: Path) -> None:
    state = files.FileState.read(path)
    state.check_unchanged(path)
    with path.open("rb") as f:
        state.check_unchanged(path, f.fileno())


def shrink(path: Path) -> None:
    os.truncate(path, 3)


def rewrite(path: Path) -> None:
    path.write_bytes(b"9876543210")
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"0123456789")
    other.replace(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (shrink, "the file changed while it was open: it had 10 bytes, but now it has 3"),
        (rewrite, "the file changed while it was open"),
        (replace, "the file was replaced by another file while it was open"),
        (Path.unlink, "the file was removed while it was open"),
    ],
)
def test_a_changed_file_is_noticed(path: Path, change, said: str) -> None:  # type: ignore[no-untyped-def]
    state = files.FileState.read(path)
    change(path)
    with pytest.raises(TracekitError) as caught:
        state.check_unchanged(path)
    hint = files.REMOVED_HINT if change is Path.unlink else files.CHANGED_HINT
    assert str(caught.value) == f"{path}: {said}\nHint: {hint}"


def test_an_open_descriptor_outlives_a_replacement(path: Path) -> None:
    with path.open("rb") as f:
        state = files.FileState.read(f.fileno())
        replace(path)
        state.check_unchanged(path, f.fileno())
        assert f.read() == b"0123456789"


def test_a_file_that_grows_while_its_first_bytes_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its format is detected; a reader that needs a complete file reports that the file has changed."""
    read, head = files.read_at, path.read_bytes()

    def grow(descriptor: int, start: int, size: int) -> bytes:
        with path.open("ab") as file:
            file.write(b"more")
        return read(descriptor, start, size)

    monkeypatch.setattr(files, "read_at", grow)
    source = Source(path)
    assert source.head == head
    with pytest.raises(TracekitError, match=f"had {len(head)} bytes, but now it has {len(head) + 4}"):
        source.open()


def test_a_growing_file_is_modified_before_its_size_changes(path: Path) -> None:
    with InputFile(path, may_grow=True) as file:
        os.utime(path, ns=(1, 1))
        assert file.read(0, 1) == path.read_bytes()[:1]
    with InputFile(path) as file:
        os.utime(path, ns=(2, 2))
        with pytest.raises(TracekitError, match="the file changed while it was open"):
            file.read(0, 1)


def test_states_of_one_file_at_different_times_and_places(path: Path) -> None:
    state, folder = files.FileState.read(path), files.FileState.read_file(path.parent, folders=True)
    assert state == files.FileState.read_file(path) == files.FileState.read_entry(path)
    assert folder is not None
    assert folder.size == 10
    assert files.FileState.read_file(path.parent) is None
    os.link(path, path.with_name("link"))
    linked = files.FileState.read(path)
    assert linked == state
    assert linked.is_identical(state) is (linked.changed_ns == state.changed_ns)
    copy = shutil.copy2(path, path.with_name("copy"))
    assert state.has_same_content(files.FileState.read(Path(copy)))
    assert not state.is_same_file(files.FileState.read(Path(copy)))
    path.write_bytes(b"more than before")
    assert files.FileState.read(path).is_same_file(state)
    assert not state.has_same_content(files.FileState.read(path))
    path.with_name("symlink").symlink_to(path)
    assert files.FileState.read_entry(path.with_name("symlink")) is None
