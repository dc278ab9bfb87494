"""What a reader and an exporter are, which ones there are, and which reader fits a file.

Built-ins are named in one tuple each; third parties add theirs through the entry point groups ``tracekit.readers`` and
``tracekit.exporters``. A plug-in that cannot be loaded is skipped with a warning; a built-in wins over its name.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

from tracekit import no_pandas
from tracekit.errors import ExportError, TracekitError, UnknownFormatError, choices_hint, warn
from tracekit.files import InputFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from importlib.metadata import EntryPoint

    import polars as pl
    import pyarrow as pa

    from tracekit.files import FileState
    from tracekit.schemas import TableSchema

BUILTIN_READERS = (
    "tracekit.readers.nsys_sqlite",
    "tracekit.readers.nsys_rep",
    "tracekit.readers.nsys_folders.parquetdir",
    "tracekit.readers.nsys_folders.arrowdir",
    "tracekit.readers.ncu_csv",
    "tracekit.readers.ncu_rep",
    "tracekit.readers.kineto",
    "tracekit.readers.graphdef",
    "tracekit.readers.tfevents",
    "tracekit.readers.parquet",
    "tracekit.readers.arrow",
    "tracekit.readers.dlprof_db",
)
BUILTIN_EXPORTERS = (
    "tracekit.exporters.chrome_trace",
    "tracekit.exporters.csv",
    "tracekit.exporters.parquet",
    "tracekit.exporters.arrow",
    "tracekit.exporters.dlprof_db",
    "tracekit.exporters.dlprof_reports",
    "tracekit.exporters.tfevents",
)
HEAD_BYTES = 4096
_SHOWN_FILES = 5
_TABLE_FILES = ("parquet", "arrow")
UNKNOWN = "no reader recognises the content"
_FOREIGN = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "run: git lfs pull"),
    (b"\x1f\x8b", "a gzip file", "unpack it first"),
    (b"PK\x03\x04", "a zip file", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "unpack it first"),
    (b"\xff\xff\xff\xff", "an Arrow stream", "of an export of Nsight Systems give the folder that it is in"),
    (
        b"SQLite format 3\x00",
        "a SQLite database, but not an export of Nsight Systems",
        "run: nsys export --type sqlite",
    ),
)
_READ_OF_TENSORFLOW = "of TensorFlow, graphs (GraphDef, MetaGraphDef, SavedModel) and event files are read"


_STREAM = re.compile(rb"(?s).{8}NVIDIA Nsight Systems Stream (\d{1,9}(?:\.\d{1,9}){0,3})")
_STREAM_WRITTEN = b"U3w[END]"
_PROFILER_PAGE = re.compile(
    r"\.(overview_page|input_pipeline|kernel_stats|tensorflow_stats|framework_op_stats|op_stats|op_profile|pod_viewer"
    r"|memory_profile|tf_data_bottleneck_analysis|xplane)\.pb\Z"
)


class Source:
    """A file or folder to be read, with its head read once for every sniffer."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def head(self) -> bytes:
        """The first bytes of a file; empty for a folder, a pipe or a device."""
        return self._first_look[0]

    @property
    def state(self) -> FileState | None:
        """State of the file when its head was read; None for a folder, a pipe or a device."""
        return self._first_look[1]

    @functools.cached_property
    def _first_look(self) -> tuple[bytes, FileState | None]:
        with self._readable():
            if not self.path.is_file():
                return b"", None
            with InputFile(self.path) as file:
                return file.read(0, min(HEAD_BYTES, file.size)), file.state

    @functools.cached_property
    def size(self) -> int:
        """Size of the file in bytes."""
        with self._readable():
            return self.path.stat().st_size

    def open(self) -> InputFile:
        """Open the file that the head was read of.

        Raises:
            TracekitError: It is no regular file, may not be read, or is not the same file any more.
            FileNotFoundError: There is no such file.
        """
        return InputFile(self.path, self.state)

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Names of the entries of a folder; empty for a file."""
        with self._readable():
            return frozenset(p.name for p in self.path.iterdir()) if self.path.is_dir() else frozenset()

    @property
    def exists(self) -> bool:
        """Whether there is such a file or folder."""
        with self._readable():
            return self.path.exists()

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as e:
            raise TracekitError("cannot be read: permission denied", path=self.path, hint="check its mode") from e
        except FileNotFoundError:
            raise
        except OSError as e:
            raise TracekitError(f"cannot be read: {e.strerror or e}", path=self.path) from e


class Progress(Protocol):
    """Told how far a long work has come: ``done`` of ``total`` rows."""

    def __call__(self, done: int, total: int) -> None:
        """Take note."""
        ...


class Capture(ABC):
    """An opened file: tables by name, read by column. Readers return it, and one thread at a time uses it."""

    @abstractmethod
    def names(self) -> Collection[str]:
        """Return the names of the declared tables that the file may hold rows for."""

    @abstractmethod
    def count(self, name: str) -> int:
        """Return the number of rows of one table."""

    @abstractmethod
    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return some columns of one table."""

    def count_many(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the number of rows of several tables; override it if one pass over the file can count them all."""
        return {name: self.count(name) for name in names}

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> Mapping[str, pa.Table]:
        """Return columns of several tables; override it if one pass over the file can read them all."""
        return {name: self.read(name, names) for name, names in columns.items()}

    def count_undecoded(self) -> Mapping[str, int]:
        """Return the number of events, by name, that the file holds and no table has; none if they are not counted."""
        return {}

    def close(self) -> None:  # noqa: B027 - captures without an open file have nothing to close
        """Close the file."""


class Report(Protocol):
    """A report: rows under titles, and the CSV of the tool that first made it."""

    def frame(self) -> pl.DataFrame:
        """Its rows."""
        ...

    def csv(self, sink: BinaryIO) -> None:
        """Write it as CSV."""
        ...


class View(Protocol):
    """What an exporter sees of a trace."""

    @property
    def info(self) -> Mapping[str, str]:
        """Facts about the capture."""
        ...

    def prefetch(self, wanted: Mapping[str, Sequence[str] | None]) -> None:
        """Read columns by table, all of them if None, now and together; those asked for later are there."""
        ...

    def table(self, name: str) -> pa.Table:
        """One table as declared, with one dictionary a column of texts, which holds only what its rows use."""
        ...

    def chunked_table(self, name: str) -> pa.Table:
        """Return the same; each chunk of a column may have a dictionary of its own."""
        ...

    def frame(self, name: str) -> pl.LazyFrame:
        """One table; only the columns that the query uses are read."""
        ...

    def count(self, name: str) -> int:
        """Number of rows of one table."""
        ...

    def schema(self, name: str) -> TableSchema:
        """Declared schema of one table."""
        ...

    def report(self, name: str) -> Report:
        """A report by name."""
        ...

    def model(self, name: str) -> Mapping[str, pl.DataFrame]:
        """The capture as another tool keeps it: its tables by name."""
        ...

    @property
    def tables(self) -> list[str]:
        """Names of the tables."""
        ...


@dataclass(frozen=True, slots=True)
class Reader:
    """Turns one format into tables.

    Attributes:
        format: Kebab-case name, ``nsys-sqlite``.
        doc: One line that says what it reads.
        suffixes: File suffixes; they only order the attempts.
        sniff: Whether the content of a source looks like this format. Must not raise on foreign content.
        open: Opens the source: a ``Capture``, or simply a mapping of table names to Arrow tables.
        redact: Writes a copy of the source to a path (which does not exist yet) without what identifies people and
            machines, and returns how many values it replaced, by kind. None if the format cannot be redacted.
        redact_with_key: The same; a key makes the pseudonyms, and the same key makes the same ones. None if pseudonyms
            are always random, or there are none.
        unredacted: Counts what ``redact`` would replace, by kind, without writing anything. None if it cannot be told.
    """

    format: str
    doc: str
    suffixes: tuple[str, ...]
    sniff: Callable[[Source], bool]
    open: Callable[[Source], Capture | Mapping[str, pa.Table]]
    redact: Callable[[Source, Path], Mapping[str, int]] | None = None
    redact_with_key: Callable[[Source, Path, bytes], Mapping[str, int]] | None = None
    unredacted: Callable[[Source], Mapping[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class Exporter:
    """Turns a trace into one format: one file of the whole trace, or one file a table.

    Attributes:
        format: Kebab-case name, ``chrome-trace``.
        doc: One line that says what it writes.
        suffixes: Suffixes of its files; the first one is the default.
        write: Writes the whole trace to a path (which does not exist yet).
        write_table: Writes one table to a path, for formats that hold one table a file.
        correlated: Whether the trace is to be correlated first.
        folder: Whether ``write`` makes a folder.
        options: Names of options that it takes, and what they are.
        configure: Gives the same exporter with some of these options set.
        wrote: Whether a file in a folder is one that this exporter writes there. Must not raise. Folders that hold only
            such files can be replaced; without it no folder that this exporter wrote is ever replaced.
    """

    format: str
    doc: str
    suffixes: tuple[str, ...]
    write: Callable[[View, Path, Progress], None] | None = None
    write_table: Callable[[View, str, Path, Progress], None] | None = None
    correlated: bool = field(default=False)
    folder: bool = field(default=False)
    options: Mapping[str, str] = field(default_factory=dict)
    configure: Callable[[Mapping[str, str]], Exporter] | None = None
    wrote: Callable[[Path], bool] | None = None

    def with_options(self, options: Mapping[str, str]) -> Exporter:
        """Set options.

        Raises:
            UnknownFormatError: It takes no such option.
        """
        unknown = [o for o in options if o not in self.options]
        if unknown:
            hint = choices_hint("options", self.options, unknown[0])
            raise UnknownFormatError(f"{self.format} has no option {unknown[0]!r}", hint=hint)
        return self.configure(options) if options and self.configure else self

    def check_folder(self, path: str | os.PathLike[str]) -> None:
        """Check that a folder of tables is not named like one of its files.

        Raises:
            ExportError: It is.
        """
        if os.fspath(path).endswith(self.suffixes):
            what = f"{self.format} holds one table per file, and this is the name of a file"
            raise ExportError(what, path=path, hint="name one table, --table kernels, or give the name of a folder")


Part = TypeVar("Part", Reader, Exporter)


@functools.cache
def readers() -> dict[str, Reader]:
    """Return every reader by format, built-ins first."""
    return _with_plugins(Reader, _built_in_readers(), "tracekit.readers")


@functools.cache
def _built_in_readers() -> dict[str, Reader]:
    return _built_in(BUILTIN_READERS, "READER")


@functools.cache
def exporters() -> dict[str, Exporter]:
    """Return every exporter by format, built-ins first."""
    return _with_plugins(Exporter, _built_in(BUILTIN_EXPORTERS, "EXPORTER"), "tracekit.exporters")


def reader(name: str) -> Reader:
    """Return the reader of a format.

    Raises:
        UnknownFormatError: There is none.
    """
    return _named("reader", name, readers())


def exporter(name: str) -> Exporter:
    """Return the exporter of a format.

    Raises:
        UnknownFormatError: There is none.
    """
    return _named("exporter", name, exporters())


def formats() -> dict[str, tuple[bool, bool]]:
    """Return every format by name, and whether it can be read and written.

    Examples:
        >>> import tracekit as tk
        >>> tk.formats()["nsys-sqlite"]
        (True, False)
    """
    read, write = readers(), exporters()
    return {name: (name in read, name in write) for name in sorted({*read, *write})}


def sniff(source: Source) -> Reader:
    """Return the reader that recognises the content of a source; the suffix only orders the attempts.

    Plug-ins are looked for, which takes time in a large environment, when no built-in reader does.

    Raises:
        UnknownFormatError: None does; the message says what the file seems to be.
        TracekitError: The file may not be read.
        FileNotFoundError: The path does not exist.
    """
    if not source.exists:
        raise FileNotFoundError(2, os.strerror(2), str(source.path))
    for known in (_built_in_readers, readers):
        by_suffix = sorted(known().values(), key=lambda r: source.path.suffix.lower() not in r.suffixes)
        if (found := next((r for r in by_suffix if _recognises(r, source)), None)) is not None:
            return found
    what, hint = describe(source)
    raise UnknownFormatError(what, path=source.path, hint=hint)


def exporter_for(path: str | os.PathLike[str]) -> Exporter:
    """Return the exporter whose suffix a file name ends in.

    Raises:
        UnknownFormatError: None has it.
    """
    name = os.fspath(path)
    matches = [(len(s), e) for e in exporters().values() for s in e.suffixes if name.endswith(s)]
    if not matches:
        raise UnknownFormatError(
            "no exporter writes files of that name", path=path, hint=f"give the format: {', '.join(exporters())}"
        )
    return max(matches, key=lambda m: m[0])[1]


def is_ours(path: Path) -> bool:
    """Return whether a file in a folder is one that some exporter wrote there."""
    return any(e.wrote(path) for e in exporters().values() if e.wrote is not None)


def describe(source: Source) -> tuple[str, str]:
    """Say what a source that a reader cannot read seems to be, and what to do."""
    if source.path.is_dir():
        return _describe_folder(source)
    if not source.path.is_file():
        return "neither a file nor a folder", "write it to a file first"
    if not source.head:
        return "the file is empty (0 bytes)", "export or copy it again"
    if not source.head.strip(b"\0"):
        return "begins with zeros only: an interrupted export", "export it again"
    return _describe_content(source)


def captures_in(source: Source, most: int = 256) -> dict[str, str]:
    """Return the captures in a folder and their formats, in the order of their names.

    A capture is a file that a built-in reader recognises, but for files of single tables.

    Args:
        source: The folder; of a file, nothing is returned.
        most: Number of files that are looked at.
    """
    found = {}
    for name in sorted(source.names)[:most]:
        try:
            file = Source(source.path / name)
            reader = next((r for r in _built_in_readers().values() if file.head and r.sniff(file)), None)
        except (TracekitError, OSError):
            continue
        if reader is not None and reader.format not in _TABLE_FILES:
            found[name] = reader.format
    return found


def _describe_folder(source: Source) -> tuple[str, str]:
    files = captures_in(source)
    if not files:
        return "a folder, and no reader recognises what is in it", f"give a file, or a folder of tables ({_formats()})"
    formats = ", ".join(f"{count} of {name}" for name, count in sorted(Counter(files.values()).items()))
    captures = f"{len(files)} captures" if len(files) > 1 else "one capture"
    names = ", ".join(list(files)[:_SHOWN_FILES]) + (", …" if len(files) > _SHOWN_FILES else "")
    return f"a folder of {captures} ({formats})", f"captures are read one by one; give {names}"


def _describe_content(source: Source) -> tuple[str, str]:
    for magic, what, hint in _FOREIGN:
        if source.head.startswith(magic):
            return what, hint
    if page := _PROFILER_PAGE.search(source.path.name):
        return f"a page of TensorFlow's profiler ({page[1]}), no graph and no trace", _READ_OF_TENSORFLOW
    if source.path.suffix.lower() in (".pb", ".pbtxt"):
        return "no graph of TensorFlow, nor anything else that is read", _READ_OF_TENSORFLOW
    stream = _STREAM.match(source.head)
    if stream or source.path.suffix.lower() == ".qdstrm":
        return _describe_stream(source, stream)
    return UNKNOWN, f"formats: {_formats()}; or name one with format= or --from"


def _describe_stream(source: Source, found: re.Match[bytes] | None) -> tuple[str, str]:
    """Describe what nsys writes while it records, and imports into a report when it has finished."""
    begun = ", perhaps an unfinished one" if found and not source.head.startswith(_STREAM_WRITTEN) else ""
    version = "the Nsight Systems that recorded it" if found is None else f"Nsight Systems {found[1].decode()}"
    return (
        f"a .qdstrm stream{begun}, which only Nsight Systems can turn into a report",
        f"with the QdstrmImporter of {version}, run: QdstrmImporter -i FILE.qdstrm",
    )


def _formats() -> str:
    return ", ".join(readers())


def _recognises(reader: Reader, source: Source) -> bool:
    try:
        return bool(reader.sniff(source))
    except (TracekitError, FileNotFoundError):
        raise
    except Exception as e:  # noqa: BLE001 - a third party's sniffer must not break the rest
        warn(f"reader {reader.format!r} skipped: {type(e).__name__}: {e}", path=source.path)
        return False


def _built_in(modules: tuple[str, ...], attribute: str) -> dict[str, Any]:
    parts = [getattr(importlib.import_module(module), attribute) for module in modules]
    return {part.format: part for part in parts}


def _with_plugins(kind: type[Part], known: Mapping[str, Part], group: str) -> dict[str, Part]:
    from importlib import metadata

    found = dict(known)
    for entry in metadata.entry_points(group=group):
        plugin = _load(kind, entry)
        if plugin is not None and plugin.format in found:
            warn(f"plug-in {entry.value!r} skipped: the format {plugin.format!r} is taken")
        elif plugin is not None:
            found[plugin.format] = plugin
    return found


def _load(kind: type[Part], entry: EntryPoint) -> Part | None:
    no_pandas.allow_pandas()
    try:
        part = entry.load()
    except (Exception, SystemExit) as e:  # noqa: BLE001 - whatever a third party's import raises must not break the rest
        warn(f"plug-in {entry.value!r} skipped: {type(e).__name__}: {e}")
        return None
    if isinstance(part, kind):
        return part
    warn(f"plug-in {entry.value!r} skipped: it is a {type(part).__name__}, not a tracekit.{kind.__name__}")
    return None


def _named(what: str, name: str, found: dict[str, Part]) -> Part:
    try:
        return found[name]
    except KeyError:
        raise UnknownFormatError(f"no {what} is called {name!r}", hint=choices_hint(f"{what}s", found, name)) from None
