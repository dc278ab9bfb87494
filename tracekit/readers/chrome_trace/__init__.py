"""Read Chrome traces of any program, such as VizTracer, the developer tools of Chrome, TVM or ONNX Runtime.

The file is an array of events as plain or gzipped JSON, or an object that has this array as a member. The array may be
truncated. Traces of the PyTorch profiler and of tracekit state more, and are read by ``readers/kineto``.

Modules, from the file to the tables:

- ``readers/common/json`` reads the file and converts the events, batch by batch, to Arrow arrays.
- ``events`` divides the events into slices, marks, counters and names.
- ``slices`` matches the events that begin and end a slice.
- ``capture`` builds the tables.

Source: "Trace Event Format" of the Chromium project.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.readers.common.json.heads import JSON_START, iterate_heads
from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.readers.chrome_trace.capture import ChromeTraceCapture
    from tracekit.registry.source import Source

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_PHASE = re.compile(rb'"ph"\s*:\s*"[A-Za-z(),]"')


def sniff(source: Source) -> bool:
    """Return whether a plain or gzipped file begins like a Chrome trace."""
    for head in iterate_heads(source):
        json_start = JSON_START.match(head)
        if json_start is None:
            return False
        if (_PHASE if json_start[1] else _EVENTS).search(head):
            return True
    return False


def open_capture(source: Source) -> ChromeTraceCapture:
    """Open a Chrome trace."""
    from tracekit.readers.chrome_trace.capture import read_trace

    return read_trace(source)


_redact = create_lazy_function("tracekit.readers.redaction.kineto", "redact")
READER = Reader(
    "chrome-trace",
    "Chrome trace events (JSON) of any program, as ranges",
    (".json", ".gz"),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
