"""Folders that nsys exports give the trace of the SQLite export of the same capture, in any layout of their files."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from click.testing import CliRunner
from pyarrow import ipc, parquet
from tests.builders.nsys_folders import KINDS, SUFFIXES, as_folder, changed, copied, fixture, read, tables_of, write
from tests.builders.nsys_sqlite import FIXTURES
from tests.builders.reports import REPORTS_OF_NSYS
from tracekit import cli
from tracekit.readers.common.budget import Budget
from tracekit.readers.nsys.lookups import Lookups
from tracekit.readers.nsys_folders import files
from tracekit.registry.source import Source
from tracekit.system.files import InputFile

EXPORT = FIXTURES / "train_amp.sqlite"
REPORT = FIXTURES / "train_amp.nsys-rep"
ONLY_IN_REPORTS = ("graph_id", "cluster_x", "cluster_y", "cluster_z")
SELECTIONS: dict[str, dict[str, Any]] = {
    "window": {"time": (45_000_000, 200_000_000)},
    "device": {"devices": [1]},
    "no domain": {"domains": []},
    "long": {"min_duration_ns": 5_000},
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Both kinds of folder."""
    name: str = request.param
    return name


@pytest.fixture
def both(kind: str) -> Iterator[tuple[tk.Trace, tk.Trace]]:
    """The SQLite export and a folder of the same capture."""
    with tk.load(EXPORT) as export, tk.load(fixture(kind)) as folder:
        yield export, folder


def assert_same(one: tk.Trace, other: tk.Trace) -> None:
    """Every table is equal, row by row and column by column."""
    assert [n for n in one.tables if one.count(n) != other.count(n)] == []
    assert [n for n in one.tables if not one[n].equals(other[n])] == []


def as_csv(trace: tk.Trace, report: str) -> bytes:
    sink = io.BytesIO()
    trace.report(report).csv(sink)
    return sink.getvalue()


@pytest.mark.many(1)
def test_every_table_is_that_of_the_export(both: tuple[tk.Trace, tk.Trace]) -> None:
    export, folder = both
    assert folder.count("kernels") == 334
    assert folder.info == export.info
    assert_same(export, folder)
    assert_same(export.correlate(), folder.correlate())


def test_every_table_is_that_of_the_report(kind: str) -> None:
    with tk.load(REPORT) as report, tk.load(fixture(kind)) as folder:
        for name in set(report.tables) - {"capture_info", "cuda_overheads", "jit_operations"}:
            mine, theirs = (
                t.frame(name).with_columns(pl.col(pl.Categorical).cast(pl.String)).collect() for t in (folder, report)
            )
            left_out = [c for c in ONLY_IN_REPORTS if c in mine.columns]
            assert mine.drop(left_out).equals(theirs.drop(left_out)), name
        facts = {"tool", "origin_utc_ns", "duration_ns"}
        assert {f: folder.info[f] for f in facts} == {f: report.info[f] for f in facts}


@pytest.mark.slow
@pytest.mark.many(1)
def test_every_report_is_that_of_the_export(both: tuple[tk.Trace, tk.Trace]) -> None:
    assert [r for r in REPORTS_OF_NSYS if as_csv(both[0], r) != as_csv(both[1], r)] == []
    printed = (FIXTURES / "stats" / "train_amp_cuda_gpu_kern_sum.csv").read_bytes()
    assert as_csv(both[1], "cuda_gpu_kern_sum") == printed


@pytest.mark.thorough
@pytest.mark.parametrize("selection", SELECTIONS)
def test_every_selection_is_that_of_the_export(both: tuple[tk.Trace, tk.Trace], selection: str) -> None:
    export, folder = (t.select(**SELECTIONS[selection]).correlate() for t in both)
    assert_same(export, folder)


@pytest.mark.many(2)
@pytest.mark.parametrize("capture", sorted(p.stem for p in FIXTURES.glob("*.sqlite")))
def test_every_capture_as_a_folder(kind: str, capture: str, tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "folder", kind, tables_of(FIXTURES / f"{capture}.sqlite"))
    with tk.load(FIXTURES / f"{capture}.sqlite") as export, tk.load(folder) as trace:
        assert trace.format == f"nsys-{kind}"
        assert_same(export, trace)


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("rows", [7, 100, 1533])
def test_files_in_many_pieces(kind: str, tmp_path: Path, rows: int) -> None:
    tables = {p.stem: read(p) for p in fixture(kind).iterdir()}
    folder = as_folder(tmp_path / "folder", kind, tables, rows=rows)
    with tk.load(EXPORT) as export, tk.load(folder) as trace:
        assert_same(export, trace)


@pytest.mark.many(1)
@pytest.mark.parametrize("rows", [7, 64, 333, 334])
def test_pieces_are_of_limited_size(kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    table = files.ParquetTable if kind == "parquetdir" else files.ArrowTable
    whole = table.read_batches

    def read_batches(self: Any, file: InputFile, columns: Sequence[str], budget: Budget) -> Iterator[pa.RecordBatch]:
        for batch in whole(self, file, columns, budget):
            seen.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(files, "BATCH_ROWS", rows)
    monkeypatch.setattr(table, "read_batches", read_batches)
    with tk.load(EXPORT) as export, tk.load(fixture(kind)) as trace:
        assert_same(export, trace)
    assert max(seen) == rows
    assert seen.count(rows) >= 334 // rows


def test_only_the_columns_asked_for_are_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    table = files.ParquetTable if kind == "parquetdir" else files.ArrowTable
    whole = table.read_batches

    def read_batches(self: Any, file: InputFile, columns: Sequence[str], budget: Budget) -> Iterator[pa.RecordBatch]:
        asked.append(tuple(columns))
        return whole(self, file, columns, budget)

    monkeypatch.setattr(table, "read_batches", read_batches)
    with tk.load(fixture(kind)) as trace:
        asked.clear()
        trace.table("kernels", ["start_ns", "grid_x"])
        assert asked == [("start", "gridX")]
        asked.clear()
        assert trace.count("kernels") == 334
        assert trace.count("nvtx_ranges") == 1534
        assert asked == [("eventType",)]


def test_only_the_files_needed_are_opened(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    table = files.ParquetTable if kind == "parquetdir" else files.ArrowTable
    begin = table.__init__

    def init(self: Any, file: InputFile) -> None:
        opened.append(file.path.stem)
        begin(self, file)

    monkeypatch.setattr(table, "__init__", init)
    with tk.load(fixture(kind)) as trace:
        facts = {"META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS"}
        assert set(opened) == facts
        opened.clear()
        trace.table("kernels", ["start_ns", "name"])
        assert set(opened) == {"CUPTI_ACTIVITY_KIND_KERNEL", "StringIds"}


@pytest.mark.many(2)
@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_files(kind: str, tmp_path: Path, compression: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in fixture(kind).iterdir():
        write(folder / path.name, read(path), compression=compression, rows=500)
    with tk.load(EXPORT) as export, tk.load(folder) as trace:
        assert_same(export, trace)


def test_arrow_files_with_a_footer(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in fixture("arrowdir").iterdir():
        table = read(path)
        with ipc.new_file(folder / path.name, table.schema) as out:
            out.write_table(table, max_chunksize=400)
    with tk.load(EXPORT) as export, tk.load(folder) as trace:
        assert_same(export, trace)


@pytest.mark.many(1)
def test_texts_as_dictionaries(tmp_path: Path, kind: str) -> None:
    folder = copied(kind, tmp_path)
    for path in folder.iterdir():
        table = read(path)
        encoded = [c.dictionary_encode() if pa.types.is_large_string(c.type) else c for c in table.columns]
        write(path, pa.table(dict(zip(table.column_names, encoded, strict=True))), rows=300)
    with tk.load(EXPORT) as export, tk.load(folder) as trace:
        assert_same(export, trace)


def test_numbers_of_any_width(tmp_path: Path, kind: str) -> None:
    path = copied(kind, tmp_path) / f"NVTX_EVENTS{SUFFIXES[kind]}"
    rows = read(path).num_rows
    numbers = pa.array([(1 << 64) - 1, 1 << 63, 5, None] + [None] * (rows - 4), pa.uint64())
    changed(path, "uint64Value", numbers)
    changed(path, "color", pa.array([True, False, None] * 600)[:rows])
    changed(path, "eventType", read(path)["eventType"].cast(pa.int8()))
    with tk.load(path.parent) as trace, tk.load(EXPORT) as export:
        read_ = trace.table("nvtx_ranges", ["payload_int", "color", "name"])
        assert read_["payload_int"].to_pylist()[:4] == [-1, -(1 << 63), 5, None]
        assert read_["color"].to_pylist()[:3] == [1, 0, None]
        assert read_["name"].equals(export["nvtx_ranges"]["name"])


def test_texts_that_are_not_utf_8_are_repaired(tmp_path: Path, kind: str) -> None:
    path = copied(kind, tmp_path) / f"NVTX_EVENTS{SUFFIXES[kind]}"
    texts = [None if t is None else t.encode() for t in read(path)["text"].to_pylist()]
    first = next(i for i, t in enumerate(texts) if t is not None)
    texts = [b"\xffbroken" if t == texts[first] else t for t in texts]
    column = pa.array(texts, pa.large_binary())
    changed(path, "text", column.view(pa.large_string()))
    broken = texts.count(b"\xffbroken")
    with (
        tk.load(path.parent) as trace,
        pytest.warns(
            tk.TracekitWarning,
            match=rf"copy: {broken} strings? of NVTX_EVENTS.text (?:is|are) not UTF-8: invalid bytes are replaced",
        ),
    ):
        assert trace["nvtx_ranges"]["name"].to_pylist().count("�broken") == broken > 0


def test_tables_without_rows(tmp_path: Path, kind: str) -> None:
    folder = as_folder(tmp_path / "folder", kind, {p.stem: read(p).slice(0, 0) for p in fixture(kind).iterdir()})
    with tk.load(folder) as trace:
        assert trace.info == {}
        for name in trace.tables:
            assert trace.count(name) == trace[name].num_rows == 0


def test_a_parquet_file_without_row_groups(tmp_path: Path) -> None:
    path = copied("parquetdir", tmp_path) / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    with parquet.ParquetWriter(path, read(path).schema):
        pass
    with tk.load(path.parent) as trace:
        assert trace["kernels"].num_rows == trace.count("kernels") == 0


@pytest.mark.parametrize("kept", ["StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "META_DATA_EXPORT"])
def test_a_folder_with_one_table(tmp_path: Path, kind: str, kept: str) -> None:
    shutil.copy(fixture(kind) / f"{kept}{SUFFIXES[kind]}", tmp_path)
    with tk.load(tmp_path) as trace, tk.load(EXPORT) as export:
        assert trace.format == f"nsys-{kind}"
        starts = trace.table("kernels", ["start_ns"])
        assert starts.num_rows == (334 if kept == "CUPTI_ACTIVITY_KIND_KERNEL" else 0)
        assert trace.count("nvtx_ranges") == (1534 if kept == "NVTX_EVENTS" else 0)
        assert trace.info.get("tool_version") == (export.info["tool_version"] if kept == "META_DATA_EXPORT" else None)


def test_missing_tables_are_empty(tmp_path: Path, kind: str) -> None:
    gone = ("TARGET_INFO_GPU", "PROCESSES", "ENUM_CUDA_MEM_KIND", "CUPTI_ACTIVITY_KIND_MEMSET")
    with tk.load(copied(kind, tmp_path, without=gone)) as trace, tk.load(EXPORT) as export:
        assert [trace.count(n) for n in ("devices", "processes", "memsets")] == [0, 0, 0]
        assert trace["memcpys"].equals(export["memcpys"])
        assert_same(export.select(tables=["kernels", "api_calls"]), trace.select(tables=["kernels", "api_calls"]))


def test_a_newer_schema_is_read_with_a_warning(tmp_path: Path, kind: str) -> None:
    path = copied(kind, tmp_path) / f"META_DATA_EXPORT{SUFFIXES[kind]}"
    values = ["4.0.1" if n == "EXPORT_SCHEMA_VERSION" else None for n in read(path)["name"].to_pylist()]
    changed(path, "value", pa.array(values, pa.large_string()))
    with pytest.warns(
        tk.TracekitWarning,
        match=r"copy: the schema version 4.0.1 is newer than 3.25, the newest that tracekit supports",
    ):
        assert tk.load(path.parent).count("kernels") == 334


def test_foreign_additions_do_not_disturb(tmp_path: Path, kind: str) -> None:
    folder, suffix = copied(kind, tmp_path), SUFFIXES[kind]
    (folder / "notes.txt").write_text("mine")
    (folder / "analysis.ipynb").write_text("{}")
    (folder / f"._NVTX_EVENTS{suffix}").write_bytes(b"\0\5\x16\7")
    (folder / f".hidden{suffix}").write_bytes(b"")
    (folder / f"unheard_of{suffix}").write_bytes(b"no table at all")
    (folder / f"NVTX_EVENTS{suffix}.tmp").write_bytes(b"")
    (folder / "StringIds.csv").write_text("id,value\n0,other\n")
    (folder / f"sub{suffix}").mkdir()
    write(folder / f"cudaAPIStats{suffix}", pa.table({"name": ["x"], "ms": [1.5]}))
    for name, column in (("CUPTI_ACTIVITY_KIND_KERNEL", "kernel_name"), ("NVTX_EVENTS", "_note")):
        table = read(folder / f"{name}{suffix}")
        more = pa.array([{"a": 1}] * table.num_rows)
        write(folder / f"{name}{suffix}", table.append_column(column, more))
    with tk.load(EXPORT) as export, tk.load(folder) as trace:
        assert trace.format == f"nsys-{kind}"
        assert_same(export, trace)


@pytest.mark.many(1)
def test_columns_in_another_order(tmp_path: Path, kind: str) -> None:
    folder = copied(kind, tmp_path)
    for path in folder.iterdir():
        table = read(path)
        write(path, table.select(table.column_names[::-1]))
    with tk.load(EXPORT) as export, tk.load(folder) as trace:
        assert_same(export, trace)


def test_our_own_tables_are_not_taken_for_an_export(tmp_path: Path) -> None:
    with tk.load(EXPORT) as trace:
        for name in ("parquet", "arrow"):
            assert tk.load(trace.export(tmp_path / name, format=name)).format == name


def test_source_tables_and_columns_are_those_of_the_export(kind: str) -> None:
    with tk.load(EXPORT) as export, tk.load(fixture(kind)) as folder:
        theirs, mine = (t._plan.source.capture.tables.columns for t in (export, folder))
        assert isinstance(folder._plan.source.capture, Lookups)
        assert set(mine) == set(theirs)
        assert len(mine) == len(theirs)
        assert {t: tuple(mine[t]) for t in mine} == {t: tuple(theirs[t]) for t in theirs}


def run(*words: object) -> str:
    result = CliRunner().invoke(cli.cli, [str(w) for w in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("options", [(), ("--device", "0"), ("--time", "100ms:"), ("--domain", "")])
def test_the_command_line_prints_what_it_prints_of_the_export(kind: str, options: tuple[str, ...]) -> None:
    asked = ("--report", "cuda_gpu_kern_sum,nvtx_sum,cuda_api_sum", *options)
    assert run("stats", fixture(kind), *asked) == run("stats", EXPORT, *asked)
    rows = ("kernels", "--correlated", "-n", "5", *options)
    assert run("rows", fixture(kind), *rows) == run("rows", EXPORT, *rows)


def test_the_command_line_tells_of_a_folder(kind: str) -> None:
    told = run("info", fixture(kind))
    assert f"format        nsys-{kind}\n" in told
    expected = run("info", EXPORT).replace("nsys-sqlite", f"nsys-{kind}")
    assert told.splitlines()[1:] == expected.splitlines()[1:]


@pytest.mark.thorough
def test_a_chrome_trace_is_that_of_the_export(kind: str, tmp_path: Path) -> None:
    written = []
    for path in (EXPORT, fixture(kind)):
        target = tmp_path / f"{path.name}.json"
        run("convert", path, target, "--to", "chrome-trace", "-q")
        written.append(target.read_text("utf-8"))
    assert written[0].replace("nsys-sqlite", f"nsys-{kind}") == written[1]


def test_redacting_a_folder_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(tk.TracekitError) as caught:
        run("redact", fixture(kind), tmp_path / "out")
    message = f"{fixture(kind)}: nsys-{kind} files cannot be redacted"
    assert (
        str(caught.value) == f"{message}\nHint: choose a file of another format: nsys-sqlite, "
        "nsys-rep, nsys-jsonlines, ascend, kineto, xplane, chrome-trace, memory-snapshot, nccl, proton, nvprof-csv, "
        "nvprof, perfetto, rocpd, rpd, rocprofv3-json, rocprof-csv"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_by_a_relative_path(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied(kind, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert tk.load("copy").count("kernels") == 334
    assert Source("copy").path == Path("copy")
