"""What the source tables of a capture hold for others to look up: strings, labels, names given by events."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import warn
from tracekit.files import state_of
from tracekit.readers.common import columns as col
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.damage import damage_as_error
from tracekit.readers.nsys.tables import Request
from tracekit.readers.nsys.versions import LABELS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from pathlib import Path

    from tracekit.readers.nsys.tables import Tables, Where

    Resolver = tuple[tuple[str, ...], Callable[["Lookups", str, pa.Table], pa.Array]]
    """Which source columns a declared column is made of, and how."""

_TEXTS = ("jsonText", "binaryData", "name", "label", "chipName", "uuid", "busLocation", "pciBusId", "metricName")
_VALUES = ("StringIds.value", "META_DATA_EXPORT.value", "EXPORT_META_DATA.value", "TARGET_INFO_SYSTEM_ENV.value")
_SYSTEM = ("gpuCount", "cpuModel", "driverVersion", "framework", "cudaVersion", "cudnnVersion", "nsysVersion")
TEXT_COLUMNS = frozenset((*_TEXTS, *_VALUES, *(f"SystemInfo.{c}" for c in _SYSTEM)))
REAL_COLUMNS = frozenset({"doubleValue", "floatValue"})


class Lookups:
    """The source tables of an opened file; what is looked up is read once and kept.

    Attributes:
        names_of: Names that events gave to things, by key; those of a kind of things once they are read.
    """

    def __init__(self, tables: Tables) -> None:
        self.path = tables.path
        self.tables = tables
        self._labels: dict[str, col.StringTable] = {}
        self._unknown: Counter[tuple[str, str]] = Counter()
        self.names_of: dict[Hashable, Mapping[str, str]] = {}
        self._lock = threading.Lock()
        self._texts = Budget(_size(self.path))

    def check_texts(self, table: str, column: pa.DictionaryArray) -> None:
        """Check what texts take that many rows share, before each row gets its own.

        Raises:
            CorruptTraceError: More memory than a file of that size may take, with all texts that were checked before.
        """
        lengths = pc.binary_length(column.dictionary).cast(pa.int64())
        with damage_as_error(self.path, table):
            self._texts.take(pc.sum(lengths.take(column.indices)).as_py() or 0, 1, "bytes of texts")

    def fetch(self, table: str, wanted: Sequence[str], where: Where | None = None) -> pa.Table:
        """Read columns of a source table as numbers or text; a column that this version lacks is all null."""
        return pa.table(self.joined([request(table, wanted, where)])[0])

    def joined(self, requests: Sequence[Request[dict[str, pa.Array]]]) -> list[dict[str, pa.Array]]:
        """Put the pieces of each request together."""
        made = [TableBuilder(self.tables.at_most(r.table)) for r in requests]
        for nth, piece in self.tables.pieces(requests):
            made[nth].append(piece)
        return [m.finish() for m in made]

    def look_up(self, name: str, column: str, ids: pa.ChunkedArray, strings: col.StringTable) -> pa.DictionaryArray:
        """Resolve ids; ids of no known string become null and are counted."""
        found, missing = strings.look_up(ids)
        if missing and strings is self.strings:
            with self._lock:
                self._unknown[name, column] += missing
        return found

    @functools.cached_property
    def strings(self) -> col.StringTable:
        """The string table; of a repeated id the first one counts."""
        if "StringIds" not in self.tables.columns:
            return col.StringTable.of({})
        raw = self.fetch("StringIds", ["id", "value"])
        ids, values = raw["id"].combine_chunks(), raw["value"].combine_chunks()
        if repeated := len(ids) - len(ids.unique()):
            warn(f"{repeated} strings repeat an id: the first of each is used", path=self.path)
            rows = pa.table({"id": ids, "row": pa.array(range(len(ids)))})
            first = rows.group_by("id").aggregate([("row", "min")])["row_min"].combine_chunks()
            ids, values = ids.take(first), values.take(first)
        return col.StringTable(ids, values)

    def labels(self, enum: str) -> col.StringTable:
        """Labels of an enum: those of the file, else those of nsys 2025.3."""
        if enum not in self._labels:
            known: dict[int, str | None] = dict(LABELS[enum])
            if enum in self.tables.columns:
                raw = self.fetch(enum, ["id", "label"])
                listed = zip(raw["id"].to_pylist(), raw["label"].to_pylist(), strict=True)
                known |= {number: label for number, label in listed if number is not None}
            self._labels[enum] = col.StringTable.of(known)
        return self._labels[enum]

    def tell_unknown(self) -> None:
        """Warn of ids of no known string."""
        with self._lock:
            unknown, self._unknown = self._unknown, Counter()
        for (name, column), missing in unknown.items():
            warn(f"{missing} rows of {name} name a string that is not in the file: {column} left empty", path=self.path)


def _size(path: Path) -> int:
    """Return the size of a file, or of the files in a folder."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(state.size for state in map(state_of, files) if state is not None)


def request(table: str, wanted: Sequence[str], where: Where | None = None) -> Request[dict[str, pa.Array]]:
    """Ask for columns of a source table as they are."""

    def work(raw: pa.Table) -> dict[str, pa.Array]:
        return dict(zip(wanted, raw.columns, strict=True))

    return Request(table, {c: kind_of(table, c) for c in wanted}, where, work)


def kind_of(table: str, column: str) -> pa.DataType:
    """Return the Arrow type that a source column is read as."""
    if column == "text":
        return col.DICTIONARY
    if column in TEXT_COLUMNS or f"{table}.{column}" in TEXT_COLUMNS:
        return pa.string()
    return pa.float64() if column in REAL_COLUMNS else pa.int64()
