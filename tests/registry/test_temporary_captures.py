"""A temporary file is closed before it is deleted, because Windows does not delete open files."""

from __future__ import annotations

import contextlib
import gc
import gzip
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tracekit.readers.common.sqlite import compressed
from tracekit.registry.interface import TemporaryCapture
from tracekit.registry.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator


class RecordingCapture:
    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def close(self) -> None:
        self._calls.append("closed")


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_temporary_capture(is_closed: bool) -> None:
    calls: list[str] = []
    stack = contextlib.ExitStack()
    stack.callback(calls.append, "deleted")
    inner: Any = RecordingCapture(calls)
    capture = TemporaryCapture(inner, stack)
    if is_closed:
        capture.close()
        assert calls == ["closed", "deleted"]
    del capture
    gc.collect()
    assert calls == ["closed", "deleted"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not list the open files")
def test_a_compressed_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "a")) as database, database:
        database.execute("CREATE TABLE numbers (value INTEGER)")
        database.execute("INSERT INTO numbers VALUES (4711)")
    (tmp_path / "a.gz").write_bytes(gzip.compress((tmp_path / "a").read_bytes()))
    folder, opened = tmp_path / "temporary", []

    @contextlib.contextmanager
    def create_workspace(_: Path) -> Iterator[Path]:
        folder.mkdir()
        yield folder
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        opened.append([path for path in (link.resolve() for link in links) if folder in path.parents])

    monkeypatch.setattr(compressed, "create_workspace", create_workspace)
    opened_database = compressed.open_database(Source(tmp_path / "a.gz"), "")
    assert opened_database.read_first_row("numbers", ["value"]) == {"value": 4711}
    del opened_database
    gc.collect()
    assert opened == [[]]
