"""Decode MPI calls, communicators and ranks into the source tables that nsys exports.

The MPI wrapper of nsys records a call as an NVTX range. The payload of the range contains the arguments of the call.
The schema of the payload names the arguments, and its id determines the kind of call. A communicator is a payload that
is recorded separately from any event, and the rank of a process is in the name of a thread.

Find the NVTX ranges that are MPI calls.

The MPI wrapper of nsys opens a range in the domain ``MPI`` for each MPI call. Exports contain these ranges in tables of
MPI calls instead of the table of ranges. The wrapper also registers payload schemas with reserved ids. If a
program creates a domain with the same name, the domain lacks these schemas, and its ranges stay in the table of ranges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.common.budget import CELL_BYTES
from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.nsys.tables import ROWID
from tracekit.readers.nsys_rep import arrays, layout
from tracekit.readers.nsys_rep.entries import EventSelection
from tracekit.readers.nsys_rep.layout import load_fields
from tracekit.readers.nsys_rep.payload_schemas import ARRAYS, FIRST_SCHEMA, FORMS, ValueFormat
from tracekit.readers.nsys_rep.payloads import (
    PAYLOAD_BYTES,
    PayloadItems,
    get_int64_values,
    group_indices_of_equal_rows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Field, Int64Array, Mask, UInt64Array
    from tracekit.readers.nsys_rep.events import ReportEvents, SelectedEvents
    from tracekit.readers.nsys_rep.payload_schemas import PayloadSchema, SchemaEntry, Schemas

NAME, SCHEMA = b"MPI", "NsysMpi"
WRAPPER_SCHEMAS = range(FIRST_SCHEMA + 10_001, FIRST_SCHEMA + 11_000)
PROCESS = ~np.int64((1 << 24) - 1)
RANGES = np.array((59, 60, 70, 71), np.uint64)
_NVTX = load_fields("NvtxEvent")
FIELDS = (_NVTX.event_type, _NVTX.global_tid, _NVTX.domain_id)
DOMAIN_CREATIONS = EventSelection(layout.NVTX, (75,))
P2P, COLLECTIVES, START_WAIT, OTHER = (f"MPI_{kind}_EVENTS" for kind in ("P2P", "COLLECTIVES", "START_WAIT", "OTHER"))
COMMUNICATORS, RANKS = "MPI_COMMUNICATORS", "MPI_RANKS"
SCHEMAS = {P2P: range(10_001, 10_100), COLLECTIVES: range(10_100, 10_200), START_WAIT: range(10_200, 10_210)}
"""Ids of the payload schemas of the calls in each table, counted from ``FIRST_SCHEMA``. All other calls are in the last
table."""
_EVENT = ("start", "end", "globalTid", "textId")
CALLS: dict[str, tuple[str, ...]] = {
    P2P: (*_EVENT, "commHandle", "tag", "remoteRank", "size", "requestHandle"),
    COLLECTIVES: (*_EVENT, "commHandle", "rootRank", "size", "recvSize", "requestHandle"),
    START_WAIT: (*_EVENT, "requestHandle"),
    OTHER: _EVENT,
}
"""Columns of the tables of calls."""
SMALL: dict[str, tuple[str, ...]] = {
    COMMUNICATORS: (
        *("rank", "timestamp", "commHandle", "parentHandle", "localRank", "size", "groupRoot", "groupRootUid"),
        "members",
    ),
    RANKS: ("globalTid", "rank"),
}
"""Columns of the tables whose rows are not calls."""
_SENT_AND_RECEIVED = {"Bytes sent": "size", "Bytes received": "size"}
_ARGUMENTS = {
    P2P: {
        "Communicator": "commHandle",
        "Tag": "tag",
        "Send tag": "tag",
        "Source": "remoteRank",
        "Destination": "remoteRank",
        **_SENT_AND_RECEIVED,
        "Request": "requestHandle",
    },
    COLLECTIVES: {
        "Communicator": "commHandle",
        "Root": "rootRank",
        "Bytes sent": "size",
        "Bytes received": "recvSize",
        "Request": "requestHandle",
    },
    START_WAIT: {"Request": "requestHandle"},
    OTHER: {},
}
"""Column of each argument of a call. If several arguments have the same column, such as the source and the destination
of ``MPI_Sendrecv``, the last one is used."""
_NULL_IF_ZERO = frozenset({(COLLECTIVES, "size"), (COLLECTIVES, "recvSize")})
_REQUESTS = "Requests"
_COUNT_BYTES, _REQUEST_BYTES = 8, 8
_RANK_NAME = re.compile(rb"MPI Rank (\d{1,9})")
THREAD_NAMES = EventSelection(layout.NVTX, (39,))
_COMMUNICATOR = {
    "NewComm": "commHandle",
    "ParentComm": "parentHandle",
    "LocalRank": "localRank",
    "Size": "size",
    "GroupRootGlobalRank": "groupRoot",
    "GroupRootUniqueId": "groupRootUid",
}
_NULL_IF_NEGATIVE = ("groupRoot", "groupRootUid")
_NVTX_EVENTS, _COLUMNS = layout.TABLES["NVTX_EVENTS"], (*_EVENT, "domainId")
_PAYLOAD = layout.TABLES["NVTX_EVENTS"].columns["binaryData"].path[0]


@dataclass(frozen=True, slots=True)
class MpiDomains:
    """The NVTX domains that the MPI wrapper of nsys created.

    Every NVTX range in one of these domains is an MPI call.

    Attributes:
        pairs: Global process id and domain id of each domain of the MPI wrapper.
    """

    pairs: frozenset[tuple[int, int]] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def compute_call_mask(self, events: SelectedEvents) -> Mask:
        """Return a mask of the NVTX events that are MPI calls."""
        fields_by_number, event_count = decode(events.buffer, events.starts, events.stops, FIELDS), len(events.starts)
        ranges = np.isin(_get_integer_values(fields_by_number, _NVTX.event_type, event_count), RANGES)
        threads, domains = (
            _get_integer_values(fields_by_number, f, event_count).view(np.int64)
            for f in (_NVTX.global_tid, _NVTX.domain_id)
        )
        calls = np.zeros(event_count, np.bool_)
        for process, domain in self.pairs:
            calls |= (threads & PROCESS == process) & (domains == domain)
        return calls & ranges


def find_mpi_domains(schemas: Schemas, events: ReportEvents, strings: pa.Array, budget: Budget) -> MpiDomains:
    """Find the NVTX domains that the MPI wrapper of nsys created. Names and payload schemas identify them.

    If the report has none of these schemas, the result is empty and no events are read.

    Raises:
        Damage: An event that creates a domain is invalid.
    """
    possible = {key[:2] for key, s in schemas.schemas.items() if key[2] in WRAPPER_SCHEMAS or s.name.startswith(SCHEMA)}
    if not possible:
        return MpiDomains()
    names = ["globalTid", "domainId", "text", "textId"]
    registered = pc.indices_nonzero(pc.equal(strings, NAME)).cast("int64")
    pairs: set[tuple[int, int]] = set()

    def decode_batch(batch: list[SelectedEvents]) -> dict[str, pa.Array]:
        return arrays.decode_events(batch[0], layout.TABLES["NVTX_EVENTS"], names, budget)

    for columns in events.map_batches([DOMAIN_CREATIONS], decode_batch):
        text = columns["text"]
        inline = pc.is_in(text.indices, pc.indices_nonzero(pc.equal(text.dictionary, NAME)).cast("int32"))
        named = [columns[c].filter(pc.or_(inline, pc.is_in(columns["textId"], registered))) for c in names[:2]]
        threads = pc.bit_wise_and(named[0], int(PROCESS)).to_pylist()
        pairs |= possible.intersection(zip(threads, pc.fill_null(named[1], 0).to_pylist(), strict=True))
    return MpiDomains(frozenset(pairs))


def _get_integer_values(
    fields_by_number: Mapping[int, Field], field_number: int, event_count: int
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return the values of an integer field of events. The value is 0 where the field is absent."""
    field = fields_by_number.get(field_number)
    if field is None:
        return np.zeros(event_count, np.uint64)
    return field.values if field.valid is None else np.where(field.valid, field.values, np.uint64(0))


@dataclass
class _Arguments:
    """The integer arguments of several MPI calls.

    Attributes:
        total: Number of calls.
        values: For each column name, the argument of each call and a mask of the calls that have the argument.
    """

    total: int
    values: dict[str, tuple[Int64Array, Mask]]

    def set_argument(self, column: str, rows: Int64Array, values: Int64Array) -> None:
        """Set the argument that belongs to a column, for the calls at the indices ``rows``."""
        if column not in self.values:
            self.values[column] = np.zeros(self.total, np.int64), np.zeros(self.total, np.bool_)
        numbers, valid = self.values[column]
        numbers[rows] = values
        valid[rows] = True

    def build_argument_array(self, column: str, *, null_if_zero: bool) -> pa.Array:
        """Return, for each call, the argument that belongs to a column, or null if the call does not have the argument.

        If ``null_if_zero`` is True, arguments that are 0 are also converted to null.
        """
        if column not in self.values:
            return col.build_null_array(self.total, pa.int64())
        numbers, valid = self.values[column]
        return col.build_number_array(numbers, valid & (numbers != 0) if null_if_zero else valid)


def decode_mpi_calls(
    schemas: Schemas, domains: MpiDomains, events: SelectedEvents, budget: Budget
) -> dict[str, dict[str, pa.Array]]:
    """Decode the MPI calls in a batch of NVTX events into the columns of each table of MPI calls, by table name.

    Raises:
        Damage: A message is invalid, or the columns exceed the memory budget.
    """
    calls = events.take(np.flatnonzero(domains.compute_call_mask(events)))
    columns = arrays.decode_events(calls, _NVTX_EVENTS, _COLUMNS, budget)
    payloads = _Payloads.decode_payloads(calls, columns, budget)
    indices = payloads.find_table_indices()
    decoder = _CallDecoder(payloads, schemas, columns, budget)
    return {name: decoder.decode_call_table(name, np.flatnonzero(indices == nth)) for nth, name in enumerate(CALLS)}


class _Payloads(NamedTuple):
    """The first extended payload of each MPI call. Calls without an extended payload have the schema id 0.

    Attributes:
        words: The 64-bit integer at each offset of the buffer that holds the payloads.
        keys: Matrix with one row per payload: process id, domain id and schema id.
        starts: Start offset of each payload in the buffer.
        stops: End offset of each payload in the buffer.
    """

    words: UInt64Array
    keys: npt.NDArray[np.int64]
    starts: Int64Array
    stops: Int64Array

    @classmethod
    def decode_payloads(cls, calls: SelectedEvents, event_columns: Mapping[str, pa.Array], budget: Budget) -> _Payloads:
        total = len(calls.starts)
        keys = np.zeros((total, 3), np.int64)
        starts, stops = np.zeros(total, np.int64), np.zeros(total, np.int64)
        keys[:, 0], keys[:, 1] = (
            get_int64_values(event_columns["globalTid"]) & PROCESS,
            get_int64_values(event_columns["domainId"]),
        )
        field = decode(calls.buffer, calls.starts, calls.stops, (_PAYLOAD,)).get(_PAYLOAD)
        if field is not None:
            rows = field.rows()
            begins, ends = field.spans()
            budget.check_temporary_memory(int((ends - begins).sum()), PAYLOAD_BYTES, "bytes of NVTX payloads")
            items = PayloadItems(calls.buffer, np.arange(total) if rows is None else rows, begins, ends)
            first = np.flatnonzero(np.diff(items.rows, prepend=-1))
            rows = items.rows[first]
            keys[rows, 2] = items.schemas[first].view(np.int64)
            starts[rows], stops[rows] = items.starts[first], items.stops[first]
        return cls(calls.buffer.words, keys, starts, stops)

    def find_table_indices(self) -> Int64Array:
        """Return the index in ``CALLS`` of the table that each call belongs to."""
        numbers, names = self.keys[:, 2] - FIRST_SCHEMA, list(CALLS)
        indices = np.full(len(numbers), names.index(OTHER))
        for name, ids in SCHEMAS.items():
            indices[(numbers >= ids.start) & (numbers < ids.stop)] = names.index(name)
        return indices

    def decode_integers(
        self, payload_indices: Int64Array, offset: int, size: int, *, signed: bool
    ) -> tuple[Int64Array, Mask]:
        """Decode the integer at an offset from each payload that is long enough.

        Args:
            payload_indices: Indices of the payloads.
            offset: Offset of the integer in each payload.
            size: Size of the integer in bytes.
            signed: Whether the integer is signed.

        Returns:
            The integers of the payloads that are long enough, and a mask of these payloads.
        """
        long: Mask = self.stops[payload_indices] - self.starts[payload_indices] >= offset + size
        unused = 64 - 8 * size
        shifted = self.words[self.starts[payload_indices[long]] + offset] << np.uint64(unused)
        return (shifted.view(np.int64) >> unused if signed else (shifted >> np.uint64(unused)).view(np.int64)), long


class _CallDecoder(NamedTuple):
    """A decoder that converts the MPI calls in a batch of events to rows of the tables of MPI calls.

    Attributes:
        calls: Payloads of the calls.
        schemas: Payload schemas of the report.
        events: Columns of the NVTX events.
        budget: Memory budget for the tables.
    """

    calls: _Payloads
    schemas: Schemas
    events: dict[str, pa.Array]
    budget: Budget

    def decode_call_table(self, table_name: str, rows: Int64Array) -> dict[str, pa.Array]:
        """Return all columns of a table of MPI calls.

        Args:
            table_name: Name of the table.
            rows: Indices of the calls that are rows of the table.
        """
        requests = None
        if table_name == START_WAIT:
            rows, requests = _repeat_rows_per_request(rows, self.calls, self.schemas, self.budget)
        self.budget.reserve(len(rows), CELL_BYTES * len(CALLS[table_name]), "MPI calls")
        result = {c: self.events[c].take(pa.array(rows)) for c in _EVENT}
        if requests is not None:
            return result | {"requestHandle": requests}
        arguments = self._decode_arguments(table_name, rows)
        return result | {
            c: arguments.build_argument_array(c, null_if_zero=(table_name, c) in _NULL_IF_ZERO)
            for c in CALLS[table_name]
            if c not in _EVENT
        }

    def _decode_arguments(self, table_name: str, rows: Int64Array) -> _Arguments:
        """Decode the integer arguments of the MPI calls at the indices ``rows``."""
        arguments = _Arguments(len(rows), {})
        for group, schema in _group_payload_indices_by_schema(self.calls.keys[rows], self.schemas):
            for entry in schema.entries:
                column = _ARGUMENTS[table_name].get(entry.name)
                size = compute_integer_size(entry, self.schemas)
                if column and size and not entry.flags & ARRAYS:
                    values, long = self.calls.decode_integers(
                        rows[group], entry.offset, size, signed=_is_signed_integer(entry)
                    )
                    arguments.set_argument(column, group[long], values)
        return arguments


def _repeat_rows_per_request(
    rows: Int64Array, payloads: _Payloads, schemas: Schemas, budget: Budget
) -> tuple[Int64Array, pa.Array]:
    """Return the index of each MPI call once per request that the call starts or waits for.

    The index of a call without requests occurs once, with a null handle.

    Returns:
        The repeated indices, and the request handle for each of these indices.
    """
    counts, at = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    room = np.maximum(payloads.stops[rows] - payloads.starts[rows], 0)
    for group, schema in _group_payload_indices_by_schema(payloads.keys[rows], schemas):
        entries = {entry.name: entry for entry in schema.entries}
        if _REQUESTS in entries:
            numbers, long = payloads.decode_integers(rows[group], 0, _COUNT_BYTES, signed=False)
            at[group] = _COUNT_BYTES
            limit = (room[group] - _COUNT_BYTES) // _REQUEST_BYTES
            declared = np.zeros(len(group), np.int64)
            declared[long] = np.where(numbers < 0, np.iinfo(np.int64).max, numbers)
            counts[group] = np.clip(declared, 0, np.maximum(limit, 0))
        elif "Request" in entries:
            at[group] = entries["Request"].offset
            counts[group] = room[group] >= at[group] + _REQUEST_BYTES
    total = np.maximum(counts, 1)
    budget.reserve(int(total.sum()), CELL_BYTES, "requests of MPI calls")
    repeated = np.repeat(np.arange(len(rows)), total)
    nth = np.arange(len(repeated)) - np.repeat(np.cumsum(total) - total, total)
    valid_rows = counts[repeated] > 0
    places = (payloads.starts[rows] + at)[repeated] + nth * _REQUEST_BYTES
    handles = np.zeros(len(repeated), np.int64)
    handles[valid_rows] = payloads.words[places[valid_rows]].view(np.int64)
    return rows[repeated], col.build_number_array(handles, valid_rows)


def _group_payload_indices_by_schema(
    keys: npt.NDArray[np.int64], schemas: Schemas
) -> list[tuple[Int64Array, PayloadSchema]]:
    """Group payloads by schema. Payloads with an unknown schema are omitted.

    Returns:
        The indices of the payloads of each group, and the schema of the group.
    """
    groups = []
    for (process, domain, number), rows in group_indices_of_equal_rows(keys):
        schema = schemas.schemas.get((process, domain, number))
        if schema is not None:
            groups.append((rows, schema))
    return groups


def compute_integer_size(entry: SchemaEntry, schemas: Schemas) -> int:
    """Return the size in bytes of an integer schema entry (1, 2, 4 or 8), or 0 for any other entry."""
    is_integer = FORMS.get(entry.type) in (ValueFormat.SIGNED, ValueFormat.UNSIGNED)
    size = schemas.sizes.get(entry.type, 0)
    return size if is_integer and size in (1, 2, 4, 8) else 0


def _is_signed_integer(entry: SchemaEntry) -> bool:
    return FORMS.get(entry.type) is ValueFormat.SIGNED


def decode_rank_rows(
    domains: MpiDomains, events: ReportEvents, strings: pa.Array, budget: Budget
) -> list[dict[str, int | None]]:
    """Return the rows of the table of MPI ranks, which are decoded from the names of threads.

    Raises:
        Damage: An event that names a thread is invalid.
    """
    if not domains:
        return []
    processes = {process for process, _ in domains.pairs}
    rows: list[dict[str, int | None]] = []

    def decode_batch(batch: list[SelectedEvents]) -> dict[str, pa.Array]:
        names = ["globalTid", "text", "textId"]
        return arrays.decode_events(batch[0], _NVTX_EVENTS, names, budget)

    for columns in events.map_batches([THREAD_NAMES], decode_batch):
        for thread, text, number in zip(
            *(columns[c].to_pylist() for c in ("globalTid", "text", "textId")), strict=True
        ):
            known = number is not None and 0 <= number < len(strings)
            match = _RANK_NAME.fullmatch(text if text is not None else strings[number].as_py() if known else b"")
            if match and thread is not None and thread & int(PROCESS) in processes:
                rows.append({"globalTid": thread, "rank": int(match[1])})
    return rows


def decode_communicator_rows(
    schemas: Schemas, ranks: Sequence[Mapping[str, int | None]]
) -> list[dict[str, int | str | None]]:
    """Return the rows of the table of MPI communicators. The rank of each process is looked up in ``ranks``."""
    rank_of = {int(row["globalTid"] or 0) & int(PROCESS): row["rank"] for row in ranks}
    rows: list[dict[str, int | str | None]] = []
    for instance in schemas.instances:
        schema = schemas.schemas.get((instance.process, instance.domain, instance.schema))
        if schema is None or not schema.name.startswith("NsysMpi"):
            continue
        row: dict[str, int | str | None] = dict.fromkeys(SMALL[COMMUNICATORS])
        row |= {"rank": rank_of.get(instance.process), "timestamp": instance.time}
        for entry in schema.entries:
            size, column = compute_integer_size(entry, schemas), _COMMUNICATOR.get(entry.name)
            data = instance.data[entry.offset : entry.offset + size]
            if column and size and len(data) == size:
                value = int.from_bytes(data, "little", signed=_is_signed_integer(entry) or size == _REQUEST_BYTES)
                row[column] = None if value < 0 and column in _NULL_IF_NEGATIVE else value
        rows.append(row)
    return rows


def create_empty_call_columns(table_name: str) -> dict[str, pa.Array]:
    """Return the columns of an empty table of MPI calls, given the name of the table."""
    return {c: col.build_null_array(0, pa.int64()) for c in (*CALLS[table_name], ROWID)}
