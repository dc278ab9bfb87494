"""Compute CRC-32C (Castagnoli), the checksum that TFRecord files use.

The checksum is computed by the same WebAssembly functions that check the records of event files while they are read.
"""

from __future__ import annotations

import atexit
import functools
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.native.program import Program
    from tracekit.native.sandbox import Sandbox

_TABLES, _BUFFER = 1024, 16384
"""Offsets of the CRC-32C tables and of the input bytes in the memory of the sandbox."""
_WINDOW_BYTES = 1 << 20
_LOCK = threading.Lock()


def compute_masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C of bytes, as in TFRecord files: the CRC rotated right by 15 bits, plus a constant."""
    import numpy as np

    masked = crc = 0
    with _LOCK:
        sandbox = _create_sandbox()
        for start in range(0, len(data) or 1, _WINDOW_BYTES):
            window = np.frombuffer(data, np.uint8)[start : start + _WINDOW_BYTES]
            sandbox.bytes(_BUFFER, len(window))[:] = window
            masked = sandbox.call("checksum", crc=crc, offset=_BUFFER, size=len(window))
            crc = sandbox.parameter("checksum", "crc")
    return masked & 0xFFFFFFFF


@functools.cache
def _create_sandbox() -> Sandbox:
    from tracekit.native.sandbox import Sandbox

    atexit.register(_create_sandbox.cache_clear)  # otherwise wasmtime is unloaded before the cached sandbox is freed
    message = "the CRC-32C program accessed an offset outside its memory"
    sandbox = Sandbox(build_program(), _BUFFER + _WINDOW_BYTES, lambda: MemoryError(message))
    sandbox.call("fill_tables")
    return sandbox


@functools.cache
def build_program() -> Program:
    """Return the program that computes checksums."""
    from tracekit.native.program import Program

    parameters = {"checksum": ("crc", "offset", "size"), "fill_tables": ()}
    return Program("crc32c", parameters, {"CRC_TABLES": _TABLES})
