"""Texts told apart where they lie: most texts of a trace are names that come time and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.readers.common.protobuf.decoding import cut
from tracekit.readers.common.protobuf.walk import SCRATCH, SLACK, complain

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Buffer, Places

MAX_ROWS, PLACES = 1 << 14, 1 << 15
NEXT, KNOWN = 9, 10
"""Where the frame of the walk says how many texts came first, and how many of them its table holds."""


def distinct(buffer: Buffer, starts: Places, stops: Places) -> pa.DictionaryArray:
    """Take texts out of bytes: n places where texts begin and n where they end, ascending, in; n texts out.

    Each text that occurs is taken out once. Of very many different ones some may be there several times.

    Raises:
        Damage: A place is beyond the buffer.
    """
    n = min(MAX_ROWS, len(starts))
    at = [SCRATCH, SCRATCH + 8 * n, SCRATCH + 16 * n, SCRATCH + 20 * n, SCRATCH + 24 * n]
    buffer.part(at[4], 16 * PLACES)[:] = 0
    numbers = np.empty(len(starts), np.int32)
    firsts: list[Places] = [np.empty(0, np.int64)]
    count = known = 0
    for first in range(0, len(starts), MAX_ROWS):
        part = slice(first, min(first + MAX_ROWS, len(starts)))
        rows = part.stop - first
        buffer.part(at[0], 8 * rows).view(np.int64)[:] = starts[part]
        buffer.part(at[1], 8 * rows).view(np.int64)[:] = stops[part]
        frame = buffer.frame(rows, *at, PLACES - 1, PLACES // 2, len(buffer.octets) - SLACK, count, known)
        complain(buffer.call("distinct"))
        numbers[part] = buffer.part(at[2], 4 * rows).view(np.int32)
        new = int(frame[NEXT]) - count
        firsts.append(first + buffer.part(at[3], 4 * new).view(np.int32).astype(np.int64))
        count, known = int(frame[NEXT]), int(frame[KNOWN])
    chosen = np.concatenate(firsts)
    texts = cut(buffer.octets, np.stack((starts[chosen], stops[chosen]), axis=1).reshape(-1))
    return pa.DictionaryArray.from_arrays(pa.array(numbers), texts)
