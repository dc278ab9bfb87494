"""The inputs of a command, identified by device and inode number, because a file may have several paths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from tracekit.system.files import FileState

if TYPE_CHECKING:
    from collections.abc import Iterator


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
