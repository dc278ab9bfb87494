"""Check the header, the path and the journals of a SQLite file before SQLite opens the file."""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, NamedTuple, Self

from tracekit.errors import CorruptTraceError, TracekitError
from tracekit.readers.common.damage import warn_about_trailing_bytes
from tracekit.registry.detection import describe_unrecognized
from tracekit.system.files import LONGEST_SQLITE_PATH, PERMISSIONS_HINT, find_special_file_kind, open_regular_file
from tracekit.system.platform.file_names import build_sqlite_uri

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry.source import Source

MAGIC = b"SQLite format 3\x00"
JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
EXPORT_AGAIN = "export it again: nsys export --type sqlite REPORT"
HEADER_BYTES = 100
ENCODINGS = {1: "utf-8", 2: "utf-16-le", 3: "utf-16-be"}
_HEADER = struct.Struct(">16sH2xB3xII24xI32xI4x")


class Header(NamedTuple):
    """The values that tracekit uses from the header of a SQLite file.

    Attributes:
        page_size: Size of a page in bytes.
        reserved: Number of bytes at the end of each page that SQLite does not use.
        pages: Number of pages, or 0 if the number in the header is out of date.
        encoding: Python name of the encoding of strings.
    """

    page_size: int
    reserved: int
    pages: int
    encoding: str

    @classmethod
    def parse(cls, header_bytes: bytes) -> Self:
        """Parse the first 100 bytes of a SQLite file. Missing bytes are treated as zeros."""
        _, size, reserved, changes, pages, encoding, valid_for = _HEADER.unpack_from(
            header_bytes.ljust(HEADER_BYTES, b"\0")
        )
        is_known = changes == valid_for
        return cls(
            page_size=1 << 16 if size == 1 else size,
            reserved=reserved,
            pages=pages if is_known else 0,
            encoding=ENCODINGS.get(encoding & 3, "utf-8"),
        )


def create_read_only_uri(path: Path) -> str:
    """Return a URI with which SQLite opens a file as read-only and immutable, without creating other files."""
    return f"{build_sqlite_uri(path)}?mode=ro&immutable=1"


def quote_identifier(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def check_file_is_complete(source: Source, *, hint: str = EXPORT_AGAIN) -> None:
    """Check that a SQLite file is not truncated, and that no journal beside it holds unfinished changes.

    Args:
        source: The file to check.
        hint: Hint for the error if the file is truncated.

    Raises:
        CorruptTraceError: The file is truncated or not a SQLite file, or a journal beside it holds changes.
        TracekitError: The path is too long for SQLite, or a journal cannot be read.
    """
    if not source.head.startswith(MAGIC):
        what, advice = describe_unrecognized(source)
        raise CorruptTraceError(f"not a SQLite database: {what}", path=source.path, hint=advice)
    if len(source.head) < HEADER_BYTES:
        raise CorruptTraceError(
            f"the file is truncated: it has {len(source.head)} bytes, but a SQLite header has {HEADER_BYTES} bytes",
            path=source.path,
            hint=hint,
        )
    header = Header.parse(source.head)
    if header.pages * header.page_size > source.size:
        present = source.size // header.page_size
        raise CorruptTraceError(
            f"the file is truncated: its header declares {header.pages} pages of {header.page_size} bytes, "
            f"but the file has only {present} pages",
            path=source.path,
            hint=hint,
        )
    _check_path_length(source.path)
    _check_journals(source.path)
    if header.pages:
        warn_about_trailing_bytes(source.path, source.size - header.pages * header.page_size)


def _check_path_length(path: Path) -> None:
    """Raise an error if a path is too long for SQLite, whose own error would not state the reason."""
    length = len(os.fsencode(os.path.realpath(path)))
    if length > LONGEST_SQLITE_PATH:
        what = f"its path has {length} bytes, but SQLite supports at most {LONGEST_SQLITE_PATH} bytes"
        raise TracekitError(what, path=path, hint="move it to a shorter path")


def _check_journals(path: Path) -> None:
    """Check that no journal holds changes that are not in the file yet.

    If the path is a symbolic link, the journals are beside the target of the link.
    """
    real = path.resolve()
    for suffix, magic in (("-journal", JOURNAL_MAGIC), ("-wal", b"")):
        head = _read_journal_head(real.with_name(real.name + suffix), path)
        if head and head.startswith(magic):
            raise CorruptTraceError(
                f"the journal {real.name}{suffix} holds changes that are not in the file yet",
                path=path,
                hint="wait until the program that writes the file has ended, or export the file again",
            )


def _read_journal_head(journal: Path, path: Path) -> bytes:
    """Return the first bytes of a journal, or empty bytes if the journal is empty or does not exist.

    Args:
        journal: Path of the journal.
        path: Path of the SQLite file, for error messages.
    """
    name = f"the journal {journal.name}"
    try:
        if (kind := find_special_file_kind(journal.stat().st_mode)) is not None:
            raise TracekitError(f"{name} is {kind}, not a regular file", path=path, hint="move or delete that file")
        with os.fdopen(open_regular_file(journal), "rb", buffering=0) as f:
            return f.read(len(JOURNAL_MAGIC)) or b""
    except FileNotFoundError:
        return b""
    except OSError as e:
        if e.errno == errno.ENAMETOOLONG:
            return b""
        hint = PERMISSIONS_HINT if e.errno in (errno.EACCES, errno.EPERM) else None
        raise TracekitError(f"{name} cannot be read: {e.strerror}", path=path, hint=hint) from e
