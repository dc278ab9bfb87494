"""Where the tables of a trace come from, so that another process can open them again.

An open file or a lock cannot be pickled, but a path can.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tracekit import registry, schemas
from tracekit.errors import SchemaError, TracekitError, UnknownFormatError
from tracekit.interface import Capture
from tracekit.source import Source
from tracekit.targets import Input

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Self

    import pyarrow as pa

    from tracekit.interface import Reader


@dataclass(frozen=True, slots=True)
class Stamp:
    """Size and time of the last change of a file; the inode is left out, because it differs between machines.

    Attributes:
        size: Bytes.
        modified_ns: Time of the last change of its content, in ns since 1970.
    """

    size: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Return the stamp of a regular file; None for a folder, or where there is none."""
        try:
            status = path.stat()
        except OSError:
            return None
        return cls(status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file or folder that a reader opens.

    Attributes:
        path: Absolute path.
        format: Name of the reader.
        via: Name of the program that exports the file first; None if the reader opens it itself.
        stamp: Stamp of the file when it was loaded; None for a folder.
    """

    path: Path
    format: str
    via: str | None
    stamp: Stamp | None
    reopens: ClassVar[bool] = True

    @classmethod
    def of(cls, source: Source, reader: Reader, via: str | None) -> Self:
        """Describe a source that is about to be opened."""
        return cls(source.path.absolute(), reader.format, via, Stamp.of(source.path))

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The file or folder, which no output may replace."""
        return (Input.from_path(self.path),)

    def open(self) -> Capture:
        """Open the file again.

        Raises:
            TracekitError: The file has changed since it was loaded, or cannot be read.
            FileNotFoundError: There is no such file.
        """
        source = Source(self.path)
        if not source.exists:
            raise FileNotFoundError(2, os.strerror(2), str(self.path))
        if Stamp.of(self.path) != self.stamp:
            raise TracekitError("has changed since the trace was loaded", path=self.path, hint="load it again")
        return self.open_with(self.reader(source), source)

    def reader(self, source: Source) -> Reader:
        """Return what reads the file.

        Raises:
            UnknownFormatError: There is no such reader, or ``via`` names no program.
            TracekitError: The program does not export files of this format.
        """
        return through(self.via, registry.reader(self.format), source)

    @staticmethod
    def open_with(reader: Reader, source: Source) -> Capture:
        """Open a source as it is at this moment.

        Raises:
            TracekitError: The file cannot be read.
            SchemaError: The reader opened something else than tables.
        """
        opened = reader.open(source)
        if isinstance(opened, Mapping):
            return TablesCapture(opened, source.path)
        if not isinstance(opened, Capture):
            expected = "neither a mapping of tables nor a tracekit.Capture"
            raise SchemaError(f"reader {reader.format!r} opened {type(opened).__name__}, {expected}", path=source.path)
        return opened


class TablesCapture(Capture):
    """Arrow tables in memory."""

    def __init__(self, tables: Mapping[str, pa.Table], path: Path) -> None:
        self._tables = tables
        self._path = path

    def names(self) -> Collection[str]:
        """Return the names of the tables."""
        return self._tables.keys()

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        schema = schemas.table(name)
        return int(schemas.conform(self._tables[name], schema, schema.names[:1], path=self._path).num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return a table with all its columns."""
        return self._tables[name]


@dataclass(frozen=True, slots=True)
class InMemory:
    """Tables in memory, which are pickled with the trace."""

    tables: Mapping[str, pa.Table]
    path: ClassVar[Path] = Path("memory")
    inputs: ClassVar[tuple[Input, ...]] = ()
    reopens: ClassVar[bool] = True

    def open(self) -> Capture:
        """Return the tables as a capture."""
        return TablesCapture(self.tables, self.path)


@dataclass(frozen=True, slots=True)
class LiveCapture:
    """An opened capture of unknown origin, which only this process can read."""

    capture: Capture
    path: ClassVar[Path] = Path("memory")
    inputs: ClassVar[tuple[Input, ...]] = ()
    reopens: ClassVar[bool] = False

    def open(self) -> Capture:
        """Return the capture."""
        return self.capture

    def __reduce__(self) -> tuple[Any, ...]:
        hint = "open it with tracekit.load, or make it with Trace.from_tables"
        raise TracekitError("a trace of a capture of unknown origin cannot be pickled", hint=hint)


def through(via: str | None, reader: Reader, source: Source) -> Reader:
    """Return the reader that lets another program export a source first, or the same reader if ``via`` is None.

    Raises:
        UnknownFormatError: No program is called so.
        TracekitError: It does not export this format.
    """
    if via is None:
        return reader
    from tracekit.readers import by_nsys, nsys_rep, nsys_sqlite

    if via != by_nsys.TOOL:
        raise UnknownFormatError(f"nothing is read via {via!r}", hint=f"via: {by_nsys.TOOL}")
    if reader.format != nsys_rep.READER.format:
        hint = "read it without via=, or --via"
        raise TracekitError(f"nsys exports its reports only, and this is {reader.format}", path=source.path, hint=hint)
    return dataclasses.replace(nsys_sqlite.READER, open=by_nsys.open_via_nsys)
