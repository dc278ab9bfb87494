"""Damage found deep inside a binary report, and how it becomes the error that names the file."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, TypeVar

from tracekit.errors import CorruptTraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.files import InputFile

Made = TypeVar("Made")

COPY_AGAIN = "copy the report again from where it was recorded, or record it again"


class Damage(Exception):  # noqa: N818 - never leaves the reader: ``located`` turns it into a CorruptTraceError
    """The bytes break the format."""


@contextlib.contextmanager
def located(path: Path, table: str | None = None, file: InputFile | None = None) -> Iterator[None]:
    """Turn damage that is found inside into the error that names the file.

    Args:
        path: The file.
        table: Table that is read.
        file: The file, if it is open; where it changed since it was opened, that is the error instead.

    Raises:
        CorruptTraceError: Damage was found.
        TracekitError: The file changed.
    """
    try:
        yield
    except (Damage, CorruptTraceError) as e:
        if file is not None:
            file.check()
        if isinstance(e, CorruptTraceError):
            raise
        raise CorruptTraceError(str(e), path=path, table=table, hint=COPY_AGAIN) from e


class once(functools.cached_property[Made]):  # noqa: N801 - a decorator
    """A property that is worked out once; damage that is found is raised again without another look."""

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        """Return what was worked out."""
        found = {} if instance is None else instance.__dict__
        name = f"{self.attrname} is damaged"
        if name in found:
            raise Damage(found[name])
        try:
            return super().__get__(instance, owner)
        except Damage as e:
            found[name] = str(e)
            raise
