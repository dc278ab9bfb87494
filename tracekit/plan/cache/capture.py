"""Read columns of a capture from the cache, or from the file of the capture if the cache lacks them."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracekit import errors, schemas
from tracekit.errors import TracekitError
from tracekit.registry.interface import Capture

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    import pyarrow as pa

    from tracekit.plan.cache.folder import CacheFolder
    from tracekit.registry.interface import LaunchMetadata, Undecoded

SWITCH = "TRACEKIT_CACHE"
FORMATS = ("nsys-rep", "nsys-sqlite", "kineto")
"""Formats whose files take long to read. Plug-ins are excluded, because a change of a plug-in would not be noticed."""
SMALLEST = 16 << 20
"""Minimum size of cached files in bytes. Smaller files can be read about as fast as their stored columns."""


def is_enabled(*, default: bool) -> bool:
    """Return whether to use the cache: the environment variable ``TRACEKIT_CACHE`` or, if it is not set, ``default``.

    Raises:
        TracekitError: The variable is neither ``on`` nor ``off``.
    """
    value = os.environ.get(SWITCH, "").strip().casefold()
    if value not in ("", "on", "off"):
        raise TracekitError(
            f"the environment variable {SWITCH} has the invalid value {value!r}", hint="set it to on or off"
        )
    return default if not value else value == "on"


def open_cached_capture(path: Path, format_name: str, open_capture: Callable[[], Capture]) -> Capture:
    """Open a file as a capture whose columns are cached.

    Folders, files smaller than ``SMALLEST``, and files of formats outside ``FORMATS`` are opened without the cache.

    Args:
        path: The file.
        format_name: Name of its format.
        open_capture: Function that opens the file without the cache.

    Returns:
        The capture. If the cache has an entry for the file, the file is opened only to read data that the entry lacks.
    """
    if format_name not in FORMATS or not path.is_file() or path.stat().st_size < SMALLEST:
        return open_capture()
    return CachedCapture(path, format_name, open_capture)


def open_user_cache() -> CacheFolder:
    """Return the cache folder of the user. The module ``folder`` is imported only when this function is called."""
    from tracekit.plan.cache.folder import CacheFolder

    return CacheFolder()


class CachedCapture(Capture):
    """A capture whose columns are read from the cache or, if the cache lacks them, from a file and then stored.

    If the digest of the file is unknown, a thread computes it while columns are read. After a warning about the file,
    no more columns are stored. Otherwise, later reads would come from the cache and not repeat the warning.
    """

    def __init__(
        self, path: Path, format_name: str, open_capture: Callable[[], Capture], cache: CacheFolder | None = None
    ) -> None:
        """Open the file, unless the cache has an entry for it.

        Raises:
            TracekitError: The file cannot be read, or an environment variable has an invalid value.
        """
        self._path, self._format, self._open = path, format_name, open_capture
        self._cache = cache or open_user_cache()
        self._has_warned = False
        self._capture: Capture | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._digest: Future[str | None] | None = None
        self._folder: Path | None = None
        self._metadata = _StoredMetadata()
        self._load_stored_metadata()
        if not self._metadata.is_stored:
            self._open_file()

    def names(self) -> Collection[str]:
        """Return the names of the declared tables that may have rows in this file."""
        if self._metadata.names is None:
            with self._watch_for_warnings():
                self._metadata.names = list(self._open_file().names())
        return self._metadata.names

    def may_have(self, name: str) -> bool:
        """Return whether a declared table may have rows in this file."""
        if name not in self._metadata.present:
            with self._watch_for_warnings():
                self._metadata.present[name] = self._open_file().may_have(name)
        return self._metadata.present[name]

    def count_many(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the number of rows of several tables, by table name."""
        if missing := [name for name in names if name not in self._metadata.counts]:
            with self._watch_for_warnings():
                self._metadata.counts |= self._open_file().count_many(missing)
        return {name: self._metadata.counts[name] for name in names}

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> Mapping[str, pa.Table]:
        """Return the requested columns of several tables, by table name.

        Columns that the cache lacks are read together from the file, and then stored.
        """
        stored = {name: self._read_stored_columns(name, names) for name, names in columns.items()}
        missing = {
            name: [column for column in names if column not in stored[name]]
            for name, names in columns.items()
            if not names or len(stored[name]) < len(set(names))
        }
        with self._watch_for_warnings():
            read = dict(self._open_file().read_many(missing)) if missing else {}
        for name, table in read.items():
            self._store_columns(name, table.select([c for c in missing[name] if c in table.column_names]))
        return {name: _combine_columns(stored[name], read.get(name)) for name in columns}

    def count_undecoded(self) -> Mapping[str, int | Undecoded]:
        """Return the number of events that are in no declared table, by class of event, such as ``memory map``."""
        return self._open_file().count_undecoded()

    def can_contain(self, name: str) -> bool:
        """Return whether files in this format can contain rows of a declared table, even if this file has none."""
        return self._open_file().can_contain(name)

    def list_undecodable_tables(self) -> Collection[str]:
        """Return the tables whose undecoded events are counted. There are none while the file is not open."""
        return () if self._capture is None else self._capture.list_undecodable_tables()

    def read_launch_metadata(self) -> LaunchMetadata:
        """Return the rank variables, such as ``RANK``, and the host of the profiled program.

        These values are read from the file, because the cache stores no private values.
        """
        return self._open_file().read_launch_metadata()

    def close(self) -> None:
        """Store the metadata of the capture in the cache, delete excess entries of the cache, and close the file."""
        if self._metadata.has_changed and (folder := self._find_folder_of_entry()):
            self._cache.store_path_and_format(folder, self._path, self._format)
            self._cache.store_metadata(folder, self._metadata.to_json())
            self._cache.delete_excess_entries()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._capture is not None:
            self._capture.close()

    def _open_file(self) -> Capture:
        """Return the capture that reads the file without the cache. Open the file if it is not open yet."""
        if self._capture is None:
            with self._watch_for_warnings():
                self._capture = self._open()
        return self._capture

    @contextlib.contextmanager
    def _watch_for_warnings(self) -> Iterator[None]:
        """Record whether a warning is issued within the context."""
        before = errors.count_warnings()
        yield
        self._has_warned |= errors.count_warnings() != before

    def _load_stored_metadata(self) -> None:
        """Load the stored metadata of the file from its entry in the cache, if there is an entry.

        If the digest of the file is unknown, a thread computes it. This method waits for the digest only if the cache
        has an entry for a file of the same size and format.
        """
        digest = self._cache.read_stored_digest(self._path)
        if digest is None:
            self._pool = ThreadPoolExecutor(1, "tracekit-cache")
            self._digest = self._pool.submit(self._cache.compute_digest, self._path)
            digest = self._digest.result() if self._cache.may_have_entry(self._path, self._format) else None
        if digest is not None:
            self._folder = self._cache.build_entry_path(self._path, self._format, digest)
            self._cache.mark_used(self._folder)
            self._metadata = _StoredMetadata.from_json(self._cache.read_metadata(self._folder))

    def _find_folder_of_entry(self) -> Path | None:
        """Return the folder in which to store columns of the file, or None if columns must not be stored.

        Columns must not be stored if the file changed while it was read, or if reading it caused a warning.
        """
        if self._has_warned:
            return None
        if self._folder is None and self._digest is not None:
            digest, self._digest = self._digest.result(), None
            if digest is not None:
                self._folder = self._cache.build_entry_path(self._path, self._format, digest)
        return self._folder

    def _read_stored_columns(self, name: str, columns: Sequence[str]) -> Mapping[str, pa.ChunkedArray]:
        """Return those of the requested columns of a table that the cache has, by column name."""
        if self._folder is None:
            return {}
        stored = self._cache.read_columns(self._folder, name, columns)
        return stored if {len(values) for values in stored.values()} <= {self._metadata.counts.get(name)} else {}

    def _store_columns(self, name: str, columns: pa.Table) -> None:
        """Store columns of a table in the cache. Do nothing if the table is not declared."""
        if not columns.num_columns or name not in schemas.table_names():
            return
        self._metadata.counts[name] = columns.num_rows
        if folder := self._find_folder_of_entry():
            self._cache.store_columns(folder, name, columns)


@dataclass
class _StoredMetadata:
    """Metadata of a capture that the cache can provide without opening the file.

    Attributes:
        names: Names of the tables that may have rows. None if they are unknown.
        present: Whether a table may have rows, by table name.
        counts: Number of rows, by table name.
        stored: The metadata that was read from the cache, as a parsed JSON object. Empty if none was stored.
    """

    names: list[str] | None = None
    present: dict[str, bool] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    stored: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> _StoredMetadata:
        """Return the metadata from a parsed JSON object, or empty metadata if the object is damaged."""
        names, present, counts = (stored.get(key) for key in ("names", "present", "counts"))
        if not (isinstance(names, list | None) and isinstance(present, dict) and isinstance(counts, dict)):
            return cls()
        if not all(type(value) is bool for value in present.values()):
            return cls()
        if not all(type(value) is int and value >= 0 for value in counts.values()):
            return cls()
        return cls(names, dict(present), dict(counts), stored)

    @property
    def is_stored(self) -> bool:
        """Whether metadata was read from the cache."""
        return bool(self.stored)

    @property
    def has_changed(self) -> bool:
        """Whether there is metadata that was not read from the cache."""
        return self.to_json() != (self.stored or _StoredMetadata().to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the metadata as a JSON object."""
        return {"names": self.names, "present": self.present, "counts": self.counts}


def _combine_columns(stored: Mapping[str, pa.ChunkedArray], newly_read: pa.Table | None) -> pa.Table:
    """Return a table of the columns from the cache and the columns that were read from the file."""
    import pyarrow as pa

    columns = dict(stored)
    if newly_read is not None:
        columns |= dict(zip(newly_read.column_names, newly_read.columns, strict=True))
    return pa.table(columns) if columns or newly_read is None else newly_read
