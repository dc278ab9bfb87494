"""List files on other machines and in object stores with fsspec, and download them to temporary files."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from tracekit.errors import TracekitError, get_first_line_of_message
from tracekit.targets.workspaces import create_workspace

if TYPE_CHECKING:
    from collections.abc import Iterator

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # a scheme has at least two characters: C:// is a drive of Windows
_CHUNK_BYTES = 1 << 23
_MAX_FILES = 1 << 20
_PATTERN = re.compile(r"[*?\[]")


def is_url(path: object) -> bool:
    """Return whether a path is a URL, which begins with a scheme, such as ``s3://bucket/report.nsys-rep``."""
    return isinstance(path, str) and _URL.match(path) is not None


def remove_secrets(url: str) -> str:
    """Return a URL for messages, without its user name, password and query string, which may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def convert_url_to_path(url: str) -> Path:
    """Return an absolute path that consists of the host and the path of a URL. No file needs to exist at this path."""
    parts = urlsplit(url)
    return Path("/", parts.netloc.rpartition("@")[2], parts.path.lstrip("/"))


def convert_file_url_to_path(path_or_url: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Convert a URL with the scheme ``file`` to a path. Return any other path or URL unchanged."""
    if isinstance(path_or_url, str) and path_or_url.startswith("file://"):
        from urllib.request import url2pathname

        return url2pathname(urlsplit(path_or_url).path)
    return path_or_url


class Listing(NamedTuple):
    """The files and folders that a URL refers to.

    Attributes:
        files: Sorted URLs of the files.
        folders: Sorted URLs of the folders inside the folder, or of the folders that match the pattern.
        is_folder: Whether the URL is that of a folder.
    """

    files: list[str]
    folders: list[str]
    is_folder: bool = False


def list_url(url: str) -> Listing:
    """Return the URLs of the files that a URL refers to: a file, the files in a folder, or the matches of a pattern.

    The result is empty if a folder is empty or no file matches a pattern.

    Args:
        url: URL of a file, of a folder, or of a pattern such as ``*.gz``.

    Raises:
        TracekitError: More than 1,048,576 files match, or the storage cannot be read.
        FileNotFoundError: The file or folder does not exist.
    """
    with _convert_fsspec_errors(url):
        system, path = _find_file_system_and_path(url)
        is_pattern = _PATTERN.search(path) is not None
        if is_pattern:
            entries = list(system.glob(path, detail=True).values())
        elif system.isdir(path):
            entries = [e for e in system.ls(path, detail=True) if e["name"].rstrip("/") != path.rstrip("/")]
        else:
            return Listing([url], [])
        urls: dict[bool, list[str]] = {True: [], False: []}
        for entry in entries:
            urls[entry["type"] == "directory"].append(system.unstrip_protocol(entry["name"]))
    if len(entries) > _MAX_FILES:
        hint = "use a pattern that matches fewer files"
        raise TracekitError(f"more than {_MAX_FILES:,} files match this URL", path=remove_secrets(url), hint=hint)
    return Listing(sorted(urls[False]), sorted(urls[True]), is_folder=not is_pattern)


@contextlib.contextmanager
def download(url: str, *, expected_size: int | None = None) -> Iterator[Path]:
    """Download a file to a temporary folder, which is deleted when the context ends or a signal ends the program.

    Args:
        url: The URL of the file.
        expected_size: Size that the file must have in bytes. None if it is not known.

    Yields:
        The path of the copy, which has the name of the file.

    Raises:
        TracekitError: The file cannot be read, does not fit on the disk, or has another size.
        FileNotFoundError: The file does not exist.
    """
    import tempfile

    folder = Path(tempfile.gettempdir())
    with create_workspace(folder) as temporary:
        copy = temporary / (convert_url_to_path(url).name or "file")
        with _convert_fsspec_errors(url):
            _download_file(url, copy, expected_size, shutil.disk_usage(folder).free)
        yield copy


def _download_file(url: str, copy: Path, expected_size: int | None, free_bytes: int) -> None:
    """Download the file at a URL to ``copy``.

    Args:
        url: The URL.
        copy: The file to write.
        expected_size: Size that the file must have in bytes. None if it is not known.
        free_bytes: Free space of the disk in bytes. If the storage does not report the size of the file, at most this
            number of bytes is written.
    """
    system, path = _find_file_system_and_path(url)
    if system.isdir(path):
        raise TracekitError("this is a folder, not a file", path=remove_secrets(url), hint="open it with load_many")
    known = system.size(path)
    if expected_size is not None and known is not None and known != expected_size:
        raise _create_size_changed_error(url)
    limit = free_bytes if known is None else known
    if limit > free_bytes:
        message = f"the file has {known:,} bytes, but only {free_bytes:,} are free for temporary files"
        raise TracekitError(message, path=remove_secrets(url), hint="set TMPDIR to a folder on a larger disk")
    left = limit
    with system.open(path, "rb") as source, copy.open("xb") as target:
        while block := source.read(min(_CHUNK_BYTES, left + 1)):
            left -= len(block)
            if left < 0:
                break
            target.write(block)
    if left < 0 or (known is not None and left):
        raise _create_size_changed_error(url)


def _create_size_changed_error(url: str) -> TracekitError:
    hint = "wait until it is written completely, then load it again"
    return TracekitError("the size of the file changed while it was read", path=remove_secrets(url), hint=hint)


def _find_file_system_and_path(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path of the file in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as e:
        message = "reading this path needs the package fsspec"
        raise TracekitError(message, path=remove_secrets(url), hint="pip install fsspec") from e
    opened: tuple[Any, str] = url_to_fs(url)
    return opened


@contextlib.contextmanager
def _convert_fsspec_errors(url: str) -> Iterator[None]:
    """Return a context manager that converts errors of fsspec, except ``FileNotFoundError``, to ``TracekitError``.

    Secrets are removed from the URL in error messages.
    """
    try:
        yield
    except TracekitError:
        raise
    except FileNotFoundError:
        raise FileNotFoundError(2, os.strerror(2), remove_secrets(url)) from None
    except ImportError as e:
        message = f"reading this path needs another package: {get_first_line_of_message(e)}"
        raise TracekitError(message, path=remove_secrets(url), hint="install the package that the message names") from e
    except Exception as e:
        # Storage services raise exceptions of their own. Their texts may contain credentials.
        reason = get_first_line_of_message(e) if isinstance(e, OSError | ValueError) else type(e).__name__
        raise TracekitError(f"the storage cannot be read: {reason}", path=remove_secrets(url)) from e
