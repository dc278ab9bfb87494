"""The file or folder that a reader opens, with the first bytes from which its format is detected."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError
from tracekit.system.files import PERMISSIONS_HINT, InputFile

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from tracekit.system.files import FileState

HEAD_BYTES = 4096


class Source:
    """A file or folder to read. Its first bytes are read once and shared by all readers that examine them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def head(self) -> bytes:
        """The first 4,096 bytes of the file. Empty for a folder, a pipe or a device."""
        return self._head_and_state[0]

    @property
    def state(self) -> FileState | None:
        """State of the file when its first bytes were read. None for a folder, a pipe or a device."""
        return self._head_and_state[1]

    @functools.cached_property
    def _head_and_state(self) -> tuple[bytes, FileState | None]:
        with self._convert_os_errors():
            if not self.path.is_file():
                return b"", None
            # The format of a file that is still being written must be detected, too. Readers that need a complete file
            # open it in this state.
            with InputFile(self.path, may_grow=True) as file:
                return file.read(0, min(HEAD_BYTES, file.size)), file.state

    @functools.cached_property
    def size(self) -> int:
        """Size of the file in bytes."""
        with self._convert_os_errors():
            return self.path.stat().st_size

    def open(self) -> InputFile:
        """Open the file, and check that it has not changed since its first bytes were read.

        Raises:
            TracekitError: The path is not a regular file or cannot be read, or the file has changed.
            FileNotFoundError: The file does not exist.
        """
        return InputFile(self.path, self.state)

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Names of the entries of a folder. Empty for a file."""
        with self._convert_os_errors():
            return frozenset(p.name for p in self.path.iterdir()) if self.path.is_dir() else frozenset()

    @property
    def exists(self) -> bool:
        """Whether the file or folder exists."""
        with self._convert_os_errors():
            return self.path.exists()

    @contextlib.contextmanager
    def _convert_os_errors(self) -> Iterator[None]:
        """Return a context manager that converts ``OSError`` to ``TracekitError``, except ``FileNotFoundError``."""
        try:
            yield
        except PermissionError as e:
            raise TracekitError(
                "the path cannot be read: permission denied", path=self.path, hint=PERMISSIONS_HINT
            ) from e
        except FileNotFoundError:
            raise
        except OSError as e:
            raise TracekitError(f"the path cannot be read: {e.strerror or e}", path=self.path) from e
