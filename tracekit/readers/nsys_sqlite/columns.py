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
    from collections.abc import Mapping, Sequence

ID_BITS = 24
ID_MASK = (1 << ID_BITS) - 1
DICTIONARY = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True)
class Strings:
    """A table of strings by id: ``ids`` unique, ``values`` beside them."""

    ids: pa.Array
    values: pa.Array

    @classmethod
    def of(cls, labels: Mapping[int, str | None]) -> Strings:
        """Make one from a mapping."""
        return cls(pa.array(labels.keys(), pa.int64()), pa.array(labels.values(), pa.string()))

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


def number_rows(*columns: pa.ChunkedArray) -> tuple[pa.Array, list[tuple[int | None, ...]]]:
    """Number the distinct rows of several columns: n rows in, n numbers out, and the row that each number stands for."""
    numbers: pa.Array | None = None
    rows: list[tuple[int | None, ...]] = [()]
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        values = encoded.dictionary.to_pylist()
        pairs = encoded.indices.cast(pa.int64())
        if numbers is not None:
            pairs = pc.add(pc.multiply(numbers.cast(pa.int64()), len(values)), pairs)
        dense = pairs.dictionary_encode()
        split = (divmod(pair, len(values)) for pair in dense.dictionary.to_pylist())
        rows = [(*rows[row], values[value]) for row, value in split]
        numbers = dense.indices
    return numbers, rows


def text(column: pa.Array) -> tuple[pa.Array, int]:
    """Turn what SQLite kept as text into valid UTF-8: n values in, n out, and how many had to be repaired."""
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return column.cast(pa.string()), 0
    raw = column.cast(pa.binary())
    try:
        return raw.cast(pa.string()), 0
    except pa.ArrowInvalid:
        pass
    values = raw.to_pylist()
    repaired = [None if b is None else b.decode("utf-8", "replace") for b in values]
    broken = sum(b is not None and r.encode() != b for b, r in zip(values, repaired, strict=True))
    return pa.array(repaired, pa.string()), broken


def joined(chunks: Sequence[pa.Array]) -> pa.ChunkedArray:
    """Join the slices of a column; numbers and dictionaries become one piece."""
    column = pa.chunked_array(chunks)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return column if pa.types.is_string(column.type) else pa.chunked_array([column.combine_chunks()])


def first_of(*columns: pa.DictionaryArray) -> pa.DictionaryArray:
    """Take, row by row, the first column that is not null; all of them dictionaries of n rows."""
    values = pa.concat_arrays([c.dictionary for c in columns]).unique()
    codes = [pc.index_in(c.dictionary, values).take(c.indices) for c in columns]
    return compact(pc.coalesce(*codes), values)
