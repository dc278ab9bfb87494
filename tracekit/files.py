"""Open input files safely: only regular files are opened, and a file that changes while it is open is noticed."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from pathlib import Path

CHANGED_HINT = "wait until it is written completely, then load it again"
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
        status = os.fstat(file) if isinstance(file, int) else file.stat()
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def check(self, path: Path, descriptor: int | None = None) -> None:
        """Check that a file is still in this state.

        Args:
            path: The file; named in the error.
            descriptor: Look at this open descriptor instead of the path: a new file under the same name then does not
                matter.

        Raises:
            TracekitError: The file changed, was replaced or is gone.
        """
        try:
            state = FileState.of(path if descriptor is None else descriptor)
        except OSError as e:
            what = "was removed" if e.errno == errno.ENOENT else f"cannot be read any more: {e.strerror}"
            raise TracekitError(f"{what} while it was open", path=path, hint=CHANGED_HINT) from e
        if state != self:
            raise TracekitError(self._difference(state), path=path, hint=CHANGED_HINT)

    def _difference(self, now: FileState) -> str:
        if (now.device, now.inode) != (self.device, self.inode):
            return "was replaced by another file while it was open"
        if now.size != self.size:
            return f"changed while it was open: it had {self.size} bytes, now {now.size}"
        return "changed while it was open"


def _not_regular(path: Path, kind: str) -> TracekitError:
    return TracekitError(f"is {kind}, not a regular file", path=path, hint="write it to a file first")
