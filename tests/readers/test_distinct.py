"""Texts told apart where they lie are the texts that lie there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf import decoding
from tracekit.readers.common.protobuf.decoding import Buffer, dictionary_encode

TEXTS = st.binary(max_size=40) | st.sampled_from([b"", b"\0", b"a", b"a\0", b"forward", b"forward/layer1", b"x" * 300])


def placed(texts: Sequence[bytes], between: bytes = b"") -> tuple[Buffer, np.ndarray, np.ndarray]:
    data = b"".join(t + between for t in texts)
    buffer = Buffer(len(data))
    buffer.data[: len(data)] = np.frombuffer(data, np.uint8)
    sizes = np.array([len(t) for t in texts], np.int64)
    starts = np.cumsum(sizes + len(between)) - sizes - len(between)
    return buffer, starts, starts + sizes


@given(st.lists(TEXTS, max_size=60), st.binary(max_size=50), st.sampled_from([1, 7, 1 << 14]))
def test_every_text_once_in_order_of_first_use(texts: list[bytes], between: bytes, rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "MAX_ROWS", rows)
        made = dictionary_encode(*placed(texts, between))
    assert made.to_pylist() == texts
    assert made.dictionary.to_pylist() == list(dict.fromkeys(texts))


@given(st.lists(TEXTS, max_size=60), st.sampled_from([1, 2, 8, 16]))
def test_more_texts_than_the_table_takes(texts: list[bytes], places: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "MAX_STRINGS", places)
        made = dictionary_encode(*placed(texts))
    assert made.to_pylist() == texts
    assert made.dictionary.to_pylist() == list(dict.fromkeys(texts))


@pytest.mark.parametrize("size", [7, 31, 32, 33, 63, 64, 65, 95, 96, 100, 128, 136, 300])
def test_long_texts_that_differ_in_one_byte(size: int) -> None:
    text = bytes(n * 7 % 256 for n in range(size))
    texts = [text, *(text[:n] + bytes([text[n] ^ 1]) + text[n + 1 :] for n in range(size)), text[:-1]]
    made = dictionary_encode(*placed(texts * 2, b"-"))
    assert made.dictionary.to_pylist() == texts
    assert made.to_pylist() == texts * 2


def test_many_different_texts() -> None:
    texts = [b"%d" % (n % 50_000) for n in range(120_000)]
    made = dictionary_encode(*placed(texts))
    assert made.cast(pa.binary()).equals(pa.array(texts))
    assert len(made.dictionary) == 50_000


@pytest.mark.parametrize("edges", [(0, 9), (9, 9), (3, 2), (-1, 2), (1 << 40, 1 << 40), (0, 1 << 32)])
def test_places_beyond_the_bytes(edges: tuple[int, int]) -> None:
    buffer, *_ = placed([b"abcdefgh"])
    with pytest.raises(Damage, match="a field extends beyond the end of its message"):
        dictionary_encode(buffer, np.array(edges[:1]), np.array(edges[1:]))
