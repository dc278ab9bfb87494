"""Open input files safely: only regular files are opened, and a file that changes while it is open is noticed.

Nothing is mapped into memory: a file that another program truncates meanwhile gives a short read, which becomes an
error, where a mapping would end the process or let values that were handed out change.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

CHANGED_HINT = "wait until it is written completely, then load it again"
LONGEST_SQLITE_PATH = 504
"""Bytes of the longest path that SQLite opens, links resolved: 512 less what it appends for its journal."""
_AT_ONCE = 1 << 30
"""Bytes that one call reads at most; the system's limit is 2 GiB less a page."""
_WINDOW_BYTES = 1 << 20
_HAS_PREAD, _HAS_PREADV = hasattr(os, "pread"), hasattr(os, "preadv")
_SEEKING = threading.Lock()
_DESCRIPTORS = ("/proc/self/fd", "/dev/fd")
"""Folders in which a descriptor of this process has a name."""
_NONBLOCKING = getattr(os, "O_NONBLOCK", 0)
_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | _NONBLOCKING
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path) -> int:
    """Open a regular file for reading and return its descriptor.

    A named pipe, a socket or a device is refused, also behind a symbolic link, and without waiting for it.

    Raises:
        TracekitError: It is no regular file, or it may not be read.
        FileNotFoundError: There is no such file.
    """
    try:
        if (kind := kind_of(path.stat().st_mode)) is not None:  # opening some devices has effects
            raise _not_regular(path, kind)
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        raise
    except PermissionError as e:
        raise TracekitError("cannot be read: permission denied", path=path, hint="check its mode") from e
    except OSError as e:
        raise TracekitError(f"cannot be read: {e.strerror or e}", path=path) from e
    kind = kind_of(os.fstat(descriptor).st_mode)
    if kind is None:
        return descriptor
    os.close(descriptor)
    raise _not_regular(path, kind)


def kind_of(mode: int) -> str | None:
    """Return what a file mode stands for: "a named pipe", "a device" …; None for a regular file."""
    return None if stat.S_ISREG(mode) else next((name for test, name in _KINDS if test(mode)), "a special file")


@dataclass(frozen=True, slots=True)
class FileState:
    """Identity, size and time of modification of a file; another state of the same path means that it changed.

    Attributes:
        device: Number of the device the file is on.
        inode: Number of the file on its device.
        size: Bytes.
        modified_ns: Time of the last change of its content, in ns since 1970.
    """

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, file: Path | int) -> Self:
        """Return the state of a path or of an open descriptor.

        Raises:
            FileNotFoundError: There is no such file.
        """
        return cls.of_status(os.fstat(file) if isinstance(file, int) else file.stat())

    @classmethod
    def of_status(cls, status: os.stat_result) -> Self:
        """Return the state that a status tells."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def check(self, path: Path, descriptor: int | None = None, *, may_grow: bool = False) -> None:
        """Check that a file is still in this state.

        Args:
            path: The file; named in the error.
            descriptor: Look at this open descriptor instead of the path: a new file under the same name then does not
                matter.
            may_grow: Let it be larger than it was.

        Raises:
            TracekitError: The file changed, was replaced or is gone.
        """
        try:
            status = path.stat() if descriptor is None else os.fstat(descriptor)
        except OSError as e:
            what = "was removed" if e.errno == errno.ENOENT else f"cannot be read any more: {e.strerror}"
            raise TracekitError(f"{what} while it was open", path=path, hint=CHANGED_HINT) from e
        if (kind := kind_of(status.st_mode)) is not None:
            raise _not_regular(path, kind)
        state = FileState.of_status(status)
        same_file = (state.device, state.inode) == (self.device, self.inode)
        if state != self and not (may_grow and same_file and state.size > self.size):
            raise TracekitError(self.difference(state), path=path, hint=CHANGED_HINT)

    def difference(self, now: FileState) -> str:
        """Say how another state differs from this one: "was replaced by another file while it was open"."""
        if (now.device, now.inode) != (self.device, self.inode):
            return "was replaced by another file while it was open"
        if now.size != self.size:
            return f"changed while it was open: it had {self.size} bytes, now {now.size}"
        return "changed while it was open"


def state_of(path: Path) -> FileState | None:
    """Return the state of a regular file; None if it is none, or cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileState.of_status(status) if stat.S_ISREG(status.st_mode) else None


class InputFile:
    """A regular file that is open for reading; every read checks that the file is as it was when it was opened.

    A new file that takes its name does not matter: the old one stays readable until it is closed. Several threads may
    read at once. The descriptor is closed by ``close``, or when nothing refers to the object any more.

    Attributes:
        path: The file.
        state: Its state when it was opened.
    """

    def __init__(self, path: Path, expected: FileState | None = None, *, may_grow: bool = False) -> None:
        """Open a file.

        Args:
            path: The file.
            expected: The state that the file was in when it was seen before.
            may_grow: Let bytes be added to the file while it is open, as a program does that writes a log.

        Raises:
            TracekitError: It is no regular file, may not be read, or is not in the expected state.
            FileNotFoundError: There is no such file, and no state is expected.
        """
        self.path = path
        self._descriptor = _open_expected(path, expected)
        self._close_descriptor = weakref.finalize(self, os.close, self._descriptor)
        self._lock = threading.Lock()
        self._readers = 0
        self._closed = False
        self._may_grow = may_grow
        self.state = FileState.of(self._descriptor)
        self._size_and_time = (self.state.size, self.state.modified_ns)
        if expected is not None and self.state != expected:
            self.close()
            raise TracekitError(expected.difference(self.state), path=path, hint=CHANGED_HINT)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.state.size

    @property
    def native_path(self) -> str:
        """Path for a library that opens files itself; where the system has one, it leads to this very file.

        What was read that way is to be checked by ``check``.
        """
        paths = (f"{folder}/{self._descriptor}" for folder in _DESCRIPTORS)
        return next(filter(os.path.exists, paths), os.fspath(self.path))

    def read(self, start: int, size: int) -> bytes:
        """Read the ``size`` bytes that begin at ``start``; all of them lie within the file.

        Raises:
            TracekitError: The file changed since it was opened, cannot be read, or is closed.
        """
        descriptor = self._acquire()
        try:
            data = _read_at(descriptor, start, size)
            if len(data) < size:
                data = self._read_on(descriptor, start, size, data)
        except OSError as e:
            raise self._failed(e) from e
        finally:
            self._release()
        return data

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill ``target`` with the bytes that begin at ``start``; all of them lie within the file.

        Raises:
            TracekitError: The file changed since it was opened, cannot be read, or is closed.
        """
        descriptor = self._acquire()
        try:
            while len(target):
                count = _read_into(descriptor, start, target)
                if not count:
                    raise self._shorter(start)
                start, target = start + count, target[count:]
        except OSError as e:
            raise self._failed(e) from e
        finally:
            self._release()

    def check(self) -> None:
        """Check that the file is as it was when it was opened; a closed file passes.

        Raises:
            TracekitError: It changed.
        """
        if not self._closed:
            self._acquire()
            self._release()

    def close(self) -> None:
        """Close the file; reads that are under way in other threads end first."""
        with self._lock:
            self._closed = True
            if not self._readers:
                self._close_descriptor()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _acquire(self) -> int:
        """Keep the descriptor open for a read."""
        with self._lock:
            if self._closed:
                raise TracekitError("is closed", path=self.path, hint="load it again")
            self._readers += 1
        return self._descriptor

    def _release(self) -> None:
        """End a read: a change of the file explains any other error, so it is the one that is raised."""
        try:
            status = os.fstat(self._descriptor)
            if (status.st_size, status.st_mtime_ns) != self._size_and_time:
                self.state.check(self.path, self._descriptor, may_grow=self._may_grow)
        finally:
            with self._lock:
                self._readers -= 1
                if self._closed and not self._readers:
                    self._close_descriptor()

    def _read_on(self, descriptor: int, start: int, size: int, data: bytes) -> bytes:
        """Read what a first call did not give."""
        parts = [data]
        while data and len(data) < size:
            start, size = start + len(data), size - len(data)
            data = _read_at(descriptor, start, size)
            parts.append(data)
        if len(data) < size:
            raise self._shorter(start)
        return b"".join(parts)

    def _failed(self, error: OSError) -> TracekitError:
        return TracekitError(f"cannot be read: {error.strerror or error}", path=self.path, hint="copy it again")

    def _shorter(self, end: int) -> TracekitError:
        what = f"changed while it was open: it had {self.size} bytes, and ends at byte {end} now"
        return TracekitError(what, path=self.path, hint=CHANGED_HINT)


class Region:
    """Some bytes of an open file. They are read when a slice is taken, which is a copy.

    Args:
        file: The open file.
        start: Where they begin.
        size: How many there are; all of them lie within the file.
    """

    __slots__ = ("_file", "_size", "_start")

    def __init__(self, file: InputFile, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> memoryview:
        """Read the bytes of a slice, which has no step."""
        start, stop, _ = part.indices(self._size)
        return memoryview(self._file.read(self._start + start, max(0, stop - start)))

    def __bytes__(self) -> bytes:
        return self._file.read(self._start, self._size)


class Window:
    """Some bytes of an open file, walked through by many small slices, which are read ahead; for one thread.

    Args:
        file: The open file.
        start: Where they begin.
        size: How many there are; all of them lie within the file.
    """

    __slots__ = ("_ahead", "_at", "_file", "_size", "_start")

    def __init__(self, file: InputFile, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self._size = size
        self._at = 0
        self._ahead = memoryview(b"")

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> memoryview:
        """Return the bytes of a slice, which has no step."""
        start, stop, _ = part.indices(self._size)
        if not self._at <= start <= stop <= self._at + len(self._ahead):
            size = max(0, stop - start, min(_WINDOW_BYTES, self._size - start))
            self._at, self._ahead = start, memoryview(self._file.read(self._start + start, size))
        return self._ahead[start - self._at : stop - self._at]

    def inside(self, start: int, stop: int) -> Window:
        """Return a window on some of the bytes, which are not read yet."""
        return Window(self._file, self._start + start, stop - start)


def _open_expected(path: Path, expected: FileState | None) -> int:
    """Open a regular file; one that was seen before and is missing now was removed."""
    try:
        return open_regular(path)
    except FileNotFoundError as e:
        if expected is None:
            raise
        raise TracekitError("was removed while it was open", path=path, hint=CHANGED_HINT) from e


def _read_at(descriptor: int, start: int, size: int) -> bytes:
    """Read up to ``size`` bytes that begin at ``start``; none at the end of the file."""
    size = min(size, _AT_ONCE)
    if _HAS_PREAD:
        return os.pread(descriptor, size, start)
    with _SEEKING:
        os.lseek(descriptor, start, os.SEEK_SET)
        return os.read(descriptor, size)


def _read_into(descriptor: int, start: int, target: memoryview) -> int:
    """Read up to as many bytes as there is room for; return how many."""
    target = target[:_AT_ONCE]
    if _HAS_PREADV:
        return os.preadv(descriptor, [target], start)
    data = _read_at(descriptor, start, len(target))
    target[: len(data)] = data
    return len(data)


def _not_regular(path: Path, kind: str) -> TracekitError:
    return TracekitError(f"is {kind}, not a regular file", path=path, hint="write it to a file first")
