"""Expand paths, folders, patterns and URLs into lists of captures."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import detection, registry, remote
from tracekit.errors import TracekitError, UnknownFormatError, warn
from tracekit.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    PathLike = str | os.PathLike[str]

MAX_FILES = 1 << 20
"""Maximum number of files of a folder that are examined."""
_EXPORTED = ("nsys-sqlite", "nsys-rep")
"""The format of exports and the format of reports: an export has the name of its report, with another suffix."""


def expand_paths(paths: PathLike | Iterable[PathLike]) -> list[Path]:
    """Return the paths of the captures that files, folders and patterns refer to.

    The captures of a folder or pattern are in natural order, in which ``rank2`` precedes ``rank10``.

    Args:
        paths: A file, a folder of captures, a pattern such as ``run/*.nsys-rep``, or several of them. A folder that is
            itself a capture, such as a folder of tables, is one capture.

    Raises:
        TracekitError: No capture matches, or a capture is listed twice.
        FileNotFoundError: A path does not exist.
    """
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not listed:
        raise TracekitError("no captures were passed", hint="pass files, a folder or a pattern")
    captures = [file for path in listed for file in _expand_path(path)]
    seen: set[Path] = set()
    for file in captures:
        real = Path(os.path.realpath(file))
        if real in seen:
            raise TracekitError("the capture is listed twice", path=file, hint="list each capture once")
        seen.add(real)
    return captures


def locate_captures(paths: PathLike | Iterable[PathLike]) -> dict[Path, str | None]:
    """Return the captures that paths and URLs refer to, as a mapping of paths to URLs. The URL of a local file is None.

    Args:
        paths: A file, a folder of captures, a pattern, or several of them, as for ``expand_paths``. A URL with a scheme
            such as ``s3`` names a file, a folder or a pattern that fsspec opens. In a remote folder, the files with the
            suffix of a format are captures.

    Raises:
        TracekitError: No capture matches, a capture is listed twice, or a remote storage cannot be read.
        FileNotFoundError: A path does not exist.
    """
    listed = [remote.convert_file_url_to_path(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    urls = [path for path in listed if isinstance(path, str) and remote.is_url(path)]
    local = [path for path in listed if path not in urls]
    located: dict[Path, str | None] = dict.fromkeys(expand_paths(local) if local or not urls else ())
    suffixes = [suffix for reader in registry.load_built_in_readers().values() for suffix in reader.suffixes]
    for url in (
        url for named in urls for url in sorted(remote.expand_url(named, suffixes), key=compute_natural_sort_key)
    ):
        path = remote.convert_url_to_path(url)
        if path in located:
            raise TracekitError("the capture is listed twice", path=path, hint="list each capture once")
        located[path] = url
    return located


def is_folder_of_captures(path: Path) -> bool:
    """Return whether a path is a folder that contains captures and is not itself a capture."""
    source = Source(path)
    return path.is_dir() and not _is_capture(source) and bool(detection.detect_formats(source))


def compute_natural_sort_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key for natural order, in which ``rank2`` precedes ``rank10``."""
    tokens = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(0, int(t), t) if t.isdecimal() else (1, 0, t) for t in tokens]


def _expand_path(path_or_pattern: PathLike) -> list[Path]:
    text, path = os.fspath(path_or_pattern), Path(path_or_pattern)
    if path.is_dir():
        return _list_captures_of_folder(path)
    if not path.exists() and glob.has_magic(text):
        matches = sorted(glob.glob(text, recursive=True), key=compute_natural_sort_key)  # noqa: PTH207 - a pattern may be absolute
        if not matches:
            raise TracekitError(
                "no file matches this pattern", path=text, hint="use ** to search subfolders, such as **/*.nsys-rep"
            )
        return [Path(match) for match in matches]
    return [path]


def _list_captures_of_folder(folder: Path) -> list[Path]:
    """Return the paths of the captures in a folder, or the path of the folder if it is itself a capture."""
    source = Source(folder)
    if _is_capture(source):
        return [folder]
    formats = detection.detect_formats(source, MAX_FILES)
    if not formats:
        what, hint = detection.describe_unrecognized(source)
        raise UnknownFormatError(what, path=folder, hint=hint)
    return [
        folder / name
        for name in sorted(_list_capture_names_without_report_exports(folder, formats), key=compute_natural_sort_key)
    ]


def _list_capture_names_without_report_exports(folder: Path, formats: dict[str, str]) -> list[str]:
    """Return the names of the captures in a folder, except SQLite exports of reports in the same folder.

    ``nsys stats`` writes such an export next to each report. A warning states how many exports are skipped.
    """
    export, report = _EXPORTED
    reports = {Path(name).stem for name, kind in formats.items() if kind == report}
    exports = {name for name, kind in formats.items() if kind == export and Path(name).stem in reports}
    if exports:
        message = f"{len(exports)} SQLite exports of reports in this folder are skipped, such as {min(exports)}"
        warn(message, path=folder)
    return [name for name in formats if name not in exports]


def _is_capture(source: Source) -> bool:
    """Return whether a built-in reader recognizes a folder as one capture."""
    try:
        return any(reader.sniff(source) for reader in registry.load_built_in_readers().values())
    except (TracekitError, OSError):
        return False
