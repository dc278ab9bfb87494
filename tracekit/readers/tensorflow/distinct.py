"""Decode the values of node attributes. Each distinct value is decoded only once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import decode, find_occurrences
from tracekit.readers.common.protobuf.fields import join_strings_by_row
from tracekit.readers.tensorflow import values
from tracekit.readers.tensorflow.fields import (
    compute_field_spans,
    slice_bytes_or_empty,
    slice_strings,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Int64Array
    from tracekit.readers.tensorflow.values import AttributeValue

Mask: TypeAlias = npt.NDArray[np.bool_]

MAX_DECODED_BYTES = 1 << 16
"""Maximum size in bytes of a value that is decoded. A larger value is replaced with its size."""
KINDS = ("", "list", "s", "i", "f", "b", "type", "shape", "tensor", "placeholder", "func")
"""Kinds of attribute values, which are the names of the fields of ``AttrValue``.

The position of a kind is the number of its field, except for the last two kinds.
"""
_LIST, _STRING, _TENSOR = 1, 2, 8
_VALUES, _LIST_FIELDS = range(1, 11), range(2, 10)
_DTYPE, _SHAPE = 1, 2
_NEEDS_ESCAPE = r'["\\\x00-\x1f]'


@dataclass(slots=True)
class DistinctValues:
    """The distinct values of node attributes. Attributes refer to a value by its code, which is its index.

    Attributes:
        kinds: Kind of each value, as an index in ``KINDS``.
        json: JSON text of each value.
        strings: Each value as a string if it is a string or a type, null for values of other kinds.
        functions: Names of the functions that a value refers to, as comma-separated JSON strings, by code of the value.
    """

    kinds: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    json: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    strings: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    functions: dict[int, str] = field(default_factory=dict)

    def append_values(self, decoded: list[AttributeValue]) -> None:
        """Append decoded attribute values to the distinct values."""
        first = len(self.kinds)
        functions = {
            first + i: ",".join(map(values.dump_json, v.functions)) for i, v in enumerate(decoded) if v.functions
        }
        self.functions |= functions
        kinds = np.array([KINDS.index(v.kind) for v in decoded], np.int64)
        self.append_columns(
            kinds, pa.array([v.json for v in decoded], pa.string()), pa.array([v.text for v in decoded], pa.string())
        )

    def append_columns(self, kinds: Int64Array, json: pa.Array, strings: pa.Array) -> None:
        """Append attribute values to the distinct values, given their kinds, JSON texts and strings."""
        self.kinds = np.concatenate((self.kinds, kinds))
        self.json, self.strings = pa.concat_arrays([self.json, json]), pa.concat_arrays([self.strings, strings])


def decode_attribute_values(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> tuple[Int64Array, DistinctValues]:
    """Decode the values of node attributes, and return the code of each value together with the distinct values.

    Raises:
        Damage: A value is not a valid message.
    """
    codes, distinct = np.zeros(len(starts), np.int64), DistinctValues()
    tensor_field = decode(buffer, starts, stops, (_TENSOR,)).get(_TENSOR)
    is_tensor = _compute_field_mask(tensor_field, len(starts))

    def decode_and_store_rows(
        rows: Int64Array, keys: pa.DictionaryArray, decode_key: Callable[[bytes], AttributeValue]
    ) -> None:
        codes[rows] = keys.indices.to_numpy(zero_copy_only=False) + len(distinct.kinds)
        distinct.append_values([decode_key(data) for data in keys.dictionary.to_pylist()])

    if tensor_field is not None:
        decode_and_store_rows(
            np.flatnonzero(is_tensor), _encode_tensor_keys(buffer, *tensor_field.spans()), _decode_tensor_key
        )
    is_long = ~is_tensor & (stops - starts > MAX_DECODED_BYTES)
    long = np.flatnonzero(is_long)
    decode_and_store_rows(
        long,
        pa.array(stops[long] - starts[long]).cast(pa.string()).cast(pa.binary()).dictionary_encode(),
        _format_omitted_value,
    )
    short = np.flatnonzero(~is_tensor & ~is_long)
    codes[short] = _decode_short_values(buffer, starts[short], stops[short], distinct)
    return codes, distinct


def _decode_short_values(buffer: Buffer, starts: Int64Array, stops: Int64Array, distinct: DistinctValues) -> Int64Array:
    """Decode values that are not tensors and not larger than ``MAX_DECODED_BYTES``, and return their codes.

    The distinct values are appended to ``distinct``.
    """
    encoded = slice_bytes_or_empty(buffer, starts, stops).dictionary_encode()
    numbers, distinct_bytes = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary
    first_rows = np.zeros(len(distinct_bytes), np.int64)
    first_rows[numbers[::-1]] = np.arange(len(starts))[::-1]
    string_rows, kinds, json, strings = _decode_strings(buffer, starts[first_rows], stops[first_rows])
    distinct_codes = np.zeros(len(distinct_bytes), np.int64)
    distinct_codes[string_rows] = np.arange(len(distinct.kinds), len(distinct.kinds) + len(string_rows))
    distinct.append_columns(kinds, json, strings)
    others = np.ones(len(distinct_bytes), np.bool_)
    others[string_rows] = False
    distinct_codes[others] = np.arange(len(distinct.kinds), len(distinct.kinds) + int(others.sum()))
    distinct.append_values(
        [values.decode_attribute_value(data) for data in distinct_bytes.filter(pa.array(others)).to_pylist()]
    )
    codes: Int64Array = distinct_codes[numbers]
    return codes


def _decode_strings(
    buffer: Buffer, starts: Int64Array, stops: Int64Array
) -> tuple[Int64Array, Int64Array, pa.Array, pa.Array]:
    """Decode the values that are strings or lists of strings and have at most ``values.MAX_LENGTH`` bytes.

    Returns:
        The row numbers, kinds, JSON texts and strings of these values. The string of a list is null. All other values
        are omitted.
    """
    fields = decode(buffer, starts, stops, _VALUES)
    is_short = stops - starts <= values.MAX_LENGTH
    single_rows = np.flatnonzero(_compute_mask_of_messages_with_single_field(fields, _STRING, len(starts)) & is_short)
    list_rows = np.flatnonzero(_compute_mask_of_messages_with_single_field(fields, _LIST, len(starts)) & is_short)
    list_starts, list_stops = compute_field_spans(fields.get(_LIST), len(starts))
    list_fields = decode(buffer, list_starts[list_rows], list_stops[list_rows], _LIST_FIELDS)
    list_rows = list_rows[_compute_mask_of_messages_with_single_field(list_fields, _STRING, len(list_rows))]
    string_starts, string_stops = compute_field_spans(fields.get(_STRING), len(starts))
    strings = slice_strings(buffer, string_starts[single_rows], string_stops[single_rows])
    (list_items,) = find_occurrences(buffer, list_starts[list_rows], list_stops[list_rows], (_STRING,))
    lists = join_strings_by_row(
        len(list_rows),
        list_items.rows,
        _encode_json_strings(slice_strings(buffer, list_items.starts, list_items.stops)),
        "[]",
    )
    json = pa.concat_arrays([_encode_json_strings(strings), *lists.chunks])
    kinds = np.repeat([_STRING, _LIST], [len(single_rows), len(list_rows)])
    return (
        np.concatenate((single_rows, list_rows)),
        kinds,
        json,
        pa.concat_arrays([strings, pa.nulls(len(list_rows), pa.string())]),
    )


def _encode_json_strings(strings: pa.Array) -> pa.Array:
    """Encode strings as JSON strings, with quotes and escapes."""
    quoted = pc.binary_join_element_wise('"', strings, '"', "")
    needs_escape = pc.match_substring_regex(strings, _NEEDS_ESCAPE)
    if not pc.any(needs_escape).as_py():
        return quoted
    escaped_strings = strings.filter(needs_escape).dictionary_encode()
    escaped = pa.array(map(values.dump_json, escaped_strings.dictionary.to_pylist()), pa.string()).take(
        escaped_strings.indices
    )
    return pc.replace_with_mask(quoted, needs_escape, escaped)


def _compute_mask_of_messages_with_single_field(fields: dict[int, Field], number: int, row_count: int) -> Mask:
    """Return a mask of the messages that contain the given field and none of the other fields in ``fields``."""
    mask = _compute_field_mask(fields.get(number), row_count)
    for other in fields.keys() - {number}:
        mask = mask & ~_compute_field_mask(fields[other], row_count)
    return mask


def _compute_field_mask(field: Field | None, row_count: int) -> Mask:
    if field is None:
        return np.zeros(row_count, np.bool_)
    return np.ones(row_count, np.bool_) if field.valid is None else field.valid


def _encode_tensor_keys(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> pa.DictionaryArray:
    """Return a dictionary-encoded key for each tensor: the element type number, a colon and the encoded shape."""
    fields = decode(buffer, starts, stops, (_DTYPE, _SHAPE))
    dtype = fields.get(_DTYPE)
    if dtype is not None and dtype.stops is not None:
        raise Damage("the element type of a tensor is encoded as bytes instead of a number")
    numbers = np.zeros(len(starts), np.int64) if dtype is None else dtype.values.astype(np.int64)
    types = pa.array(numbers).cast(pa.string()).cast(pa.binary())
    shapes = slice_bytes_or_empty(buffer, *compute_field_spans(fields.get(_SHAPE), len(starts)))
    return pc.binary_join_element_wise(types, shapes, b":").dictionary_encode()


def _decode_tensor_key(key: bytes) -> AttributeValue:
    dtype, _, shape = key.partition(b":")
    return values.format_tensor_value(int(dtype), shape)


def _format_omitted_value(size: bytes) -> AttributeValue:
    return values.AttributeValue("", values.dump_json({"bytes": int(size)}), None, ())
