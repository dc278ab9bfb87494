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

from tracekit import no_pandas
from tracekit.errors import UnknownFormatError, choices_hint, warn
from tracekit.interface import Exporter, Reader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint
    from pathlib import Path

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
Plugin = TypeVar("Plugin", Reader, Exporter)


@functools.cache
def readers() -> dict[str, Reader]:
    """Return all readers by format name. Built-in readers come before plug-ins."""
    return _with_plugins(Reader, built_in_readers(), "tracekit.readers")


@functools.cache
def built_in_readers() -> dict[str, Reader]:
    """Return the built-in readers by format name."""
    return _built_in(BUILTIN_READERS, "READER")


@functools.cache
def exporters() -> dict[str, Exporter]:
    """Return all exporters by format name. Built-in exporters come before plug-ins."""
    return _with_plugins(Exporter, _built_in(BUILTIN_EXPORTERS, "EXPORTER"), "tracekit.exporters")


def reader(name: str) -> Reader:
    """Return the reader of a format.

    Raises:
        UnknownFormatError: No reader has this format name.
    """
    return _named("reader", name, readers())


def exporter(name: str) -> Exporter:
    """Return the exporter of a format.

    Raises:
        UnknownFormatError: No exporter has this format name.
    """
    return _named("exporter", name, exporters())


def formats() -> dict[str, tuple[bool, bool]]:
    """Map the name of each format to whether it can be read and whether it can be written.

    Examples:
        >>> import tracekit as tk
        >>> tk.formats()["nsys-sqlite"]
        (True, False)
    """
    read, write = readers(), exporters()
    return {name: (name in read, name in write) for name in sorted({*read, *write})}


def exporter_for(path: str | os.PathLike[str]) -> Exporter:
    """Return the exporter that writes files with the suffix of a path.

    Raises:
        UnknownFormatError: No exporter writes files with this suffix.
    """
    name = os.fspath(path)
    matches = [(len(s), e) for e in exporters().values() for s in e.suffixes if name.endswith(s)]
    if not matches:
        raise UnknownFormatError(
            "no exporter writes files of that name", path=path, hint=f"give the format: {', '.join(exporters())}"
        )
    return max(matches, key=lambda m: m[0])[1]


def is_exported_file(path: Path) -> bool:
    """Return whether the ``wrote`` function of any exporter recognizes a file in an output folder as its own."""
    return any(e.wrote(path) for e in exporters().values() if e.wrote is not None)


def _built_in(modules: tuple[str, ...], attribute: str) -> dict[str, Any]:
    parts = [getattr(importlib.import_module(module), attribute) for module in modules]
    return {part.format: part for part in parts}


def _with_plugins(kind: type[Plugin], known: Mapping[str, Plugin], group: str) -> dict[str, Plugin]:
    from importlib import metadata

    found = dict(known)
    for entry in metadata.entry_points(group=group):
        plugin = _load(kind, entry)
        if plugin is not None and plugin.format in found:
            warn(f"plug-in {entry.value!r} skipped: the format {plugin.format!r} is taken")
        elif plugin is not None:
            found[plugin.format] = plugin
    return found


def _load(kind: type[Plugin], entry: EntryPoint) -> Plugin | None:
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


def _named(what: str, name: str, found: dict[str, Plugin]) -> Plugin:
    try:
        return found[name]
    except KeyError:
        raise UnknownFormatError(f"no {what} is called {name!r}", hint=choices_hint(f"{what}s", found, name)) from None
