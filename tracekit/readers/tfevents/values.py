"""Decode the values of summaries. A value has a tag, a kind, a TensorBoard plug-in, and a number or strings."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import coalesce_dictionaries
from tracekit.readers.common.protobuf.decoding import decode, decode_varints, extract_strings, find_occurrences
from tracekit.readers.tensorflow.fields import build_dictionary_column

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Int64Array, Mask, UInt64Array

    StringColumns: TypeAlias = tuple[Int64Array, Int64Array, pa.Array, Int64Array]

Float64Array: TypeAlias = npt.NDArray[np.float64]

DTYPE, SHAPE, CONTENT, STRINGS = 1, 2, 4, 8
STRING = 7
_DIM, _DIM_SIZE = 2, 1
_MAX_COUNT = 1 << 31
_BFLOAT16 = 14
KindArray: TypeAlias = npt.NDArray[np.uint8]
TAG, SIMPLE, OLD_HISTOGRAM, IMAGE, HISTOGRAM, AUDIO, NODE_NAME, TENSOR, METADATA = range(1, 10)
_PLUGIN, _CLASS = 1, 4
_PLUGIN_NAME = 1
_SCALAR_CLASS = 1


class ElementEncoding(NamedTuple):
    """The encoding of elements of one type in tensors.

    Attributes:
        element: NumPy type of the elements in ``tensor_content``, the raw content of the tensor.
        field: Number of the field that contains the elements if the tensor has no raw content.
        fixed: Whether the elements in this field have a fixed size. Otherwise, they are varints.
    """

    element: str
    field: int
    fixed: bool = False


ENCODINGS = {
    1: ElementEncoding("<f4", 5, fixed=True),
    2: ElementEncoding("<f8", 6, fixed=True),
    3: ElementEncoding("<i4", 7),
    4: ElementEncoding("u1", 7),
    5: ElementEncoding("<i2", 7),
    6: ElementEncoding("i1", 7),
    9: ElementEncoding("<i8", 10),
    10: ElementEncoding("?", 11),
    _BFLOAT16: ElementEncoding("<u2", 13),
    17: ElementEncoding("<u2", 7),
    19: ElementEncoding("<f2", 13),
    22: ElementEncoding("<u4", 16),
    23: ElementEncoding("<u8", 17),
}
"""The encoding of each element type, by number of the type from DT_FLOAT (1) to DT_UINT64 (23)."""
_DECODED_FIELDS = {DTYPE, SHAPE, CONTENT, *(encoding.field for encoding in ENCODINGS.values())}


class TensorContents(NamedTuple):
    """The contents of several tensors.

    Attributes:
        numbers: The only element of each tensor, or 0 for tensors that are not a single number.
        is_number: Whether each tensor consists of a single number.
        is_string: Whether each tensor consists of strings.
    """

    numbers: Float64Array
    is_number: Mask
    is_string: Mask


def read_tensors(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> TensorContents:
    """Decode the tensors that consist of a single number, and determine which tensors consist of strings.

    Raises:
        Damage: A message is invalid.
    """
    n = len(starts)
    fields = decode(buffer, starts, stops, _DECODED_FIELDS)
    types = fields[DTYPE].values if DTYPE in fields else np.zeros(n, np.uint64)
    has_one_element = _count_elements(buffer, fields.get(SHAPE), n) == 1
    numbers, is_number = np.zeros(n), np.zeros(n, np.bool_)
    for number, encoding in ENCODINGS.items():
        rows = np.flatnonzero(has_one_element & (types == number))
        if len(rows):
            words, is_valid = _decode_first_elements(buffer, fields, encoding, rows)
            numbers[rows[is_valid]] = _convert_to_floats(words[is_valid], number, encoding)
            is_number[rows[is_valid]] = True
    return TensorContents(numbers, is_number, types == STRING)


def _count_elements(buffer: Buffer, shape: Field | None, row_count: int) -> Int64Array:
    """Return the number of elements of each tensor. A tensor without a shape has one element."""
    product = np.ones(row_count)
    if shape is not None and shape.stops is not None:
        rows = np.arange(row_count) if shape.valid is None else np.flatnonzero(shape.valid)
        (dims,) = find_occurrences(buffer, *shape.spans(), (_DIM,))
        dim_fields = decode(buffer, dims.starts, dims.stops, {_DIM_SIZE})
        sizes = dim_fields[_DIM_SIZE].values.view(np.int64) if dim_fields else np.zeros(len(dims), np.int64)
        np.multiply.at(product, rows[dims.rows], np.clip(sizes, 0, _MAX_COUNT))
    return np.minimum(product, _MAX_COUNT).astype(np.int64)


def _decode_first_elements(
    buffer: Buffer, fields: dict[int, Field], encoding: ElementEncoding, rows: Int64Array
) -> tuple[UInt64Array, Mask]:
    """Return the first element of each tensor in the given rows as a 64-bit word, and a mask of valid tensors.

    The word is 0 for an empty tensor.
    """
    width = np.dtype(encoding.element).itemsize
    words, is_valid = np.zeros(len(rows), np.uint64), np.ones(len(rows), np.bool_)
    list_field, content = fields.get(encoding.field), fields.get(CONTENT)
    if list_field is not None and list_field.stops is None:
        words = np.where(_compute_field_mask(list_field, rows), list_field.values[rows], words)
    elif list_field is not None:
        starts, sizes = _locate_field_bytes(list_field, rows)
        filled = np.flatnonzero(sizes)
        words[filled] = buffer.words[starts[filled]] if encoding.fixed else decode_varints(buffer, starts[filled])[0]
        is_valid &= (sizes == 0) | (sizes >= (width if encoding.fixed else 1))
    if content is not None and content.stops is not None:
        starts, sizes = _locate_field_bytes(content, rows)
        filled = np.flatnonzero(sizes)
        words[filled] = buffer.words[starts[filled]]
        is_valid &= (sizes == 0) | (sizes == width)
    return words, is_valid


def _compute_field_mask(field: Field, rows: Int64Array) -> Mask:
    return np.ones(len(rows), np.bool_) if field.valid is None else field.valid[rows]


def _locate_field_bytes(field: Field, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the start offset and the size in bytes of a field in the messages with the given row numbers."""
    starts, stops = field.values.view(np.int64)[rows], field.stops
    return starts, np.zeros(len(rows), np.int64) if stops is None else stops[rows] - starts


def _convert_to_floats(words: UInt64Array, type_number: int, encoding: ElementEncoding) -> Float64Array:
    """Convert elements of one type to floats. Each element occupies the low bits of a 64-bit word."""
    data = np.ascontiguousarray(words, "<u8").view(np.uint8).reshape(-1, 8)
    element = np.dtype(encoding.element)
    if type_number == _BFLOAT16:
        data, element = np.pad(data[:, :2], ((0, 0), (2, 0))), np.dtype("<f4")
    if encoding.element == "?":
        data, element = (data[:, :1] != 0).astype(np.uint8), np.dtype("u1")
    floats: Float64Array = data[:, : element.itemsize].copy().view(element)[:, 0].astype(np.float64)
    return floats


class ValueKind(IntEnum):
    """The kind of content of a summary value."""

    NOTHING = 0
    SIMPLE = 1
    NUMBER = 2
    TEXTS = 3
    TENSOR = 4
    IMAGE = 5
    HISTOGRAM = 6
    AUDIO = 7


_BYTES_KINDS = {
    OLD_HISTOGRAM: ValueKind.HISTOGRAM,
    HISTOGRAM: ValueKind.HISTOGRAM,
    IMAGE: ValueKind.IMAGE,
    AUDIO: ValueKind.AUDIO,
}


class TagMetadata(NamedTuple):
    """The metadata of tags. Metadata in one summary value applies to all values with the same tag.

    Attributes:
        tags: The tags that have metadata.
        plugins: Name of the TensorBoard plug-in that shows the values of each tag, or an empty string if it is missing.
        scalar: Whether the values of each tag are declared as scalars.
    """

    tags: pa.Array
    plugins: pa.Array
    scalar: pa.Array


class SummaryValues(NamedTuple):
    """The values of summaries, and the strings that they contain.

    Attributes:
        tags: Tag of each value.
        kinds: Kind of each value.
        numbers: Number that each value contains, or 0 for values without a number.
        owners: For each string, the row number of the value that contains it.
        elements: For each string, its position in the tensor.
        texts: The strings as bytes.
        starts: Offset in the buffer at which each string starts.
        metadata: Metadata of the tags, at most once per tag.
    """

    tags: pa.DictionaryArray
    kinds: KindArray
    numbers: npt.NDArray[np.float64]
    owners: Int64Array
    elements: Int64Array
    texts: pa.Array
    starts: Int64Array
    metadata: TagMetadata


def read_values(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> SummaryValues:
    """Decode the summary values that are encoded in ranges of a buffer.

    Raises:
        Damage: A message is invalid.
    """
    n = len(starts)
    fields = decode(buffer, starts, stops, range(TAG, METADATA + 1))
    summary_tags, node_names = (build_dictionary_column(buffer, fields.get(f), n) for f in (TAG, NODE_NAME))
    tags = _replace_null_tags_with_empty(coalesce_dictionaries(summary_tags, node_names))
    kinds, numbers = np.full(n, ValueKind.NOTHING, np.uint8), np.zeros(n)
    strings = _create_empty_string_columns()
    for field, kind in _BYTES_KINDS.items():
        kinds[_find_row_numbers_with_field(fields.get(field), n)] = kind
    rows = _find_row_numbers_with_field(fields.get(TENSOR), n)
    if len(rows):
        spans = fields[TENSOR].spans()
        contents = read_tensors(buffer, *spans)
        kinds[rows] = np.select(
            [contents.is_number, contents.is_string], [ValueKind.NUMBER, ValueKind.TEXTS], ValueKind.TENSOR
        )
        numbers[rows] = contents.numbers
        string_rows = np.flatnonzero(contents.is_string)
        strings = _read_strings(buffer, rows[string_rows], *(s[string_rows] for s in spans))
    simple = fields.get(SIMPLE)
    if simple is not None and simple.stops is None:
        rows = np.arange(n) if simple.valid is None else np.flatnonzero(simple.valid)
        kinds[rows] = ValueKind.SIMPLE
        numbers[rows] = simple.values[rows].astype(np.uint32).view(np.float32)
    return SummaryValues(tags, kinds, numbers, *strings, _read_tag_metadata(buffer, fields.get(METADATA), tags))


def _find_row_numbers_with_field(field: Field | None, row_count: int) -> Int64Array:
    """Return the row numbers of the messages that contain a length-delimited field."""
    if field is None or field.stops is None:
        return np.zeros(0, np.int64)
    return np.arange(row_count) if field.valid is None else np.flatnonzero(field.valid)


def _replace_null_tags_with_empty(tags: pa.DictionaryArray) -> pa.DictionaryArray:
    return tags.cast(pa.string()).fill_null("").dictionary_encode() if tags.null_count else tags


def _create_empty_string_columns() -> StringColumns:
    empty = np.zeros(0, np.int64)
    return empty, empty, pa.array([], pa.binary()), empty


def _read_strings(buffer: Buffer, rows: Int64Array, starts: Int64Array, stops: Int64Array) -> StringColumns:
    """Return the strings in tensors.

    Returns:
        For each string, the row number of its value, its position in the tensor, its bytes and its start offset.
    """
    if not len(rows):
        return _create_empty_string_columns()
    (strings,) = find_occurrences(buffer, starts, stops, (STRINGS,))
    first = np.searchsorted(strings.rows, strings.rows)
    data = extract_strings(buffer.data, np.stack((strings.starts, strings.stops), axis=1).reshape(-1))
    return rows[strings.rows], np.arange(len(strings)) - first, data, strings.starts


def _read_tag_metadata(buffer: Buffer, field: Field | None, tags: pa.DictionaryArray) -> TagMetadata:
    rows = _find_row_numbers_with_field(field, len(tags))
    if field is None or not len(rows):
        return TagMetadata(pa.array([], pa.string()), pa.array([], pa.string()), pa.array([], pa.bool_()))
    codes = tags.indices.to_numpy()[rows]
    _, first = np.unique(codes, return_index=True)
    first.sort()
    starts, stops = (s[first] for s in field.spans())
    metadata_fields = decode(buffer, starts, stops, {_PLUGIN, _CLASS})
    is_scalar = _compute_scalar_class_mask(metadata_fields.get(_CLASS), len(first))
    plugins = _decode_plugin_names(buffer, metadata_fields.get(_PLUGIN), len(first))
    return TagMetadata(tags.dictionary.take(pa.array(codes[first])), plugins, pa.array(is_scalar))


def _compute_scalar_class_mask(field: Field | None, row_count: int) -> Mask:
    if field is None or field.stops is not None:
        return np.zeros(row_count, np.bool_)
    mask: Mask = field.values == _SCALAR_CLASS
    return mask


def _decode_plugin_names(buffer: Buffer, field: Field | None, row_count: int) -> pa.Array:
    """Return the plug-in name in each metadata message, or an empty string if the name is missing."""
    rows = _find_row_numbers_with_field(field, row_count)
    if field is None or not len(rows):
        return pa.array([""] * row_count, pa.string())
    starts, stops = field.spans()
    names = build_dictionary_column(buffer, decode(buffer, starts, stops, {_PLUGIN_NAME}).get(_PLUGIN_NAME), len(rows))
    indices = np.full(row_count, -1)
    indices[rows] = np.arange(len(rows))
    return pc.fill_null(names.cast(pa.string()).take(pa.array(indices, mask=indices < 0)), "")
