"""What is declared of the versions of nsys exports is true of real ones, and exports of every version read alike."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_sqlite import FIXTURES, columns_of, edited
from tests.conftest import SHARED
from tracekit import schemas
from tracekit.readers.nsys.lookups import find_arrow_type
from tracekit.readers.nsys.mapping import SOURCES
from tracekit.readers.nsys.versions import (
    ADDED,
    CONTEXTS,
    DEVICES,
    ENUM_OF_COLUMN,
    FACT_TABLES,
    LABELS,
    NEWEST_SCHEMA,
    AddedColumn,
)

PUBLIC = sorted(p for folder in ("nsys_sqlite", "nsys_pairs") for p in (SHARED / "corpus" / folder).glob("**/*.sqlite"))
INSIDE = {"NVTX_EVENTS.binaryData"}
"""What a resolver asks for, and no declared column alone is made of."""


def numbers(schema: str) -> tuple[int, ...]:
    return () if schema == "none" else tuple(map(int, schema.split(".")))


def declared(source: str) -> dict[str, str]:
    """Declared columns that are made of a source column, by table."""
    return {t: c for t, of in SOURCES.items() for c in of.columns if ".".join(of.locate_column(c)) == source}


def with_table(added: AddedColumn) -> list[Path]:
    """The two smallest captures whose export has the table of a column."""
    exports = sorted(FIXTURES.glob("*.sqlite"), key=lambda p: p.stat().st_size)
    return [p for p in exports if columns_of(p, added.column.partition(".")[0])][:2]


def test_declared_versions_are_in_order() -> None:
    for a in ADDED:
        assert numbers(a.last_without) < numbers(a.first_with), a.column
        assert numbers(a.first_with)[:2] <= NEWEST_SCHEMA, a.column
    names = [a.column for a in ADDED]
    assert names == sorted(set(names))


NOT_RECORDED = {"peak_flop_per_s"}
"""Columns of devices and contexts that other profilers fill."""


def test_declared_columns_are_those_that_tables_are_made_of() -> None:
    assert [a.column for a in ADDED if not declared(a.column) and a.column not in INSIDE] == []
    for table, origins in (("devices", DEVICES), ("contexts", CONTEXTS)):
        for origin in origins:
            assert set(origin.columns) <= set(schemas.table(table).names), origin.table
            assert origin.fill_key in (None, *origin.columns), origin.table
        assert set(origins[0].columns) == set(schemas.table(table).names) - NOT_RECORDED
    assert set(ENUM_OF_COLUMN.values()) == set(LABELS)


@pytest.mark.slow
@pytest.mark.many(2)
@pytest.mark.parametrize("added", [a for a in ADDED if with_table(a)], ids=lambda a: a.column)
def test_an_export_without_a_column_reads_alike(tmp_path: Path, added: AddedColumn) -> None:
    """Without the column, only what is made of it is null."""
    table, _, column = added.column.partition(".")
    made = set(declared(added.column).items())
    for path in with_table(added):
        gone = [f"ALTER TABLE {table} DROP COLUMN {column}"] if column in columns_of(path, table) else []
        with tk.load(path) as new, tk.load(edited(tmp_path, *gone, of=path.stem)) as old:
            for name, schema in schemas.tables().items():
                mine, theirs = old[name], new[name]
                null = [c for c in schema.names if (name, c) in made]
                assert [c for c in null if mine[c].null_count != mine.num_rows] == [], path.stem
                kept = [c for c in schema.names if c not in null]
                assert [c for c in kept if not mine[c].equals(theirs[c])] == [], path.stem


@pytest.mark.corpus
@pytest.mark.skipif(not PUBLIC, reason="no corpus beside the checkout")
def test_public_exports_are_as_declared() -> None:
    seen = set()
    for path in PUBLIC:
        found = schema_of(path)
        for a in ADDED:
            table, _, column = a.column.partition(".")
            columns = columns_of(path, table)
            if not columns:
                continue
            seen.add(a.column)
            if found <= numbers(a.last_without):
                assert column not in columns, (found, a.column)
            if found >= numbers(a.first_with):
                assert column in columns, (found, a.column)
    unseen = {a.column for a in ADDED} - seen
    assert {column.partition(".")[0] for column in unseen} == {"CUDA_GPU_MEMORY_USAGE_EVENTS"}


def schema_of(path: Path) -> tuple[int, ...]:
    """The schema that an export names; () if none."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        names = {n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        for table in names & set(FACT_TABLES):
            ((schema,),) = db.execute(f"SELECT value FROM {table} WHERE name = 'EXPORT_SCHEMA_VERSION'").fetchall()
            return numbers(schema)
    return ()


FOREIGN = (
    "CREATE INDEX stringId ON StringIds (id, value)",
    "CREATE INDEX runtime_start ON CUPTI_ACTIVITY_KIND_RUNTIME (start, end)",
    "CREATE INDEX correlationId_kernel ON CUPTI_ACTIVITY_KIND_KERNEL (correlationId)",
    'CREATE INDEX "_nsysai_kernel" ON CUPTI_ACTIVITY_KIND_KERNEL (start, deviceId, demangledName)',
    'CREATE UNIQUE INDEX "_nsysai_nvtx" ON NVTX_EVENTS (rowid_text, start) WHERE rowid_text IS NOT NULL',
    "CREATE TABLE cudaAPIStats (name TEXT, total INTEGER, ms REAL)",
    "INSERT INTO cudaAPIStats VALUES ('x', 1, 2.5)",
    "CREATE TABLE ms (estEnd, [strange name])",
    "CREATE TABLE 'we''ird \"table\"' (a)",
    "CREATE VIEW NvtxPushPopRanges AS SELECT * FROM NVTX_EVENTS",
    "CREATE TRIGGER noted AFTER INSERT ON StringIds BEGIN INSERT INTO ms VALUES (1, 2); END",
    "ANALYZE",
)
ADDITIONS = (
    "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN kernel_name TEXT DEFAULT 'mine'",
    "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN long_kernel_name TEXT",
    "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN cuda_name TEXT DEFAULT 'mine'",
    "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN name TEXT",
    "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET name = (SELECT value FROM StringIds WHERE id = nameId)",
    "ALTER TABLE NVTX_EVENTS ADD COLUMN rowid_text TEXT",
    "ALTER TABLE StringIds ADD COLUMN note BLOB DEFAULT x'00ff'",
)


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("capture", ["graph_node", "nvtx_features", "train_amp"])
def test_what_others_add_to_an_export_does_not_disturb(tmp_path: Path, capture: str) -> None:
    path = edited(tmp_path, *ADDITIONS, *FOREIGN, of=capture)
    with tk.load(path) as trace, tk.load(FIXTURES / f"{capture}.sqlite") as same:
        assert trace.format == "nsys-sqlite"
        assert trace.info == same.info
        assert [n for n in trace.tables if not trace[n].equals(same[n])] == []
        linked, expected = trace.correlate(), same.correlate()
        assert [n for n in linked.tables if not linked[n].equals(expected[n])] == []


def test_types_of_source_columns() -> None:
    texts = {"NVTX_EVENTS.jsonText", "PROCESSES.name", "StringIds.value", "TARGET_INFO_GPU.uuid"}
    assert {str(find_arrow_type(*c.split("."))) for c in texts} == {"string"}
    assert str(find_arrow_type("NVTX_EVENTS", "doubleValue")) == "double"
    assert str(find_arrow_type("NVTX_EVENTS", "start")) == "int64"
