"""Open SQLite files that may be gzipped. A gzipped file is decompressed into a temporary folder of the process."""

from __future__ import annotations

import contextlib
import re
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import CorruptTraceError, TracekitError, show_path_as
from tracekit.readers.common.json.stream import Stream
from tracekit.readers.common.sqlite.catalogue import read_table_names
from tracekit.readers.common.sqlite_files import MAGIC
from tracekit.registry.source import Source
from tracekit.system.targets import create_workspace

if TYPE_CHECKING:
    from tracekit.readers.common.sqlite.database import Database

_GZIP = b"\x1f\x8b"
_START_BYTES, _MAX_START_BYTES = 1 << 16, 1 << 20
"""Number of compressed bytes that are searched for names of tables, and of bytes to which they are decompressed."""
_CREATE_TABLE = re.compile(rb"(?i)CREATE TABLE (?:IF NOT EXISTS )?[\"'`\[]?([A-Za-z_]\w{0,99})")


def find_table_names(source: Source) -> frozenset[str]:
    """Return the names of the tables of a SQLite file that may be gzipped.

    The result is empty for other files and for damaged files. Of a gzipped file, only the start is searched for names.

    Raises:
        TracekitError: The file cannot be read.
    """
    if source.head.startswith(MAGIC):
        return read_table_names(source.path) or frozenset()
    if not _decompress_start(source.head).startswith(MAGIC):
        return frozenset()
    with source.open() as file:
        start = _decompress_start(file.read(0, min(file.size, _START_BYTES)))
    return frozenset(name.decode("ascii") for name in _CREATE_TABLE.findall(start))


def open_database(source: Source, hint: str) -> Database:
    """Open a SQLite file that may be gzipped. Errors name the path of the source.

    Raises:
        CorruptTraceError: The file is no SQLite file, is truncated or damaged, or is compressed too much.
        TracekitError: The file cannot be read, or there is no space for the decompressed file.
    """
    from tracekit.readers.common.sqlite.database import Database

    if not source.head.startswith(_GZIP):
        return Database(source, hint)
    with contextlib.ExitStack() as temporary:
        folder = temporary.enter_context(create_workspace(Path(tempfile.gettempdir())))
        path = folder / "database"
        _decompress(source, path, hint)
        with show_path_as(path, str(source.path)):
            database = Database(Source(path), hint)
        database.path = source.path
        database.delete_finally(temporary)
    return database


def _decompress_start(compressed: bytes) -> bytes:
    """Return the first decompressed bytes of a gzip file, or nothing if it is no gzip file."""
    if not compressed.startswith(_GZIP):
        return b""
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(compressed, _MAX_START_BYTES)
    return b""


def _decompress(source: Source, path: Path, hint: str) -> None:
    with source.open() as file, Stream(file, compressed=True) as stream:
        try:
            with path.open("wb") as target:
                while block := stream.read():
                    target.write(block)
        except OSError as e:
            what = f"the file cannot be decompressed into a temporary folder: {e.strerror or e}"
            raise TracekitError(what, path=source.path, hint="set TMPDIR to a folder with more space") from e
    if stream.damage is not None:
        raise CorruptTraceError(stream.damage, path=source.path, hint=hint)
