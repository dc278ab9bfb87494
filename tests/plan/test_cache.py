"""The cache of columns returns what the file contains, notices every change of the file, and stays within its limit."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from click.testing import CliRunner
from tests.conftest import ALL, FIXTURES
from tracekit import errors, registry
from tracekit.cli import cli
from tracekit.plan import cache
from tracekit.plan.cache import capture as cached_capture
from tracekit.plan.cache import folder as cache_folder
from tracekit.plan.cache import identity, seal
from tracekit.registry.interface import Capture
from tracekit.registry.source import Source
from tracekit.registry.tables import count_rows, read_chunks
from tracekit.system import files

REPORT, EXPORT = FIXTURES / "train_amp.nsys-rep", FIXTURES / "train_amp.sqlite"


@pytest.fixture(autouse=True)
def small_files_are_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Cache every file at once, in a folder of the test, and return that folder."""
    monkeypatch.setattr(cached_capture, "SMALLEST", 0)
    monkeypatch.setattr(files, "SETTLED_NS", -(10**12))
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRACEKIT_CACHE", "on")
    return tmp_path / "cache"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The formats of the files that are opened, in order."""
    opened: list[str] = []
    for name in ("nsys-rep", "nsys-sqlite"):
        reader = registry.reader(name)
        monkeypatch.setattr(type(reader), "__eq__", object.__eq__, raising=False)
    original = cached_capture.CachedCapture._open_file

    def recorded(self: cached_capture.CachedCapture) -> Capture:
        opened.append(self._format)
        return original(self)

    monkeypatch.setattr(cached_capture.CachedCapture, "_open_file", recorded)
    return opened


def all_tables(path: Path, **options: Any) -> dict[str, pa.Table]:
    with tk.load(path, **options) as trace:
        return {name: trace.table(name) for name in trace.tables}


def copied(path: Path, folder: Path) -> Path:
    return Path(shutil.copy(path, folder / path.name))


@pytest.mark.parametrize("path", [REPORT, EXPORT, FIXTURES / "kineto" / "train.pt.trace.json.gz"], ids=lambda p: p.name)
def test_tables_are_those_of_the_file(path: Path, reads: list[str]) -> None:
    expected = all_tables(path, cache=False)
    assert reads == []
    assert all_tables(path) == expected
    assert reads
    reads.clear()
    assert all_tables(path) == expected
    assert reads == []


def test_columns_that_were_not_stored_are_read(reads: list[str]) -> None:
    with tk.load(EXPORT) as trace:
        first = trace.table("kernels", ["start_ns"])
    reads.clear()
    with tk.load(EXPORT) as trace:
        assert trace.table("kernels", ["start_ns"]) == first
        assert reads == []
        both = trace.table("kernels", ["name", "start_ns"])
        assert reads
    with tk.load(EXPORT, cache=False) as trace:
        assert both == trace.table("kernels", ["name", "start_ns"])


@pytest.mark.slow
def test_reports_and_exports_are_the_same(tmp_path: Path, reads: list[str]) -> None:
    texts = []
    for options in ({"cache": False}, {"cache": True}, {"cache": True}):
        with tk.load(REPORT, **options) as trace:
            trace.correlate().export(tmp_path / "trace.json", overwrite=True)
            texts.append((trace.stats("cuda_gpu_kern_sum"), trace.count_all(), (tmp_path / "trace.json").read_bytes()))
    assert texts[0][0].equals(texts[1][0])
    assert texts[0][1:] == texts[1][1:] == texts[2][1:]
    assert reads.count("nsys-rep") > 0


def test_a_changed_file_is_read_again_even_if_its_time_is_restored(tmp_path: Path) -> None:
    path = copied(EXPORT, tmp_path)
    with tk.load(path) as trace:
        assert trace.count("kernels") == 334
        trace.table("kernels")
    status = path.stat()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid > 10")
    assert path.stat().st_size == status.st_size
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with tk.load(path) as trace:
        assert trace.count("kernels") == 10
        assert trace.table("kernels").num_rows == 10


@pytest.mark.slow
def test_a_copy_uses_the_columns_of_the_original(tmp_path: Path, reads: list[str]) -> None:
    expected = all_tables(EXPORT)
    reads.clear()
    assert all_tables(copied(EXPORT, tmp_path)) == expected
    assert reads == []


@pytest.mark.slow
def test_a_file_that_just_changed_is_identified_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_files_are_cached: Path
) -> None:
    monkeypatch.setattr(files, "SETTLED_NS", 10**12)
    path = copied(EXPORT, tmp_path)
    first = all_tables(path)
    assert not (small_files_are_cached / "known").exists()
    assert all_tables(path) == first
    assert cache.CacheFolder().read_stored_digest(path) is None


def test_a_file_that_changes_while_it_is_read_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copied(EXPORT, tmp_path)
    monkeypatch.setattr(files.FileState, "is_identical", lambda _self, _other: False)
    assert identity.compute_content_digest(path) is None
    with tk.load(path) as trace:
        trace.table("kernels")
    assert cache.CacheFolder().list_entries() == []


@pytest.mark.slow
def test_another_version_reads_the_file(monkeypatch: pytest.MonkeyPatch, reads: list[str]) -> None:
    all_tables(EXPORT)
    reads.clear()
    monkeypatch.setattr(cache_folder, "compute_reader_version", lambda: "other")
    all_tables(EXPORT)
    assert reads
    assert [entry.is_current for entry in cache.CacheFolder().list_entries()] == [True, False]


def test_the_version_changes_with_the_files_of_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("1", "utf-8")
    monkeypatch.setattr(identity, "_PACKAGE", tmp_path)
    versions = []
    for text in ("1", "22"):
        (tmp_path / "module.py").write_text(text, "utf-8")
        identity.compute_reader_version.cache_clear()
        versions.append(identity.compute_reader_version())
    identity.compute_reader_version.cache_clear()
    assert len(set(versions)) == 2


def append_trailer(path: Path, folder: Path) -> None:
    """Seal a file with some content at its place in the cache, so that only its content is wrong."""
    place = path.relative_to(folder).as_posix()
    path.write_bytes(seal.create_header(place) + path.read_bytes())
    seal.append_trailer(path, place)
    sealed = seal.open_sealed(path, place)
    with sealed.file:
        assert seal.is_intact(sealed, place)


@pytest.mark.slow
def test_damaged_files_of_the_cache_are_ignored(small_files_are_cached: Path) -> None:
    expected = all_tables(EXPORT)
    for path in small_files_are_cached.rglob("*.*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert all_tables(EXPORT) == expected
    for facts in (
        '{"names": [1], "present": {"kernels": 3}, "counts": {}}',
        '{"names": null, "present": {}, "counts": {"kernels": -1}}',
        *(("[]", '{"names": 5, "present": {}, "counts": {}}') if ALL else ()),
    ):
        for path in small_files_are_cached.rglob("metadata.json"):
            path.write_text(facts, "utf-8")
            append_trailer(path, small_files_are_cached)
        assert all_tables(EXPORT) == expected


@pytest.mark.slow
def test_columns_of_another_length_are_ignored(small_files_are_cached: Path) -> None:
    expected = all_tables(EXPORT)
    for path in small_files_are_cached.rglob("kernels.*.columns"):
        with pa.memory_map(str(path)) as file:
            file.seek(seal.HEADER_BYTES)
            stored = pa.ipc.open_stream(file).read_all()
        path.unlink()
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, stored.schema) as stream:
            stream.write_table(stored.slice(1))
        path.chmod(0o600)
        append_trailer(path, small_files_are_cached)
    assert all_tables(EXPORT) == expected


def test_warnings_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    class Warns(Capture):
        def names(self) -> list[str]:
            return ["kernels"]

        def count(self, _: str) -> int:
            return 0

        def read(self, _: str, columns: Any) -> pa.Table:
            errors.warn("rows were skipped")
            return pa.table({column: pa.nulls(0) for column in columns})

    for _ in range(2):
        opened = cache.CachedCapture(EXPORT, "nsys-sqlite", Warns)
        with pytest.warns(tk.TracekitWarning, match="rows were skipped"):
            read_chunks(opened, "kernels", ["start_ns"])
        opened.close()
    assert cache.CacheFolder().list_entries() == []


def test_private_facts_and_undecoded_events_come_from_the_file(small_files_are_cached: Path) -> None:
    for _ in range(2):
        with tk.load(REPORT) as trace:
            trace.table("kernels")
            assert trace.undecoded
            assert (
                trace._plan.source.read_launch_metadata().host is not None
                or trace._plan.source.read_launch_metadata().variables == {}
            )
    host = tk.load(REPORT)._plan.source.read_launch_metadata().host
    assert host is None or not [
        p for p in small_files_are_cached.rglob("*") if p.is_file() and host.encode() in p.read_bytes()
    ]


@pytest.mark.slow
def test_the_limit_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("train_amp.sqlite", "ddp2.sqlite", "omp.sqlite")):
        if (FIXTURES / name).exists():
            all_tables(FIXTURES / name)
            for entry in cache.CacheFolder().list_entries()[:1]:
                os.utime(entry.folder, (number, number))
    before = cache.CacheFolder().list_entries()
    assert len(before) >= 2
    monkeypatch.setenv("TRACEKIT_CACHE_SIZE", str(before[0].bytes))
    cache.CacheFolder().delete_excess_entries()
    assert [entry.folder for entry in cache.CacheFolder().list_entries()] == [before[0].folder]
    monkeypatch.setenv("TRACEKIT_CACHE_SIZE", "10")
    with tk.load(EXPORT) as trace:
        assert trace.count("kernels") == 334
    assert sum(entry.bytes for entry in cache.CacheFolder().list_entries()) <= 10


def test_a_full_disk_stores_nothing(monkeypatch: pytest.MonkeyPatch, small_files_are_cached: Path) -> None:
    usage = shutil.disk_usage(FIXTURES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type(usage)(usage.total, usage.total, 0))
    assert all_tables(EXPORT) == all_tables(EXPORT, cache=False)
    assert list(small_files_are_cached.rglob("*.columns")) == []


def test_a_folder_that_cannot_be_written_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert all_tables(EXPORT) == all_tables(EXPORT, cache=False)
    assert cache.CacheFolder().list_entries() == []


@pytest.mark.parametrize(("variable", "value"), [("TRACEKIT_CACHE", "maybe"), ("TRACEKIT_CACHE_SIZE", "1 GB")])
def test_variables_are_checked(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(tk.TracekitError, match=variable):
        tk.load(EXPORT)


def test_the_switch(monkeypatch: pytest.MonkeyPatch, reads: list[str], small_files_are_cached: Path) -> None:
    run = CliRunner().invoke
    stats = ["stats", str(EXPORT), "--report", "cuda_gpu_kern_sum"]
    monkeypatch.delenv("TRACEKIT_CACHE")
    with tk.load(EXPORT) as trace:
        trace.table("kernels")
    assert run(cli, [*stats, "--no-cache"]).exit_code == 0
    monkeypatch.setenv("TRACEKIT_CACHE", "off")
    assert run(cli, stats).exit_code == 0
    assert not small_files_are_cached.exists()
    monkeypatch.delenv("TRACEKIT_CACHE")
    first = run(cli, stats)
    assert reads
    reads.clear()
    assert run(cli, stats).output == first.output
    assert reads == []


def test_small_files_and_other_formats_are_read_directly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cached_capture, "SMALLEST", EXPORT.stat().st_size + 1)
    all_tables(EXPORT)
    monkeypatch.setattr(cached_capture, "SMALLEST", 0)
    with tk.load(EXPORT, cache=False) as trace:
        trace.export(tmp_path / "tables", tables=["kernels", "devices"], format="arrow")
    all_tables(tmp_path / "tables")
    assert cache.CacheFolder().list_entries() == []


@pytest.mark.slow
def test_the_command_lists_and_clears(small_files_are_cached: Path) -> None:
    all_tables(EXPORT)
    run = CliRunner().invoke
    (listed,) = json.loads(run(cli, ["cache", "--format", "json"]).output)
    assert listed["capture"] == str(EXPORT.resolve())
    assert listed["format"] == "nsys-sqlite"
    assert listed["bytes"] == sum(p.stat().st_size for p in small_files_are_cached.glob("v1/*/*/*"))
    assert listed["current"] is True
    assert json.loads(run(cli, ["cache", "--clear", "--format", "json"]).output) == [listed]
    assert json.loads(run(cli, ["cache", "--format", "json"]).output) == []
    assert [p for p in small_files_are_cached.rglob("*") if p.is_file()] == []


def _read(path: str, expected: int) -> None:
    cached_capture.SMALLEST = 0
    files.SETTLED_NS = -(10**12)
    for _ in range(2):
        tables = all_tables(Path(path))
        assert sum(table.num_rows for table in tables.values()) == expected
        cache.CacheFolder().delete_entries()


@pytest.mark.slow
def test_several_processes_share_the_cache() -> None:
    expected = sum(table.num_rows for table in all_tables(EXPORT, cache=False).values())
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_read, args=(str(EXPORT), expected)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]


STORE = """
import sys
from pathlib import Path
from tracekit.plan.cache import capture
from tracekit.system import files
import tracekit as tk
capture.SMALLEST, files.SETTLED_NS = 0, -(10**12)
print("started", flush=True)
with tk.load(sys.argv[1]) as trace:
    for name in trace.tables:
        trace.table(name)
"""


@pytest.mark.thorough
def test_a_killed_process_leaves_nothing_incomplete(small_files_are_cached: Path) -> None:
    expected = all_tables(EXPORT, cache=False)
    for delay in (0.1, 0.3):
        with subprocess.Popen([sys.executable, "-c", STORE, str(EXPORT)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        for path in small_files_are_cached.rglob("*.columns"):
            with pa.memory_map(str(path)) as file:
                pa.ipc.open_stream(file).read_all()
        assert all_tables(EXPORT) == expected
    assert list(small_files_are_cached.glob(".tracekit-*")) == []


@pytest.mark.slow
def test_an_entry_that_is_deleted_while_it_is_read(small_files_are_cached: Path) -> None:
    expected = all_tables(EXPORT)
    with tk.load(EXPORT) as trace:
        kernels = trace.table("kernels")
        cache.CacheFolder().delete_entries()
        assert kernels == expected["kernels"]
        assert trace.table("api_calls") == expected["api_calls"]


@pytest.mark.slow
def test_threads_and_pickled_traces(reads: list[str]) -> None:
    import pickle

    expected = all_tables(EXPORT)
    reads.clear()
    with tk.load(EXPORT) as trace:
        found: list[pl.DataFrame] = []
        threads = [threading.Thread(target=lambda: found.append(trace.frame("kernels").collect())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(frame.equals(found[0]) for frame in found)
        with pickle.loads(pickle.dumps(trace)) as copy:
            assert copy.table("kernels") == expected["kernels"]
    assert reads == []


def test_what_a_reader_is_asked_for(tmp_path: Path) -> None:
    with tk.load(EXPORT):
        pass
    reader = registry.reader("nsys-sqlite")
    direct = reader.open(Source(EXPORT))
    assert isinstance(direct, Capture)
    for _ in range(2):
        opened = cache.CachedCapture(EXPORT, "nsys-sqlite", lambda: direct)
        assert sorted(opened.names()) == sorted(direct.names())
        assert opened.may_have("kernels") is True
        assert opened.may_have("scalars") is False
        assert count_rows(opened, "kernels") == 334
        assert (
            opened.read_many({"kernels": []})["kernels"].num_columns == read_chunks(direct, "kernels", []).num_columns
        )
        folder = opened._find_folder_of_entry()
        assert folder is not None
        opened._cache.store_path_and_format(folder, EXPORT, "nsys-sqlite")
        opened._cache.store_metadata(folder, opened._metadata.to_json())
