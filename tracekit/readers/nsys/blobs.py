"""Extended NVTX payloads as exports made with ``--include-blobs`` hold them, as the text that a report gives of them.

A blob is the number of its payloads, then schema, size and place in the blob of each, all of 8 bytes, then their bytes.
As text each is its schema and its bytes in hexadecimal numbers; a blob of any other form is hexadecimal numbers alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.protobuf.decoding import extract_strings

if TYPE_CHECKING:
    Octets: TypeAlias = npt.NDArray[np.uint8]
    Places: TypeAlias = npt.NDArray[np.int64]

COLUMN = "binaryData"
MOST_BYTES = (1 << 30) - 1
COUNT_BYTES, ITEM_BYTES = 8, 24
_DIGITS = np.frombuffer(b"".join(b"%02x" % n for n in range(256)), np.uint8).reshape(256, 2)


def texts(column: pa.Array) -> pa.Array:
    """Tell payloads: n values of bytes or text in, n texts out, null where there is none.

    Raises:
        ValueError: They are more than 1 GiB.
    """
    raw = column.cast(pa.binary())
    if raw.null_count == len(raw):
        return pa.nulls(len(raw), pa.string())
    edges = np.frombuffer(raw.buffers()[1], np.int32)[raw.offset :][: len(raw) + 1].astype(np.int64)
    octets = np.frombuffer(raw.buffers()[2] or b"", np.uint8)[edges[0] : edges[-1]]
    if len(octets) > MOST_BYTES:
        raise ValueError(f"{len(octets)} bytes of NVTX payloads at once")
    rows = np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False))
    places = np.full(len(raw), -1)
    places[rows] = np.arange(len(rows))
    starts, stops = edges[rows] - edges[0], edges[rows + 1] - edges[0]
    return _told(octets, starts, stops).cast(pa.string()).take(pa.array(places, mask=places < 0))


def _told(octets: Octets, starts: Places, stops: Places) -> pa.Array:
    """Tell n blobs, one after another in some bytes: n texts out."""
    of, schemas, begins, ends = _items(octets, starts, stops)
    alone = np.setdiff1d(np.arange(len(starts)), of)
    order = np.argsort(np.concatenate([of, alone]), kind="stable")
    begins, ends = np.concatenate([begins, starts[alone]])[order], np.concatenate([ends, stops[alone]])[order]
    digits = extract_strings(_DIGITS[octets].reshape(-1), 2 * np.stack([begins, ends], axis=1).reshape(-1))
    numbers = pc.binary_join_element_wise(pa.array(schemas).cast(pa.string()), "", ":").cast(pa.binary())
    heads = pa.concat_arrays([numbers, pa.array([b""] * len(alone), pa.binary())]).take(pa.array(order))
    firsts = np.searchsorted(np.concatenate([of, alone])[order], np.arange(len(starts) + 1))
    each = pc.binary_join_element_wise(heads, digits, b"")
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(firsts, pa.int32()), each), b",")


def _items(octets: Octets, starts: Places, stops: Places) -> tuple[Places, npt.NDArray[np.uint64], Places, Places]:
    """Find the payloads of n blobs: of which blob, schema, begin and end of each; none of a blob of another form."""
    counts = _counts(octets, starts, stops)
    of = np.repeat(np.arange(len(starts)), counts)
    nth = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    at = starts[of] + COUNT_BYTES + ITEM_BYTES * nth
    schemas, sizes, offsets = octets[at[:, None] + np.arange(ITEM_BYTES)].view("<u8").reshape(-1, 3).T
    room = (stops - starts)[of].astype(np.uint64)
    fits = (offsets <= room) & (sizes <= room)
    begins = starts[of] + np.where(fits, offsets, 0).astype(np.int64)
    ends = begins + np.where(fits, sizes, 0).astype(np.int64)
    first = starts[of] + COUNT_BYTES + ITEM_BYTES * counts[of]
    fits &= (begins >= np.where(nth == 0, first, np.roll(ends, 1))) & (ends <= stops[of])
    kept = ~np.isin(of, of[~fits])
    return of[kept], np.ascontiguousarray(schemas[kept]), begins[kept], ends[kept]


def _counts(octets: Octets, starts: Places, stops: Places) -> Places:
    """How many payloads each of n blobs says it has; 0 where it has no room for so many."""
    counts = np.zeros(len(starts), np.int64)
    long = np.flatnonzero(stops - starts >= COUNT_BYTES)
    said = octets[starts[long, None] + np.arange(COUNT_BYTES)].view("<u8").reshape(-1)
    room = ((stops - starts)[long] - COUNT_BYTES) // ITEM_BYTES
    counts[long] = np.where(said <= room.astype(np.uint64), said, 0).astype(np.int64)
    return counts
