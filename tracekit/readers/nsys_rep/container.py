"""The report file: a magic text, sections, a table of contents and an end mark.

Nothing is read before its place and size are known to lie within the file, and no more than is needed.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from tracekit.errors import CorruptTraceError, warn
from tracekit.files import Region
from tracekit.readers.common.damage import Damage, damage_as_error
from tracekit.readers.common.protobuf.wire import Message
from tracekit.readers.nsys_rep.fields import fields_of
from tracekit.registry import describe

if TYPE_CHECKING:
    from tracekit.registry import Source

MAGIC = b"NVIDIA Tegra Profiler Report"
END = b"U3w[END]"
TAIL = struct.Struct(f"<Q{len(END)}s")
RAW, OFFSETS, CLOCKS, FACTS = "Raw Sampling Data", "Sampling Data Offsets", "Time Conversion Data", "UI Data"
MAX_CONTENTS = 1 << 20
OLDEST, NEWEST = (2019, 5), (2026, 2)
UNFINISHED = (
    "copy it again; if it ends so where it was recorded, let nsys finish, or record again; "
    "from the .qdstrm beside it: QdstrmImporter -i FILE.qdstrm"
)


class Container:
    """An opened report: its sections by name.

    Attributes:
        path: The file.
        file: The open file.
        sections: Bytes of each section, which are read when a slice of them is taken.
        places: Where each section begins in the file.
        build: Version of the nsys that wrote it, ``2025.3.2.474``; empty if it does not say.
    """

    def __init__(self, source: Source) -> None:
        self.path = source.path
        if not source.head.startswith(MAGIC):
            what, hint = describe(source)
            raise CorruptTraceError(f"not an Nsight Systems report: {what}", path=self.path, hint=hint)
        self.file = source.open()
        self.places: dict[str, int] = {}
        try:
            with damage_as_error(self.path, file=self.file):
                self.sections = self._contents()
                self.build = _build(self.section(FACTS))
        except BaseException:
            self.close()
            raise
        self._check_build()

    def section(self, name: str) -> memoryview:
        """Read a section; without any bytes if there is no such section."""
        return self.region(name)[:]

    def region(self, name: str) -> Region:
        """Return the bytes of a section, not yet read; none if there is no such section."""
        return self.sections.get(name) or Region(self.file, 0, 0)

    @property
    def release(self) -> tuple[int, ...]:
        """Year and number of the release that wrote the report, ``(2025, 3)``; empty if it does not say."""
        return tuple(int(n) for n in self.build.split(".")[:2] if n)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _contents(self) -> dict[str, Region]:
        size = self.file.size
        if size < len(MAGIC) + TAIL.size:
            raise Damage(f"cut short: {size} bytes")
        start, end = TAIL.unpack(self.file.read(size - TAIL.size, TAIL.size))
        if end != END:
            raise CorruptTraceError(
                f"unfinished or cut short: its {size} bytes do not end in the mark of a whole report",
                path=self.path,
                hint=UNFINISHED,
            )
        if not len(MAGIC) <= start <= size - TAIL.size:
            raise Damage(f"its table of contents is said to be at byte {start} of {size}")
        length = size - TAIL.size - start
        if length > MAX_CONTENTS:
            raise Damage(f"its table of contents is said to have {length} bytes; at most {MAX_CONTENTS} are read")
        listed = Message(memoryview(self.file.read(start, length)))
        return dict(self._entry(entry) for entry in listed.messages(fields_of("Contents").sections))

    def _entry(self, entry: Message) -> tuple[str, Region]:
        field = fields_of("Section")
        name, at, size = entry.text(field.name) or "", entry.number(field.offset) or 0, entry.number(field.size) or 0
        if not 0 <= at <= at + size <= self.file.size:
            raise Damage(f"section {name!r} is said to be at bytes {at} to {at + size} of {self.file.size}")
        self.places[name] = at
        return name, Region(self.file, at, size)

    def _check_build(self) -> None:
        if not self.release:
            warn("does not say which nsys wrote it: it is read like the newest known", path=self.path)
        elif not OLDEST <= self.release <= NEWEST:
            known = " to ".join(".".join(map(str, r)) for r in (OLDEST, NEWEST))
            warn(f"written by nsys {self.build}; known are {known}: what is known of it is read", path=self.path)


def _build(section: memoryview) -> str:
    facts, field = Message(section), fields_of("UiData")
    build = facts.text(field.build) or facts.text(field.other_build) or ""
    found = re.match(r"\d{1,9}(\.\d{1,9})*", build, re.ASCII)
    return found[0] if found else ""
