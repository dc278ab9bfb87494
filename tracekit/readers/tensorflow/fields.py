"""Fields of many messages as Arrow columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.readers.common.columns import text
from tracekit.readers.common.protobuf.decoding import Buffer, cut

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Field, Places

MOST = (1 << 31) - (1 << 23)
"""Bytes of a graph that are taken apart; protobuf allows little more."""


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
