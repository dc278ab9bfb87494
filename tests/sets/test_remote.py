"""Captures that fsspec opens are downloaded to temporary files, which are always deleted."""

from __future__ import annotations

import errno
import os
import pickle
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit.errors import CorruptTraceError, TracekitError, TracekitWarning, UnknownFormatError
from tracekit.sets import LocalEngine
from tracekit.sets.dask_engine import _process_member
from tracekit.system import remote

fsspec = pytest.importorskip("fsspec")
RANKS = FIXTURES / "ranks"
URL = "memory://run/mpi_rank0.nsys-rep"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(autouse=True)
def storage() -> Iterator[Any]:
    """A storage in memory with two ranks and a file that is no capture."""
    system = fsspec.filesystem("memory")
    system.put(str(RANKS), "/run", recursive=True)
    system.pipe("/run/notes.md", b"notes")
    yield system
    system.rm("/", recursive=True)


def test_one_capture(temporary: Path) -> None:
    with tk.load(URL) as trace, tk.load(RANKS / "mpi_rank0.nsys-rep") as local:
        assert trace["kernels"].equals(local["kernels"])
        assert trace.count_all() == local.count_all()
        assert (trace.format, trace.path) == ("nsys-rep", Path("/run/mpi_rank0.nsys-rep"))
        assert len(list(temporary.rglob("*.nsys-rep"))) == 1
    assert not list(temporary.iterdir())


def test_a_pickled_trace_downloads_the_file_again(temporary: Path, storage: Any) -> None:
    with tk.load(URL) as trace:
        pickled = pickle.dumps(trace)
    with pickle.loads(pickled) as again:
        assert again.count("kernels") == 15
    assert not list(temporary.iterdir())
    storage.pipe("/run/mpi_rank0.nsys-rep", b"shorter")
    with pytest.raises(TracekitError, match=r"^memory://run/mpi_rank0\.nsys-rep: the size of the file changed"):
        pickle.loads(pickled).count("kernels")


@pytest.mark.many(1)
@pytest.mark.filterwarnings("ignore:.*the name does not have the suffix:tracekit.errors.TracekitWarning")
@pytest.mark.parametrize("named", ["memory://run", "memory://run/*.nsys-rep", ["memory://run/*rank1*", URL]])
def test_a_set(named: Any, temporary: Path) -> None:
    ranks = tk.load_many(named)
    assert [m.name for m in ranks.captures] == ["mpi_rank0.nsys-rep", "mpi_rank1.nsys-rep"]
    local = tk.load_many(RANKS)
    assert ranks.stats("mpi_event_sum").equals(local.stats("mpi_event_sum"))
    assert ranks.frame("kernels").collect().equals(local.frame("kernels").collect())
    assert ranks.inputs == ()
    assert [m.devices for m in ranks.members] == [m.devices for m in local.members]
    assert len(list(temporary.rglob("*.nsys-rep"))) == 2
    del ranks
    assert not list(temporary.iterdir())


def test_ranks_that_are_given_need_no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(remote, "download", None)
        with pytest.warns(TracekitWarning, match=r"the name does not have the suffix of a format: notes\.md"):
            ranks = tk.load_many("memory://run", ranks={"mpi_rank0": 1, "mpi_rank1": 0})
    assert [m.name for m in ranks.captures] == ["mpi_rank1.nsys-rep", "mpi_rank0.nsys-rep"]
    assert [m.devices for m in ranks.members] == [(1,), (0,)]


@pytest.mark.thorough
def test_other_processes_read_the_storage() -> None:
    url = f"local://{RANKS}/*.nsys-rep"
    tables = tk.load_many(url, engine=LocalEngine(2)).recipe("mpi_sum")
    assert tables["all_stats"].equals(tk.load_many(RANKS).recipe("mpi_sum")["all_stats"])


def test_urls_of_local_files_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "download", None)
    with tk.load((RANKS / "mpi_rank0.nsys-rep").as_uri()) as trace:
        assert trace.path == RANKS / "mpi_rank0.nsys-rep"
    assert tk.load_many(RANKS.as_uri()).ranks == [0, 1]


def test_errors_name_the_url_and_not_the_copy(temporary: Path, storage: Any) -> None:
    with pytest.raises(FileNotFoundError, match=r"'memory://run/nothing'"):
        tk.load("memory://run/nothing")
    with pytest.raises(UnknownFormatError, match=r"^memory://run/notes\.md: ") as raised:
        tk.load("memory://run/notes.md")
    assert raised.value.path == "memory://run/notes.md"
    storage.pipe("/run/mpi_rank0.nsys-rep", (RANKS / "mpi_rank0.nsys-rep").read_bytes()[:40_000])
    with pytest.raises(CorruptTraceError, match=r"^memory://run/mpi_rank0\.nsys-rep: "), tk.load(URL) as trace:
        trace.table("kernels")
    with pytest.raises(
        TracekitError, match=r"memory://run: this is a folder, not a file\nHint: open it with load_many"
    ):
        tk.load("memory://run")
    with pytest.raises(TracekitError, match=r"memory://run/\*\.gz: no file matches this URL"):
        tk.load_many("memory://run/*.gz")
    with pytest.raises(TracekitError, match=r"the capture is listed twice"):
        tk.load_many([URL, "memory://run"])
    with pytest.raises(TracekitError, match=r"^noscheme://a/b: the storage cannot be read: .*[Pp]rotocol"):
        tk.load("noscheme://a/b")
    assert not list(temporary.iterdir())


def test_passwords_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("token secret")

    monkeypatch.setattr(fsspec.core, "url_to_fs", fail)
    with pytest.raises(TracekitError) as raised:
        tk.load("s3://user:secret@host/run/a.nsys-rep?signature=secret")
    assert str(raised.value).startswith("s3://host/run/a.nsys-rep: the storage cannot be read: RuntimeError\nHint: ")
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise ImportError("Install s3fs to access S3")

    with monkeypatch.context() as patched:
        patched.setattr(fsspec.core, "url_to_fs", fail)
        with pytest.raises(TracekitError, match=r"^s3://b/a: .* Install s3fs"):
            tk.load("s3://b/a")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    message = "s3://b/a: reading this path needs the package fsspec\nHint: pip install 'tracekit[remote]'"
    with pytest.raises(TracekitError, match=re.escape(message)):
        tk.load("s3://b/a")


def test_no_more_is_downloaded_than_the_file_and_the_disk_hold(
    temporary: Path, storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = storage.size("/run/mpi_rank0.nsys-rep")
    monkeypatch.setattr(remote, "_CHUNK_BYTES", 4096)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size - 1))
        with pytest.raises(TracekitError, match=rf"{size:,} bytes, but only {size - 1:,} are free.*\nHint: set TMPDIR"):
            tk.load(URL)
        patched.setattr(type(storage), "size", lambda *_: None)
        with pytest.raises(TracekitError, match=r"does not report the size of this file, which has more than [0-9,]+"):
            tk.load(URL)
    for wrong in (size - 1, size + 1):
        with monkeypatch.context() as patched:
            patched.setattr(type(storage), "size", lambda *_, wrong=wrong: wrong)
            with pytest.raises(TracekitError, match="the size of the file changed while it was read"):
                tk.load(URL)
    with monkeypatch.context() as patched:
        patched.setattr(remote, "_MAX_FILES", 1)
        with pytest.raises(TracekitError, match="more than 1 files"):
            tk.load_many("memory://run")
    assert not list(temporary.iterdir())


def test_errors_of_a_storage_are_repeated_by_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    monkeypatch.setattr(fsspec.core, "url_to_fs", fail)
    member: Any = URL
    with pytest.raises(TracekitError, match=r"Connection reset"):
        _process_member(tk.load, member)
    monkeypatch.undo()
    missing: Any = "memory://run/nothing"
    assert isinstance(_process_member(tk.load, missing).outcome, FileNotFoundError)
