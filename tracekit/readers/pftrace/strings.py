"""Collect the strings of a trace, and look up the interned data of its packet sequences."""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import build_number_array, compact_dictionary, convert_to_strings
from tracekit.readers.common.protobuf.decoding import dictionary_encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Buffer, Int64Array, Mask

NO_STRING = -1
_LARGE = 1 << 31
_STRING_BYTES = 64


class TextPool:
    """All strings of a trace. Each has a code, and equal strings of different batches may have different codes."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._parts: list[pa.Array] = []
        self._starts: list[int] = []
        """Code of the first string of each part."""
        self._count = 0

    def add(self, buffer: Buffer, starts: Int64Array, stops: Int64Array) -> Int64Array:
        """Add strings in a buffer, whose offsets are ascending, and return their codes.

        Raises:
            Damage: The strings exceed the memory budget.
        """
        if not len(starts):
            return np.zeros(0, np.int64)
        encoded = dictionary_encode(buffer, starts, stops)
        return self._append(convert_to_strings(encoded.dictionary)[0], encoded.indices)

    def add_array(self, texts: pa.Array) -> Int64Array:
        """Add the strings of an array and return their codes. Those of nulls are ``NO_STRING``.

        Raises:
            Damage: The strings exceed the memory budget.
        """
        encoded = texts.dictionary_encode()
        codes = self._append(encoded.dictionary.cast(pa.string()), encoded.indices.fill_null(0))
        return np.where(texts.is_valid().to_numpy(zero_copy_only=False), codes, NO_STRING)

    def _append(self, strings: pa.Array, indices: pa.Array) -> Int64Array:
        self._budget.reserve(1, strings.nbytes + _STRING_BYTES * len(strings), "bytes of strings")
        codes: Int64Array = indices.to_numpy().astype(np.int64) + self._count
        if len(strings):
            self._parts.append(strings)
            self._starts.append(self._count)
            self._count += len(strings)
        return codes

    def get_texts(self, codes: Sequence[int]) -> list[str]:
        """Return the strings with some codes."""
        if not len(codes):
            return []
        numbers, inverse = np.unique(np.array(codes, np.int64), return_inverse=True)
        first = bisect.bisect_right(self._starts, int(numbers[0])) - 1
        starts = np.array(self._starts[first:], np.int64)
        parts = np.searchsorted(starts, numbers, side="right") - 1
        edges = [0, *(np.flatnonzero(parts[1:] != parts[:-1]) + 1).tolist(), len(numbers)]
        texts: list[str] = []
        for begin, stop in itertools.pairwise(edges):
            part = int(parts[begin])
            part_texts = self._parts[first + part].take(build_number_array(numbers[begin:stop] - starts[part]))
            texts.extend(part_texts.to_pylist())
        return [texts[place] for place in inverse.tolist()]

    def get_columns(self) -> TraceStrings:
        """Return the columns of strings that codes stand for. No string may be added afterwards."""
        strings = pa.chunked_array(self._parts, pa.string()).combine_chunks()
        distinct = strings.unique()
        return TraceStrings(distinct, pc.index_in(strings, distinct).to_numpy().astype(np.int64))


class TraceStrings:
    """The strings of a trace, as dictionary columns.

    Attributes:
        texts: The distinct strings.
        numbers: Index in ``texts`` of the string with each code.
    """

    def __init__(self, texts: pa.Array, numbers: Int64Array) -> None:
        self.texts = texts
        self.numbers = numbers

    def number(self, codes: np.ndarray) -> Int64Array:
        """Return the index in ``texts`` of the string with each code, or ``NO_STRING``."""
        if not len(self.numbers):
            return np.full(len(codes), NO_STRING, np.int64)
        return np.where(codes >= 0, self.numbers[np.maximum(codes, 0)], NO_STRING)

    def build(self, codes: np.ndarray, ignored: str | None = None) -> pa.DictionaryArray:
        """Return the string with each code as a dictionary column, null for ``NO_STRING`` and an ignored string."""
        numbers = self.number(codes)
        if ignored is not None:
            numbers = np.where(numbers == pc.index(self.texts, ignored).as_py(), NO_STRING, numbers)
        return compact_dictionary(build_number_array(np.maximum(numbers, 0), numbers >= 0), self.texts)


class InternedTable:
    """Numbers by the state of a sequence and an id, such as the codes of the interned names of events.

    The entries are in sorted runs. Each run is at least twice as long as the next, so that few have to be searched.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Int64Array, Int64Array]] = []
        self._large_ids: dict[int, int] = {}

    def add(self, states: Int64Array, ids: Int64Array, values: Int64Array) -> None:
        """Add entries. If an entry exists, the new one is ignored."""
        if not len(states):
            return
        keys = self._build_keys(states, ids)
        while self._runs and len(self._runs[-1][0]) < 2 * len(keys):
            earlier = self._runs.pop()
            keys, values = np.concatenate([earlier[0], keys]), np.concatenate([earlier[1], values])
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], values[order]
        is_first = np.append(True, keys[1:] != keys[:-1])
        self._runs.append((keys[is_first], values[is_first]))

    def look_up(self, states: Int64Array, ids: Int64Array, has_id: Mask) -> Int64Array:
        """Return the value of each id, or ``NO_STRING`` if there is none."""
        result = np.full(len(states), NO_STRING, np.int64)
        if not self._runs or not has_id.any():
            return result
        keys = self._build_keys(states, ids)
        missing = has_id
        for known, values in self._runs:
            places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            is_known = missing & (known[places] == keys)
            result[is_known] = values[places[is_known]]
            missing = missing & ~is_known
        return result

    def _build_keys(self, states: Int64Array, ids: Int64Array) -> Int64Array:
        """Combine states and ids to one number. The few ids beyond 31 bits are numbered in the order of occurrence."""
        is_large = (ids < 0) | (ids >= _LARGE)
        if is_large.any():
            ids = ids.copy()
            large = ids[is_large].tolist()
            ids[is_large] = [_LARGE + self._large_ids.setdefault(each, len(self._large_ids)) for each in large]
        return (states << 32) | ids
