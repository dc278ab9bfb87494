"""Outputs: written whole or not at all, and never in place of anything that must not be lost.

A new file or folder is written in a workspace beside its target and renamed when it is complete. What is in the
target's place is replaced only if the user asked for that, and only like by like: a file by a file, and a folder by a
folder if tracekit itself wrote everything in it. An input is never replaced, nor a folder that an input lies in.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from tracekit import interrupts
from tracekit.errors import ExportError
from tracekit.targets.inputs import Input
from tracekit.targets.target import Target
from tracekit.targets.workspaces import is_in_workspace, workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["Input", "output", "workspace"]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def output(
    path: str | os.PathLike[str],
    *,
    is_ours: Callable[[Path], bool] | None = None,
    overwrite: bool = False,
    inputs: Sequence[Input] = (),
) -> Iterator[Path]:
    """Give a path to write to; on success it takes the place of the target, on failure nothing remains.

    Args:
        path: The target. A symbolic link is followed.
        is_ours: Whether a file in a folder is one that tracekit wrote; None if a file is written, not a folder.
        overwrite: Replace a file, or a folder that holds nothing but what tracekit wrote.
        inputs: What is being read, which is never replaced.

    Yields:
        A path beside the target, at which nothing exists yet.

    Raises:
        ExportError: The target exists and is not to be replaced, or cannot be written.
    """
    target = Target(path, is_ours=is_ours, overwrite=overwrite, inputs=inputs)
    with _errors_name(target), contextlib.ExitStack() as stack:
        target.check()
        room = stack.enter_context(workspace(target.place.parent))
        new = room / "new" / target.place.name
        new.parent.mkdir()
        yield new
        target.check()
        with interrupts.completing():
            target.put(new, aside=room)


@contextlib.contextmanager
def _errors_name(target: Target) -> Iterator[None]:
    """Turn what the system and exporters say of a path in the workspace into an error that names the target."""
    try:
        yield
    except ExportError as e:
        if e.path is None or not is_in_workspace(e.path):
            raise
        raise ExportError(e.message, path=target.path, hint=e.hint) from e
    except OSError as e:
        no_room = e.errno in _NO_ROOM or any(os.strerror(n) in str(e) for n in _NO_ROOM)  # polars has only the words
        hint = "make room on the disk, or choose another folder" if no_room else "choose another name or folder"
        raise ExportError(f"cannot be written: {e.strerror or e}", path=target.path, hint=hint) from e
