"""The inputs of a command, identified by device and inode number, because a file may have several paths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Identity: TypeAlias = tuple[int, int]
"""The device number and inode number of a file."""


class Input(NamedTuple):
    """A file or folder that is being read.

    Attributes:
        path: Absolute path of the input.
        identity: Device and inode number of the input when it was opened. None if it did not exist.
    """

    path: Path
    identity: Identity | None

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> Self:
        """Return the input at a path, with its current device and inode number."""
        absolute = Path(path).absolute()
        return cls(absolute, _read_file_identity(absolute))

    def is_or_contains(self, file: os.stat_result) -> bool:
        """Return whether a file is this input or, if the input is a folder, is inside it at any depth."""
        identity = (file.st_dev, file.st_ino)
        return identity in (self.identity, _read_file_identity(self.path)) or identity in _list_file_identities(
            self.path
        )

    def is_or_is_inside(self, folder: os.stat_result) -> bool:
        """Return whether a folder is this input, or contains this input at any depth."""
        identity = (folder.st_dev, folder.st_ino)
        real = Path(os.path.realpath(self.path))
        return identity == self.identity or any(_read_file_identity(p) == identity for p in (real, *real.parents))


def _read_file_identity(path: Path) -> Identity | None:
    """Return the device and inode number of the file at a path. Return None if the path cannot be accessed."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _list_file_identities(folder: Path) -> Iterator[Identity]:
    """Yield the device and inode number of every file in a folder at any depth. Links to files are followed."""
    for parent, _, names in os.walk(folder):
        for name in names:
            identity = _read_file_identity(Path(parent, name))
            if identity is not None:
                yield identity
