"""Read profiles of XLA (``*.xplane.pb``), which JAX, TensorFlow and PyTorch/XLA write.

A profile is an ``XSpace``, which consists of planes: one per device, one for the host, and some with metadata. A plane
consists of lines, and a line of events. Names of events and of their values are stored once per plane.

Modules, from the file to the tables:

- ``space`` decodes planes, lines and events.
- ``values`` decodes the values of events.
- ``programs`` decodes the compiled programs (HLO) that a profile contains.
- ``devices`` builds the activities and devices, and ``hosts`` the threads, ranges and API calls.
- ``thunks`` builds the ranges of the operations that launched activities.
- ``viewer`` reads the trace beside a profile (``.trace.json.gz``) as if it were a profile.
- ``cores`` reads what TPU cores ran, and ``launches`` finds out where the host launched it.
- ``capture`` combines the tables.

Sources: the messages of XLA (``xplane.proto``, ``hlo.proto``, ``xla_data.proto``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.readers.common.json.heads import JSON_START, decompress_head, iterate_heads
from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.readers.xplane.capture import ProfileCapture
    from tracekit.registry.source import Source

NAME_OF_PLANE = re.compile(rb"/(?:host|device):|Task Environment$|#Chip")
_VIEWER_TRACE = re.compile(
    rb'"process_name"[^{}]{0,200}\{\s*"name"\s*:\s*"/(?:host|device):'
    rb'|\{\s*"name"\s*:\s*"/(?:host|device):[^"]{0,200}"\s*\}[^{}]{0,200}"process_name"'
)
_PLANE = 0x0A
_NAME = 2


def sniff(source: Source) -> bool:
    """Return whether a plain or gzipped file begins like a profile or like the trace beside it."""
    return is_profile(source) or is_viewer_trace(source)


def is_viewer_trace(source: Source) -> bool:
    """Return whether a file begins like the trace that the profiler writes for the trace viewer."""
    for head in iterate_heads(source):
        json_start = JSON_START.match(head)
        if json_start is None or json_start[1]:
            return False
        if _VIEWER_TRACE.search(head):
            return True
    return False


def is_profile(source: Source) -> bool:
    """Return whether the first message in a file is a plane with a name as XLA's profilers give."""
    from tracekit.readers.common.damage import Damage
    from tracekit.readers.common.protobuf.decoding import read_fields, read_varint

    head = memoryview(decompress_head(source.head))
    if not head or head[0] != _PLANE:
        return False
    try:
        size, start = read_varint(head, 1)
        for number, value in read_fields(head[start : start + size]):
            if number == _NAME:
                return isinstance(value, memoryview) and NAME_OF_PLANE.match(value) is not None
    except Damage:
        pass
    return False


def open_capture(source: Source) -> ProfileCapture:
    """Open a profile of XLA."""
    from tracekit.readers.xplane.capture import read_profile

    return read_profile(source)


_redact = create_lazy_function("tracekit.readers.redaction.xplane", "redact")

READER = Reader(
    "xplane",
    "Profile of XLA (JAX, TensorFlow) with kernels of GPUs and TPUs (.xplane.pb, .trace.json.gz)",
    (".pb", ".gz", ".json"),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
