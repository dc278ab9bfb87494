"""Exports as folders: written anew from SQLite exports in any layout that Parquet and Arrow allow, and damaged."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc, parquet
from tests.builders.nsys_sqlite import FIXTURES

SUFFIXES = {"parquetdir": ".parquet", "arrowdir": ".arrow"}
KINDS = list(SUFFIXES)


def fixture(kind: str) -> Path:
    """The export of ``train_amp`` that nsys wrote."""
    return FIXTURES / f"train_amp_{kind}"


def copied(kind: str, folder: Path, *, without: Sequence[str] = ()) -> Path:
    """Copy that export, but some tables."""
    copy = Path(shutil.copytree(fixture(kind), folder / "copy"))
    for table in without:
        (copy / f"{table}{SUFFIXES[kind]}").unlink()
    return copy


def tables_of(export: Path) -> dict[str, pa.Table]:
    """Every table of a SQLite export, as Arrow."""
    kinds = {"INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.large_string()}
    found = {}
    with contextlib.closing(sqlite3.connect(f"file:{export}?mode=ro&immutable=1", uri=True)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            columns = db.execute("SELECT name, type FROM pragma_table_info(?)", (name,)).fetchall()
            rows = db.execute(f'SELECT * FROM "{name}" ORDER BY rowid').fetchall()
            values = list(zip(*rows, strict=True)) or [()] * len(columns)
            arrays = [pa.array(v, kinds[kind]) for v, (_, kind) in zip(values, columns, strict=True)]
            found[name] = pa.table(dict(zip((c for c, _ in columns), arrays, strict=True)))
    return found


def read(path: Path) -> pa.Table:
    """Read one table file whole."""
    if path.suffix == ".parquet":
        return parquet.read_table(path)
    return ipc.open_stream(pa.BufferReader(path.read_bytes())).read_all()


def write(path: Path, table: pa.Table, *, rows: int = 1 << 20, compression: str | None = None) -> Path:
    """Write one table file: row groups or batches of so many rows."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=rows, compression=compression or "snappy")
    else:
        with ipc.new_stream(path, table.schema, options=ipc.IpcWriteOptions(compression=compression)) as out:
            out.write_table(table, max_chunksize=rows)
    return path


def as_folder(folder: Path, kind: str, tables: Mapping[str, pa.Table], *, rows: int = 1 << 20) -> Path:
    """Write tables as a folder of an export."""
    folder.mkdir()
    for name, table in tables.items():
        write(folder / f"{name}{SUFFIXES[kind]}", table, rows=rows)
    return folder


def changed(path: Path, column: str, values: pa.Array) -> None:
    """Put other values, of any type, into a column of a table file."""
    table = read(path)
    write(path, table.set_column(table.schema.get_field_index(column), column, values))
