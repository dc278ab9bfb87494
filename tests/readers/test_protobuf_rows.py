"""Rows of tables decoded from messages, against a plain implementation."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.nsys_rep import message
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf import rows
from tracekit.readers.common.protobuf.decoding import Buffer
from tracekit.readers.common.protobuf.rows import (
    MESSAGE_TYPE,
    ColumnKind,
    FieldTest,
    Messages,
    RowColumn,
    RowDecoder,
    RowTable,
)

Fields: TypeAlias = dict[int, "int | bytes | Fields"]

STRINGS = pa.dictionary(pa.int32(), pa.string())
COLUMNS = {
    "number": RowColumn(ColumnKind.INT64, pa.int64(), ((1,),)),
    "small": RowColumn(ColumnKind.INT32, pa.int32(), ((2,),)),
    "either": RowColumn(ColumnKind.INT64, pa.int64(), ((300,), (3, 1)), default=-7),
    "inner": RowColumn(ColumnKind.INT64, pa.int64(), ((3, 4, 1),)),
    "name": RowColumn(ColumnKind.BYTES, STRINGS, ((5,),)),
    "text": RowColumn(ColumnKind.BYTES, pa.binary(), ((6,), (5,))),
    "nth": RowColumn(ColumnKind.CHAIN, pa.int64(), ((5,),)),
    "rank": RowColumn(ColumnKind.RANK, pa.int64()),
}
CLAUSES = (
    (FieldTest((1,), frozenset(range(200))), FieldTest((3, 4)), FieldTest((300,))),
    (FieldTest((6,), is_negated=True),),
)
FILTERS = ((FieldTest(MESSAGE_TYPE, frozenset((1, 2))),),)
TABLES = [RowTable(COLUMNS), RowTable(COLUMNS, CLAUSES, FILTERS), RowTable(COLUMNS, FILTERS, CLAUSES)]
NUMBERS = st.sampled_from([0, 1, 199, 200, 254, 255, 1 << 31, (1 << 63) - 1]) | st.integers(0, (1 << 31) - 1)
TEXTS = st.sampled_from([b"", b"a", b"forward", b"x" * 300]) | st.text(max_size=9).map(str.encode)
INNER = st.fixed_dictionaries({}, optional={1: NUMBERS, 2: TEXTS, 4: st.fixed_dictionaries({}, optional={1: NUMBERS})})
MESSAGES = st.fixed_dictionaries(
    {}, optional={1: NUMBERS, 2: NUMBERS, 3: INNER, 5: TEXTS, 6: TEXTS, 9: TEXTS, 300: NUMBERS}
)


def encode(fields: Fields) -> bytes:
    return message(*((n, encode(v) if isinstance(v, dict) else v) for n, v in fields.items()))


def placed(encoded: list[bytes], types: list[int]) -> tuple[Buffer, Messages]:
    data = b"".join(encoded)
    buffer = Buffer(len(data))
    buffer.data[: len(data)] = np.frombuffer(data, np.uint8)
    edges = np.cumsum([0, *map(len, encoded)])
    return buffer, Messages(edges[:-1], edges[1:], np.array(types, np.uint8))


def find(fields: object, path: tuple[int, ...]) -> object:
    for number in path:
        fields = fields.get(number) if isinstance(fields, dict) else None
    return fields


def holds(test: FieldTest, fields: Fields, message_type: int) -> bool:
    value = message_type if test.path == MESSAGE_TYPE else find(fields, test.path)
    return (isinstance(value, bytes | dict) if test.values is None else value in test.values) != test.is_negated


def expected_rows(table: RowTable, listed: list[Fields], types: list[int]) -> list[dict[str, object]]:
    result: list[dict[str, object]] = []
    rank = chains = 0
    for fields, message_type in zip(listed, types, strict=True):
        kept = [
            all(any(holds(t, fields, message_type) for t in c) for c in cs) for cs in (table.clauses, table.filters)
        ]
        if all(kept):
            row: dict[str, object] = {}
            for name, column in table.columns.items():
                values = (find(fields, path) for path in column.paths)
                row[name] = next((v for v in values if v is not None), column.default)
            chains += row["nth"] is not None
            name = row["name"]
            row |= {"rank": rank, "nth": None if row["nth"] is None else chains}
            row["name"] = None if name is None else bytes(name).decode()  # type: ignore[call-overload]
            result.append(row)
        rank += kept[0]
    return result


@given(st.lists(st.tuples(MESSAGES, st.integers(0, 3)), max_size=30), st.sampled_from([1, 3, 1 << 13]))
def test_rows_of_every_table(listed: list[tuple[Fields, int]], capacity: int) -> None:
    messages, types = [m for m, _ in listed], [t for _, t in listed]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "MAX_ROWS", capacity)
        patch.setattr(rows, "MAX_MESSAGES", 4 * capacity)
        decoder = RowDecoder(TABLES)
        decoded = decoder.decode(*placed([encode(m) for m in messages], types))
    for table, result in zip(TABLES, decoded, strict=True):
        expected = expected_rows(table, messages, types)
        assert pa.table(result.columns).select(list(table.columns)).to_pylist() == expected
        wide = any(isinstance(m["small"], int) and m["small"] >> 31 for m in expected)
        assert result.columns["small"].type in ((pa.int64(),) if wide else (pa.int32(), pa.int64()))


def test_the_last_message_of_a_field_counts_and_repeated_fields_are_one_range() -> None:
    twice = message((3, message((1, 5))), (3, message((4, b""))), (7, b"ab"), (7, 3), (7, b"c"))
    columns = {
        "inner": RowColumn(ColumnKind.INT64, pa.int64(), ((3, 1),)),
        "all": RowColumn(ColumnKind.BYTES, pa.binary(), ((7,),)),
    }
    (decoded,) = RowDecoder([RowTable(columns)], repeated=(7,)).decode(*placed([twice, b""], [0, 0]))
    assert pa.table(decoded.columns).to_pylist() == [
        {"inner": None, "all": message((7, b"ab"), (7, 3), (7, b"c"))},
        {"inner": None, "all": None},
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (message((1, b"x")), "a field holds bytes instead of a number"),
        (message((5, 1)), "a field holds a number instead of bytes"),
        (message((3, 1)), "a field holds a number instead of bytes"),
        (message((3, b"\x08")), "a field extends beyond the end of its message"),
        (b"\x0f", "a field has an unknown wire type"),
    ],
)
def test_damage(data: bytes, said: str) -> None:
    with pytest.raises(Damage, match=said):
        RowDecoder([RowTable(COLUMNS)]).decode(*placed([message((1, 1)), data], [0, 0]))


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_are_rows_or_damage(encoded: list[bytes]) -> None:
    try:
        decoded = RowDecoder(TABLES).decode(*placed(encoded, [1] * len(encoded)))
    except Damage:
        return
    for result in decoded:
        pa.table(result.columns).validate(full=True)
    assert decoded[0].total == len(encoded)
