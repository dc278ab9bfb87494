"""Read the sections of a report file, which consists of magic bytes, sections, a table of contents and an end marker.

Offsets and sizes are checked against the size of the file before anything is read. Sections are read only on demand.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from tracekit.errors import CorruptTraceError, warn
from tracekit.readers.common.damage import Damage, convert_damage
from tracekit.readers.common.protobuf.wire import Message
from tracekit.readers.common.trailing import find_end, warn_about_trailing_bytes
from tracekit.readers.nsys_rep.fields import load_fields
from tracekit.registry.detection import create_report_hint, describe_unrecognized
from tracekit.system.files import Region

if TYPE_CHECKING:
    from tracekit.registry.source import Source

MAGIC = b"NVIDIA Tegra Profiler Report"
END = b"U3w[END]"
TAIL = struct.Struct(f"<Q{len(END)}s")
RAW, OFFSETS, CLOCKS, UI_DATA = "Raw Sampling Data", "Sampling Data Offsets", "Time Conversion Data", "UI Data"
OPTIONS = "Analysis Options Data"
MAX_CONTENTS = 1 << 20
OLDEST, NEWEST = (2019, 5), (2026, 2)
UNFINISHED = (
    "copy it again; if the original is also unfinished, let nsys finish, record again, "
    "or convert the .qdstrm file: QdstrmImporter -i FILE.qdstrm"
)


class Container:
    """An open Nsight Systems report file and its sections.

    Attributes:
        path: Path of the file.
        file: Open input file.
        sections: Region of the file that holds each section, by name. A region is read from the file when it is sliced.
        offsets: Offset of each section in the file.
        build: Version of nsys that wrote the report, such as ``2025.3.2.474``, or an empty string if it is unknown.
    """

    def __init__(self, source: Source) -> None:
        self.path = source.path
        if not source.head.startswith(MAGIC):
            what, hint = describe_unrecognized(source)
            hint = create_report_hint(self.path, hint)
            raise CorruptTraceError(f"not an Nsight Systems report: {what}", path=self.path, hint=hint)
        self.file = source.open()
        self.offsets: dict[str, int] = {}
        try:
            with convert_damage(self.path, file=self.file):
                self.sections = self._read_table_of_contents()
                self.build = _parse_build_version(self.read_section(UI_DATA))
        except BaseException:
            self.close()
            raise
        self._warn_if_unsupported()

    def read_section(self, name: str) -> memoryview:
        """Return the bytes of a section, which are empty if the section is missing."""
        return self.find_section_region(name)[:]

    def find_section_region(self, name: str) -> Region:
        """Return the region of the file that holds a section, which is empty if the section is missing."""
        return self.sections.get(name) or Region(self.file, 0, 0)

    @property
    def nsys_version(self) -> tuple[int, ...]:
        """Year and minor version of nsys that wrote the report, such as ``(2025, 3)``.

        The tuple is empty if the version is unknown.
        """
        return tuple(int(n) for n in self.build.split(".")[:2] if n)

    def close(self) -> None:
        """Close the report file."""
        self.file.close()

    def _read_table_of_contents(self) -> dict[str, Region]:
        if self.file.size < len(MAGIC) + TAIL.size:
            raise Damage(f"the file is truncated: it has only {self.file.size} bytes")
        size = find_end(self.file, END)
        if size is None or size < len(MAGIC) + TAIL.size:
            raise CorruptTraceError(
                "the report is unfinished or truncated: "
                f"the end marker is missing at the end of the file ({self.file.size} bytes)",
                path=self.path,
                hint=create_report_hint(self.path, UNFINISHED),
            )
        start, _ = TAIL.unpack(self.file.read(size - TAIL.size, TAIL.size))
        if not len(MAGIC) <= start <= size - TAIL.size:
            raise Damage(f"the offset of the table of contents is {start}, but the file has {size} bytes")
        length = size - TAIL.size - start
        if length > MAX_CONTENTS:
            raise Damage(f"the table of contents has {length} bytes, but tracekit supports at most {MAX_CONTENTS}")
        contents = Message(memoryview(self.file.read(start, length)))
        sections = dict(self._parse_section(entry) for entry in contents.messages(load_fields("Contents").sections))
        warn_about_trailing_bytes(self.path, self.file.size - size)
        return sections

    def _parse_section(self, entry: Message) -> tuple[str, Region]:
        field = load_fields("Section")
        name, at, size = (
            entry.text(field.name) or "",
            entry.int_value(field.offset) or 0,
            entry.int_value(field.size) or 0,
        )
        if not 0 <= at <= at + size <= self.file.size:
            raise Damage(f"section {name!r} is at bytes {at} to {at + size}, but the file has {self.file.size} bytes")
        self.offsets[name] = at
        return name, Region(self.file, at, size)

    def _warn_if_unsupported(self) -> None:
        if not self.nsys_version:
            warn(
                "the report does not contain the version of nsys: "
                "it is read as if the newest supported version had written it",
                path=self.path,
            )
        elif not OLDEST <= self.nsys_version <= NEWEST:
            supported = " to ".join(".".join(map(str, r)) for r in (OLDEST, NEWEST))
            warn(
                f"the report was written by nsys {self.build}, but tracekit supports {supported}: "
                "unknown parts are skipped",
                path=self.path,
            )


def _parse_build_version(section: memoryview) -> str:
    metadata, field = Message(section), load_fields("UiData")
    build = metadata.text(field.build) or metadata.text(field.other_build) or ""
    match = re.match(r"\d{1,9}(\.\d{1,9})*", build, re.ASCII)
    return match[0] if match else ""
