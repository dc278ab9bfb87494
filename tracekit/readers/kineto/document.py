"""Read the JSON document of a trace.

The document is either an array of events or an object that has this array as a member. The other members of the object,
which may precede or follow the events, contain metadata of the capture.

PyTorch does not escape quotes in the names of events. If an event cannot be parsed, these quotes are escaped, and the
event is parsed again. Any other event that is not valid JSON is skipped. A truncated file is read up to its last
complete event.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tracekit.errors import CorruptTraceError
from tracekit.readers.kineto.event_sandbox import ENDED, INVALID, NEED_MORE, ROWS_FULL, EventSandbox
from tracekit.readers.kineto.quotes import EVENT_BOUNDARY, escape_quotes_in_names
from tracekit.readers.kineto.stream import READ_BYTES, Stream

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

MAX_INVALID = 10_000
MAX_SKIPPED_BYTES = 1 << 28
MAX_MEMBERS = 10_000
MAX_METADATA_ENTRY_BYTES, MAX_METADATA_BYTES = 1 << 20, 1 << 22
"""Maximum size in bytes of the JSON of one stored member, and of all stored members together.

The Python objects that are parsed from this JSON can take 30 times as much memory.
"""
EVENTS = "traceEvents"
_EXPORT_AGAIN = "export the trace again"
_KEY = re.compile(rb'[\s,]*(?:"((?:[^"\\]|\\.){0,200})"\s*:\s*(?=\S)|(\}))', re.DOTALL)
_MAX_KEY_BYTES = 4096
_SCALAR = re.compile(rb"[^\s,}\]]{0,64}")


class Document:
    """The JSON document of a trace, which is read sequentially.

    Attributes:
        metadata: Values of the requested members that have been read so far, by key. The events are not included.
        invalid: Number of events and requested members that were skipped because they are not valid JSON.
        repaired: Number of names in which unescaped quotes were repaired.
        truncated: Whether the file ends before the end of the document.
        has_events: Whether the document contains an array of events.
        trailing_bytes: Number of bytes after the end of the document, without leading white space.
        oversized: Keys of the requested members that were skipped because they exceed the size limits.
    """

    def __init__(self, path: Path, stream: Stream, sandbox: EventSandbox, metadata_names: Collection[str]) -> None:
        self.metadata: dict[str, Any] = {}
        self.invalid = self.repaired = 0
        self.truncated = False
        self.has_events = False
        self.trailing_bytes = 0
        self.oversized: list[str] = []
        self._metadata_bytes = 0
        self._path, self._stream, self._sandbox, self._metadata_names = path, stream, sandbox, metadata_names
        self._skipped_bytes = self._member_count = 0
        self._at_end = self._is_array = self._is_open = self._is_closed = self._are_quotes_escaped = False

    def parse_in_batches(self) -> Iterator[None]:
        """Parse the document to its end, and yield whenever the sandbox contains a batch of rows.

        The caller must use the rows before it resumes the iterator, because the next batch replaces them.

        Raises:
            CorruptTraceError: The file is not a JSON object or array, or too many of its events are invalid.
        """
        while self.advance_to_events():
            yield from self._parse_event_batches()
            if self._is_array:
                break
        if self._is_closed:
            self._count_trailing_bytes()

    def advance_to_events(self) -> bool:
        """Read the members that precede the next array of events, and advance to the first event of the array.

        Return False if no array of events follows.

        Raises:
            CorruptTraceError: The file is not a JSON object or array.
        """
        if not self._is_open:
            self._is_open = True
            if self._read_opening_bracket() == b"[":
                self.has_events = self._is_array = True
                return True
        while self._member_count < MAX_MEMBERS and (key := self._read_key()) is not None:
            self._member_count += 1
            if key == EVENTS and self._peek_byte() == b"[":
                self.has_events = True
                self._sandbox.offset += 1
                return True
            self._store_or_skip_member(key)
        return False

    def _read_opening_bracket(self) -> bytes:
        """Return the opening bracket of the document, and advance past it."""
        sandbox = self._sandbox
        self._append_next_bytes()
        head = bytes(sandbox.data[: min(sandbox.end, 4096)])
        first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if first not in (b"{", b"["):
            raise CorruptTraceError("the file is not a JSON object or array", path=self._path, hint=_EXPORT_AGAIN)
        sandbox.offset = head.index(first) + 1
        return first

    def _read_key(self) -> str | None:
        """Return the key of the next member, and advance to its value.

        At the end of the document or file, return None.
        """
        sandbox = self._sandbox
        while True:
            match = _KEY.match(self._peek_bytes(_MAX_KEY_BYTES))
            if match is not None:
                sandbox.offset += match.end()
                self._is_closed = bool(match[2])
                return None if match[2] else match[1].decode("utf-8", "replace")
            if sandbox.end - sandbox.offset >= _MAX_KEY_BYTES or not self._append_next_bytes():
                self.truncated = True
                return None

    def _store_or_skip_member(self, key: str) -> None:
        """Advance past the value of a member, and store the value if the key was requested."""
        sandbox, start = self._sandbox, self._sandbox.offset
        first = self._peek_byte()
        if first not in (b"{", b"[", b'"'):
            match = _SCALAR.match(self._peek_bytes(_MAX_KEY_BYTES))
            sandbox.offset += match.end() if match else 0
            self._store_metadata(key, start)
            return
        in_string = first == b'"'
        sandbox.offset += in_string
        unfinished, depth, in_string = sandbox.skip_value(in_string=in_string)
        size = sandbox.offset - start
        while unfinished and sandbox.free_bytes > READ_BYTES and size < MAX_METADATA_ENTRY_BYTES:
            sandbox.offset = start
            if not self._append_next_bytes():
                break
            start, sandbox.offset = 0, int(first == b'"')
            unfinished, depth, in_string = sandbox.skip_value(in_string=first == b'"')
            size = sandbox.offset - start
        if unfinished:
            self._record_oversized_key(key)
            self._skip_oversized_value(depth, in_string=in_string)
        else:
            self._store_metadata(key, start)

    def _skip_oversized_value(self, depth: int, *, in_string: bool) -> None:
        """Advance past the remaining bytes of a member that is too large to be stored."""
        sandbox, unfinished = self._sandbox, True
        while unfinished:
            overshoot = sandbox.offset - sandbox.end
            sandbox.offset = sandbox.end
            if not self._append_next_bytes():
                self.truncated = True
                return
            sandbox.offset = min(max(overshoot, 0), sandbox.end)
            unfinished, depth, in_string = sandbox.skip_value(depth, in_string=in_string)

    def _store_metadata(self, key: str, start: int) -> None:
        size = self._sandbox.offset - start
        if size > MAX_METADATA_ENTRY_BYTES or self._metadata_bytes + size > MAX_METADATA_BYTES:
            self._record_oversized_key(key)
        elif key in self._metadata_names:
            self._metadata_bytes += size
            try:
                text = bytes(self._sandbox.data[start : start + size]).decode("utf-8", "replace")
                self.metadata[key] = json.loads(text, strict=False)
            except (ValueError, RecursionError):
                self.invalid += 1

    def _record_oversized_key(self, key: str) -> None:
        if key in self._metadata_names:
            self.oversized.append(key)

    def _parse_event_batches(self) -> Iterator[None]:
        """Parse the current array of events, and yield whenever the sandbox contains a batch of rows."""
        sandbox = self._sandbox
        while (result := sandbox.parse_events()) != ENDED:
            if result == INVALID and not (self._are_quotes_escaped and self._find_next_event_offset() is not None):
                yield from self._hand_over_rows()
                if self._escape_quotes() or self._append_next_bytes():
                    continue
            if result != INVALID:
                yield from self._hand_over_rows()
                if result == ROWS_FULL or self._append_next_bytes():
                    continue
                if not bytes(sandbox.data[sandbox.offset : sandbox.end]).strip():
                    self.truncated = not self._is_array  # the bracket that ends a bare array may be left out
                    return
            self._skipped_bytes += (sandbox.end if result == NEED_MORE else sandbox.scanned) - sandbox.offset
            if not self._skip_to_next_event():
                yield from self._hand_over_rows()
                if not self._read_until_next_event():
                    self.truncated = True
                    return
        self._is_closed = self._is_array
        yield from self._hand_over_rows()

    def _hand_over_rows(self) -> Iterator[None]:
        """Yield once if the sandbox contains rows, so that the caller can use them, and then remove the rows."""
        if self._sandbox.rows:
            yield
        self._sandbox.clear_rows()

    def _escape_quotes(self) -> bool:
        """Escape unescaped quotes in the names of the events in the sandbox. Return whether any quote was escaped.

        The sandbox must not contain rows, because their strings refer to the bytes in the sandbox.
        """
        if self._are_quotes_escaped:
            return False
        self._are_quotes_escaped = True
        json, count = escape_quotes_in_names(bytes(self._sandbox.data[self._sandbox.offset : self._sandbox.end]))
        if not count or not self._sandbox.replace_json(json):
            return False
        self.repaired += count
        return True

    def _skip_to_next_event(self) -> bool:
        """Skip an invalid event, and advance to the next offset at which an event may begin.

        Return False if the sandbox contains no such offset.

        Raises:
            CorruptTraceError: The file contains too many invalid events.
        """
        offset = self._find_next_event_offset()
        if offset is None:
            return False
        self._sandbox.offset = offset
        self.invalid += 1
        if self.invalid > MAX_INVALID or self._skipped_bytes > MAX_SKIPPED_BYTES:
            raise CorruptTraceError(
                f"the file contains {self.invalid} invalid events ({self._skipped_bytes} bytes), but tracekit skips "
                f"at most {MAX_INVALID} invalid events ({MAX_SKIPPED_BYTES >> 20} MiB)",
                path=self._path,
                hint=_EXPORT_AGAIN,
            )
        return True

    def _find_next_event_offset(self) -> int | None:
        """Return the next offset at which an event may begin, or None if the sandbox contains no such offset."""
        sandbox = self._sandbox
        match = EVENT_BOUNDARY.search(memoryview(sandbox.data.data)[sandbox.offset + 1 : sandbox.end])
        return None if match is None else sandbox.offset + 1 + match.end()

    def _read_until_next_event(self) -> bool:
        """Read the file up to the next offset at which an event may begin. Return False at the end of the file."""
        sandbox = self._sandbox
        while True:
            self._skipped_bytes += sandbox.end - sandbox.offset
            sandbox.offset = max(sandbox.offset, sandbox.end - 512)
            if not self._append_next_bytes():
                return False
            if self._skip_to_next_event():
                return True

    def _count_trailing_bytes(self) -> None:
        """Read the file to its end, and count the bytes after the end of the document."""
        sandbox, has_rest = self._sandbox, True
        while has_rest:
            rest = bytes(sandbox.data[sandbox.offset : sandbox.end])
            self.trailing_bytes += len(rest if self.trailing_bytes else rest.lstrip())
            sandbox.offset = sandbox.end
            has_rest = self._append_next_bytes()

    def _append_next_bytes(self) -> bool:
        """Append the next bytes of the file to the sandbox. Return False if the sandbox is full or the file ends."""
        if self._at_end or self._sandbox.free_bytes < READ_BYTES:
            return False
        block = self._stream.read()
        self._at_end = not block
        if block:
            self._are_quotes_escaped = False
            self._sandbox.append_json(block)
        return bool(block)

    def _peek_byte(self) -> bytes:
        sandbox = self._sandbox
        return bytes(sandbox.data[sandbox.offset : sandbox.offset + 1])

    def _peek_bytes(self, size: int) -> bytes:
        sandbox = self._sandbox
        return bytes(sandbox.data[sandbox.offset : min(sandbox.offset + size, sandbox.end)])
