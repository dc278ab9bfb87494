"""The internal exception for damaged files, and its conversion to the public error that names the file."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, TypeVar

from tracekit.errors import CorruptTraceError
from tracekit.registry.detection import create_report_hint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.system.files import InputFile

Value = TypeVar("Value")

COPY_AGAIN = "copy the report again from where it was recorded, or record it again"


class Damage(Exception):  # noqa: N818 - never leaves the reader: ``convert_damage`` turns it into a CorruptTraceError
    """Raised if a file violates its format. The message describes the violation."""


@contextlib.contextmanager
def convert_damage(path: Path, table: str | None = None, file: InputFile | None = None) -> Iterator[None]:
    """Return a context manager that converts ``Damage`` to a ``CorruptTraceError`` with the path of the file.

    Args:
        path: Path of the file.
        table: Name of the table that is being read, for the error message.
        file: The open file, or None. If the file changed after it was opened, the error reports the change instead of
            the damage.

    Raises:
        CorruptTraceError: The file is damaged.
        TracekitError: The file changed while it was open.
    """
    try:
        yield
    except (Damage, CorruptTraceError) as e:
        if file is not None:
            file.check_unchanged()
        if isinstance(e, CorruptTraceError):
            raise
        hint = create_report_hint(path, COPY_AGAIN)
        raise CorruptTraceError(str(e), path=path, table=table, hint=hint) from e


class checked_property(functools.cached_property[Value]):  # noqa: N801 - a decorator
    """A cached property that also caches a raised ``Damage`` and raises it again at each access."""

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        """Return the value, which is computed on first access, or raise the cached ``Damage``."""
        cache = {} if instance is None else instance.__dict__
        name = f"{self.attrname} is damaged"
        if name in cache:
            raise Damage(cache[name])
        try:
            return super().__get__(instance, owner)
        except Damage as e:
            cache[name] = str(e)
            raise
