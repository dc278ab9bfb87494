"""Read timelines of the Ascend PyTorch profiler (``trace_view.json``).

The file is an array of Chrome events. The ops of PyTorch have categories, as in traces of PyTorch's own profiler. All
other events have the process of their layer, whose name a metadata event states: ``CANN`` for calls on the CPU,
``Ascend Hardware`` for tasks of the NPU, and ``HCCL`` or ``Communication`` for collectives. Times are strings.

Sources: torch_npu, ``profiler/analysis/prof_common_func/_trace_event_manager.py``; MindStudio, "Profile Data File
References" (``msprof_*.json``).
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.readers.ascend.capture import AscendCapture
    from tracekit.registry.source import Source

GZIP = b"\x1f\x8b"
_EVENTS = re.compile(rb'(?:\xef\xbb\xbf)?\s*(?:\[\s*\{|\{\s*"traceEvents"\s*:\s*\[)')
_LAYERS = re.compile(rb'"name"\s*:\s*"(?:Ascend Hardware|CANN)"|"cat"\s*:\s*"(?:async_npu|async_task_queue|enqueue)"')
_TIME_TEXT, _OP = re.compile(rb'"ts"\s*:\s*"\d{6,}'), re.compile(rb'"cat"\s*:\s*"cpu_op"|"Physic Stream Id"')
_HEAD_BYTES = 1 << 16


def sniff(source: Source) -> bool:
    """Return whether a file begins like a timeline of the Ascend PyTorch profiler."""
    if not _EVENTS.match(_decompress(source.head)) or not source.path.is_file():
        return False
    with source.path.open("rb") as file:
        head = _decompress(file.read(_HEAD_BYTES))
    return _LAYERS.search(head) is not None or bool(_TIME_TEXT.search(head) and _OP.search(head))


def _decompress(head: bytes) -> bytes:
    if not head.startswith(GZIP):
        return head
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""


def open_capture(source: Source) -> AscendCapture:
    """Open a timeline of the Ascend PyTorch profiler."""
    from tracekit.readers.ascend.capture import read_timeline

    return read_timeline(source)


_redact = create_lazy_function("tracekit.readers.redaction.kineto", "redact")
READER = Reader(
    "ascend",
    "Timeline of the Ascend PyTorch profiler (trace_view.json)",
    (".json", ".gz"),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
