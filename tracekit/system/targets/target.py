"""Check whether the target of an output may be written or replaced, and rename the output to its target."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import ExportError
from tracekit.system.files import FileState, find_special_file_kind
from tracekit.system.platform.file_names import is_accepted
from tracekit.system.platform.renames import repeat_while_in_use
from tracekit.system.targets.rename import rename_without_replacing, replace_path
from tracekit.system.targets.workspaces import REPLACED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.system.files import Input


_OTHER_NAME = "choose another name"
_MAX_NAMES_IN_MESSAGE, _MAX_NAMES = 3, 100


class Target:
    """The final path of an output file or folder, to which the complete output is renamed.

    Attributes:
        path: The path as the user wrote it.
        resolved: The absolute path, with symbolic links resolved.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        is_exported_file: Callable[[Path], bool] | None,
        overwrite: bool,
        inputs: Sequence[Input],
    ) -> None:
        self.path = Path(path)
        self.resolved = _resolve_links(self.path)
        self._is_exported_file = is_exported_file
        self._overwrite = overwrite
        self._inputs = inputs
        self._checked: FileState | None = None

    def check_may_be_written(self) -> None:
        """Check that an output may be written to the path of the target.

        Raises:
            ExportError: The path exists and may not be replaced, or its folder does not exist.
        """
        if not is_accepted(self.path.name):
            raise self._create_export_error("Windows does not accept this name of a file", _OTHER_NAME)
        existing = self._stat_or_none()
        self._checked = None if existing is None else FileState.from_status(existing)
        if existing is None:
            if not self.resolved.parent.is_dir():
                raise self._create_export_error(
                    "the folder of the output does not exist", f"create {self.resolved.parent}"
                )
        elif stat.S_ISDIR(existing.st_mode):
            self._check_folder(existing)
        else:
            self._check_file(existing)

    def rename_output(self, temporary_path: Path, *, workspace: Path) -> None:
        """Rename the complete output from its temporary path to the path of the target.

        Args:
            temporary_path: Temporary path of the complete output.
            workspace: A folder on the same file system. If the system cannot exchange the old folder and the output
                atomically, the old folder is moved into it.
        """
        existing = self._stat_or_none() if self._overwrite else None
        if existing is None:
            repeat_while_in_use(lambda: rename_without_replacing(temporary_path, self.resolved))
        else:
            state = self._checked or FileState.from_status(existing)
            old = workspace / REPLACED / self.resolved.name
            repeat_while_in_use(lambda: replace_path(temporary_path, self.resolved, state, old))

    def _check_file(self, existing: os.stat_result) -> None:
        """Check that the output may replace an existing file."""
        if (kind := find_special_file_kind(existing.st_mode)) is not None:
            raise self._create_export_error(
                f"{kind} exists at this path, but only regular files can be replaced",
                "choose another name, or - for standard output",
            )
        state = FileState.from_status(existing)
        if (read := next((i for i in self._inputs if i.is_or_contains(state)), None)) is not None:
            is_input = state.is_same_file(read.state)
            reason = "this file is being read" if is_input else "this file is part of the input"
            raise self._create_export_error(f"{reason}, so it cannot be replaced", _OTHER_NAME)
        self._check_overwrite()
        if self._is_exported_file is not None:
            raise self._create_export_error("a file exists at this path, but the output is a folder", _OTHER_NAME)

    def _check_folder(self, existing: os.stat_result) -> None:
        """Check that the output may replace an existing folder."""
        if any(i.is_or_is_inside(FileState.from_status(existing)) for i in self._inputs):
            raise self._create_export_error("this folder contains the input, so it cannot be replaced", _OTHER_NAME)
        if self._is_exported_file is None:
            raise self._create_export_error(
                "a folder exists at this path, but the output is a file", "pass the name of a file"
            )
        self._check_overwrite()
        if foreign := self._list_foreign_names(self._is_exported_file):
            names = ", ".join(foreign[:_MAX_NAMES_IN_MESSAGE]) + (", …" if len(foreign) > _MAX_NAMES_IN_MESSAGE else "")
            message = f"this folder contains files that tracekit did not write: {names}"
            raise self._create_export_error(message, "choose another name, or delete the folder yourself")

    def _list_foreign_names(self, is_exported_file: Callable[[Path], bool]) -> list[str]:
        """Return the names of up to ``_MAX_NAMES`` entries of the output folder that tracekit did not write."""
        with os.scandir(self.resolved) as entries:
            foreign = (
                e.name for e in entries if not (e.is_file(follow_symlinks=False) and is_exported_file(Path(e.path)))
            )
            return sorted(itertools.islice(foreign, _MAX_NAMES))

    def _check_overwrite(self) -> None:
        """Check that the user allowed tracekit to replace an existing target.

        Raises:
            ExportError: The user did not allow the replacement.
        """
        if not self._overwrite:
            raise self._create_export_error("the output already exists", "overwrite it with -f or overwrite=True")

    def _stat_or_none(self) -> os.stat_result | None:
        """Return the result of ``os.stat`` for the target. Return None if the target does not exist."""
        try:
            return self.resolved.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _create_export_error(self, message: str, hint: str) -> ExportError:
        """Return an ``ExportError`` that names the path of the target as the user wrote it."""
        return ExportError(message, path=self.path, hint=hint)


def _resolve_links(path: Path) -> Path:
    """Return the absolute path with symbolic links resolved. The file or folder itself need not exist."""
    if os.path.islink(path) or path.name in ("", ".."):  # noqa: PTH114 - Path.is_symlink raises for long names
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(path.parent)) / path.name
