"""Files mapped into memory, read-only."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from pathlib import Path


def mapped(path: Path) -> mmap.mmap:
    """Map a file that is not empty.

    Raises:
        TracekitError: It may not be read.
    """
    try:
        with path.open("rb") as f:
            return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except PermissionError as e:
        raise TracekitError("cannot be read: permission denied", path=path, hint="check its mode") from e
