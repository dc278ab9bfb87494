"""Decode many protobuf messages into the rows of several tables, in one pass over the messages.

The caller declares which messages are the rows of a table, and which fields contain the values of its columns. A field
may be in a nested message. The values are written to the buffers of Arrow arrays of the requested types.
"""

from __future__ import annotations

import contextlib
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.readers.common import columns as col
from tracekit.readers.common.protobuf import decoding
from tracekit.readers.common.protobuf.decoding import (
    ABSENT,
    FIELDS,
    FULL,
    MAX_SLOTS,
    SCRATCH,
    STRINGS,
    check_result_code,
    dictionary_encode,
    extract_strings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from tracekit.readers.common.protobuf.decoding import Buffer, Int64Array, Mask

    Records: TypeAlias = npt.NDArray[np.void]

FieldPath: TypeAlias = tuple[int, ...]
"""The numbers of a field and of the messages that contain it, from the outermost to the innermost."""
MESSAGE_TYPE: Final[FieldPath] = ()
"""The path that stands for the type of a message: a number below 256, which is not a field of the message."""
MAX_ROWS, MAX_MESSAGES = 1 << 13, 1 << 14
"""Maximum number of rows of a table, and of messages, in the memory of the sandbox at a time."""
_CELL = np.dtype([("value", "u8"), *((name, "u4") for name in ("end", "wire_type", "stamp", "unused"))])
_KIND = np.dtype([("first_slot", "u4"), ("end_slot", "u4")])
_TEST = np.dtype([("slot", "u4"), ("truth", "u4"), ("needs_bytes", "u4"), ("is_last", "u4")])
_TABLE = np.dtype([
    (name, "u4")
    for name in ("tests", "filters", "tests_end", "columns", "columns_end", "columns_of_slots", "rows", "rank")
])  # fmt: skip
_COLUMN_NUMBERS = ("has_default", "values", "present", "count", "next", "overflow")
_COLUMN = np.dtype(
    [("default_value", "i8"), ("kind", "u4"), ("slots", "u4", 3), *((name, "u4") for name in _COLUMN_NUMBERS)],
    align=True,
)
_LAYOUT = np.dtype([
    (name, "u4")
    for name in (
        *("kinds", "slots", "kinds_of_slots", "cells", "filled_slots", "tests", "tables", "tables_end", "columns"),
        *("repeated", "capacity", "filled"),
    )
])  # fmt: skip


class ColumnKind(IntEnum):
    """What a column contains."""

    INT32 = decoding.INT32
    """Integers, which become int64 if one of them does not fit into 32 bits."""
    INT64 = decoding.INT64
    """Integers of 64 bits, or the bits of floating-point numbers."""
    BYTES = decoding.BYTES
    """Bytes, which a column with a dictionary type encodes in the order in which they first occur."""
    CHAIN = decoding.CHAIN
    """Numbers of the rows with the field, counted from 1. All other rows are null."""
    RANK = decoding.RANK
    """Number of earlier messages that belong to the table, including those that are filtered out."""


class RowColumn(NamedTuple):
    """The definition of a column.

    Attributes:
        kind: What the column contains.
        arrow_type: Type of the column.
        paths: Path of its field, and the paths of up to two alternative fields. The first field that is present counts.
        default: Value of a column of integers for rows that have none of the fields, or None for null.
    """

    kind: ColumnKind
    arrow_type: pa.DataType
    paths: tuple[FieldPath, ...] = (MESSAGE_TYPE,)
    default: int | None = None

    @property
    def copied_path(self) -> FieldPath:
        """Path of the field whose values are copied, so that nothing has to be done for rows without it, or ()."""
        is_integer = self.kind in (ColumnKind.INT32, ColumnKind.INT64)
        return self.paths[0] if is_integer and len(self.paths) == 1 and self.default is None else MESSAGE_TYPE

    @property
    def dtype(self) -> type[np.int32 | np.int64]:
        """Type of the values in the sandbox. The value of bytes is their start and end, of 32 bits each."""
        return np.int32 if self.kind is ColumnKind.INT32 else np.int64


class FieldTest(NamedTuple):
    """A test of a field.

    Attributes:
        path: Path of the field.
        values: The test holds if the field has one of these values, each of which must be below 254. If None, it holds
            if the field holds bytes, such as a message.
        is_negated: Whether the test holds in all other cases instead.
    """

    path: FieldPath
    values: frozenset[int] | None = None
    is_negated: bool = False

    def build_truth_table(self) -> list[bool]:
        """Return whether the test holds for each value below 254, for all other values, and for an absent field."""
        holds = [value < ABSENT and (self.values is None or value in self.values) for value in range(ABSENT + 1)]
        return [truth != self.is_negated for truth in holds]


Clause: TypeAlias = tuple[FieldTest, ...]
"""Tests of which at least one must hold."""


class RowTable(NamedTuple):
    """The definition of a table.

    Attributes:
        columns: Definition of each column by name.
        clauses: Clauses that hold for the messages that belong to the table.
        filters: Clauses that also hold for the messages that become rows.
    """

    columns: Mapping[str, RowColumn]
    clauses: tuple[Clause, ...] = ()
    filters: tuple[Clause, ...] = ()


class Messages(NamedTuple):
    """Encoded messages in a buffer.

    Attributes:
        starts: Start offset of each message.
        stops: End offset of each message.
        types: Type of each message.
    """

    starts: Int64Array
    stops: Int64Array
    types: npt.NDArray[np.uint8]


class DecodedRows(NamedTuple):
    """The rows of a table.

    Attributes:
        columns: The columns by name.
        total: Number of messages that belong to the table, including those that are filtered out.
    """

    columns: dict[str, pa.Array]
    total: int


class RowDecoder:
    """A decoder of the rows of several tables. Several threads may use it at once, each with its own buffer."""

    def __init__(self, tables: Sequence[RowTable], repeated: FieldPath = MESSAGE_TYPE) -> None:
        """Arrange the memory of the sandbox.

        Args:
            tables: The tables.
            repeated: Path of a repeated field, which is decoded as one range of bytes: from the key of its first value
                to the end of its last value. Values that are not length-delimited are ignored.
        """
        self._tables = [_move_copied_columns_to_end(table) for table in tables]
        self._repeated = repeated
        self._columns = [column for table in self._tables for column in table.columns.values()]
        tests = [test for table in tables for clause in (*table.clauses, *table.filters) for test in clause]
        paths = {path for column in self._columns for path in column.paths} | {test.path for test in tests}
        slots, arrays = _arrange_slots(paths | {repeated})
        arrays |= {
            "tests": _list_tests(tables, slots),
            "truths": np.array([test.build_truth_table() for test in tests], np.uint8).reshape(-1),
            "tables": _list_tables(self._tables),
            "columns": _list_columns(self._columns, slots),
            "columns_of_slots": _list_columns_of_slots(self._tables, slots),
            "layout": np.zeros(1, _LAYOUT),
        }
        self._at, end = _place_arrays(arrays)
        self._inputs = {name: end + k * 4 * MAX_MESSAGES for k, name in enumerate(Messages._fields)}
        self._capacity = self._place_values(arrays["columns"], end + 3 * 4 * MAX_MESSAGES)
        arrays["tests"]["truth"] = self._at["truths"] + (ABSENT + 1) * np.arange(len(tests))
        arrays["tables"]["columns_of_slots"] += self._at["columns_of_slots"]
        for name in _LAYOUT.names or ():
            arrays["layout"][name] = self._at.get(name, 0)
        arrays["layout"]["tables_end"] = self._at["tables"] + arrays["tables"].nbytes
        arrays["layout"]["repeated"], arrays["layout"]["capacity"] = slots[repeated], self._capacity
        self._image = np.zeros(end - SCRATCH, np.uint8)
        for name, array in arrays.items():
            start = self._at[name] - SCRATCH
            self._image[start : start + array.nbytes] = array.view(np.uint8).reshape(-1)

    def decode(
        self, buffer: Buffer, messages: Messages, reserve: Callable[[int, int], None] | None = None
    ) -> list[DecodedRows]:
        """Return the rows of each table, in the order of the messages.

        Args:
            buffer: Buffer that holds the messages.
            messages: The messages.
            reserve: Function that is called with the index of a table and a number of rows before memory is allocated
                for these rows.

        Raises:
            Damage: A message is invalid, or a field contains a number where a column contains bytes, or vice versa.
        """
        total = len(messages.starts)
        records = self._prepare_memory(buffer, total)
        builders = [
            {name: _ColumnBuilder(column, total) for name, column in table.columns.items()} for table in self._tables
        ]

        def move_rows(min_rows: int) -> None:
            for nth in np.flatnonzero(records.tables["rows"] >= min_rows).tolist():
                rows, first = int(records.tables["rows"][nth]), int(records.tables["columns"][nth])
                if reserve is not None:
                    reserve(nth, rows)
                for builder, record in zip(builders[nth].values(), records.columns[first:], strict=False):
                    builder.append(buffer, record, rows)
                records.tables["rows"][nth] = 0

        for first in range(0, total, MAX_MESSAGES):
            part = slice(first, min(first + MAX_MESSAGES, total))
            count = part.stop - first
            for at, offsets in zip(self._inputs.values(), (messages.starts, messages.stops), strict=False):
                buffer.array(at, count, np.uint32)[:] = offsets[part]
            buffer.bytes(self._inputs["types"], count)[:] = messages.types[part]
            result = buffer.call(
                "rows", messages=count, layout=self._at["layout"], limit=buffer.size, stamp=first, **self._inputs
            )
            while result == FULL:
                move_rows(self._capacity)
                result = buffer.call("rows")
            check_result_code(result)
        move_rows(1)
        if (records.columns["overflow"].astype(np.bool_) & (records.columns["kind"] == ColumnKind.INT32)).any():
            return self._widen_columns(records.columns["overflow"].tolist()).decode(buffer, messages)
        return [
            DecodedRows({name: builder.finish(buffer) for name, builder in table.items()}, int(rank))
            for table, rank in zip(builders, records.tables["rank"], strict=True)
        ]

    def _place_values(self, columns: Records, start: int) -> int:
        """Set the offsets of the values of each column, and return the number of rows for which there is room."""
        sizes = [np.dtype(column.dtype).itemsize for column in self._columns]
        capacity = min((STRINGS - start) // max(1, sum(sizes) + len(sizes)), MAX_ROWS)
        if capacity < 1:
            raise ValueError(f"{len(sizes)} columns do not fit into the memory of the decoder")
        ends = start + capacity * np.cumsum(sizes)
        columns["values"] = ends - capacity * np.array(sizes, np.int64)
        columns["present"] = ends[-1:] + capacity * np.arange(len(sizes))
        return capacity

    def _prepare_memory(self, buffer: Buffer, message_count: int) -> _Records:
        """Write the tables to the memory of the sandbox, and return views of their records."""
        buffer.bytes(SCRATCH, len(self._image))[:] = self._image
        tables = buffer.bytes(self._at["tables"], len(self._tables) * _TABLE.itemsize).view(_TABLE)
        columns = buffer.bytes(self._at["columns"], len(self._columns) * _COLUMN.itemsize).view(_COLUMN)
        rows = min(message_count, self._capacity)
        for column, values, present in zip(
            self._columns, columns["values"].tolist(), columns["present"].tolist(), strict=True
        ):
            buffer.array(values, rows, column.dtype)[:] = 0
            buffer.bytes(present, rows)[:] = 0
        return _Records(tables, columns)

    def _widen_columns(self, overflows: Sequence[int]) -> RowDecoder:
        """Return a decoder whose columns with an overflow have 64 bits."""
        overflowing = iter(overflows)
        tables = [
            table._replace(
                columns={
                    name: column._replace(kind=ColumnKind.INT64, arrow_type=pa.int64())
                    if next(overflowing) and column.kind is ColumnKind.INT32
                    else column
                    for name, column in table.columns.items()
                }
            )
            for table in self._tables
        ]
        return RowDecoder(tables, self._repeated)


class _Records(NamedTuple):
    """The records of the tables and columns in the memory of a sandbox."""

    tables: Records
    columns: Records


class _ColumnBuilder:
    """A builder that joins the values of a column, which the sandbox returns in parts."""

    def __init__(self, column: RowColumn, capacity: int) -> None:
        self._column = column
        self._capacity = capacity
        self._values = np.zeros(0, column.dtype)
        self._valid = np.zeros(0, np.bool_)
        self._count = 0
        self._row_count = 0

    def append(self, buffer: Buffer, record: np.void, row_count: int) -> None:
        """Move rows from the memory of the sandbox to this builder."""
        count, part = int(record["count"]), slice(self._row_count, self._row_count + row_count)
        if count and not self._count:
            self._values, self._valid = np.empty(self._capacity, self._column.dtype), np.empty(self._capacity, np.bool_)
            self._values[: self._row_count], self._valid[: self._row_count] = 0, False
        if self._count or count:
            values = buffer.array(int(record["values"]), row_count, self._column.dtype)
            valid = buffer.array(int(record["present"]), row_count, np.bool_)
            self._values[part], self._valid[part] = values, valid
            values[:] = valid[:] = 0
        record["count"] = 0
        self._row_count += row_count
        self._count += count

    def finish(self, buffer: Buffer) -> pa.Array:
        """Return the whole column. The buffer still has to hold the messages."""
        rows, arrow_type = self._row_count, self._column.arrow_type
        if not self._count:
            return col.build_null_array(rows, arrow_type)
        values, valid = self._values[:rows], None if self._count == rows else self._valid[:rows]
        if self._column.kind is not ColumnKind.BYTES:
            return col.build_number_array(values.view(col.convert_to_numpy_dtype(arrow_type)), valid)
        edges = values.view(np.uint32).astype(np.int64)
        if pa.types.is_dictionary(arrow_type):
            return _build_dictionary_array(buffer, edges.reshape(-1, 2), valid, arrow_type.value_type)
        array = extract_strings(buffer.data, edges)
        if valid is None:
            return array
        return pa.Array.from_buffers(array.type, rows, [col.pack_bits(valid), *array.buffers()[1:]])


def _build_dictionary_array(
    buffer: Buffer, bounds: Int64Array, valid: Mask | None, value_type: pa.DataType
) -> pa.DictionaryArray:
    """Return strings in a buffer as a dictionary array. If strings are not UTF-8, they remain binary.

    Args:
        buffer: Buffer that holds the strings.
        bounds: Start and end offset of each string.
        valid: For each row, whether it has a string. None if all rows have one.
        value_type: Type of the strings.
    """
    array = dictionary_encode(buffer, *np.ascontiguousarray((bounds if valid is None else bounds[valid]).T))
    indices, strings = array.indices, array.dictionary
    if valid is not None:
        codes = np.zeros(len(valid), np.int32)
        codes[valid] = indices
        indices = col.build_number_array(codes, valid)
    with contextlib.suppress(pa.ArrowInvalid):
        strings = strings.cast(value_type)
    return pa.DictionaryArray.from_arrays(indices, strings, safe=False)


def _arrange_slots(paths: Collection[FieldPath]) -> tuple[dict[FieldPath, int], dict[str, npt.NDArray[Any]]]:
    """Assign a slot to each field, and to the messages that contain fields.

    Returns:
        The slots by path, and the arrays from which the sandbox looks up the slot of a field number.
    """
    prefixes = {path[:size] for path in paths for size in range(1, len(path) + 1)}
    slots, messages, kinds = {MESSAGE_TYPE: 0}, [MESSAGE_TYPE], []
    for message in messages:
        fields = sorted(path for path in prefixes if path[:-1] == message)
        inner = [path for path in fields if any(other[:-1] == path for other in prefixes)]
        kinds.append((len(slots), len(slots) + len(inner)))
        for path in (*inner, *(path for path in fields if path not in inner)):
            slots[path] = len(slots)
        messages += inner
    if len(slots) > MAX_SLOTS or any(not 0 < path[-1] < FIELDS for path in prefixes):
        raise ValueError(f"at most {MAX_SLOTS} fields with numbers from 1 to {FIELDS - 1} are supported")
    numbers, kinds_of_slots = np.zeros((len(messages), FIELDS), np.uint8), np.zeros(MAX_SLOTS, np.uint8)
    for nth, message in enumerate(messages):
        kinds_of_slots[slots[message]] = nth
    for path in prefixes:
        numbers[messages.index(path[:-1]), path[-1]] = slots[path]
    return slots, {
        "kinds": np.array(kinds, _KIND),
        "slots": numbers,
        "kinds_of_slots": kinds_of_slots,
        "cells": np.zeros(len(slots), _CELL),
        "filled_slots": np.zeros(len(slots), np.uint8),
    }


def _list_tests(tables: Sequence[RowTable], slots: Mapping[FieldPath, int]) -> Records:
    """Return the records of the tests of all tables, without the offsets of their truth tables."""
    clauses = [clause for table in tables for clause in (*table.clauses, *table.filters)]
    records = [
        (slots[test.path], 0, test.values is None, nth == len(clause) - 1)
        for clause in clauses
        for nth, test in enumerate(clause)
    ]
    return np.array(records, _TEST)


def _list_copied_columns(table: RowTable) -> dict[FieldPath, str]:
    """Return the names of the columns into which values are only copied, by the path of the field."""
    copied = {column.copied_path: name for name, column in table.columns.items()}
    return {path: name for path, name in copied.items() if path != MESSAGE_TYPE}


def _move_copied_columns_to_end(table: RowTable) -> RowTable:
    """Return a table whose first columns are those that need more than a copy of each value."""
    copied = set(_list_copied_columns(table).values())
    return table._replace(columns=dict(sorted(table.columns.items(), key=lambda item: item[0] in copied)))


def _list_tables(tables: Sequence[RowTable]) -> Records:
    """Return the records of the tables, in which the offsets of ``columns_of_slots`` are relative."""
    records, tests, columns = np.zeros(len(tables), _TABLE), 0, 0
    for nth, (record, table) in enumerate(zip(records, tables, strict=True)):
        filters = tests + sum(map(len, table.clauses))
        record["tests"], record["filters"] = tests, filters
        record["tests_end"] = tests = filters + sum(map(len, table.filters))
        record["columns"], columns = columns, columns + len(table.columns)
        record["columns_end"] = columns - len(_list_copied_columns(table))
        record["columns_of_slots"] = nth * 2 * MAX_SLOTS
    return records


def _list_columns_of_slots(tables: Sequence[RowTable], slots: Mapping[FieldPath, int]) -> npt.NDArray[np.uint16]:
    """Return a matrix (table, slot) with the index of the column into which a slot is copied, plus 1, or 0."""
    numbers, first = np.zeros((len(tables), MAX_SLOTS), np.uint16), 1
    for row, table in zip(numbers, tables, strict=True):
        names = list(table.columns)
        for path, name in _list_copied_columns(table).items():
            row[slots[path]] = first + names.index(name)
        first += len(names)
    return numbers


def _list_columns(columns: Sequence[RowColumn], slots: Mapping[FieldPath, int]) -> Records:
    """Return the records of the columns, without the offsets of their arrays."""
    records = np.zeros(len(columns), _COLUMN)
    for record, column in zip(records, columns, strict=True):
        record["kind"], record["has_default"] = column.kind, column.default is not None
        record["default_value"] = column.default or 0
        record["slots"][: len(column.paths)] = [slots[path] for path in column.paths]
    return records


def _place_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[dict[str, int], int]:
    """Return the offset of each array in the memory of the sandbox, and the end of the last array."""
    offsets, end = {}, SCRATCH
    for name, array in arrays.items():
        offsets[name] = end
        end += -(-array.nbytes // 8) * 8
    return offsets, end
