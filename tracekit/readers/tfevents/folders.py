"""Find the event files in a folder. As in TensorBoard, each folder that directly contains event files is a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError, convert_to_printable_path, warn
from tracekit.system.files import find_special_file_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME_PART = "tfevents"
"""String that the names of event files contain."""
PROFILE_SUFFIX = ".profile-empty"
"""Suffix of empty event files, which TensorFlow writes so that TensorBoard finds a profile in ``plugins/profile``."""
ROOT_RUN = "."
MAX_ENTRIES, MAX_DEPTH = 1 << 20, 32
DETECTION_ENTRIES = 1 << 15
"""Maximum number of entries that are examined to detect the format of a folder."""


def has_event_files(folder: Path) -> bool:
    """Return whether a folder or its subfolders contain a file with the name of an event file.

    At most ``DETECTION_ENTRIES`` entries are examined.
    """
    try:
        return next(_find_event_files(folder, DETECTION_ENTRIES), None) is not None
    except TracekitError:
        return False


def list_files_by_run(path: Path) -> dict[str, list[Path]]:
    """Return the event files in a folder, by run name. Runs and files are sorted by path.

    Args:
        path: A folder, or a single event file. A single file belongs to the run ".".

    Raises:
        TracekitError: The folder contains too many files and folders.
    """
    if not path.is_dir():
        return {ROOT_RUN: [path]}
    files: dict[str, list[Path]] = {}
    for file in _find_event_files(path, MAX_ENTRIES, _warn_about_unreadable_folder):
        files.setdefault(convert_to_printable_path(file.parent.relative_to(path).as_posix()), []).append(file)
    return {run: sorted(files[run]) for run in sorted(files)}


def _find_event_files(
    folder: Path, max_entries: int, on_error: Callable[[OSError], None] | None = None
) -> Iterator[Path]:
    """Yield the event files in a folder. Links to folders and links to files outside of the folder are not followed.

    Raises:
        TracekitError: The folder contains more than ``max_entries`` files and folders.
    """
    entry_count, root = 0, folder.resolve()
    for parent, folders, files in os.walk(folder, onerror=on_error):
        entry_count += len(folders) + len(files)
        if entry_count > max_entries:
            raise TracekitError(
                f"the folder contains more than {max_entries} files and folders",
                path=folder,
                hint="read one of its subfolders",
            )
        if len(Path(parent).relative_to(folder).parts) >= MAX_DEPTH:
            folders.clear()
        for path in (Path(parent, name) for name in files if NAME_PART in name):
            if _is_file_inside(path, root):
                yield path
            elif on_error is not None:
                _warn_about_special_file(path)


def _is_file_inside(file: Path, root: Path) -> bool:
    return file.is_file() and (not file.is_symlink() or file.resolve().is_relative_to(root))


def _warn_about_special_file(path: Path) -> None:
    """Warn about a pipe, socket or device that has the name of an event file."""
    kind = None if path.is_symlink() or not path.exists() else find_special_file_kind(path.stat().st_mode)
    if kind is not None:
        warn(f"this is {kind}, not a regular file, and was skipped", path=path)


def _warn_about_unreadable_folder(error: OSError) -> None:
    warn(f"the folder cannot be read and was skipped: {error.strerror}", path=error.filename)
