"""Traces of the PyTorch profiler (Kineto) and Chrome traces that tracekit wrote: JSON, plain or gzipped.

``stream`` unpacks, ``walk.wat`` and ``walker`` take events apart, ``document`` finds them in the file, ``cells`` makes
columns of them, ``kinds`` says which events are rows of which table, and ``capture`` makes the tables.

Source: "Trace Event Format", the Chromium project; and traces of PyTorch 1.8 (also before its release) to 2.10.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

from tracekit.registry import Reader

if TYPE_CHECKING:
    from tracekit.readers.kineto.capture import KinetoCapture
    from tracekit.registry import Source

GZIP = b"\x1f\x8b"
_BEGINS = re.compile(rb'(?:\xef\xbb\xbf)?\s*(\[\s*)?\{\s*"')
_VERSION = re.compile(rb'"schemaVersion"\s*:')
_LISTED = re.compile(rb'"(?:traceEvents|deviceProperties)"\s*:\s*\[')
_OWN = re.compile(
    rb'"producer"\s*:\s*"tracekit"'
    rb'|"cat"\s*:\s*"(?:cpu_op|user_annotation|python_function|cuda_runtime|cuda_driver|kernel|gpu_mem\w+|ac2g|fwdbwd'
    rb'|Operator|Runtime|Kernel|Memcpy|Memset)"'
)
_HEAD_BYTES = 1 << 16


def sniff(source: Source) -> bool:
    """Whether a file, unpacked, begins with JSON that holds trace events of the profiler or of tracekit.

    That is an object with the events in it, or, of the profiler of 2020, nothing but their array. Other facts may stand
    before the events, so that more of the file is looked at if it is JSON.
    """
    begun = _unpacked(source.head)
    found = _BEGINS.match(begun)
    if found is None:
        return False
    return _is_trace(begun, listed=bool(found[1])) or _is_trace(_more(source), listed=bool(found[1]))


def _is_trace(head: bytes, *, listed: bool) -> bool:
    own = _OWN.search(head) is not None
    return own if listed else _LISTED.search(head) is not None and (own or _VERSION.search(head) is not None)


def _more(source: Source) -> bytes:
    if not source.path.is_file():
        return b""
    with source.path.open("rb") as file:
        return _unpacked(file.read(_HEAD_BYTES))


def _unpacked(head: bytes) -> bytes:
    if not head.startswith(GZIP):
        return head
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""


def open_(source: Source) -> KinetoCapture:
    """Read a trace."""
    from tracekit.readers.kineto.capture import read

    return read(source)


READER = Reader(
    "kineto", "PyTorch profiler trace (.json, .json.gz); Chrome traces of tracekit", (".json", ".gz"), sniff, open_
)
