"""Large captures made of small ones: ``python repeat.py SOURCE TARGET TIMES [continue]``.

A report repeats its blocks of events; an export repeats the rows of the tables that those events become, in the same
order. So both forms of one capture stay the same capture.

``continue_export`` makes a longer capture: each copy of the events follows the one before in time, with ids of its own.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.readers.common.protobuf.decoding import (
    VARINT,
    Message,
    encode_delimited,
    encode_field,
    encode_varint,
    read_delimited,
    read_varint,
)
from tracekit.readers.nsys_rep.container import END, OFFSETS, RAW, Container
from tracekit.readers.redaction.nsys_rep.messages import FieldSpan, edit_message
from tracekit.registry.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable

COUNTS, STRINGS_AT, AFTER_STRINGS = (1, 15), 2, 3
TABLES = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS"),
    *("CUDA_GPU_MEMORY_USAGE_EVENTS", "CUDA_UM_CPU_PAGE_FAULT_EVENTS", "CUDA_UM_GPU_PAGE_FAULT_EVENTS"),
)
TIMED_TABLES = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS"),
    *("CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"),
)
DEFINITIONS = (33, 75)
"""Types of NVTX events that name categories and domains."""
OPENMP = "OPENMP_EVENT_KIND_"


def report(source: Path, target: Path, times: int) -> None:
    """Repeat the blocks of events of a report; its header says how many events there are then."""
    container = Container(Source(source))
    raw, offsets = bytes(container.read_section(RAW)), container.read_section(OFFSETS)
    magic = len(b"QDTEXT00")
    _, header_end = read_delimited(memoryview(raw), magic)
    stream, first = read_delimited(memoryview(raw), header_end)
    strings_at = (Message(offsets).int_value(STRINGS_AT) or 0) + magic
    stream = _changed(stream, lambda number, n: n * times if number in COUNTS else n)
    before = raw[:header_end] + encode_delimited(stream)
    moved = len(before) - first + (times - 1) * (strings_at - first)
    shifted = _changed(offsets, lambda number, n: n + moved if number in (STRINGS_AT, AFTER_STRINGS) else n)
    contents = b""
    with target.open("wb") as file:
        file.write(source.read_bytes()[: min(container.offsets.values())])
        for name in sorted(container.offsets, key=container.offsets.__getitem__):
            start = file.tell()
            if name == RAW:
                file.write(before)
                for _ in range(times):
                    file.write(raw[first:strings_at])
                file.write(raw[strings_at:])
            else:
                file.write(shifted if name == OFFSETS else container.read_section(name))
            contents += encode_field(
                1, encode_field(1, name.encode()) + encode_field(2, start) + encode_field(3, file.tell() - start)
            )
        file.write(contents + struct.pack("<Q", file.tell()) + END)


def export(source: Path, target: Path, times: int) -> None:
    """Repeat the rows of an export's tables of events."""
    with contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as small:
        small.execute("VACUUM INTO ?", (str(target),))
    with contextlib.closing(sqlite3.connect(target)) as large:
        large.execute("PRAGMA journal_mode = OFF")
        listed = [
            name for (name,) in large.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        ]
        for table in (name for name in listed if name in TABLES or name.startswith(OPENMP)):
            columns = ", ".join(f'"{name}"' for _, name, *_ in large.execute(f"PRAGMA table_info({table})"))
            large.execute(f"CREATE TEMP TABLE once AS SELECT {columns} FROM {table} ORDER BY rowid")
            copies = "WITH RECURSIVE copy(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM copy WHERE n < ?)"
            if times > 1:
                large.execute(
                    f"{copies} INSERT INTO {table} ({columns}) SELECT {columns} FROM copy CROSS JOIN once ORDER BY n, once.rowid",  # noqa: E501
                    (times,),
                )
            large.execute("DROP TABLE once")
        large.commit()


def continue_export(source: Path, target: Path, times: int) -> None:
    """Repeat the events of an export one after the other in time."""
    with contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as small:
        small.execute("VACUUM INTO ?", (str(target),))
    with contextlib.closing(sqlite3.connect(target)) as large:
        large.execute("PRAGMA journal_mode = OFF")
        (span,) = large.execute("SELECT max(duration) FROM ANALYSIS_DETAILS").fetchone()
        (ids,) = large.execute("SELECT max(correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()
        moved = {"start": span, "end": span, "correlationId": ids, "rangeId": ids}
        for table in TIMED_TABLES:
            columns = [name for _, name, *_ in large.execute(f"PRAGMA table_info({table})")]
            values = ", ".join(f'"{name}" + {moved[name]} * ?1' if name in moved else f'"{name}"' for name in columns)
            (rows,) = large.execute(f"SELECT max(rowid) FROM {table}").fetchone()
            is_event = f"rowid <= {rows}" + (f" AND eventType NOT IN {DEFINITIONS}" if "eventType" in columns else "")
            for copy in range(1, times):
                large.execute(
                    f"INSERT INTO {table} SELECT {values} FROM {table} WHERE {is_event} ORDER BY rowid", (copy,)
                )
        large.execute("UPDATE ANALYSIS_DETAILS SET duration = duration * ?1, stopTime = stopTime * ?1", (times,))
        large.commit()


def _changed(data: memoryview, change: Callable[[int, int], int]) -> bytes:
    """Write a message again with some of its numbers changed."""

    def edit(part: FieldSpan, value: bytes) -> bytes:
        return (
            encode_varint(change(part.number, read_varint(memoryview(value), 0)[0])) if part.kind == VARINT else value
        )

    return edit_message(bytes(data), edit)


if __name__ == "__main__":
    made = continue_export if sys.argv[4:] else export if sys.argv[1].endswith(".sqlite") else report
    made(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
