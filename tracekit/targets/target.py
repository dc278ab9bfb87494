"""The place of an output: what may be replaced there, and how it is."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import ExportError
from tracekit.files import kind_of
from tracekit.targets.rename import exchange, rename_new
from tracekit.targets.workspaces import REPLACED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.targets.inputs import Input

_OTHER_NAME = "choose another name"
_SHOWN, _MOST_NAMES = 3, 100


class Target:
    """Where an output goes.

    Attributes:
        path: The path as the user gave it.
        place: The absolute path that it leads to.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        is_ours: Callable[[Path], bool] | None,
        overwrite: bool,
        inputs: Sequence[Input],
    ) -> None:
        self.path = Path(path)
        self.place = _place(self.path)
        self._is_ours = is_ours
        self._overwrite = overwrite
        self._inputs = inputs

    def check(self) -> None:
        """Check that the output may take this place.

        Raises:
            ExportError: Something is there that is not to be replaced, or there is no folder for it.
        """
        there = self._status()
        if there is None:
            if not self.place.parent.is_dir():
                raise self._refused("its folder does not exist", f"create {self.place.parent}")
        elif stat.S_ISDIR(there.st_mode):
            self._check_folder(there)
        else:
            self._check_file(there)

    def put(self, new: Path, *, aside: Path) -> None:
        """Put the complete output in its place: at every moment either what was there or the output is there.

        Args:
            new: The output.
            aside: A folder on the same file system that takes what was there.
        """
        if not self._overwrite:
            rename_new(new, self.place)
        elif self._is_ours is None or self._status() is None:
            new.replace(self.place)
        elif not exchange(new, self.place):
            self._put_in_two_steps(new, aside)

    def _put_in_two_steps(self, new: Path, aside: Path) -> None:
        """Replace a folder where two paths cannot be exchanged; the workspace puts the old one back if that fails."""
        old = aside / REPLACED / self.place.name
        old.parent.mkdir()
        self.place.rename(old)
        try:
            new.rename(self.place)
        except BaseException:
            with contextlib.suppress(OSError):
                rename_new(old, self.place)
            raise

    def _check_file(self, there: os.stat_result) -> None:
        if (kind := kind_of(there.st_mode)) is not None:
            raise self._refused(f"is {kind}, and only files are replaced", "choose another name; - is standard output")
        if (read := next((i for i in self._inputs if i.is_or_holds(there)), None)) is not None:
            own = read.identity == (there.st_dev, there.st_ino)
            raise self._refused("is the file being read" if own else "is part of the input", _OTHER_NAME)
        self._check_overwrite()
        if self._is_ours is not None:
            raise self._refused("is a file, and the output is a folder", _OTHER_NAME)

    def _check_folder(self, there: os.stat_result) -> None:
        if any(i.lies_in(there) for i in self._inputs):
            raise self._refused("holds the input", _OTHER_NAME)
        if self._is_ours is None:
            raise self._refused("is a folder, and the output is a file", "give the name of a file")
        self._check_overwrite()
        if foreign := self._foreign(self._is_ours):
            names = ", ".join(foreign[:_SHOWN]) + (", …" if len(foreign) > _SHOWN else "")
            what = f"is a folder that holds more than tracekit wrote: {names}"
            raise self._refused(what, "choose another name, or delete the folder yourself")

    def _foreign(self, is_ours: Callable[[Path], bool]) -> list[str]:
        """Return some names of what is in the folder and not a file that tracekit wrote."""
        with os.scandir(self.place) as entries:
            foreign = (e.name for e in entries if not (e.is_file(follow_symlinks=False) and is_ours(Path(e.path))))
            return sorted(itertools.islice(foreign, _MOST_NAMES))

    def _check_overwrite(self) -> None:
        if not self._overwrite:
            raise self._refused("exists already", "overwrite it with -f, or overwrite=True")

    def _status(self) -> os.stat_result | None:
        try:
            return self.place.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _refused(self, what: str, hint: str) -> ExportError:
        return ExportError(what, path=self.path, hint=hint)


def _place(path: Path) -> Path:
    """Return where a path leads: links are followed, and the last part is a name."""
    if os.path.islink(path) or path.name in ("", ".."):  # noqa: PTH114 - Path.is_symlink raises for long names
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(path.parent)) / path.name
