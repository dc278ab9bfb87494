"""Export one SQLite database with all tables, keys, indexes, views of common joins and full-text search on names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.registry.interface import Exporter, ignore_progress
from tracekit.registry.tables import prefetch, read_chunks

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry.interface import ManyTraces, Progress, View
    from tracekit.registry.tables import Tables


def write(view: View, path: Path, progress: Progress) -> None:
    """Write a trace as a SQLite database."""
    from tracekit.exporters.sqlite.export import find_valid_keys, write_database

    names = choose_table_names(view.tables, view.selected_tables)
    declared = {name: view.tables.schema(name) for name in names}
    prefetch(view.tables, dict.fromkeys(names))
    tables = ((name, read_chunks(view.tables, name)) for name in names)
    rows = sum(view.tables.count_many(names).values())
    write_database(path, declared, find_valid_keys(view.tables, declared), tables, progress, total_rows=rows)


def write_many(traces: ManyTraces, path: Path, progress: Progress) -> None:
    """Write a database of several traces, in which the column ``rank`` is part of the key of each table.

    Each trace is opened twice, the first time to determine which keys are unique in all traces.
    """
    from tracekit.exporters.sqlite.export import find_valid_keys, intersect_keys, write_database

    names: list[str] = []
    keys, rows = [], 0
    for part in traces.parts:
        with part.open() as view:
            names = names or choose_table_names(view.tables, view.selected_tables)
            keys.append(find_valid_keys(view.tables, {name: view.tables.schema(name) for name in names}))
            rows += sum(view.tables.count_many(names).values())
    declared = {name: traces.tables.schema(name) for name in names}
    tables = ((name, read_chunks(tables, name)) for tables in traces.iterate_tables(ignore_progress) for name in names)
    write_database(path, declared, intersect_keys(keys).add_leading_column("rank"), tables, progress, total_rows=rows)


def choose_table_names(tables: Tables, selected: frozenset[str] | None) -> list[str]:
    """Return the names of the tables to write: all tables except optional tables that the user did not select."""
    return [name for name in schemas.table_names() if name in (selected or ()) or not tables.schema(name).optional]


EXPORTER = Exporter(
    "sqlite",
    "One SQLite database with all tables, keys, indexes, views of common joins and full-text search on names",
    (".db", ".sqlite", ".sqlite3"),
    write=write,
    write_many=write_many,
    correlated=True,
)
