"""Damaged and foreign files: each is an error of ours or a counted warning, and stays as it was."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import sqlite3
import struct
import warnings
from pathlib import Path

import adbc_driver_sqlite.dbapi
import pytest
import tracekit as tk
from tests.builders.nsys_sqlite import FIXTURES, KERNEL, RUNTIME, edited, outcome, untouched
from tests.conftest import ALL
from tracekit.errors import CorruptTraceError, TracekitError, TracekitWarning, UnknownFormatError
from tracekit.readers.common.sqlite import tables
from tracekit.readers.common.sqlite_files import JOURNAL_MAGIC

SMALL = FIXTURES / "graph_node.sqlite"
PAGE = 4096
AGAIN = "\nHint: export it again: nsys export --type sqlite REPORT"


def written(folder: Path, data: bytes, name: str = "bad.sqlite") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def small() -> bytearray:
    return bytearray(SMALL.read_bytes())


def trusting(data: bytearray) -> bytearray:
    """Make the page count of the header void, so that only SQLite itself can notice what is missing."""
    data[92:96] = struct.pack(">I", struct.unpack(">I", data[24:28])[0] + 1)
    return data


def error_of(path: Path, table: str = "kernels", format: str | None = None) -> TracekitError:
    with untouched(path), pytest.raises(TracekitError) as caught, tk.load(path, format) as trace:
        trace[table]
    return caught.value


UNKNOWN_HINT = "pass a file in one of these formats, or choose its format with format= or --from"
OTHER_EXPORT = "Hint: for an Nsight Systems export, load the report, or run: nsys export --type sqlite"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty (0 bytes)\nHint: export or copy it again"),
        (b"\0" * 9000, "the file begins with zeros only, as after an interrupted export\nHint: export it again"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1234567\n",
            "this is a Git LFS pointer, not the file itself\nHint: run: git lfs pull",
        ),
        (b"U3w[END]NVIDIA Nsight Systems Stream 2", "this is a .qdstrm stream, which only Nsight Systems can"),
        (b"\x1f\x8b" + b"\1" * 200, "this is a gzip file, but it is damaged\nHint: copy it again from its source"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 200, f"this is an HDF5 file, which tracekit cannot read\n{OTHER_EXPORT}"),
        (
            b'data: "GpuMetrics"\ndata: "SocMetrics"\n',
            f"this looks like a text export of Nsight Systems, which tracekit cannot read\n{OTHER_EXPORT}",
        ),
        (
            b'{\n    "VmSystemInformation": [\n',
            f"this looks like an info export of Nsight Systems, which tracekit cannot read\n{OTHER_EXPORT}",
        ),
        (b"PK\x03\x04" + b"\1" * 200, "this is a zip archive, not a profile\nHint: extract the profile from it first"),
        (b"\x28\xb5\x2f\xfd" + b"\1" * 200, "this is a zstd file, not a profile\nHint: decompress it first"),
        (
            b"no capture",
            f"no reader recognizes the content\nHint: {UNKNOWN_HINT}: nsys-sqlite, nsys-rep, nsys-parquetdir",
        ),
        (os.urandom(16) + b"x" * 5000, "no reader recognizes the content\nHint: pass a file in one of these formats"),
    ],
)
def test_not_sqlite(tmp_path: Path, data: bytes, said: str) -> None:
    path = written(tmp_path, data)
    unknown = error_of(path)
    assert isinstance(unknown, UnknownFormatError)
    assert str(unknown).startswith(f"{path}: {said}")
    named = error_of(path, format="nsys-sqlite")
    assert isinstance(named, CorruptTraceError)
    assert str(named).startswith(f"{path}: not a SQLite database: {said}")


@pytest.mark.filterwarnings("ignore:.*may be truncated:tracekit.TracekitWarning")
@pytest.mark.parametrize("strings", [b'{"data":["GpuMetrics","SocMetrics"]}\n', b""])
def test_a_json_export_is_no_database(tmp_path: Path, strings: bytes) -> None:
    path = written(tmp_path, strings + b'{"Type":49,"DiagnosticEvent":{}}\n')
    with tk.load(path) as trace:
        assert trace.format == "nsys-jsonlines"
    assert str(error_of(path, format="nsys-sqlite")).startswith(f"{path}: not a SQLite database: this is a JSON file")


def test_sqlite_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE people (name)")
        connection.execute("CREATE TABLE StringIds (id, value)")
    error = error_of(path)
    assert isinstance(error, UnknownFormatError)
    assert str(error) == (
        f"{path}: this is a SQLite database, but not an Nsight Systems export (its tables are StringIds, people)\n"
        "Hint: pass the report of Nsight Systems, or its SQLite export"
    )
    assert tk.load(path, "nsys-sqlite").count("kernels") == 0


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownFormatError, match="a folder whose content no reader recognizes\nHint: pass a single file"
    ):
        tk.load(tmp_path)
    with pytest.raises(CorruptTraceError, match="not a SQLite database: this is a folder"):
        tk.load(tmp_path, "nsys-sqlite")


def test_a_missing_file(tmp_path: Path) -> None:
    for name in (None, "nsys-sqlite", "parquet", "arrow"):
        with pytest.raises(FileNotFoundError, match="no-such"):
            tk.load(tmp_path / "no-such.sqlite", name)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnknownFormatError, match="neither a file nor a folder\nHint: write its content"):
        tk.load(tmp_path / "pipe")


@pytest.mark.parametrize("format", [None, "nsys-sqlite"])
def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str | None) -> None:
    path = tmp_path / "closed.sqlite"
    shutil.copyfile(SMALL, path)
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read everything

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(TracekitError) as caught:
        tk.load(path, format)
    assert str(caught.value) == f"{path}: the file cannot be read: permission denied\nHint: check its permissions"


def test_a_read_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    path = written(tmp_path, b"x")
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(TracekitError, match="cannot be read: Input/output error"):
        tk.load(path)


def test_truncated_at_every_page(tmp_path: Path) -> None:
    whole = small()
    for size in {*range(PAGE, len(whole), PAGE), 100, 101, 4095, 4097, len(whole) - 1, len(whole) // 2 + 7}:
        path = written(tmp_path, whole[:size])
        error = error_of(path)
        pages = f"its header declares {len(whole) // PAGE} pages of {PAGE} bytes, but the file has only {size // PAGE}"
        assert isinstance(error, CorruptTraceError)
        assert str(error) == f"{path}: the file is truncated: {pages} pages{AGAIN}"


@pytest.mark.parametrize("size", [16, 17, 99])
def test_truncated_in_its_header(tmp_path: Path, size: int) -> None:
    path = written(tmp_path, small()[:size])
    assert (
        str(error_of(path))
        == f"{path}: the file is truncated: it has {size} bytes, but a SQLite header has 100 bytes{AGAIN}"
    )


def test_truncated_where_the_header_does_not_tell(tmp_path: Path) -> None:
    whole = trusting(small())
    for size in {*range(PAGE, len(whole), 5 * PAGE), PAGE + 1, len(whole) - PAGE // 2}:
        path = written(tmp_path, whole[:size])
        with untouched(path):
            assert set(outcome(path).values()) <= {"read", "CorruptTraceError"}


def test_zeroed_from_somewhere_on(tmp_path: Path) -> None:
    whole = small()
    for at in range(PAGE, len(whole), 7 * PAGE):
        path = written(tmp_path, whole[:at] + bytes(len(whole) - at))
        with untouched(path):
            found = outcome(path)
        assert "CorruptTraceError" in found.values()
        assert set(found.values()) <= {"read", "CorruptTraceError"}


@pytest.mark.thorough
def test_pages_zeroed_and_bytes_flipped(tmp_path: Path) -> None:
    rolls = random.Random(20)
    for _ in range(60 if ALL else 20):
        data = small()
        if rolls.random() < 0.4:
            at = rolls.randrange(len(data) // PAGE) * PAGE
            data[at : at + PAGE] = bytes(PAGE)
        for _ in range(rolls.randrange(1, 30)):
            at = rolls.randrange(4 * PAGE if rolls.random() < 0.5 else len(data))
            data[at] = rolls.randrange(256)
        path = written(tmp_path, data)
        with untouched(path):
            assert set(outcome(path).values()) <= {"read", "CorruptTraceError", "UnknownFormatError"}


@pytest.mark.parametrize("table", [KERNEL, RUNTIME, "StringIds", "NVTX_EVENTS", "TARGET_INFO_GPU", "ThreadNames"])
def test_a_table_whose_root_is_zeroed(tmp_path: Path, table: str) -> None:
    with contextlib.closing(sqlite3.connect(f"{SMALL.as_uri()}?immutable=1", uri=True)) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
    data = small()
    data[(root - 1) * PAGE : root * PAGE] = bytes(PAGE)
    path = written(tmp_path, data)
    names = ("kernels", "api_calls", "nvtx_ranges", "devices", "threads")
    with tk.load(path) as trace, pytest.raises(CorruptTraceError) as caught:
        print([trace[name] for name in names])
    assert caught.value.table == table
    assert str(caught.value).startswith(f"{path}: table {table}: cannot be read: ")
    assert str(caught.value).endswith(AGAIN)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("'text'", "column start must hold values of type integer, but holds text"),
        ("x'00ff'", "column start must hold values of type integer, but holds blob"),
        ("2.5", "column start must hold values of type integer, but holds real"),
        ("1e300", "column start must hold values of type integer, but holds real"),
    ],
)
def test_a_foreign_type_in_a_column(tmp_path: Path, value: str, said: str) -> None:
    path = edited(tmp_path, f"UPDATE {KERNEL} SET start = {value} WHERE rowid = 7")
    error = error_of(path)
    assert isinstance(error, CorruptTraceError)
    assert (error.table, error.row) == (KERNEL, 7)
    assert str(error) == f"{path}: table {KERNEL}, row 7: {said}{AGAIN}"


def test_a_null_where_none_may_be(tmp_path: Path) -> None:
    nullable = "PRAGMA writable_schema = ON"
    loosen = f"UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '') WHERE name = '{KERNEL}'"
    path = edited(tmp_path, nullable, loosen)
    path = shutil.copyfile(path, tmp_path / "null.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"DELETE FROM {KERNEL} WHERE rowid = 2")
        connection.execute(f"UPDATE {KERNEL} SET start = NULL WHERE rowid > 8")
        connection.commit()
    error = error_of(path)
    assert isinstance(error, CorruptTraceError)
    assert str(error) == f"{path}: table {KERNEL}, row 9: start_ns is null{AGAIN}"


def test_a_number_too_large(tmp_path: Path) -> None:
    path = edited(tmp_path, f"UPDATE {KERNEL} SET gridX = 3000000000 WHERE rowid = 5")
    assert (
        str(error_of(path))
        == f"{path}: table {KERNEL}, row 5: grid_x is 3000000000, which does not fit into 32 bits{AGAIN}"
    )
    path = edited(tmp_path, "UPDATE TARGET_INFO_GPU SET smCount = -3000000000 WHERE rowid = 2", name="gpu.sqlite")
    said = "table TARGET_INFO_GPU, row 2: sm_count is -3000000000, which does not fit into 32 bits"
    assert str(error_of(path, "devices")) == f"{path}: {said}{AGAIN}"


def test_a_row_among_filtered_ones_is_named_by_its_number(tmp_path: Path) -> None:
    insert = "INSERT INTO NVTX_EVENTS (rowid, start, end, eventType, globalTid, domainId) VALUES"
    loosen = "UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '') WHERE name = 'NVTX_EVENTS'"
    path = edited(tmp_path, "PRAGMA writable_schema = ON", loosen)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"{insert} (900, NULL, 5, 59, 0, 0)")
        connection.commit()
    error = error_of(path, "nvtx_ranges")
    assert isinstance(error, CorruptTraceError)
    assert (error.table, error.row) == ("NVTX_EVENTS", 900)


@pytest.mark.parametrize(
    ("table", "column", "name"),
    [
        (KERNEL, "start", "kernels"),
        (RUNTIME, "nameId", "api_calls"),
        ("NVTX_EVENTS", "eventType", "nvtx_ranges"),
        ("NVTX_EVENTS", "start", "nvtx_ranges"),
        ("ThreadNames", "globalTid", "threads"),
        ("TARGET_INFO_CUDA_STREAM", "streamId", "streams"),
        ("TARGET_INFO_CUDA_CONTEXT_INFO", "processId", "contexts"),
    ],
)
def test_a_missing_column(tmp_path: Path, table: str, column: str, name: str) -> None:
    path = edited(tmp_path, f"ALTER TABLE {table} DROP COLUMN {column}")
    assert str(error_of(path, name)) == f"{path}: table {table}: the table has no column {column}{AGAIN}"


def test_devices_without_a_number(tmp_path: Path) -> None:
    path = edited(tmp_path, "ALTER TABLE TARGET_INFO_GPU DROP COLUMN id")
    assert "has no column id" in str(error_of(path, "devices"))


def test_missing_columns_elsewhere_leave_nulls(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        "ALTER TABLE META_DATA_EXPORT DROP COLUMN value",
        "ALTER TABLE TARGET_INFO_SESSION_START_TIME DROP COLUMN utcEpochNs",
        "ALTER TABLE ENUM_CUDA_MEM_KIND DROP COLUMN label",
        "ALTER TABLE PROCESSES DROP COLUMN name",
        f"ALTER TABLE {RUNTIME} DROP COLUMN returnValue",
    )
    with tk.load(path) as trace:
        machine = {"cpu_model", "os", "driver_version", "cuda_version"}
        assert set(trace.info) == {"duration_ns", *machine}
        assert trace["processes"]["name"].null_count == trace.count("processes") > 0
        assert trace["api_calls"]["return_value"].null_count == trace.count("api_calls") > 0


def test_a_table_without_rowid(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        "DROP TABLE ThreadNames",
        "CREATE TABLE ThreadNames (nameId, priority, globalTid PRIMARY KEY) WITHOUT ROWID",
        "INSERT INTO ThreadNames VALUES (1, 2, 3)",
    )
    said = r"table ThreadNames: cannot be read: page \d+ belongs to an index or a WITHOUT ROWID table"
    assert re.match(re.escape(f"{path}: ") + said, str(error_of(path, "threads")))


def test_a_column_named_rowid(tmp_path: Path) -> None:
    path = edited(tmp_path, f"ALTER TABLE {KERNEL} ADD COLUMN rowid TEXT DEFAULT 'x'")
    with tk.load(path) as trace, tk.load(SMALL) as same:
        assert trace["kernels"].equals(same["kernels"])


@pytest.mark.parametrize(
    "number", ["4611686018427387904", "9223372036854775807", "-5", "-9223372036854775808", "1000000", "0"]
)
def test_any_row_number(tmp_path: Path, number: str) -> None:
    path = edited(tmp_path, f"UPDATE {KERNEL} SET rowid = {number} WHERE rowid = 3")
    with tk.load(path) as trace, tk.load(SMALL) as same:
        ids = trace["kernels"]["kernel_id"].to_pylist()
        assert ids == sorted([int(number), *(i for i in range(1, 53) if i != 3)])
        starts = same["kernels"]["start_ns"].to_pylist()
        assert trace["kernels"]["start_ns"][ids.index(int(number))].as_py() == starts[2]
        assert trace.count("kernels") == 52


def test_views_and_virtual_tables_are_not_data(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        f"ALTER TABLE {KERNEL} RENAME TO hidden",
        f"CREATE VIEW {KERNEL} AS SELECT * FROM hidden",
        "CREATE VIEW broken AS SELECT * FROM nowhere",
        "PRAGMA writable_schema = ON",
        "INSERT INTO sqlite_schema VALUES ('table', 'OSRT_API', 'OSRT_API', 0, "
        "'CREATE VIRTUAL TABLE OSRT_API USING nonesuch(a)')",
    )
    with untouched(path), tk.load(path) as trace:
        assert trace["kernels"].num_rows == trace.count("kernels") == 0
        assert trace["osrt_calls"].num_rows == trace.count("osrt_calls") == 0
        assert trace["api_calls"].num_rows > 0


def test_additions_of_others_change_nothing(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        f"CREATE INDEX correlationId_kernel ON {KERNEL} (correlationId)",
        f"CREATE INDEX _nsysai_kernel_start ON {KERNEL} (start, deviceId)",
        "CREATE INDEX stringId ON StringIds (value)",
        f"ALTER TABLE {KERNEL} ADD COLUMN name TEXT DEFAULT 'mine'",
        f'ALTER TABLE {RUNTIME} ADD COLUMN "select ""odd"" 名" BLOB',
        f"ALTER TABLE {KERNEL} ADD COLUMN made AS (start + 1)",
        "CREATE TABLE ms (a, b)",
        "CREATE TABLE cudaKernelStats AS SELECT * FROM StringIds",
    )
    with tk.load(path) as trace, tk.load(SMALL) as same:
        for name in trace.tables:
            assert trace[name].equals(same[name]), name


def test_negative_times_are_kept(tmp_path: Path) -> None:
    path = edited(tmp_path, f'UPDATE {KERNEL} SET start = -5, "end" = -1 WHERE rowid = 1')
    with tk.load(path) as trace:
        assert trace.table("kernels", ["start_ns", "end_ns"]).slice(0, 1).to_pylist() == [
            {"start_ns": -5, "end_ns": -1}
        ]


def test_rows_that_end_before_they_start_are_kept_and_counted(tmp_path: Path) -> None:
    path = edited(tmp_path, f'UPDATE {KERNEL} SET "end" = start - 1 WHERE rowid IN (2, 3)')
    with tk.load(path) as trace:
        message = "2 rows of the table kernels end before they start; they are kept as recorded"
        with pytest.warns(TracekitWarning, match=f"^{path}: {message}$"):
            assert trace["kernels"].num_rows == 52
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trace.table("kernels", ["start_ns", "end_ns", "name"])


def test_dangling_string_ids(tmp_path: Path) -> None:
    path = edited(tmp_path, f"UPDATE {KERNEL} SET demangledName = 999999 WHERE rowid < 4")
    message = "3 rows of kernels refer to strings that the file lacks: their name is null"
    with tk.load(path) as trace, pytest.warns(TracekitWarning, match=f"^{path}: {message}$"):
        names = trace["kernels"]["name"]
    assert names[:3].null_count == 3
    assert names[3:].null_count == 0


def test_repeated_string_ids(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        "CREATE TABLE fresh (id INTEGER, value TEXT)",
        "INSERT INTO fresh SELECT * FROM StringIds",
        f"INSERT INTO fresh SELECT demangledName, 'second' FROM {KERNEL} GROUP BY 1",
        "DROP TABLE StringIds",
        "ALTER TABLE fresh RENAME TO StringIds",
    )
    with tk.load(path) as trace, tk.load(SMALL) as same:
        with pytest.warns(
            TracekitWarning,
            match=r"\d+ strings have the same id as an earlier string: the first string with each id is used",
        ):
            names = trace["kernels"]["name"]
        assert names.equals(same["kernels"]["name"])


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        f"UPDATE StringIds SET value = CAST(x'ff41fe' AS TEXT) WHERE id = (SELECT shortName FROM {KERNEL} LIMIT 1)",
        "UPDATE NVTX_EVENTS SET textId = NULL, text = CAST(x'41c328' AS TEXT) WHERE eventType IN (59, 60)",
        "UPDATE TARGET_INFO_GPU SET name = CAST(x'80' AS TEXT) WHERE rowid = 1",
        "UPDATE META_DATA_EXPORT SET value = CAST(x'3132ff' AS TEXT) WHERE name = 'EXPORT_PRODUCT_VERSION'",
    )
    with pytest.warns(
        TracekitWarning, match="1 string of META_DATA_EXPORT.value is not UTF-8: invalid bytes are replaced"
    ):
        trace = tk.load(path)
    with pytest.warns(TracekitWarning, match="1 string of StringIds.value is not UTF-8: invalid bytes are replaced"):
        assert trace["kernels"]["short_name"][0].as_py() == "�A�"
    with pytest.warns(
        TracekitWarning, match=r"\d+ strings of NVTX_EVENTS.text are not UTF-8: invalid bytes are replaced"
    ):
        assert set(trace["nvtx_ranges"]["name"].to_pylist()) == {"A�("}
    with pytest.warns(
        TracekitWarning, match="1 string of TARGET_INFO_GPU.name is not UTF-8: invalid bytes are replaced"
    ):
        assert trace.devices["name"][0] == "�"
    assert trace.info["tool_version"] == "12�"
    trace.close()


def test_embedded_nuls_are_kept(tmp_path: Path) -> None:
    nul = "'a' || char(0) || 'b'"
    path = edited(
        tmp_path,
        f"UPDATE StringIds SET value = {nul} WHERE id = (SELECT shortName FROM {KERNEL} LIMIT 1)",
        f"UPDATE NVTX_EVENTS SET textId = NULL, text = {nul}",
        f"UPDATE TARGET_INFO_GPU SET name = {nul}",
    )
    with tk.load(path) as trace:
        assert trace["kernels"]["short_name"][0].as_py() == "a\0b"
        assert set(trace["nvtx_ranges"]["name"].to_pylist()) == {"a\0b"}
        assert trace.devices["name"].to_list() == ["a\0b"] * 2


def test_blobs_and_numbers_as_text(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        f"UPDATE StringIds SET value = x'4142' WHERE id = (SELECT shortName FROM {KERNEL} LIMIT 1)",
        "DROP TABLE ENUM_CUDA_KERNEL_LAUNCH_TYPE",
        "CREATE TABLE ENUM_CUDA_KERNEL_LAUNCH_TYPE (id, name, label)",
        "INSERT INTO ENUM_CUDA_KERNEL_LAUNCH_TYPE VALUES (1, NULL, 17), (NULL, NULL, NULL)",
    )
    with tk.load(path) as trace:
        assert trace["kernels"]["short_name"][0].as_py() == "AB"
        assert trace["kernels"]["launch_type"].unique().to_pylist() == ["17"]


def test_utf16_databases(tmp_path: Path) -> None:
    path = tmp_path / "utf16.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as to, contextlib.closing(sqlite3.connect(SMALL)) as source:
        to.execute("PRAGMA encoding = 'UTF-16le'")
        to.executescript("\n".join(source.iterdump()))
    with tk.load(path) as trace, tk.load(SMALL) as same:
        assert trace["kernels"].equals(same["kernels"])
        assert trace["devices"].equals(same["devices"])


@pytest.mark.parametrize("column", ["doubleValue", "floatValue"])
def test_numbers_of_either_kind_in_a_real_column(tmp_path: Path, column: str) -> None:
    loosen = f"UPDATE sqlite_schema SET sql = replace(sql, '{column} REAL', '{column} INTEGER')"
    path = edited(tmp_path, "PRAGMA writable_schema = ON", loosen + ", sql = replace(sql, '\"', '') WHERE 0")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE NVTX_EVENTS SET {column} = rowid")
        connection.execute(f"UPDATE NVTX_EVENTS SET {column} = 2.5 WHERE rowid = 2")
        connection.commit()
    with tk.load(path) as trace:
        assert 2.5 in trace["nvtx_ranges"]["payload_float"].to_pylist()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE NVTX_EVENTS SET {column} = 'much' WHERE rowid = 2")
        connection.commit()
    error = error_of(path, "nvtx_ranges")
    assert f"table NVTX_EVENTS, row 2: column {column} must hold values of type number, but holds text" in str(error)


def test_a_newer_schema_is_read_with_a_warning(tmp_path: Path) -> None:
    newer = "UPDATE META_DATA_EXPORT SET value = '4.1.7' WHERE name = 'EXPORT_SCHEMA_VERSION'"
    path = edited(tmp_path, newer)
    version = "the schema version 4.1.7 is newer than 3.25, the newest that tracekit supports"
    message = f"{version}: new tables and columns are ignored"
    with pytest.warns(TracekitWarning, match=f"^{path}: {message}$"), tk.load(path) as trace:
        assert trace["kernels"].num_rows == 52


@pytest.mark.parametrize("version", ["NULL", "''", "'soon'", "'" + "9" * 6000 + "'", "x'ff'", "3.2"])
def test_any_text_for_a_schema_version(tmp_path: Path, version: str) -> None:
    path = edited(tmp_path, f"UPDATE META_DATA_EXPORT SET value = {version} WHERE name = 'EXPORT_SCHEMA_VERSION'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        assert tk.load(path).count("kernels") == 52


@pytest.mark.parametrize(
    ("suffix", "content"), [("-journal", JOURNAL_MAGIC + b"\1" * 500), ("-wal", b"\x37\x7f\6\x82")]
)
def test_a_journal_beside_the_file(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = edited(tmp_path)
    beside = path.with_name(path.name + suffix)
    beside.write_bytes(content)
    link = tmp_path / "elsewhere" / "link.sqlite"
    link.parent.mkdir()
    link.symlink_to(path)
    for opened in (path, link):
        error = error_of(opened)
        assert isinstance(error, CorruptTraceError)
        assert str(error) == (
            f"{opened}: the journal {path.name}{suffix} holds changes that are not in the file yet"
            "\nHint: wait until the program that writes the file has ended, or export the file again"
        )
    beside.write_bytes(b"")
    assert tk.load(path).count("kernels") == 52
    if suffix == "-journal":
        beside.write_bytes(bytes(512))  # as PRAGMA journal_mode = PERSIST leaves it
        assert tk.load(path).count("kernels") == 52
    beside.unlink()
    beside.mkdir()
    with pytest.raises(TracekitError, match="is a folder, not a regular file\nHint: move or delete that file"):
        tk.load(path)


def test_a_database_in_wal_mode_that_was_closed(tmp_path: Path) -> None:
    path = edited(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("UPDATE META_DATA_EXPORT SET value = value")
        connection.commit()
    with untouched(path), tk.load(path) as trace:
        assert trace["kernels"].num_rows == 52


def test_a_writer_at_work(tmp_path: Path) -> None:
    path = edited(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("PRAGMA cache_spill = 1")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute(f"UPDATE {RUNTIME} SET returnValue = 1")
        connection.execute("UPDATE StringIds SET value = value || 'x'")
        with pytest.raises(CorruptTraceError, match=r"the journal .*-journal"):
            tk.load(path)
        connection.rollback()


def test_errors_reach_through_polars(tmp_path: Path) -> None:
    path = edited(tmp_path, f"UPDATE {KERNEL} SET start = 'text' WHERE rowid = 7")
    with (
        tk.load(path) as trace,
        pytest.raises(CorruptTraceError, match="row 7: column start must hold values of type integer"),
    ):
        trace.frame("kernels").select("start_ns").collect()


def test_a_failing_driver_is_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with tk.load(SMALL) as trace:

        def fail(*_: object, **__: object) -> None:
            raise OSError

        monkeypatch.setattr(adbc_driver_sqlite.dbapi, "connect", fail)
        trace._plan.source.capture.close()  # type: ignore[attr-defined]
        with pytest.raises(CorruptTraceError, match=f"table {KERNEL}: cannot be read: OSError"):
            trace["kernels"]


def test_a_number_too_large_in_one_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RUN_BYTES", 1)
    path = edited(tmp_path, f"UPDATE {KERNEL} SET gridX = 3000000000, globalPid = -1 WHERE rowid = 23")
    assert (
        str(error_of(path))
        == f"{path}: table {KERNEL}, row 23: grid_x is 3000000000, which does not fit into 32 bits{AGAIN}"
    )
    assert tk.load(path).table("kernels", ["process_id"])["process_id"][22].as_py() == (1 << 24) - 1


def test_a_table_cut_in_slices_fails_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RUN_BYTES", 1)
    path = edited(tmp_path, f"UPDATE {KERNEL} SET start = 'text' WHERE rowid = 33")
    error = error_of(path)
    assert isinstance(error, CorruptTraceError)
    assert error.row == 33
