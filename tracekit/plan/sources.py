"""The origins of the tables of a trace: a file, tables in memory, or an opened capture.

Open files and locks cannot be pickled. A pickled trace therefore contains the path of its file, with which another
process opens the file again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tracekit import registry, schemas
from tracekit.errors import SchemaError, TracekitError, UnknownFormatError
from tracekit.registry.interface import Capture
from tracekit.registry.source import Source
from tracekit.system.files import FileState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Self

    import pyarrow as pa

    from tracekit.registry.interface import Reader
    from tracekit.system.files import Input


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file or folder from which a reader reads the tables of a trace.

    Attributes:
        path: Absolute path of the file or folder.
        format: Name of the format, which selects the reader.
        via: Name of the program that exports the file before it is read. None if the reader opens it directly.
        state: State of the file when it was loaded. None for a folder.
        cache: Whether columns are read from the cache and stored in it.
        can_reopen: Whether the origin can be opened again, also in another process.
    """

    path: Path
    format: str
    via: str | None
    state: FileState | None
    cache: bool = False
    can_reopen: ClassVar[bool] = True

    @classmethod
    def from_source(cls, source: Source, reader: Reader, via: str | None, *, cache: bool = False) -> Self:
        """Return the ``OpenedFile`` of a source that ``reader`` opens, with its current state."""
        return cls(source.path.absolute(), reader.format, via, FileState.read_file(source.path), cache)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The file or folder that is read, which an output must not replace."""
        from tracekit.system.files import Input

        return (Input.from_path(self.path),)

    def open(self) -> Capture:
        """Open the file again.

        Raises:
            TracekitError: The file has changed since it was loaded, or cannot be read.
            FileNotFoundError: The file does not exist.
        """
        source = Source(self.path)
        if not source.exists:
            raise FileNotFoundError(2, os.strerror(2), str(self.path))
        now = FileState.read_file(self.path)
        if now is not self.state and (now is None or not now.has_same_content(self.state)):
            raise TracekitError("the file has changed since the trace was loaded", path=self.path, hint="load it again")
        return self.open_unchecked(self.create_reader(source), source)

    def create_reader(self, source: Source) -> Reader:
        """Return the reader that opens the file.

        Raises:
            UnknownFormatError: The reader or the program of ``via`` is unknown.
            TracekitError: The program of ``via`` does not export files of this format.
        """
        return create_reader_through_program(self.via, registry.reader(self.format), source)

    def open_unchecked(self, reader: Reader, source: Source) -> Capture:
        """Open a source with a reader, without checking whether the file has changed.

        If ``cache`` is True, columns are read from the cache and stored in it, unless another program exports the file.

        Raises:
            TracekitError: The file cannot be read.
            SchemaError: The reader returned neither a mapping of tables nor a capture.
        """
        if not self.cache or self.via is not None or reader is not registry.reader(self.format):
            return self._open_file(reader, source)
        from tracekit.plan import cache

        return cache.open_cached_capture(self.path, self.format, lambda: self._open_file(reader, source))

    @staticmethod
    def _open_file(reader: Reader, source: Source) -> Capture:
        """Open a source with a reader, without the cache, and return the capture."""
        opened = reader.open(source)
        if isinstance(opened, Mapping):
            return TablesCapture(opened, source.path, is_complete=reader.format not in registry.BUILTIN_READERS)
        if not isinstance(opened, Capture):
            problem = f"returned {type(opened).__name__}, which is neither a mapping of tables nor a tracekit.Capture"
            raise SchemaError(f"the reader {reader.format!r} {problem}", path=source.path)
        return opened


class TablesCapture(Capture):
    """A capture of Arrow tables in memory."""

    def __init__(self, tables: Mapping[str, pa.Table], path: Path, *, is_complete: bool = False) -> None:
        """Create a capture.

        Args:
            tables: The tables by name.
            path: Path of the file, for error messages.
            is_complete: Whether the format has no other tables. False for tables that may come from any tool.
        """
        self._tables = tables
        self._path = path
        self._is_complete = is_complete

    def names(self) -> Collection[str]:
        """Return the names of the tables."""
        return self._tables.keys()

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        schema = schemas.table(name)
        return int(schemas.conform(self._tables[name], schema, schema.names[:1], path=self._path).num_rows)

    def can_contain(self, name: str) -> bool:
        """Return whether the format of the capture has a table."""
        return not self._is_complete or name in self._tables

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return a table with all its columns, even if only some of them are requested."""
        return self._tables[name]


@dataclass(frozen=True, slots=True)
class InMemory:
    """The tables of a trace as Arrow tables in memory. They are pickled with the trace."""

    tables: Mapping[str, pa.Table]
    path: ClassVar[Path] = Path("memory")
    format: ClassVar[str] = "memory"
    inputs: ClassVar[tuple[Input, ...]] = ()
    can_reopen: ClassVar[bool] = True

    def open(self) -> Capture:
        """Return the tables as a capture."""
        return TablesCapture(self.tables, self.path)


@dataclass(frozen=True, slots=True)
class LiveCapture:
    """An opened capture that contains the tables of a trace.

    It cannot be opened again, so the trace cannot be pickled.
    """

    capture: Capture
    path: ClassVar[Path] = Path("memory")
    format: ClassVar[str] = "memory"
    inputs: ClassVar[tuple[Input, ...]] = ()
    can_reopen: ClassVar[bool] = False

    def open(self) -> Capture:
        """Return the capture."""
        return self.capture

    def __reduce__(self) -> tuple[Any, ...]:
        hint = "create the trace with tracekit.load or Trace.from_tables"
        raise TracekitError("the trace cannot be pickled, because its capture cannot be opened again", hint=hint)


def create_reader_through_program(program: str | None, reader: Reader, source: Source) -> Reader:
    """Return a reader that lets another program export a file, and reads the exported file.

    If ``program`` is None, return ``reader``, which opens the file directly.

    Raises:
        UnknownFormatError: ``program`` is not the name of a supported program.
        TracekitError: The program does not export files of this format.
    """
    if program is None:
        return reader
    from tracekit.readers import nsys_rep, nsys_sqlite
    from tracekit.readers.nsys import via_nsys

    if program != via_nsys.TOOL:
        message = f"files cannot be exported with the program {program!r}"
        raise UnknownFormatError(message, hint=f"use {via_nsys.TOOL}, the only supported program")
    if reader.format != nsys_rep.READER.format:
        message = f"nsys can export only its own reports (nsys-rep), but the format of this file is {reader.format}"
        raise TracekitError(message, path=source.path, hint="load the file without via= or --via")
    return dataclasses.replace(
        nsys_sqlite.READER, open=lambda export: via_nsys.open_via_nsys(export, nsys_sqlite.open_export)
    )
