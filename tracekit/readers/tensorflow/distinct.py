"""Values of many attributes: each different one is taken apart once, texts all together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.common.protobuf.occurrences import occurrences
from tracekit.readers.tensorflow import values
from tracekit.readers.tensorflow.fields import full_pieces, joined, spans, texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Places
    from tracekit.readers.tensorflow.values import Value

Numbers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

LONG = 1 << 16
"""Bytes of a value that is not taken apart."""
KINDS = ("", "list", "s", "i", "f", "b", "type", "shape", "tensor", "placeholder", "func")
"""What a value may be; the number of its field, but for the last two."""
_LIST, _TEXT, _TENSOR = 1, 2, 8
_VALUES, _LISTED = range(1, 11), range(2, 10)
_DTYPE, _SHAPE = 1, 2
_ESCAPED = r'["\\\x00-\x1f]'


@dataclass(slots=True)
class Distinct:
    """Different values by number.

    Attributes:
        kinds: What each is, a number in ``KINDS``.
        json: JSON of each.
        told: Text of each that is a text or a type; null for others.
        functions: JSON of the names of functions, joined by commas, of those that name functions.
    """

    kinds: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    json: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    told: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    functions: dict[int, str] = field(default_factory=dict)

    def extend(self, found: list[Value]) -> None:
        """Add values taken apart one by one."""
        first = len(self.kinds)
        named = {first + i: ",".join(map(values.dumped, v.functions)) for i, v in enumerate(found) if v.functions}
        self.functions |= named
        kinds = np.array([KINDS.index(v.kind) for v in found], np.int64)
        self.add(kinds, pa.array([v.json for v in found], pa.string()), pa.array([v.text for v in found], pa.string()))

    def add(self, kinds: Numbers, json: pa.Array, told: pa.Array) -> None:
        """Add values."""
        self.kinds = np.concatenate((self.kinds, kinds))
        self.json, self.told = pa.concat_arrays([self.json, json]), pa.concat_arrays([self.told, told])


def read(buffer: Buffer, starts: Places, stops: Places) -> tuple[Numbers, Distinct]:
    """Take n values apart: n numbers, and what is behind each number.

    Raises:
        Damage: One is no value.
    """
    codes, found = np.zeros(len(starts), np.int64), Distinct()
    held = decode(buffer, starts, stops, (_TENSOR,)).get(_TENSOR)
    is_tensor = _present(held, len(starts))

    def put(rows: Places, encoded: pa.DictionaryArray, make: Callable[[bytes], Value]) -> None:
        codes[rows] = encoded.indices.to_numpy(zero_copy_only=False) + len(found.kinds)
        found.extend([make(octets) for octets in encoded.dictionary.to_pylist()])

    if held is not None:
        put(np.flatnonzero(is_tensor), _tensors(buffer, *held.spans()), _tensor)
    is_long = ~is_tensor & (stops - starts > LONG)
    long = np.flatnonzero(is_long)
    put(long, pa.array(stops[long] - starts[long]).cast(pa.string()).cast(pa.binary()).dictionary_encode(), _long)
    short = np.flatnonzero(~is_tensor & ~is_long)
    codes[short] = _short(buffer, starts[short], stops[short], found)
    return codes, found


def _short(buffer: Buffer, starts: Places, stops: Places, found: Distinct) -> Numbers:
    """Take n values apart that are neither tensors nor long, and add them to those found: n numbers out."""
    encoded = full_pieces(buffer, starts, stops).dictionary_encode()
    numbers, different = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary
    places = np.zeros(len(different), np.int64)
    places[numbers[::-1]] = np.arange(len(starts))[::-1]
    of_texts, kinds, json, told = _texts(buffer, starts[places], stops[places])
    code = np.zeros(len(different), np.int64)
    code[of_texts] = np.arange(len(found.kinds), len(found.kinds) + len(of_texts))
    found.add(kinds, json, told)
    others = np.ones(len(different), np.bool_)
    others[of_texts] = False
    code[others] = np.arange(len(found.kinds), len(found.kinds) + int(others.sum()))
    found.extend([values.value(octets) for octets in different.filter(pa.array(others)).to_pylist()])
    made: Numbers = code[numbers]
    return made


def _texts(buffer: Buffer, starts: Places, stops: Places) -> tuple[Places, Numbers, pa.Array, pa.Array]:
    """Take those of n values apart that are a text, or a list of texts: which, their kinds, JSON and texts."""
    fields = decode(buffer, starts, stops, _VALUES)
    short = stops - starts <= values.LONGEST
    single = np.flatnonzero(_only(fields, _TEXT, len(starts)) & short)
    several = np.flatnonzero(_only(fields, _LIST, len(starts)) & short)
    begins, ends = spans(fields.get(_LIST), len(starts))
    inside = decode(buffer, begins[several], ends[several], _LISTED)
    several = several[_only(inside, _TEXT, len(several))]
    begins_of_text, ends_of_text = spans(fields.get(_TEXT), len(starts))
    told = texts(buffer, begins_of_text[single], ends_of_text[single])
    (listed,) = occurrences(buffer, begins[several], ends[several], (_TEXT,))
    lists = joined(len(several), listed.rows, _quoted(texts(buffer, listed.starts, listed.stops)), "[]")
    json = pa.concat_arrays([_quoted(told), *lists.chunks])
    kinds = np.repeat([_TEXT, _LIST], [len(single), len(several)])
    return np.concatenate((single, several)), kinds, json, pa.concat_arrays([told, pa.nulls(len(several), pa.string())])


def _quoted(plain: pa.Array) -> pa.Array:
    """Write texts as JSON."""
    made = pc.binary_join_element_wise('"', plain, '"', "")
    escaped = pc.match_substring_regex(plain, _ESCAPED)
    if not pc.any(escaped).as_py():
        return made
    odd = plain.filter(escaped).dictionary_encode()
    dumped = pa.array(map(values.dumped, odd.dictionary.to_pylist()), pa.string()).take(odd.indices)
    return pc.replace_with_mask(made, escaped, dumped)


def _only(fields: dict[int, Field], number: int, rows: int) -> Mask:
    """Say of each message whether it has one field and none of the others."""
    found = _present(fields.get(number), rows)
    for other in fields.keys() - {number}:
        found = found & ~_present(fields[other], rows)
    return found


def _present(field: Field | None, rows: int) -> Mask:
    if field is None:
        return np.zeros(rows, np.bool_)
    return np.ones(rows, np.bool_) if field.valid is None else field.valid


def _tensors(buffer: Buffer, starts: Places, stops: Places) -> pa.DictionaryArray:
    """Take tensors apart: the type as text, a colon and the shape of each."""
    fields = decode(buffer, starts, stops, (_DTYPE, _SHAPE))
    dtype = fields.get(_DTYPE)
    if dtype is not None and dtype.stops is not None:
        raise Damage("the type of a tensor is no number")
    numbers = np.zeros(len(starts), np.int64) if dtype is None else dtype.values.astype(np.int64)
    types = pa.array(numbers).cast(pa.string()).cast(pa.binary())
    shapes = full_pieces(buffer, *spans(fields.get(_SHAPE), len(starts)))
    return pc.binary_join_element_wise(types, shapes, b":").dictionary_encode()


def _tensor(both: bytes) -> Value:
    dtype, _, shape = both.partition(b":")
    return values.tensor(int(dtype), shape)


def _long(size: bytes) -> Value:
    return values.Value("", values.dumped({"bytes": int(size)}), None, ())
