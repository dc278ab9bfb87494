"""Reader of Nsight Systems exports that are folders of Arrow files (``nsys export --type arrowdir``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.nsys_folders.sniffing import is_export_folder
from tracekit.registry.interface import Reader

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

_SUFFIX = ".arrow"


def sniff(source: Source) -> bool:
    """Return whether a folder contains Arrow files that are named after tables of an Nsight Systems export."""
    return is_export_folder(source, _SUFFIX)


def open_export(source: Source) -> Capture:
    """Open an Nsight Systems export that is a folder of Arrow files."""
    from tracekit.readers.nsys.export import Export
    from tracekit.readers.nsys_folders.files import ArrowTable
    from tracekit.readers.nsys_folders.tables import FolderTables

    return Export(FolderTables(source, _SUFFIX, ArrowTable, "arrowdir"))


READER = Reader(
    "nsys-arrowdir",
    "Nsight Systems export, a folder of Arrow files (nsys export --type arrowdir)",
    (),
    sniff,
    open_export,
)
