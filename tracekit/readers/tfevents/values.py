"""Decode the values of summaries. A value has a tag, a kind, a TensorBoard plug-in, and a number or strings."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import coalesce_dictionaries
from tracekit.readers.common.protobuf.decoding import decode, extract_strings
from tracekit.readers.common.protobuf.occurrences import find_occurrences
from tracekit.readers.tensorflow.fields import build_dictionary_column
from tracekit.readers.tfevents import tensors

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Int64Array, Mask

    StringColumns: TypeAlias = tuple[Int64Array, Int64Array, pa.Array, Int64Array]

KindArray: TypeAlias = npt.NDArray[np.uint8]


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


TAG, SIMPLE, OLD_HISTOGRAM, IMAGE, HISTOGRAM, AUDIO, NODE_NAME, TENSOR, METADATA = range(1, 10)
_PLUGIN, _CLASS = 1, 4
_PLUGIN_NAME = 1
_SCALAR_CLASS = 1
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
        contents = tensors.read_tensors(buffer, *spans)
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
    (strings,) = find_occurrences(buffer, starts, stops, (tensors.STRINGS,))
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
