"""Resolve the paths of captures, all of which must lie in the folders that the user allowed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError
from tracekit.system.platform.file_names import use_slashes
from tracekit.text import to_printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_PATH = 4096
"""Maximum number of characters of a path."""
MAX_ENTRIES = 100_000
"""Maximum number of files and folders in a folder of captures."""
_SYSTEM = tuple(Path(folder) for folder in ("/dev", "/proc", "/sys"))
_SHOWN = 200


class AllowedFolders:
    """The folders whose captures may be read.

    Attributes:
        folders: The resolved folder of each root, by the name that stands for it in paths. The only root has the empty
            name, so that paths are relative to it.
    """

    def __init__(self, roots: Sequence[str | os.PathLike[str]]) -> None:
        """Resolve the roots.

        Raises:
            TracekitError: A root is not a folder.
        """
        resolved = list(dict.fromkeys(Path(os.path.realpath(root)) for root in roots))
        for root, folder in zip(roots, resolved, strict=False):
            if not folder.is_dir():
                raise TracekitError("the root is not a folder", path=os.fspath(root))
        self.folders: dict[str, Path] = {}
        for folder in resolved:
            name = "" if len(resolved) == 1 else self._choose_name(folder.name or "root")
            self.folders[name] = folder

    def _choose_name(self, name: str) -> str:
        names = (name, *(f"{name}-{number}" for number in range(2, len(self.folders) + 3)))
        return next(each for each in names if each not in self.folders)

    def resolve(self, text: str) -> Path:
        """Return the resolved path of a capture or of a folder of captures.

        Args:
            text: Path, relative to a root or absolute.

        Raises:
            TracekitError: The path is not that of a file or folder in a root, or a link in the folder leaves the
                roots. The message does not state whether the path exists.
        """
        if "\0" in text or len(text) > MAX_PATH or "://" in text or text.startswith("file:"):
            raise self._create_error(text)
        try:
            text.encode("utf-8")
            path = next((path for path in self._list_candidates(text) if self._is_readable(path)), None)
        except (OSError, ValueError):
            path = None
        if path is None:
            raise self._create_error(text)
        if path.is_dir():
            self._check_folder(path, text)
        return path

    def show(self, path: str | os.PathLike[str]) -> str:
        """Return a resolved path relative to its root, as ``resolve`` accepts it."""
        for name, folder in self.folders.items():
            if Path(path).is_relative_to(folder):
                return Path(name, Path(path).relative_to(folder)).as_posix()
        return Path(path).name

    def contains(self, path: Path) -> bool:
        """Return whether a resolved path lies in a root, and not in a folder of the system such as ``/proc``."""
        if any(path.is_relative_to(folder) for folder in _SYSTEM):
            return False
        return any(path.is_relative_to(folder) for folder in self.folders.values())

    def _list_candidates(self, text: str) -> Iterable[Path]:
        """Yield the resolved paths that a text may refer to."""
        if Path(text).is_absolute():
            yield Path(os.path.realpath(text))
            return
        first, _, rest = use_slashes(text).partition("/")
        if first and first in self.folders:
            yield Path(os.path.realpath(self.folders[first] / rest.lstrip("/")))
        for folder in self.folders.values():
            yield Path(os.path.realpath(folder / text))

    def _is_readable(self, path: Path) -> bool:
        """Return whether a resolved path is that of a file or folder in a root. Others are not examined."""
        if not self.contains(path):
            return False
        try:
            mode = path.lstat().st_mode
        except OSError:
            return False
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode)

    def _check_folder(self, folder: Path, text: str) -> None:
        """Check that all links in a folder lead to files in the roots, and that it contains only files and folders.

        Raises:
            TracekitError: A link leaves the roots, a file is a device, pipe or socket, or there are too many files.
        """
        count = 0
        pending = [folder]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    count += 1
                    if count > MAX_ENTRIES:
                        message = f"{_shorten(text)}: the folder has more than {MAX_ENTRIES:,} files"
                        raise TracekitError(message, hint="name a folder with fewer files")
                    if entry.is_symlink() and not self._is_readable(Path(os.path.realpath(entry.path))):
                        raise TracekitError(f"{_shorten(text)}: a link in the folder leaves the allowed folders")
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
                    elif not entry.is_file() and not entry.is_dir():
                        raise TracekitError(f"{_shorten(text)}: the folder contains a device, a pipe or a socket")

    def _create_error(self, text: str) -> TracekitError:
        return TracekitError(
            f"{_shorten(text)}: no file or folder of this name in the allowed folders",
            hint="list_captures returns the paths of the captures",
        )


def _shorten(text: str) -> str:
    printable = to_printable(text.encode("utf-8", "replace").decode("utf-8"))
    return printable if len(printable) <= _SHOWN else f"{printable[:_SHOWN]}…"
