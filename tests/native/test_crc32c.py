"""CRC-32C against known sums, and against the bits one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import tfevents as plain
from tracekit.native import crc32c

KNOWN = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]
"""Sums of RFC 3720, B.4, and the usual check of nine digits."""


@pytest.mark.parametrize(("data", "expected"), KNOWN)
def test_known_sums(data: bytes, expected: int) -> None:
    assert plain.crc32c(data) == expected
    turned = (expected >> 15 | expected << 17) & 0xFFFFFFFF
    assert crc32c.compute_masked_crc32c(data) == plain.masked(data) == (turned + 0xA282EAD8) % (1 << 32)


@given(st.integers(0, 3000), st.integers(0, 255))
def test_any_length(length: int, seed: int) -> None:
    data = bytes((i * i + seed) % 251 for i in range(length))
    assert crc32c.compute_masked_crc32c(data) == plain.masked(data)


@pytest.mark.parametrize("window", [1, 7, 100, 512])
def test_data_longer_than_a_window(window: int) -> None:
    data = bytes(range(256)) * 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crc32c, "_WINDOW_BYTES", window)
        assert crc32c.compute_masked_crc32c(data) == plain.masked(data)
