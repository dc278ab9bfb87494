"""Folders with damaged, foreign and missing files: each failure is an error that names the file and what to do.

``NSYS_FOLDERS_FUZZ=20000`` sets the number of mutations.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import tracekit as tk
from pyarrow import ipc, parquet
from tests.builders.nsys_folders import KINDS, SUFFIXES, changed, copied, fixture, read, write
from tests.builders.nsys_sqlite import FIXTURES, KERNEL
from tests.conftest import ALL
from tracekit.errors import CorruptTraceError, TracekitError, UnknownFormatError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1234567\n"
CASES = int(os.environ.get("NSYS_FOLDERS_FUZZ", "250" if ALL else "100"))
SECONDS, BYTES = 2.0, 1 << 30
NAMES = {"parquetdir": "Parquet", "arrowdir": "Arrow"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Both kinds of folder."""
    name: str = request.param
    return name


@pytest.fixture
def kernels(kind: str, tmp_path: Path) -> Path:
    """The file of the kernels in a copy of an export."""
    return copied(kind, tmp_path) / f"{KERNEL}{SUFFIXES[kind]}"


def again(kind: str) -> str:
    return f"\nHint: export it again: nsys export --type {kind} REPORT"


def error_of(path: Path, table: str = "kernels") -> str:
    """What is said of a table; counting it says the same, or works."""
    with tk.load(path) as trace:
        with pytest.raises(TracekitError) as caught:
            trace[table]
        return str(caught.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty (0 bytes)\nHint: export or copy it again"),
        (b"\0" * 5000, "the file begins with zeros only, as after an interrupted export\nHint: export it again"),
        (POINTER, "this is a Git LFS pointer, not the file itself\nHint: run: git lfs pull"),
        (b"\x1f\x8b" + b"\1" * 50, "this is a gzip file, but it is damaged\nHint: copy it again from its source"),
        (b"start,end\n1,2\n", "no reader recognizes the content{again}"),
        (b"SQLite format 3\0" + b"\1" * 50, "this is a SQLite database, but not an Nsight Systems export\nHint: pass"),
    ],
)
def test_a_file_of_another_kind(kind: str, kernels: Path, data: bytes, said: str) -> None:
    kernels.write_bytes(data)
    said = said.replace("{again}", again(kind))
    assert error_of(kernels.parent).startswith(f"{kernels}: table {KERNEL}: not a file in {NAMES[kind]} format: {said}")
    with tk.load(kernels.parent) as trace, tk.load(FIXTURES / "train_amp.sqlite") as export:
        assert trace["api_calls"].equals(export["api_calls"])
        with pytest.raises(CorruptTraceError, match=f"table {KERNEL}: not a file in {NAMES[kind]} format"):
            trace.count("kernels")


def test_each_kind_in_place_of_the_other(kind: str, kernels: Path) -> None:
    other = next(k for k in KINDS if k != kind)
    shutil.copyfile(fixture(other) / f"{KERNEL}{SUFFIXES[other]}", kernels)
    assert f"{kernels}: table {KERNEL}: not a file in {NAMES[kind]} format: " in error_of(kernels.parent)


def test_a_folder_or_nothing_in_place_of_a_file(kind: str, kernels: Path) -> None:
    with tk.load(kernels.parent) as trace:
        kernels.unlink()
        with pytest.raises(TracekitError, match=rf"{kernels.name}: the file was removed while it was open\nHint: make"):
            trace["kernels"]
    kernels.mkdir()
    assert error_of(kernels.parent).startswith(
        f"{kernels}: table {KERNEL}: not a file in {NAMES[kind]} format: this is a folder"
    )
    kernels.rmdir()
    os.mkfifo(kernels)
    assert error_of(kernels.parent).startswith(
        f"{kernels}: table {KERNEL}: not a file in {NAMES[kind]} format: this is neither a file"
    )
    kernels.unlink()
    kernels.symlink_to("nowhere")
    assert error_of(kernels.parent).startswith(
        f"{kernels}: table {KERNEL}: not a file in {NAMES[kind]} format: this is neither a file"
    )


def test_no_permission(kind: str, kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with tk.load(kernels.parent) as trace:
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(TracekitError) as caught:
            trace["kernels"]
    assert str(caught.value) == f"{kernels}: the file cannot be read: permission denied\nHint: check its permissions"


def test_truncated_anywhere(kind: str, kernels: Path) -> None:
    whole = kernels.read_bytes()
    for size in {1, 3, 4, 7, 8, 12, len(whole) // 3, len(whole) // 2, *range(len(whole) - 9, len(whole))}:
        kernels.write_bytes(whole[:size])
        said = error_of(kernels.parent)
        assert said.startswith(f"{kernels}: table {KERNEL}: "), size
        assert said.endswith(again(kind)), size


def test_a_stream_cut_between_two_batches(tmp_path: Path) -> None:
    path = copied("arrowdir", tmp_path) / f"{KERNEL}.arrow"
    write(path, read(path), rows=100)
    whole = path.read_bytes()
    with pa.memory_map(str(path)) as mapped:
        reader = ipc.open_stream(mapped)
        reader.read_next_batch()
        size = mapped.tell()
    path.write_bytes(whole[:size])
    said = (
        f"{path}: table {KERNEL}: cannot be read: the file is truncated: its end marker is missing{again('arrowdir')}"
    )
    assert error_of(path.parent) == said
    path.write_bytes(whole[:size] + whole[-8:] + whole[size:])
    what = "bytes follow the end marker of the stream, which must be at the end of the file"
    said = f"{len(whole) - size} {what}{again('arrowdir')}"
    assert error_of(path.parent) == f"{path}: table {KERNEL}: cannot be read: {said}"


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        (pa.array(["x"] * 334), "string"),
        (pa.array(["x"] * 334, pa.large_string()), "large_string"),
        (pa.array([1.5] * 334), "double"),
        (pa.array([[1]] * 334), "list<"),
        (pa.array([{"a": 1}] * 334), "struct<"),
        (pa.array([1] * 334, pa.timestamp("ns")), "timestamp[ns]"),
    ],
)
def test_a_column_of_another_type(kind: str, kernels: Path, values: pa.Array, holds: str) -> None:
    changed(kernels, "start", values)
    said = error_of(kernels.parent)
    column = "column start must hold values of type integer, but holds "
    assert said.startswith(f"{kernels}: table {KERNEL}: {column}")
    assert holds in said or "binary" in said
    assert said.endswith(again(kind))


def test_texts_of_another_type(kind: str, tmp_path: Path) -> None:
    path = copied(kind, tmp_path) / f"PROCESSES{SUFFIXES[kind]}"
    rows = read(path).num_rows
    changed(path, "name", pa.array(range(rows)))
    with tk.load(path.parent) as trace:
        assert trace["processes"]["name"].to_pylist()[:3] == ["0", "1", "2"]
    changed(path, "name", pa.array([[1]] * rows))
    said = error_of(path.parent, "processes")
    column = "column name must hold values of type text, but holds list<"
    assert said.startswith(f"{path}: table PROCESSES: {column}")
    assert said.endswith(again(kind))


def test_event_types_that_are_no_numbers(kind: str, tmp_path: Path) -> None:
    path = copied(kind, tmp_path) / f"NVTX_EVENTS{SUFFIXES[kind]}"
    changed(path, "eventType", pa.array(["59"] * read(path).num_rows))
    said = error_of(path.parent, "nvtx_ranges")
    column = "column eventType must hold values of type integer, but holds "
    assert said.startswith(f"{path}: table NVTX_EVENTS: {column}")
    assert said.endswith(again(kind))


def test_a_null_where_none_may_be(kind: str, kernels: Path) -> None:
    starts = read(kernels)["start"].to_pylist()
    changed(kernels, "start", pa.array([*starts[:8], None, *starts[9:]], pa.int64()))
    assert error_of(kernels.parent) == f"{kernels.parent}: table {KERNEL}, row 9: start_ns is null{again(kind)}"


def test_a_number_too_large(kind: str, kernels: Path) -> None:
    grid = [1] * 333
    changed(kernels, "gridX", pa.array([*grid[:4], 3_000_000_000, *grid[4:]], pa.int64()))
    said = (
        f"{kernels.parent}: table {KERNEL}, row 5: grid_x is 3000000000, which does not fit into 32 bits{again(kind)}"
    )
    assert error_of(kernels.parent) == said


def test_a_row_among_filtered_ones_is_named_by_its_number(kind: str, tmp_path: Path) -> None:
    path = copied(kind, tmp_path) / f"NVTX_EVENTS{SUFFIXES[kind]}"
    table = read(path)
    types, starts = table["eventType"].to_pylist(), table["start"].to_pylist()
    row = [n for n, t in enumerate(types) if t == 59][700]
    types[3], starts[row] = 34, None
    changed(path, "eventType", pa.array(types))
    changed(path, "start", pa.array(starts, pa.int64()))
    said = f"{path.parent}: table NVTX_EVENTS, row {row + 1}: start_ns is null{again(kind)}"
    assert error_of(path.parent, "nvtx_ranges") == said


@pytest.mark.parametrize(
    ("table", "column", "name"),
    [
        (KERNEL, "start", "kernels"),
        ("NVTX_EVENTS", "eventType", "nvtx_ranges"),
        ("ThreadNames", "globalTid", "threads"),
        ("TARGET_INFO_CUDA_STREAM", "streamId", "streams"),
    ],
)
def test_a_missing_column(kind: str, tmp_path: Path, table: str, column: str, name: str) -> None:
    path = copied(kind, tmp_path) / f"{table}{SUFFIXES[kind]}"
    write(path, read(path).drop_columns(column))
    assert error_of(path.parent, name) == f"{path.parent}: table {table}: the table has no column {column}{again(kind)}"


def test_missing_columns_elsewhere_leave_nulls(kind: str, kernels: Path) -> None:
    write(kernels, read(kernels).drop_columns(["greenContextId", "shortName", "launchType"]))
    with tk.load(kernels.parent) as trace:
        table = trace["kernels"]
        for column in ("green_context_id", "short_name", "launch_type"):
            assert table[column].null_count == table.num_rows == 334
        assert trace.table("kernels", ["short_name"]).num_rows == 334


def test_a_table_without_columns_has_no_rows(kind: str, kernels: Path) -> None:
    write(kernels, read(kernels).select([]))
    with tk.load(kernels.parent) as trace:
        assert trace.count("kernels") == trace["kernels"].num_rows == 0


def test_two_columns_of_one_name(kind: str, kernels: Path) -> None:
    table = read(kernels)
    write(kernels, pa.table([*table.columns, table["end"]], names=[*table.column_names, "start"]))
    what = f"the table has several columns named start{again(kind)}"
    assert error_of(kernels.parent) == f"{kernels}: table {KERNEL}: {what}"


@pytest.mark.parametrize("name", [None, "nsys-parquetdir", "nsys-arrowdir"])
def test_no_folder_of_an_export(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "people.csv").write_text("name\n")
    (tmp_path / "other" / ".StringIds.parquet").write_bytes(b"")
    (tmp_path / "file").write_bytes(POINTER)
    kind = CorruptTraceError if name else UnknownFormatError
    for path, said in (
        ("empty", "a folder whose content no reader recognizes\nHint: "),
        ("other", "a folder whose content no reader recognizes\nHint: "),
        ("file", "a Git LFS pointer, not the file itself\nHint: run: git lfs pull"),
    ):
        with pytest.raises(kind) as caught:
            tk.load(tmp_path / path, name)
        assert str(caught.value).startswith(f"{tmp_path / path}: ")
        assert said in str(caught.value)
    with pytest.raises(FileNotFoundError):
        tk.load(tmp_path / "nowhere", name)


def test_one_file_of_a_folder(kind: str, kernels: Path) -> None:
    with pytest.raises(CorruptTraceError) as caught:
        tk.load(kernels, f"nsys-{kind}")
    assert str(caught.value) == (
        f"{kernels}: not a folder of {NAMES[kind]} files: this is only one file of an export\n"
        "Hint: pass the folder that contains the file"
    )
    said = {
        "parquetdir": "the file contains no table whose name tracekit knows\nHint: pass the folder that nsys exported",
        "arrowdir": "this is a single Arrow stream\n"
        "Hint: for an Nsight Systems export, pass the folder that contains the file, or load the report",
    }
    with pytest.raises(TracekitError) as caught_:
        tk.load(kernels)
    assert str(caught_.value) == f"{kernels}: {said[kind]}"


@pytest.mark.slow
def test_absurd_numbers_of_rows(tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        path = copied(kind, tmp_path / kind) / f"{KERNEL}{SUFFIXES[kind]}"
        rows = 20_000_000
        if kind == "arrowdir":
            with ipc.new_stream(path, pa.schema([("start", pa.null())])) as out:
                out.write_batch(pa.record_batch([pa.nulls(rows)], names=["start"]))
        else:
            parquet.write_table(pa.table({"start": pa.repeat(7, rows)}), path, row_group_size=rows)
        said = f"the file declares {rows} rows, but has only {path.stat().st_size} bytes{again(kind)}"
        assert error_of(path.parent) == f"{path}: table {KERNEL}: {said}"
        with tk.load(path.parent) as trace, pytest.raises(CorruptTraceError, match=f"the file declares {rows} rows"):
            trace.count("kernels")


def test_a_long_text_on_every_row_stays_one_text(tmp_path: Path) -> None:
    path = copied("parquetdir", tmp_path) / "PROCESSES.parquet"
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 4000), pa.array(["x" * 1_000_000]))
    table = pa.table({"globalPid": pa.array(range(4000)), "pid": pa.array(range(4000)), "name": long})
    parquet.write_table(table, path, compression="zstd")
    said = error_of(path.parent, "processes")
    assert said.startswith(f"{path}: table PROCESSES: cannot be read: 4,000,000,000 bytes of strings would take 4,000,")
    assert said.endswith(again("parquetdir"))


# Mutations: whatever the bytes, it ends in an error of ours or in a trace, quickly and within bounds.

Mutation = Callable[[bytearray, random.Random], None]


def flipped(data: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice((1, 2, 8, 40))):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def edges(data: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice((1, 3, 9))):
        at = dice.randrange(len(data)) & ~7 if dice.random() < 0.5 else dice.randrange(len(data))
        number = dice.choice((0, 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1))
        size = dice.choice((4, 8))
        data[at : at + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def near_the_ends(data: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice((1, 2, 4))):
        at = dice.randrange(min(len(data), 1200))
        data[at if dice.random() < 0.5 else -1 - at] = dice.randrange(256)


def cut_short(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def cut_out(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    del data[at : at + dice.randrange(1, 1000)]


def repeated(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    data[at:at] = data[at : at + dice.randrange(1, 1000)]


def zeroed(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    data[at : at + 512] = bytes(len(data[at : at + 512]))


MUTATIONS: tuple[Mutation, ...] = (flipped, edges, near_the_ends, cut_short, cut_out, repeated, zeroed)
TABLES = (KERNEL, "NVTX_EVENTS", "StringIds", "PROCESSES", "ThreadNames", "TARGET_INFO_GPU", "META_DATA_EXPORT")
READ = ("kernels", "nvtx_ranges", "nvtx_marks", "processes", "threads", "devices", "capture_info")


def outcome(folder: Path, file: Path) -> Counter[str]:
    """Read what the tables may be in; say how each ended."""
    ended: Counter[str] = Counter()
    try:
        trace = tk.load(folder)
    except TracekitError as e:
        assert_ours(e, folder, file)
        return Counter(error=1)
    with trace:
        for name in READ:
            try:
                trace[name].validate(full=True)
                assert trace.count(name) == trace[name].num_rows
                ended["trace"] += 1
            except TracekitError as e:
                assert_ours(e, folder, file)
                ended["error"] += 1
    return ended


def assert_ours(error: TracekitError, folder: Path, file: Path) -> None:
    assert str(error).startswith((f"{file}: ", f"{folder}: ")), error
    assert error.hint, error


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_every_mutation_ends_well(kind: str, tmp_path: Path, compression: str | None) -> None:
    folder = copied(kind, tmp_path)
    if compression:
        for table in TABLES:
            path = folder / f"{table}{SUFFIXES[kind]}"
            write(path, read(path), rows=150, compression=compression)
    whole = {table: (folder / f"{table}{SUFFIXES[kind]}").read_bytes() for table in TABLES}
    before, ended = peak_bytes(), Counter[str]()
    for case in range(CASES // 4):
        dice = random.Random(case)
        table, mutate = TABLES[case % len(TABLES)], MUTATIONS[case // len(TABLES) % len(MUTATIONS)]
        file = folder / f"{table}{SUFFIXES[kind]}"
        data = bytearray(whole[table])
        mutate(data, dice)
        file.write_bytes(data)
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ended += outcome(folder, file)
        assert time.process_time() - began < SECONDS, f"case {case}, {table}, {mutate.__name__}"
        file.write_bytes(whole[table])
    assert peak_bytes() - before < BYTES
    assert ended["error"] > CASES // 40
    assert ended["trace"] > CASES // 10
