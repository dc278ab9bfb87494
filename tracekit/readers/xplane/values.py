"""Decode the values (``XStat``) of events, of planes and of the metadata of events."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import DICTIONARY, build_number_array, compact_dictionary
from tracekit.readers.common.protobuf.decoding import Occurrences, decode, find_occurrences
from tracekit.readers.common.protobuf.fields import read_integers, read_spans, read_strings
from tracekit.readers.xplane.space import METADATA_NAME

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask
    from tracekit.readers.xplane.space import EventBatch, KnownValues, Plane

EVENT_VALUES, METADATA_VALUES = 4, 5
"""Numbers of the fields that contain the values of an event, and of the metadata of events."""
_ID, _DOUBLE, _UNSIGNED, _SIGNED, _TEXT, _BYTES, _REFERENCE = range(1, 8)
_NUMBERS = (_UNSIGNED, _SIGNED)


class EventValues:
    """The values of a batch of messages of a plane.

    Attributes:
        rows: Index of the message of each value, in ascending order.
    """

    def __init__(self, plane: Plane, encoded: Occurrences, owners: int) -> None:
        """Decode values.

        Args:
            plane: The plane, which contains the names of the values.
            encoded: The encoded values, and the index of the message of each value.
            owners: Number of messages.
        """
        self._plane = plane
        self._owners = owners
        self._encoded = encoded
        self.rows = encoded.rows
        self._fields = decode(plane.buffer, encoded.starts, encoded.stops, set(range(_ID, _REFERENCE + 1)))
        ids, _ = read_integers(self._fields, _ID, len(encoded))
        self._names, self._is_named = plane.value_names.find(ids)

    @classmethod
    def of_messages(cls, plane: Plane, starts: Int64Array, stops: Int64Array, field: int) -> EventValues:
        """Decode the values in a field of encoded messages."""
        (encoded,) = find_occurrences(plane.buffer, starts, stops, (field,))
        return cls(plane, encoded, len(starts))

    @classmethod
    def of_events(cls, plane: Plane, events: EventBatch) -> EventValues | KnownValues:
        """Decode the values of a batch of events, unless they are known already."""
        if events.values is not None:
            return events.values
        return cls.of_messages(plane, events.encoded.starts, events.encoded.stops, EVENT_VALUES)

    @classmethod
    def of_plane(cls, plane: Plane) -> EventValues:
        """Decode the values of a plane itself."""
        return cls(plane, plane.values, 1)

    def get_integers(self, name: str) -> tuple[Int64Array, Mask]:
        """Return the integer value with a name of each message, and a mask of the messages that have one.

        Unsigned numbers from 2^63 are two's complements.
        """
        result, valid = np.zeros(self._owners, np.int64), np.zeros(self._owners, np.bool_)
        rows = self._find(name)
        for number in _NUMBERS if len(rows) else ():
            numbers, has_number = self._take_integers(number, rows)
            owners = self.rows[rows[has_number]]
            result[owners], valid[owners] = numbers[has_number], True
        return result, valid

    def get_doubles(self, name: str) -> tuple[npt.NDArray[np.float64], Mask]:
        """Return the floating-point value with a name of each message, and a mask of the messages that have one."""
        result, valid = np.zeros(self._owners, np.float64), np.zeros(self._owners, np.bool_)
        rows = self._find(name)
        numbers, has_number = self._take_integers(_DOUBLE, rows)
        owners = self.rows[rows[has_number]]
        result[owners], valid[owners] = numbers[has_number].view(np.float64), True
        return result, valid

    def get_strings(self, name: str) -> pa.DictionaryArray:
        """Return the string value with a name of each message, null for messages that have none."""
        rows = self._find(name)
        if not len(rows):
            return pa.nulls(self._owners, DICTIONARY)
        texts = self._read_strings(rows)
        positions, valid = np.zeros(self._owners, np.int64), np.zeros(self._owners, np.bool_)
        positions[self.rows[rows]] = np.arange(len(rows))
        valid[self.rows[rows]] = True
        return compact_dictionary(texts.indices.take(build_number_array(positions, valid)), texts.dictionary)

    def get_bytes(self, name: str) -> list[memoryview]:
        """Return the bytes of all values with a name, in the order of messages."""
        return [self._plane.buffer.data.data[start:stop] for _, start, stop in self.find_bytes(name)]

    def find_bytes(self, name: str) -> list[tuple[int, int, int]]:
        """Return the message, start offset and end offset of all values of bytes with a name."""
        starts, stops, valid = read_spans(self._fields, _BYTES, len(self.rows))
        rows = self._find(name)
        rows = rows[valid[rows]]
        columns = (self.rows[rows], starts[rows], stops[rows])
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def find_texts(self, name: str) -> list[tuple[int, int]]:
        """Return the start and end offset of all strings with a name, which the values contain or refer to."""
        rows = self._find(name)
        starts, stops, valid = read_spans(self._fields, _TEXT, len(self.rows))
        inline = rows[valid[rows]]
        references, is_reference = self._take_integers(_REFERENCE, rows)
        positions, known = self._plane.value_names.find(references[is_reference])
        metadata = self._plane.value_names.metadata
        used = np.sort(positions[known])
        order = used[np.argsort(metadata.starts[used], kind="stable")]
        fields = decode(self._plane.buffer, metadata.starts[order], metadata.stops[order], {METADATA_NAME})
        begins, ends, has_name = read_spans(fields, METADATA_NAME, len(order))
        first = np.append(starts[inline], begins[has_name])
        last = np.append(stops[inline], ends[has_name])
        return [*zip(first.tolist(), last.tolist(), strict=True)]

    def has(self, name: str) -> Mask:
        """Return a mask of the messages that have a value with a name."""
        valid = np.zeros(self._owners, np.bool_)
        valid[self.rows[self._find(name)]] = True
        return valid

    def to_json(self, ignored: Collection[str], is_selected: Mask) -> pa.Array:
        """Return the values of each message as a JSON object, null for messages without values.

        Args:
            ignored: Names of values to omit.
            is_selected: Mask of the messages. The result is null for other messages.
        """
        rows = np.flatnonzero(self._is_named & is_selected[self.rows])
        for mask in map(self._plane.find_value_names, ignored):
            rows = rows if mask is None else rows[~mask[self._names[rows]]]
        keys = self._plane.json_keys.take(build_number_array(self._names[rows]))
        members = pc.binary_join_element_wise(keys, self._encode_as_json(rows), "")
        owners = self.rows[rows]
        edges = np.searchsorted(owners, np.arange(self._owners + 1)).astype(np.int32)
        has_members = edges[1:] > edges[:-1]
        offsets = pa.array(edges, mask=np.append(~has_members, False))
        objects = pc.binary_join(pa.ListArray.from_arrays(offsets, members), ",")
        return pc.binary_join_element_wise("{", objects, "}", "")

    def _encode_as_json(self, rows: Int64Array) -> pa.Array:
        """Return the values with the given indices as JSON. Bytes are null."""
        signed, is_signed = self._take_integers(_SIGNED, rows)
        unsigned, is_unsigned = self._take_integers(_UNSIGNED, rows)
        doubles, is_double = self._take_integers(_DOUBLE, rows)
        numbers = [json.dumps(n if math.isfinite(n) else str(n)) for n in doubles[is_double].view("<f8").tolist()]
        positions = np.cumsum(is_double) - 1
        texts = self._read_strings(rows)
        quoted = pa.array([json.dumps(text) for text in texts.dictionary.to_pylist()], pa.string())
        return pc.coalesce(
            build_number_array(signed, is_signed).cast(pa.string()),
            build_number_array(unsigned.view(np.uint64), is_unsigned).cast(pa.string()),
            pa.array(numbers, pa.string()).take(build_number_array(np.maximum(positions, 0), is_double)),
            quoted.take(texts.indices),
            pa.scalar("null"),
        )

    def _find(self, name: str) -> Int64Array:
        """Return the indices of the values with a name."""
        mask = self._plane.find_value_names(name)
        return np.zeros(0, np.int64) if mask is None else np.flatnonzero(self._is_named & mask[self._names])

    def _take_integers(self, number: int, rows: Int64Array) -> tuple[Int64Array, Mask]:
        field = self._fields.get(number)
        return read_integers({} if field is None else {number: field.take(rows)}, number, len(rows))

    def _read_strings(self, rows: Int64Array) -> pa.DictionaryArray:
        """Return the strings of the values with the given indices, which the values contain or refer to."""
        references, is_reference = self._take_integers(_REFERENCE, rows)
        positions, known = self._plane.value_names.find(references)
        field = self._fields.get(_TEXT)
        used, positions = np.unique(np.where(is_reference & known, positions, 0), return_inverse=True)
        texts = self._plane.value_names.texts
        texts = texts.take(build_number_array(used)) if len(texts) else texts
        inline = read_strings(self._plane.buffer, None if field is None else field.take(rows), len(rows))
        encoded = inline.dictionary_encode()
        codes = np.where(is_reference, positions, encoded.indices.fill_null(0).to_numpy() + len(texts))
        valid = (is_reference & known) | inline.is_valid().to_numpy(zero_copy_only=False)
        names = pa.concat_arrays([texts, encoded.dictionary])
        return pa.DictionaryArray.from_arrays(build_number_array(codes.astype(np.int32), valid), names)


def concatenate_dictionaries(batches: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    """Join dictionary columns into one, whose dictionary has no value twice."""
    chunked = pa.chunked_array(batches, pa.dictionary(pa.int32(), pa.string())).unify_dictionaries()
    return chunked.combine_chunks().chunk(0) if chunked.num_chunks else pa.nulls(0, chunked.type)
