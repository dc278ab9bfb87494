"""The JSON document: an object with the events among its members, or nothing but the array of events.

Facts about the capture stand among the members before or behind the events.

What breaks JSON costs as little as possible: an event that is none is left out and the next one is looked for; a file
that ends too early is read up to its last whole event.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tracekit.errors import CorruptTraceError
from tracekit.readers.kineto.stream import PIECE_BYTES, Stream
from tracekit.readers.kineto.walker import ENDED, FULL, MORE, STRANGE, Walker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

MAX_STRANGE = 10_000
MAX_LOST_BYTES = 1 << 28
MAX_MEMBERS = 10_000
MAX_FACT_BYTES, MAX_FACTS_BYTES = 1 << 20, 1 << 22
"""Bytes of a member that is kept beside the events, and of all of them; Python objects take 30 times as many."""
EVENTS = "traceEvents"
_AGAIN = "export the trace again"
_KEY = re.compile(rb'[\s,]*(?:"((?:[^"\\]|\\.){0,200})"\s*:\s*(?=\S)|(\}))', re.DOTALL)
_LONGEST_KEY = 4096
_SCALAR = re.compile(rb"[^\s,}\]]{0,64}")
_NEXT = re.compile(rb"\}\s{0,200},\s{0,200}(?=\{)")


class Document:
    """A file being read.

    Attributes:
        facts: Members beside the events that were asked for, as far as they were met.
        strange: How many events were left out because they break JSON.
        cut: Whether the file ends before the document does.
        found: Whether it has events.
        long: Members that were asked for and are too long to be kept.
    """

    def __init__(self, path: Path, stream: Stream, walker: Walker, wanted: Collection[str]) -> None:
        self.facts: dict[str, Any] = {}
        self.strange = 0
        self.cut = False
        self.found = False
        self.long: list[str] = []
        self._kept_bytes = 0
        self._path, self._stream, self._walker, self._wanted = path, stream, walker, wanted
        self._lost = 0
        self._over = self._bare = False

    def pieces(self) -> Iterator[None]:
        """Read to the end; stop whenever the walker holds rows, which are to be taken then.

        Raises:
            CorruptTraceError: It is no JSON object or array, or too much of it breaks JSON.
        """
        if self._begin() == b"[":
            self.found = self._bare = True
            yield from self._events()
            return
        for _ in range(MAX_MEMBERS):
            key = self._key()
            if key is None:
                return
            if key == EVENTS and self._byte() == b"[":
                self.found = True
                self._walker.at += 1
                yield from self._events()
            else:
                self._member(key)

    def _begin(self) -> bytes:
        """Go behind the bracket that the document begins with, and return it."""
        walker = self._walker
        self._refill()
        head = bytes(walker.octets[: min(walker.end, 4096)])
        first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if first not in (b"{", b"["):
            raise CorruptTraceError("is no JSON object", path=self._path, hint=_AGAIN)
        walker.at = head.index(first) + 1
        return first

    def _key(self) -> str | None:
        """Read the next key; None at the end of the document, or of what can be read of it."""
        walker = self._walker
        while True:
            found = _KEY.match(self._rest(_LONGEST_KEY))
            if found is not None:
                walker.at += found.end()
                return None if found[2] else found[1].decode("utf-8", "replace")
            if walker.end - walker.at >= _LONGEST_KEY or not self._refill():
                self.cut = True
                return None

    def _member(self, key: str) -> None:
        """Go through a member, and keep it if it is wanted."""
        walker, start = self._walker, self._walker.at
        first = self._byte()
        if first not in (b"{", b"[", b'"'):
            found = _SCALAR.match(self._rest(_LONGEST_KEY))
            walker.at += found.end() if found else 0
            self._keep(key, start)
            return
        inside = first == b'"'
        walker.at += inside
        on, depth, inside = walker.skip(inside=inside)
        size = walker.at - start
        while on and walker.room > PIECE_BYTES and size < MAX_FACT_BYTES:
            walker.at = start
            if not self._refill():
                break
            start, walker.at = 0, int(first == b'"')
            on, depth, inside = walker.skip(inside=first == b'"')
            size = walker.at - start
        if on:
            self._note_long(key)
            self._pass(depth, inside=inside)
        else:
            self._keep(key, start)

    def _pass(self, depth: int, *, inside: bool) -> None:
        """Go through the rest of a member that is too long to be kept."""
        walker, on = self._walker, True
        while on:
            beyond = walker.at - walker.end
            walker.at = walker.end
            if not self._refill():
                self.cut = True
                return
            walker.at = min(max(beyond, 0), walker.end)
            on, depth, inside = walker.skip(depth, inside=inside)

    def _keep(self, key: str, start: int) -> None:
        size = self._walker.at - start
        if size > MAX_FACT_BYTES or self._kept_bytes + size > MAX_FACTS_BYTES:
            self._note_long(key)
        elif key in self._wanted:
            self._kept_bytes += size
            try:
                text = bytes(self._walker.octets[start : start + size]).decode("utf-8", "replace")
                self.facts[key] = json.loads(text, strict=False)
            except (ValueError, RecursionError):
                self.strange += 1

    def _note_long(self, key: str) -> None:
        if key in self._wanted:
            self.long.append(key)

    def _events(self) -> Iterator[None]:
        walker = self._walker
        while (result := walker.events()) != ENDED:
            if result != STRANGE:
                if walker.rows:
                    yield
                walker.clear()
                if result == FULL or self._refill():
                    continue
                if not bytes(walker.octets[walker.at : walker.end]).strip():
                    self.cut = not self._bare  # the bracket that ends a bare array may be left out
                    return
            self._lost += (walker.end if result == MORE else walker.far) - walker.at
            if not self._resumed():
                if walker.rows:
                    yield
                walker.clear()
                if not self._searched():
                    self.cut = True
                    return
        if walker.rows:
            yield
        walker.clear()

    def _resumed(self) -> bool:
        """Leave out what is no event and go to what may be the next one, if that is in memory."""
        walker = self._walker
        found = _NEXT.search(memoryview(walker.octets.data)[walker.at + 1 : walker.end])
        if found is None:
            return False
        walker.at += 1 + found.end()
        self.strange += 1
        if self.strange > MAX_STRANGE or self._lost > MAX_LOST_BYTES:
            raise CorruptTraceError(f"{self.strange} events break JSON", path=self._path, hint=_AGAIN)
        return True

    def _searched(self) -> bool:
        """Read on until there is what may be the next event; False if there is none."""
        walker = self._walker
        while True:
            self._lost += walker.end - walker.at
            walker.at = max(walker.at, walker.end - 512)
            if not self._refill():
                return False
            if self._resumed():
                return True

    def _refill(self) -> bool:
        """Read on, if there is room and something to read."""
        if self._over or self._walker.room < PIECE_BYTES:
            return False
        data = self._stream.read()
        self._over = not data
        if data:
            self._walker.put(data)
        return bool(data)

    def _byte(self) -> bytes:
        walker = self._walker
        return bytes(walker.octets[walker.at : walker.at + 1])

    def _rest(self, most: int) -> bytes:
        walker = self._walker
        return bytes(walker.octets[walker.at : min(walker.at + most, walker.end)])
