"""What every reader of a SQLite format needs: a look at the header, and a connection that changes nothing."""

from __future__ import annotations

import sqlite3
import struct
from typing import TYPE_CHECKING

from tracekit.errors import CorruptTraceError, TracekitError
from tracekit.registry import describe

if TYPE_CHECKING:
    from tracekit.registry import Source

MAGIC = b"SQLite format 3\x00"
JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
EXPORT_AGAIN = "export it again: nsys export --type sqlite REPORT"
_HEADER = struct.Struct(">16sH6xII60xI4x")


def connect(uri: str) -> sqlite3.Connection:
    """Open a database for small queries: text as ``str``, with bytes that are not UTF-8 replaced."""
    connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
    connection.text_factory = lambda b: b.decode("utf-8", "replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def read_only_uri(source: Source) -> str:
    """Return the SQLite address of a file that makes SQLite neither change it nor write beside it."""
    return f"{source.path.absolute().as_uri()}?mode=ro&immutable=1"


def quote(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def page_size(head: bytes) -> int:
    """Return the size of a page, in bytes, that the head of a file gives."""
    size = int(_HEADER.unpack_from(head)[1])
    return 1 << 16 if size == 1 else size


def check_whole(source: Source, *, hint: str = EXPORT_AGAIN) -> None:
    """Check that the file is whole: as long as its header says, and not in the middle of being written.

    Args:
        source: The file.
        hint: What to do about a file that is cut short.

    Raises:
        CorruptTraceError: It is not SQLite, cut short, or a journal beside it shows an unfinished export.
        TracekitError: It may not be read.
    """
    head = source.head
    if not head.startswith(MAGIC):
        what, advice = describe(source)
        raise CorruptTraceError(f"not a SQLite database: {what}", path=source.path, hint=advice)
    if len(head) < _HEADER.size:
        raise CorruptTraceError(f"cut short: {len(head)} bytes", path=source.path, hint=hint)
    _, _, changes, pages, valid_for = _HEADER.unpack_from(head)
    page = page_size(head)
    if changes == valid_for and pages * page > source.size:
        raise CorruptTraceError(
            f"cut short: its header counts {pages} pages of {page} bytes, the file holds {source.size // page}",
            path=source.path,
            hint=hint,
        )
    _check_beside(source)


def _check_beside(source: Source) -> None:
    """Refuse a file whose journal holds what it lacks; SQLite keeps both beside the file that a link leads to."""
    real = source.path.resolve()
    for suffix, magic in (("-journal", JOURNAL_MAGIC), ("-wal", b"")):
        beside = real.with_name(real.name + suffix)
        try:
            with beside.open("rb") as f:
                head = f.read(8)
        except FileNotFoundError:
            continue
        except OSError as e:
            raise TracekitError(
                f"the {suffix[1:]} file beside it cannot be read: {e.strerror}", path=source.path
            ) from e
        if head and head.startswith(magic):
            raise CorruptTraceError(
                f"a {suffix[1:]} file beside it holds changes that are not in it yet",
                path=source.path,
                hint="wait for the writer to end, or export it again",
            )
