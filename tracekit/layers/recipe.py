"""How to build the layers of a trace again: what it was opened from, and what was done to it since.

A trace is pickled as its recipe. An open file or a lock cannot go to another process, but a path can.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tracekit import registry
from tracekit.errors import TracekitError, UnknownFormatError
from tracekit.layers.file import File
from tracekit.layers.selected import Selected
from tracekit.targets import Input

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    import pyarrow as pa

    from tracekit.layers.stack import Layer
    from tracekit.registry import Reader, Source

Step: TypeAlias = tuple[str, tuple[Any, ...]]
"""Name of a method of ``Layer`` that returns another layer, or ``selected``, and its arguments."""


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

    @classmethod
    def of(cls, source: Source, reader: Reader, via: str | None) -> Self:
        """Describe a source that is about to be opened."""
        return cls(source.path.absolute(), reader.format, via, Stamp.of(source.path))

    def layer(self) -> Layer:
        """Open the file again.

        Raises:
            TracekitError: The file has changed since it was loaded, or cannot be read.
            FileNotFoundError: There is no such file.
        """
        source = registry.Source(self.path)
        if not source.exists:
            raise FileNotFoundError(2, os.strerror(2), str(self.path))
        if Stamp.of(self.path) != self.stamp:
            raise TracekitError("has changed since the trace was loaded", path=self.path, hint="load it again")
        return self.open(source, self.reader(source))

    def reader(self, source: Source) -> Reader:
        """Return what reads the file.

        Raises:
            UnknownFormatError: There is no such reader, or ``via`` names no program.
            TracekitError: The program does not export files of this format.
        """
        return through(self.via, registry.reader(self.format), source)

    @staticmethod
    def open(source: Source, reader: Reader) -> File:
        """Open the file as what it is at this moment.

        Raises:
            TracekitError: The file cannot be read.
        """
        return File(reader.open(source), source.path, (Input.of(source.path),))


@dataclass(frozen=True, slots=True)
class InMemory:
    """Tables in memory, which are pickled with the trace."""

    tables: Mapping[str, pa.Table]

    def layer(self) -> Layer:
        """Return the tables as a layer."""
        return File(self.tables, Path("memory"))


@dataclass(frozen=True, slots=True)
class LiveLayer:
    """A layer that nothing is known of, and that therefore only this process has."""

    opened: Layer

    def layer(self) -> Layer:
        """Return the layer."""
        return self.opened

    def __reduce__(self) -> tuple[Any, ...]:
        hint = "open it with tracekit.load, or make it with Trace.from_tables"
        raise TracekitError("a trace that was made of a layer cannot be pickled", hint=hint)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a trace was opened from, and what was done to its layers since, in order.

    Attributes:
        origin: The file, or tables in memory.
        steps: What was done; another trace that was joined stands as its own recipe.
    """

    origin: OpenedFile | InMemory | LiveLayer
    steps: tuple[Step, ...] = ()

    def then(self, *steps: Step) -> Recipe:
        """Return the recipe with more steps."""
        return dataclasses.replace(self, steps=(*self.steps, *steps))

    def layer(self) -> Layer:
        """Build the layers.

        Raises:
            TracekitError: The file has changed since it was loaded, or cannot be read.
            FileNotFoundError: There is no such file.
        """
        layer = self.origin.layer()
        for step, arguments in self.steps:
            built: list[Any] = [a.layer() if isinstance(a, Recipe) else a for a in arguments]
            layer = Selected(layer, *built) if step == "selected" else getattr(layer, step)(*built)
        return layer


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
    return dataclasses.replace(nsys_sqlite.READER, open=by_nsys.open_)
