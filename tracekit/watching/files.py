"""List the files of a folder that grows, or of a URL, and tell which of them are complete."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tracekit.errors import TracekitError, warn
from tracekit.sets.paths import MAX_FILES, has_capture_suffix
from tracekit.system import remote
from tracekit.text.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

MAX_DEPTH = 16
"""Maximum number of folders inside one another that are searched."""
_TABLE_FOLDERS = ("_pqtdir", "_arwdir")
_REPORTS = (".nsys-rep", ".qdrep")
_EXPORTS = (".sqlite", ".nsys-rep.sqlite", ".qdrep.sqlite", *_TABLE_FOLDERS)


class WatchedFile(NamedTuple):
    """A file in a watched folder.

    Attributes:
        name: Path of the file relative to the folder, or its URL.
        fingerprint: Text that changes whenever the file changes. It is constant for a URL.
        size: Size of the file in bytes, or 0 for a URL.
        modified_ns: Time of the last change in ns since 1970, or 0 for a URL.
    """

    name: str
    fingerprint: str
    size: int = 0
    modified_ns: int = 0


class WatchedFolder:
    """A folder with its subfolders, or a URL, whose files are captures.

    Attributes:
        source: The absolute path of the folder, or the URL.
        ignored: Identities of files that are no captures, such as outputs in the folder: device and inode.
    """

    def __init__(self, source: str | os.PathLike[str]) -> None:
        """Remember the folder.

        Raises:
            TracekitError: The path is a file.
            FileNotFoundError: The folder does not exist.
        """
        text = os.fspath(source)
        self.is_remote = is_url(text)
        self.source = text if self.is_remote else os.path.abspath(text)  # noqa: PTH100 - keeps symbolic links
        self.ignored: set[tuple[int, int]] = set()
        self._reported: set[str] = set()
        if not self.is_remote:
            if not os.path.lexists(self.source):
                raise FileNotFoundError(2, os.strerror(2), text)
            if not Path(self.source).is_dir():
                raise TracekitError("this is a file, not a folder", path=text, hint="pass the folder of the captures")

    def ignore(self, path: str | os.PathLike[str]) -> None:
        """Ignore a file that may be in the folder, because it is an output."""
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError:
            return
        self.ignored.add((status.st_dev, status.st_ino))

    def list_files(self) -> Iterator[WatchedFile]:
        """Yield the files that may be captures. Folders behind symbolic links and hidden files are left out.

        Raises:
            TracekitError: There are too many files, or the storage cannot be listed.
            OSError: The folder cannot be read.
        """
        files = self._list_remote_files() if self.is_remote else self._list_folder(self.source, "", 0)
        for count, file in enumerate(files):
            if count >= MAX_FILES:
                message = f"the folder contains more than {MAX_FILES:,} files"
                raise TracekitError(message, path=self.source, hint="move captures that were read to another folder")
            yield file

    def get_path(self, name: str) -> Path:
        """Return the path of a file. For a URL, no file needs to exist there."""
        return remote.convert_url_to_path(name) if self.is_remote else Path(self.source, name)

    def exists(self, name: str) -> bool:
        """Return whether a file exists. Files of a URL are assumed to exist."""
        return self.is_remote or os.path.lexists(os.path.join(self.source, name))  # noqa: PTH118 - called often

    def _list_remote_files(self) -> Iterator[WatchedFile]:
        for url in remote.list_url(self.source).files:
            yield WatchedFile(url, "url")

    def _list_folder(self, folder: str, prefix: str, depth: int) -> Iterator[WatchedFile]:
        """Yield the files of a folder and of its subfolders, whose names begin with a prefix."""
        subfolders = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") and not has_capture_suffix(entry.name):
                    continue
                try:
                    if entry.is_dir(follow_symlinks=False) and not entry.name.endswith(_TABLE_FOLDERS):
                        subfolders.append(entry.name)
                    elif (file := self._describe(entry, prefix + entry.name)) is not None:
                        yield file
                except OSError:  # the file was removed, or is a link without a target
                    continue
        for name in subfolders:
            if depth + 1 >= MAX_DEPTH:
                self._report(prefix + name, f"it is more than {MAX_DEPTH} folders deep")
                continue
            try:
                yield from self._list_folder(os.path.join(folder, name), f"{prefix}{name}/", depth + 1)  # noqa: PTH118
            except OSError as e:
                if os.path.lexists(os.path.join(folder, name)):  # noqa: PTH118 - it may have been removed
                    self._report(prefix + name, e.strerror or str(e))

    def _report(self, name: str, reason: str) -> None:
        """Warn once that a folder is not searched."""
        if name not in self._reported and len(self._reported) < MAX_DEPTH * MAX_DEPTH:
            self._reported.add(name)
            warn(f"this folder is not searched: {reason}", path=Path(self.source, name))

    def _describe(self, entry: os.DirEntry[str], name: str) -> WatchedFile | None:
        """Return a file or a folder of tables, or None for other entries."""
        status = entry.stat()
        if (status.st_dev, status.st_ino) in self.ignored:
            return None
        size, modified = status.st_size, status.st_mtime_ns
        if stat.S_ISDIR(status.st_mode):
            if not entry.name.endswith(_TABLE_FOLDERS) or entry.is_symlink():
                return None
            with os.scandir(entry.path) as files:
                states = [file.stat() for file in files if file.is_file()]
            size = sum(s.st_size for s in states)
            modified = max((s.st_mtime_ns for s in states), default=modified)
        elif not stat.S_ISREG(status.st_mode):
            return None
        return WatchedFile(name, f"{size}:{modified}:{status.st_ino}", size, modified)


class SettleClock:
    """Tells which files have not changed for some time, by the clock of this process alone.

    Times of files are not compared with the time of this machine, because clocks of other machines differ and jump.
    The exception is a file that was already old when it was first seen.
    """

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._since: dict[str, tuple[str, float]] = {}

    def is_settled(self, file: WatchedFile) -> bool:
        """Return whether a file has not changed for the settling time."""
        fingerprint, since = self._since.get(file.name, ("", 0.0))
        now = time.monotonic()
        if fingerprint != file.fingerprint:
            age_s = (time.time_ns() - file.modified_ns) / 1e9 if file.modified_ns > 0 else 0.0
            since = now - max(0.0, age_s if not fingerprint else 0.0)
            self._since[file.name] = file.fingerprint, since
        return now - since >= self._settle_s

    def keep_only(self, names: Collection[str]) -> None:
        """Forget all files except those that are still waiting, so that memory does not grow."""
        self._since = {name: self._since[name] for name in names if name in self._since}

    @property
    def is_waiting(self) -> bool:
        """Whether files are waiting."""
        return bool(self._since)


def list_other_forms(name: str) -> tuple[list[str], list[str]]:
    """Return the names of files that contain the same run as a file: those that are preferred to it, and the others.

    A report is preferred to its exports, and an uncompressed file to the compressed one.
    """
    for suffix in sorted(_EXPORTS, key=len, reverse=True):
        if name.endswith(suffix):
            stem = name.removesuffix(suffix)
            exports = [stem + other for other in _EXPORTS if other != suffix]
            return [stem + report for report in _REPORTS], exports
    for suffix in _REPORTS:
        if name.endswith(suffix):
            return [], [name.removesuffix(suffix) + export for export in _EXPORTS]
    if name.endswith(".json.gz"):
        return [name.removesuffix(".gz")], []
    return [], [f"{name}.gz"] if name.endswith(".json") else []
