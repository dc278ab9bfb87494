"""Decode tensors that consist of a single number, and detect tensors of strings, in event files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.readers.common.protobuf.decoding import decode, decode_varints
from tracekit.readers.common.protobuf.occurrences import find_occurrences

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Int64Array, Mask, UInt64Array

Float64Array: TypeAlias = npt.NDArray[np.float64]

DTYPE, SHAPE, CONTENT, STRINGS = 1, 2, 4, 8
STRING = 7
_DIM, _DIM_SIZE = 2, 1
_MAX_COUNT = 1 << 31


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


_BFLOAT16 = 14
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
