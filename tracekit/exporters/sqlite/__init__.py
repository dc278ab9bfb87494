"""Export one SQLite database with all tables, keys, indexes, views of common joins and full-text search on names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.registry.interface import Exporter

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry.interface import Progress, View


def write(view: View, path: Path, progress: Progress) -> None:
    """Write a trace as a SQLite database."""
    from tracekit.exporters.sqlite.export import write_database
    from tracekit.exporters.sqlite.keys import find_valid_keys

    schemas = {name: view.schema(name) for name in choose_table_names(view)}
    view.prefetch(dict.fromkeys(schemas))
    tables = ((name, view.chunked_table(name)) for name in schemas)
    rows = sum(map(view.count, schemas))
    write_database(path, schemas, find_valid_keys(view, schemas), tables, progress, total_rows=rows)


def choose_table_names(view: View) -> list[str]:
    """Return the names of the tables to write: all tables except optional tables that the user did not select."""
    selected = view.selected_tables or ()
    return [name for name in view.tables if name in selected or not view.schema(name).optional]


EXPORTER = Exporter(
    "sqlite",
    "One SQLite database with all tables, keys, indexes, views of common joins and full-text search on names",
    (".db", ".sqlite", ".sqlite3"),
    write=write,
    correlated=True,
)
