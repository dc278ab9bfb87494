"""A trace as declared tables. It is read at once; columns are made when they are asked for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError, MissingTableError, warn
from tracekit.forks import check_polars
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import located
from tracekit.readers.kineto import machine
from tracekit.readers.kineto.cells import Cells
from tracekit.readers.kineto.document import Document
from tracekit.readers.kineto.keys import KEYS, Slot
from tracekit.readers.kineto.kinds import Collected
from tracekit.readers.kineto.rows import Rows
from tracekit.readers.kineto.stream import Stream
from tracekit.readers.kineto.tracks import Tracks
from tracekit.readers.kineto.walker import Walker
from tracekit.registry import Capture

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from tracekit.registry import Source

_GZIP = b"\x1f\x8b"
_AGAIN = "export the trace again"


def read(source: Source) -> KinetoCapture:
    """Read a file.

    Raises:
        CorruptTraceError: It is no JSON with trace events, or is cut before the first of them.
        MissingTableError: No event is of the PyTorch profiler or of tracekit.
        TracekitError: It cannot be read, or changed while it was read.
    """
    path = source.path
    walker, repaired = Walker(KEYS), Counter[str]()
    collected: Collected | None = None
    budget = Budget(source.size)
    packed = source.head.startswith(_GZIP)
    with source.open() as file, located(path, file=file), Stream(file, packed=packed) as stream:
        document = Document(path, stream, walker, machine.WANTED)
        for _ in document.pieces():
            if collected is None:
                collected = Collected(budget, exported=machine.is_exported(document.facts))
            collected.take(Cells(walker, repaired))
        file.check()
    del walker
    collected = collected or Collected(budget, exported=machine.is_exported(document.facts))
    _check(path, document, collected)
    _tell(path, document, stream, collected, repaired)
    return KinetoCapture(path, document.facts, collected)


def _check(path: Path, document: Document, collected: Collected) -> None:
    """Refuse a file that holds nothing for any table."""
    if not document.found:
        raise CorruptTraceError("holds no trace events" + ": it is cut short" * document.cut, path=path, hint=_AGAIN)
    if collected.counts.total() or ("schemaVersion" in document.facts and not document.cut):
        return
    if document.cut:
        raise CorruptTraceError("is cut short before its first event ends", path=path, hint=_AGAIN)
    if machine.is_exported(document.facts):
        hint = "read the capture that it was made of"
        raise MissingTableError("holds no events of a table that can be read back", path=path, hint=hint)
    others = collected.undecoded.total()
    raise MissingTableError(
        f"holds {others} trace events, but none of the PyTorch profiler",
        path=path,
        hint="give a trace of torch.profiler, or one that tracekit wrote",
    )


def _tell(path: Path, document: Document, stream: Stream, collected: Collected, repaired: Mapping[str, int]) -> None:
    """Warn of what was left out or repaired."""
    if document.cut:
        what = stream.damage or "its JSON does not end"
        warn(f"is cut short ({what}): read up to the last whole event of {collected.counts.total()}", path=path)
    elif stream.damage:
        warn(f"{stream.damage}: read as far as it goes", path=path)
    if document.strange:
        warn(f"{document.strange} events or facts break JSON: left out", path=path)
    for name in document.long:
        warn(f"{name} is too long to be kept: left out", path=path)
    if collected.timeless:
        warn(f"{collected.timeless} events have no time or duration: left out", path=path)
    if collected.placeless:
        what = f"{collected.placeless} calls and ranges name no process and thread by number"
        warn(f"{what}: nothing that they launched or enclose is attributed to them", path=path)
    for what, count in repaired.items():
        if count:
            warn(f"{count} texts hold bad {what}: repaired", path=path)


class KinetoCapture(Capture):
    """A trace that was read.

    Attributes:
        undecoded: Events that are rows of no table, by category.
        facts: Members of the document beside its events.
        tracks: Where events lie.
        origin_ns: Time in the file that is 0 in the tables.
        rows: Tables of events by name.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any], collected: Collected) -> None:
        self._path = path
        self.undecoded = dict(collected.undecoded)
        exported = machine.is_exported(facts)
        self._made: dict[str, pa.Table] = {}
        self.facts = facts
        self.tracks = Tracks(collected.finish(), collected.namings.finish(), exported=exported)
        kept = self.tracks.kept
        self.origin_ns = machine.shift_ns(facts) if exported else _first(kept)
        self.rows = {name: Rows(name, columns, self.origin_ns, self.tracks) for name, columns in kept.items()}

    def count_undecoded(self) -> Mapping[str, int]:
        """Return the number of events, by category, that the file holds and no table has."""
        return self.undecoded

    def names(self) -> list[str]:
        """Names of the tables that may have rows."""
        return [*self.rows, *_SMALL]

    def count(self, name: str) -> int:
        """Number of rows of a table."""
        return self.rows[name].count if name in self.rows else int(self._small(name).num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table."""
        if name not in self.rows:
            return self._small(name).select(list(columns))
        declared = schemas.arrow_schema(schemas.table(name), columns)
        rows = self.rows[name]
        made = [rows.column(f.name) for f in declared]
        filled = [pa.nulls(rows.count, f.type) if m is None else m for m, f in zip(made, declared, strict=True)]
        return schemas.conform(pa.table(filled, names=list(columns)), schemas.table(name), columns, path=self._path)

    def _small(self, name: str) -> pa.Table:
        if name not in self._made:
            check_polars()
            self._made[name] = machine.made(name, _SMALL[name](self))
        return self._made[name]


def _info(capture: KinetoCapture) -> list[dict[str, Any]]:
    ends = [pc.max(rows.end()).as_py() for rows in capture.rows.values() if Slot.DURATION.name in rows.members]
    found = machine.capture_info(
        capture.facts, capture.origin_ns, max((e for e in ends if e is not None), default=None)
    )
    return [{"name": n, "value": v} for n, v in found.items()]


def _devices(capture: KinetoCapture) -> list[dict[str, Any]]:
    if capture.tracks.exported:
        return machine.exported_devices(capture.rows.values(), capture.tracks)
    return machine.devices(capture.facts)


_SMALL: dict[str, Callable[[KinetoCapture], list[dict[str, Any]]]] = {
    "capture_info": _info,
    "devices": _devices,
    "processes": lambda c: machine.processes(c.tracks),
    "threads": lambda c: [] if c.tracks.exported else machine.threads(c.tracks),
    "contexts": lambda c: machine.contexts(c.rows.values()),
    "streams": lambda c: machine.streams(c.rows.values()),
}


def _first(kept: Mapping[str, Mapping[str, pa.Array]]) -> int:
    """Return the earliest start, where the trace begins."""
    starts = (pc.min(columns[Slot.START.name]).as_py() for columns in kept.values())
    return min((start for start in starts if start is not None), default=0)
