"""Every table and column of the exports of nsys is read, or docs/formats.md states why not.

``nsys_schema.txt`` lists the tables and columns that nsys 2022.4.2, 2023.4.4 and 2025.3.1 create with ``--lazy=false``,
and those of public exports by all versions up to 2026.2, without the labels of enums.
"""

from __future__ import annotations

import contextlib
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import tracekit as tk
from tracekit.errors import TracekitWarning
from tracekit.readers.nsys.export import list_decoded_tables
from tracekit.readers.nsys.tables import ColumnsRequest
from tracekit.readers.nsys_sqlite.tables import ExportTables

ROOT = Path(__file__).parents[2]
LISTED = Path(__file__).with_name("nsys_schema.txt").read_text("utf-8").splitlines()
SCHEMA: Mapping[str, list[str]] = {line.split()[0]: line.split()[1:] for line in LISTED}
PAGE = (ROOT / "docs" / "formats.md").read_text("utf-8")
STATS = ("cudaAPIStats", "me", "UnwindMethodType")
"""Tables of old versions of ``nsys stats`` that the page gives as examples."""


def iterate_rows(heading: str) -> Iterator[list[list[str]]]:
    """Yield the names in backticks in each cell but the last one, of the rows of the table below a heading."""
    for line in PAGE.partition(heading)[2].splitlines()[1:]:
        if not line.startswith("|"):
            return
        yield [cell.split("`")[1::2] for cell in line.strip("| ").split(" | ")[:-1]]


def match(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    return [name for name in names if any(fnmatchcase(name, p) for p in patterns)]


def write_export(path: Path) -> Path:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        for table, columns in SCHEMA.items():
            db.execute(f'CREATE TABLE "{table}" ({", ".join(f""" "{c}" INTEGER""" for c in columns)})')
            db.execute(f'INSERT INTO "{table}" VALUES ({", ".join("1" for _ in columns)})')
        db.execute("DELETE FROM META_DATA_EXPORT")
        db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.3')")
    return path


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The columns of each table that are read or filtered when every declared table is read."""
    asked: dict[str, set[str]] = {}
    batches = ExportTables.read_batches

    def noting(self: ExportTables, requests: Sequence[ColumnsRequest[object]]) -> object:
        for request in requests:
            where = [request.where.column] if request.where else []
            asked.setdefault(request.table, set()).update(request.types, where)
        return batches(self, requests)

    path = write_export(tmp_path_factory.mktemp("all") / "all.sqlite")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        patch.setattr(ExportTables, "read_batches", noting)
        with tk.load(path, format="nsys-sqlite") as trace:
            for name in trace.tables:
                trace.table(name)
    return asked


def test_every_table_is_read_or_named() -> None:
    decoded = list_decoded_tables()
    patterns = [p for (names,) in iterate_rows("| source tables | why they are not read |\n") for p in names]
    unread = [table for table in SCHEMA if table not in decoded]
    assert match(unread, patterns) == unread
    assert match(sorted(decoded & SCHEMA.keys()), patterns) == []
    assert [p for p in patterns if p not in STATS and not match(unread, [p])] == []


def test_every_column_is_read_or_named(used: dict[str, set[str]]) -> None:
    unread = {(table, c) for table, columns in used.items() for c in SCHEMA.get(table, ()) if c not in columns}
    named: set[tuple[str, str]] = set()
    for tables, columns in iterate_rows("| source tables | columns | why they are not read |\n"):
        matches = {(t, c) for t in match(list(used), tables) for c in match(SCHEMA.get(t, []), columns)}
        assert matches, (tables, columns)
        named |= matches
    assert unread - named == set()
    assert named - unread == set()
