"""The available readers and exporters, by format name.

Built-in readers and exporters are listed in this module. Plug-ins of other distributions are found through the entry
point groups ``tracekit.readers``, ``tracekit.exporters`` and ``tracekit.tables``, and in ``registry.analyses`` through
``tracekit.analyses``. A plug-in is skipped with a warning if it cannot be loaded or if its name is already used.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import TYPE_CHECKING, TypeVar

from tracekit import schemas
from tracekit.errors import PluginError, UnknownFormatError, create_choices_hint, warn
from tracekit.registry.interface import Capture, Exporter, Progress, Reader, Undecoded, View
from tracekit.registry.source import Source
from tracekit.registry.tables import Tables, count_rows, prefetch, read_chunks, read_table, scan_table
from tracekit.system import no_pandas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tracekit.registry.analyses import Analysis

__all__ = [
    "Capture",
    "Exporter",
    "Progress",
    "Reader",
    "Source",
    "Tables",
    "Undecoded",
    "View",
    "count_rows",
    "exporter",
    "exporters",
    "formats",
    "prefetch",
    "read_chunks",
    "read_table",
    "reader",
    "readers",
    "scan_table",
]

BUILTIN_READERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "nsys-sqlite": ("tracekit.readers.nsys_sqlite", (".sqlite", ".sqlite3", ".db")),
    "nsys-rep": ("tracekit.readers.nsys_rep", (".nsys-rep", ".qdrep")),
    "nsys-parquetdir": ("tracekit.readers.nsys_folders.parquetdir", ()),
    "nsys-arrowdir": ("tracekit.readers.nsys_folders.arrowdir", ()),
    "nsys-jsonlines": ("tracekit.readers.nsys_jsonlines", (".json", ".jsonl", ".jsonlines")),
    "ncu-csv": ("tracekit.readers.ncu_csv", (".csv", ".txt", ".log")),
    "ncu-rep": ("tracekit.readers.ncu_rep", (".ncu-rep", ".nsight-cuprof-report")),
    "ascend": ("tracekit.readers.ascend", (".json", ".gz")),
    "kineto": ("tracekit.readers.kineto", (".json", ".gz")),
    "xplane": ("tracekit.readers.xplane", (".pb", ".gz", ".json")),
    "chrome-trace": ("tracekit.readers.chrome_trace", (".json", ".gz")),
    "memory-snapshot": ("tracekit.readers.memory_snapshot", (".pickle", ".pkl")),
    "nccl": ("tracekit.readers.nccl", (".pickle", ".pkl", ".jsonl", ".log", ".json", ".gz")),
    "proton": ("tracekit.readers.proton", (".hatchet",)),
    "nvprof-csv": ("tracekit.readers.nvprof_csv", (".csv", ".log", ".txt")),
    "nvprof": ("tracekit.readers.nvprof", (".nvvp", ".nvprof", ".sqlite", ".db")),
    "perfetto": ("tracekit.readers.pftrace", (".pftrace", ".gz")),
    "graphdef": ("tracekit.readers.graphdef", (".pb", ".pbtxt", ".meta")),
    "tfevents": ("tracekit.readers.tfevents", ()),
    "parquet": ("tracekit.readers.parquet", (".parquet",)),
    "arrow": ("tracekit.readers.arrow", (".arrow",)),
    "dlprof-db": ("tracekit.readers.dlprof_db", (".sqlite",)),
    "rocpd": ("tracekit.readers.rocm.rocpd", (".db",)),
    "rpd": ("tracekit.readers.rocm.rpd", (".rpd", ".gz")),
    "rocprofv3-json": ("tracekit.readers.rocm.rocprofv3_json", (".json", ".gz")),
    "rocprof-csv": ("tracekit.readers.rocm.rocprof_csv", (".csv",)),
}
"""The module and the suffixes of each built-in reader, by format name. A module is imported when its reader is used."""
BUILTIN_EXPORTERS: Mapping[str, str] = {
    "chrome-trace": "tracekit.exporters.chrome_trace",
    "perfetto": "tracekit.exporters.perfetto",
    "csv": "tracekit.exporters.csv",
    "parquet": "tracekit.exporters.parquet",
    "arrow": "tracekit.exporters.arrow",
    "sqlite": "tracekit.exporters.sqlite",
    "dlprof-db": "tracekit.exporters.dlprof_db",
    "dlprof-reports": "tracekit.exporters.dlprof_reports",
    "tfevents": "tracekit.exporters.tfevents",
    "collapsed": "tracekit.exporters.stacks.collapsed",
    "speedscope": "tracekit.exporters.stacks.speedscope",
    "pprof": "tracekit.exporters.stacks.pprof",
    "html": "tracekit.exporters.html",
}
"""The module of each built-in exporter, by format name."""
Plugin = TypeVar("Plugin", Reader, Exporter, schemas.TableSchema, "Analysis")
Key = TypeVar("Key")


@functools.cache
def load_plugin_tables() -> dict[str, schemas.TableSchema]:
    """Add the tables of plug-ins to the declared tables, and return all tables by name."""
    known = schemas.tables()
    tables = add_plugins(schemas.TableSchema, known, "tracekit.tables")
    for name in tables.keys() - known.keys():
        schemas.add_table(tables[name])
    return tables


schemas.TABLE_LOADERS.append(load_plugin_tables)


@functools.cache
def readers() -> dict[str, Reader]:
    """Return all readers by format name. Built-in readers come before plug-ins, whose tables are declared, too."""
    load_plugin_tables()
    return add_plugins(Reader, {r.format: r for r in iterate_built_in_readers()}, "tracekit.readers")


def iterate_built_in_readers(suffix: str = "") -> Iterator[Reader]:
    """Yield the built-in readers, those for files with a suffix first. Each reader is imported when it is yielded."""
    yield from map(
        _load_built_in_reader, sorted(BUILTIN_READERS, key=lambda name: suffix not in BUILTIN_READERS[name][1])
    )


def list_suffixes_of_readers() -> tuple[str, ...]:
    """Return the suffixes of the files that built-in readers read."""
    return tuple(suffix for _, suffixes in BUILTIN_READERS.values() for suffix in suffixes)


@functools.cache
def exporters() -> dict[str, Exporter]:
    """Return all exporters by format name. Built-in exporters come before plug-ins."""
    return add_plugins(
        Exporter, {name: _load_built_in_exporter(name) for name in BUILTIN_EXPORTERS}, "tracekit.exporters"
    )


def reader(name: str) -> Reader:
    """Return the reader of a format.

    Raises:
        UnknownFormatError: No reader has this format name.
    """
    return _load_built_in_reader(name) if name in BUILTIN_READERS else _find_by_format_name("reader", name, readers())


def exporter(name: str) -> Exporter:
    """Return the exporter of a format.

    Raises:
        UnknownFormatError: No exporter has this format name.
    """
    if name in BUILTIN_EXPORTERS:
        return _load_built_in_exporter(name)
    return _find_by_format_name("exporter", name, exporters())


def formats() -> dict[str, tuple[bool, bool]]:
    """Return for each format, by name, a pair of two flags: whether tracekit can read it, and whether it can write it.

    Examples:
        >>> import tracekit as tk
        >>> tk.formats()["nsys-sqlite"]
        (True, False)
    """
    read, write = readers(), exporters()
    return {name: (name in read, name in write) for name in sorted({*read, *write})}


def find_exporter_for(path: str | os.PathLike[str]) -> Exporter:
    """Return the exporter that writes files with the suffix of a path.

    Raises:
        UnknownFormatError: No exporter writes files with this suffix.
    """
    if chosen := _find_exporter_by_suffix(path):
        return chosen
    hint = create_choices_hint("exporters", exporters(), os.fspath(path).rpartition(".")[2])
    raise UnknownFormatError("no exporter writes files with this suffix", path=path, hint=hint)


def _find_exporter_by_suffix(path: str | os.PathLike[str]) -> Exporter | None:
    """Return the exporter whose suffix matches a path, or None.

    If several suffixes match, the longest one is used. The suffix of compressed files of one format never stands for
    another format: ``.json.gz`` is a Chrome trace, but nothing writes ``.speedscope.json.gz``.
    """
    name = os.fspath(path).lower()
    chosen = _match_longest_suffix(name)
    uncompressed = _match_longest_suffix(name.removesuffix(".gz"))
    return chosen if uncompressed in (None, chosen) else None


def _match_longest_suffix(name: str) -> Exporter | None:
    """Return the exporter with the longest of the suffixes with which a name ends, or None."""
    matches = [(len(s), e) for e in exporters().values() for s in e.suffixes if name.endswith(s)]
    return max(matches, key=lambda m: m[0])[1] if matches else None


def has_exporter_for(path: str | os.PathLike[str]) -> bool:
    """Return whether a path has the suffix of a format that an exporter writes."""
    return _find_exporter_by_suffix(path) is not None


def find_table_exporter_for(path: str | os.PathLike[str], format_name: str | None = None) -> Exporter:
    """Return the exporter that writes a single table to a path.

    Args:
        path: Path of the file. Its suffix determines the format if ``format_name`` is None.
        format_name: Name of the format.

    Raises:
        UnknownFormatError: No exporter has this suffix or format name, or the exporter writes only whole traces. The
            hint lists the formats that store single tables.
    """
    chosen = _find_exporter_by_suffix(path) if format_name is None else exporter(format_name)
    if chosen is not None and chosen.write_table is not None:
        return chosen
    formats = ", ".join(name for name, other in exporters().items() if other.write_table is not None)
    what = (
        "no exporter writes files with this suffix"
        if chosen is None
        else f"the format {chosen.format} cannot store a single table, only a whole trace"
    )
    raise UnknownFormatError(what, path=path, hint=f"choose a format for single tables: {formats}")


def is_exported_file(path: Path) -> bool:
    """Return whether an exporter of tracekit or of a plug-in wrote a file."""
    return any(_wrote(exporter, path) for exporter in exporters().values())


def _wrote(exporter: Exporter, path: Path) -> bool:
    """Return whether an exporter wrote a file. If the exporter fails, warn and return False."""
    try:
        return exporter.wrote is not None and bool(exporter.wrote(path))
    except PluginError as e:
        warn(f"it is unknown whether the exporter {exporter.format!r} wrote this file: {e.message}", path=path)
        return False


def _load_built_in_reader(name: str) -> Reader:
    loaded: Reader = importlib.import_module(BUILTIN_READERS[name][0]).READER
    return loaded


def _load_built_in_exporter(name: str) -> Exporter:
    loaded: Exporter = importlib.import_module(BUILTIN_EXPORTERS[name]).EXPORTER
    return loaded


def add_plugins(kind: type[Plugin], built_in: Mapping[Key, Plugin], entry_point_group: str) -> dict[Key, Plugin]:
    """Return built-in objects and those of plug-ins by key, which is the format of a reader or exporter.

    A plug-in that cannot be used is skipped with a warning.

    Args:
        kind: Class of the objects: ``Reader``, ``Exporter``, ``TableSchema`` or ``Analysis``.
        built_in: The built-in objects.
        entry_point_group: Group of the entry points of plug-ins.
    """
    from importlib import metadata

    known = dict(built_in)
    for entry_point in metadata.entry_points(group=entry_point_group):
        from tracekit.registry import plugins

        no_pandas.allow_pandas()
        try:
            plugin = plugins.load(kind, entry_point, known)
        except PluginError as e:
            warn(f"{plugins.describe_entry_point(entry_point)} was skipped: {e.message}")
        else:
            known[plugins.get_key(plugin)] = plugin
    return known


def _find_by_format_name(noun: str, format_name: str, by_format_name: dict[str, Plugin]) -> Plugin:
    """Return the reader or exporter of a format, or raise an error that lists the known formats."""
    try:
        return by_format_name[format_name]
    except KeyError:
        raise UnknownFormatError(
            f"no {noun} is called {format_name!r}", hint=create_choices_hint(f"{noun}s", by_format_name, format_name)
        ) from None
