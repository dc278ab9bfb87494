"""Large captures made of small real ones: ``python repeat.py SOURCE TARGET TIMES``.

A report repeats its blocks of events; an export repeats the rows of the tables that those events become, in the same
order. So both forms of one capture stay the same capture.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.readers.nsys_rep.container import OFFSETS, RAW, Container
from tracekit.readers.protobuf.wire import DELIMITED, VARINT, Message, delimited, fields
from tracekit.registry import Source

if TYPE_CHECKING:
    from collections.abc import Callable

END = b"U3w[END]"
COUNTS, STRINGS_AT, AFTER_STRINGS = (1, 15), 2, 3
TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS")


def report(source: Path, target: Path, times: int) -> None:
    """Repeat the blocks of events of a report; its header says how many events there are then."""
    container = Container(Source(source))
    raw, offsets = bytes(container.section(RAW)), container.section(OFFSETS)
    magic = len(b"QDTEXT00")
    _, header_end = delimited(memoryview(raw), magic)
    stream, first = delimited(memoryview(raw), header_end)
    strings_at = next(n for field, n in fields(offsets) if field == STRINGS_AT and isinstance(n, int)) + magic
    stream = _changed(stream, lambda field, n: n * times if field in COUNTS else n)
    before = raw[:header_end] + _varint(len(stream)) + stream
    moved = len(before) - first + (times - 1) * (strings_at - first)
    shifted = _changed(offsets, lambda field, n: n + moved if field in (STRINGS_AT, AFTER_STRINGS) else n)
    contents = b""
    with target.open("wb") as file:
        places = _places(source)
        file.write(source.read_bytes()[: min(places.values())])
        for name in places:
            start = file.tell()
            if name == RAW:
                file.write(before)
                for _ in range(times):
                    file.write(raw[first:strings_at])
                file.write(raw[strings_at:])
            else:
                file.write(shifted if name == OFFSETS else container.section(name))
            contents += _entry(name, start, file.tell() - start)
        file.write(contents + struct.pack("<Q", file.tell()) + END)


def export(source: Path, target: Path, times: int) -> None:
    """Repeat the rows of an export's tables of events."""
    with contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as small:
        small.execute("VACUUM INTO ?", (str(target),))
    with contextlib.closing(sqlite3.connect(target)) as large:
        large.execute("PRAGMA journal_mode = OFF")
        for table in TABLES:
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


def _places(path: Path) -> dict[str, int]:
    """Return where each section begins in a report, in their order."""
    data = path.read_bytes()
    (contents,) = struct.unpack("<Q", data[-len(END) - 8 : -len(END)])
    listed = Message(memoryview(data)[contents : -len(END) - 8]).messages(1)
    places = {entry.text(1) or "": entry.number(2) or 0 for entry in listed}
    return dict(sorted(places.items(), key=lambda item: item[1]))


def _changed(data: memoryview, change: Callable[[int, int], int]) -> bytes:
    """Write a message again with some of its numbers changed."""
    out = b""
    for field, value in fields(data):
        if isinstance(value, int):
            out += _varint(field << 3 | VARINT) + _varint(change(field, value))
        else:
            out += _varint(field << 3 | DELIMITED) + _varint(len(value)) + bytes(value)
    return out


def _entry(name: str, start: int, size: int) -> bytes:
    body = _text(1, name) + _varint(2 << 3) + _varint(start) + _varint(3 << 3) + _varint(size)
    return _varint(1 << 3 | DELIMITED) + _varint(len(body)) + body


def _text(field: int, text: str) -> bytes:
    return _varint(field << 3 | DELIMITED) + _varint(len(text.encode())) + text.encode()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


if __name__ == "__main__":
    made = export if sys.argv[1].endswith(".sqlite") else report
    made(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
