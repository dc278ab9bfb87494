"""Frames of TFRecord against an oracle that reads them one octet at a time, and CRC32C against known sums."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import tfevents as files
from tracekit.errors import TracekitError
from tracekit.native import crc32c
from tracekit.readers.tfevents import records
from tracekit.readers.tfevents.records import ReadBuffers, RecordReader
from tracekit.system.files import InputFile


@given(st.binary(max_size=300))
def test_all_ways_to_sum_agree(data: bytes) -> None:
    assert crc32c.compute_masked_crc32c(data) == files.masked(data)
    found = walked(files.framed(data))
    assert (found.result, found.offset, found.starts.tolist(), found.stops.tolist()) == (
        records.NEED_MORE,
        16 + len(data),
        [12],
        [12 + len(data)],
    )


def walked(data: bytes) -> records.RecordBounds:
    sandbox = records.RecordSandbox(len(data))
    sandbox.data[:] = np.frombuffer(data, np.uint8)
    return sandbox.find_records(0, len(data))


def read(path: Path, size: int) -> tuple[list[bytes], RecordReader]:
    """The data of the records of a file, read in windows of a size."""
    with InputFile(path, may_grow=True) as file:
        made = RecordReader(file, ReadBuffers(size))
        found = [
            bytes(batch.buffer.data[start:stop])
            for batch in made.iterate_record_batches()
            for start, stop in zip(batch.starts, batch.stops, strict=True)
        ]
    return found, made


@given(
    st.lists(st.binary(max_size=60), max_size=12),
    st.integers(records.HEADER_BYTES, 200),
    st.integers(0, 40),
    st.one_of(st.none(), st.tuples(st.integers(0, 10_000), st.integers(1, 255))),
)
def test_windows_give_what_the_oracle_gives(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[bytes],
    size: int,
    cut: int,
    harm: tuple[int, int] | None,
) -> None:
    data = bytearray(b"".join(map(files.framed, parts)))
    del data[len(data) - cut :]
    if harm and data:
        data[harm[0] % len(data)] ^= harm[1]
    path = tmp_path_factory.mktemp("records") / "file"
    path.write_bytes(data)
    found, made = read(path, size)
    expected = files.frames(bytes(data))
    assert found == expected
    assert made.count == len(expected)
    assert made.end == sum(16 + len(part) for part in expected)
    assert made.remaining_bytes == len(data) - made.end
    if not harm:
        assert made.damage is None


def test_batches_know_where_they_lie(tmp_path: Path) -> None:
    dice = random.Random(1)
    parts = [dice.randbytes(dice.randrange(100)) for _ in range(200)]
    path = tmp_path / "file"
    path.write_bytes(b"".join(map(files.framed, parts)))
    whole, seen = path.read_bytes(), []
    with InputFile(path, may_grow=True) as file:
        for batch in RecordReader(file, ReadBuffers(256)).iterate_record_batches():
            for start, stop in zip(batch.starts, batch.stops, strict=True):
                seen.append(whole[batch.offset + start : batch.offset + stop])
    assert seen == parts


def test_more_records_than_are_found_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORDS", 3)
    path = tmp_path / "file"
    path.write_bytes(b"".join(files.framed(bytes([i])) for i in range(20)))
    found, made = read(path, 1000)
    assert found == [bytes([i]) for i in range(20)]
    assert made.damage is None


def test_what_is_appended_after_opening_waits(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(files.framed(b"a") * 3)
    with InputFile(path, may_grow=True) as file:
        made = RecordReader(file, ReadBuffers(20))
        batches = made.iterate_record_batches()
        next(batches)
        with path.open("ab") as more:
            more.write(files.framed(b"b"))
        assert sum(len(b.starts) for b in batches) == 2
        assert (made.count, made.remaining_bytes) == (3, 0)


def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(files.framed(b"a") * 10)
    with InputFile(path, may_grow=True) as file:
        made = RecordReader(file, ReadBuffers(20))
        batches = made.iterate_record_batches()
        next(batches)
        os.truncate(path, 17 * 4 + 5)
        with pytest.raises(TracekitError, match="changed while it was open: it had 170 bytes, but now it has 73"):
            list(batches)


@pytest.mark.parametrize("size", [records.MAX_RECORD_BYTES + 1, 1 << 32, (1 << 64) - 1])
def test_a_size_beyond_all_events(tmp_path: Path, size: int) -> None:
    header = struct.pack("<Q", size)
    path = tmp_path / "file"
    path.write_bytes(files.framed(b"a") + header + struct.pack("<I", files.masked(header)) + bytes(50))
    found, made = read(path, 64)
    assert found == [b"a"]
    assert made.damage == f"a record of {size} bytes exceeds tracekit's limit of {records.MAX_RECORD_BYTES}"
    assert (made.end, made.remaining_bytes) == (17, 62)


def test_a_size_beyond_the_file_takes_no_memory(tmp_path: Path) -> None:
    header = struct.pack("<Q", records.MAX_RECORD_BYTES)
    path = tmp_path / "file"
    path.write_bytes(header + struct.pack("<I", files.masked(header)) + bytes(50))
    found, made = read(path, 64)
    assert (found, made.damage, made.remaining_bytes) == ([], None, 62)
