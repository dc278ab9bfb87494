"""Deflate in C: zlib decompresses every result, and results are as small as those of zlib's lowest level."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.native import deflate
from tracekit.native.arrays import ArraySandbox

WORDS = st.lists(st.binary(max_size=12), min_size=1, max_size=6)


def check(data: bytes) -> bytes:
    compressed = deflate.Compressor().compress(data)
    assert zlib.decompress(compressed) == data
    return compressed


@given(st.binary(max_size=600))
def test_any_bytes(data: bytes) -> None:
    check(data)


@given(WORDS, st.lists(st.integers(0, 5), max_size=300), st.integers(0, 300))
def test_words_that_occur_again(words: list[bytes], chosen: list[int], repeated: int) -> None:
    check(b"".join(words[n % len(words)] for n in chosen) + words[0] * repeated)


@pytest.mark.parametrize("piece", [1, 5, 1000])
def test_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deflate, "_PIECE_BYTES", piece)
    check(random.Random(piece).randbytes(2500) + b"ab" * 1000)


def test_more_than_one_block_and_window() -> None:
    generator = random.Random(1)
    noise = generator.randbytes(3 << deflate._HASH_BITS)
    distant = noise[: 1 << 15] + generator.randbytes(5) + noise[:99]
    # Fibonacci numbers are the counts with the longest codes.
    skewed = b"".join(bytes([n]) * count for n, count in enumerate(_fibonacci(24)))
    shuffled = bytes(generator.sample(skewed, len(skewed)))
    for data in (noise, distant, noise + noise, shuffled, bytes(1 << 20), b""):
        check(data)


def _fibonacci(count: int) -> list[int]:
    numbers = [1, 1]
    while len(numbers) < count:
        numbers.append(sum(numbers[-2:]))
    return numbers


def test_records_are_as_small_as_those_of_zlib() -> None:
    generator = random.Random(2)
    records = [b"name %d of %d, at %d\x00\x01\x02" % (n, n % 7, generator.randrange(10**6)) for n in range(30_000)]
    data = b"".join(records)
    assert len(check(data)) < 1.03 * len(zlib.compress(data, 1))


@given(st.integers(0, 300), st.integers(0, 2**32 - 1), st.binary(max_size=64))
def test_invalid_parameters_are_an_error(size: int, capacity: int, content: bytes) -> None:
    sandbox = ArraySandbox(deflate.PROGRAM)
    arrays = sandbox.allocate("deflate", **deflate._SIZES, input=64, output=deflate._SLACK)
    arrays["input"][: len(content)] = np.frombuffer(content, np.uint8)
    try:
        written = sandbox.call("deflate", size=size, capacity=capacity)
    except MemoryError:
        return
    assert written <= max(capacity, 5)
