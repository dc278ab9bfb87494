"""Event files below a folder: a run is a folder that holds some, as for TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError, shown, warn
from tracekit.files import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MARK = "tfevents"
PROFILE_MARK = ".profile-empty"
TOP = "."
MAX_ENTRIES, MAX_DEPTH = 1 << 20, 32
FEW_ENTRIES = 1 << 15
"""Entries looked at to recognise a folder."""


def holds_events(folder: Path) -> bool:
    """Whether a file below a folder is named as an event file, among the entries that are met first."""
    try:
        return next(_files(folder, FEW_ENTRIES), None) is not None
    except TracekitError:
        return False


def runs(path: Path) -> dict[str, list[Path]]:
    """Find event files by run: in the order of their paths, runs and files.

    Args:
        path: A folder, or an event file, which is of the run ".".

    Raises:
        TracekitError: There are too many files and folders.
    """
    if not path.is_dir():
        return {TOP: [path]}
    found: dict[str, list[Path]] = {}
    for file in _files(path, MAX_ENTRIES, _left_out):
        found.setdefault(shown(file.parent.relative_to(path).as_posix()), []).append(file)
    return {run: sorted(found[run]) for run in sorted(found)}


def _files(folder: Path, most: int, refused: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Walk through a folder: links to folders are not followed, and links to files not out of it."""
    seen, root = 0, folder.resolve()
    for at, folders, files in os.walk(folder, onerror=refused):
        seen += len(folders) + len(files)
        if seen > most:
            raise TracekitError(f"holds more than {most} files and folders", path=folder, hint="give a folder below it")
        if len(Path(at).relative_to(folder).parts) >= MAX_DEPTH:
            folders.clear()
        for path in (Path(at, name) for name in files if MARK in name):
            if _is_inside(path, root):
                yield path
            elif refused is not None:
                _tell_special(path)


def _is_inside(file: Path, root: Path) -> bool:
    return file.is_file() and (not file.is_symlink() or file.resolve().is_relative_to(root))


def _tell_special(path: Path) -> None:
    """Warn of what is named as an event file and is a pipe, a socket or a device."""
    kind = None if path.is_symlink() or not path.exists() else kind_of(path.stat().st_mode)
    if kind is not None:
        warn(f"is {kind}, not a regular file: left out", path=path)


def _left_out(error: OSError) -> None:
    warn(f"a folder that cannot be read: {error.strerror}: left out", path=error.filename)
