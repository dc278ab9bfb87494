"""Reader of Nsight Systems exports that are folders of Parquet files (``nsys export --type parquetdir``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.nsys_folders.sniffing import is_export_folder
from tracekit.registry.interface import Reader

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

_SUFFIX = ".parquet"


def sniff(source: Source) -> bool:
    """Return whether a folder contains Parquet files that are named after tables of an Nsight Systems export."""
    return is_export_folder(source, _SUFFIX)


def open_export(source: Source) -> Capture:
    """Open an Nsight Systems export that is a folder of Parquet files."""
    from tracekit.readers.nsys.export import Export
    from tracekit.readers.nsys_folders.files import ParquetTable
    from tracekit.readers.nsys_folders.tables import FolderTables

    return Export(FolderTables(source, _SUFFIX, ParquetTable, "parquetdir"))


READER = Reader(
    "nsys-parquetdir",
    "Nsight Systems export, a folder of Parquet files (nsys export --type parquetdir)",
    (),
    sniff,
    open_export,
)
