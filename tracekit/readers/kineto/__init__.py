"""Read traces of the PyTorch profiler (Kineto) and Chrome traces that tracekit wrote, as plain or gzipped JSON.

Modules, from the file to the tables:

- ``readers/common/json`` reads the file and converts the events, batch by batch, to Arrow arrays.
- ``keys`` declares which members of the events are read, and ``quotes`` repairs names with unescaped quotes.
- ``event_tables`` assigns each event to a table.
- ``rows``, ``tracks``, ``labels`` and ``machine`` compute the columns of the tables.
- ``capture`` builds the tables.

Sources: "Trace Event Format" of the Chromium project, and traces of PyTorch 1.8 (including pre-releases) to 2.10.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.readers.common.json.heads import JSON_START, iterate_heads
from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.readers.kineto.capture import KinetoCapture
    from tracekit.registry.source import Source

_SCHEMA_VERSION = re.compile(rb'"schemaVersion"\s*:')
_PROFILER_ARRAYS = re.compile(rb'"(?:traceEvents|deviceProperties)"\s*:\s*\[')
_PROFILER_EVENTS = re.compile(
    rb'"producer"\s*:\s*"tracekit"'
    rb'|"cat"\s*:\s*"(?:cpu_op|user_annotation|python_function|\w{1,40}_(?:runtime|driver)|kernel|gpu_mem\w+|ac2g|fwdbwd'
    rb'|Operator|Runtime|Kernel|Memcpy|Memset)"'
)


def sniff(source: Source) -> bool:
    """Return whether a plain or gzipped file begins like a trace that the PyTorch profiler or tracekit wrote.

    A trace is a JSON object with an array of events. Traces that the profiler wrote in 2020 consist of the array alone.
    Other members of the object may precede the array. Therefore, a longer section of the file is examined if the first
    bytes are JSON without a sign of a trace.
    """
    for head in iterate_heads(source):
        json_start = JSON_START.match(head)
        if json_start is None:
            return False
        if _is_profiler_trace(head, is_array=bool(json_start[1])):
            return True
    return False


def _is_profiler_trace(head: bytes, *, is_array: bool) -> bool:
    has_events = _PROFILER_EVENTS.search(head) is not None
    if is_array:
        return has_events
    return _PROFILER_ARRAYS.search(head) is not None and (has_events or _SCHEMA_VERSION.search(head) is not None)


def open_capture(source: Source) -> KinetoCapture:
    """Open a trace of the PyTorch profiler, or a Chrome trace that tracekit wrote."""
    from tracekit.readers.kineto.capture import read_capture

    return read_capture(source)


def read_leading_job_metadata(source: Source) -> dict[str, str]:
    """Return the metadata of a distributed job, such as the rank, if it is stored before the events of a trace.

    The events are not read. ``capture.read_leading_job_metadata`` documents the keys of the result.
    """
    from tracekit.readers.kineto import capture

    return capture.read_leading_job_metadata(source)


_redact = create_lazy_function("tracekit.readers.redaction.kineto", "redact")
READER = Reader(
    "kineto",
    "PyTorch profiler trace (.json, .json.gz); Chrome traces of tracekit",
    (".json", ".gz"),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
    leading_info=read_leading_job_metadata,
)
