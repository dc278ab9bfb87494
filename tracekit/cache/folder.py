"""The folder in which columns of captures are cached.

The folder has one subfolder per version of tracekit, and each subfolder has one entry per capture. An entry is a folder
of files that are written atomically. An entry can be deleted while another process reads it, because memory-mapped
files stay readable.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import platformdirs

from tracekit import memory
from tracekit.cache.identity import FileStatus, compute_content_digest, compute_reader_version, hash_path
from tracekit.errors import TracekitError
from tracekit.targets.workspaces import create_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

FOLDER = "TRACEKIT_CACHE_DIR"
LIMIT = "TRACEKIT_CACHE_SIZE"
DEFAULT_LIMIT = 10 << 30
"""Maximum size of the cache in bytes, unless the environment variable ``TRACEKIT_CACHE_SIZE`` is set."""
_FREE_SHARE = 20
"""Reciprocal of the share of the disk that stays free: 20 means 5 %."""
_RELEASE_BYTES = 64 << 20
"""Number of bytes after which pages of columns that were written are dropped from memory."""
_KNOWN, _SOURCE, _METADATA = "known", "source.json", "metadata.json"
_COLUMNS_SUFFIX = ".columns"
_DIGITS = 16
_MODE = 0o700


class Entry(NamedTuple):
    """The stored columns of one capture.

    Attributes:
        folder: Folder that contains the columns.
        path: Path of the capture when its columns were stored.
        format: Format of the capture.
        bytes: Size of the stored columns in bytes.
        used: Time of the last use in seconds since 1970.
        is_current: Whether this version of tracekit stored the columns. Other versions cannot use them.
    """

    folder: Path
    path: str
    format: str
    bytes: int
    used: float
    is_current: bool


class CacheFolder:
    """The folder in which the cache stores columns.

    Attributes:
        root: The folder. It is created when something is stored.
        limit: Maximum size of all entries in bytes. If they exceed it, the least recently used entries are deleted.
    """

    def __init__(self, root: Path | None = None, limit: int | None = None) -> None:
        """Choose the folder and the size limit of the cache.

        Args:
            root: The folder. If None, ``TRACEKIT_CACHE_DIR`` or the cache folder of the user is used.
            limit: Maximum size in bytes. If None, ``TRACEKIT_CACHE_SIZE`` or ``DEFAULT_LIMIT`` is used.

        Raises:
            TracekitError: An environment variable has an invalid value.
        """
        self.root = root or Path(os.environ.get(FOLDER) or platformdirs.user_cache_path("tracekit", appauthor=False))
        self.limit = _read_size_limit() if limit is None else limit
        self._versions = self.root / "v1"
        self._current = self._versions / compute_reader_version()

    def read_stored_digest(self, path: Path) -> str | None:
        """Return the stored digest of a file.

        Return None if no digest is stored, or if the file has changed since its digest was stored.
        """
        try:
            status = FileStatus.from_path(path)
            known = json.loads((self._build_digest_path(path)).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        is_same = isinstance(known, dict) and known.get("status") == status.to_list() and status.is_settled
        return str(known["digest"]) if is_same and "digest" in known else None

    def compute_digest(self, path: Path) -> str | None:
        """Return the digest of a file, or None if the file changes while it is read or cannot be read.

        The digest is stored, unless the file was changed so recently that another change might go unnoticed.
        """
        with contextlib.suppress(OSError):
            status = FileStatus.from_path(path)
            is_settled = status.is_settled
            digest = compute_content_digest(path)
            if digest is not None and FileStatus.from_path(path) == status:
                if is_settled:
                    text = json.dumps({"status": status.to_list(), "digest": digest})
                    self._write_file(self._build_digest_path(path), lambda new: new.write_text(text, "utf-8"))
                return digest
        return None

    def may_have_entry(self, path: Path, format_name: str) -> bool:
        """Return whether the cache has an entry for any file of this format that has the size of the file ``path``."""
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            return any(self._current.glob(f"{format_name}-{size}-*"))
        return False

    def build_entry_path(self, path: Path, format_name: str, digest: str) -> Path:
        """Return the path of the entry of a capture. The folder exists only if something was stored in it."""
        return self._current / f"{format_name}-{path.stat().st_size}-{digest}"

    def mark_used(self, folder: Path) -> None:
        """Set the time of the last use of an entry to the current time."""
        with contextlib.suppress(OSError):
            os.utime(folder)

    def read_metadata(self, folder: Path) -> dict[str, Any]:
        """Return the metadata that is stored in an entry, or an empty dictionary if none is stored."""
        try:
            metadata = json.loads((folder / _METADATA).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return metadata if isinstance(metadata, dict) else {}

    def store_metadata(self, folder: Path, metadata: dict[str, Any]) -> None:
        """Store the metadata of a capture as JSON in the entry of the capture."""
        self._write_file(folder / _METADATA, lambda new: new.write_text(json.dumps(metadata), "utf-8"))

    def read_columns(self, folder: Path, table_name: str, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Return those of the requested columns of a table that an entry contains, by name. They are memory-mapped."""
        import pyarrow as pa

        chunked: dict[str, pa.ChunkedArray] = {}
        for path in sorted(folder.glob(f"{table_name}.*{_COLUMNS_SUFFIX}")):
            with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                stored = _memory_map_columns(path, [name for name in columns if name not in chunked])
                chunked |= dict(zip(stored.column_names, stored.columns, strict=True))
        return chunked

    def store_columns(self, folder: Path, table_name: str, columns: pa.Table) -> None:
        """Store columns of a table in one file of an entry. Do nothing if there is too little space."""
        if self._has_space(columns.nbytes):
            key = hashlib.sha256(" ".join(columns.column_names).encode()).hexdigest()[:_DIGITS]
            self._write_file(folder / f"{table_name}.{key}{_COLUMNS_SUFFIX}", lambda new: _write_columns(columns, new))

    def store_path_and_format(self, folder: Path, path: Path, format_name: str) -> None:
        """Store the path and the format of a capture in its entry, unless they are already stored."""
        if not (folder / _SOURCE).exists():
            text = json.dumps({"path": str(path.resolve()), "format": format_name})
            self._write_file(folder / _SOURCE, lambda new: new.write_text(text, "utf-8"))

    def list_entries(self) -> list[Entry]:
        """Return the entries of all versions of tracekit, in descending order of the time of their last use."""
        entries = [
            entry for folder in _list_subfolders(self._versions) for entry in self._list_entries_of_version(folder)
        ]
        return sorted(entries, key=lambda entry: entry.used, reverse=True)

    def delete_excess_entries(self) -> None:
        """Delete the least recently used entries until the size of the cache is within its limit."""
        total = 0
        for entry in self.list_entries():
            total += entry.bytes
            if total > self.limit:
                shutil.rmtree(entry.folder, ignore_errors=True)

    def delete_entries(self) -> list[Entry]:
        """Delete all entries and digests, and return the deleted entries."""
        entries = self.list_entries()
        shutil.rmtree(self._versions, ignore_errors=True)
        shutil.rmtree(self.root / _KNOWN, ignore_errors=True)
        return entries

    def _build_digest_path(self, path: Path) -> Path:
        """Return the path of the file that stores the digest of a capture."""
        return self.root / _KNOWN / f"{hash_path(path)}.json"

    def _has_space(self, size_bytes: int) -> bool:
        """Return whether ``size_bytes`` bytes are within the limit of the cache and leave 5 % of the disk free."""
        try:
            self.root.mkdir(_MODE, parents=True, exist_ok=True)
            disk = shutil.disk_usage(self.root)
        except OSError:
            return False
        return size_bytes <= self.limit and disk.free - size_bytes > disk.total // _FREE_SHARE

    def _write_file(self, target: Path, write_content: Callable[[Path], object]) -> None:
        """Write a file of the cache atomically. Errors of the operating system are ignored."""
        with contextlib.suppress(OSError):
            self.root.mkdir(_MODE, parents=True, exist_ok=True)
            with create_workspace(self.root) as temporary:
                new = temporary / "new"
                write_content(new)
                _flush_to_disk(new)
                target.parent.mkdir(_MODE, parents=True, exist_ok=True)
                new.replace(target)

    def _list_entries_of_version(self, version: Path) -> Iterator[Entry]:
        """Yield the entries in the folder of one version of tracekit."""
        for folder in _list_subfolders(version):
            with contextlib.suppress(OSError, ValueError):
                source = json.loads((folder / _SOURCE).read_text("utf-8"))
                size = sum(file.stat().st_size for file in folder.iterdir())
                used, is_current = folder.stat().st_mtime, version == self._current
                path, format_name = (str(source.get(name, "")) for name in ("path", "format"))
                yield Entry(folder, path, format_name, size, used, is_current)


def _read_size_limit() -> int:
    """Return the size limit of the cache in bytes: ``TRACEKIT_CACHE_SIZE`` if that variable is set, or the default."""
    text = os.environ.get(LIMIT, "")
    if text and not (text.isascii() and text.isdecimal()):
        raise TracekitError(
            f"the environment variable {LIMIT} has the invalid value {text!r}", hint="set it to a number of bytes"
        )
    return int(text) if text else DEFAULT_LIMIT


def _write_columns(columns: pa.Table, path: Path) -> None:
    """Write columns to a file as an Arrow IPC stream, in which each record batch may have different dictionaries."""
    import pyarrow as pa

    written = 0
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, columns.schema) as stream:
        for batch in columns.to_batches():
            stream.write_batch(batch)
            written += batch.nbytes
            if written >= _RELEASE_BYTES:
                memory.release_pages()
                written = 0


def _memory_map_columns(path: Path, columns: Sequence[str]) -> pa.Table:
    """Memory-map a file of stored columns, and return those of the requested columns that the file contains."""
    import pyarrow as pa

    with pa.ipc.open_stream(memory.map_file_into_memory(path.open("rb"))) as stream:
        names = [name for name in columns if name in stream.schema.names]
        return (stream.read_all() if names else stream.schema.empty_table()).select(names)


def _flush_to_disk(path: Path) -> None:
    """Flush a file to the disk, so that a crash of the system cannot leave an incomplete file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _list_subfolders(parent: Path) -> Iterable[Path]:
    """Return the sorted subfolders of a folder. The result is empty if the folder cannot be read."""
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except OSError:
        return ()
