"""Which files of a folder are tables of an export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.readers.nsys.versions import MARKS

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry import Source

STRINGS = "StringIds"


def files(source: Source, suffix: str) -> dict[str, Path]:
    """Find the files of tables in a folder, by the name of the table; hidden ones are none. None if it is a file."""
    names = (n for n in sorted(source.names) if n.endswith(suffix) and not n.startswith("."))
    return {n.removesuffix(suffix): source.path / n for n in names}


def holds_export(source: Source, suffix: str) -> bool:
    """Whether a folder has files of a suffix that are named as tables of an export."""
    return not _known().isdisjoint(files(source, suffix))


def _known() -> frozenset[str]:
    sources = (str(c.source) for schema in schemas.tables().values() for c in schema.columns[:1] if c.source)
    return frozenset((STRINGS, *MARKS, *(table for table, dot, _ in (s.partition(".") for s in sources) if dot)))
