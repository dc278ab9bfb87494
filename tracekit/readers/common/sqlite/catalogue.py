"""Read the schema of a SQLite file before SQLite opens the file.

At its first statement, SQLite parses the whole schema and reads the statistics tables (``sqlite_stat1`` and so on),
however large they are. Therefore this module reads and checks the schema first. A schema that exceeds ``MAX_BYTES``,
``MAX_STATEMENT_BYTES`` or ``MAX_ENTRIES`` is treated as damaged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sqlite import trees
from tracekit.readers.common.sqlite.pages import PageFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.readers.common.sqlite.pages import Ints

    SqliteValue = int | float | bytes | None

MAX_BYTES, MAX_STATEMENT_BYTES, MAX_ENTRIES = 1 << 18, 1 << 14, 10_000
"""Limits for the total size of a schema, the size of one entry, and the number of entries.

The largest schema of a real file has a size of 46 kB and 111 entries of at most 4.4 kB. The size of an entry is limited
because SQLite compares each UNIQUE constraint of a statement with all earlier constraints of the statement.
"""

MAX_STATISTICS_BYTES = 1 << 20

STATISTICS = ("sqlite_stat1", "sqlite_stat3", "sqlite_stat4")
_ROOT = 1
_NEXT_PAGE_BYTES = 4
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_COLUMNS = 5


class CatalogueEntry(NamedTuple):
    """A row of ``sqlite_schema``, which describes a table, index, view or trigger.

    Attributes:
        kind: ``table``, ``index``, ``view`` or ``trigger``.
        name: Name of the object.
        root: Number of the root page of the object, or 0 if the object has no pages of its own.
        sql: Statement that creates the object. It is empty for automatic indexes.
    """

    kind: str
    name: str
    root: int
    sql: str

    @property
    def is_table(self) -> bool:
        """Whether the object is an ordinary table rather than a virtual table, a view, an index or a trigger."""
        return (
            self.kind == "table"
            and self.root > 0
            and re.match(r"\s*create\s+virtual\b", self.sql, re.IGNORECASE) is None
        )


class Schema(NamedTuple):
    """The schema of a SQLite file, and the pages that store it.

    Attributes:
        entries: Rows of the schema table.
        tree: B-tree pages of the schema table.
        overflow_pages: Numbers of the overflow pages of the schema table.
    """

    entries: list[CatalogueEntry]
    tree: trees.TableTree
    overflow_pages: Ints

    def find_tables(self) -> dict[str, CatalogueEntry]:
        """Return the schema entry of each ordinary table, by table name."""
        return {e.name: e for e in self.entries if e.is_table}


def read_table_names(path: Path) -> frozenset[str] | None:
    """Return the names of the ordinary tables of a SQLite file, or None if the file is damaged.

    Raises:
        TracekitError: The file cannot be read.
    """
    try:
        return frozenset(read_schema(PageFile(path)).find_tables())
    except Damage:
        return None


def read_schema(file: PageFile) -> Schema:
    """Read and check the schema of a SQLite file.

    Raises:
        Damage: The schema is damaged, or exceeds a limit.
    """
    tree = trees.read_tree(file, _ROOT)
    entries: list[CatalogueEntry] = []
    overflow: list[int] = []
    size = 0
    for run in trees.split_into_page_runs(tree, file.page_size):
        block = file.read(run.pages)
        cells = trees.find_cells(file, block, run)
        size += trees.summarize_page_run(file, block, cells, run).payload
        if size > MAX_BYTES or len(entries) + len(cells.rowids) > MAX_ENTRIES:
            raise Damage(
                f"the schema has more than {MAX_BYTES} bytes or {MAX_ENTRIES} entries, which tracekit does not support"
            )
        if (cells.payload > MAX_STATEMENT_BYTES).any():
            raise Damage(
                f"the schema has an entry of {cells.payload.max()} bytes, but "
                f"tracekit supports at most {MAX_STATEMENT_BYTES} bytes"
            )
        for nth in range(len(cells.rowids)):
            local = block.data[cells.starts[nth] : cells.ends[nth] + _NEXT_PAGE_BYTES].tobytes()
            record, pages = _assemble_record(file, local, int(cells.payload[nth]), int(cells.on_leaf[nth]))
            overflow += pages
            entries.append(_decode_schema_entry(record, file.header.encoding))
    return Schema(entries, tree, np.array(overflow, np.int64))


def _assemble_record(file: PageFile, leaf_bytes: bytes, size: int, leaf_size: int) -> tuple[bytes, list[int]]:
    """Return the bytes of a record that begins on a leaf page, and the numbers of its overflow pages.

    Args:
        file: The pages of the file.
        leaf_bytes: Bytes of the record on its leaf page, followed by the number of the first overflow page.
        size: Size of the whole record in bytes.
        leaf_size: Number of bytes of the record that are on its leaf page.
    """
    parts, pages = [leaf_bytes[:leaf_size]], []
    page, left = int.from_bytes(leaf_bytes[leaf_size : leaf_size + _NEXT_PAGE_BYTES], "big"), size - leaf_size
    while left:
        if not 1 < page <= file.count:
            raise Damage(f"the schema refers to overflow page {page}, but only the pages 2 to {file.count} are allowed")
        pages.append(page)
        data = file.read(np.array([page], np.int64)).pages[0].tobytes()
        parts.append(data[_NEXT_PAGE_BYTES : min(file.usable, _NEXT_PAGE_BYTES + left)])
        left -= len(parts[-1])
        page = int.from_bytes(data[:_NEXT_PAGE_BYTES], "big")
    return b"".join(parts), pages


def _decode_schema_entry(record: bytes, encoding: str) -> CatalogueEntry:
    kind, name, _, root, sql = _decode_record_values(record)

    def decode_text(value: SqliteValue) -> str:
        return value.decode(encoding, "replace") if isinstance(value, bytes) else ""

    return CatalogueEntry(decode_text(kind), decode_text(name), root if isinstance(root, int) else 0, decode_text(sql))


def _decode_record_values(record: bytes) -> Iterator[SqliteValue]:
    """Yield the values of a record of the schema table, one per column. Strings are yielded as bytes."""
    end, at = _decode_varint(record, 0)
    place = end
    for _ in range(_COLUMNS):
        kind, at = _decode_varint(record, at) if at < end else (0, at)
        size = _INTEGER_BYTES.get(kind, 8 if kind == 7 else max(0, kind - 12) // 2)  # noqa: PLR2004 - a double
        if place + size > len(record):
            raise Damage("the schema has a truncated record")
        raw = record[place : place + size]
        place += size
        if kind in _INTEGER_BYTES:
            yield int.from_bytes(raw, "big", signed=True)
        else:
            yield raw if kind >= 12 else {8: 0, 9: 1}.get(kind)  # noqa: PLR2004 - strings and blobs


def _decode_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for n, byte in enumerate(data[offset : offset + 9]):
        if n == 8:  # noqa: PLR2004 - the last of nine bytes has eight bits
            return value << 8 | byte, offset + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004
            return value, offset + n + 1
    raise Damage("the schema has a truncated record")
