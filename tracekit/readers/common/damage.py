"""The internal exception for damaged files, and its conversion to the public error that names the file."""

from __future__ import annotations

import contextlib
import functools
import io
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tracekit.errors import CorruptTraceError, warn
from tracekit.registry.detection import create_report_hint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.system.files import InputFile

MAX_TRAILING_BYTES = 1 << 16
"""Maximum number of bytes after an end marker. If there are more, the file is not considered to be complete."""
Value = TypeVar("Value")
COPY_AGAIN = "copy the report again from where it was recorded, or record it again"


def find_end(file: InputFile, marker: bytes) -> int | None:
    """Return the offset of the end of the last end marker in a file, or None if the file has no marker near its end.

    A marker at the beginning of the file is not an end marker.
    """
    for count in (0, MAX_TRAILING_BYTES):
        start = max(1, file.size - len(marker) - count)
        index = file.read(start, max(0, file.size - start)).rfind(marker)
        if index >= 0:
            return start + index + len(marker)
    return None


def warn_about_trailing_bytes(path: Path, count: int) -> None:
    """Warn that the end of a complete file is followed by bytes that are ignored, unless their number is 0."""
    if not count:
        return
    ignored = "1 byte after its end is ignored" if count == 1 else f"{count:,} bytes after its end are ignored"
    warn(f"the file is complete, and {ignored}", path=path)


def open_native(file: InputFile, end: int) -> pa.NativeFile:
    """Open the bytes of a file before the offset ``end`` for pyarrow."""
    return pa.OSFile(file.native_path) if end == file.size else pa.PythonFile(_Beginning(file, end), mode="r")


class _Beginning(io.RawIOBase):
    """The beginning of a file, as a file object of Python."""

    def __init__(self, file: InputFile, size: int) -> None:
        super().__init__()
        self._file = file
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        start = min(self._position, self._size)
        data = self._file.read(start, self._size - start if size < 0 else min(size, self._size - start))
        self._position = start + len(data)
        return data


class Damage(Exception):  # noqa: N818 - never leaves the reader: ``convert_damage`` turns it into a CorruptTraceError
    """Raised if a file violates its format. The message describes the violation."""


def check_time_span(first: int, last: int) -> None:
    """Check that the time between two events fits into 64 bits.

    Raises:
        Damage: It does not.
    """
    if last - first >= 1 << 63:
        raise Damage(f"the events extend over {last - first:,} ns, which is more than 2^63 ns")


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
