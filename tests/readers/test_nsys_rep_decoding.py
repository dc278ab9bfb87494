"""Decoding in step gives what decoding one by one gives."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.nsys_rep import Parts, message, varint
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Buffer, Message, decode, decode_varints, read_fields, read_varint
from tracekit.readers.nsys_rep import entries, machine
from tracekit.readers.nsys_rep.container import Container, RawData
from tracekit.registry.source import Source

NUMBERS = st.one_of(
    st.integers(0, 300), st.integers(0, (1 << 64) - 1), st.sampled_from([2**k - 1 for k in range(1, 65)])
)
VALUES = st.one_of(NUMBERS, st.binary(max_size=200), st.floats(allow_nan=False))
ORDERED = st.lists(st.tuples(st.sampled_from([1, 2, 3, 15, 16, 101, 2047]), VALUES), max_size=12)
MESSAGES = st.lists(ORDERED.map(lambda m: sorted(m, key=lambda f: f[0])) | ORDERED, min_size=1, max_size=20)


def buffer_of(data: bytes) -> Buffer:
    buffer = Buffer(len(data))
    buffer.data[: len(data)] = np.frombuffer(data, np.uint8)
    return buffer


def placed(parts: list[bytes]) -> tuple[Buffer, np.ndarray, np.ndarray]:
    ends = np.cumsum([len(p) for p in parts])
    return buffer_of(b"".join(parts)), ends - [len(p) for p in parts], ends


@given(st.lists(NUMBERS, min_size=1, max_size=50))
def test_numbers(values: list[int]) -> None:
    buffer, starts, ends = placed([varint(v) for v in values])
    found, lengths = decode_varints(buffer, starts)
    assert found.tolist() == values
    assert (starts + lengths).tolist() == ends.tolist()
    data = memoryview(buffer.data.data)
    assert [read_varint(data, int(s)) for s in starts] == list(zip(values, ends.tolist(), strict=True))


@given(MESSAGES)
def test_messages(messages: list[list[tuple[int, int | bytes | float]]]) -> None:
    encoded = [message(*m) for m in messages]
    buffer, starts, stops = placed(encoded)
    expected: dict[int, dict[int, int | bytes]] = {}
    for row, data in enumerate(encoded):
        for number, value in read_fields(memoryview(data)):
            expected.setdefault(number, {})[row] = value if isinstance(value, int) else bytes(value)
    kinds = {n: {type(v) for m in messages for k, v in m if k == n} for n in expected}
    if any(bytes in kind and len(kind) > 1 for kind in kinds.values()):
        return
    found = decode(buffer, starts, stops, set(expected) or {1})
    assert found.keys() == expected.keys()
    for number, values in expected.items():
        field = found[number]
        rows = np.arange(len(messages)) if field.valid is None else np.flatnonzero(field.valid)
        assert rows.tolist() == sorted(values)
        for row in rows.tolist():
            at, value = int(field.values[row]), values[row]
            if field.stops is not None:
                assert buffer.data[at : field.stops[row]].tobytes() == value
            else:
                assert at == (value if isinstance(value, int) else int.from_bytes(value, "little"))


def test_ends_of_bytes_stay_when_only_some_messages_go_on() -> None:
    buffer, starts, stops = placed([message((1, b"ab"), (3, 1)), message((1, b"cd"), (2, b"later"), (3, 1))])
    first, last = decode(buffer, starts, stops, {1, 2})[1].spans()
    assert [buffer.data[a:b].tobytes() for a, b in zip(first, last, strict=True)] == [b"ab", b"cd"]


@pytest.mark.parametrize("data", [b"\xff" * 11, b"\x80\x80\x80", b"\x0d\1\2", b"\x09\1", b"\x12\x7f"])
def test_damaged_messages(data: bytes) -> None:
    buffer, starts, stops = placed([data])
    with pytest.raises(Damage):
        decode(buffer, starts, stops, {2047})
    with pytest.raises(Damage):
        Message(memoryview(data))


def test_larger_numbers_of_fields_are_skipped() -> None:
    buffer, starts, stops = placed([b"\x88\x80\x01\x01" + message((2047, 3))])
    assert decode(buffer, starts, stops, {2047})[2047].values.tolist() == [3]


def test_fields_beyond_the_wanted_are_looked_at_as_well() -> None:
    buffer, starts, stops = placed([message((1, 5), (2, 6), (1, 7)), message((1, 5), (2, 6)) + b"\xff\xff"])
    assert decode(buffer, starts[:1], stops[:1], {1})[1].values.tolist() == [7]
    with pytest.raises(Damage):
        decode(buffer, starts, stops, {1})


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_little_address_space_is_enough() -> None:
    code = """
import resource
import numpy as np
from tracekit.readers.common.protobuf.decoding import Buffer, decode

resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
buffers = [Buffer(1 << 24) for _ in range(4)]
buffers[-1].data[:3] = (8, 150, 1)
print(decode(buffers[-1], np.array([0]), np.array([3]), {1})[1].values.tolist())
try:
    Buffer(1 << 30)
except MemoryError as e:
    print(e)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[150]\ncannot allocate 1086390272 bytes of memory for decoding\n"


PAYLOADS = st.binary(max_size=300) | st.just(b"\x0a\2\x08\x30" * 9) | st.just(b"x" * 20_000)
ENTRIES = st.lists(
    st.tuples(st.integers(0, 400), st.integers(90, 170), PAYLOADS, st.sampled_from([1, 2, 3])), max_size=30
)


@given(ENTRIES)
def test_entries(listed: list[tuple[int, int, bytes, int]]) -> None:
    block = b"".join(message((tag, message((1, t), (field, data)))) for t, field, data, tag in listed)
    begin = 3
    found = entries.find_entries(buffer_of(b"\x0a\1\x08" + block + b"\x0a\2"), [begin, begin + len(block)])
    kept = [(t, field, data, tag) for t, field, data, tag in listed if tag != 3]
    expected = [
        message((1, t), (field, data)) if tag == 2 else data for t, field, data, tag in kept
    ]  # fmt: skip
    payloads = [
        block[s : s + n] for s, n in zip(found.starts.tolist(), found.sizes.tolist(), strict=True)
    ]  # fmt: skip
    assert payloads == expected
    assert found.kinds.tolist() == [
        entries.GENERIC if tag == 2 else entries.combine_into_event_kind(f, t) for t, f, _, tag in kept
    ]
    assert sum(found.counts.values()) == len(kept) == entries.count_block_events(memoryview(block))


@given(st.lists(ENTRIES, min_size=1, max_size=4))
def test_blocks_end_to_end_are_found_like_each_alone(listed: list[list[tuple[int, int, bytes, int]]]) -> None:
    blocks = [b"".join(message((tag, message((1, t), (f, data)))) for t, f, data, tag in block) for block in listed]
    edges = [0, *itertools.accumulate(map(len, blocks))]
    found = entries.find_entries(buffer_of(b"".join(blocks)), edges)
    alone = [entries.find_entries(buffer_of(block), [0, len(block)]) for block in blocks]
    assert found.bounds.tolist() == [0, *itertools.accumulate(len(a.kinds) for a in alone)]
    for name in ("starts", "sizes", "kinds"):
        assert getattr(found, name).tolist() == [n for a in alone for n in getattr(a, name).tolist()]
    assert found.counts == sum((Counter(a.counts) for a in alone), Counter())
    gpu = entries.EventSelection(107)
    assert found.count_by_block(found.compute_selection_mask(gpu)).tolist() == [
        a.count_events_with_payload(107) for a in alone
    ]


def test_long_events_are_followed_link_by_link() -> None:
    block = message((1, message((1, 59), (102, b"x" * 70_000))), (1, b""), (1, b"\x12\0"))
    found = entries.find_entries(buffer_of(block), [0, len(block)])
    assert found.sizes.tolist() == [70_000, 0, 2]
    assert found.counts == {entries.combine_into_event_kind(102, 59): 1, entries.UNKNOWN: 2}


OFFSET = lambda a, b, text: message((1, a), (2, b), (5, text), (6, "Offset"))  # noqa: E731


def test_clocks_by_offsets() -> None:
    listed = message(
        *((1, OFFSET(*o)) for o in ((7, 1, "-5"), (1, 3, str((1 << 64) - 7)), (3, 9, "-1000"), (9, 10, "")))
    )
    header = Message(memoryview(message((16, listed), (17, 100), (18, 350))))
    assert machine.compute_time_extent(header, memoryview(b"")) == machine.TimeExtent(1012, 250)


def test_clocks_by_segments() -> None:
    kinds = message(*((1, message((1, bytes([k] * 16)), (2, k))) for k in (7, 11, 14, 15)))
    segment = lambda a, b, x, y: message(  # noqa: E731
        (1, message((1, bytes([a] * 16)), (2, bytes([b] * 16)), (3, message((1, message((1, x), (2, y))), (2, 1.0)))))
    )
    listed = segment(11, 7, 5000, 30) + segment(7, 15, 0, 0) + segment(15, 14, 100, 0)
    conversions = message((1, kinds), (2, listed))
    header = Message(memoryview(message((17, 100), (18, 350))))
    assert machine.compute_time_extent(header, memoryview(conversions)) == machine.TimeExtent(5070, 250)
    later = Message(memoryview(message((17, 90), (18, 3_000_350))))
    assert machine.compute_time_extent(later, memoryview(conversions)) == machine.TimeExtent(5070, 2_999_900)
    assert machine.compute_time_extent(Message(memoryview(b"")), memoryview(b"")) == machine.TimeExtent(None, None)


def test_a_block_that_is_shorter_than_declared_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "made.nsys-rep"
    path.write_bytes(Parts([message((1, b"\x08\x01" * 40))]).pack())
    raw = RawData(Container(Source(path)), entries.count_block_events)
    block = raw.blocks[0]
    assert len(raw.decompress(block)) == 82
    with pytest.raises(Damage, match="does not decompress to the 93 bytes that it declares"):
        raw.decompress(type(block)(block.offset, block.packed, block.size + 10))
    with pytest.raises(Damage, match="cannot be decompressed"):
        raw.decompress(type(block)(block.offset, block.packed, block.size - 10))
