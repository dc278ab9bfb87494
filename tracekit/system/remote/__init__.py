"""List files on other machines and in object stores, and download them to temporary files.

``http`` reads files over HTTP, and fsspec opens all other URLs. ``watching`` stops downloads that make no progress.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tracekit.errors import TracekitError, get_first_line_of_message
from tracekit.system.files import FileState
from tracekit.system.installation import create_extra_hint
from tracekit.system.platform.file_names import create_file_name
from tracekit.system.platform.ownership import is_own
from tracekit.system.remote.watching import Listing
from tracekit.system.targets import create_workspace, delete_from_workspace
from tracekit.system.targets.rename import rename_without_replacing
from tracekit.text.urls import is_http, remove_assigned_secrets, remove_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.system.remote.watching import DownloadProgress

__all__ = ["KeptCopy", "Listing", "convert_url_to_path", "download", "list_url"]

_CHUNK_BYTES = 1 << 23
_MAX_FILES = 1 << 20
_MAX_UNKNOWN_BYTES = 4 << 30
"""Maximum size of a file whose size the storage does not report."""
_FREE_SHARE = 20
"""Reciprocal of the share of the disk that such a file leaves free: 20 means 5 %."""
_CHECKED_BYTES = 16 << 20
_KEPT_SHARE = 4
_PATTERN = re.compile(r"[*?\[]")


def convert_url_to_path(url: str) -> Path:
    """Return an absolute path that consists of the host and the path of a URL. No file needs to exist at this path."""
    return Path("/", remove_secrets(url).partition("://")[2])


def list_url(url: str) -> Listing:
    """Return the URLs of the files that a URL refers to: a file, the files in a folder, or the matches of a pattern.

    The result is empty if a folder is empty or no file matches a pattern.

    Args:
        url: URL of a file, of a folder, or of a pattern such as ``*.gz``.

    Raises:
        TracekitError: More than 1,048,576 files match, or the storage cannot be read.
        FileNotFoundError: The file or folder does not exist.
    """
    from tracekit.system.remote import watching

    list_files: Callable[[str], Listing] = _list_in_storage
    if is_http(url):
        from tracekit.system.remote.http import list_url as list_files
    listing = watching.run_listing(lambda: list_files(url), url)
    if len(listing.files) + len(listing.folders) > _MAX_FILES:
        hint = "use a pattern that matches fewer files"
        raise TracekitError(f"more than {_MAX_FILES:,} files match this URL", path=url, hint=hint)
    return listing


def _list_in_storage(url: str) -> Listing:
    """Return the files and folders that a URL which fsspec opens refers to."""
    with _convert_fsspec_errors(url):
        system, path = _find_file_system_and_path(url)
        is_pattern = _PATTERN.search(path) is not None
        if is_pattern:
            entries = list(system.glob(path, detail=True).values())
        elif system.isdir(path):
            entries = [e for e in system.ls(path, detail=True) if e["name"].rstrip("/") != path.rstrip("/")]
        else:
            return Listing([url], [])
        urls: dict[bool, list[str]] = {True: [], False: []}
        for entry in entries:
            urls[entry["type"] == "directory"].append(system.unstrip_protocol(entry["name"]))
    return Listing(sorted(urls[False]), sorted(urls[True]), is_folder=not is_pattern)


@contextlib.contextmanager
def download(
    url: str,
    *,
    expected_size: int | None = None,
    check_start: Callable[[Path], object] | None = None,
) -> Iterator[Path]:
    """Download a file to a temporary folder, which is deleted when the context ends or a signal ends the program.

    Args:
        url: The URL of the file.
        expected_size: Size that the file must have in bytes. None if it is not known.
        check_start: Function that raises an error if the first 16 MiB of a file are not those of a capture. It is
            called if the storage does not report the size of the file, because the file might never end.

    Yields:
        The path of the copy, which has the name of the file.

    Raises:
        TracekitError: The file cannot be read, does not fit on the disk, or has another size.
        FileNotFoundError: The file does not exist.
    """
    import tempfile

    from tracekit.system.remote import watching

    folder = Path(tempfile.gettempdir())
    with create_workspace(folder) as temporary:
        copy = temporary / create_file_name(convert_url_to_path(url).name or "file")
        task = _Download(url, copy, expected_size, shutil.disk_usage(folder).free, check_start)
        watching.run_download(task.read_over_http if is_http(url) else task.read_from_storage, url)
        yield copy


@dataclass(frozen=True, slots=True)
class _Download:
    """A download of a file to a temporary file.

    Attributes:
        url: The URL of the file.
        copy: The temporary file, which does not exist yet.
        expected_size: Size that the file must have in bytes. None if it is not known.
        free_bytes: Free space of the disk in bytes.
        check_start: Function that checks the first bytes of a file of unknown size.
    """

    url: str
    copy: Path
    expected_size: int | None
    free_bytes: int
    check_start: Callable[[Path], object] | None

    def read_over_http(self, progress: DownloadProgress) -> None:
        """Download the file from a web server."""
        from tracekit.system.remote import http

        with http.open_response(self.url) as response:
            limit = self._compute_limit(response.size)
            self._write_blocks(response.read_file(), response.size, limit, progress)

    def read_from_storage(self, progress: DownloadProgress) -> None:
        """Download the file from a storage that fsspec opens."""
        with _convert_fsspec_errors(self.url):
            system, path = _find_file_system_and_path(self.url)
            if system.isdir(path):
                raise TracekitError("this is a folder, not a file", path=self.url, hint="open it with load_many")
            size = system.size(path)
            limit = self._compute_limit(size)
            with system.open(path, "rb") as source:
                blocks = iter(lambda: source.read(min(_CHUNK_BYTES, limit - progress.bytes + 1)), b"")
                self._write_blocks(blocks, size, limit, progress)

    def _compute_limit(self, size: int | None) -> int:
        """Check the size of the file that the storage reports, and return the maximum number of bytes to download.

        Raises:
            TracekitError: The file has another size than expected, or does not fit on the disk.
        """
        if size is None:
            return min(self.free_bytes - self.free_bytes // _FREE_SHARE, _MAX_UNKNOWN_BYTES)
        if self.expected_size is not None and size != self.expected_size:
            raise _create_size_changed_error(self.url)
        if size > self.free_bytes:
            message = f"the file has {size:,} bytes, but only {self.free_bytes:,} are free for temporary files"
            raise TracekitError(message, path=self.url, hint="set TMPDIR to a folder on a larger disk")
        return size

    def _write_blocks(self, blocks: Iterable[bytes], size: int | None, limit: int, progress: DownloadProgress) -> None:
        """Write the blocks of the file to the copy.

        Args:
            blocks: The blocks.
            size: Size of the file that the storage reports. None if it is not known.
            limit: Maximum number of bytes to write.
            progress: The progress of the download, which is updated.

        Raises:
            TracekitError: The file has another size than the storage reports, or is too large.
        """
        checked = size is not None
        with self.copy.open("xb") as target:
            for block in blocks:
                progress.add_bytes(len(block))
                if progress.bytes > limit:
                    if size is not None:
                        raise _create_size_changed_error(self.url)
                    message = f"the storage does not report the size of this file, which has more than {limit:,} bytes"
                    hint = "download the file in another way, and load the copy"
                    raise TracekitError(message, path=self.url, hint=hint)
                target.write(block)
                if not checked and progress.bytes >= _CHECKED_BYTES and self.check_start is not None:
                    checked = True
                    target.flush()
                    self.check_start(self.copy)
        if size is not None and progress.bytes != size:
            raise _create_size_changed_error(self.url)


class KeptCopy:
    """The downloaded file of a capture, which all reads of a set use, so that the capture is downloaded only once.

    The file is deleted together with this object. Other processes of the same machine, to which this object is pickled,
    use the file without deleting it. If the file has not been downloaded yet, they download it for this object.
    """

    _lock = threading.Lock()
    _total_bytes = 0

    def __init__(
        self, borrowed: tuple[Path, FileState | None] | None = None, shared: _SharedFolder | None = None
    ) -> None:
        self._borrowed = borrowed
        self._shared = shared
        self._root: _SharedRoot | None = None
        self._copy: Path | None = None

    def keep(self, copy: Path, temporary: contextlib.ExitStack) -> Path:
        """Keep a downloaded file, unless all kept files would then take more than a quarter of the free disk space.

        Args:
            copy: The downloaded file.
            temporary: Deletes the file when it is closed. It no longer does if the file is kept.

        Returns:
            The path of the file, which may have been moved.
        """
        size, free = copy.stat().st_size, shutil.disk_usage(copy.parent).free
        if self._shared is not None and self._shared.exists():
            total = self._shared.compute_total_bytes() + size
            return copy if total > (free + total) // _KEPT_SHARE else self._shared.move_file_into(copy)
        with KeptCopy._lock:
            total = KeptCopy._total_bytes + size
            if self._copy is not None or total > (free + total) // _KEPT_SHARE:
                return copy
            KeptCopy._total_bytes = total
            self._copy = copy
        weakref.finalize(self, _delete_copy, size, temporary.pop_all())
        return copy

    def get_path(self) -> Path | None:
        """Return the path of the kept file. Return None if there is none, or if this is another machine."""
        if self._borrowed is not None:
            path, state = self._borrowed
            if state is not None and FileState.read_entry(path) == state:
                return path
        if self._copy is None and self._shared is not None and self._shared.exists():
            return self._shared.find_file()
        return self._copy

    def __reduce__(self) -> tuple[Any, ...]:
        if self._copy is not None:
            return KeptCopy, ((self._copy, FileState.read_entry(self._copy)),)
        if self._borrowed is None and self._shared is None:
            with KeptCopy._lock, contextlib.suppress(OSError):
                self._root = _SharedRoot.get_or_create()
                self._shared = self._root.create_folder()
                weakref.finalize(self, self._root.delete_folder, self._shared)
        return KeptCopy, (self._borrowed, self._shared)


def _delete_copy(size: int, temporary: contextlib.ExitStack) -> None:
    """Delete a kept file of ``size`` bytes."""
    temporary.close()
    with KeptCopy._lock:  # noqa: SLF001
        KeptCopy._total_bytes -= size  # noqa: SLF001


class _SharedFolder(NamedTuple):
    """A folder of the process that owns a set, in which the processes that read the set keep one downloaded file.

    The folder is identified by its state, because other machines may have another folder at its path.
    """

    path: Path
    state: FileState

    def exists(self) -> bool:
        """Return whether this machine has the folder. It must belong to the user of this process."""
        try:
            status = self.path.lstat()
        except OSError:
            return False
        return self.state.is_same_file(FileState.from_status(status)) and is_own(status)

    def find_file(self) -> Path | None:
        """Return the path of the file in the folder, or None if it has not been downloaded yet."""
        return next(self.path.iterdir(), None)

    def compute_total_bytes(self) -> int:
        """Return the total size of the files that are kept for the process that owns the folder."""
        return sum(file.stat().st_size for file in self.path.parent.glob("*/*"))

    def move_file_into(self, file: Path) -> Path:
        """Move a file into the folder, and return its new path, or its old one if the folder is on another disk."""
        try:
            rename_without_replacing(file, self.path / file.name)
        except OSError:
            return file
        return self.path / file.name


class _SharedRoot:
    """The temporary folder of this process that contains its shared folders. It is deleted with the last of them."""

    _instances: ClassVar[weakref.WeakValueDictionary[int, _SharedRoot]] = weakref.WeakValueDictionary()

    def __init__(self) -> None:
        import tempfile

        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(create_workspace(Path(tempfile.gettempdir())))
            self._numbers = itertools.count()
            weakref.finalize(self, stack.pop_all().close)

    @classmethod
    def get_or_create(cls) -> _SharedRoot:
        """Return the root of this process, which is created if there is none."""
        root = cls._instances.get(os.getpid())
        if root is None:
            root = cls._instances[os.getpid()] = cls()
        return root

    def create_folder(self) -> _SharedFolder:
        """Create a folder for one file."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir(0o700)
        return _SharedFolder(folder, FileState.read(folder))

    @staticmethod
    def delete_folder(folder: _SharedFolder) -> None:
        """Delete the file in a folder. The folder itself is deleted with the root."""
        if folder.exists() and (file := folder.find_file()) is not None:
            delete_from_workspace(file)


def _create_size_changed_error(url: str) -> TracekitError:
    hint = "wait until it is written completely, then load it again"
    return TracekitError("the size of the file changed while it was read", path=url, hint=hint)


def _find_file_system_and_path(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path of the file in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as e:
        message = "reading this path needs the package fsspec"
        raise TracekitError(message, path=url, hint=create_extra_hint("remote")) from e
    opened: tuple[Any, str] = url_to_fs(url)
    return opened


@contextlib.contextmanager
def _convert_fsspec_errors(url: str) -> Iterator[None]:
    """Return a context manager that converts errors of fsspec, except ``FileNotFoundError``, to ``TracekitError``.

    Errors of storages may contain the URL with its secrets, and are therefore not shown as a cause.
    """
    try:
        yield
    except TracekitError:
        raise
    except FileNotFoundError:
        raise FileNotFoundError(2, os.strerror(2), remove_secrets(url)) from None
    except ImportError as e:
        message = f"reading this path needs another package: {remove_assigned_secrets(get_first_line_of_message(e))}"
        raise TracekitError(message, path=url, hint="install the package that the message names") from None
    except PermissionError:
        hint = "check your permissions and the credentials of the storage"
        raise TracekitError("the storage denies access to this file", path=url, hint=hint) from None
    except Exception as e:  # noqa: BLE001
        # Storage services raise exceptions of their own. Their texts may contain credentials.
        is_safe = isinstance(e, OSError | ValueError)
        reason = remove_assigned_secrets(get_first_line_of_message(e)) if is_safe else type(e).__name__
        hint = "check the URL, the credentials of the storage and the network connection"
        error = TracekitError(f"the storage cannot be read: {reason}", path=url, hint=hint)
        # the engine for Dask repeats a task whose error has an error of the operating system as its cause
        raise error from (OSError(e.errno, reason) if isinstance(e, OSError) else None)
