"""Tensors in event files: those of one number, and those of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.readers.common.protobuf.decoding import decode, varints
from tracekit.readers.common.protobuf.occurrences import occurrences

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Mask, Places, Words

Reals: TypeAlias = npt.NDArray[np.float64]

DTYPE, SHAPE, CONTENT, STRINGS = 1, 2, 4, 8
STRING = 7
_DIM, _DIM_SIZE = 2, 1
_MOST = 1 << 31


class Kind(NamedTuple):
    """How the elements of a type are kept: their own bytes, and the field of the tensor that lists them instead."""

    element: str
    field: int
    fixed: bool = False


_BFLOAT16 = 14
KINDS = {
    1: Kind("<f4", 5, fixed=True),
    2: Kind("<f8", 6, fixed=True),
    3: Kind("<i4", 7),
    4: Kind("u1", 7),
    5: Kind("<i2", 7),
    6: Kind("i1", 7),
    9: Kind("<i8", 10),
    10: Kind("?", 11),
    _BFLOAT16: Kind("<u2", 13),
    17: Kind("<u2", 7),
    19: Kind("<f2", 13),
    22: Kind("<u4", 16),
    23: Kind("<u8", 17),
}
"""By number of the type, DT_FLOAT 1 to DT_UINT64 23."""
_WANTED = {DTYPE, SHAPE, CONTENT, *(kind.field for kind in KINDS.values())}


class Tensors(NamedTuple):
    """What is known of n tensors.

    Attributes:
        numbers: Their only element; 0 where there is none.
        single: Where a tensor is one number.
        texts: Where a tensor is of texts.
    """

    numbers: Reals
    single: Mask
    texts: Mask


def read(buffer: Buffer, starts: Places, stops: Places) -> Tensors:
    """Read tensors: n places where messages begin and end in, and what they are out.

    Raises:
        Damage: One is no message.
    """
    n = len(starts)
    fields = decode(buffer, starts, stops, _WANTED)
    types = fields[DTYPE].values if DTYPE in fields else np.zeros(n, np.uint64)
    one = _elements(buffer, fields.get(SHAPE), n) == 1
    numbers, single = np.zeros(n), np.zeros(n, np.bool_)
    for number, kind in KINDS.items():
        rows = np.flatnonzero(one & (types == number))
        if len(rows):
            words, known = _words(buffer, fields, kind, rows)
            numbers[rows[known]] = _values(words[known], number, kind)
            single[rows[known]] = True
    return Tensors(numbers, single, types == STRING)


def _elements(buffer: Buffer, shape: Field | None, n: int) -> Places:
    """Multiply the sizes of each tensor: 1 without any."""
    product = np.ones(n)
    if shape is not None and shape.stops is not None:
        rows = np.arange(n) if shape.valid is None else np.flatnonzero(shape.valid)
        (dims,) = occurrences(buffer, *shape.spans(), (_DIM,))
        found = decode(buffer, dims.starts, dims.stops, {_DIM_SIZE})
        sizes = found[_DIM_SIZE].values.view(np.int64) if found else np.zeros(len(dims), np.int64)
        np.multiply.at(product, rows[dims.rows], np.clip(sizes, 0, _MOST))
    return np.minimum(product, _MOST).astype(np.int64)


def _words(buffer: Buffer, fields: dict[int, Field], kind: Kind, rows: Places) -> tuple[Words, Mask]:
    """Return the bits of the first element of some tensors, and where there is one; without any, it is 0."""
    width = np.dtype(kind.element).itemsize
    words, known = np.zeros(len(rows), np.uint64), np.ones(len(rows), np.bool_)
    listed, content = fields.get(kind.field), fields.get(CONTENT)
    if listed is not None and listed.stops is None:
        words = np.where(_present(listed, rows), listed.values[rows], words)
    elif listed is not None:
        starts, sizes = _spans(listed, rows)
        some = np.flatnonzero(sizes)
        words[some] = buffer.words[starts[some]] if kind.fixed else varints(buffer, starts[some])[0]
        known &= (sizes == 0) | (sizes >= (width if kind.fixed else 1))
    if content is not None and content.stops is not None:
        starts, sizes = _spans(content, rows)
        some = np.flatnonzero(sizes)
        words[some] = buffer.words[starts[some]]
        known &= (sizes == 0) | (sizes == width)
    return words, known


def _present(field: Field, rows: Places) -> Mask:
    return np.ones(len(rows), np.bool_) if field.valid is None else field.valid[rows]


def _spans(field: Field, rows: Places) -> tuple[Places, Places]:
    """Return where the bytes of a field begin in some messages, and how many there are."""
    starts, stops = field.values.view(np.int64)[rows], field.stops
    return starts, np.zeros(len(rows), np.int64) if stops is None else stops[rows] - starts


def _values(words: Words, number: int, kind: Kind) -> Reals:
    """Take the low bits of words as elements of a type."""
    octets = np.ascontiguousarray(words, "<u8").view(np.uint8).reshape(-1, 8)
    element = np.dtype(kind.element)
    if number == _BFLOAT16:
        octets, element = np.pad(octets[:, :2], ((0, 0), (2, 0))), np.dtype("<f4")
    if kind.element == "?":
        octets, element = (octets[:, :1] != 0).astype(np.uint8), np.dtype("u1")
    found: Reals = octets[:, : element.itemsize].copy().view(element)[:, 0].astype(np.float64)
    return found
