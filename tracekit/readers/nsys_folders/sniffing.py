"""Find the table files in a folder that nsys exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.nsys.mapping import SOURCES
from tracekit.readers.nsys.versions import MARKER_TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry.source import Source

STRINGS = "StringIds"


def list_table_paths(source: Source, suffix: str) -> dict[str, Path]:
    """Return the paths of the table files in a folder, by table name.

    A table file has the given suffix and is named after its table. Hidden files are excluded. The result is empty if
    the source is a single file.
    """
    names = (n for n in sorted(source.names) if n.endswith(suffix) and not n.startswith("."))
    return {n.removesuffix(suffix): source.path / n for n in names}


def is_export_folder(source: Source, suffix: str) -> bool:
    """Return whether a folder contains files with the given suffix that are named after tables of an export."""
    paths = list_table_paths(source, suffix)
    return bool(paths) and not _list_known_table_names().isdisjoint(paths)


def _list_known_table_names() -> frozenset[str]:
    """Return the names of all Nsight Systems tables that tracekit reads."""
    return frozenset((STRINGS, *MARKER_TABLES)).union(*(sources.labels for sources in SOURCES.values()))
