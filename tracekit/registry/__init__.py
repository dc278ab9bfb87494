"""The available readers and exporters, by format name.

Built-in readers and exporters are listed in this module. Plug-ins of other distributions are found through the entry
point groups ``tracekit.readers`` and ``tracekit.exporters``. A plug-in is skipped with a warning if it cannot be loaded
or if its format already has a reader or exporter.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import TYPE_CHECKING, Any, TypeVar

from tracekit.errors import PluginError, UnknownFormatError, create_choices_hint, warn
from tracekit.registry.interface import Capture, Exporter, Reader, Undecoded
from tracekit.system import no_pandas

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint
    from pathlib import Path

__all__ = ["Capture", "Exporter", "Reader", "Undecoded", "exporter", "exporters", "formats", "reader", "readers"]

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
    "tracekit.exporters.perfetto",
    "tracekit.exporters.csv",
    "tracekit.exporters.parquet",
    "tracekit.exporters.arrow",
    "tracekit.exporters.sqlite",
    "tracekit.exporters.dlprof_db",
    "tracekit.exporters.dlprof_reports",
    "tracekit.exporters.tfevents",
    "tracekit.exporters.stacks.collapsed",
    "tracekit.exporters.stacks.speedscope",
    "tracekit.exporters.stacks.pprof",
    "tracekit.exporters.html",
)
Plugin = TypeVar("Plugin", Reader, Exporter)


@functools.cache
def readers() -> dict[str, Reader]:
    """Return all readers by format name. Built-in readers come before plug-ins."""
    return _add_plugins(Reader, load_built_in_readers(), "tracekit.readers")


@functools.cache
def load_built_in_readers() -> dict[str, Reader]:
    """Return the built-in readers by format name."""
    return _import_built_in(BUILTIN_READERS, "READER")


@functools.cache
def exporters() -> dict[str, Exporter]:
    """Return all exporters by format name. Built-in exporters come before plug-ins."""
    return _add_plugins(Exporter, _import_built_in(BUILTIN_EXPORTERS, "EXPORTER"), "tracekit.exporters")


def reader(name: str) -> Reader:
    """Return the reader of a format.

    Raises:
        UnknownFormatError: No reader has this format name.
    """
    return load_built_in_readers().get(name) or _find_by_format_name("reader", name, readers())


def exporter(name: str) -> Exporter:
    """Return the exporter of a format.

    Raises:
        UnknownFormatError: No exporter has this format name.
    """
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


def _import_built_in(modules: tuple[str, ...], attribute: str) -> dict[str, Any]:
    """Import modules and return the readers or exporters that they define, by format name."""
    handlers = [getattr(importlib.import_module(module), attribute) for module in modules]
    return {handler.format: handler for handler in handlers}


def _add_plugins(kind: type[Plugin], built_in: Mapping[str, Plugin], entry_point_group: str) -> dict[str, Plugin]:
    """Return the built-in readers or exporters and those of plug-ins, by format name."""
    from importlib import metadata

    known = dict(built_in)
    for entry in metadata.entry_points(group=entry_point_group):
        plugin = _load_plugin(kind, entry, known)
        if plugin is not None:
            known[plugin.format] = plugin
    return known


def _load_plugin(kind: type[Plugin], entry_point: EntryPoint, known: Mapping[str, Plugin]) -> Plugin | None:
    """Import the reader or exporter of an entry point. Warn and return None if the plug-in cannot be used.

    Args:
        kind: ``Reader`` or ``Exporter``.
        entry_point: The entry point.
        known: The readers or exporters before this one, by format name.
    """
    from tracekit.registry import plugins

    no_pandas.allow_pandas()
    try:
        return plugins.load(kind, entry_point, known)
    except PluginError as e:
        warn(f"{plugins.describe_entry_point(entry_point)} was skipped: {e.message}")
        return None


def _find_by_format_name(noun: str, format_name: str, by_format_name: dict[str, Plugin]) -> Plugin:
    """Return the reader or exporter of a format, or raise an error that lists the known formats."""
    try:
        return by_format_name[format_name]
    except KeyError:
        raise UnknownFormatError(
            f"no {noun} is called {format_name!r}", hint=create_choices_hint(f"{noun}s", by_format_name, format_name)
        ) from None
