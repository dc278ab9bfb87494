"""Identify the content of a file, and the version of tracekit that reads it."""

from __future__ import annotations

import functools
import hashlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tracekit import schemas

if TYPE_CHECKING:
    from typing import Self

SETTLED_NS = 2_000_000_000
"""Minimum age of the last change of a settled file in ns. On any file system, later changes have another timestamp."""
_DIGITS = 32
_PACKAGE = Path(__file__).parents[1]


class FileStatus(NamedTuple):
    """The status of a file in its file system. Every change of the content changes at least ``changed_ns``.

    Attributes:
        device: Number of the device that contains the file.
        inode: Inode number of the file on its device.
        size: Size of the file in bytes.
        modified_ns: Time of the last modification in ns since 1970. Programs can set it.
        changed_ns: Time of the last change of the content or the status, in ns since 1970. Programs cannot set it.
    """

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def from_path(cls, path: Path) -> Self:
        """Return the status of a file.

        Raises:
            OSError: The file does not exist or cannot be accessed.
        """
        status = path.stat()
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    @property
    def is_settled(self) -> bool:
        """Whether the last change is so old that the next change is certain to have a different timestamp."""
        return 0 <= max(self.modified_ns, self.changed_ns) < time.time_ns() - SETTLED_NS

    def to_list(self) -> list[int]:
        """Return the attributes as a list that can be stored as JSON."""
        return list(self)


def compute_content_digest(path: Path) -> str | None:
    """Return the first 32 hexadecimal digits of the SHA-256 digest of a file.

    Return None if the file changes while it is read.

    Raises:
        OSError: The file cannot be read.
    """
    status = FileStatus.from_path(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return digest[:_DIGITS] if FileStatus.from_path(path) == status else None


@functools.cache
def compute_reader_version() -> str:
    """Return a string that identifies this version of tracekit and changes whenever one of its files changes.

    If the code of a checkout is edited, columns that the earlier code stored are therefore not used.
    """
    digest = hashlib.sha256()
    for root in (_PACKAGE, schemas.FOLDER):
        for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".wasm", ".toml", ".json", ".binpb")):
            status = path.stat()
            digest.update(f"{path.relative_to(root)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def hash_path(path: Path) -> str:
    """Return a hash of a path that can be used as a file name."""
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:_DIGITS]
