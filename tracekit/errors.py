"""The errors and warnings that tracekit raises.

.. code-block:: text

    TracekitError
     ├─ UnknownFormatError (ValueError)      no reader recognizes the file, or a name or option is unknown
     ├─ UnsupportedVersionError              the format is supported, but not this version of it
     ├─ CorruptTraceError (ValueError)       the file violates its own format; has .path .table .row
     ├─ SchemaError (TypeError)              a table or column does not exist, or is not as declared
     ├─ MissingTableError (LookupError)      the operation needs data that the capture does not contain
     ├─ PluginError                          a function of a plug-in failed
     └─ ExportError                          target exists or cannot be written, or its format cannot hold the trace
    TracekitWarning (UserWarning)            rows skipped, plug-in skipped, newer schema version

A message has the form ``PATH: what is wrong``, followed by a second line ``Hint: what to do`` if there is a remedy.
"""

from __future__ import annotations

import contextlib
import copyreg
import os
import warnings
from typing import TYPE_CHECKING, Any

from tracekit.text import to_printable
from tracekit.text.urls import is_url, remove_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_issued: list[None] = []
"""One element per warning, because appending to a list is atomic."""
_shown_paths: dict[str, str] = {}
"""What messages show instead of a path, such as the URL of a file instead of its temporary copy."""


class TracekitError(Exception):
    """Base class of all errors that tracekit raises on purpose.

    Attributes:
        message: What is wrong, without the path. Control characters are escaped.
        path: The file or folder that the error is about.
        hint: What the user can do. None if there is no remedy.
    """

    def __init__(self, message: str, *, path: str | os.PathLike[str] | None = None, hint: str | None = None) -> None:
        self.path = None if path is None else os.fspath(path)
        if self.path is not None and is_url(self.path):
            self.path = remove_secrets(self.path)
        self.message = to_printable(remove_secrets(message))
        self.hint = None if hint is None else to_printable(remove_secrets(hint))
        text = self.message if path is None else f"{convert_to_printable_path(path)}: {self.message}"
        super().__init__(text if hint is None else f"{text}\nHint: {self.hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UnknownFormatError(TracekitError, ValueError):
    """A file has an unknown format, or an argument is an unknown name or an invalid value.

    Names are those of readers, exporters, reports, rules, recipes, dialects, data models and options. Values are those
    of options.
    """


class UnsupportedVersionError(TracekitError):
    """A file has a supported format, but an unsupported version of this format."""


class CorruptTraceError(TracekitError, ValueError):
    """A file violates its own format.

    Attributes:
        table: Name of the table that contains the error. None if unknown.
        row: Row number of the error in the table. None if unknown.
    """

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
        location = "" if table is None else f"table {table}: " if row is None else f"table {table}, row {row}: "
        super().__init__(location + message, path=path, hint=hint)


class SchemaError(TracekitError, TypeError):
    """A table or column does not exist, or a reader returned a table that does not match its declaration."""


class MissingTableError(TracekitError, LookupError):
    """An operation needs data that the capture does not contain."""


class ExportError(TracekitError):
    """The target of an export exists or cannot be written, or its format cannot hold the trace."""


class PluginError(TracekitError):
    """A function of a plug-in raised an exception, which is the cause of this error. The message names the plug-in."""


class TracekitWarning(UserWarning):
    """Data was skipped, repaired or not understood. The message states which data and how much."""


def create_choices_hint(
    plural_noun: str, known_names: Iterable[str], unknown_name: str, *, quoted: bool = False
) -> str:
    """Return a hint that suggests the name that was probably meant by an unknown name, and lists known names.

    At most ten names are listed.

    Args:
        plural_noun: Plural noun for the names, such as ``tables``.
        known_names: The known names.
        unknown_name: The unknown name.
        quoted: Whether to quote the names, which is needed if they may be empty.
    """
    from tracekit.text import choices

    return choices.create_hint(plural_noun, known_names, unknown_name, quoted=quoted)


def format_count(
    number: int, noun: str, rest: str = "", rest_of_one: str | None = None, *, plural: str | None = None
) -> str:
    """Format a number of things, such as ``1 event`` and ``1,234 events``, and what follows in the same number.

    Args:
        number: The number.
        noun: The noun in the singular.
        rest: What follows the noun in the plural, such as ``do not match``.
        rest_of_one: What follows it in the singular, such as ``does not match``, if it differs.
        plural: The noun in the plural, if it has not only a further s.
    """
    shown = f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
    follows = rest_of_one if number == 1 and rest_of_one is not None else rest
    return f"{shown} {follows}" if follows else shown


def warn(message: str, *, path: str | os.PathLike[str] | None = None) -> None:
    """Issue a ``TracekitWarning``. If a path is passed, the message begins with the path."""
    text = to_printable(remove_secrets(message))
    text = text if path is None else f"{convert_to_printable_path(path)}: {text}"
    _issued.append(None)
    warnings.warn(text, TracekitWarning, stacklevel=3)


@contextlib.contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect the texts of the warnings that are shown in a ``with`` statement. They are shown nevertheless."""
    texts: list[str] = []
    show = warnings.showwarning

    def collect(message: Warning | str, *arguments: Any, **others: Any) -> None:
        texts.append(remove_secrets(str(message)))
        show(message, *arguments, **others)

    with warnings.catch_warnings():
        warnings.showwarning = collect
        yield texts


def count_warnings() -> int:
    """Return how many warnings ``warn`` has issued in this process, including those that filters suppress."""
    return len(_issued)


def convert_to_printable_path(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as printable text, without the password, the query string and the fragment of a URL.

    Bytes that are not valid UTF-8 are replaced with U+FFFD.
    """
    shown = _shown_paths.get(os.fsdecode(path), path)
    return to_printable(remove_secrets(os.fsencode(shown).decode("utf-8", "replace")))


@contextlib.contextmanager
def show_path_as(path: str | os.PathLike[str], shown: str) -> Iterator[None]:
    """Return a context manager in which messages show another text instead of a path."""
    text = os.fsdecode(path)
    _shown_paths[text] = shown
    try:
        yield
    finally:
        _shown_paths.pop(text, None)


def get_first_line_of_message(error: BaseException) -> str:
    """Return the first line of the message of an error, or the name of its class if the message is empty."""
    return next(iter(str(error).splitlines()), type(error).__name__)
