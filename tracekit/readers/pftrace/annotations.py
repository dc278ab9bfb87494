"""Decode the debug annotations of events, and format them as JSON."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.protobuf.decoding import decode, find_occurrences
from tracekit.readers.common.protobuf.fields import join_strings_by_row, read_integers
from tracekit.readers.pftrace.interning import ANNOTATION_NAMES, STRING_VALUES, read_text_codes
from tracekit.readers.pftrace.strings import NO_STRING

if TYPE_CHECKING:
    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Int64Array, Mask
    from tracekit.readers.pftrace.interning import InternedData
    from tracekit.readers.pftrace.strings import TextPool

_NAME_IID, _BOOL, _UNSIGNED, _SIGNED, _DOUBLE, _TEXT, _POINTER = range(1, 8)
_JSON, _NAME, _ENTRIES, _ELEMENTS, _TEXT_IID = 9, 10, 11, 12, 17
_FIELDS = frozenset((_NAME_IID, _BOOL, _UNSIGNED, _SIGNED, _DOUBLE, _TEXT, _POINTER, _JSON, _NAME, _TEXT_IID))
_MAX_DEPTH = 32
_ANNOTATION_BYTES = 64
NO_VALUE, BOOL, UNSIGNED, SIGNED, DOUBLE, TEXT, POINTER, JSON = range(8)
"""Kinds of values of annotations. A value of bytes is the code of a string."""


class Annotations(NamedTuple):
    """Debug annotations of events, or members or elements of annotations.

    Attributes:
        owners: Index of the event or annotation that contains each annotation, in ascending order.
        names: Code of the name of each annotation, or ``NO_STRING``.
        kinds: Kind of the value of each annotation, such as ``DOUBLE``.
        values: Its value: an integer, the bits of a floating-point number, or the code of a string.
        starts: Start offset of each annotation.
        stops: End offset of each annotation.
    """

    owners: Int64Array
    names: Int64Array
    kinds: Int64Array
    values: Int64Array
    starts: Int64Array
    stops: Int64Array


class AnnotationDecoder:
    """Decoder of the annotations in a batch of packets."""

    def __init__(self, buffer: Buffer, interned: InternedData, pool: TextPool, budget: Budget) -> None:
        self._buffer = buffer
        self._interned = interned
        self._pool = pool
        self._budget = budget

    def decode(self, starts: Int64Array, stops: Int64Array, states: Int64Array, field: int) -> Annotations:
        """Decode the annotations in a repeated field of messages.

        Args:
            starts: Start offset of each message.
            stops: End offset of each message.
            states: State of the sequence of each message.
            field: Number of the field.

        Raises:
            Damage: An annotation is invalid, or the annotations exceed the memory budget.
        """
        (parts,) = find_occurrences(self._buffer, starts, stops, (field,))
        rows = len(parts)
        self._budget.check_temporary_memory(rows, _ANNOTATION_BYTES, "debug annotations")
        fields = decode(self._buffer, parts.starts, parts.stops, _FIELDS)
        of_state = states[parts.rows]
        names = self._look_up(fields, ANNOTATION_NAMES, _NAME_IID, of_state)
        inline = read_text_codes(self._pool, self._buffer, fields, _NAME, rows)
        kinds, values = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        for kind, number in (
            *((BOOL, _BOOL), (UNSIGNED, _UNSIGNED), (SIGNED, _SIGNED), (DOUBLE, _DOUBLE), (POINTER, _POINTER)),
        ):
            numbers, valid = read_integers(fields, number, rows)
            kinds[valid], values[valid] = kind, numbers[valid]
        for kind, codes in (
            (TEXT, read_text_codes(self._pool, self._buffer, fields, _TEXT, rows)),
            (TEXT, self._look_up(fields, STRING_VALUES, _TEXT_IID, of_state)),
            (JSON, read_text_codes(self._pool, self._buffer, fields, _JSON, rows)),
        ):
            valid = codes != NO_STRING
            kinds[valid], values[valid] = kind, codes[valid]
        names = np.where(inline != NO_STRING, inline, names)
        return Annotations(parts.rows, names, kinds, values, parts.starts, parts.stops)

    def format_json(self, annotations: Annotations, rows: int, states: Int64Array) -> pa.Array:
        """Return the annotations of each event as a JSON object, null for an event without annotations.

        Args:
            annotations: The annotations.
            rows: Number of events.
            states: State of the sequence of each event.

        Raises:
            Damage: An annotation is invalid, or the annotations exceed the memory budget.
        """
        members = pc.binary_join_element_wise(
            self._quote(annotations.names).fill_null('""'),
            self._format_values(annotations, states[annotations.owners], 0),
            ":",
        )
        return join_strings_by_row(rows, annotations.owners, members, "{}").combine_chunks()

    def _format_values(self, annotations: Annotations, states: Int64Array, depth: int) -> pa.Array:
        scalars = self._format_scalars(annotations)
        is_nested = annotations.kinds == NO_VALUE
        if depth >= _MAX_DEPTH or not is_nested.any():
            return scalars.fill_null("null")
        rows = np.flatnonzero(is_nested)
        nested = []
        for field, brackets in ((_ENTRIES, "{}"), (_ELEMENTS, "[]")):
            inner = self.decode(annotations.starts[rows], annotations.stops[rows], states[rows], field)
            values = (
                self._format_values(inner, states[rows][inner.owners], depth + 1)
                if len(inner.owners)
                else pa.array([], pa.string())
            )
            if field == _ENTRIES:
                values = pc.binary_join_element_wise(self._quote(inner.names).fill_null('""'), values, ":")
            nested.append(join_strings_by_row(len(rows), inner.owners, values, brackets).combine_chunks())
        texts = pc.coalesce(*nested)
        places = np.zeros(len(is_nested), np.int64)
        places[rows] = np.arange(len(rows))
        scattered = texts.take(build_number_array(places, is_nested))
        return pc.coalesce(scalars, scattered).fill_null("null")

    def _format_scalars(self, annotations: Annotations) -> pa.Array:
        """Return the JSON of the values that are no objects or arrays, and null for others."""
        kinds, values = annotations.kinds, annotations.values
        texts = [
            build_number_array(values, kinds == SIGNED).cast(pa.string()),
            build_number_array(values.view(np.uint64), (kinds == UNSIGNED) | (kinds == POINTER)).cast(pa.string()),
            pc.if_else(build_number_array(values, kinds == BOOL).cast(pa.bool_()), "true", "false"),
        ]
        if (kinds == DOUBLE).any():
            numbers, inverse = np.unique(values[kinds == DOUBLE], return_inverse=True)
            formatted = [json.dumps(n if math.isfinite(n) else str(n)) for n in numbers.view("<f8").tolist()]
            places = np.zeros(len(kinds), np.int64)
            places[kinds == DOUBLE] = inverse
            texts.append(pa.array(formatted, pa.string()).take(build_number_array(places, kinds == DOUBLE)))
        is_text = kinds == TEXT
        if is_text.any():
            texts.append(self._quote(np.where(is_text, values, NO_STRING)))
        if (kinds == JSON).any():
            texts.append(self._map(np.where(kinds == JSON, values, NO_STRING), _format_valid_json))
        return pc.coalesce(*texts)

    def _quote(self, codes: Int64Array) -> pa.Array:
        """Return the strings with some codes as JSON strings, null for ``NO_STRING``."""
        return self._map(codes, lambda text: json.dumps(text, ensure_ascii=False))

    def _map(self, codes: Int64Array, function: object) -> pa.Array:
        distinct, inverse = np.unique(codes, return_inverse=True)
        known = distinct[distinct != NO_STRING].tolist()
        texts = [function(text) for text in self._pool.get_texts(known)]  # type: ignore[operator]
        missing = [None] * (len(distinct) - len(known))
        return pa.array([*missing, *texts], pa.string()).take(build_number_array(inverse))

    def _look_up(self, fields: dict[int, Field], table: int, number: int, states: Int64Array) -> Int64Array:
        ids, has_id = read_integers(fields, number, len(states))
        return self._interned.texts[table].look_up(states, ids, has_id)


def _format_valid_json(text: str) -> str:
    """Return a text that is valid JSON, and other texts as JSON strings."""
    try:
        json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def select(annotations: Annotations, mask: Mask) -> Annotations:
    """Return the annotations for which a mask is True."""
    return Annotations(*(column[mask] for column in annotations))
