"""Export the SQLite database of DLProf 1.8.0, which the DLProf viewer opens.

``schemas/dlprof`` declares the tables and views, and ``model("dlprof")`` of the trace contains the rows. ADBC inserts
the rows without converting them to Python objects. The tables are created in the same order as by DLProf, followed by
the indexes and views. The user, host, time and command are empty unless they are set by options.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any, Self

from tracekit import schemas
from tracekit.errors import ExportError
from tracekit.files import LONGEST_SQLITE_PATH
from tracekit.interface import Exporter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

    from tracekit.interface import Progress, View

OPTIONS: Mapping[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "profile-name": (
        "name of the profile in the viewer",
        (("read_only_system_config", "profile_name"), ("read_only_model_info", "profile_name")),
    ),
    "command": ("profiled command line", (("read_only_system_config", "original_command"),)),
    "dlprof-version": ("DLProf version to record, such as v1.8.0", (("read_only_system_config", "dlprof_version"),)),
    "dlprof-build": ("DLProf build to record", (("read_only_system_config", "dlprof_build"),)),
    "user": ("name of the user", (("aggregations", "server_user_name"),)),
    "host": ("name of the host", (("aggregations", "server_host_name"),)),
    "time": ("time of creation, YYYY-MM-DD HH:MM:SS", (("aggregations", "start_timestamp"),)),
}
_BATCH_ROWS = 1 << 17


def write(view: View, path: Path, progress: Progress, *, options: Mapping[str, str] | None = None) -> None:
    """Write a trace as a DLProf database."""
    tables = _apply_options(view.model("dlprof"), options or {})
    total, written = sum(f.height for f in tables.values()), 0
    with _Database(path) as database:
        database.run_scripts("tables")
        for name, rows in tables.items():
            for batch in rows.iter_slices(_BATCH_ROWS) if rows.height else ():
                database.insert(name, batch)
                written += batch.height
                progress(written, total)
        database.run_scripts("indexes", "views")


def _apply_options(tables: Mapping[str, pl.DataFrame], options: Mapping[str, str]) -> dict[str, pl.DataFrame]:
    """Return the tables with the values of the options inserted into their columns."""
    import polars as pl

    updated = dict(tables)
    for name, value in options.items():
        for table, column in OPTIONS[name][1]:
            updated[table] = updated[table].with_columns(pl.lit(value).alias(column))
    return updated


class _Database(contextlib.AbstractContextManager["_Database"]):
    """A database that is being written."""

    def __init__(self, path: Path) -> None:
        from adbc_driver_sqlite import dbapi

        self.path = path
        length = len(os.fsencode(os.path.realpath(path)))
        if length > LONGEST_SQLITE_PATH:
            limit = f"SQLite paths have at most {LONGEST_SQLITE_PATH} bytes"
            message = f"cannot be written: the path has {length} bytes, but {limit}"
            raise ExportError(message, path=path, hint="choose a shorter path")
        with self._translate_errors():
            self.connection = dbapi.connect(path.absolute().as_uri(), autocommit=True)

    def __enter__(self) -> Self:
        self._execute("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "PRAGMA cache_size = -65536")
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def run_scripts(self, *files: str) -> None:
        """Run the SQL statements in the given files of ``schemas/dlprof``."""
        scripts = [(schemas.FOLDER / "dlprof" / f"{name}.sql").read_text("utf-8") for name in files]
        uncommented = ["\n".join(line for line in t.splitlines() if not line.startswith("--")) for t in scripts]
        self._execute("BEGIN", *(s for t in uncommented for s in t.split(";") if s.strip()), "COMMIT")

    def insert(self, table: str, rows: pl.DataFrame) -> None:
        """Insert rows into a table."""
        with self._translate_errors(), self.connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.adbc_ingest(table, _to_sqlite_types(rows), mode="append")
            cursor.execute("COMMIT")

    def _execute(self, *statements: str) -> None:
        """Run SQL statements."""
        with self._translate_errors(), self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    @contextlib.contextmanager
    def _translate_errors(self) -> Any:
        """Convert errors of the database driver to an ``ExportError``."""
        from adbc_driver_manager import dbapi

        try:
            yield
        except dbapi.Error as e:
            is_full = "disk is full" in str(e) or "I/O error" in str(e)
            hint = "make room on the disk, or choose another folder" if is_full else "choose another folder"
            raise ExportError(f"cannot be written: {str(e).splitlines()[0]}", path=self.path, hint=hint) from e


def _to_sqlite_types(rows: pl.DataFrame) -> Any:
    """Convert rows to an Arrow table with the types that SQLite supports, which are integers, floats and strings."""
    import polars as pl

    sqlite_types = {t: pl.Int64 if t.is_integer() else pl.String for t in rows.dtypes if not t.is_float()}
    return rows.with_columns(
        pl.col(c).cast(sqlite_types[t]) for c, t in rows.schema.items() if t in sqlite_types
    ).to_arrow()


def _configure(options: Mapping[str, str]) -> Exporter:
    """Return the exporter with the given options set."""
    return Exporter(
        "dlprof-db",
        "DLProf 1.8 database for the DLProf viewer",
        (".dldb.sqlite",),
        write=functools.partial(write, options=options),
        options={name: doc for name, (doc, _) in OPTIONS.items()},
        configure=_configure,
    )


EXPORTER = _configure({})
