"""The folder in which columns of captures are cached.

The folder has one subfolder per version of tracekit, and each subfolder has one entry per capture. An entry is a folder
of files that are written atomically and sealed (``seal``). Only files are used or deleted whose seal proves that
tracekit wrote them, because ``TRACEKIT_CACHE_DIR`` may name a folder that also contains files of the user. An entry can
be deleted while another process reads it, because memory-mapped files stay readable.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import platformdirs

from tracekit.errors import TracekitError, convert_to_printable_path, warn
from tracekit.plan.cache import seal
from tracekit.plan.cache.identity import compute_content_digest, compute_reader_version, hash_path
from tracekit.system import memory
from tracekit.system.files import FileState
from tracekit.system.targets import create_workspace, deletion
from tracekit.system.targets.rename import rename_without_replacing, replace_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

FOLDER = "TRACEKIT_CACHE_DIR"
LIMIT = "TRACEKIT_CACHE_SIZE"
DEFAULT_LIMIT = 10 << 30
"""Maximum size of the cache in bytes, unless the environment variable ``TRACEKIT_CACHE_SIZE`` is set."""
_FREE_SHARE = 20
"""Reciprocal of the share of the disk that stays free: 20 means 5 %."""
_RELEASE_BYTES = 64 << 20
"""Number of bytes after which pages of columns that were written are dropped from memory."""
_VERSIONS, _KNOWN, _SOURCE, _METADATA = "v1", "known", "source.json", "metadata.json"
_COLUMNS_SUFFIX = ".columns"
_DIGITS = 16
_MODE, _FILE_MODE = 0o700, 0o600
_VERSION_NAME = re.compile(r"[0-9a-z]{1,32}")
_ENTRY_NAME = re.compile(r"[a-z0-9-]+-[0-9]+-[0-9a-f]{32}")
_MAX_JSON_BYTES = 1 << 20
_MAX_NAMES = 8
"""Number of names that are tried for a file if files that tracekit did not write have the first names."""
_reported: set[Path] = set()
"""Folders that are not used because other users can write to them, and that a warning has named."""
_LOGGER = logging.getLogger(__name__)


class CacheEntry(NamedTuple):
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
        self._versions = self.root / _VERSIONS
        self._current = self._versions / compute_reader_version()

    def read_stored_digest(self, path: Path) -> str | None:
        """Return the stored digest of a file.

        Return None if no digest is stored, or if the file has changed since its digest was stored.
        """
        try:
            state = FileState.read(path)
        except OSError:
            return None
        known = self._read_json(self._build_digest_path(path))
        is_same = known.get("status") == _convert_to_list(state) and state.is_settled
        return str(known["digest"]) if is_same and "digest" in known else None

    def compute_digest(self, path: Path) -> str | None:
        """Return the digest of a file, or None if the file changes while it is read or cannot be read.

        The digest is stored, unless the file was changed so recently that another change might go unnoticed.
        """
        with contextlib.suppress(OSError):
            state = FileState.read(path)
            is_settled = state.is_settled
            digest = compute_content_digest(path)
            if digest is not None and state.is_identical(FileState.read(path)):
                if is_settled:
                    text = json.dumps({"status": _convert_to_list(state), "digest": digest})
                    self._write_file(self._build_digest_path(path), lambda new: _append_text(text, new))
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
            if self._is_private(folder):
                os.utime(folder)

    def read_metadata(self, folder: Path) -> dict[str, Any]:
        """Return the metadata that is stored in an entry, or an empty dictionary if none is stored or it is damaged."""
        return self._read_json(folder / _METADATA)

    def store_metadata(self, folder: Path, metadata: dict[str, Any]) -> None:
        """Store the metadata of a capture as JSON in the entry of the capture."""
        self._write_file(folder / _METADATA, lambda new: _append_text(json.dumps(metadata), new))

    def read_columns(self, folder: Path, table_name: str, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Return those of the requested columns of a table that an entry contains, by name. They are memory-mapped."""
        import pyarrow as pa

        chunked: dict[str, pa.ChunkedArray] = {}
        for path in sorted(folder.glob(f"{table_name}.*{_COLUMNS_SUFFIX}")) if self._is_private(folder) else ():
            with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                names = [name for name in columns if name not in chunked]
                stored = self._map_columns(path, names) if names else None
                chunked |= dict(zip(stored.column_names, stored.columns, strict=True)) if stored is not None else {}
        return chunked

    def store_columns(self, folder: Path, table_name: str, columns: pa.Table) -> None:
        """Store columns of a table in one file of an entry. Do nothing if there is too little space."""
        if self._has_space(columns.nbytes):
            key = hashlib.sha256(" ".join(columns.column_names).encode()).hexdigest()[:_DIGITS]
            self._write_file(folder / f"{table_name}.{key}{_COLUMNS_SUFFIX}", lambda new: _append_columns(columns, new))

    def store_path_and_format(self, folder: Path, path: Path, format_name: str) -> None:
        """Store the path and the format of a capture in its entry, unless they are already stored."""
        if not self._read_json(folder / _SOURCE):
            text = json.dumps({"path": str(path.resolve()), "format": format_name})
            self._write_file(folder / _SOURCE, lambda new: _append_text(text, new))

    def list_entries(self) -> list[CacheEntry]:
        """Return the entries of all versions of tracekit, in descending order of the time of their last use."""
        entries = [entry for folder in self._list_entry_folders() if (entry := self._create_entry(folder)) is not None]
        return sorted(entries, key=lambda entry: entry.used, reverse=True)

    def delete_excess_entries(self) -> None:
        """Delete the least recently used entries until the size of the cache is within its limit."""
        total = 0
        for entry in self.list_entries():
            total += entry.bytes
            if total > self.limit:
                self._delete_files(entry.folder)

    def delete_entries(self) -> list[CacheEntry]:
        """Delete all entries and digests, and return the deleted entries.

        Files that tracekit cannot prove to have written stay. A warning counts those that are in entries.
        """
        entries = self.list_entries()
        left = sum(map(self._delete_files, self._list_entry_folders()))
        if not (known := self.root / _KNOWN).is_symlink():
            self._delete_files(known, is_entry=False)
        if left:
            reason = "tracekit cannot prove that it wrote them"
            warn(f"{left} files and folders in the cache were not deleted, because {reason}", path=self._versions)
        return entries

    def _delete_files(self, folder: Path, *, is_entry: bool = True) -> int:
        """Delete the files of a folder that tracekit wrote, and return the number of other files.

        Args:
            folder: An entry, or the folder of the digests.
            is_entry: Whether the folder and the folder of its version are also deleted if they are empty.
        """
        left = 0
        for path in _list_folder(folder):
            if (sealed := self._open_sealed(path, must_be_private=False)) is None:
                left += 1
            else:
                sealed.file.close()
                deletion.delete(path, sealed.state)
        if is_entry:
            deletion.delete_empty_folder(folder)
            deletion.delete_empty_folder(folder.parent)
        return left

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

    def _write_file(self, target: Path, append_content: Callable[[Path], object]) -> None:
        """Write a sealed file of the cache atomically. Errors of the operating system are ignored.

        A file that tracekit did not write is not replaced. A file of columns then gets another name.
        """
        with contextlib.suppress(OSError):
            self.root.mkdir(_MODE, parents=True, exist_ok=True)
            if not self._create_private_folder(target.parent):
                return
            with create_workspace(self.root) as temporary:
                names = [target, *(target.with_suffix(f".{n}{_COLUMNS_SUFFIX}") for n in range(1, _MAX_NAMES))]
                for path in names if target.suffix == _COLUMNS_SUFFIX else [target]:
                    if (old := self._open_sealed(path, must_be_private=False)) is not None:
                        old.file.close()
                    elif os.path.lexists(path):
                        continue
                    new = temporary / "new"
                    new.write_bytes(seal.create_header(self._get_place(path)))
                    append_content(new)
                    new.chmod(_FILE_MODE)
                    seal.append_trailer(new, self._get_place(path))
                    if old is None:
                        rename_without_replacing(new, path)
                    else:
                        replace_path(new, path, old.state, temporary / "old" / path.name)
                    return

    def _create_private_folder(self, folder: Path) -> bool:
        """Create a folder of the cache, and return whether only this user can write to it and to its parents."""
        created = [parent for parent in (folder, *folder.parents) if self.root in parent.parents]
        for path in reversed(created):
            path.mkdir(_MODE, exist_ok=True)
        return self._is_private(folder)

    def _is_private(self, folder: Path) -> bool:
        """Return whether only this user can write to a folder of the cache and to its parents in the cache.

        If another user can write to an existing folder, a warning is issued once per process.
        """
        for path in (folder, *folder.parents):
            if path == self.root:
                return True
            with contextlib.suppress(OSError):
                status = path.lstat()
                if stat.S_ISDIR(status.st_mode) and seal.is_private(status):
                    continue
                if path not in _reported:
                    _reported.add(path)
                    warn(
                        "this folder of the cache is not used, because it is a link, or another user owns it or can "
                        "write to it; allow only yourself to write to it, or set TRACEKIT_CACHE_DIR to another folder",
                        path=path,
                    )
            return False
        return False

    def _map_columns(self, path: Path, columns: Sequence[str]) -> pa.Table | None:
        """Memory-map the requested columns of a file of the cache. Return None if the file cannot be used.

        A damaged file is deleted.
        """
        sealed = self._open_sealed(path)
        if sealed is None:
            return None
        if not seal.is_intact(sealed, self._get_place(path)):
            sealed.file.close()
            _LOGGER.debug("The file %s of the cache is damaged and is deleted", convert_to_printable_path(path))
            deletion.delete(path, sealed.state)
            return None
        return _select_columns(memory.map_file_into_memory(sealed.file).slice(seal.HEADER_BYTES, sealed.size), columns)

    def _read_json(self, path: Path) -> dict[str, Any]:
        """Return the JSON object in a file of the cache. Return an empty dictionary if the file cannot be used."""
        sealed = self._open_sealed(path) if self._is_private(path.parent) else None
        if sealed is None:
            return {}
        with sealed.file as file:
            if sealed.size > _MAX_JSON_BYTES or not seal.is_intact(sealed, self._get_place(path)):
                _LOGGER.debug("The file %s of the cache is damaged and is deleted", convert_to_printable_path(path))
                deletion.delete(path, sealed.state)
                return {}
            file.seek(seal.HEADER_BYTES)
            value = json.loads(file.read(sealed.size))
        return value if isinstance(value, dict) else {}

    def _open_sealed(self, path: Path, *, must_be_private: bool = True) -> seal.Sealed | None:
        """Open a file of the cache. Return None if it does not exist or if nothing proves that tracekit wrote it."""
        try:
            return seal.open_sealed(path, self._get_place(path), must_be_private=must_be_private)
        except FileNotFoundError:
            return None
        except (OSError, seal.NotSealedError) as e:
            _LOGGER.debug("The file %s of the cache is not used: %s", convert_to_printable_path(path), e)
            return None

    def _get_place(self, path: Path) -> str:
        """Return the path of a file relative to the cache folder."""
        return path.relative_to(self.root).as_posix()

    def _list_entry_folders(self) -> list[Path]:
        """Return the folders of the entries of all versions of tracekit. Links are not followed."""
        versions = _list_subfolders(self._versions, _VERSION_NAME) if not self._versions.is_symlink() else ()
        return [folder for version in versions for folder in _list_subfolders(version, _ENTRY_NAME)]

    def _create_entry(self, folder: Path) -> CacheEntry | None:
        """Return the entry in a folder. Return None if no file in the folder was written by tracekit."""
        size = 0
        for path in _list_folder(folder):
            if (sealed := self._open_sealed(path, must_be_private=False)) is not None:
                sealed.file.close()
                size += sealed.state.size
        if not size:
            return None
        source = self._read_json(folder / _SOURCE)
        path_text, format_name = (str(source.get(name, "")) for name in ("path", "format"))
        with contextlib.suppress(OSError):
            return CacheEntry(
                folder, path_text, format_name, size, folder.stat().st_mtime, folder.parent == self._current
            )
        return None


def _read_size_limit() -> int:
    """Return the size limit of the cache in bytes: ``TRACEKIT_CACHE_SIZE`` if that variable is set, or the default."""
    text = os.environ.get(LIMIT, "")
    if text and not (text.isascii() and text.isdecimal()):
        raise TracekitError(
            f"the environment variable {LIMIT} has the invalid value {text!r}", hint="set it to a number of bytes"
        )
    return int(text) if text else DEFAULT_LIMIT


def _convert_to_list(state: FileState) -> list[int]:
    """Return the attributes of a state that can change, for a file in JSON."""
    return [state.device, state.inode, state.size, state.modified_ns, state.changed_ns]


def _append_text(text: str, path: Path) -> None:
    """Append text to a file."""
    with path.open("ab") as file:
        file.write(text.encode())


def _append_columns(columns: pa.Table, path: Path) -> None:
    """Append columns to a file as an Arrow IPC stream, in which each record batch may have different dictionaries."""
    import pyarrow as pa

    written = 0
    with pa.OSFile(str(path), "ab") as file, pa.ipc.new_stream(file, columns.schema) as stream:
        for batch in columns.to_batches():
            stream.write_batch(batch)
            written += batch.nbytes
            if written >= _RELEASE_BYTES:
                memory.release_pages()
                written = 0


def _select_columns(content: pa.Buffer, columns: Sequence[str]) -> pa.Table:
    """Return those of the requested columns that the content of a file of columns contains."""
    import pyarrow as pa

    with pa.ipc.open_stream(content) as stream:
        names = [name for name in columns if name in stream.schema.names]
        return (stream.read_all() if names else stream.schema.empty_table()).select(names)


def _list_folder(folder: Path) -> list[Path]:
    """Return the sorted paths of everything in a folder. The result is empty if the folder cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _list_subfolders(parent: Path, name: re.Pattern[str]) -> list[Path]:
    """Return the sorted subfolders of a folder whose names match a pattern. Links are not followed."""
    return [
        path for path in _list_folder(parent) if name.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
    ]
