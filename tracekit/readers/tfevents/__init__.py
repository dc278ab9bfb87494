"""Event files of TensorFlow and TensorBoard, one of them or a folder of runs.

``folders`` finds the files, ``records`` reads their frames, which ``walk.wat`` and ``walker`` find and check;
``events`` takes events apart, ``values`` and ``tensors`` what summaries hold, ``step_stats`` traced runs; ``runs`` puts
together what the files of a run hold, ``exported`` reads traced runs among their values, ``graphs`` their graphs, and
``capture`` makes the tables.

Source: the messages of TensorFlow (``event.proto``, ``summary.proto``, ``step_stats.proto``), and its record format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit import registry
from tracekit.registry import Reader

if TYPE_CHECKING:
    from tracekit.readers.tfevents.capture import EventsCapture
    from tracekit.registry import Source

_HEADER_BYTES = 12


def sniff(source: Source) -> bool:
    """Whether a file begins with a size and its sum, as TFRecord does, or a folder holds files named as event files.

    A folder of other captures is none because a folder in it has event files.

    A file that has not even these bytes yet is known by its name.
    """
    from tracekit.readers.tfevents import folders

    if len(source.head) >= _HEADER_BYTES:
        return not any(source.head[4:8]) and _is_header(source.head[:_HEADER_BYTES])
    if source.names:
        return folders.holds_events(source.path) and (
            any(folders.MARK in name for name in source.names) or not registry.captures_in(source)
        )
    return folders.MARK in source.path.name and source.path.is_file()


def _is_header(head: bytes) -> bool:
    from tracekit.crc32c import masked

    return masked(head[:8]) == int.from_bytes(head[8:], "little")


def open_(source: Source) -> EventsCapture:
    """Read event files."""
    from tracekit.readers.tfevents.capture import read

    return read(source)


READER = Reader("tfevents", "TensorBoard event file (events.out.tfevents.*), or a folder of runs", (), sniff, open_)
