"""Look at a SQLite file before SQLite does: its header, and what lies beside it."""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, NamedTuple, Self

from tracekit.errors import CorruptTraceError, TracekitError
from tracekit.files import LONGEST_SQLITE_PATH, kind_of, open_regular
from tracekit.registry import describe

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry import Source

MAGIC = b"SQLite format 3\x00"
JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
EXPORT_AGAIN = "export it again: nsys export --type sqlite REPORT"
HEADER_BYTES = 100
ENCODINGS = {1: "utf-8", 2: "utf-16-le", 3: "utf-16-be"}
_HEADER = struct.Struct(">16sH2xB3xII24xI32xI4x")


class Header(NamedTuple):
    """What the header of a SQLite file says.

    Attributes:
        page_size: Bytes per page.
        reserved: Bytes at the end of each page that SQLite leaves alone.
        pages: Number of pages; 0 if the header does not know.
        encoding: Python's name of the encoding of texts.
    """

    page_size: int
    reserved: int
    pages: int
    encoding: str

    @classmethod
    def parse(cls, head: bytes) -> Self:
        """Parse the first 100 bytes of a file; missing ones count as zeros."""
        _, size, reserved, changes, pages, encoding, valid_for = _HEADER.unpack_from(head.ljust(HEADER_BYTES, b"\0"))
        is_known = changes == valid_for
        return cls(
            page_size=1 << 16 if size == 1 else size,
            reserved=reserved,
            pages=pages if is_known else 0,
            encoding=ENCODINGS.get(encoding & 3, "utf-8"),
        )


def read_only_uri(path: Path) -> str:
    """Return the SQLite address of a file that makes SQLite neither change it nor write beside it."""
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"


def quote(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def check_whole(source: Source, *, hint: str = EXPORT_AGAIN) -> None:
    """Check that the file is whole: as long as its header says, and not in the middle of being written.

    Args:
        source: The file.
        hint: What to do about a file that is cut short.

    Raises:
        CorruptTraceError: It is not SQLite, cut short, or a journal beside it shows an unfinished export.
        TracekitError: It may not be read, or its path is too long for SQLite.
    """
    if not source.head.startswith(MAGIC):
        what, advice = describe(source)
        raise CorruptTraceError(f"not a SQLite database: {what}", path=source.path, hint=advice)
    if len(source.head) < HEADER_BYTES:
        raise CorruptTraceError(f"cut short: {len(source.head)} bytes", path=source.path, hint=hint)
    header = Header.parse(source.head)
    if header.pages * header.page_size > source.size:
        present = source.size // header.page_size
        raise CorruptTraceError(
            f"cut short: its header counts {header.pages} pages of {header.page_size} bytes, the file holds {present}",
            path=source.path,
            hint=hint,
        )
    _check_length(source.path)
    _check_beside(source.path)


def _check_length(path: Path) -> None:
    """Refuse a path that SQLite would only say it cannot open."""
    length = len(os.fsencode(os.path.realpath(path)))
    if length > LONGEST_SQLITE_PATH:
        longest = f"SQLite opens no path of more than {LONGEST_SQLITE_PATH} bytes"
        raise TracekitError(f"{longest}, and this has {length}", path=path, hint="move it to a shorter path")


def _check_beside(path: Path) -> None:
    """Refuse a file whose journal holds what it lacks; SQLite keeps both beside the file that a link leads to."""
    real = path.resolve()
    for suffix, magic in (("-journal", JOURNAL_MAGIC), ("-wal", b"")):
        head = _head(real.with_name(real.name + suffix), path)
        if head and head.startswith(magic):
            raise CorruptTraceError(
                f"a {suffix[1:]} file beside it holds changes that are not in it yet",
                path=path,
                hint="wait for the writer to end, or export it again",
            )


def _head(beside: Path, path: Path) -> bytes:
    """Return the first bytes of a file beside another one; none if there is no such file."""
    name = f"the {beside.name.rpartition('-')[2]} file beside it"
    try:
        if (kind := kind_of(beside.stat().st_mode)) is not None:
            raise TracekitError(f"{name} is {kind}, not a regular file", path=path, hint="move it away")
        with os.fdopen(open_regular(beside), "rb", buffering=0) as f:
            return f.read(len(JOURNAL_MAGIC)) or b""
    except FileNotFoundError:
        return b""
    except OSError as e:
        if e.errno == errno.ENAMETOOLONG:
            return b""
        raise TracekitError(f"{name} cannot be read: {e.strerror}", path=path, hint="check its mode") from e
