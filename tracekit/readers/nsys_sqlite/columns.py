"""From the columns of an export to declared columns: ids unpacked, numbers and string ids resolved.

Everything works on whole Arrow columns. A string or label column becomes a dictionary of the values that occur in it
and of no other: the string table of an export holds environments and command lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Mapping

ID_BITS = 24
ID_MASK = (1 << ID_BITS) - 1
DICTIONARY = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True)
class Strings:
    """A table of strings by id: ``ids`` sorted and unique, ``values`` beside them."""

    ids: pa.Array
    values: pa.Array

    @classmethod
    def of(cls, labels: Mapping[int, str | None]) -> Strings:
        """Make one from a mapping."""
        ordered = dict(sorted(labels.items()))
        return cls(pa.array(ordered.keys(), pa.int64()), pa.array(ordered.values(), pa.string()))

    def look_up(self, column: pa.ChunkedArray) -> tuple[pa.DictionaryArray, int]:
        """Resolve a column of ids: n ids in, n texts out (null where the id is null or unknown), and how many are unknown."""
        used = pc.unique(column).drop_null()
        used = used.take(pc.sort_indices(used))
        known = pc.index_in(used, self.ids)
        names = self.values.take(known)
        codes = pc.index_in(column, used)
        unknown = used.filter(known.is_null())
        missing = 0 if not len(unknown) else pc.sum(pc.is_in(column, unknown)).as_py()
        return compact(codes, names), missing


def compact(codes: pa.ChunkedArray | pa.Array, names: pa.Array) -> pa.DictionaryArray:
    """Make a dictionary column whose dictionary is unique and without nulls, in order of first use of ``names``."""
    values = names.unique().drop_null()
    codes = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    if len(values) != len(names):
        codes = pc.index_in(names, values).take(codes)
    return pa.DictionaryArray.from_arrays(codes.cast(pa.int32()), values)


def process_id(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unpack the process number from ids that hold machine, process and thread (nsys's ``globalTid``, ``globalPid``)."""
    return pc.bit_wise_and(pc.shift_right(column, ID_BITS), ID_MASK).cast(pa.int32())


def thread_id(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unpack the thread number from ids that hold machine, process and thread."""
    return pc.bit_wise_and(column, ID_MASK).cast(pa.int32())


def text(column: pa.ChunkedArray | pa.Array) -> tuple[pa.Array, int]:
    """Turn text or bytes into valid UTF-8: n values in, n out, and how many had to be repaired."""
    if pa.types.is_null(column.type) or pa.types.is_integer(column.type):
        return pa.nulls(len(column), pa.string()), 0
    raw = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    raw = raw.cast(pa.binary())
    try:
        return raw.cast(pa.string()), 0
    except pa.ArrowInvalid:
        repaired = [None if b is None else b.decode("utf-8", "replace") for b in raw.to_pylist()]
        broken = sum(b is not None and r.encode() != b for b, r in zip(raw.to_pylist(), repaired, strict=True))
        return pa.array(repaired, pa.string()), broken


def first_of(*columns: pa.DictionaryArray) -> pa.DictionaryArray:
    """Take, row by row, the first column that is not null; all of them dictionaries of n rows."""
    values = pa.concat_arrays([c.dictionary for c in columns]).unique()
    codes = [pc.index_in(c.dictionary, values).take(c.indices) for c in columns]
    return compact(pc.coalesce(*codes), values)
