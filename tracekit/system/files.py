"""Open input files safely: only regular files are opened, and changes while a file is open are detected.

Files are not memory-mapped. If another program truncates a file, a read returns fewer bytes than requested, and
tracekit raises an error. With a mapping, the process would be killed, or values that were already returned would
change.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from tracekit.errors import TracekitError
from tracekit.system.platform import open_files
from tracekit.system.platform.positional_reads import read_at, read_into
from tracekit.text.urls import is_shortened_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

CHANGED_HINT = "wait until it is written completely, then load it again"
REMOVED_HINT = "make the file available again, then load it again"
DISK_HINT = "check the disk, or copy the file from its source again"
PERMISSIONS_HINT = "check its permissions"
LONGEST_SQLITE_PATH = 504
"""Length of the longest resolved path that SQLite opens, in bytes: 512 minus the suffix of its journal."""
SETTLED_NS = 2_000_000_000
"""Minimum age of the last change of a settled file in ns. On any file system, later changes have another timestamp."""
_WINDOW_BYTES = 1 << 20
_FILE_TYPES = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular_file(path: Path) -> int:
    """Open a regular file for reading and return its descriptor.

    Named pipes, sockets and devices raise an error immediately, even behind a symbolic link.

    Raises:
        TracekitError: The path is not a regular file, or reading it is not permitted.
        FileNotFoundError: The file does not exist.
    """
    try:
        if (kind := find_special_file_kind(path.stat().st_mode)) is not None:  # opening some devices has side effects
            raise _create_not_regular_file_error(path, kind)
        descriptor = open_files.open_for_reading(path)
    except FileNotFoundError:
        raise
    except PermissionError as e:
        raise TracekitError("the file cannot be read: permission denied", path=path, hint=PERMISSIONS_HINT) from e
    except OSError as e:
        raise TracekitError(f"the file cannot be read: {e.strerror or e}", path=path) from e
    kind = find_special_file_kind(os.fstat(descriptor).st_mode)
    if kind is None:
        return descriptor
    os.close(descriptor)
    raise _create_not_regular_file_error(path, kind)


def find_special_file_kind(mode: int) -> str | None:
    """Return the type of a file from its mode, such as "a named pipe". Return None for a regular file."""
    return None if stat.S_ISREG(mode) else next((name for test, name in _FILE_TYPES if test(mode)), "a special file")


@dataclass(frozen=True, slots=True)
class FileState:
    """The identity of a file or folder, and the properties that show whether it was changed or replaced.

    Two states are equal if nothing shows a change. ``has_same_content`` compares states of different machines, and
    ``is_same_file`` ignores changes of the content.

    Attributes:
        device: Number of the device that contains the file.
        inode: Inode number of the file on its device.
        size: Size of the file in bytes. For a folder, the total size of its files if it was read as ``folders``.
        modified_ns: Time of the last modification in ns since 1970, which programs can set. For a folder, the latest
            time of its files if it was read as ``folders``.
        changed_ns: Time of the last change of the content or the status in ns since 1970, which programs cannot set.
            Only ``is_identical`` compares it, because a new link to the file also changes it.
        digest: Hash of the first and last bytes of a remote file, of which only the size is known otherwise.
    """

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int = field(default=0, compare=False)
    digest: str | None = None

    @classmethod
    def from_status(cls, status: os.stat_result) -> Self:
        """Return the state of a file from the result of ``os.stat``."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    @classmethod
    def read(cls, file: Path | int) -> Self:
        """Return the current state of a file, given its path or an open descriptor.

        Raises:
            OSError: The file does not exist or cannot be accessed.
        """
        return cls.from_status(os.fstat(file) if isinstance(file, int) else file.stat())

    @classmethod
    def read_file(cls, path: Path, *, folders: bool = False) -> Self | None:
        """Return the state of a regular file. Return None if the path is not a regular file or cannot be accessed.

        Args:
            path: The path.
            folders: Whether to return the total size and the latest time of the files of a folder instead of None.
        """
        try:
            state, mode = cls.read(path), path.stat().st_mode
            if folders and stat.S_ISDIR(mode):
                files = [each for each in map(cls.read_file, path.iterdir()) if each is not None]
                time_ns = max((f.modified_ns for f in files), default=0)
                return replace(state, size=sum(f.size for f in files), modified_ns=time_ns)
        except OSError:
            return None
        return state if stat.S_ISREG(mode) else None

    @classmethod
    def read_entry(cls, path: Path) -> Self | None:
        """Return the state of a file or folder. Return None if there is none, or if it is a symbolic link."""
        try:
            status = path.lstat()
        except OSError:
            return None
        return None if stat.S_ISLNK(status.st_mode) else cls.from_status(status)

    def is_same_file(self, other: FileState | None) -> bool:
        """Return whether another state is of the same file or folder, whose content may have changed."""
        return other is not None and (self.device, self.inode) == (other.device, other.inode)

    def has_same_content(self, other: FileState | None) -> bool:
        """Return whether another state has the same size, time and digest. The files may be on different machines."""
        if other is None:
            return False
        return (self.size, self.modified_ns, self.digest) == (other.size, other.modified_ns, other.digest)

    def is_identical(self, other: FileState) -> bool:
        """Return whether no attribute differs, not even the time at which the status changed."""
        return self == other and self.changed_ns == other.changed_ns

    @property
    def is_settled(self) -> bool:
        """Whether the last change is so old that the next change is certain to have a different timestamp."""
        return 0 <= max(self.modified_ns, self.changed_ns) < time.time_ns() - SETTLED_NS

    def check_unchanged(self, path: Path, descriptor: int | None = None, *, may_grow: bool = False) -> None:
        """Check that a file is still in this state.

        Args:
            path: Path of the file, which error messages contain.
            descriptor: Open descriptor of the file, which is checked instead of the path. A new file at the path is
                then ignored.
            may_grow: Whether the file may be larger than before, or modified without a change of its size.

        Raises:
            TracekitError: The file was changed, replaced or removed.
        """
        try:
            status = path.stat() if descriptor is None else os.fstat(descriptor)
        except OSError as e:
            what = "was removed" if e.errno == errno.ENOENT else f"became inaccessible ({e.strerror})"
            raise TracekitError(f"the file {what} while it was open", path=path, hint=REMOVED_HINT) from e
        if (kind := find_special_file_kind(status.st_mode)) is not None:
            raise _create_not_regular_file_error(path, kind)
        state = FileState.from_status(status)
        # Some systems update the modification time before the size when bytes are appended to a file.
        if state != self and not (may_grow and self.is_same_file(state) and state.size >= self.size):
            raise TracekitError(self.describe_change(state), path=path, hint=CHANGED_HINT)

    def describe_change(self, later: FileState) -> str:
        """Return an error message that states how the file has changed from this state to a later state."""
        if not self.is_same_file(later):
            return "the file was replaced by another file while it was open"
        if later.size != self.size:
            return f"the file changed while it was open: it had {self.size} bytes, but now it has {later.size}"
        return "the file changed while it was open"


class InputFile:
    """A regular file that is open for reading. Each read checks that the file has not changed.

    If another file replaces the file at its path, the opened file can still be read until it is closed. Several threads
    may read at the same time. The descriptor is closed by ``close`` or when the object is garbage-collected.

    Attributes:
        path: Path of the file.
        state: The state of the file when it was opened.
    """

    def __init__(self, path: Path, expected: FileState | None = None, *, may_grow: bool = False) -> None:
        """Open a file for reading.

        Args:
            path: Path of the file.
            expected: The state of the file when it was first examined. If None, any state is accepted.
            may_grow: Whether the file may grow while it is open, as a log does.

        Raises:
            TracekitError: The path is not a regular file, is not readable, or is not in the expected state.
            FileNotFoundError: The file does not exist, and no state is expected.
        """
        self.path = path
        self._descriptor = _open_existing_file(path, expected)
        self._close_descriptor = weakref.finalize(self, os.close, self._descriptor)
        self._lock = threading.Lock()
        self._readers = 0
        self._closed = False
        self._may_grow = may_grow
        self.state = FileState.read(self._descriptor)
        self._size_and_time = (self.state.size, self.state.modified_ns)
        if expected is not None and self.state != expected:
            self.close()
            raise TracekitError(expected.describe_change(self.state), path=path, hint=CHANGED_HINT)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.state.size

    @property
    def native_path(self) -> str:
        """Path for a library that opens files itself.

        If the system supports it, the path refers to the open descriptor of this file, so that a new file at the
        original path is ignored. Call ``check_unchanged`` after reading from this path.
        """
        return open_files.find_descriptor_path(self._descriptor) or os.fspath(self.path)

    def read(self, start: int, size: int) -> bytes:
        """Return ``size`` bytes from offset ``start``. The file must contain all these bytes.

        Raises:
            TracekitError: The file has changed since it was opened, cannot be read, or is closed.
        """
        descriptor = self._acquire_descriptor()
        try:
            data = read_at(descriptor, start, size)
            if len(data) < size:
                data = self._read_remaining(descriptor, start, size, data)
        except OSError as e:
            raise self._create_read_error(e) from e
        finally:
            self._release_descriptor()
        return data

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill ``target`` with the bytes from offset ``start``. The file must contain all these bytes.

        Raises:
            TracekitError: The file has changed since it was opened, cannot be read, or is closed.
        """
        descriptor = self._acquire_descriptor()
        try:
            while len(target):
                count = read_into(descriptor, start, target)
                if not count:
                    raise self._create_truncation_error(start)
                start, target = start + count, target[count:]
        except OSError as e:
            raise self._create_read_error(e) from e
        finally:
            self._release_descriptor()

    def check_unchanged(self) -> None:
        """Check that the file has not changed since it was opened. A closed file is not checked.

        Raises:
            TracekitError: The file has changed.
        """
        if not self._closed:
            self._acquire_descriptor()
            self._release_descriptor()

    def close(self) -> None:
        """Close the file. If other threads are reading the file, the last of them closes it."""
        with self._lock:
            self._closed = True
            if not self._readers:
                self._close_descriptor()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _acquire_descriptor(self) -> int:
        """Return the descriptor and prevent it from being closed until ``_release_descriptor`` is called."""
        with self._lock:
            if self._closed:
                raise TracekitError("the file is closed", path=self.path, hint="load it again")
            self._readers += 1
        return self._descriptor

    def _release_descriptor(self) -> None:
        """End a read, and raise an error if the file has changed.

        This error replaces any other error of the read, because the change is its likely cause.
        """
        try:
            status = os.fstat(self._descriptor)
            if (status.st_size, status.st_mtime_ns) != self._size_and_time:
                self.state.check_unchanged(self.path, self._descriptor, may_grow=self._may_grow)
        finally:
            with self._lock:
                self._readers -= 1
                if self._closed and not self._readers:
                    self._close_descriptor()

    def _read_remaining(self, descriptor: int, start: int, size: int, first_part: bytes) -> bytes:
        """Continue a read that returned fewer bytes than requested, and return all requested bytes."""
        data = first_part
        chunks = [data]
        while data and len(data) < size:
            start, size = start + len(data), size - len(data)
            data = read_at(descriptor, start, size)
            chunks.append(data)
        if len(data) < size:
            raise self._create_truncation_error(start)
        return b"".join(chunks)

    def _create_read_error(self, error: OSError) -> TracekitError:
        """Return the error to raise when a read fails with an ``OSError``."""
        return TracekitError(f"the file cannot be read: {error.strerror or error}", path=self.path, hint=DISK_HINT)

    def _create_truncation_error(self, end: int) -> TracekitError:
        """Return the error for a read that ended at offset ``end`` because the file was truncated."""
        message = f"the file changed while it was open: it had {self.size} bytes, but now it ends at byte {end}"
        return TracekitError(message, path=self.path, hint=CHANGED_HINT)


class Region:
    """A section of an open file that can be sliced like bytes. Each slice is read from the file.

    Args:
        file: The open file.
        start: Offset of the section in the file.
        size: Size of the section in bytes. The section must be within the file.
    """

    __slots__ = ("_file", "_size", "_start")

    def __init__(self, file: InputFile, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: slice) -> memoryview:
        """Read and return the bytes of a slice, which must not have a step."""
        start, stop, _ = index.indices(self._size)
        return memoryview(self._file.read(self._start + start, max(0, stop - start)))

    def __bytes__(self) -> bytes:
        return self._file.read(self._start, self._size)


class Window:
    """A section of an open file that is sliced sequentially in one thread.

    A buffer of 1 MiB is read ahead, so that many small slices need few reads of the file.

    Args:
        file: The open file.
        start: Offset of the section in the file.
        size: Size of the section in bytes. The section must be within the file.
    """

    __slots__ = ("_buffer", "_buffer_start", "_file", "_size", "_start")

    def __init__(self, file: InputFile, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self._size = size
        self._buffer_start = 0
        self._buffer = memoryview(b"")

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: slice) -> memoryview:
        """Return the bytes of a slice, which must not have a step."""
        start, stop, _ = index.indices(self._size)
        if not self._buffer_start <= start <= stop <= self._buffer_start + len(self._buffer):
            size = max(0, stop - start, min(_WINDOW_BYTES, self._size - start))
            self._buffer_start, self._buffer = start, memoryview(self._file.read(self._start + start, size))
        return self._buffer[start - self._buffer_start : stop - self._buffer_start]

    def create_window(self, start: int, stop: int) -> Window:
        """Return a window for the bytes from ``start`` to ``stop`` of this section, without reading them."""
        return Window(self._file, self._start + start, stop - start)


def _open_existing_file(path: Path, expected_state: FileState | None) -> int:
    """Open a regular file and return its descriptor.

    If ``expected_state`` is not None and the file does not exist, the error states that the file was removed.
    """
    try:
        return open_regular_file(path)
    except FileNotFoundError as e:
        if expected_state is None:
            raise
        raise TracekitError("the file was removed while it was open", path=path, hint=REMOVED_HINT) from e


def _create_not_regular_file_error(path: Path, kind: str) -> TracekitError:
    """Return the error for a path that is not a regular file."""
    return TracekitError(f"this is {kind}, not a regular file", path=path, hint="write its content to a file first")


def convert_file_url_to_path(path_or_url: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Convert a URL with the scheme ``file`` to a path. Return any other path or URL unchanged.

    Raises:
        TracekitError: The path is a ``pathlib.Path`` that was created from a URL.
    """
    if (
        not isinstance(path_or_url, str)
        and is_shortened_url(os.fspath(path_or_url))
        and not os.path.lexists(path_or_url)
    ):
        message, hint = (
            "this is a URL, not the path of a file",
            "pass the URL as a string instead of a pathlib.Path",
        )
        raise TracekitError(message, path=path_or_url, hint=hint)
    if isinstance(path_or_url, str) and path_or_url.startswith("file://"):
        from tracekit.system.platform.file_names import convert_file_url

        return convert_file_url(path_or_url)
    return path_or_url


class Input(NamedTuple):
    """A file or folder that is being read.

    Attributes:
        path: Absolute path of the input.
        state: State of the input when it was opened. None if it did not exist.
    """

    path: Path
    state: FileState | None

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> Self:
        """Return the input at a path, with its current state."""
        absolute = Path(path).absolute()
        return cls(absolute, _read_state(absolute))

    def is_or_contains(self, file: FileState) -> bool:
        """Return whether a file is this input or, if the input is a folder, is inside it at any depth."""
        return (
            file.is_same_file(self.state)
            or file.is_same_file(_read_state(self.path))
            or any(map(file.is_same_file, _list_states_of_files(self.path)))
        )

    def is_or_is_inside(self, folder: FileState) -> bool:
        """Return whether a folder is this input, or contains this input at any depth."""
        real = Path(os.path.realpath(self.path))
        states = (self.state, *map(_read_state, (real, *real.parents)))
        return any(map(folder.is_same_file, states))


def _read_state(path: Path) -> FileState | None:
    """Return the state of the file or folder at a path. Return None if the path cannot be accessed."""
    try:
        return FileState.read(path)
    except OSError:
        return None


def _list_states_of_files(folder: Path) -> Iterator[FileState | None]:
    """Yield the state of every file in a folder at any depth. Links to files are followed."""
    for parent, _, names in os.walk(folder):
        yield from (_read_state(Path(parent, name)) for name in names)
