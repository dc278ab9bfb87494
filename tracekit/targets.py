"""Files to write: whole or not at all, and never in place of something that was not to be replaced."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Iterator


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def fresh(path: str | os.PathLike[str], *, overwrite: bool = False, reading: Path | None = None) -> Iterator[Path]:
    """Give a fresh path beside the target; on success it takes the target's place, on failure nothing remains.

    Args:
        path: The target, a file or a folder.
        overwrite: Replace what is there.
        reading: The file that is being read, which is never replaced.

    Raises:
        ExportError: The target exists, or cannot be written.
    """
    target = Path(path)
    _check(target, overwrite, reading)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name[:64]}.", suffix=".partial", dir=target.absolute().parent))
    except OSError as e:
        raise ExportError(f"cannot be written: {e.strerror}", path=target, hint="choose another folder") from e
    try:
        yield folder / target.name
        _replace(folder / target.name, target)
    except OSError as e:
        room = e.errno in _NO_ROOM or any(os.strerror(n) in str(e) for n in _NO_ROOM)  # polars says it in words only
        hint = "make room on the disk, or choose another folder" if room else "choose another name or folder"
        raise ExportError(f"cannot be written: {e.strerror or e}", path=target, hint=hint) from e
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace(made: Path, target: Path) -> None:
    """Put what was made in the place of the target; a folder that was there stays if that fails."""
    if not target.is_dir():
        made.replace(target)
        return
    old = made.with_name(f"{made.name}.old")
    target.rename(old)
    try:
        made.replace(target)
    except BaseException:
        old.rename(target)
        raise


def _check(target: Path, overwrite: bool, reading: Path | None) -> None:  # noqa: FBT001
    if reading is not None and target.exists() and reading.exists() and target.samefile(reading):
        raise ExportError("is the file being read", path=target, hint="choose another name")
    if target.exists() and not overwrite:
        raise ExportError("exists already", path=target, hint="overwrite it with -f, or overwrite=True")
    if not target.absolute().parent.is_dir():
        raise ExportError("its folder does not exist", path=target, hint=f"create {target.absolute().parent}")
