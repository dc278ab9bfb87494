"""Columns in temporary files are those in memory: the same values, dictionaries and types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from tracekit.exporters.perfetto import export
from tracekit.readers.common import spilling
from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.spilling import SharedDictionary, SpillingBuilder
from tracekit.readers.nsys import lookups
from tracekit.system import memory, sorting
from tracekit.system.platform import allocator, memory_size
from tracekit.system.platform.allocator import LARGE_BLOCK

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURES = ("train_amp.nsys-rep", "osrt_libs.nsys-rep", "nvtx_features.nsys-rep", "train_amp_parquetdir")
DICTIONARY = pa.dictionary(pa.int32(), pa.string())


def batches() -> list[dict[str, Any]]:
    """Batches with nulls, dictionaries that differ, an empty batch, and integers that become wider."""
    texts: list[list[Any]] = [["a", "b", None], ["b", "c"], [], ["c", "a"], ["d", "d"]]
    numbers: list[list[Any]] = [[1, 2, 3], [None, 5], [], [2**40, 7], [8, None]]
    texts, numbers = ([values * memory.ROW_UNIT for values in lists] for lists in (texts, numbers))
    kinds = [pa.int32(), pa.int32(), pa.int32(), pa.int64(), pa.int32()]
    return [
        {
            "text": pa.array(t, pa.string()).dictionary_encode().cast(DICTIONARY),
            "number": pa.array(n, kind),
            "plain": pa.array([x and x * 2 for x in t], pa.string()),
            "nothing": pa.nulls(len(t), pa.int64()),
        }
        for t, n, kind in zip(texts, numbers, kinds, strict=True)
    ]


@pytest.fixture(params=[1, 4, 1000])
def rows_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(spilling, "BATCH_ROWS", request.param)
    monkeypatch.setattr(lookups, "BATCH_ROWS", request.param)
    return int(request.param)


def columns_of(builder: TableBuilder | SpillingBuilder) -> dict[str, Any]:
    for batch in batches():
        builder.append(batch)
    return builder.finish()


def test_columns_are_those_in_memory(rows_at_once: int) -> None:
    spilled, kept = columns_of(SpillingBuilder(16)), columns_of(TableBuilder(16))
    assert {n: c.to_pylist() for n, c in spilled.items()} == {n: c.to_pylist() for n, c in kept.items()}
    assert {n: c.type for n, c in spilled.items()} == {n: c.type for n, c in kept.items()}
    dictionaries = {tuple(c.dictionary.to_pylist()) for c in spilled["text"].chunks}
    assert dictionaries == {("a", "b", "c", "d")}
    for column in spilled.values():
        column.validate(full=True)


def test_no_batch_has_rows() -> None:
    builder = SpillingBuilder(16)
    for _ in range(2):
        builder.append({"number": pa.array([], pa.int64())})
    assert builder.finish()["number"].to_pylist() == []


def test_distinct_strings_keep_the_dictionary_of_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling, "BATCH_ROWS", 1)
    monkeypatch.setattr(spilling, "has_mostly_distinct_strings", lambda strings, _: strings > 3)
    columns = columns_of(SpillingBuilder(16))
    assert columns["text"].to_pylist() == columns_of(TableBuilder(16))["text"].to_pylist()
    assert [len(c.dictionary) for c in columns["text"].chunks] == [2, 2, 2, 1]


def test_a_shared_dictionary_keeps_equal_batches() -> None:
    shared = SharedDictionary(pa.string())
    array = pa.array(["a", None, "b"]).dictionary_encode()
    assert shared.encode_values(array).to_pylist() == [0, None, 1]
    assert shared.encode_values(array) is not None
    assert shared.encode_values(pa.array(["b", "c"]).dictionary_encode()).to_pylist() == [1, 2]
    assert shared.values.to_pylist() == ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("capture", CAPTURES)
def test_tables_are_those_in_memory(capture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling, "BATCH_ROWS", 100)
    monkeypatch.setattr(lookups, "BATCH_ROWS", 100)
    written: list[object] = []
    real = SpillingBuilder._write_batch
    monkeypatch.setattr(
        SpillingBuilder, "_write_batch", lambda self, batch: (written.append(batch), real(self, batch))[1]
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with tk.load(FIXTURES / capture) as kept, memory.limit_memory(0), tk.load(FIXTURES / capture) as spilled:
        for name in kept.tables:
            memory.release_pages()
            assert spilled[name].equals(kept[name]), name
        linked = [t.correlate().frame("kernels").collect() for t in (kept, spilled)]
        assert linked[0].equals(linked[1])
    assert list(tmp_path.iterdir()) == []
    assert written


@pytest.mark.many(1)
@pytest.mark.parametrize("format", ["parquet", "arrow", "csv"])
def test_files_are_those_of_tables_in_memory(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling, "BATCH_ROWS", 100)
    monkeypatch.setattr(lookups, "BATCH_ROWS", 100)
    paths = [tmp_path / "kept", tmp_path / "spilled"]
    for path, size in zip(paths, (None, 0), strict=True):
        with memory.limit_memory(size), tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
            trace.export(path, format=format)
    for file in sorted(paths[0].iterdir()):
        read = {"parquet": pl.read_parquet, "arrow": pl.read_ipc, "csv": Path.read_text}[format]
        one, other = read(file), read(paths[1] / file.name)  # type: ignore[operator]
        assert one.equals(other) if isinstance(one, pl.DataFrame) else one == other
    assert len(list(paths[0].iterdir())) > 50


@pytest.mark.many(2)
@pytest.mark.parametrize("capture", ["train_amp.nsys-rep", "nvtx_features.nsys-rep"])
@pytest.mark.parametrize("format", ["perfetto", "chrome-trace"])
def test_timelines_are_those_of_tables_in_memory(
    format: str, capture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spilling, "BATCH_ROWS", 100)
    monkeypatch.setattr(lookups, "BATCH_ROWS", 100)
    monkeypatch.setattr(export, "BATCH_ROWS", 16)
    paths = [tmp_path / "kept", tmp_path / "spilled"]
    monkeypatch.setattr(export, "BLOCK_ROWS", 64)  # Perfetto's strings are numbered block by block
    for path, size, rows in zip(paths, (None, 0), (1 << 20, 64), strict=True):
        monkeypatch.setattr(sorting, "BLOCK_ROWS", rows)
        with memory.limit_memory(size), tk.load(FIXTURES / capture) as trace:
            trace.export(path, format=format)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_system_may_lack_the_function_that_returns_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    spilled = memory.spill_to_temporary_file(pa.table({"number": [1, 2]}))
    assert spilled["number"].to_pylist() == [1, 2]


def test_the_budget_is_half_of_the_free_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8 kB\nMemAvailable:    2048 kB\n")
    assert memory_size.read_available_memory_bytes(meminfo, tmp_path) == 2 << 20
    meminfo.write_text("MemTotal: 8 kB\n")
    assert memory_size.read_available_memory_bytes(meminfo, tmp_path) == memory_size.DEFAULT_FREE_BYTES
    assert memory_size.read_available_memory_bytes(tmp_path / "none", tmp_path) == memory_size.DEFAULT_FREE_BYTES
    with memory.limit_memory(7):
        assert memory.compute_memory_budget() == 7
    assert memory.compute_memory_budget() > 7


def test_small_columns_stay_in_memory_without_reading_how_much_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "read_available_memory_bytes", lambda: 1 << 20)
    assert memory.is_large(LARGE_BLOCK)
    assert not memory.is_large(LARGE_BLOCK - 1)
    with memory.limit_memory(160):
        assert memory.is_large(11)
        assert not memory.is_large(10)


def test_a_full_disk_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary file is a device that is always full."""
    monkeypatch.setattr(spilling, "BATCH_ROWS", 100)
    monkeypatch.setattr(lookups, "BATCH_ROWS", 100)
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: open("/dev/full", "wb"))  # noqa: PTH123, SIM115
    with (
        memory.limit_memory(0),
        tk.load(FIXTURES / "train_amp.nsys-rep") as trace,
        pytest.raises(tk.TracekitError, match="temporary files cannot be written: No space left on device"),
    ):
        trace.table("kernels")


def test_other_c_libraries_do_not_have_the_functions_of_glibc() -> None:
    allocator._call_glibc("tracekit_has_no_such_function", 1)
    memory.release_free_memory()
