"""The report file: a magic, a header, and blocks to the end of the file.

A block is a header that says what follows, and the messages that follow. Only headers are read here; of the messages
only where they lie. Nothing is read before its size is known to lie within the file.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracekit.errors import CorruptTraceError, warn
from tracekit.readers.common.damage import Damage, located
from tracekit.readers.common.protobuf.messages import message, parse
from tracekit.registry import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.registry import Source

MAGIC = b"NVR\0"
VERSION = 7
SIZE = struct.Struct("<I")
MAX_RESULTS = 1 << 20
MAX_NAMES = 1 << 20
FEW_RESULTS, MIN_MEAN = 4096, 64
"""Bytes of a result on average, where there are more than few; known ones have thousands."""
KINDS = {
    "kernels": ("kernel", "KernelResult"),
    "ranges": ("range", "RangeResult"),
    "command_lists": ("cmdlist", "CommandListResult"),
    "graphs": ("graph", "GraphResult"),
}
"""Counts of a block header, in the order of the messages: what they count, and the message."""
declared = functools.partial(message, "ncu_report")


@dataclass(frozen=True, slots=True)
class Result:
    """Where one result lies, or what a report says of a module.

    Attributes:
        kind: What was profiled: kernel, range, cmdlist or graph; source, what is said of a module.
        message: Name of its message.
        at: Place of its first byte.
        size: Its size in bytes.
        process_id: Process that it belongs to, if the block tells.
    """

    kind: str
    message: str
    at: int
    size: int
    process_id: int | None


@dataclass(slots=True)
class Session:
    """What the headers say of the capture, put together.

    Attributes:
        process_id: The first process, in reports whose blocks do not tell theirs.
        created_s: When the capture began, in seconds since 1970.
        devices: Messages about GPUs.
        versions: Version of each part of the tool.
        processes: Path of each process.
    """

    process_id: int | None = None
    created_s: int | None = None
    devices: list[Any] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)


class Container:
    """An opened report.

    Attributes:
        path: The file.
        file: The open file.
        results: Where each result lies, in the order of the file.
        sources: Where the code of modules lies, in the order of the file.
        names: Names of metrics by number: distinct ones, and which of them each is.
        session: What is said of the capture.
    """

    def __init__(self, source: Source) -> None:
        self.path = source.path
        if not source.head.startswith(MAGIC):
            what, hint = describe(source)
            raise CorruptTraceError(f"not an Nsight Compute report: {what}", path=self.path, hint=hint)
        self.file = source.open()
        self.results: list[Result] = []
        self.sources: list[Result] = []
        self.session = Session()
        self._names: list[str] = []
        try:
            with located(self.path, file=self.file):
                self._read()
        except BaseException:
            self.close()
            raise
        self.names: pa.DictionaryArray = pa.array(self._names, pa.string()).dictionary_encode()

    def result(self, number: int) -> Any:
        """Read one result by its place in the order of the file.

        Raises:
            Damage: It is no message.
            TracekitError: The report is closed, or changed since it was opened.
        """
        return self._parsed(self.results[number], f"result {number}")

    def source(self, number: int) -> Any:
        """Read what is said of a module by its place in the order of the file.

        Raises:
            Damage: It is no message.
            TracekitError: The report is closed, or changed since it was opened.
        """
        return self._parsed(self.sources[number], f"source {number}")

    def process_of(self, found: Result) -> int | None:
        """Return the process of a result or a module: that of its block, or the first one of the session."""
        return self.session.process_id if found.process_id is None else found.process_id

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _parsed(self, found: Result, what: str) -> Any:
        data = self.file.read(found.at, found.size)
        return parse(declared(found.message), data, f"{what}, at byte {found.at},")

    def _read(self) -> None:
        header, at = self._message(len(MAGIC))
        version = parse(declared("FileHeader"), header, "the header").version
        if version != VERSION:
            warn(f"version {version} of the format; known is {VERSION}: what is known of it is read", path=self.path)
        skipped = 0
        while at < self.file.size:
            head, payload = self._message(at)
            block = parse(declared("BlockHeader"), head, f"the header of the block at byte {at}")
            at = payload + block.payload_bytes
            if at > self.file.size:
                left = self.file.size - payload
                raise Damage(f"cut short: {block.payload_bytes} bytes are announced at byte {payload}, {left} are left")
            self._note(block)
            skipped += at - self._messages(block, payload, at)
        if skipped:
            warn(f"{skipped:,} bytes in blocks belong to results of no known kind: left out", path=self.path)

    def _message(self, at: int) -> tuple[bytes, int]:
        """Read the message that stands behind its size; return it and the place after it."""
        start, stop = self._span(at, self.file.size)
        return self.file.read(start, stop - start), stop

    def _span(self, at: int, end: int) -> tuple[int, int]:
        """Read a size; return where the message behind it begins and ends."""
        start = at + SIZE.size
        size = SIZE.unpack(self.file.read(at, SIZE.size))[0] if start <= end else 0
        if start + size > end:
            raise Damage(f"cut short: {SIZE.size + size} bytes are announced at byte {at}, {end - at} are left")
        return start, start + size

    def _messages(self, block: Any, at: int, end: int) -> int:
        """Note where the messages of a block lie; return the place after them."""
        process = block.process.process_id if block.HasField("process") else None
        for _ in range(block.sources):
            start, at = self._next(at, end)
            self.sources.append(Result("source", "SourceData", start, at - start, process))
            _check_number(len(self.sources), at, "sources")
        for counted, (kind, name) in KINDS.items():
            for _ in range(getattr(block, counted)):
                start, at = self._next(at, end)
                self.results.append(Result(kind, name, start, at - start, process))
                _check_number(len(self.results), at, "results")
        return at

    def _next(self, at: int, end: int) -> tuple[int, int]:
        """Return where the next message of a block begins and ends."""
        start, stop = self._span(at, end)
        if start == stop:
            raise Damage(f"an empty message at byte {at}")
        return start, stop

    def _note(self, block: Any) -> None:
        """Note what a header says of the capture."""
        session, about = block.session, self.session
        self._names += map(text, limited(block.names.texts, MAX_NAMES - len(self._names), "names of metrics"))
        if block.HasField("process"):
            about.processes.setdefault(block.process.process_id, text(block.process.path))
        if about.process_id is None and session.HasField("process_id"):
            about.process_id = session.process_id
        if about.created_s is None and session.HasField("created_s"):
            about.created_s = session.created_s
        about.devices += session.devices
        about.versions.update((text(v.provider), text(v.version)) for v in session.versions)


def _check_number(number: int, place: int, what: str) -> None:
    """Check that there are not more messages up to a place in the file than any real report holds."""
    if number > MAX_RESULTS:
        raise Damage(f"more than {MAX_RESULTS:,} {what}")
    if number > FEW_RESULTS and number * MIN_MEAN > place:
        raise Damage(f"{number:,} {what} in {place:,} bytes")


def limited(found: Sequence[Any], most: int, what: str) -> Sequence[Any]:
    """Return some parts of a message, unless they are more than any real report holds."""
    if len(found) > most:
        raise Damage(f"{len(found):,} {what}; at most {most:,} are read")
    return found


def text(octets: bytes) -> str:
    """Read a text; bytes that are not UTF-8 are replaced."""
    return octets.decode("utf-8", "replace")


def numbered(report: Container) -> Iterator[tuple[int, Any]]:
    """Read the results one after another, with their numbers."""
    return ((number, report.result(number)) for number in range(len(report.results)))
