"""Parse the container format of Nsight Compute reports: magic bytes, a file header, and blocks.

A block consists of a header and the messages that the header describes. When a report is opened, only headers are read,
and the locations of the messages are recorded. Before bytes are read, their number is checked against the size of the
file.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracekit import schemas
from tracekit.errors import CorruptTraceError, warn
from tracekit.readers.common.damage import MAX_TRAILING_BYTES, Damage, convert_damage, warn_about_trailing_bytes
from tracekit.readers.common.protobuf.messages import parse
from tracekit.registry.detection import describe_unrecognized

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.registry.source import Source

MAGIC = b"NVR\0"
VERSION = 7
SIZE = struct.Struct("<I")
MAX_RESULTS = 1 << 20
MAX_NAMES = 1 << 20
UNCHECKED_RESULTS, MIN_MEAN_BYTES = 4096, 64
"""Number of messages above which the mean size of messages is checked, and the minimum mean size in bytes.

Real results have thousands of bytes.
"""
_BLANK_BYTES = b" \t\r\n\0\x1a"
KINDS = {
    "kernels": ("kernel", "KernelResult"),
    "ranges": ("range", "RangeResult"),
    "command_lists": ("cmdlist", "CommandListResult"),
    "graphs": ("graph", "GraphResult"),
}
"""The kind and the message type of results, by the field of the block header that holds their number."""
message_class = functools.partial(schemas.load_message_class, "ncu_report")


@dataclass(frozen=True, slots=True)
class MessageLocation:
    """The location of a result, or of the code of a module, in a report file.

    Attributes:
        kind: ``source`` for the code of a module. For a result, the profiled workload: ``kernel``, ``range``,
            ``cmdlist`` or ``graph``.
        message: Name of the message type.
        offset: Offset of the first byte of the message.
        size: Size of the message in bytes.
        process_id: Process id in the header of the block that holds the message, or None if there is no process id.
    """

    kind: str
    message: str
    offset: int
    size: int
    process_id: int | None


@dataclass(slots=True)
class SessionInfo:
    """Metadata of a capture, collected from all block headers of the report.

    Attributes:
        process_id: The first process id that a session contains, or None. It applies to all blocks without a process
            id.
        created_s: Start of the capture, in seconds since 1970, or None if it is unknown.
        devices: Messages that describe GPUs.
        versions: Version of each Nsight Compute component, by name.
        processes: Path of the executable of each process, by process id.
    """

    process_id: int | None = None
    created_s: int | None = None
    devices: list[Any] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)


class ReportFile:
    """An open Nsight Compute report file.

    Attributes:
        path: Path of the file.
        file: The open file.
        results: Location of each result, in file order.
        sources: Location of the code of each module, in file order.
        names: Dictionary-encoded names of metrics. A metric refers to its name by the index in this array.
        session: Metadata of the capture.
    """

    def __init__(self, source: Source) -> None:
        self.path = source.path
        if not source.head.startswith(MAGIC):
            label, hint = describe_unrecognized(source)
            raise CorruptTraceError(f"the file is not an Nsight Compute report: {label}", path=self.path, hint=hint)
        self.file = source.open()
        self.results: list[MessageLocation] = []
        self.sources: list[MessageLocation] = []
        self.session = SessionInfo()
        self._names: list[str] = []
        try:
            with convert_damage(self.path, file=self.file):
                self._read_blocks()
        except BaseException:
            self.close()
            raise
        self.names: pa.DictionaryArray = pa.array(self._names, pa.string()).dictionary_encode()

    def read_result(self, result_number: int) -> Any:
        """Parse and return one result, given its index in file order.

        Raises:
            Damage: The message is invalid.
            TracekitError: The report is closed, or changed since it was opened.
        """
        return self._parse_message(self.results[result_number], f"result {result_number}")

    def read_module_source(self, source_number: int) -> Any:
        """Parse and return the protobuf message with the cubin, PTX and source files of one module.

        ``source_number`` is the index of the module in file order.

        Raises:
            Damage: The message is invalid.
            TracekitError: The report is closed, or changed since it was opened.
        """
        return self._parse_message(self.sources[source_number], f"source {source_number}")

    def find_process_id(self, location: MessageLocation) -> int | None:
        """Return the process id of a result or module, or None if the process id is unknown.

        If the block of the result or module has no process id, the process id of the session is returned.
        """
        return self.session.process_id if location.process_id is None else location.process_id

    def close(self) -> None:
        """Close the report file."""
        self.file.close()

    def _parse_message(self, location: MessageLocation, label: str) -> Any:
        data = self.file.read(location.offset, location.size)
        return parse(message_class(location.message), data, f"{label} at byte {location.offset}")

    def _read_blocks(self) -> None:
        header, offset = self._read_sized_message(len(MAGIC))
        version = parse(message_class("FileHeader"), header, "the header").version
        if version != VERSION:
            supported = f"the file has version {version} of the format, but tracekit supports version {VERSION}"
            warn(f"{supported}: unknown fields are skipped", path=self.path)
        skipped = 0
        while offset < self.file.size and not self._has_only_trailing_bytes(offset):
            head, payload = self._read_sized_message(offset)
            block = parse(message_class("BlockHeader"), head, f"the header of the block at byte {offset}")
            offset = payload + block.payload_bytes
            if offset > self.file.size:
                remaining = self.file.size - payload
                expected = f"{block.payload_bytes} bytes are expected at byte {payload}"
                raise Damage(f"the file is truncated: {expected}, but only {remaining} are left")
            self._add_header_metadata(block)
            skipped += offset - self._record_message_locations(block, payload, offset)
        if skipped:
            warn(f"{skipped:,} bytes of results of unknown kinds were skipped", path=self.path)

    def _has_only_trailing_bytes(self, offset: int) -> bool:
        """Return whether the bytes from an offset on cannot be a block, and warn about them.

        This is the case if they contain only white space and zeros, or begin with a size that exceeds the size of the
        whole report.
        """
        count = self.file.size - offset
        if not self.results or count > MAX_TRAILING_BYTES:
            return False
        data = self.file.read(offset, count)
        is_too_large = count >= SIZE.size and SIZE.unpack_from(data)[0] > self.file.size
        if not is_too_large and data.strip(_BLANK_BYTES):
            return False
        warn_about_trailing_bytes(self.path, count)
        return True

    def _read_sized_message(self, offset: int) -> tuple[bytes, int]:
        """Read a message whose size is stored before it, and return the message and its end offset."""
        start, stop = self._read_message_span(offset, self.file.size)
        return self.file.read(start, stop - start), stop

    def _read_message_span(self, offset: int, end: int) -> tuple[int, int]:
        """Return the start and end offsets of the message whose size is stored at an offset."""
        start = offset + SIZE.size
        size = SIZE.unpack(self.file.read(offset, SIZE.size))[0] if start <= end else 0
        if start + size > end:
            expected = f"{SIZE.size + size} bytes are expected at byte {offset}"
            raise Damage(f"the file is truncated: {expected}, but only {end - offset} are left")
        return start, start + size

    def _record_message_locations(self, block: Any, offset: int, end: int) -> int:
        """Record the locations of the messages of a block, and return the offset at which the last message ends."""
        process = block.process.process_id if block.HasField("process") else None
        for _ in range(block.sources):
            start, offset = self._read_next_message_span(offset, end)
            self.sources.append(MessageLocation("source", "SourceData", start, offset - start, process))
            _check_message_count(len(self.sources), offset, "sources")
        for counted, (kind, name) in KINDS.items():
            for _ in range(getattr(block, counted)):
                start, offset = self._read_next_message_span(offset, end)
                self.results.append(MessageLocation(kind, name, start, offset - start, process))
                _check_message_count(len(self.results), offset, "results")
        return offset

    def _read_next_message_span(self, offset: int, end: int) -> tuple[int, int]:
        """Return the start and end offsets of the next message of a block. The message must not be empty."""
        start, stop = self._read_message_span(offset, end)
        if start == stop:
            raise Damage(f"the message at byte {offset} is empty")
        return start, stop

    def _add_header_metadata(self, block: Any) -> None:
        """Add the metadata and the metric names in a block header to those of the capture."""
        session, info = block.session, self.session
        self._names += map(
            decode_text, require_max_count(block.names.texts, MAX_NAMES - len(self._names), "names of metrics")
        )
        if block.HasField("process"):
            info.processes.setdefault(block.process.process_id, decode_text(block.process.path))
        if info.process_id is None and session.HasField("process_id"):
            info.process_id = session.process_id
        if info.created_s is None and session.HasField("created_s"):
            info.created_s = session.created_s
        info.devices += session.devices
        info.versions.update((decode_text(v.provider), decode_text(v.version)) for v in session.versions)


def _check_message_count(message_count: int, offset: int, label: str) -> None:
    """Check that the beginning of a report does not contain implausibly many results or sources.

    Args:
        message_count: Number of results or sources in the beginning of the report.
        offset: Size of this beginning in bytes.
        label: Plural noun for the error message, ``results`` or ``sources``.

    Raises:
        Damage: The number exceeds ``MAX_RESULTS``, or the number exceeds ``UNCHECKED_RESULTS`` and the mean size of
            the messages is less than ``MIN_MEAN_BYTES``.
    """
    if message_count > MAX_RESULTS:
        raise Damage(f"the report contains more than {MAX_RESULTS:,} {label}, the most that tracekit supports")
    if message_count > UNCHECKED_RESULTS and message_count * MIN_MEAN_BYTES > offset:
        raise Damage(
            f"the first {offset:,} bytes of the report contain {message_count:,} {label}, which is implausible: "
            f"valid {label} have a mean size of at least {MIN_MEAN_BYTES} bytes"
        )


def require_max_count(items: Sequence[Any], limit: int, label: str) -> Sequence[Any]:
    """Return the items of a message unchanged, after a check that their number does not exceed a limit.

    Args:
        items: The items, such as the metrics of a result.
        limit: Maximum number of items, which no real report reaches.
        label: Plural noun for the items in the error message.

    Raises:
        Damage: There are more items than the limit.
    """
    if len(items) > limit:
        raise Damage(f"there are {len(items):,} {label}, but tracekit supports at most {limit:,}")
    return items


def decode_text(data: bytes) -> str:
    """Decode a UTF-8 string. Invalid bytes are replaced."""
    return data.decode("utf-8", "replace")


def iterate_results(report: ReportFile) -> Iterator[tuple[int, Any]]:
    """Yield the index and the parsed message of each result, in file order."""
    return ((number, report.read_result(number)) for number in range(len(report.results)))
