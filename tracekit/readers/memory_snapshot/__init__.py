"""Read memory snapshots of PyTorch (``torch.cuda.memory._dump_snapshot``), without running the pickle that they are.

A snapshot contains the segments that the caching allocator has reserved and their blocks, the recorded events of the
allocator per device, annotations and settings.

Modules, from the file to the tables:

- ``events`` builds the events of the allocator, and the memory in use after each of them.
- ``segments`` builds the segments and their blocks.
- ``readers/common/pickled_stacks`` builds the call stacks.
- ``ranges`` builds ranges from annotations.
- ``capture`` combines the tables, and reads the settings.

Sources: PyTorch (``torch/csrc/cuda/memory_snapshot.cpp``, ``torch/csrc/cuda/Module.cpp`` and
``torch/cuda/_memory_viz.py``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.readers.memory_snapshot.capture import SnapshotCapture
    from tracekit.registry.source import Source

_PICKLE = re.compile(rb"\x80[\x02-\x05]|[(\]}]")
_MEMBER = re.compile(rb"segments|device_traces")
_SEGMENT = re.compile(rb"total_size.{1,400}allocated_size|allocated_size.{1,400}total_size", re.DOTALL)
"""Two keys of a segment. In snapshots of PyTorch up to 2.0, the segments are not in a dictionary."""
_FIRST_BYTES = 400


def sniff(source: Source) -> bool:
    """Return whether a file is a pickle that begins with the members of a snapshot."""
    head = source.head
    if not _PICKLE.match(head):
        return False
    return _MEMBER.search(head, 0, _FIRST_BYTES) is not None or _SEGMENT.search(head) is not None


def open_capture(source: Source) -> SnapshotCapture:
    """Open a memory snapshot."""
    from tracekit.readers.memory_snapshot.capture import read_snapshot

    return read_snapshot(source)


_redact = create_lazy_function("tracekit.readers.redaction.memory_snapshot", "redact")

READER = Reader(
    "memory-snapshot",
    "Memory snapshot of PyTorch (.pickle)",
    (".pickle", ".pkl"),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
