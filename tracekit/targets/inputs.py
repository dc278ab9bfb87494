"""Inputs of a command, recognised by device and inode under whatever name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Identity: TypeAlias = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class Input:
    """A file or folder that is being read.

    Attributes:
        path: Its absolute path.
        identity: Device and inode when it was opened; None if it did not exist.
    """

    path: Path
    identity: Identity | None

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Self:
        """Return the input at a path."""
        absolute = Path(path).absolute()
        return cls(absolute, _identity(absolute))

    def is_or_holds(self, file: os.stat_result) -> bool:
        """Return whether a file is this input, or one of the files in this folder, however deep."""
        wanted = (file.st_dev, file.st_ino)
        return wanted in (self.identity, _identity(self.path)) or wanted in _files(self.path)

    def lies_in(self, folder: os.stat_result) -> bool:
        """Return whether a folder is this input, or this input lies in it, however deep."""
        wanted = (folder.st_dev, folder.st_ino)
        real = Path(os.path.realpath(self.path))
        return wanted == self.identity or any(_identity(p) == wanted for p in (real, *real.parents))


def _identity(path: Path) -> Identity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _files(folder: Path) -> Iterator[Identity]:
    """Yield the files in a folder and in the folders in it; links to files count as what they lead to."""
    for parent, _, names in os.walk(folder):
        for name in names:
            identity = _identity(Path(parent, name))
            if identity is not None:
                yield identity
