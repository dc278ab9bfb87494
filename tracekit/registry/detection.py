"""Detect the format of a file from its content, and describe files that no reader can read."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from tracekit import registry
from tracekit.errors import PluginError, TracekitError, UnknownFormatError, convert_to_printable_path, warn
from tracekit.registry.interface import Capture
from tracekit.registry.source import Source

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry.interface import Reader

DescriptionAndHint: TypeAlias = tuple[str, str]
"""What a file or folder is, and what to do with it."""
_SHOWN_FILES = 5
_TABLE_FILES = ("parquet", "arrow")
_EXPORT_FORMATS = ("nsys-sqlite", "nsys-parquetdir", "nsys-arrowdir")
_EXPORT_ENDINGS = (".sqlite", "_pqtdir", "_arwdir")
"""Formats of the exports of Nsight Systems, and the ends of their names, which begin like the name of the report."""
_REPORT_SUFFIX = re.compile(r"\.(?:nsys-rep|qdrep)\Z", re.IGNORECASE)
UNKNOWN = "no reader recognizes the content"
_GZIP = b"\x1f\x8b"
_SQLITE = b"SQLite format 3\x00"
_APPLICATION_ID = slice(68, 72)
"""Offset of the application id in the header of a SQLite file."""
_OTHER_EXPORT_HINT = "for an Nsight Systems export, load the report, or run: nsys export --type sqlite"
_REPLACEMENTS = (
    (b"version https://git-lfs", "this is a Git LFS pointer, not the file itself", "run: git lfs pull"),
    (
        b"\xff\xff\xff\xff",
        "this is a single Arrow stream",
        "for an Nsight Systems export, pass the folder that contains the file, or load the report",
    ),
    (b"\x89HDF\r\n\x1a\n", "this is an HDF5 file, which tracekit cannot read", _OTHER_EXPORT_HINT),
)
_OTHER_EXPORTS = {
    "a text export": re.compile(rb'data: "[^\n]*"\r?\ndata: "'),
    "an info export": re.compile(rb'\{\s{0,99}"VmSystemInformation"'),
}
"""The beginnings of files that ``nsys export`` writes with ``--type text`` and ``info``."""
_PAGE = re.compile(rb"(?i)\s*<(!doctype html|html)\b")
_EXPORTED_HINT = "read the capture from which it was exported"
_TENSORFLOW_HINT = "read a graph (GraphDef, MetaGraphDef or SavedModel) or an event file of TensorFlow"
_XPROF_HINT = "open it in TensorBoard with its profile plug-in (XProf), or read an event file of TensorFlow"
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a]")
"""Bytes that text files do not contain."""
_STREAM = re.compile(rb"(?s).{8}NVIDIA Nsight Systems Stream (\d{1,9}(?:\.\d{1,9}){0,3})")
_STREAM_WRITTEN = b"U3w[END]"
_PROFILER_PAGE = re.compile(
    r"\.(overview_page|input_pipeline|kernel_stats|tensorflow_stats|framework_op_stats|op_stats|op_profile|pod_viewer"
    r"|memory_profile|tf_data_bottleneck_analysis)\.pb\Z"
)


def detect_reader(source: Source) -> Reader:
    """Detect the format of a file or folder, and return its reader.

    The suffix of the file only determines which reader is asked first. Plug-ins are loaded only if no built-in reader
    recognizes the file, because searching a large Python environment for plug-ins takes time.

    Raises:
        UnknownFormatError: No reader recognizes the file. The message states what the file seems to be.
        TracekitError: The file cannot be read.
        FileNotFoundError: The path does not exist.
    """
    if (reader := find_reader(source)) is not None:
        return reader
    what, hint = describe_unrecognized(source)
    if not source.head.startswith(_GZIP):
        hint = create_report_hint(source.path, hint)
    raise UnknownFormatError(what, path=source.path, hint=hint)


def create_report_hint(path: Path, hint: str) -> str:
    """Return the hint of an error about a damaged file: to read a complete export of the report, or another hint.

    Args:
        path: The damaged file.
        hint: The hint if the file is no Nsight Systems report, or if no complete export of it lies beside it.
    """
    stem = _REPORT_SUFFIX.sub("", path.name)
    exports = (f"{stem}{ending}" for ending in _EXPORT_ENDINGS if stem != path.name)
    export = next((each for each in map(path.with_name, exports) if _is_complete_export(each)), None)
    return hint if export is None else f"read {convert_to_printable_path(export)}, the export of this report"


def _is_complete_export(path: Path) -> bool:
    """Return whether a file or folder is an Nsight Systems export that can be opened."""
    with contextlib.suppress(TracekitError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = Source(path)
        if source.exists and (reader := find_reader(source)) is not None and reader.format in _EXPORT_FORMATS:
            capture = reader.open(source)
            if isinstance(capture, Capture):
                capture.close()
                return True
    return False


def find_reader(source: Source) -> Reader | None:
    """Return the reader of a file or folder, or None if no reader recognizes it.

    Raises:
        TracekitError: The file cannot be read.
        FileNotFoundError: The path does not exist.
    """
    if not source.exists:
        raise FileNotFoundError(2, os.strerror(2), str(source.path))
    suffix = source.path.suffix.lower()
    if (
        built_in := next((r for r in registry.iterate_built_in_readers(suffix) if _can_read(r, source)), None)
    ) is not None:
        return built_in
    by_suffix = sorted(registry.readers().values(), key=lambda r: suffix not in r.suffixes)
    return next((r for r in by_suffix if _can_read(r, source)), None)


def describe_unrecognized(source: Source, unknown: DescriptionAndHint | None = None) -> DescriptionAndHint:
    """Return a description of a file or folder that no reader recognizes, and a hint on what to do with it.

    Args:
        source: The file or folder.
        unknown: The result for a file whose content is unknown, or None for a list of the formats that can be read.
    """
    if source.path.is_dir():
        return _describe_unrecognized_folder(source)
    if not source.path.is_file():
        return "this is neither a file nor a folder", "write its content to a file first"
    if not source.head:
        return "the file is empty (0 bytes)", "export or copy it again"
    if not source.head.strip(b"\0"):
        return "the file begins with zeros only, as after an interrupted export", "export it again"
    return _describe_unrecognized_file(source, unknown)


def detect_formats(source: Source, max_files: int = 256, *, limit: int | None = None) -> dict[str, str]:
    """Return the format of each capture in a folder, by file name and in the order of the names.

    A capture is a file that a built-in reader recognizes. Parquet and Arrow files of single tables are not included.

    Args:
        source: The folder. If it is a file, the result is empty.
        max_files: Maximum number of files to examine.
        limit: Maximum number of captures to return. If None, all captures are returned.
    """
    formats: dict[str, str] = {}
    for name in sorted(source.names)[:max_files]:
        if len(formats) == limit:
            break
        try:
            file = Source(source.path / name)
            reader = next((r for r in registry.iterate_built_in_readers() if file.head and r.sniff(file)), None)
        except (TracekitError, OSError):
            continue
        if reader is not None and reader.format not in _TABLE_FILES:
            formats[name] = reader.format
    return formats


def _describe_unrecognized_folder(source: Source) -> DescriptionAndHint:
    """Return a description of a folder that no reader recognizes, and a hint on which path to pass instead."""
    files = detect_formats(source)
    if not files and source.names and all(name.endswith((".csv", ".csv.gz")) for name in source.names):
        hint = f"{_EXPORTED_HINT}, or export it as parquet or arrow, which tracekit can read"
        return "this is a folder of CSV files, which tracekit writes but cannot read", hint
    if not files:
        return (
            "this is a folder whose content no reader recognizes",
            f"pass a single file, or a folder of tables ({_join_readable_formats()})",
        )
    formats = ", ".join(f"{count} of {name}" for name, count in sorted(Counter(files.values()).items()))
    captures = f"{len(files)} captures" if len(files) > 1 else "one capture"
    names = ", ".join(list(files)[:_SHOWN_FILES]) + (", …" if len(files) > _SHOWN_FILES else "")
    return f"this is a folder of {captures} ({formats})", f"pass one of its files: {names}"


def _describe_unrecognized_file(source: Source, unknown: DescriptionAndHint | None) -> DescriptionAndHint:
    """Return a description of a nonempty file that no reader recognizes, and a hint on what to do with it."""
    if description := _describe_export(source) or _describe_nsys_export(source):
        return description
    stream = _STREAM.match(source.head)
    page = _PROFILER_PAGE.search(source.path.name) if _BINARY.search(source.head) else None
    from tracekit.registry import foreign_files  # describes files only if no reader recognizes them

    foreign = None if stream or page else foreign_files.describe_foreign_file(source)
    if foreign is not None:
        return f"this is {foreign.what}", foreign.hint
    if stream or source.path.suffix.lower() == ".qdstrm":
        return _describe_qdstrm_stream(source, stream)
    if page:
        return f"this is a page of TensorFlow's profiler ({page[1]}), which is not supported", _XPROF_HINT
    if (reader := find_reader(source)) is not None:  # the user chose another format
        unknown = f"this is a file in the format {reader.format}", "omit the format"
    elif source.path.suffix.lower() in (".pb", ".pbtxt"):
        unknown = "this is neither a TensorFlow graph nor another supported file", _TENSORFLOW_HINT
    return unknown or (
        UNKNOWN,
        f"pass a file in one of these formats, or choose its format with format= or --from: {_join_readable_formats()}",
    )


def _describe_export(source: Source) -> DescriptionAndHint | None:
    """Return a description and a hint for a file that tracekit writes but does not read, or None for other files."""
    if source.head.startswith(_SQLITE) and source.head[_APPLICATION_ID] == b"trkt":
        hint = "load the capture that it was exported from, or open it with SQLite, DB Browser or Datasette"
        return "this is a SQLite database that tracekit wrote, which tracekit cannot read", hint
    if _PAGE.match(source.head):
        hint = f"{_EXPORTED_HINT}, or download the file itself if the page states an error"
        return "this is an HTML page, not a profile", hint
    return None


def _describe_nsys_export(source: Source) -> DescriptionAndHint | None:
    """Return a description and a hint for a file that replaces or comes from a report, or None for other files."""
    for magic, what, hint in _REPLACEMENTS:
        if source.head.startswith(magic):
            return what, hint
    for what, pattern in _OTHER_EXPORTS.items():
        if pattern.match(source.head):
            return f"this looks like {what} of Nsight Systems, which tracekit cannot read", _OTHER_EXPORT_HINT
    return None


def _describe_qdstrm_stream(source: Source, version_match: re.Match[bytes] | None) -> DescriptionAndHint:
    """Return a description of a ``.qdstrm`` stream, and a hint on how to convert it into a report.

    nsys writes a stream while it records, and converts it into a report at the end.
    """
    unfinished = ", perhaps an unfinished one" if version_match and not source.head.startswith(_STREAM_WRITTEN) else ""
    version = f"Nsight Systems {version_match[1].decode()}" if version_match else "the Nsight Systems that recorded it"
    return (
        f"this is a .qdstrm stream{unfinished}, which only Nsight Systems can convert into a report",
        f"with the QdstrmImporter of {version}, run: QdstrmImporter -i FILE.qdstrm",
    )


def _join_readable_formats() -> str:
    return ", ".join(registry.readers())


def _can_read(reader: Reader, source: Source) -> bool:
    """Return whether the content of a source is in the format of a reader. If the reader fails, warn and return False.

    Raises:
        TracekitError: The source cannot be read.
        FileNotFoundError: The source does not exist.
    """
    try:
        return bool(reader.sniff(source))
    except PluginError as e:
        warn(f"the reader {reader.format!r} was skipped: {e.message}", path=source.path)
        return False
    except (TracekitError, FileNotFoundError):
        raise
    except Exception as e:  # noqa: BLE001 - an error in a plug-in must not prevent detection by other readers
        warn(f"the reader {reader.format!r} was skipped: {type(e).__name__}: {e}", path=source.path)
        return False
