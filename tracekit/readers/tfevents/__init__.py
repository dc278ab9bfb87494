"""Read a TensorFlow or TensorBoard event file, or all event files in a folder of runs.

Modules, from the files to the tables:

- ``folders`` finds the files.
- ``records`` reads the records of a file. ``record_sandbox`` and ``native/records.c`` locate and check them.
- ``events`` decodes the events in the records.
- ``values`` and ``tensors`` decode the values in summaries.
- ``step_stats`` decodes traced runs.
- ``runs`` combines the files of a run.
- ``exported`` decodes traced runs that are stored as summary values.
- ``graphs`` decodes graphs.
- ``capture`` builds the tables.

Sources: the messages of TensorFlow (``event.proto``, ``summary.proto``, ``step_stats.proto``), and the TFRecord format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.registry import detection
from tracekit.registry.interface import Reader

if TYPE_CHECKING:
    from tracekit.readers.tfevents.capture import EventsCapture
    from tracekit.registry.source import Source

_HEADER_BYTES = 12


def sniff(source: Source) -> bool:
    """Return whether a file begins with a TFRecord header, or a folder contains event files.

    If a folder contains other captures, event files in its subfolders are ignored. A file that is shorter than a header
    is detected by its name.
    """
    from tracekit.readers.tfevents import exported

    if len(source.head) >= _HEADER_BYTES:
        return not any(source.head[4:8]) and _is_record_header(source.head[:_HEADER_BYTES])
    if source.names:
        return exported.has_event_files(source.path) and (
            any(exported.NAME_PART in name for name in source.names) or not detection.detect_formats(source)
        )
    return exported.NAME_PART in source.path.name and source.path.is_file()


def _is_record_header(head: bytes) -> bool:
    from tracekit.native.crc32c import compute_masked_crc32c

    return compute_masked_crc32c(head[:8]) == int.from_bytes(head[8:], "little")


def open_capture(source: Source) -> EventsCapture:
    """Open an event file or a folder of event files."""
    from tracekit.readers.tfevents.capture import read_event_files

    return read_event_files(source)


READER = Reader(
    "tfevents", "TensorBoard event file (events.out.tfevents.*), or a folder of runs", (), sniff, open_capture
)
