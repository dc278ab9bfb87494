"""Find the objects of a JSON document, and parse them in batches.

The document is an array of objects, an object that has this array as a member, or one object per line. The other
members of the object, which may precede or follow the array, contain metadata. Several such documents may follow one
another in a file, if the format says so.

Any object that is not valid JSON is skipped. A format may repair such objects first. A truncated file is read up to its
last complete object.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.errors import CorruptTraceError
from tracekit.readers.common.json.scanner import ENDED, INVALID, NEED_MORE, ROWS_FULL
from tracekit.readers.common.json.stream import READ_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from tracekit.readers.common.json.scanner import JsonScanner
    from tracekit.readers.common.json.stream import Stream

MAX_INVALID = 10_000
MAX_SKIPPED_BYTES = 1 << 28
MAX_MEMBERS = 10_000
MAX_METADATA_ENTRY_BYTES, MAX_METADATA_BYTES = 1 << 20, 1 << 22
"""Maximum size in bytes of the JSON of one stored member, and of all stored members together.

The Python objects that are parsed from this JSON can take 30 times as much memory.
"""
OBJECT_BOUNDARY = re.compile(rb"\}\s{0,200},\s{0,200}(?=\{)")
_LINE_BOUNDARY = re.compile(rb"\n\s{0,200}(?=\{)")
_KEY = re.compile(rb'[\s,]*(?:"((?:[^"\\]|\\.){0,200})"\s*:\s*(?=\S)|(\}))', re.DOTALL)
_MAX_KEY_BYTES = 4096
_SCALAR = re.compile(rb"[^\s,}\]]{0,64}")
_NEXT_DOCUMENT = re.compile(rb'\s{0,200}(?:\{\s{0,200}["}]|\[\s{0,200}[{\]])')


@dataclass(frozen=True, slots=True)
class DocumentFormat:
    """What a JSON document consists of.

    Attributes:
        array: Key of the member that is the array of objects, unless the document is this array. If it is None, the
            document is an array, or has one object per line.
        noun: Plural noun for the objects in error messages.
        hint: What to do if the document is damaged.
        metadata_names: Keys of the other members whose values are stored.
        repair: A function that repairs a section of JSON that could not be parsed. It returns the repaired section and
            the number of repairs.
        may_repeat: Whether other documents may follow the first, whose objects are read as if they were in one array.
    """

    array: str | None
    noun: str
    hint: str
    metadata_names: Collection[str] = ()
    repair: Callable[[bytes], tuple[bytes, int]] | None = None
    may_repeat: bool = False


class Document:
    """A JSON document, which is read sequentially.

    Attributes:
        metadata: Values of the requested members that have been read so far, by key. The objects are not included.
        invalid: Number of objects and requested members that were skipped because they are not valid JSON.
        repaired: Number of repairs.
        truncated: Whether the file ends before the end of the document.
        has_array: Whether the document contains the array of objects, or consists of lines.
        trailing_bytes: Number of bytes after the end of the document, without leading white space.
        oversized: Keys of the requested members that were skipped because they exceed the size limits.
    """

    def __init__(self, path: Path, stream: Stream, sandbox: JsonScanner, layout: DocumentFormat) -> None:
        self.metadata: dict[str, Any] = {}
        self._earlier: dict[str, Any] = {}
        self.invalid = self.repaired = 0
        self.truncated = False
        self.has_array = False
        self.trailing_bytes = 0
        self.oversized: list[str] = []
        self._metadata_bytes = 0
        self._path, self._stream, self._sandbox, self._format = path, stream, sandbox, layout
        self._boundary = OBJECT_BOUNDARY
        self._skipped_bytes = self._member_count = 0
        self._at_end = self._is_array = self._is_open = self._is_closed = self._is_repaired = False

    def parse_in_batches(self) -> Iterator[None]:
        """Parse the document to its end, and yield whenever the sandbox contains a batch of rows.

        The caller must use the rows before it resumes the iterator, because the next batch replaces them.

        Raises:
            CorruptTraceError: The file is not a JSON object or array, or too many of its objects are invalid.
        """
        has_document = True
        while has_document:
            while self.advance_to_objects():
                yield from self._parse_object_batches()
                if self._is_array:
                    break
            has_document = self._is_closed and self._format.may_repeat and self._begin_next_document()
        if self._is_closed:
            self._count_trailing_bytes()

    def advance_to_objects(self) -> bool:
        """Read the members that precede the next array of objects, and advance to its first object.

        Return False if no array of objects follows.

        Raises:
            CorruptTraceError: The file is not a JSON object or array.
        """
        if not self._is_open:
            self._is_open = True
            first = self._read_opening_bracket()
            if first == b"[" or self._format.array is None:
                self.has_array = self._is_array = True
                if first == b"{":
                    self._boundary = _LINE_BOUNDARY
                    self._sandbox.offset -= 1
                return True
        while self._member_count < MAX_MEMBERS and (key := self._read_key()) is not None:
            self._member_count += 1
            if key == self._format.array and self._peek_byte() == b"[":
                self.has_array = True
                self._sandbox.offset += 1
                return True
            self._store_or_skip_member(key)
        return False

    def _read_opening_bracket(self) -> bytes:
        """Return the opening bracket of the document, and advance past it."""
        sandbox = self._sandbox
        self._append_next_bytes()
        head = self._peek_bytes(4096)
        first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if first not in (b"{", b"["):
            what = self._stream.damage or "the file is not a JSON object or array"
            raise CorruptTraceError(what, path=self._path, hint=self._format.hint)
        sandbox.offset += head.index(first) + 1
        return first

    def _begin_next_document(self) -> bool:
        """Return whether another document follows, and begin it."""
        while _NEXT_DOCUMENT.match(self._peek_bytes(_MAX_KEY_BYTES)) is None:
            if self._sandbox.end - self._sandbox.offset >= _MAX_KEY_BYTES or not self._append_next_bytes():
                return False
        self._is_open = self._is_closed = self._is_array = False
        self._earlier = dict(self.metadata)
        return True

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
        elif key in self._format.metadata_names:
            self._metadata_bytes += size
            try:
                text = bytes(self._sandbox.data[start : start + size]).decode("utf-8", "replace")
                value = json.loads(text, strict=False)
            except (ValueError, RecursionError):
                self.invalid += 1
                return
            if self._earlier.get(key, value) != value:
                raise CorruptTraceError(
                    f"the file consists of several JSON documents, which differ in {key!r}",
                    path=self._path,
                    hint=f"they are not one profile: {self._format.hint}, or split the file and read each part",
                )
            self.metadata[key] = value

    def _record_oversized_key(self, key: str) -> None:
        if key in self._format.metadata_names:
            self.oversized.append(key)

    def _parse_object_batches(self) -> Iterator[None]:
        """Parse the current array of objects, and yield whenever the sandbox contains a batch of rows."""
        sandbox = self._sandbox
        while (result := sandbox.parse_objects()) != ENDED:
            if result == INVALID and not (self._is_repaired and self._find_next_object_offset() is not None):
                yield from self._hand_over_rows()
                if self._repair_json() or self._append_next_bytes():
                    continue
            if result != INVALID:
                yield from self._hand_over_rows()
                if result == ROWS_FULL or self._append_next_bytes():
                    continue
                if not bytes(sandbox.data[sandbox.offset : sandbox.end]).strip():
                    self.truncated = not self._is_array  # the bracket that ends a bare array may be left out
                    return
            self._skipped_bytes += (sandbox.end if result == NEED_MORE else sandbox.scanned) - sandbox.offset
            if not self._skip_to_next_object():
                yield from self._hand_over_rows()
                if not self._read_until_next_object():
                    self.truncated = True
                    return
        self._is_closed = self._is_array
        yield from self._hand_over_rows()

    def _hand_over_rows(self) -> Iterator[None]:
        """Yield once if the sandbox contains rows, so that the caller can use them, and then remove the rows."""
        if self._sandbox.rows:
            yield
        self._sandbox.clear_rows()

    def _repair_json(self) -> bool:
        """Repair the JSON in the sandbox. Return whether anything was repaired.

        The sandbox must not contain rows, because their strings refer to the bytes in the sandbox.
        """
        if self._is_repaired:
            return False
        self._is_repaired = True
        if self._format.repair is None:
            return False
        json, count = self._format.repair(bytes(self._sandbox.data[self._sandbox.offset : self._sandbox.end]))
        if not count or not self._sandbox.replace_json(json):
            return False
        self.repaired += count
        return True

    def _skip_to_next_object(self) -> bool:
        """Skip an invalid object, and advance to the next offset at which an object may begin.

        Return False if the sandbox contains no such offset.

        Raises:
            CorruptTraceError: The file contains too many invalid objects.
        """
        offset = self._find_next_object_offset()
        if offset is None:
            return False
        self._sandbox.offset = offset
        self.invalid += 1
        if self.invalid > MAX_INVALID or self._skipped_bytes > MAX_SKIPPED_BYTES:
            raise CorruptTraceError(
                f"the file contains {self.invalid} invalid {self._format.noun} ({self._skipped_bytes} bytes), but "
                f"tracekit skips at most {MAX_INVALID} invalid {self._format.noun} ({MAX_SKIPPED_BYTES >> 20} MiB)",
                path=self._path,
                hint=self._format.hint,
            )
        return True

    def _find_next_object_offset(self) -> int | None:
        """Return the next offset at which an object may begin, or None if the sandbox contains no such offset."""
        sandbox = self._sandbox
        match = self._boundary.search(memoryview(sandbox.data.data)[sandbox.offset + 1 : sandbox.end])
        return None if match is None else sandbox.offset + 1 + match.end()

    def _read_until_next_object(self) -> bool:
        """Read the file up to the next offset at which an object may begin. Return False at the end of the file."""
        sandbox = self._sandbox
        while True:
            self._skipped_bytes += sandbox.end - sandbox.offset
            sandbox.offset = max(sandbox.offset, sandbox.end - 512)
            if not self._append_next_bytes():
                return False
            if self._skip_to_next_object():
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
            self._is_repaired = False
            self._sandbox.append_json(block)
        return bool(block)

    def _peek_byte(self) -> bytes:
        sandbox = self._sandbox
        return bytes(sandbox.data[sandbox.offset : sandbox.offset + 1])

    def _peek_bytes(self, size: int) -> bytes:
        sandbox = self._sandbox
        return bytes(sandbox.data[sandbox.offset : min(sandbox.offset + size, sandbox.end)])
