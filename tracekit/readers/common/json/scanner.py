"""Parse JSON objects in a sandbox that runs the program ``native/json.c``.

The program returns a number or a dictionary code for each object and requested member. It also descends into one
member, whose value is an object as well.
"""

from __future__ import annotations

import functools
import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.native.program import Program
from tracekit.native.sandbox import Sandbox
from tracekit.readers.common import columns as col
from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from tracekit.native.sandbox import Bytes

MAX_DIGITS = 40
_ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))|\\')
_UNESCAPED_QUOTE = re.compile(r'(?<!\\)"')
_LOW, _HIGH = -(1 << 63), (1 << 63) - 1
Int64Array: TypeAlias = npt.NDArray[np.int64]
StopReason: TypeAlias = int
SLOTS, ROWS = 64, 1 << 14
ENDED, NEED_MORE, ROWS_FULL, INVALID = range(4)
CAPACITY = 1 << 24
"""Maximum number of bytes of JSON in the sandbox, and therefore of one object."""
NESTED = 0
"""Slot of the member whose members are parsed as well. Its cell has the start and end offset of its JSON."""
THOUSANDTHS, AS_STRING = 1 << 8, 1 << 9
"""Flags of a slot whose numbers are multiplied by 1000, and of a slot whose numbers are left as strings."""
MISSING, NUMBER, STRING, OTHER = range(4)
"""Types of a cell, which contains no value, a number, the code of a string, or the code of another value's JSON."""
_KEY_COUNT = 512
_KEYS = 1024
"""Offset of the hash table of keys. An entry has 16 bytes: hash (8), size (4), and slot + 1 with flags (4)."""
_MAX_CODES = 1 << 16
_STRING_TABLE = 0x4000
_STRING_HASHES = _STRING_TABLE + 4 * _MAX_CODES
_STRING_STARTS = _STRING_HASHES + 8 * _MAX_CODES
_STRING_SIZES = _STRING_STARTS + 4 * _MAX_CODES
"""Offsets of the hash table of strings, whose entries are code + 1, and of the hash, start and size of each code."""
_CELLS = 0x150000
_TYPES = _CELLS + 8 * SLOTS * ROWS
"""Offsets of the values (64 bits each) and of their types (8 bits each), both ordered by slot and row."""
INPUT = 0xC00000
_SLACK = 64
_RANGES = INPUT + CAPACITY + _SLACK
_ENDS = _RANGES + 8 * _MAX_CODES
_OUT = _ENDS + 4 * _MAX_CODES
"""Offsets of the ranges to concatenate (64 bits each), of their ends in the output, and of the output itself."""
PROGRAM = Program(
    "json",
    {
        "objects": ("offset", "end", "rows", "max_rows", "strings", "examined"),
        "skip": ("offset", "end", "depth", "in_string"),
        "hash": ("offset", "size", "level", "output"),
        "gather": ("count", "ranges", "ends", "output"),
    },
    {
        "ENDED": ENDED,
        "MORE": NEED_MORE,
        "FULL": ROWS_FULL,
        "INVALID": INVALID,
        "SLOTS": SLOTS,
        "ROWS": ROWS,
        "SLOT_MASK": THOUSANDTHS - 1,
        "THOUSANDTHS": THOUSANDTHS,
        "AS_STRING": AS_STRING,
        "MISSING": MISSING,
        "NUMBER": NUMBER,
        "STRING": STRING,
        "OTHER": OTHER,
        "KEYS": _KEYS,
        "KEY_MASK": _KEY_COUNT - 1,
        "STRING_TABLE": _STRING_TABLE,
        "STRING_TABLE_MASK": _MAX_CODES - 1,
        "STRING_HASHES": _STRING_HASHES,
        "STRING_STARTS": _STRING_STARTS,
        "STRING_SIZES": _STRING_SIZES,
        "MAX_PROBES": 32,
        "MAX_STRINGS": 60_000,
        "ENOUGH_STRINGS": 50_000,
        "CELLS": _CELLS,
        "TYPES": _TYPES,
    },
)


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
            include_other_types: Whether to return the JSON text of values that are not strings, except null. If it is
                False, these values are null.
        """
        types, values = self.get_member_types(slot)[rows], self.get_member_values(slot)[rows]
        missing = types != STRING
        if include_other_types and (is_other := types == OTHER).any():
            missing &= ~is_other | (values == pc.index(self.dictionary_strings, "null").as_py())
        if missing.all():
            return pa.nulls(len(rows), col.DICTIONARY)
        return col.compact_dictionary(pa.array(values, pa.int64(), mask=missing), self.dictionary_strings)

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


class SkipResult(NamedTuple):
    """The state in which skipping a value stopped.

    Attributes:
        is_incomplete: Whether the end of the value was not reached.
        depth: Number of brackets that are still open.
        in_string: Whether skipping stopped inside a string.
    """

    is_incomplete: bool
    depth: int
    in_string: bool


class JsonScanner(Sandbox):
    """A sandbox that contains a section of JSON and the objects that were parsed from it.

    Attributes:
        data: The memory that contains the JSON.
        offset: Offset of the first byte in ``data`` that has not been parsed.
        end: Offset of the end of the JSON in ``data``.
        rows: Number of parsed objects.
        scanned: Offset up to which the parser examined an invalid object.
        thousandths: Slots whose numbers are multiplied by 1000.
    """

    def __init__(self, keys: Mapping[tuple[int, str], int]) -> None:
        """Create a sandbox without JSON.

        Args:
            keys: The slot in which the value of each member is stored, by level and key. The level is 0 for members
                of an object, and 1 for members of the object in its slot ``NESTED``. Several keys may have the same
                slot. A slot may be combined with the flags ``THOUSANDTHS`` and ``AS_STRING``.
        """
        super().__init__(PROGRAM, _OUT + CAPACITY, lambda: Damage("a JSON object extends beyond the end of the input"))
        self.data = self.bytes(INPUT, CAPACITY + _SLACK)
        self.offset = self.end = self.rows = self.scanned = self._codes = 0
        self.thousandths = frozenset(slot & (SLOTS - 1) for slot in keys.values() if slot & THOUSANDTHS)
        for (level, key), slot in keys.items():
            self._register_key(level, key.encode(), slot)

    @property
    def cell_values(self) -> Int64Array:
        """Matrix with one row per JSON member and one column per object: the number or dictionary code of the value."""
        return self.array(_CELLS, SLOTS * ROWS, np.int64).reshape(SLOTS, ROWS)

    @property
    def cell_types(self) -> Bytes:
        """Matrix with one row per JSON member and one column per object: the type of the value, such as ``NUMBER``."""
        return self.bytes(_TYPES, SLOTS * ROWS).reshape(SLOTS, ROWS)

    def append_json(self, json: bytes) -> None:
        """Append JSON to the bytes that have not been parsed yet. The sandbox must not contain rows."""
        rest = self.end - self.offset
        self.data[:rest] = self.data[self.offset : self.end].copy()
        self.data[rest : rest + len(json)] = np.frombuffer(json, np.uint8)
        self.offset, self.end = 0, rest + len(json)
        self.data[self.end : self.end + _SLACK] = 0

    def replace_json(self, json: bytes) -> bool:
        """Replace the bytes that have not been parsed yet. Return False if the new bytes do not fit.

        The sandbox must not contain rows.
        """
        if len(json) > CAPACITY:
            return False
        self.offset = self.end = 0
        self.append_json(json)
        return True

    @property
    def free_bytes(self) -> int:
        """Number of bytes of JSON that can be appended."""
        return CAPACITY - (self.end - self.offset)

    def clear_rows(self) -> None:
        """Remove all rows and dictionary strings."""
        self.rows = self._codes = 0
        self.bytes(_STRING_TABLE, 4 * _MAX_CODES)[:] = 0
        self.bytes(_TYPES, SLOTS * ROWS)[:] = 0

    def parse_objects(self) -> StopReason:
        """Parse the next objects, and return the reason why parsing stopped.

        Returns:
            ``ENDED`` if the array of objects ends, ``NEED_MORE`` if the next object is incomplete, ``ROWS_FULL`` if
            there is no space for more rows or strings, or ``INVALID`` if the next object is invalid.
        """
        bounds = {"offset": INPUT + self.offset, "end": INPUT + self.end}
        result = self.call("objects", rows=self.rows, max_rows=ROWS, strings=self._codes, **bounds)
        self.offset = self.parameter("objects", "offset") - INPUT
        self.rows, self._codes = self.parameter("objects", "rows"), self.parameter("objects", "strings")
        self.scanned = max(self.parameter("objects", "examined") - INPUT, self.offset)
        return result

    def skip_value(self, depth: int = 0, *, in_string: bool = False) -> SkipResult:
        """Advance past the remaining bytes of an object, array or string.

        Args:
            depth: Number of brackets that are open at the current offset.
            in_string: Whether the current offset is inside a string.
        """
        bounds = {"offset": INPUT + self.offset, "end": INPUT + self.end}
        unfinished = bool(self.call("skip", depth=depth, in_string=int(in_string), **bounds))
        self.offset = self.parameter("skip", "offset") - INPUT
        return SkipResult(unfinished, self.parameter("skip", "depth"), bool(self.parameter("skip", "in_string")))

    def get_dictionary_bytes(self) -> tuple[Bytes, npt.NDArray[np.int32]]:
        """Return the concatenated bytes of all dictionary strings, and the offset at which each string ends."""
        starts, sizes = (self.array(offset, self._codes, np.int32) for offset in (_STRING_STARTS, _STRING_SIZES))
        return self.copy_json_ranges(starts.astype(np.int64) | ((starts + sizes).astype(np.int64) << 32))

    def copy_json_ranges(self, ranges: Int64Array) -> tuple[Bytes, npt.NDArray[np.int32]]:
        """Copy ranges of the JSON, and return their concatenated bytes and the offset at which each copy ends.

        A range is one integer with its start in the lower 32 bits and its end in the upper 32 bits.
        """
        self.array(_RANGES, len(ranges), np.int64)[:] = ranges
        size = self.call("gather", count=len(ranges), ranges=_RANGES, ends=_ENDS, output=_OUT)
        return self.bytes(_OUT, size).copy(), self.array(_ENDS, len(ranges), np.int32).copy()

    def _register_key(self, level: int, key: bytes, slot: int) -> None:
        self.data[: len(key)] = np.frombuffer(key, np.uint8)
        self.call("hash", offset=INPUT, size=len(key), level=level, output=_OUT)
        key_hash = int(self.array(_OUT, 1, np.uint64)[0])
        table = self.array(_KEYS, 4 * _KEY_COUNT, np.uint32).reshape(_KEY_COUNT, 4)
        row = key_hash % _KEY_COUNT
        while table[row, 3]:
            row = (row + 1) % _KEY_COUNT
        table[row] = (key_hash & 0xFFFFFFFF, key_hash >> 32, len(key), slot + 1)
