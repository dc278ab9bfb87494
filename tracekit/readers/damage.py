"""Damage found deep inside a binary report, and how it becomes the error that names the file."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tracekit.errors import CorruptTraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COPY_AGAIN = "copy the report again from where it was recorded, or record it again"


class Damage(Exception):  # noqa: N818 - never leaves the reader: ``located`` turns it into a CorruptTraceError
    """The bytes break the format."""


@contextlib.contextmanager
def located(path: Path, table: str | None = None) -> Iterator[None]:
    """Turn what is found damaged inside into the error that names the file."""
    try:
        yield
    except Damage as e:
        raise CorruptTraceError(str(e), path=path, table=table, hint=COPY_AGAIN) from e
