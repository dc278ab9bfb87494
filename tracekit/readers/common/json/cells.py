"""Convert a batch of parsed objects to arrays of numbers and strings with one element per object."""

from __future__ import annotations

import functools
import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.common.json.scanner import MISSING, NESTED, NUMBER, OTHER, STRING

if TYPE_CHECKING:
    from collections import Counter

    from tracekit.native.sandbox import Bytes
    from tracekit.readers.common.json.scanner import Int64Array, JsonScanner

MAX_DIGITS = 40
_ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))|\\')
_UNESCAPED_QUOTE = re.compile(r'(?<!\\)"')
_LOW, _HIGH = -(1 << 63), (1 << 63) - 1


class JsonCells:
    """The values of the JSON members in a batch of objects.

    The values are valid only until the sandbox parses the next batch.
    """

    def __init__(self, sandbox: JsonScanner, repairs: Counter[str], *, has_escapes: bool = True) -> None:
        """Create the cells of the objects in a sandbox.

        Args:
            sandbox: The sandbox with the parsed objects.
            repairs: Number of repaired strings by kind of repair, which is increased.
            has_escapes: Whether a backslash begins an escape. Some programs write backslashes without escapes.
        """
        self.rows = sandbox.rows
        self._has_escapes = has_escapes
        self._sandbox = sandbox
        self._values, self._types = sandbox.cell_values, sandbox.cell_types
        self._repairs = repairs

    def get_member_values(self, slot: int) -> Int64Array:
        """Return the value of a JSON member in each object: a number, or the dictionary code of a string or other JSON.

        For the slot ``NESTED``, the number combines the start and the end offset of the JSON text. The number has no
        meaning for objects whose type is ``MISSING`` in ``get_member_types``.
        """
        return self._values[slot, : self.rows]

    def get_member_types(self, slot: int) -> Bytes:
        """Return the type of a JSON member in each object: ``MISSING``, ``NUMBER``, ``STRING`` or ``OTHER``."""
        return self._types[slot, : self.rows]

    def has_member(self, slot: int) -> bool:
        """Return whether at least one object of the batch has the given JSON member."""
        return bool(self.get_member_types(slot).any())

    def get_string_codes(self, slot: int) -> Int64Array:
        """Return the dictionary code of the string that a JSON member contains in each object.

        The code is -1 if the member is missing or not a string.
        """
        return np.where(self.get_member_types(slot) == STRING, self.get_member_values(slot), -1)

    def find_string_indices(self, slot: int, names: pa.Array) -> Int64Array:
        """Return the index in ``names`` of the string that a JSON member contains in each object.

        The index is -1 if the member is missing or not a string, and -2 if ``names`` does not contain the string.
        """
        positions = pc.index_in(self.dictionary_strings, names).fill_null(-2).to_numpy(zero_copy_only=False)
        return np.append(positions, -1)[self.get_string_codes(slot)].astype(np.int64)

    def get_member_integers(self, slot: int, rows: Int64Array) -> pa.Array:
        """Return the integers that a JSON member contains in the given objects.

        A value is null if it is missing or not a number. Numbers in slots with the flag
        ``THOUSANDTHS`` are multiplied by 1000.
        """
        types = self.get_member_types(slot)[rows]
        if not types.any():
            return pa.nulls(len(rows), pa.int64())
        values = self.get_member_values(slot)[rows]
        unparsed = types > NUMBER
        if unparsed.any():
            values, types = self._parse_numbers(slot, values, types, unparsed)
        missing = types == MISSING
        return pa.array(values, pa.int64(), mask=missing if missing.any() else None)

    def get_member_strings(
        self, slot: int, rows: Int64Array, *, include_other_types: bool = False
    ) -> pa.DictionaryArray:
        """Return the strings that a JSON member contains in the given objects, null where the member is missing.

        Args:
            slot: The JSON member.
            rows: Row numbers of the objects in the batch.
            include_other_types: Whether to return the JSON text of values that are not strings. If it is False, these
                values are null.
        """
        types = self.get_member_types(slot)[rows]
        missing = (types != STRING) & (types != OTHER) if include_other_types else types != STRING
        if missing.all():
            return pa.nulls(len(rows), col.DICTIONARY)
        codes = pa.array(self.get_member_values(slot)[rows], pa.int64(), mask=missing)
        return col.compact_dictionary(codes, self.dictionary_strings)

    def format_nested_json(self, rows: Int64Array) -> pa.Array:
        """Return the JSON text of the object in the slot ``NESTED`` of each given object, or an empty string."""
        data, ends = self._sandbox.copy_json_ranges(
            np.where(self.get_member_types(NESTED)[rows], self.get_member_values(NESTED)[rows], 0)
        )
        json_texts = self._decode_strings(data, ends)
        if self._has_escapes:
            return json_texts
        return pc.replace_substring(pc.replace_substring(json_texts, "\\", "\\\\"), '\\\\"', '\\"')

    @functools.cached_property
    def dictionary_strings(self) -> pa.Array:
        """Strings of the batch, indexed by dictionary code. JSON escapes are decoded."""
        data, ends = self._sandbox.get_dictionary_bytes()
        strings = self._decode_strings(data, ends)
        if not (data == ord("\\")).any():
            return strings
        return pa.array([self._decode_json_escapes(s) if "\\" in s else s for s in strings.to_pylist()], pa.string())

    def _decode_strings(self, data: Bytes, ends: np.ndarray) -> pa.Array:
        offsets = np.concatenate([np.zeros(1, np.int32), ends])
        raw = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        strings, invalid = col.convert_to_strings(raw)
        self._repairs["UTF-8"] += invalid
        return strings

    def _decode_json_escapes(self, text: str) -> str:
        valid = _ESCAPE.sub(lambda m: m[1] or "\\\\", text)
        self._repairs["escapes"] += valid != text or not self._has_escapes
        if not self._has_escapes:
            return text if _UNESCAPED_QUOTE.search(text) else text.replace('\\"', '"')
        try:
            unescaped = json.loads(f'"{valid}"', strict=False)
        except ValueError:
            return text
        return str(unescaped).encode("utf-8", "replace").decode("utf-8")

    def _parse_numbers(
        self, slot: int, values: Int64Array, types: Bytes, unparsed: np.ndarray
    ) -> tuple[Int64Array, Bytes]:
        """Parse the numbers that the sandbox left as strings.

        Returns:
            All values and their types. The type of a value that is not a number becomes ``MISSING``.
        """
        codes, inverse = np.unique(values[unparsed], return_inverse=True)
        factor = 1000 if slot in self._sandbox.thousandths else 1
        parsed = [parse_integer(t, factor) for t in self.dictionary_strings.take(pa.array(codes)).to_pylist()]
        values, types = values.copy(), types.copy()
        values[unparsed] = np.array([m or 0 for m in parsed], np.int64)[inverse]
        types[unparsed] = np.array([MISSING if m is None else NUMBER for m in parsed], np.uint8)[inverse]
        return values, types


def parse_integer(text: str, factor: int = 1) -> int | None:
    """Parse a decimal number, multiply it by ``factor``, and round the product to an integer.

    If the factor is 1, numbers from 2^63 to 2^64 - 1 become the signed integer with the same 64 bits.

    Returns:
        The integer, or None if the string is not a number or the result does not fit into 64 bits.
    """
    if len(text) > MAX_DIGITS:
        return None
    try:
        number = Decimal(text) * factor
        if not number.is_finite() or number.adjusted() > MAX_DIGITS:
            return None
        value = int(number.to_integral_value())
    except (ArithmeticError, ValueError):
        return None
    if _HIGH < value < 1 << 64 and factor == 1:
        value -= 1 << 64
    return value if _LOW <= value <= _HIGH else None
