"""Compress bytes with deflate, by a loop in C that is faster than zlib at its lowest level.

Importing this module imports ``wasmtime``, which takes about 40 ms. It should be imported when it is first needed.
"""

from __future__ import annotations

import threading
import zlib
from typing import Final

import numpy as np

from tracekit.native.arrays import ArraySandbox
from tracekit.native.program import Program

LAST_BLOCK: Final = b"\x03\x00"
"""An empty block, which is the last one of a stream."""
_ZLIB_HEADER: Final = b"\x78\x01"
_BYTE_VALUES, _LENGTHS, _DISTANCES, _MAX_BITS = 256, 29, 30, 15
_HASH_BITS: Final = 14
_BLOCK_TOKENS: Final = 1 << 15
_PIECE_BYTES: Final = 1 << 22
"""Number of bytes that are compressed at a time, without references to earlier bytes."""
_SLACK: Final = 8 * _BLOCK_TOKENS + 1024
_SYMBOLS: Final = _BYTE_VALUES + 1 + _LENGTHS
_SIZES: Final = {
    "tokens": _BLOCK_TOKENS,
    "heads": 2 << _HASH_BITS,
    **{f"symbol_{name}": _SYMBOLS for name in ("counts", "lengths", "codes")},
    **{f"distance_{name}": _DISTANCES for name in ("counts", "lengths", "codes")},
    "sorted": _SYMBOLS,
    "weights": _SYMBOLS,
    "lengths": _MAX_BITS + 1,
}
PROGRAM: Final = Program(
    "deflate",
    {"deflate": ("size", "capacity")},
    {
        "BYTE_VALUES": _BYTE_VALUES,
        "SYMBOLS": _SYMBOLS,
        "DISTANCES": _DISTANCES,
        "MAX_BITS": _MAX_BITS,
        "HASH_BITS": _HASH_BITS,
        "BLOCK_TOKENS": _BLOCK_TOKENS,
        "SLACK": _SLACK,
        "WINDOW": 1 << 15,
        "MAX_MATCH": 257,
        "HASH_FACTOR": 0x9E3779B1 - (1 << 32),
    },
    {
        "deflate": {
            **dict.fromkeys(("input", "output"), np.uint8),
            **dict.fromkeys(("tokens", "heads", "symbol_counts", "distance_counts", "weights", "lengths"), np.uint32),
            **dict.fromkeys(("symbol_lengths", "distance_lengths"), np.uint8),
            **dict.fromkeys(("symbol_codes", "distance_codes", "sorted"), np.uint16),
        }
    },
)


class Compressor(threading.local):
    """A compressor with one sandbox per thread."""

    def __init__(self) -> None:
        self._sandbox = ArraySandbox(PROGRAM)

    def compress(self, data: memoryview | bytes) -> bytes:
        """Compress bytes to a zlib stream."""
        checksum = zlib.adler32(data).to_bytes(4, "big")
        return b"".join([_ZLIB_HEADER, self.compress_to_blocks(data), LAST_BLOCK, checksum])

    def compress_to_blocks(self, data: memoryview | bytes) -> bytes:
        """Compress bytes to blocks of deflate, of which none is the last one. They end at a byte boundary."""
        source, blocks = np.frombuffer(data, np.uint8), []
        for start in range(0, len(source), _PIECE_BYTES):
            piece = source[start : start + _PIECE_BYTES]
            capacity = len(piece) + len(piece) // 8 + _SLACK
            arrays = self._sandbox.allocate("deflate", input=len(piece), output=capacity, **_SIZES)
            arrays["input"][:] = piece
            size = self._sandbox.call("deflate", size=len(piece), capacity=capacity)
            blocks.append(arrays["output"][:size].tobytes())
        return b"".join(blocks)
