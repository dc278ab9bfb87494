"""Read the tables of a trace from a remote file, which is downloaded to a temporary file."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tracekit import registry
from tracekit.errors import TracekitError, show_path_as
from tracekit.plan.sources import OpenedFile
from tracekit.registry import detection
from tracekit.registry.interface import TemporaryCapture
from tracekit.registry.source import Source
from tracekit.system import remote
from tracekit.system.files import FileState
from tracekit.text.urls import remove_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracekit.registry.interface import Capture, LaunchMetadata, Undecoded
    from tracekit.system.files import Input


_HASHED_BYTES = 1 << 18
"""Number of bytes at each end of a file by which a changed file is detected."""


class RemoteCapture(TemporaryCapture):
    """A capture that reads the temporary copy of a remote file. Its errors name the remote file, not the copy."""

    def __init__(self, capture: Capture, temporary: contextlib.ExitStack, copy: Path, url: str) -> None:
        super().__init__(capture, temporary)
        self._copy = copy
        self._url = url

    def count_many(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the number of rows of each table in ``names``, by table name."""
        with _replace_path_in_errors(self._url, self._copy):
            return super().count_many(names)

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> Mapping[str, pa.Table]:
        """Return the requested columns of several tables, by table name."""
        with _replace_path_in_errors(self._url, self._copy):
            return super().read_many(columns)

    def count_undecoded(self) -> Mapping[str, int | Undecoded]:
        """Return the number of events that are in no declared table, by class of event, such as ``memory map``."""
        with _replace_path_in_errors(self._url, self._copy):
            return super().count_undecoded()

    def read_launch_metadata(self) -> LaunchMetadata:
        """Return what the file records about the launch of the profiled program: rank variables and the host."""
        with _replace_path_in_errors(self._url, self._copy):
            return super().read_launch_metadata()


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A remote file that contains the tables of a trace. A process that opens the file downloads it first.

    Attributes:
        url: The URL of the file. It may contain a password, so the representation of the object omits it.
        format: Name of the format, which selects the reader.
        via: Name of the program that exports the file before it is read. None if the reader opens it directly.
        state: Size of the file when it was loaded, and digest of its first and last bytes, which shows most changes.
    """

    url: str = field(repr=False)
    format: str
    via: str | None
    state: FileState
    inputs: ClassVar[tuple[Input, ...]] = ()
    can_reopen: ClassVar[bool] = True

    @property
    def path(self) -> Path:
        """An absolute path that consists of the host and the path of the URL. No local file needs to exist there."""
        return remote.convert_url_to_path(self.url)

    def open(self) -> RemoteCapture:
        """Download the remote file again, and open it.

        Raises:
            TracekitError: The size of the file has changed since it was loaded, or the file cannot be read.
            FileNotFoundError: The file does not exist.
        """
        return open_remote(self.url, self.format, self.via, expected=self.state)[1]


def open_remote(
    url: str,
    format: str | None = None,  # noqa: A002
    via: str | None = None,
    *,
    expected: FileState | None = None,
    kept_copy: remote.KeptCopy | None = None,
) -> tuple[RemoteFile, RemoteCapture]:
    """Download a remote file to a temporary file, and open the copy.

    Args:
        url: The URL of the file.
        format: Name of the format. If None, it is detected from the content.
        via: Name of the program that exports the file before it is read. If None, the reader opens the file directly.
        expected: Size and digest that the file must have. If None, they are not checked.
        kept_copy: The copy of an earlier download, which is used instead of a new one. If there is none, the new copy
            is kept there, instead of being deleted when the capture is closed.

    Returns:
        The remote file, and its opened capture. Closing the capture deletes the temporary file.

    Raises:
        UnknownFormatError: ``format`` is unknown, or no reader recognizes the file.
        TracekitError: The file cannot be read, or it is not as ``expected``.
        FileNotFoundError: The file does not exist.
    """
    with contextlib.ExitStack() as temporary:
        check_start = partial(_check_format, url) if format is None else None
        copy = None if kept_copy is None else kept_copy.get_path()
        if copy is None:
            download = remote.download(
                url, expected_size=None if expected is None else expected.size, check_start=check_start
            )
            copy = temporary.enter_context(download)
            if kept_copy is not None:
                copy = kept_copy.keep(copy, temporary)
        temporary.callback(id, kept_copy)  # the capture keeps a reference to the object that deletes the copy
        temporary.enter_context(show_path_as(copy, url))
        with _replace_path_in_errors(url, copy):
            source = Source(copy)
            state = FileState(0, 0, source.size, 0, digest=_hash_ends(source))
            if expected is not None and not state.has_same_content(expected):
                raise TracekitError("the file has changed since it was loaded", path=copy, hint="load it again")
            reader = detection.detect_reader(source) if format is None else registry.reader(format)
            opened = OpenedFile.from_source(source, reader, via)
            capture = opened.open_unchecked(opened.create_reader(source), source)
        origin = RemoteFile(url, opened.format, via, state)
        return origin, RemoteCapture(capture, temporary.pop_all(), copy, url)


def _hash_ends(source: Source) -> str:
    """Return a hash of the first and last bytes of a file."""
    with source.open() as file:
        size = min(_HASHED_BYTES, file.size)
        ends = file.read(0, size) + file.read(file.size - size, size)
    return hashlib.blake2b(ends, digest_size=16).hexdigest()


def _check_format(url: str, copy: Path) -> None:
    """Check that a reader recognizes the start of a file.

    Raises:
        UnknownFormatError: No reader recognizes it.
    """
    with _replace_path_in_errors(url, copy):
        detection.detect_reader(Source(copy))


@contextlib.contextmanager
def _replace_path_in_errors(url: str, copy: Path) -> Iterator[None]:
    """Replace the path of the temporary copy with the URL, without secrets, in errors raised in the ``with`` block."""
    try:
        with show_path_as(copy, url):
            yield
    except TracekitError as e:
        if e.path == str(copy):
            e.path = remove_secrets(url)
        raise
