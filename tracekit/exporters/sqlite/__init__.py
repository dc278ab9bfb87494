"""Export one SQLite database with all tables, keys, indexes, views of common joins and full-text search on names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.registry.interface import Exporter
from tracekit.registry.tables import prefetch, read_chunks

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry.interface import Progress, View
    from tracekit.registry.tables import Tables


def write(view: View, path: Path, progress: Progress) -> None:
    """Write a trace as a SQLite database."""
    from tracekit.exporters.sqlite.export import write_database
    from tracekit.exporters.sqlite.keys import find_valid_keys

    names = choose_table_names(view.tables, view.selected_tables)
    declared = {name: view.tables.schema(name) for name in names}
    prefetch(view.tables, dict.fromkeys(names))
    tables = ((name, read_chunks(view.tables, name)) for name in names)
    rows = sum(view.tables.count_many(names).values())
    write_database(path, declared, find_valid_keys(view.tables, declared), tables, progress, total_rows=rows)


def choose_table_names(tables: Tables, selected: frozenset[str] | None) -> list[str]:
    """Return the names of the tables to write: all tables except optional tables that the user did not select."""
    return [name for name in schemas.table_names() if name in (selected or ()) or not tables.schema(name).optional]


EXPORTER = Exporter(
    "sqlite",
    "One SQLite database with all tables, keys, indexes, views of common joins and full-text search on names",
    (".db", ".sqlite", ".sqlite3"),
    write=write,
    correlated=True,
)
