"""Fields of many messages as Arrow columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import text
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Buffer, cut

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Field, Places

MOST = (1 << 31) - (1 << 23)
"""Bytes of a graph that are taken apart; protobuf allows little more."""
JOINED_AT_ONCE = 1 << 16


def buffer_of(octets: bytes | memoryview) -> Buffer:
    """Put bytes where they can be walked through."""
    buffer = Buffer(len(octets))
    buffer.octets[: len(octets)] = np.frombuffer(octets, np.uint8)
    return buffer


def pieces(buffer: Buffer, starts: Places, stops: Places) -> pa.Array:
    """Cut bytes out: n places in, none of which overlaps another, n values out."""
    order = None if (starts[1:] >= stops[:-1]).all() else np.argsort(starts, kind="stable")
    edges = np.empty(2 * len(starts), np.int64)
    edges[::2], edges[1::2] = (starts, stops) if order is None else (starts[order], stops[order])
    found = cut(buffer.octets, edges)
    return found if order is None else found.take(pa.array(np.argsort(order)))


def full_pieces(buffer: Buffer, starts: Places, stops: Places) -> pa.Array:
    """Cut bytes out as ``pieces`` does; those of no length may lie anywhere."""
    full = stops > starts
    if full.all():
        return pieces(buffer, starts, stops)
    places = np.cumsum(full) - 1
    return pieces(buffer, starts[full], stops[full]).take(pa.array(places, mask=~full)).fill_null(b"")


def texts(buffer: Buffer, starts: Places, stops: Places) -> pa.Array:
    """Cut texts out as ``pieces`` does; bytes that are not UTF-8 are replaced."""
    return text(pieces(buffer, starts, stops))[0]


def column(buffer: Buffer, field: Field | None, rows: int) -> pa.Array:
    """Take a field as texts: n messages in, n texts out, null where it is absent.

    Raises:
        Damage: It holds a number.
    """
    if field is None:
        return pa.nulls(rows, pa.string())
    found = texts(buffer, *field.spans())
    if field.valid is None:
        return found
    places = np.cumsum(field.valid) - 1
    return found.take(pa.array(places, mask=~field.valid))


def spans(field: Field | None, rows: int) -> tuple[Places, Places]:
    """Places of a field of n messages, of no length where it is absent.

    Raises:
        Damage: It holds a number.
    """
    if field is None:
        return np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    field.spans()
    starts, stops = field.values.view(np.int64), field.stops
    return starts, starts if stops is None else stops


def joined(rows: int, owners: Places, parts: pa.Array, around: str) -> pa.ChunkedArray:
    """Join the texts of each row by commas: m texts of ascending rows in, n texts out, null for rows without one.

    Raises:
        Damage: They are too large together.
    """
    made = [pa.array([], pa.string())]
    for first in range(0, rows, JOINED_AT_ONCE):
        edges = np.searchsorted(owners, np.arange(first, min(rows, first + JOINED_AT_ONCE) + 1))
        empty = np.append(edges[1:] == edges[:-1], False)
        offsets = pa.array((edges - edges[0]).astype(np.int32), mask=empty)
        lists = pa.ListArray.from_arrays(offsets, parts.slice(edges[0], edges[-1] - edges[0]))
        try:
            made.append(pc.binary_join_element_wise(around[0], pc.binary_join(lists, ","), around[1], ""))
        except pa.ArrowInvalid as e:
            raise Damage("attributes are too large") from e
    return pa.chunked_array(made, pa.string())
