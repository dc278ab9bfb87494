"""Declared columns of the tables of events, made of what was kept of these when they are asked for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.kineto import labels
from tracekit.readers.kineto.cells import integer
from tracekit.readers.kineto.keys import Slot
from tracekit.readers.kineto.kinds import ARGUMENTS, DOMAINS, ROW_IDS
from tracekit.readers.kineto.tracks import narrow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.readers.kineto.tracks import Tracks


class Rows:
    """The rows of one table.

    Attributes:
        count: How many there are.
    """

    def __init__(self, name: str, kept: Mapping[str, pa.Array], origin_ns: int, tracks: Tracks) -> None:
        self.name = name
        self.count = len(kept[Slot.START.name])
        self._origin_ns = origin_ns
        self._tracks = tracks
        self._order = _order(kept[ROW_IDS[name].name], self.count) if tracks.exported else None
        self._kept = kept

    def column(self, name: str) -> pa.Array | pa.ChunkedArray | None:
        """Return a declared column; None if no event tells it."""
        makers = _MAKERS[self.name]
        return makers[name](self) if name in makers else None

    def member(self, slot: Slot) -> pa.Array:
        """Return what was kept of a member, in the order of the rows."""
        return self._ordered(self._kept[slot.name])

    def arguments(self) -> pa.Array | pa.ChunkedArray:
        """Return the arguments as JSON."""
        return self._kept[ARGUMENTS]

    @property
    def members(self) -> frozenset[str]:
        """Names of what was kept."""
        return frozenset(self._kept)

    @property
    def exported(self) -> bool:
        """Whether tracekit wrote the file."""
        return self._tracks.exported

    @functools.cached_property
    def place(self) -> dict[str, pa.Array]:
        """Process, thread, device, context and stream of each row, and the kind of its track."""
        return self._tracks.places(self.name, self.member)

    def start(self) -> pa.Array:
        """Start in ns since the origin."""
        return pc.subtract(self.member(Slot.START), self._origin_ns)

    def end(self) -> pa.Array:
        """End in ns since the origin; null of a range that was open."""
        length = pc.coalesce(self.member(Slot.NEGATIVE), self.member(Slot.DURATION))
        end = pc.add(self.start(), length)
        return pc.if_else(self._open(), pa.scalar(None, pa.int64()), end) if Slot.OPEN.name in self._kept else end

    def id(self) -> pa.Array:
        """Numbers of the rows: from 1, or as tracekit wrote them."""
        ids = self.member(ROW_IDS[self.name])
        return ids if self._order is not None else pa.array(np.arange(1, self.count + 1))

    def _open(self) -> pa.Array:
        return pc.equal(labels.numbered(self.member(Slot.OPEN), lambda t: int(t == "true")).fill_null(0), 1)

    def _ordered(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        whole = col.whole(column)
        return whole if self._order is None else whole.take(self._order)


def _order(ids: pa.Array | pa.ChunkedArray, count: int) -> pa.Array | None:
    """Return the order of rows by their numbers; None if these are no numbers for rows."""
    ids = col.whole(ids)
    if ids.null_count or not count or pc.min(ids).as_py() < 1 or pc.count_distinct(ids).as_py() != count:
        return None
    return pc.sort_indices(ids)


def _number(slot: Slot) -> Callable[[Rows], pa.Array]:
    return lambda rows: rows.member(slot)


def _small(slot: Slot, default: int | None = None) -> Callable[[Rows], pa.Array]:
    def make(rows: Rows) -> pa.Array:
        numbers = narrow(rows.member(slot))
        return numbers if default is None else numbers.fill_null(default)

    return make


def _filled(slot: Slot) -> Callable[[Rows], pa.Array]:
    return lambda rows: rows.member(slot).fill_null(0)


def _place(name: str) -> Callable[[Rows], pa.Array]:
    return lambda rows: rows.place[name]


def _text(slot: Slot) -> Callable[[Rows], pa.Array]:
    return lambda rows: rows.member(slot)


def _of_name(slot: Slot, function: Callable[[str], str | None]) -> Callable[[Rows], pa.Array]:
    """Take a text as tracekit wrote it, or out of the name that the profiler made."""

    def make(rows: Rows) -> pa.Array:
        return rows.member(slot) if rows.exported else labels.mapped(rows.member(Slot.NAME), function)

    return make


def _size(slot: Slot, axis: int) -> Callable[[Rows], pa.Array]:
    return lambda rows: labels.numbered(rows.member(slot), labels.axis(axis)).fill_null(0)


def _full_name(rows: Rows) -> pa.Array:
    return col.first_of(rows.member(Slot.FULL_NAME), rows.member(Slot.NAME))


def _short_name(rows: Rows) -> pa.Array:
    name = rows.member(Slot.NAME)
    return name if rows.exported else labels.mapped(name, labels.base_name)


def _dynamic(rows: Rows) -> pa.Array:
    return narrow(pc.coalesce(rows.member(Slot.DYNAMIC), rows.member(Slot.SHARED))).fill_null(0)


def _api(rows: Rows) -> pa.Array:
    if rows.exported:
        return labels.mapped(rows.member(Slot.NAME), labels.interface)
    return labels.mapped(rows.member(Slot.CATEGORY), labels.api)


def _name_id(rows: Rows) -> pa.Array:
    return rows.member(Slot.NAME).indices.cast(pa.int64()).fill_null(-1)


def _kind(rows: Rows) -> pa.Array:
    """Give the kind that the track of a range says; if none is said, as by other programs, it is push/pop."""
    nested = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows.count, np.int32)), pa.array(["push_pop"]))
    if not rows.exported:
        return nested
    return pc.coalesce(rows.place["kind"].cast(pa.string()), nested.cast(pa.string())).dictionary_encode()


def _domain(rows: Rows) -> pa.Array:
    return rows.member(Slot.DOMAIN if rows.exported else Slot.CATEGORY)


def _domain_id(rows: Rows) -> pa.Array:
    if rows.exported:
        return rows.place["domain_id"].fill_null(0)
    return labels.numbered(rows.member(Slot.CATEGORY), lambda c: DOMAINS.get(c, DOMAINS["cpu_op"])).fill_null(0)


def _color(rows: Rows) -> pa.Array:
    return labels.numbered(rows.member(Slot.COLOR), labels.color)


def _thread(rows: Rows) -> pa.Array:
    return pc.coalesce(rows.place["thread_id"], rows.member(Slot.THREAD))


TRACED_CALL = 27
_FLOATS = ("double", "float")
_INTEGERS = ("uint64", "int64", "uint32", "int32")


def _payload_type(rows: Rows) -> pa.Array:
    if rows.exported:
        return labels.mapped(rows.member(Slot.PAYLOAD_TYPE), lambda t: t if t in _PAYLOADS else None)
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows.count, np.int32)), pa.array(["json"]))


def _payload_of(rows: Rows, kinds: tuple[str, ...]) -> pa.Array:
    """Return the payloads of some types as texts, each different one once."""
    fits = pc.equal(labels.numbered(_payload_type(rows), lambda t: int(t in kinds)).fill_null(0), 1)
    payload = rows.member(Slot.PAYLOAD)
    return pa.DictionaryArray.from_arrays(
        pc.if_else(fits, payload.indices, pa.scalar(None, pa.int32())), payload.dictionary
    )


def _payload_int(rows: Rows) -> pa.Array:
    if not rows.exported:
        return pa.nulls(rows.count, pa.int64())
    return labels.numbered(_payload_of(rows, _INTEGERS), integer)


def _payload_float(rows: Rows) -> pa.Array:
    if not rows.exported:
        return pa.nulls(rows.count, pa.float64())
    found = _payload_of(rows, _FLOATS)
    return pa.array([_real(t) for t in found.dictionary.to_pylist()], pa.float64()).take(found.indices)


def _payload_text(rows: Rows) -> pa.Array | pa.ChunkedArray:
    return _payload_of(rows, ("json", "binary")).cast(pa.string()) if rows.exported else rows.arguments()


def _real(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _wait(rows: Rows) -> pa.Array:
    return rows.member(Slot.NAME) if rows.exported else labels.mapped(rows.member(Slot.SYNC), labels.wait)


_PAYLOADS = (*_INTEGERS, *_FLOATS, "json", "binary")
_TIMES = {"start_ns": Rows.start, "end_ns": Rows.end}
_THREAD = {"process_id": _place("process_id"), "thread_id": _place("thread_id")}
_QUEUE = {n: _place(n) for n in ("process_id", "device_id", "context_id", "stream_id")}
_LAUNCHED = {**_TIMES, **_QUEUE, "correlation_id": _number(Slot.CORRELATION)}
_NODE = {"graph_node_id": _number(Slot.GRAPH_NODE)}
_NVTX = {
    "process_id": _place("process_id"),
    "domain_id": _domain_id,
    "domain": _domain,
    "category_id": _number(Slot.CATEGORY_ID),
    "category": _text(Slot.CATEGORY_NAME),
    "color": _color,
    "name": _text(Slot.NAME),
    "payload_type": _payload_type,
    "payload_int": _payload_int,
    "payload_float": _payload_float,
    "payload_text": _payload_text,
}
_EVENT = {"event_id": _filled(Slot.EVENT), "event_sync_id": _number(Slot.EVENT_SYNC)}
_MAKERS: dict[str, Mapping[str, Callable[[Rows], pa.Array | pa.ChunkedArray]]] = {
    "kernels": {
        "kernel_id": Rows.id,
        **_LAUNCHED,
        "name": _full_name,
        "short_name": _short_name,
        **{f"grid_{axis}": _size(Slot.GRID, i) for i, axis in enumerate("xyz")},
        **{f"block_{axis}": _size(Slot.BLOCK, i) for i, axis in enumerate("xyz")},
        "registers_per_thread": _small(Slot.REGISTERS, default=0),
        "static_shared_memory_bytes": _small(Slot.STATIC, default=0),
        "dynamic_shared_memory_bytes": _dynamic,
        **_NODE,
        "graph_id": _number(Slot.GRAPH),
    },
    "memcpys": {
        "memcpy_id": Rows.id,
        **_LAUNCHED,
        "bytes": _filled(Slot.BYTES),
        "copy_kind": _of_name(Slot.COPY_KIND, labels.copy_kind),
        "src_memory_kind": _of_name(Slot.SOURCE, labels.copied_from),
        "dst_memory_kind": _of_name(Slot.TARGET, labels.copied_to),
        "migration_cause": _text(Slot.CAUSE),
        **_NODE,
    },
    "memsets": {
        "memset_id": Rows.id,
        **_LAUNCHED,
        "bytes": _filled(Slot.BYTES),
        "value": _filled(Slot.VALUE),
        "memory_kind": _of_name(Slot.MEMORY, labels.memory_set),
        **_NODE,
    },
    "graph_launches": {
        "graph_launch_id": Rows.id,
        **_LAUNCHED,
        "graph_id": _filled(Slot.GRAPH),
        "graph_exec_id": _filled(Slot.GRAPH_EXEC),
    },
    "syncs": {"sync_id": Rows.id, **_LAUNCHED, "sync_type": _wait, **_EVENT},
    "api_calls": {
        "api_call_id": Rows.id,
        **_TIMES,
        **_THREAD,
        "correlation_id": _number(Slot.CORRELATION),
        "api": _api,
        "name": _text(Slot.NAME),
        "name_id": _name_id,
        "return_value": _filled(Slot.RETURNED),
    },
    "osrt_calls": {
        "osrt_call_id": Rows.id,
        **_TIMES,
        **_THREAD,
        "event_class": lambda rows: pa.array(np.full(rows.count, TRACED_CALL)),
        "name": _text(Slot.NAME),
        "name_id": _name_id,
        "return_value": _filled(Slot.RETURNED),
    },
    "nvtx_ranges": {
        "range_id": Rows.id,
        **_TIMES,
        "kind": _kind,
        **_NVTX,
        "thread_id": _thread,
        "end_thread_id": _number(Slot.END_THREAD),
    },
    "nvtx_marks": {
        "mark_id": Rows.id,
        "timestamp_ns": Rows.start,
        **_NVTX,
        "thread_id": _place("thread_id"),
    },
    "cuda_events": {
        "cuda_event_id": Rows.id,
        "timestamp_ns": Rows.start,
        **_QUEUE,
        "correlation_id": _number(Slot.CORRELATION),
        **_EVENT,
    },
}
