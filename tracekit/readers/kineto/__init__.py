"""Traces of the PyTorch profiler (Kineto) and Chrome traces that tracekit wrote: JSON, plain or gzipped.

``stream`` unpacks, ``walk.wat`` and ``walker`` take events apart, ``document`` finds them in the file, ``cells`` makes
columns of them, ``kinds`` says which events are rows of which table, and ``capture`` makes the tables.

Source: "Trace Event Format", the Chromium project; and traces of PyTorch 1.8 to 2.10.
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
_BEGINS = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"')
_VERSION = re.compile(rb'"schemaVersion"\s*:')
_LISTED = re.compile(rb'"(?:traceEvents|deviceProperties)"\s*:\s*\[')
_OWN = re.compile(
    rb'"producer"\s*:\s*"tracekit"'
    rb'|"cat"\s*:\s*"(?:cpu_op|user_annotation|python_function|cuda_runtime|cuda_driver|kernel|gpu_mem\w+|ac2g|fwdbwd)"'
)
_HEAD_BYTES = 1 << 16


def sniff(source: Source) -> bool:
    """Whether a file, unpacked, begins with a JSON object that holds trace events of the profiler or of tracekit."""
    head = source.head
    if head.startswith(GZIP):
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _HEAD_BYTES)
        except zlib.error:
            return False
    marks = _LISTED, (_VERSION if _VERSION.search(head) else _OWN)
    return _BEGINS.match(head) is not None and all(mark.search(head) for mark in marks)


def open_(source: Source) -> KinetoCapture:
    """Read a trace."""
    from tracekit.readers.kineto.capture import read

    return read(source)


READER = Reader(
    "kineto", "PyTorch profiler trace (.json, .json.gz); Chrome traces of tracekit", (".json", ".gz"), sniff, open_
)
