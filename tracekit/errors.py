"""Every error and warning that tracekit raises.

.. code-block:: text

    TracekitError
     ├─ UnknownFormatError (ValueError)      no reader or exporter by that name, or none recognises the file
     ├─ UnsupportedVersionError              recognised, but a version that is not read
     ├─ CorruptTraceError (ValueError)       the file breaks its own format; has .path .table .row
     ├─ SchemaError (TypeError)              a reader or plug-in gave a table that is not as declared
     ├─ MissingTableError (LookupError)      needs data that this capture did not record
     └─ ExportError                          the target cannot hold the trace, or cannot be written
    TracekitWarning (UserWarning)            rows dropped, plug-in skipped, unknown schema version

A message reads ``path: what is wrong, with numbers`` and, on a second line, ``Hint: what to do``.
"""

from __future__ import annotations

import copyreg
import os
import warnings
from typing import TYPE_CHECKING, Any

from tracekit.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable


class TracekitError(Exception):
    """Base of all errors: what is wrong and, if there is one, what to do about it.

    Attributes:
        message: What is wrong, without the path; safe to print, whatever the file holds.
        path: The file or folder.
        hint: What to do.
    """

    def __init__(self, message: str, *, path: str | os.PathLike[str] | None = None, hint: str | None = None) -> None:
        self.path = None if path is None else os.fspath(path)
        self.message = printable(message)
        self.hint = None if hint is None else printable(hint)
        text = self.message if path is None else f"{shown(path)}: {self.message}"
        super().__init__(text if hint is None else f"{text}\nHint: {self.hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UnknownFormatError(TracekitError, ValueError):
    """No reader or exporter has that name, or none recognises the file."""


class UnsupportedVersionError(TracekitError):
    """The file is recognised, but its version is not one that is read."""


class CorruptTraceError(TracekitError, ValueError):
    """The file breaks its own format; ``table`` and ``row`` say where, as far as known."""

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        table: str | None = None,
        row: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.table = table
        self.row = row
        place = "" if table is None else f"table {table}: " if row is None else f"table {table}, row {row}: "
        super().__init__(place + message, path=path, hint=hint)


class SchemaError(TracekitError, TypeError):
    """A reader or plug-in gave a table that is not as declared."""


class MissingTableError(TracekitError, LookupError):
    """What was asked for needs data that this capture did not record."""


class ExportError(TracekitError):
    """The target cannot hold the trace, or cannot be written."""


class TracekitWarning(UserWarning):
    """Something was left out, repaired or not known; the message counts it."""


def choices(what: str, known: Iterable[str], name: str, *, quoted: bool = False) -> str:
    """Return a hint that lists the known names, after the one that an unknown name was probably meant to be.

    Args:
        what: What the names are of, in the plural: ``tables``.
        known: The names.
        name: The unknown name.
        quoted: Whether the names are listed in quotes, because they may be empty.
    """
    import difflib

    listed = list(known)
    nearest = difflib.get_close_matches(name, listed, n=1)
    meant = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{meant}{what}: {', '.join(map(repr, listed) if quoted else listed) or 'none'}"


def warn(message: str, *, path: str | os.PathLike[str] | None = None) -> None:
    """Issue a ``TracekitWarning`` that names the file."""
    text = printable(message) if path is None else f"{shown(path)}: {printable(message)}"
    warnings.warn(text, TracekitWarning, stacklevel=3)


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path as text that can be printed, whatever bytes its name has."""
    return printable(os.fsencode(path).decode("utf-8", "replace"))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its kind if it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)
