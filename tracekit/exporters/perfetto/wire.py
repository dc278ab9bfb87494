"""Encode protobuf messages with the same set of fields by vectorized operations on columns.

Each message is a row of a byte matrix, in which every field has the width of its longest value. At the end, the unused
bytes of each row are removed.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit import schemas

if TYPE_CHECKING:
    from collections.abc import Sequence

    Numbers = np.ndarray[tuple[int], np.dtype[np.uint64]]
    TimeArray = np.ndarray[tuple[int], np.dtype[np.int64]]
    Sizes = np.ndarray[tuple[int], np.dtype[np.int64]]
    Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
    Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
    Matrix = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
    MaskMatrix = np.ndarray[tuple[int, int], np.dtype[np.bool_]]

_PAYLOAD_BITS = 7
_CONTINUES = 0x80


class Constant(NamedTuple):
    """A column with the same bytes in all rows, or in all rows that the mask ``present`` selects."""

    data: bytes
    present: Mask | None = None


class Varints(NamedTuple):
    """A column of varints with their sizes in bytes. Create it with ``encode_varints``."""

    values: Numbers
    widths: Bytes
    present: Mask | None = None


class Fixed64s(NamedTuple):
    """A column of 8-byte numbers."""

    values: Numbers
    present: Mask | None = None


EncodedColumn = Constant | Varints | Fixed64s
FIXED64_BYTES = 8


@functools.cache
def encode_field_tag(message: str, field: str) -> bytes:
    """Return the tag of a protobuf field: the encoded number and wire type of the field."""
    descriptor = schemas.load_message_class("perfetto", message).DESCRIPTOR.fields_by_name[field]
    fixed = (descriptor.TYPE_FIXED64, descriptor.TYPE_DOUBLE)
    sized = (descriptor.TYPE_STRING, descriptor.TYPE_BYTES, descriptor.TYPE_MESSAGE)
    encoding = 1 if descriptor.type in fixed else 2 if descriptor.type in sized else 0
    return encode_varint(descriptor.number << 3 | encoding)


def encode_varint(number: int) -> bytes:
    """Encode a non-negative integer as a varint."""
    encoded = bytearray()
    while number >= _CONTINUES:
        encoded.append(number & ~_CONTINUES & 0xFF | _CONTINUES)
        number >>= _PAYLOAD_BITS
    return bytes([*encoded, number])


def encode_length_delimited(tag: bytes, content: bytes) -> bytes:
    """Encode a field that contains a message, string or bytes, as the tag, the length and the content."""
    return tag + encode_varint(len(content)) + content


def encode_submessage(tag: bytes, columns: Sequence[EncodedColumn], present: Mask | None = None) -> list[EncodedColumn]:
    """Return the columns of a field that contains a message: the tag, the length and the columns of the message.

    Args:
        tag: The tag of the field.
        columns: The columns of the message.
        present: Mask of the rows that have the field, or None if all rows have the field.
    """
    size = compute_row_sizes(columns)
    length = Constant(encode_varint(size)) if isinstance(size, int) else encode_varints(size.astype(np.uint64))
    lead = [Constant(tag), length]
    return (
        [*lead, *columns] if present is None else [_omit_absent_values(column, present) for column in (*lead, *columns)]
    )


def encode_varints(values: Numbers, present: Mask | None = None) -> Varints:
    """Return a column of varints. Pass negative integers as their two's complement."""
    widths = np.ones(len(values), np.uint8)
    bits = int(values.max()).bit_length() if len(values) else 0
    for shift in range(_PAYLOAD_BITS, bits, _PAYLOAD_BITS):
        widths += values >= np.uint64(1 << shift)
    return Varints(values, widths, present)


def _omit_absent_values(column: EncodedColumn, present: Mask) -> EncodedColumn:
    """Return a column that is omitted from the messages for which the mask ``present`` is False."""
    return column._replace(present=present if column.present is None else column.present & present)


def compute_row_sizes(columns: Sequence[EncodedColumn]) -> int | Sizes:
    """Return the size in bytes of each encoded message, or a single number if all sizes are equal."""
    size: int | Sizes = 0
    for column in columns:
        size = size + _compute_value_sizes(column)
    return size


def _compute_value_sizes(column: EncodedColumn) -> int | Sizes:
    """Return the size in bytes of each value of a column, or a single number if all sizes are equal."""
    if isinstance(column, Varints):
        low, high = _find_min_and_max_width(column.widths)
        if column.present is None:
            return high if low == high else column.widths.astype(np.int64)
        return np.where(column.present, column.widths, 0).astype(np.int64)
    width = len(column.data) if isinstance(column, Constant) else FIXED64_BYTES
    return width if column.present is None else column.present * np.int64(width)


def _find_min_and_max_width(widths: Bytes) -> tuple[int, int]:
    """Return the smallest and the largest size of varints in bytes, or zeros if there are no varints."""
    return (int(widths.min()), int(widths.max())) if len(widths) else (0, 0)


def encode_rows(columns: Sequence[EncodedColumn], row_count: int) -> memoryview:
    """Encode one message per row from the given columns, and return the concatenated bytes of all messages."""
    ends = list(itertools.accumulate(map(_find_column_width, columns)))
    end = ends[-1]
    spans = list(zip([0, *ends], ends, strict=False))
    matrix = np.empty((row_count, end), np.uint8)
    matrix[:] = _build_template_row(columns, spans, end)
    is_used = np.ones((row_count, end), np.bool_)
    ragged = False
    for column, (start, stop) in zip(columns, spans, strict=True):
        if isinstance(column, Varints):
            ragged |= _fill_varints_and_detect_unequal_sizes(matrix[:, start:stop], is_used[:, start:stop], column)
        elif isinstance(column, Fixed64s):
            matrix[:, start:stop] = column.values.astype("<u8").view(np.uint8).reshape(row_count, FIXED64_BYTES)
        if column.present is not None:
            is_used[:, start:stop] &= column.present[:, None]
            ragged = True
    flat = matrix[is_used] if ragged else matrix.reshape(-1)
    return memoryview(np.ascontiguousarray(flat).data)


def _find_column_width(column: EncodedColumn) -> int:
    """Return the number of bytes to reserve for a column in every message: the size of its longest value."""
    if isinstance(column, Varints):
        return _find_min_and_max_width(column.widths)[1]
    return len(column.data) if isinstance(column, Constant) else FIXED64_BYTES


def _build_template_row(columns: Sequence[EncodedColumn], spans: Sequence[tuple[int, int]], width: int) -> Bytes:
    """Return a template row with the bytes of the constant columns. All other bytes are 0."""
    template = np.zeros(width, np.uint8)
    for column, (start, stop) in zip(columns, spans, strict=True):
        if isinstance(column, Constant):
            template[start:stop] = np.frombuffer(column.data, np.uint8)
    return template


def _fill_varints_and_detect_unequal_sizes(matrix: Matrix, is_used: MaskMatrix, column: Varints) -> bool:
    """Write varints to a byte matrix with one row per message, and return whether the sizes of the varints differ.

    Unused bytes of the matrix become False in the mask ``is_used``.
    """
    values, widths = column.values, column.widths
    low, high = _find_min_and_max_width(widths)
    for nth in range(high):
        digits = (values >> np.uint64(_PAYLOAD_BITS * nth)).astype(np.uint8)
        if nth + 1 < low:
            digits |= _CONTINUES
        else:
            digits &= ~_CONTINUES & 0xFF
            if nth + 1 < high:
                digits |= (widths > nth + 1).astype(np.uint8) << _PAYLOAD_BITS
        matrix[:, nth] = digits
        if nth >= low:
            is_used[:, nth] = widths > nth
    return low != high
