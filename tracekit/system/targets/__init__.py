"""Write outputs atomically, and protect existing data from being replaced.

A new file or folder is written in a workspace next to its target, and renamed to the target when it is complete. An
existing target is replaced only if the user requested it. A file is replaced only by a file. A folder is replaced only
by a folder, and only if tracekit wrote everything in it. Inputs and folders that contain inputs are never replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from tracekit.errors import ExportError, PluginError
from tracekit.system import interrupts
from tracekit.system.files import Input
from tracekit.system.targets.target import Target
from tracekit.system.targets.workspaces import create_workspace, delete_from_workspace, is_in_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["Input", "create_workspace", "delete_from_workspace", "open_atomic_output"]

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def open_atomic_output(
    path: str | os.PathLike[str],
    *,
    is_exported_file: Callable[[Path], bool] | None = None,
    overwrite: bool = False,
    inputs: Sequence[Input] = (),
) -> Iterator[Path]:
    """Yield a temporary path for an output, which is renamed to its target on success and deleted on failure.

    Args:
        path: Path of the target. A symbolic link is followed.
        is_exported_file: Function that returns whether tracekit wrote a given file in an existing output folder. None
            if the output is a file.
        overwrite: Whether to replace an existing file, or a folder that contains only files that tracekit wrote.
        inputs: The files and folders that are being read. They are never replaced.

    Yields:
        A path next to the target that does not exist yet.

    Raises:
        ExportError: The target exists and may not be replaced, or cannot be written.
    """
    target = Target(path, is_exported_file=is_exported_file, overwrite=overwrite, inputs=inputs)
    with _name_target_in_errors(target), contextlib.ExitStack() as stack:
        target.check_may_be_written()
        folder = stack.enter_context(create_workspace(target.resolved.parent))
        new = folder / "new" / target.resolved.name
        new.parent.mkdir()
        yield new
        target.check_may_be_written()
        with interrupts.completing():
            target.rename_output(new, workspace=folder)


@contextlib.contextmanager
def _name_target_in_errors(target: Target) -> Iterator[None]:
    """Convert errors about a temporary path, raised in the ``with`` block, into errors that name the target."""
    try:
        yield
    except (ExportError, PluginError) as e:
        if e.path is None or not is_in_workspace(e.path):
            raise
        raise type(e)(e.message, path=target.path, hint=e.hint) from (e.__cause__ or e)
    except OSError as e:
        is_full = e.errno in _DISK_FULL or any(
            os.strerror(n) in str(e) for n in _DISK_FULL
        )  # polars raises errors without a number
        hint = "free space on the disk, or choose another folder" if is_full else "choose another name or folder"
        raise ExportError(f"the output cannot be written: {e.strerror or e}", path=target.path, hint=hint) from e
