"""Extended NVTX payloads as text: the JSON that nsys makes of them when it exports with ``--include-json``.

Payloads of one schema have their values at the same places. So they are taken together, one value of all of them at a
time. What cannot be told so, because its layout depends on its values or its schema is not there, is given as
hexadecimal numbers instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import coalesce
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import MAX_LENGTH, Buffer, decode, decode_varints, extract_strings
from tracekit.readers.common.protobuf.wire import DELIMITED
from tracekit.readers.nsys_rep.fields import fields_of
from tracekit.readers.nsys_rep.payload_schemas import FIRST_SCHEMA, Form, quoted

if TYPE_CHECKING:
    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Mask, Places, Words
    from tracekit.readers.nsys_rep.payload_schemas import Labels, Plan, Schemas, Value
    from tracekit.sandbox import Bytes

Ints: TypeAlias = npt.NDArray[np.integer]

TEXTS = ("jsonText", "binaryData")
NEEDED = (*TEXTS, "globalTid", "domainId")
MAX_ITEMS, MAX_TEXT = 4096, 1 << 28
PAYLOAD_BYTES = 16
"""Memory that it takes to put a byte of a payload into a text."""
_EXTENDED = fields_of("ExtendedPayload")
PROCESS = ~np.int64((1 << 24) - 1)
_ITEM_KEY = np.uint8(fields_of("NvtxPayload").extended << 3 | DELIMITED)
_BYTES = pa.binary()
_SPECIAL = np.array([*b'\\"/', *range(32)], np.uint8)
_DIGITS = np.frombuffer(b"".join(b"%02x" % n for n in range(256)), np.uint8).reshape(256, 2)
_KINDS = {Form.SIGNED: "i", Form.UNSIGNED: "u", Form.ENUM: "u", Form.REAL: "f"}


def columns(known: Schemas, made: dict[str, pa.Array], budget: Budget) -> dict[str, pa.Array]:
    """Tell the payloads of n events: the columns ``NEEDED`` in, ``TEXTS`` as an export has them out.

    Raises:
        Damage: A message is damaged, or the texts would take more memory than they may.
    """
    payloads = made["binaryData"]
    budget.check(payloads.nbytes, PAYLOAD_BYTES, "bytes of NVTX payloads")
    text, other = texts(known, payloads, made["globalTid"], made["domainId"], min(MAX_TEXT, budget.left))
    budget.take(text.nbytes + other.nbytes, 1, "bytes of NVTX payloads")
    return {"jsonText": coalesce(made["jsonText"], text), "binaryData": other}


def texts(
    known: Schemas, payloads: pa.Array, threads: pa.Array, domains: pa.Array, most: int | None = None
) -> tuple[pa.Array, pa.Array]:
    """Tell extended payloads: n events in, n JSON and n hexadecimal texts out; at most one of both is not null.

    Args:
        known: The schemas of the report.
        payloads: Payload message of each event; null where there is none.
        threads: Global id of the thread of each event.
        domains: Domain of each event.
        most: Characters that the texts may have; ``MAX_TEXT`` if None.

    Raises:
        Damage: A message is damaged, or the texts may have more characters.
    """
    if payloads.null_count == len(payloads):
        return payloads, payloads
    items = _Items(payloads)
    if not len(items.rows):
        return pa.nulls(len(payloads), _BYTES), pa.nulls(len(payloads), _BYTES)
    processes = _numbers(threads)[items.rows] & PROCESS
    keys = np.stack([processes, _numbers(domains)[items.rows], items.schemas.view(np.int64)], 1)
    told = _told(known, items, keys, MAX_TEXT if most is None else most)
    edges = np.append(np.flatnonzero(np.diff(items.rows, prepend=-1)), len(items.rows))
    joined, first = _lists(edges, told), edges[:-1]
    alone = pa.array((np.diff(edges) == 1) & (items.schemas[first] >= np.uint64(FIRST_SCHEMA)))
    made = pc.if_else(alone, joined, _glued(b"[", joined, b"]"))
    other = pa.nulls(len(made), _BYTES)
    if made.null_count:
        other = pc.if_else(made.is_null(), _lists(edges, items.hexadecimal()), pa.scalar(None, _BYTES))
    places = np.full(len(payloads), -1)
    places[items.rows[first]] = np.arange(len(first))
    index = pa.array(places, mask=places < 0)
    return made.take(index), other.take(index)


class _Items:
    """The extended payloads of n events, in order; an event may have several.

    Attributes:
        octets: Holds their bytes.
        rows: Event of each.
        schemas: Number of the schema of each.
        starts: Where the bytes of each begin.
        stops: Where they end.
    """

    def __init__(self, payloads: pa.Array) -> None:
        buffer, self.rows, starts, stops = _messages(payloads)
        self.octets: Bytes = buffer.data
        found = decode(buffer, starts, stops, (_EXTENDED.schema_id, _EXTENDED.data))
        schema, content = found.get(_EXTENDED.schema_id), found.get(_EXTENDED.data)
        empty = np.zeros(len(self.rows), np.int64)
        self.schemas: Words = empty.view(np.uint64)
        self.starts: Places = empty
        self.stops: Places = empty
        if schema is not None:
            if schema.stops is not None:
                raise Damage("the schema of an NVTX payload is not a number")
            self.schemas = np.where(_everywhere(schema.valid), schema.values, np.uint64(0))
        if content is not None:
            if content.stops is None:
                raise Damage("the bytes of an NVTX payload are a number")
            there = _everywhere(content.valid)
            self.starts = np.where(there, content.values.view(np.int64), 0)
            self.stops = np.where(there, content.stops, 0)

    def hexadecimal(self) -> pa.Array:
        """Bytes of each as hexadecimal numbers, behind the number of its schema."""
        sizes = self.stops - self.starts
        octets = extract_strings(self.octets, np.stack((self.starts, self.stops), axis=1).reshape(-1)).buffers()[2]
        digits = _DIGITS[np.frombuffer(octets or b"", np.uint8)[: int(sizes.sum())]].reshape(-1)
        return _glued(_decimal(self.schemas), b":", _cut(digits, 2 * sizes))


def _messages(payloads: pa.Array) -> tuple[Buffer, Places, Places, Places]:
    """Copy the messages of extended payloads: a buffer, and for each its event and where it begins and ends."""
    octets = np.frombuffer(payloads.buffers()[2], np.uint8)
    edges = np.frombuffer(payloads.buffers()[1], np.int32)[payloads.offset :][: len(payloads) + 1].astype(np.int64)
    sizes = np.where(payloads.is_valid().to_numpy(zero_copy_only=False), np.diff(edges), 0)
    rows = np.flatnonzero(sizes)
    rows = rows[octets[edges[rows]] == _ITEM_KEY]
    chosen = payloads.take(pa.array(rows)).buffers()[2] or b""
    ends = np.cumsum(sizes[rows])
    size = int(sizes[rows].sum())
    buffer = Buffer(size)
    buffer.data[:size] = np.frombuffer(chosen, np.uint8)[:size]
    return buffer, *_split(buffer, rows, ends - sizes[rows], ends)


def _split(buffer: Buffer, rows: Places, at: Places, stops: Places) -> tuple[Places, Places, Places]:
    """Split messages into their items: event, begin and end of each, in order."""
    found: list[tuple[Places, Places, Places]] = []
    while len(rows):
        if len(found) == MAX_ITEMS:
            raise Damage(f"an event has more than {MAX_ITEMS} payloads")
        sizes, lengths = decode_varints(buffer, at + 1)
        starts = at + 1 + lengths
        at = starts + np.minimum(sizes, MAX_LENGTH).view(np.int64)
        if (at > stops).any():
            raise Damage("an NVTX payload reaches beyond its event")
        found.append((rows, starts, at))
        more = np.flatnonzero(at < stops)
        more = more[buffer.data[at[more]] == _ITEM_KEY]
        rows, at, stops = rows[more], at[more], stops[more]
    if not found:
        return rows, at, stops
    of, starts, ends = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(of, kind="stable")
    return of[order], starts[order], ends[order]


def _told(known: Schemas, items: _Items, keys: npt.NDArray[np.int64], most: int) -> pa.Array:
    """Tell n items, by process, domain and schema; null where there is no plan for an item."""
    distinct, of = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(of.reshape(-1), kind="stable")
    bounds = np.searchsorted(of.reshape(-1)[order], np.arange(len(distinct) + 1))
    made: list[pa.Array] = [pa.array([], _BYTES)]
    places = np.full(len(keys), -1)
    done = width = 0
    for nth, (process, domain, number) in enumerate(distinct.view(np.uint64).tolist()):
        plan = known.plan(process, domain, number)
        if plan is None:
            continue
        group = order[bounds[nth] : bounds[nth + 1]]
        sizes = items.stops[group] - items.starts[group]
        group = group[sizes >= plan.least if plan.size is None else sizes == plan.size]
        if not len(group):
            continue
        width += plan.width * len(group)
        if width > most:
            raise Damage(f"{len(keys)} NVTX payloads would become more than {most} characters")
        made.append(_written(items.octets, items.starts[group], items.stops[group], plan))
        places[group] = np.arange(done, done + len(group))
        done += len(group)
    return pa.concat_arrays(made).take(pa.array(places, mask=places < 0))


def _written(octets: Bytes, starts: Places, stops: Places, plan: Plan) -> pa.Array:
    """Write n payloads after a plan."""
    parts = [p.encode() if isinstance(p, str) else _text(octets, starts, stops, p) for p in plan.pieces]
    return _glued(pa.array([b""] * len(starts), _BYTES), *parts)


def _text(octets: Bytes, starts: Places, stops: Places, value: Value) -> pa.Array:
    """Write one value of n payloads."""
    begin = starts + value.at
    if value.form is Form.TEXT and not value.size:
        return _quoted(_cut(octets[_places(begin, stops - begin)], stops - begin))
    raw = octets[begin[:, None] + np.arange(value.size)]
    if value.form is Form.TEXT:
        sizes = _used(raw) if value.size > 1 else np.ones(len(raw), np.int64)
        return _quoted(_cut(octets[_places(begin, sizes)], sizes))
    if value.form in (Form.ADDRESS, Form.BYTE):
        digits = _cut(_DIGITS[raw[:, ::-1]].reshape(-1), np.full(len(raw), 2 * value.size)).cast(pa.string())
        shortest = pc.ascii_ltrim(digits, characters="0")
        return _glued(b'"0x', pc.if_else(pc.equal(shortest, ""), "0", shortest).cast(_BYTES), b'"')
    numbers = raw.view(f"<{_KINDS[value.form]}{value.size}").reshape(-1)
    if value.labels is not None:
        return _labelled(numbers, value.labels)
    return _real(numbers) if value.form is Form.REAL else _decimal(numbers)


def _used(raw: Bytes) -> Places:
    """How many bytes of each row stand before the zeros at its end."""
    written = raw[:, ::-1] != 0
    return np.where(written.any(axis=1), raw.shape[1] - written.argmax(axis=1), 0)


def _labelled(numbers: Ints, labels: Labels) -> pa.Array:
    """Name n numbers of an enum."""
    distinct, of = np.unique(numbers, return_inverse=True)
    return pa.array([quoted(labels.of(n)).encode() for n in distinct.tolist()], _BYTES).take(pa.array(of))


def _decimal(numbers: Ints) -> pa.Array:
    return pa.array(numbers).cast(pa.string()).cast(_BYTES)


def _real(numbers: npt.NDArray[np.floating]) -> pa.Array:
    """Write n reals as short as they can be read back; those with an exponent in quotes, as nsys does."""
    if numbers.dtype.itemsize == np.dtype(np.float32).itemsize:
        numbers = numbers.astype("U").astype(np.float64)
    shortest = pc.replace_substring_regex(pa.array(numbers.astype("U")), r"\.0$", "")
    plain = pc.match_substring_regex(shortest, r"^-?[0-9.]+$")
    return pc.if_else(plain, shortest, pc.binary_join_element_wise('"', shortest, '"', "")).cast(_BYTES)


def _quoted(column: pa.Array) -> pa.Array:
    """Quote n texts as JSON, whatever bytes they have."""
    octets = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    for special in _SPECIAL[np.isin(_SPECIAL, octets)].tolist():
        column = pc.replace_substring(column, pattern=bytes([special]), replacement=quoted(chr(special))[1:-1].encode())
    return _glued(b'"', column, b'"')


def _glued(*parts: bytes | pa.Array) -> pa.Array:
    """Glue columns of n texts and constants; null where one of them is null."""
    return pc.binary_join_element_wise(*(pa.scalar(p, _BYTES) if isinstance(p, bytes) else p for p in parts), b"")


def _lists(edges: Places, column: pa.Array) -> pa.Array:
    """Join the texts between n + 1 edges with commas: n texts, null where one of them is null."""
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(edges, pa.int32()), column), b",")


def _cut(octets: Bytes, sizes: Places) -> pa.Array:
    """Cut bytes into n texts of some sizes."""
    edges = np.append(0, np.cumsum(sizes)).astype(np.int32)
    return pa.Array.from_buffers(
        _BYTES, len(sizes), [None, pa.py_buffer(edges), pa.py_buffer(np.ascontiguousarray(octets))]
    )


def _places(starts: Places, sizes: Places) -> Places:
    """Places of all bytes of n stretches, one stretch after another."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(column, 0).to_numpy(zero_copy_only=False), np.int64)


def _everywhere(valid: Mask | None) -> Mask | np.bool_:
    return np.True_ if valid is None else valid
