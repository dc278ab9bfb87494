"""Read pickles without calling or importing anything.

A pickle is a program for a small stack machine, and some of its opcodes call any function of any module. This module
runs only the opcodes that build plain values: None, booleans, numbers, strings, bytes, lists, dictionaries, tuples and
sets. All other opcodes raise an error that names what the pickle would have called.

The opcodes are decoded in a sandbox, into *cells*. A cell is a 64-bit number: a tag in its lowest bits, and a payload,
which is an integer, or the index of a number, a string or a container. Equal sequences of cells are stored once, so a
list that is repeated in a pickle takes no more memory. Columns are extracted from the cells of many containers at once.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.native.arrays import ArraySandbox
from tracekit.native.program import Program
from tracekit.readers.common.columns import build_number_array, decode_dictionary
from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.system.files import InputFile

CellArray: TypeAlias = npt.NDArray[np.uint64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

LATEST_PROTOCOL: Final = 5
_TAG_BITS: Final = 5
_TAGS: Final = (
    *("MISSING", "NONE", "FALSE", "TRUE", "INTEGER", "WIDE", "UNSIGNED", "HUGE", "REAL", "REAL_TEXT", "STRING"),
    *("BYTES", "LIST", "DICT", "SET", "TUPLE", "FROZEN_SET"),
)
"""Tags of cells. ``MISSING`` is no value. Tags from ``LIST`` on are containers."""
MISSING, NONE, FALSE, TRUE, INTEGER, WIDE, UNSIGNED, HUGE, REAL, REAL_TEXT, STRING, BYTES = range(12)
LIST, DICT, SET, TUPLE, FROZEN_SET = range(12, 17)
_RESULTS: Final = (
    *("DONE", "STOPPED", "MORE", "FULL", "FULL_MEMO", "NO_MEMO", "EMPTY", "WRONG_TYPE"),
    *("BAD_NUMBER", "BAD_OPCODE", "LONG_STRING", "LONG_FRAME", "OLD_STRING", "PROTOCOL", "CALL"),
)
_STATE: Final = (
    *("TOP", "MARKS", "CELLS", "NUMBERS", "STRINGS", "TEXT_BYTES", "RECORDS", "MEMOIZED", "OCCURRENCES"),
    *("STACK_CAPACITY", "MARK_CAPACITY", "CELL_CAPACITY", "NUMBER_CAPACITY", "STRING_CAPACITY", "TEXT_CAPACITY"),
    *("RECORD_CAPACITY", "MEMO_CAPACITY", "OCCURRENCE_CAPACITY", "STRING_SLOTS", "SPAN_SLOTS", "LARGEST_STRING"),
    *("RECORD_STRINGS", "FILE_BYTES"),
)
_RECORD: Final = ("SPAN", "KEYS", "COUNT", "NEXT", "LAST")
_ENCODINGS: Final = ("UTF8", "LATIN1", "ESCAPED", "BINARY")
_STRING_WORDS, _LONGEST_LINE, _WIDTH_UNIT = 3, 1 << 16, 1 << 26
_MACHINE_WORDS: Final = 64
_TAG_MASK: Final = (1 << _TAG_BITS) - 1
_CAPACITIES: Final = (
    *(("STACK", "stack", 1), ("MARK", "marks", 1), ("CELL", "cells", 1), ("NUMBER", "numbers", 1)),
    *(("STRING", "strings", _STRING_WORDS), ("TEXT", "text", 1), ("RECORD", "records", len(_RECORD))),
    *(("MEMO", "memo", 1), ("OCCURRENCE", "occurrences", 2)),
)
"""Names of arrays in the state and in memory, and the number of values that an element takes."""


def _number(names: Sequence[str]) -> dict[str, int]:
    return {name: n for n, name in enumerate(names)}


PROGRAM: Final = Program(
    "pickle",
    {"read": ("size", "position"), "items": ("record", "capacity", "count")},
    {
        **_number(_TAGS),
        **_number(_RESULTS),
        **_number(_STATE),
        **_number(_RECORD),
        **_number(_ENCODINGS),
        "TAG_BITS": _TAG_BITS,
        "RECORD_WORDS": len(_RECORD),
        "STRING_WORDS": _STRING_WORDS,
        "LONGEST_LINE": _LONGEST_LINE,
        "WIDTH_UNIT": _WIDTH_UNIT,
        "LATEST_PROTOCOL": LATEST_PROTOCOL,
    },
    {
        "read": {
            **dict.fromkeys(
                ("state", "machine", "marks", "records", "strings", "string_table", "span_table"), np.uint32
            ),
            **dict.fromkeys(("stack", "memo", "cells", "numbers"), np.uint64),
            **dict.fromkeys(("input", "text"), np.uint8),
            "occurrences": np.uint32,
        }
    },
)
_BUILDERS: Final[dict[int, Callable[[list[Any]], Any]]] = {LIST: list, SET: set, TUPLE: tuple, FROZEN_SET: frozenset}
_WINDOW_BYTES: Final = 1 << 22
_LARGEST_STRING: Final = _WINDOW_BYTES - 64
"""Bytes of the file that are decoded at a time, and of the longest string that can be read."""
_UNIT_BYTES: Final = 400 << 20
_SECTION_OF_FRAME, _BYTES_OF_FRAME = 0, 9
_MAX_DEPTH, _MAX_SHAPES, _MAX_RECORDS, _MAX_NAME = 100, 1000, 64, 200
_OBJECT_BYTES: Final = 200
_CALLS: Final = {
    ord("R"): "a function",
    ord("b"): "the method __setstate__",
    ord("o"): "a class",
    0x81: "the method __new__ of a class",
    0x92: "the method __new__ of a class",
    **dict.fromkeys((0x82, 0x83, 0x84), "a function of the extension registry"),
    **dict.fromkeys((ord("P"), ord("Q")), "the function persistent_load"),
    **dict.fromkeys((0x97, 0x98), "the provider of a buffer outside of the pickle"),
}
"""What each opcode that is not run would have called, except for those that name it."""
_GLOBAL, _INSTANCE, _STACK_GLOBAL = ord("c"), ord("i"), 0x93
_MESSAGES: Final = {
    "FULL": "the values of the pickle exceed the memory that tracekit allows for a file of this size",
    "NO_MEMO": "a value is used that was not stored before",
    "FULL_MEMO": "the number of a stored value is too large for a file of this size",
    "EMPTY": "an opcode needs more values than there are",
    "WRONG_TYPE": "an opcode is applied to a value of another type",
    "BAD_NUMBER": "a number or a string is invalid",
    "BAD_OPCODE": "the byte is no opcode of a pickle",
    "LONG_STRING": "a length exceeds the file, or the maximum size of a string",
    "PROTOCOL": f"the protocol is not one of 0 to {LATEST_PROTOCOL}",
    "LONG_FRAME": "the pickle is truncated: a frame is longer than the file",
    "OLD_STRING": "a string is binary, or has the form of protocol 0 or of Python 2, and cannot be replaced",
}


def read_pickle(file: InputFile, budget: Budget) -> Values:
    """Decode the first pickle of a file.

    Raises:
        Damage: The file is not a pickle, is truncated or damaged, contains anything but plain values, or is too large.
        MemoryError: The memory cannot be allocated.
    """
    decoder = _Decoder(file.size, budget)
    for _ in decoder.decode(file):
        pass
    return Values(decoder, budget)


def edit_strings(file: InputFile, budget: Budget, edit: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """Yield the bytes of a pickle in sections, with each string replaced by the result of a function.

    Frames, whose sizes would change, are left out. They are optional. Bytes after the pickle are left out, too.

    Args:
        file: The pickle.
        budget: Memory budget for decoding.
        edit: Function that receives a string in UTF-8 and returns its replacement.

    Raises:
        Damage: As for ``read_pickle``, or a string is binary, or has the form of protocol 0 or of Python 2.
    """
    decoder = _Decoder(file.size, budget, occurrences=_WINDOW_BYTES)
    for section, places in decoder.decode(file):
        at, output = 0, bytearray()
        for place, size in places.tolist():
            offset, width = place & (_WIDTH_UNIT - 1), place // _WIDTH_UNIT
            if width == _SECTION_OF_FRAME:
                output += section[at : offset - _BYTES_OF_FRAME]
                at = offset
                continue
            string = section[offset : offset + size]
            replacement = edit(string)
            if replacement != string:
                output += section[at : offset - width - 1] + b"X" + struct.pack("<I", len(replacement)) + replacement
                at = offset + size
        yield bytes(output + section[at:])


class _Decoder:
    """Decodes a pickle in a sandbox.

    Attributes:
        arrays: The arrays of the program.
        position: Offset in the file after the last opcode that was run.
    """

    def __init__(self, size: int, budget: Budget, occurrences: int = 0) -> None:
        self._sandbox = ArraySandbox(PROGRAM)
        self._size = size
        self.position = 0
        sizes = _choose_sizes(size, occurrences)
        budget.check_temporary_memory(1, size, "bytes of a pickle")
        self.arrays = self._sandbox.allocate("read", **sizes)  # the memory is new, and contains zeros
        self._state = self.arrays["state"]
        capacities = {
            **{f"{name}_CAPACITY": sizes[array] // words for name, array, words in _CAPACITIES},
            "STRING_SLOTS": sizes["string_table"],
            "SPAN_SLOTS": sizes["span_table"] // 2,
            "RECORDS": 1,  # record 0 is none
            "LARGEST_STRING": _LARGEST_STRING,
            "RECORD_STRINGS": int(occurrences > 0),
        }
        for name, value in capacities.items():
            self._state[_STATE.index(name)] = value
        self._state[_STATE.index("FILE_BYTES") :].view(np.uint64)[0] = size

    def get_state(self, name: str) -> int:
        """Return a number of the state of the program."""
        return int(self._state[_STATE.index(name)])

    def decode(self, file: InputFile) -> Iterator[tuple[bytes, npt.NDArray[np.uint32]]]:
        """Decode the pickle, and yield its sections with the places and sizes of the strings in them."""
        result = "MORE"
        while result == "MORE":
            window = file.read(self.position, min(_WINDOW_BYTES, self._size - self.position))
            self.arrays["input"][: len(window)] = np.frombuffer(window, np.uint8)
            self._state[_STATE.index("OCCURRENCES")] = 0
            result = _RESULTS[self._sandbox.call("read", size=len(window))]
            consumed = self._sandbox.parameter("read", "position")
            if result not in ("MORE", "STOPPED"):
                raise Damage(self._describe(result, window[consumed:], self.position + consumed))
            if result == "MORE" and not consumed:
                raise Damage(f"the pickle is truncated: it ends within the opcode at offset {self.position:,}")
            self.position += consumed
            if result == "MORE" and self.position == self._size:
                raise Damage(f"the pickle is truncated: it has no end after {self._size:,} bytes")
            places = self.arrays["occurrences"][: 2 * self.get_state("OCCURRENCES")].reshape(-1, 2)
            yield window[:consumed], places

    def read_items(self, record: int) -> Iterator[CellArray]:
        """Yield the items of a container in sections, which become invalid with the next one. Destroys the stack."""
        capacity = len(self.arrays["stack"])
        while record:
            self._sandbox.call("items", record=record, capacity=capacity)
            count, record = (self._sandbox.parameter("items", name) for name in ("count", "record"))
            if not count and record:  # no record is larger than the stack that it came from
                raise Damage("a container of the pickle is too large")
            yield self.arrays["stack"][:count]

    def _describe(self, result: str, rest: bytes, position: int) -> str:
        """Describe why an opcode was not run.

        Args:
            result: Result of the program.
            rest: Bytes from the opcode on.
            position: Offset of the opcode in the file.
        """
        place = f"opcode {rest[0]:#04x} at offset {position:,}"
        if result != "CALL":
            return f"{_MESSAGES[result]} ({place})"
        code, name = rest[0], ""
        if code in (_GLOBAL, _INSTANCE):
            name = ".".join(line.decode("utf-8", "replace") for line in rest[1 : 2 * _MAX_NAME].split(b"\n")[:2])
        elif code == _STACK_GLOBAL and (top := self.get_state("TOP")) > 1:
            cells = self.arrays["stack"][top - 2 : top]
            strings = _Strings(self)
            name = ".".join(strings.get(int(c) >> _TAG_BITS) for c in cells if int(c) & _TAG_MASK == STRING)
        called = "".join(c if c.isprintable() else "?" for c in name[:_MAX_NAME]) or _CALLS.get(code, "a function")
        return (
            f"the pickle is not plain data: it would call {called} ({place}). "
            "tracekit never runs code from a file, so nothing was called"
        )


def _choose_sizes(size: int, occurrences: int) -> dict[str, int]:
    """Return the number of values of each array for a file of a given size.

    Small files have room for the worst case. For large files, the arrays are proportional to the file, up to the memory
    of a sandbox. The operating system allocates memory only for what is used.
    """
    unit = min(size, _UNIT_BYTES)
    slots = 1 << max(10, (unit // 32).bit_length())
    return {
        "state": len(_STATE) + 1,  # the size of the file, which is the last number, has 64 bits
        "machine": _MACHINE_WORDS,
        "marks": 1 << 16,
        "stack": max(min(size, 1 << 20), unit // 8) + 8,
        "memo": max(min(size, 1 << 20), unit // 8) + 8,
        "cells": max(min(2 * size, 1 << 22), unit // 2) + 8,
        "numbers": max(min(size, 1 << 18), unit // 16) + 8,
        "records": len(_RECORD) * (max(min(size, 1 << 20), unit // 16) + 8),
        "strings": _STRING_WORDS * (max(min(size, 1 << 18), unit // 32) + 8),
        "string_table": min(slots, 1 << 20),
        "span_table": 2 * min(slots, 1 << 22),
        "input": min(size, _WINDOW_BYTES) + 64,
        "text": unit + 64,
        "occurrences": 2 * min(occurrences, size),
    }


class _Strings:
    """The strings of a pickle, decoded when they are used."""

    def __init__(self, decoder: _Decoder) -> None:
        self._places = decoder.arrays["strings"].reshape(-1, _STRING_WORDS)
        self._text = decoder.arrays["text"]
        self.count = decoder.get_state("STRINGS")

    def get_bytes(self, index: int) -> bytes:
        """Return the bytes of a string."""
        offset, size, _ = self._places[index].tolist()
        return self._text[offset : offset + size].tobytes()

    def get(self, index: int) -> str:
        """Return a string, in which invalid characters are replaced."""
        data, encoding = self.get_bytes(index), _ENCODINGS[int(self._places[index][2])]
        if encoding == "LATIN1":
            return data.decode("latin-1")
        try:
            text = data.decode("raw_unicode_escape" if encoding == "ESCAPED" else "utf-8")
        except UnicodeDecodeError:
            text = data.decode("utf-8", "replace")
        return text.encode("utf-8", "replace").decode("utf-8")


class Values:
    """The values of a pickle, as cells.

    Attributes:
        root: The cell of the whole value.
        end: Offset in the file of the first byte after the pickle.
        strings: The strings, whose indices are the payloads of cells.
    """

    def __init__(self, decoder: _Decoder, budget: Budget) -> None:
        self._decoder = decoder
        self._budget = budget
        self._cells: CellArray = decoder.arrays["cells"]
        self._numbers: CellArray = decoder.arrays["numbers"]
        self._records = decoder.arrays["records"].reshape(-1, len(_RECORD))
        self.end = decoder.position
        self.root = int(decoder.arrays["stack"][decoder.get_state("TOP") - 1])
        self.strings = _Strings(decoder)

    def get_tag(self, cell: int) -> int:
        """Return the tag of a cell, such as ``LIST``."""
        return cell & _TAG_MASK

    def get_items(self, cell: int) -> CellArray:
        """Return the items of a list, set or tuple.

        Raises:
            Damage: The cell is another value.
        """
        return self.flatten(np.array([cell], np.uint64), "lists")[1]

    def get_members(self, cell: int) -> dict[str, int]:
        """Return the cells of a dictionary by key. Keys that are not strings are left out.

        Raises:
            Damage: The cell is not a dictionary.
        """
        if cell & _TAG_MASK != DICT:
            raise Damage("a dictionary was expected in the pickle")
        members: dict[int, int] = {}
        record = cell >> _TAG_BITS
        while record:
            span, keys, count, following, _ = self._records[record].tolist()
            self._budget.check_temporary_memory(count, _OBJECT_BYTES, "members of a dictionary")
            values = self._cells[span : span + count].tolist()
            members.update(zip(self._cells[keys - 1 : keys - 1 + count].tolist(), values, strict=True))
            record = following
        strings = {key: value for key, value in members.items() if key & _TAG_MASK == STRING}
        return {self.strings.get(key >> _TAG_BITS): value for key, value in strings.items()}

    def flatten(self, containers: CellArray, plural_noun: str) -> tuple[Int64Array, CellArray]:
        """Return the items of many lists, sets or tuples.

        Args:
            containers: Cells of the containers. None and ``MISSING`` are empty.
            plural_noun: Plural noun for the containers in error messages.

        Returns:
            The index of the first item of each container, followed by the number of all items; and the items.

        Raises:
            Damage: A cell is another value, or the items exceed the memory budget.
        """
        tags = containers & np.uint64(_TAG_MASK)
        if (~np.isin(tags, (MISSING, NONE, LIST, SET, TUPLE, FROZEN_SET))).any():
            raise Damage(f"{plural_noun} were expected in the pickle")
        ids = np.where(tags >= LIST, containers >> np.uint64(_TAG_BITS), 0).astype(np.int64)
        counts = self._records[ids, _RECORD.index("COUNT")].astype(np.int64)
        spans = self._records[ids, _RECORD.index("SPAN")].astype(np.int64)
        long = np.flatnonzero(self._records[ids, _RECORD.index("NEXT")])
        joined: dict[int, CellArray] = {}
        for record in dict.fromkeys(ids[long].tolist()):
            parts: list[CellArray] = []
            for part in self._decoder.read_items(record):
                self._budget.check_temporary_memory(len(part), 8 * (len(parts) + 1), plural_noun)
                parts.append(part.copy())
            joined[record] = np.concatenate(parts)
        for row in long.tolist():
            counts[row] = len(joined[int(ids[row])])
        offsets = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        self._budget.check_temporary_memory(int(offsets[-1]), 24, f"items of {plural_noun}")
        if len(ids) == len(long) == 1:
            return offsets, joined[int(ids[0])]
        starts = np.repeat(spans - offsets[:-1], counts)
        if len(long):
            starts[np.repeat(np.isin(np.arange(len(ids)), long), counts)] = 0
            positions = np.minimum(starts + np.arange(offsets[-1]), len(self._cells) - 1)
            items = self._cells[positions]
            for row in long.tolist():
                items[offsets[row] : offsets[row + 1]] = joined[int(ids[row])]
            return offsets, items
        return offsets, self._cells[starts + np.arange(offsets[-1])]

    def count_items(self, cell: int) -> int:
        """Return the number of items of a list.

        Raises:
            Damage: The cell is another value.
        """
        record, count = self._get_record(cell), 0
        while record:
            count += int(self._records[record, _RECORD.index("COUNT")])
            record = int(self._records[record, _RECORD.index("NEXT")])
        return count

    def iterate_items(self, cell: int) -> Iterator[CellArray]:
        """Yield the items of a list in sections. A section becomes invalid with the next one.

        Raises:
            Damage: The cell is another value.
        """
        return self._decoder.read_items(self._get_record(cell))

    def _get_record(self, cell: int) -> int:
        if cell & _TAG_MASK != LIST:
            raise Damage("a list was expected in the pickle")
        return cell >> _TAG_BITS

    def encode_lists(self, lists: Sequence[CellArray]) -> tuple[list[Int64Array], CellArray]:
        """Assign codes to lists, so that lists with the same cells have the same code.

        Args:
            lists: Arrays of cells of lists. None and ``MISSING`` are the empty list.

        Returns:
            The code of each list, one array per array of cells; and one of the lists of each code.

        Raises:
            Damage: A cell is another value.
        """
        encoder = ListEncoder(self)
        return [encoder.encode(cells).astype(np.int64) for cells in lists], encoder.distinct

    def find_list_keys(self, cells: CellArray) -> Int64Array:
        """Return a number per list that is equal for lists with the same cells, except for lists of several parts.

        Raises:
            Damage: A cell is neither a list nor None.
        """
        tags = cells & np.uint64(_TAG_MASK)
        if (~np.isin(tags, (MISSING, NONE, LIST))).any():
            raise Damage("lists were expected in the pickle")
        ids = np.where(tags == LIST, cells >> np.uint64(_TAG_BITS), 0).astype(np.int64)
        records = self._records[ids]
        keys = records[:, _RECORD.index("SPAN")].astype(np.int64)
        long = records[:, _RECORD.index("NEXT")] > 0
        keys[long] = -1 - ids[long]
        keys[records[:, _RECORD.index("COUNT")] == 0] = len(self._cells)
        return keys

    def columns(
        self, dictionaries: CellArray, names: Sequence[str], plural_noun: str, unknown: dict[str, int] | None = None
    ) -> dict[str, CellArray]:
        """Return the members of many dictionaries, by key.

        Args:
            dictionaries: Cells of the dictionaries.
            names: The keys.
            plural_noun: Plural noun for the dictionaries in error messages.
            unknown: Dictionary to which the numbers of members with other keys are added, or None. If there are many,
                the others are counted together.

        Returns:
            One array of cells per key. A cell is ``MISSING`` if the dictionary has no such member.

        Raises:
            Damage: A cell is not a dictionary, or the dictionaries have too many combinations of keys.
        """
        if ((dictionaries & np.uint64(_TAG_MASK)) != DICT).any():
            raise Damage(f"{plural_noun} were expected in the pickle")
        columns = {name: np.zeros(len(dictionaries), np.uint64) for name in names}
        texts: dict[int, str] = {}
        rows = np.arange(len(dictionaries))
        ids = (dictionaries >> np.uint64(_TAG_BITS)).astype(np.int64)
        for _ in range(_MAX_RECORDS):
            records = self._records[ids]
            for chosen, keys, count in self._group_by_keys(records, plural_noun):
                spans = records[chosen, _RECORD.index("SPAN")].astype(np.int64)
                for n, key in enumerate(self._cells[keys - 1 : keys - 1 + count].tolist()):
                    if key not in texts:
                        is_text = key & _TAG_MASK == STRING
                        texts[key] = self.strings.get(key >> _TAG_BITS) if is_text else "another key"
                    name = texts[key]
                    if name in columns:
                        columns[name][rows[chosen]] = self._cells[spans + n]
                    elif unknown is not None:
                        label = name[:_MAX_NAME]
                        label = label if label in unknown or len(unknown) < _MAX_SHAPES else "another key"
                        unknown[label] = unknown.get(label, 0) + len(spans)
            more = records[:, _RECORD.index("NEXT")] > 0
            if not more.any():
                return columns
            rows, ids = rows[more], records[more, _RECORD.index("NEXT")].astype(np.int64)
        raise Damage(f"{plural_noun} of the pickle consist of more than {_MAX_RECORDS} parts")

    def _group_by_keys(
        self, records: npt.NDArray[np.uint32], plural_noun: str
    ) -> Iterator[tuple[Int64Array, int, int]]:
        """Yield the rows of the records with the same keys, the first of these keys plus 1, and their number."""
        keys, counts = records[:, _RECORD.index("KEYS")], records[:, _RECORD.index("COUNT")]
        order = np.arange(len(keys))
        if len(keys) and (keys != keys[0]).any():
            order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        edges = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
        if len(edges) > _MAX_SHAPES:
            raise Damage(f"{plural_noun} of the pickle have more than {_MAX_SHAPES:,} combinations of keys")
        for start, stop in itertools.pairwise(edges):
            if stop > start and (first := int(ordered[start])):
                yield order[start:stop], first, int(counts[order[start]])

    def integers(self, cells: CellArray, name: str) -> tuple[Int64Array, Mask]:
        """Return integers, and whether each value is an integer. Numbers from 2^63 on become negative.

        Args:
            cells: Cells of integers or None.
            name: Name of the values in error messages.

        Raises:
            Damage: A value is neither an integer nor None.
        """
        tags = cells & np.uint64(_TAG_MASK)
        valid = tags != MISSING
        valid &= tags != NONE
        values = cells.view(np.int64) >> _TAG_BITS
        if (other := valid & (tags != INTEGER)).any():
            if (~np.isin(tags[other], (TRUE, FALSE, WIDE, UNSIGNED))).any():
                raise Damage(f"the value {name} of the pickle is not an integer of 64 bits")
            values[tags == TRUE] = 1
            wide = (tags == WIDE) | (tags == UNSIGNED)
            values[wide] = self._numbers[values[wide]].view(np.int64)
        values[~valid] = 0
        return values, valid

    def reals(self, cells: CellArray, name: str) -> tuple[npt.NDArray[np.float64], Mask]:
        """Return real numbers, and whether each value is a number.

        Args:
            cells: Cells of real numbers, integers or None.
            name: Name of the values in error messages.

        Raises:
            Damage: A value is neither a number nor None.
        """
        tags = cells & np.uint64(_TAG_MASK)
        is_real = tags == REAL
        whole, valid = self.integers(np.where(is_real, np.uint64(NONE), cells), name)
        numbers = whole.astype(np.float64)
        numbers[is_real] = self._numbers[(cells[is_real] >> np.uint64(_TAG_BITS)).astype(np.int64)].view(np.float64)
        return numbers, valid | is_real

    def find_strings(self, cells: CellArray, name: str) -> npt.NDArray[np.int32]:
        """Return the index of each string in ``strings``, or -1 for None.

        Raises:
            Damage: A value is neither a string nor None.
        """
        tags = cells & np.uint64(_TAG_MASK)
        if (~np.isin(tags, (MISSING, NONE, STRING))).any():
            raise Damage(f"the value {name} of the pickle is not a string")
        indices = (cells >> np.uint64(_TAG_BITS)).astype(np.int32)
        indices[tags != STRING] = -1
        return indices

    def encode(self, indices: npt.NDArray[np.int32], absent: Iterable[str] = ()) -> pa.DictionaryArray:
        """Build a dictionary column from indices of strings. Its dictionary contains only strings that occur.

        Args:
            indices: Indices, as ``find_strings`` returns them. The array is overwritten.
            absent: Strings that become null.
        """
        used = np.zeros(self.strings.count + 1, bool)
        used[indices] = True  # index -1 is the last one
        used[-1] = False
        distinct = np.flatnonzero(used)
        self._budget.check_temporary_memory(len(distinct), _OBJECT_BYTES, "strings")
        texts = [self.strings.get(n) for n in distinct.tolist()]
        names = dict.fromkeys(text for text in texts if text not in absent)
        codes = {name: n for n, name in enumerate(names)}
        new = np.full(self.strings.count + 1, -1, np.int32)
        new[distinct] = [codes.get(text, -1) for text in texts]
        np.take(new, indices, out=indices, mode="wrap")
        return pa.DictionaryArray.from_arrays(
            build_number_array(indices, indices >= 0), pa.array(list(names), pa.string()), safe=False
        )

    def build(self, cell: int) -> Any:
        """Return a value as a Python object.

        Raises:
            Damage: The value is nested too deeply, contains itself, or exceeds the memory budget.
        """
        return self._build(cell, 0, {})

    def _build(self, cell: int, depth: int, built: dict[int, Any]) -> Any:
        tag, payload = cell & _TAG_MASK, cell >> _TAG_BITS
        if cell in built:
            return built[cell]
        if tag < LIST:
            scalar = self._build_scalar(cell, tag, payload)
            if tag in (HUGE, REAL_TEXT, STRING, BYTES):  # of any size, and shared by many references
                built[cell] = scalar
            return scalar
        if depth > _MAX_DEPTH:
            raise Damage(f"a value of the pickle is nested more than {_MAX_DEPTH} levels deep")
        items: list[Any] = []
        record = payload
        while record:
            span, keys, count, following, _ = self._records[record].tolist()
            self._budget.reserve(count, _OBJECT_BYTES, "values of a pickle")
            values = [self._build(int(c), depth + 1, built) for c in self._cells[span : span + count]]
            if tag == DICT:
                keys = [self._build(int(c), depth + 1, built) for c in self._cells[keys - 1 : keys - 1 + count]]
                values = list(zip(keys, values, strict=True))
            items += values
            record = following
        if tag in (DICT, SET, FROZEN_SET):
            self._check_keys(items if tag != DICT else [key for key, _ in items])
        try:
            built[cell] = dict(items) if tag == DICT else _BUILDERS[tag](items)
        except TypeError as e:
            raise Damage("a key of the pickle has another type than a key can have") from e
        return built[cell]

    def _check_keys(self, keys: list[Any]) -> None:
        """Refuse keys with nested containers: their hashes are computed again for each reference to a container."""
        for key in keys:
            if isinstance(key, tuple | frozenset):
                self._budget.reserve(len(key), _OBJECT_BYTES, "values of keys")
                if any(isinstance(part, tuple | frozenset) for part in key):
                    raise Damage("a key of the pickle is nested")

    def _build_scalar(self, cell: int, tag: int, payload: int) -> Any:
        if tag == INTEGER:
            return payload - (1 << 64 - _TAG_BITS) if cell >> 63 else payload
        if tag in (WIDE, UNSIGNED):
            number = int(self._numbers[payload])
            return number - (1 << 64) if tag == WIDE and number >> 63 else number
        if tag == REAL:
            return float(self._numbers[payload : payload + 1].view(np.float64)[0])
        if tag in (BYTES, HUGE):
            data = self.strings.get_bytes(payload)
            return data if tag == BYTES else int.from_bytes(data, "little", signed=True)
        if tag in (STRING, REAL_TEXT):
            return self.strings.get(payload) if tag == STRING else _parse_real(self.strings.get(payload))
        return {TRUE: True, FALSE: False}.get(tag)


class ListEncoder:
    """Assigns codes to lists, batch by batch. Lists with the same cells have the same code."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._codes: dict[int, int] = {}
        self._distinct: list[int] = []

    @property
    def distinct(self) -> CellArray:
        """The cell of one list of each code."""
        return np.array(self._distinct, np.uint64)

    def encode(self, cells: CellArray) -> npt.NDArray[np.int32]:
        """Return the code of each list. None and ``MISSING`` are the empty list.

        Raises:
            Damage: A cell is another value.
        """
        encoded = pa.array(self._values.find_list_keys(cells)).dictionary_encode()
        codes = encoded.indices.to_numpy()
        first = np.empty(len(encoded.dictionary), np.uint64)
        first[codes[::-1]] = cells[::-1]
        of_key = []
        for key, cell in zip(encoded.dictionary.to_pylist(), first.tolist(), strict=True):
            code = self._codes.setdefault(key, len(self._distinct))
            if code == len(self._distinct):
                self._distinct.append(cell)
            of_key.append(code)
        result: npt.NDArray[np.int32] = np.array(of_key, np.int32)[codes]
        return result


def decode_texts(column: pa.DictionaryArray) -> pa.Array:
    """Convert a dictionary column to a string column.

    Raises:
        Damage: The strings of all rows take too much memory.
    """
    try:
        return decode_dictionary(column)
    except ValueError as e:
        raise Damage(str(e)) from e


def _parse_real(text: str) -> float:
    try:
        return float(text)
    except ValueError as e:
        raise Damage("a number of the pickle is invalid") from e
