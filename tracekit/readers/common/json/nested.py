"""Find arrays of objects inside the objects and arrays of a JSON document, and parse the objects in batches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from tracekit.errors import CorruptTraceError
from tracekit.readers.common.json.document import Document, DocumentFormat

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from tracekit.readers.common.json.scanner import JsonScanner
    from tracekit.readers.common.json.stream import Stream

JsonPath: TypeAlias = tuple[str, ...]
"""The keys of the members that lead from the document to a value. Elements of arrays have no keys."""
MAX_NESTED_MEMBERS, MAX_ARRAYS = 1_000_000, 1_000
"""Maximum number of members outside the arrays that are read, and of these arrays. Each array is a batch of its own."""
_NEXT_ELEMENT = re.compile(rb"[\s,]*([{\]])")
_MAX_GAP_BYTES = 4096


class NestedDocument(Document):
    """A JSON document, of which several arrays of objects are read at any depth.

    Attributes:
        path: Path of the current array of objects.
        section: Number of the current element of the outermost array that contains the current array, counted from 0.
            The metadata is that of this element.
    """

    def __init__(
        self,
        file: Path,
        stream: Stream,
        sandbox: JsonScanner,
        layout: DocumentFormat,
        arrays: Collection[JsonPath],
    ) -> None:
        """Create a document.

        Args:
            file: Path of the file.
            stream: The open file.
            sandbox: The sandbox in which the objects are parsed.
            layout: Nouns and hints for error messages, and the requested members, whose names are paths joined with
                dots. The key of its array is not used.
            arrays: Paths of the arrays of objects.
        """
        super().__init__(file, stream, sandbox, layout)
        self.path: JsonPath = ()
        self.section = -1
        self._arrays = frozenset(arrays)
        paths = [*arrays, *(tuple(name.split(".")) for name in layout.metadata_names)]
        self._parents = frozenset(path[:n] for path in paths for n in range(1, len(path)))
        self._open: list[tuple[str, bool]] = []
        self._array_count = 0

    def advance_to_objects(self) -> bool:
        """Advance to the first object of the next array of objects. Return False if no such array follows.

        Raises:
            CorruptTraceError: The file is not a JSON object, or has too many members.
        """
        if not self._is_open:
            self._is_open = True
            if self._read_opening_bracket() != b"{":
                raise CorruptTraceError("the file is not a JSON object", path=self._path, hint=self._format.hint)
        while True:
            key = self._read_key()
            if key is None:
                if self.truncated or not self._leave_object():
                    return False
                continue
            self._member_count += 1
            if self._member_count > MAX_NESTED_MEMBERS:
                what = f"the file has more than {MAX_NESTED_MEMBERS:,} members outside the arrays that are read"
                raise CorruptTraceError(what, path=self._path, hint=self._format.hint)
            if self._enter_value(key):
                return True

    def _enter_value(self, key: str) -> bool:
        """Enter the value of a member if it leads to an array of objects. Return whether it is such an array."""
        path, first = (*(name for name, _ in self._open), key), self._peek_byte()
        if path in self._arrays and first == b"[":
            self._sandbox.offset += 1
            self.path, self.has_array = path, True
            self._array_count += 1
            if self._array_count > MAX_ARRAYS:
                what = f"the file has more than {MAX_ARRAYS:,} arrays of {self._format.noun}"
                raise CorruptTraceError(what, path=self._path, hint=self._format.hint)
            return True
        if path in self._parents and first in (b"{", b"["):
            self._sandbox.offset += 1
            if first == b"{":
                self._open.append((key, False))
            else:
                self._enter_element(key)
        else:
            self._store_or_skip_member(".".join(path))
        return False

    def _enter_element(self, key: str) -> None:
        """Enter the next element of an array of objects that are walked through, if there is one."""
        if self._read_next_bracket() == b"{":
            if not any(is_element for _, is_element in self._open):
                self.section += 1
                self.metadata.clear()
            self._open.append((key, True))

    def _leave_object(self) -> bool:
        """Leave an object that ended. Return False at the end of the document."""
        self._is_closed = not self._open
        if self._is_closed:
            return False
        key, is_element = self._open.pop()
        if is_element:
            self._enter_element(key)
        return True

    def _read_next_bracket(self) -> bytes:
        """Return the bracket that begins the next element of an array or ends the array, and advance past it."""
        sandbox = self._sandbox
        while True:
            match = _NEXT_ELEMENT.match(self._peek_bytes(_MAX_GAP_BYTES))
            if match is not None:
                sandbox.offset += match.end()
                return match[1]
            if sandbox.end - sandbox.offset >= _MAX_GAP_BYTES or not self._append_next_bytes():
                self.truncated = True
                return b""
