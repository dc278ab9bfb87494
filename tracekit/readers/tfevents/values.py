"""Values of summaries: what each of them is, its number or its texts, and the plug-in of TensorBoard it is for."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import first_of
from tracekit.readers.common.protobuf.decoding import cut, decode
from tracekit.readers.common.protobuf.occurrences import occurrences
from tracekit.readers.tfevents import tensors, texts

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Mask, Places

    Texts: TypeAlias = tuple[Places, Places, pa.Array, Places]

Kinds: TypeAlias = npt.NDArray[np.uint8]


class Kind(IntEnum):
    """What a value holds."""

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
_BYTES = {OLD_HISTOGRAM: Kind.HISTOGRAM, HISTOGRAM: Kind.HISTOGRAM, IMAGE: Kind.IMAGE, AUDIO: Kind.AUDIO}


class Metadata(NamedTuple):
    """What some values say of their tag, which holds for all values of that tag.

    Attributes:
        tags: Tags.
        plugins: Plug-ins of TensorBoard that show them.
        scalar: Whether they say that they are numbers.
    """

    tags: pa.Array
    plugins: pa.Array
    scalar: pa.Array


class Values(NamedTuple):
    """Some values of summaries.

    Attributes:
        tags: n tags.
        kinds: n kinds.
        numbers: n numbers; 0 where there is none.
        owners: m rows that texts are of.
        elements: m places of texts in their tensor.
        texts: m texts, as bytes.
        starts: m places where they begin.
        metadata: What some of the values say of their tag; of each tag once.
    """

    tags: pa.DictionaryArray
    kinds: Kinds
    numbers: npt.NDArray[np.float64]
    owners: Places
    elements: Places
    texts: pa.Array
    starts: Places
    metadata: Metadata


def read(buffer: Buffer, starts: Places, stops: Places) -> Values:
    """Read values: n places where messages begin and end in, and what they are out.

    Raises:
        Damage: One is no message.
    """
    n = len(starts)
    fields = decode(buffer, starts, stops, range(TAG, METADATA + 1))
    own, node = (texts.named(buffer, fields.get(f), n) for f in (TAG, NODE_NAME))
    tags = _without_nulls(first_of(own, node))
    kinds, numbers = np.full(n, Kind.NOTHING, np.uint8), np.zeros(n)
    written = _no_texts()
    for field, kind in _BYTES.items():
        kinds[_rows(fields.get(field), n)] = kind
    rows = _rows(fields.get(TENSOR), n)
    if len(rows):
        spans = fields[TENSOR].spans()
        read_ = tensors.read(buffer, *spans)
        kinds[rows] = np.select([read_.single, read_.texts], [Kind.NUMBER, Kind.TEXTS], Kind.TENSOR)
        numbers[rows] = read_.numbers
        holders = np.flatnonzero(read_.texts)
        written = _texts(buffer, rows[holders], *(s[holders] for s in spans))
    simple = fields.get(SIMPLE)
    if simple is not None and simple.stops is None:
        rows = np.arange(n) if simple.valid is None else np.flatnonzero(simple.valid)
        kinds[rows] = Kind.SIMPLE
        numbers[rows] = simple.values[rows].astype(np.uint32).view(np.float32)
    return Values(tags, kinds, numbers, *written, _metadata(buffer, fields.get(METADATA), tags))


def _rows(field: Field | None, n: int) -> Places:
    """Return the rows that have a field of bytes."""
    if field is None or field.stops is None:
        return np.zeros(0, np.int64)
    return np.arange(n) if field.valid is None else np.flatnonzero(field.valid)


def _without_nulls(tags: pa.DictionaryArray) -> pa.DictionaryArray:
    return tags.cast(pa.string()).fill_null("").dictionary_encode() if tags.null_count else tags


def _no_texts() -> Texts:
    none = np.zeros(0, np.int64)
    return none, none, pa.array([], pa.binary()), none


def _texts(buffer: Buffer, rows: Places, starts: Places, stops: Places) -> Texts:
    """Return the texts of some tensors: whose each is, its place there, its bytes, and where they begin."""
    if not len(rows):
        return _no_texts()
    (parts,) = occurrences(buffer, starts, stops, (tensors.STRINGS,))
    first = np.searchsorted(parts.rows, parts.rows)
    octets = cut(buffer.octets, np.stack((parts.starts, parts.stops), axis=1).reshape(-1))
    return rows[parts.rows], np.arange(len(parts)) - first, octets, parts.starts


def _metadata(buffer: Buffer, field: Field | None, tags: pa.DictionaryArray) -> Metadata:
    rows = _rows(field, len(tags))
    if field is None or not len(rows):
        return Metadata(pa.array([], pa.string()), pa.array([], pa.string()), pa.array([], pa.bool_()))
    codes = tags.indices.to_numpy()[rows]
    _, first = np.unique(codes, return_index=True)
    first.sort()
    starts, stops = (s[first] for s in field.spans())
    found = decode(buffer, starts, stops, {_PLUGIN, _CLASS})
    is_scalar = _is_scalar(found.get(_CLASS), len(first))
    plugins = _plugins(buffer, found.get(_PLUGIN), len(first))
    return Metadata(tags.dictionary.take(pa.array(codes[first])), plugins, pa.array(is_scalar))


def _is_scalar(field: Field | None, n: int) -> Mask:
    if field is None or field.stops is not None:
        return np.zeros(n, np.bool_)
    found: Mask = field.values == _SCALAR_CLASS
    return found


def _plugins(buffer: Buffer, field: Field | None, n: int) -> pa.Array:
    """Return the names of plug-ins of n values; empty where there is none."""
    rows = _rows(field, n)
    if field is None or not len(rows):
        return pa.array([""] * n, pa.string())
    starts, stops = field.spans()
    names = texts.named(buffer, decode(buffer, starts, stops, {_PLUGIN_NAME}).get(_PLUGIN_NAME), len(rows))
    places = np.full(n, -1)
    places[rows] = np.arange(len(rows))
    return pc.fill_null(names.cast(pa.string()).take(pa.array(places, mask=places < 0)), "")
