"""Extended NVTX payloads: the text that nsys made of them, and a decoder of one payload at a time as oracle."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.nsys_rep import CAPTURES, Parts, container, event, message, packed, take_apart
from tracekit.errors import CorruptTraceError, TracekitWarning
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Message
from tracekit.readers.nsys_rep import payloads
from tracekit.readers.nsys_rep.container import OFFSETS
from tracekit.readers.nsys_rep.payload_schemas import MAX_VALUES, Schemas, encode_json_string
from tracekit.readers.nsys_rep.payloads import MAX_ITEMS

FOLDER = CAPTURES / "payloads"
CAPTURED = sorted(p.stem for p in FOLDER.glob("*.nsys-rep"))
ID, PROCESS, DOMAIN = 1 << 24, 7 << 24, 3
STATIC, DYNAMIC, UNION = 1, 2, 3
FIXED, POINTER, HERE, ZERO = 1 << 4, 1 << 1, 1 << 3, 2 << 4
OTHERWISE = {
    "type 32": "nsys writes a byte above 127 as two",
    "raw 32": "nsys writes a byte above 127 as two",
    "same": "nsys repeats the first of two values of one name",
    "array 75": "a string of two characters, not two strings",
    "array 76": "a string of two characters, not two strings",
    "array 77": "a string of two characters, not two strings",
    "array 78": "a string of two characters, not two strings",
    "zero string": "its layout depends on its values",
    "counted": "its layout depends on its values",
}
"""Payloads whose text is not that of nsys, and why."""


def told(capture: str) -> dict[int, tuple[str, str | None, Any, Any, str | None]]:
    """Payloads of ranges and marks by row of the event table: type, int, float, text."""
    found = {}
    with tk.load(FOLDER / f"{capture}.nsys-rep") as trace:
        for table, key in (("nvtx_marks", "mark_id"), ("nvtx_ranges", "range_id")):
            for row in trace.frame(table).collect().iter_rows(named=True):
                values = (row["payload_type"], row["payload_int"], row["payload_float"], row["payload_text"])
                found[row[key]] = (row["name"], *values)
    return found


@pytest.mark.filterwarnings("ignore:.*(is|are) not UTF-8:tracekit.errors.TracekitWarning")
@pytest.mark.parametrize("capture", CAPTURED)
def test_texts_are_those_of_nsys(capture: str) -> None:
    truth = json.loads((FOLDER / f"{capture}.json").read_text("utf-8"))
    mine = told(capture)
    same = 0
    for row, name, text, *value in truth:
        if text and name not in OTHERWISE:
            assert mine[row] == (name, "json", None, None, text)
            same += 1
        elif value and value[0] in ("double", "float"):
            assert mine[row][:4] == (name, value[0], None, float(value[1]))
        elif value:
            assert mine[row][:4] == (name, value[0], value[1], None)
    assert same == {"every_type": 237, "nccl": 4, "xla": 43}[capture]


@pytest.mark.filterwarnings("ignore:.*(is|are) not UTF-8:tracekit.errors.TracekitWarning")
def test_where_nsys_has_no_text_there_are_the_bytes() -> None:
    truth = json.loads((FOLDER / "every_type.json").read_text("utf-8"))
    mine = told("every_type")
    silent = {name: mine[row][1:] for row, name, text, *_ in truth if text == ""}
    assert len(silent) > 60
    assert {kind for kind, *_ in silent.values()} == {"binary", "json"}
    assert silent["short"] == ("binary", None, None, "4294967472:41424344454647")
    assert silent["unknown"] == ("binary", None, None, "1073741824:4142434445464748")
    assert silent["pointer"] == ("json", None, None, '{"p":""}')


def test_what_is_otherwise_than_nsys_says_it() -> None:
    with pytest.warns(TracekitWarning, match=r"strings? of NVTX_EVENTS.jsonText (?:is|are) not UTF-8"):
        mine = {name: (kind, text) for name, kind, _, _, text in told("every_type").values()}
    assert mine["raw 32"] == ("json", '["0xc1"]')
    assert mine["same"] == ("json", '{"x":-1082130239,"x":-16842239}')
    assert mine["array 75"] == ("json", '{"v":"AB"}')
    assert mine["counted"] == ("binary", "4294967491:02000000050000000600000009000000")


def test_a_report_without_schemas_has_no_text() -> None:
    with tk.load(CAPTURES / "nvtx_features.nsys-rep") as trace:
        assert trace["nvtx_ranges"]["payload_text"].null_count == trace.count("nvtx_ranges")


def entry(kind: int, name: str = "", **more: int) -> bytes:
    fields = {"flags": 2, "offset": 3, "detail": 4}
    return message((1, kind), *((fields[k], v) for k, v in more.items() if v), (7, name))


def schema(number: int, *entries: bytes, kind: int = STATIC, name: str = "", size: int = 0, pack: int = 0) -> bytes:
    optional = [(f, v) for f, v in ((6, size), (7, pack)) if v]
    named: list[tuple[int, int | float | bytes | str]] = [(5, name)] if name else []
    return message((1, number), (2, kind), *((4, e) for e in entries), *named, *optional, (9, DOMAIN))


def enum(number: int, size: int, *listed: tuple[str, int, int]) -> bytes:
    items = [(4, message((1, name), (2, value), (3, flag))) for name, value, flag in listed]
    return message((1, DOMAIN), (2, number), *items, (5, size))


def block(*schemas: bytes, enums: tuple[bytes, ...] = ()) -> bytes:
    return message((3, message((1, PROCESS), *((2, s) for s in schemas), *((4, e) for e in enums))))


def known(*schemas: bytes, enums: tuple[bytes, ...] = ()) -> Schemas:
    return Schemas.parse(Message(memoryview(block(*schemas, enums=enums))))


def item(number: int, data: bytes) -> tuple[int, bytes]:
    return 9, message((1, number), (2, data))


def texts(schemas: Schemas, *events: bytes | None, process: int = PROCESS) -> list[str | None]:
    """Text of each event, its hexadecimal one where it has no other."""
    column = pa.array(list(events), pa.binary())
    rows = len(column)
    text, other = payloads.format_payloads(schemas, column, pa.array([process | 5] * rows), pa.array([DOMAIN] * rows))
    return [(t or o or b"").decode() or None for t, o in zip(text.to_pylist(), other.to_pylist(), strict=True)]


def test_events_without_and_with_several_payloads() -> None:
    schemas = known(schema(ID, entry(15, "a"), size=4, name="S"))
    one, two = (item(ID, n.to_bytes(4, "little")) for n in (1, 2))
    plain = message((2, 5))
    assert texts(schemas, None, plain, message(one), None, message(one, two), message(item(15, b"\5\0\0\0"))) == [
        None, None, '{"S":{"a":1}}', None, '[{"S":{"a":1}},{"S":{"a":2}}]', "[5]",
    ]  # fmt: skip
    assert texts(schemas, None, None) == [None, None]
    assert texts(schemas) == []


def test_one_untold_payload_of_several_leaves_all_as_numbers() -> None:
    schemas = known(schema(ID, entry(15, "a"), size=4))
    assert texts(schemas, message(item(ID, b"\1\0\0\0"), item(ID, b"\1"))) == [f"{ID}:01000000,{ID}:01"]


def test_schemas_belong_to_a_process_and_a_domain() -> None:
    schemas = known(schema(ID, entry(15, "a"), size=4))
    assert texts(schemas, message(item(ID, b"\1\0\0\0")), process=8 << 24) == [f"{ID}:01000000"]


def test_an_item_without_fields_is_of_an_unknown_type() -> None:
    assert texts(known(), message((9, b""))) == ['[""]']


@pytest.mark.parametrize(
    ("made", "data", "text"),
    [
        (schema(ID, entry(11, "a"), entry(15, "b"), size=8), "<b3xi", {"a": -3, "b": 7}),
        (schema(ID, entry(11, "a"), entry(15, "b"), size=5, pack=1), "<bi", {"a": -3, "b": 7}),
        (schema(ID, entry(15, "b", offset=4), entry(11, "a", offset=1), size=8), "<xb2xi", {"b": 7, "a": -3}),
        (schema(ID, entry(11, "a"), entry(15, "b")), "<b3xi", {"a": -3, "b": 7}),
    ],
    ids=["aligned", "packed", "offsets", "no size"],
)
def test_layouts(made: bytes, data: str, text: dict[str, int]) -> None:
    values = [text[k] for k in ("a", "b")]
    assert texts(known(made), message(item(ID, struct.pack(data, *values)))) == [json.dumps(text).replace(" ", "")]


def test_structs_in_structs_and_arrays_of_them() -> None:
    inner = schema(ID, entry(11, "a"), entry(15, "b"), size=8, name="I")
    outer = schema(ID + 1, entry(13, "n"), entry(ID, "x"), entry(ID, "y", flags=FIXED, detail=2), size=28)
    data = struct.pack("<h2x" + 3 * "b3xi", 9, 1, 2, 3, 4, 5, 6)
    assert texts(known(inner, outer), message(item(ID + 1, data))) == [
        '{"n":9,"I:x":{"a":1,"b":2},"y":[{"a":3,"b":4},{"a":5,"b":6}]}'
    ]


def test_enums() -> None:
    listed = (("Red", 1, 0), ("A", 4, 1), ("B", 8, 1), ("Again", 1, 0))
    schemas = known(schema(ID, entry(ID + 1, "e"), size=2), enums=(enum(ID + 1, 2, *listed),))
    numbers = (1, 4, 12, 13, 99, 0)
    assert texts(schemas, *(message(item(ID, n.to_bytes(2, "little"))) for n in numbers)) == [
        f'{{"e":"{t}"}}' for t in ("Red", "A", "A, B", "A, B", "99 - not registered", "0 - not registered")
    ]


def test_unions_are_left_out() -> None:
    union = schema(ID, entry(15, "i"), entry(19, "f"), kind=UNION, size=4)
    outer = schema(ID + 1, entry(ID, "u"), entry(15, "n"), size=8)
    assert texts(known(union, outer), message(item(ID + 1, struct.pack("<ii", 1, 2)))) == ['{"n":2}']


@pytest.mark.parametrize(
    "made",
    [
        schema(ID, entry(15, "a"), size=4, kind=DYNAMIC),
        schema(ID, entry(15, "a", flags=ZERO), size=4),
        schema(ID, entry(15, "a", flags=HERE), size=4),
        schema(ID, entry(29, "a"), size=4),
        schema(ID, entry(15, "a"), entry(15, "b"), size=4),
        schema(ID, entry(15, "a", flags=FIXED, detail=1 << 60), size=4),
        schema(ID, entry(32, "a", flags=FIXED, detail=MAX_VALUES + 1)),
        schema(ID, entry(ID, "a"), size=4),
        schema(ID, *[entry(32, "a", offset=1)] * 9, size=4),
        schema(ID, entry(15, "a" * (1 << 20)), size=4),
        schema(ID, entry(ID + 1, "a"), size=4),
    ],
    ids=["dynamic", "zeros", "here", "type", "small", "long", "many", "cycle", "overlap", "name", "unknown"],
)
def test_there_is_no_plan(made: bytes) -> None:
    assert texts(known(made), message(item(ID, b"\1\2\3\4"))) == [f"{ID}:01020304"]


def test_a_chain_of_structs_has_an_end() -> None:
    chain = [schema(ID + i, entry(ID + i + 1, "a"), size=4) for i in range(3000)]
    assert texts(known(*chain), message(item(ID, b"\1\2\3\4"))) == [f"{ID}:01020304"]


@pytest.mark.parametrize(
    ("text", "made"),
    [("", '""'), ('a"\\/\n\t\x1f', '"a\\"\\\\\\/\\n\\t\\u001F"'), ("é数\x7f", '"é数\x7f"'), ("\\u00ab", '"\\\\u00ab"')],
)
def test_quoting(text: str, made: str) -> None:
    assert encode_json_string(text) == made
    assert json.loads(made) == text


SCALARS = {
    3: "h",
    4: "H",
    5: "i",
    6: "I",
    9: "q",
    10: "Q",
    11: "b",
    12: "B",
    17: "q",
    18: "Q",
    19: "f",
    20: "d",
    22: "Q",
}


@st.composite
def structs(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, str, int, int]], int]:
    """A static schema, and of each entry: name, format, offset, length (0: no array)."""
    listed, entries, at = [], [], 0
    for nth in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(sorted(SCALARS)))
        size, length = struct.calcsize(SCALARS[kind]), draw(st.integers(0, 3))
        at = -(-at // size) * size
        name = f"{draw(st.text(max_size=4))}{nth}"
        array = {"flags": FIXED, "detail": length} if length else {}
        entries.append(entry(kind, name, offset=at * draw(st.booleans()), **array))
        listed.append((name, SCALARS[kind], at, length))
        at += size * max(1, length)
    return schema(ID, *entries, size=at), listed, at


def value(data: bytes, form: str, at: int) -> Any:
    """Decode one value by itself; reals as nsys writes them: no more digits than needed."""
    (number,) = struct.unpack_from(f"<{form}", data, at)
    return number


def close(found: Any, number: Any, form: str) -> bool:
    """Whether a number that was read back is the one that was written, to the last bit."""
    if form not in "fd":
        return bool(found == number)
    back = struct.pack(f"<{form}", float(found))
    return back == struct.pack(f"<{form}", number) or math.isnan(number)


@pytest.mark.thorough
@given(structs(), st.data())
def test_any_struct_is_told_as_one_by_one(made: Any, data: st.DataObject) -> None:
    bytes_, listed, size = made
    rows = data.draw(st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=4))
    for row, text in zip(rows, texts(known(bytes_), *(message(item(ID, r)) for r in rows)), strict=True):
        assert text is not None
        found = json.loads(text)
        assert list(found) == [name for name, *_ in listed]
        for name, form, at, length in listed:
            width = struct.calcsize(form)
            numbers = [value(row, form, at + i * width) for i in range(max(1, length))]
            read = found[name] if length else [found[name]]
            assert len(read) == len(numbers)
            assert all(close(a, b, form) for a, b in zip(read, numbers, strict=True))


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8), min_size=1, max_size=4))
def test_any_text_can_be_read_back(listed: list[str]) -> None:
    encoded = [t.encode()[:32].decode("utf-8", "ignore").encode() for t in listed]
    schemas = known(schema(ID, entry(76, "s", detail=32), size=32))
    events = [message(item(ID, e.ljust(32, b"\0"))) for e in encoded]
    assert [json.loads(t or "")["s"] for t in texts(schemas, *events)] == [e.decode() for e in encoded]


@given(st.binary(max_size=60), st.lists(st.binary(max_size=40), max_size=4))
def test_any_bytes_are_told_or_damaged(schemas: bytes, events: list[bytes]) -> None:
    try:
        listed = Schemas.parse(Message(memoryview(schemas)))
    except Damage:
        listed = known(schema(ID, entry(15, "a"), size=4))
    with contextlib.suppress(Damage, UnicodeDecodeError):
        assert len(texts(listed, *(message((9, e)) for e in events))) == len(events)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (b"\x4a\x7f\x00", "extends beyond the end of its event"),
        (message((9, message((1, b"x")))), "the schema id of an NVTX payload is not a number"),
        (message((9, message((1, 5), (2, 5)))), "an NVTX payload is a number instead of bytes"),
        (message(*[(9, b"")] * (MAX_ITEMS + 1)), f"an event has more than {MAX_ITEMS} NVTX payloads"),
    ],
    ids=["beyond", "schema", "bytes", "many"],
)
def test_damage(made: bytes, said: str) -> None:
    with pytest.raises(Damage, match=said):
        texts(known(), made)


def test_much_text_of_few_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "MAX_TEXT", 1000)
    schemas = known(schema(ID, entry(11, "n" * 100), size=1))
    with pytest.raises(Damage, match="the texts of 10 NVTX payloads could have more than 1,000 characters in total"):
        texts(schemas, *[message(item(ID, b"\1"))] * 10)


def with_schemas(parts: Parts, data: bytes) -> bytes:
    """Pack a report whose offsets name a block of schemas."""
    raw, strings_at = parts.raw(map(packed, parts.blocks))
    sections = {"Raw Sampling Data": raw + data, **parts.sections}
    sections[OFFSETS] = message((1, "lz4"), (2, strings_at - 8), (3, len(raw) - 8))
    return container(sections)


def marks(*contents: bytes) -> Parts:
    made = [event(34, 102, (1, 34), (2, 1), (8, c), (9, PROCESS | 5), (13, DOMAIN)) for c in contents]
    return Parts([b"".join(made)])


def test_a_report_with_schemas_of_its_own(tmp_path: Path) -> None:
    listed = packed(block(schema(ID, entry(15, "a"), size=4)))
    path = tmp_path / "made.nsys-rep"
    path.write_bytes(with_schemas(marks(message(item(ID, b"\7\0\0\0"))), listed))
    with tk.load(path) as trace:
        assert trace["nvtx_marks"]["payload_text"].to_pylist() == ['{"a":7}']
        assert trace["nvtx_marks"]["payload_type"].to_pylist() == ["json"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (packed(b"\x0b"), "a field has the unknown wire type 3"),
        (packed(b"x", size=0), "declares a decompressed size of 0 bytes, but the size must be 1 to"),
        (packed(b"x", size=1 << 23), "declares a decompressed size of 8388608 bytes"),
        (packed(b"\x08\x01" * (1 << 21) + b"\x08\x01"), "the payload schemas have 4194"),
        (b"", "the offset of the payload schemas is"),
    ],
    ids=["kind", "zero", "ratio", "large", "absent"],
)
def test_damaged_schemas(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "made.nsys-rep"
    path.write_bytes(with_schemas(marks(message(item(ID, b"\7\0\0\0"))), data))
    with tk.load(path) as trace, pytest.raises(CorruptTraceError, match=said):
        trace.table("nvtx_marks", ["payload_text"])


def test_without_its_schemas_a_payload_is_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "made.nsys-rep"
    path.write_bytes(take_apart(CAPTURES / "ddp2.nsys-rep").pack())
    with tk.load(CAPTURES / "ddp2.nsys-rep") as trace, tk.load(path) as bare:
        found, untold = ([t for t in n["nvtx_ranges"]["payload_text"].to_pylist() if t] for n in (trace, bare))
        assert set(bare["nvtx_ranges"]["payload_type"].to_pylist()) == {None, "binary"}
    assert len(found) == len(untold) == 16
    for text, digits in zip(found, untold, strict=True):
        told = json.loads(text)
        number, _, octets = digits.partition(":")
        assert int(number) > ID
        communicator, size = struct.unpack_from("<QQ", bytes.fromhex(octets))
        assert (told["NCCL communicator ID"], told["Message size [bytes]"]) == (communicator, size)


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.just(-1)), max_size=30), st.integers(1, 3))
def test_equal_rows_are_grouped(rows: list[tuple[int, int, int]], width: int) -> None:
    cut = [row[:width] for row in rows]
    groups = list(payloads.group_indices_of_equal_rows(np.array(cut, np.int64).reshape(-1, width)))
    assert len({key for key, _ in groups}) == len(groups)
    expected = {key: [n for n, row in enumerate(cut) if row == key] for key in cut}
    made = {tuple(n - (1 << 64) if n >> 63 else n for n in key): indices.tolist() for key, indices in groups}
    assert made == expected
