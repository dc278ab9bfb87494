"""Repeated fields are found as they are when messages are taken apart one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.nsys_rep import message
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf import decoding
from tracekit.readers.common.protobuf.decoding import Buffer, find_occurrences, read_fields

VALUES = st.integers(0, (1 << 64) - 1) | st.binary(max_size=200) | st.floats(allow_nan=False)
MESSAGES = st.lists(st.lists(st.tuples(st.sampled_from([1, 2, 3, 15, 16, 2047]), VALUES), max_size=9), max_size=20)
WANTED = (2, 2047, 1)


def placed(parts: list[bytes]) -> tuple[Buffer, np.ndarray, np.ndarray]:
    data = b"".join(parts)
    buffer = Buffer(len(data))
    buffer.data[: len(data)] = np.frombuffer(data, np.uint8)
    ends = np.cumsum([len(p) for p in parts], dtype=np.int64)
    return buffer, ends - np.array([len(p) for p in parts], np.int64), ends


def found(parts: list[bytes]) -> dict[int, list[tuple[int, bytes]]]:
    buffer, starts, stops = placed(parts)
    made = find_occurrences(buffer, starts, stops, WANTED)
    return {
        number: [(row, buffer.data[a:b].tobytes()) for row, a, b in zip(o.rows, o.starts, o.stops, strict=True)]
        for number, o in zip(WANTED, made, strict=True)
    }


def expected(parts: list[bytes], messages: list[list[tuple[int, int | bytes | float]]]) -> dict[int, list[object]]:
    wanted: dict[int, list[object]] = {number: [] for number in WANTED}
    for row, (data, encoded) in enumerate(zip(parts, messages, strict=True)):
        for (number, value), (_, told) in zip(read_fields(memoryview(data)), encoded, strict=True):
            if number in wanted and isinstance(told, bytes):
                wanted[number].append((row, bytes(value)))  # type: ignore[arg-type]
    return wanted


@given(MESSAGES, st.sampled_from([1, 3, 1 << 14]))
def test_every_occurrence_is_found(messages: list[list[tuple[int, int | bytes | float]]], rows: int) -> None:
    parts = [message(*m) for m in messages]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "MAX_ROWS", rows)
        assert found(parts) == expected(parts, messages)


def test_more_than_there_is_room_for_at_once() -> None:
    n = 700_000
    buffer, starts, stops = placed([b"\x0a\x01x" * n, b"\x0a\x00"])
    one, two = find_occurrences(buffer, starts, stops, (1, 2))
    assert len(one) == n + 1
    assert (one.starts[:n] == np.arange(n) * 3 + 2).all()
    assert one.rows.tolist() == [0] * n + [1]
    assert len(two) == 0


@pytest.mark.parametrize(
    ("octets", "said"),
    [
        (b"\x0a\x00\x0a\x05a", r"a field extends beyond the end of its message \(offset 2 of 5\)"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", r"extends beyond the end of its message \(offset 0 of 11\)"),
        (b"\x0a\x00\x0b", r"a field has an unknown wire type \(offset 2 of 3\)"),
        (b"\x0a\x00\x09abc", r"a field extends beyond the end of its message \(offset 2 of 6\)"),
        (b"\xff\xff\x01", r"a field has an unknown wire type \(offset 0 of 3\)"),
        (b"\xf8\xff\xff\xff\xff\x01", r"a number of 2\^29 or more \(offset 0 of 6\)"),
        (b"\x08\xff", r"extends beyond the end of its message \(offset 0 of 2\)"),
    ],
)
def test_damage_is_told_with_its_place(octets: bytes, said: str) -> None:
    with pytest.raises(Damage, match=said):
        found([octets])


def test_large_numbers_of_fields_are_skipped() -> None:
    large = b"\xc2\xbb\x01\x02ab" + b"\x88\x80\x80\x80\x01\x05" + b"\x80\x80\x01\x07"
    buffer, starts, stops = placed([large + b"\x0a\x01x" + large])
    (one,) = find_occurrences(buffer, starts, stops, (1,))
    assert (one.starts.tolist(), len(one)) == ([len(large) + 2], 1)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ((), "^0 fields were requested, but 1 to 255 fields are allowed$"),
        ((0,), r"^field numbers from 1 to 2047 are supported, but not \[0\]$"),
        ((5, 2048), r"^field numbers from 1 to 2047 are supported, but not \[2048\]$"),
        (tuple(range(1, 300)), "^299 fields were requested, but 1 to 255 fields are allowed$"),
    ],
)
def test_fields_that_cannot_be_found(wanted: tuple[int, ...], said: str) -> None:
    buffer, starts, stops = placed([b""])
    with pytest.raises(ValueError, match=said):
        find_occurrences(buffer, starts, stops, wanted)


@given(MESSAGES, st.sampled_from([1, 3, 1 << 14]))
def test_extents_reach_from_the_first_occurrence_to_the_last(
    messages: list[list[tuple[int, int | bytes | float]]], rows: int
) -> None:
    messages = [[(number, value) for number, value in m if number == 2 or isinstance(value, int)] for m in messages]
    buffer, starts, stops = placed([message(*m) for m in messages])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "MAX_ROWS", rows)
        fields = decoding.decode(buffer, starts, stops, (1, 2, 3), 2)
        plain = decoding.decode(buffer, starts, stops, (1, 3))
    extents = fields.pop(2, decoding.Field(np.zeros(len(starts)), starts, np.zeros(len(starts), np.bool_), 2))
    assert_equal_fields(fields, plain)
    valid = np.ones(len(starts), np.bool_) if extents.valid is None else extents.valid
    for nth, (sent, start) in enumerate(zip(messages, starts.tolist(), strict=True)):
        held = [n for n, (number, value) in enumerate(sent) if number == 2 and isinstance(value, bytes)]
        edges = [start + len(message(*sent[:n])) for n in range(len(sent) + 1)]
        assert valid[nth] == bool(held)
        if held:
            begins, ends = extents.compute_byte_ranges()
            assert (begins[nth], ends[nth]) == (edges[held[0]], edges[held[-1] + 1])


def assert_equal_fields(fields: dict[int, decoding.Field], others: dict[int, decoding.Field]) -> None:
    assert fields.keys() == others.keys()
    for number, field in fields.items():
        assert field.values.tolist() == others[number].values.tolist()
        assert (field.valid is None) == (others[number].valid is None)


@pytest.mark.parametrize("data", [b"\x12\x05a", b"\x12", b"\x13", b"\x08", b"\x80\x80\x01", b"\x12\xff\xff", b"\x09a"])
def test_extents_of_damaged_messages(data: bytes) -> None:
    with pytest.raises(Damage):
        decoding.decode(*placed([b"\x12\x01a", data]), (2,), 2)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 16_383, 16_384])
def test_lengths_of_one_byte_and_more(size: int) -> None:
    parts = [message((2, b"x" * size), (1, size)), message((1, size), (2, b"x" * size))]
    fields = decoding.decode(*placed(parts), (1, 2))
    assert fields[1].values.tolist() == [size, size]
    begins, ends = fields[2].compute_byte_ranges()
    assert (ends - begins).tolist() == [size, size]
