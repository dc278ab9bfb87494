"""Format the extended NVTX payloads in exports as strings. Only ``nsys export --include-blobs`` exports them.

A blob consists of:

1. the number of payloads (8 bytes),
2. the schema id, the size and the offset of each payload (8 bytes each),
3. the bytes of the payloads.

A payload is formatted as its schema id, a colon and its bytes in hexadecimal. Commas separate the payloads of a blob:
``7:0a00,7:0b00``. The reader of reports formats payloads in the same way. A blob with another layout is formatted as
the hexadecimal digits of all its bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.protobuf.decoding import extract_strings

if TYPE_CHECKING:
    Bytes: TypeAlias = npt.NDArray[np.uint8]
    Offsets: TypeAlias = npt.NDArray[np.int64]

COLUMN = "binaryData"
MAX_BYTES = (1 << 30) - 1
COUNT_BYTES, ITEM_BYTES = 8, 24
_DIGITS = np.frombuffer(b"".join(b"%02x" % n for n in range(256)), np.uint8).reshape(256, 2)


def format_payload_blobs(column: pa.Array) -> pa.Array:
    """Format each blob of NVTX payloads in a column as a string, such as ``7:0a00,7:0b00``. A null remains null.

    The string consists of the schema id of each payload and its bytes in hexadecimal.

    Raises:
        ValueError: The total size of the blobs is 1 GiB or more.
    """
    raw = column.cast(pa.binary())
    if raw.null_count == len(raw):
        return pa.nulls(len(raw), pa.string())
    edges = np.frombuffer(raw.buffers()[1], np.int32)[raw.offset :][: len(raw) + 1].astype(np.int64)
    data = np.frombuffer(raw.buffers()[2] or b"", np.uint8)[edges[0] : edges[-1]]
    if len(data) > MAX_BYTES:
        raise ValueError(f"a batch has {len(data)} bytes of NVTX payloads, but tracekit supports at most {MAX_BYTES}")
    rows = np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False))
    indices = np.full(len(raw), -1)
    indices[rows] = np.arange(len(rows))
    starts, stops = edges[rows] - edges[0], edges[rows + 1] - edges[0]
    return _format_consecutive_blobs(data, starts, stops).cast(pa.string()).take(pa.array(indices, mask=indices < 0))


def _format_consecutive_blobs(data: Bytes, starts: Offsets, stops: Offsets) -> pa.Array:
    """Return the string of each blob in a buffer of consecutive blobs, formatted as by ``format_payload_blobs``."""
    owners, schemas, payload_starts, payload_stops = _locate_payloads(data, starts, stops)
    others = np.setdiff1d(np.arange(len(starts)), owners)
    order = np.argsort(np.concatenate([owners, others]), kind="stable")
    payload_starts = np.concatenate([payload_starts, starts[others]])[order]
    payload_stops = np.concatenate([payload_stops, stops[others]])[order]
    digits = extract_strings(
        _DIGITS[data].reshape(-1), 2 * np.stack([payload_starts, payload_stops], axis=1).reshape(-1)
    )
    numbers = pc.binary_join_element_wise(pa.array(schemas).cast(pa.string()), "", ":").cast(pa.binary())
    heads = pa.concat_arrays([numbers, pa.array([b""] * len(others), pa.binary())]).take(pa.array(order))
    firsts = np.searchsorted(np.concatenate([owners, others])[order], np.arange(len(starts) + 1))
    each = pc.binary_join_element_wise(heads, digits, b"")
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(firsts, pa.int32()), each), b",")


def _locate_payloads(
    data: Bytes, starts: Offsets, stops: Offsets
) -> tuple[Offsets, npt.NDArray[np.uint64], Offsets, Offsets]:
    """Return four arrays with the blob index, schema id, start offset and end offset of each payload.

    Blobs with another layout are skipped.
    """
    counts = _read_payload_counts(data, starts, stops)
    owners = np.repeat(np.arange(len(starts)), counts)
    indices = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    offsets_of_items = starts[owners] + COUNT_BYTES + ITEM_BYTES * indices
    schemas, sizes, offsets = data[offsets_of_items[:, None] + np.arange(ITEM_BYTES)].view("<u8").reshape(-1, 3).T
    room = (stops - starts)[owners].astype(np.uint64)
    fits = (offsets <= room) & (sizes <= room)
    payload_starts = starts[owners] + np.where(fits, offsets, 0).astype(np.int64)
    payload_stops = payload_starts + np.where(fits, sizes, 0).astype(np.int64)
    first_start = starts[owners] + COUNT_BYTES + ITEM_BYTES * counts[owners]
    fits &= (payload_starts >= np.where(indices == 0, first_start, np.roll(payload_stops, 1))) & (
        payload_stops <= stops[owners]
    )
    valid = ~np.isin(owners, owners[~fits])
    return owners[valid], np.ascontiguousarray(schemas[valid]), payload_starts[valid], payload_stops[valid]


def _read_payload_counts(data: Bytes, starts: Offsets, stops: Offsets) -> Offsets:
    """Return the number of payloads that each blob declares, or 0 if the blob is too small for that number."""
    counts = np.zeros(len(starts), np.int64)
    long = np.flatnonzero(stops - starts >= COUNT_BYTES)
    declared = data[starts[long, None] + np.arange(COUNT_BYTES)].view("<u8").reshape(-1)
    room = ((stops - starts)[long] - COUNT_BYTES) // ITEM_BYTES
    counts[long] = np.where(declared <= room.astype(np.uint64), declared, 0).astype(np.int64)
    return counts
