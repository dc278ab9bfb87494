"""The SQLite database of DLProf 1.8.0, which its viewer opens.

Tables and views are those of ``schemas/dlprof``; what is in them is the trace's ``model("dlprof")``. Rows go in without
becoming Python objects, by ADBC, table by table in the order in which DLProf fills them; indexes and views come after.
Who made the database, where, when and by which command is empty unless it is given as an option.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any, Self

from tracekit import schemas
from tracekit.errors import ExportError
from tracekit.files import LONGEST_SQLITE_PATH
from tracekit.registry import Exporter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

    from tracekit.registry import Progress, View

OPTIONS: Mapping[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "profile-name": (
        "name of the profile, which the viewer shows",
        (("read_only_system_config", "profile_name"), ("read_only_model_info", "profile_name")),
    ),
    "command": ("command line that was profiled", (("read_only_system_config", "original_command"),)),
    "dlprof-version": ("version of DLProf to name, v1.8.0", (("read_only_system_config", "dlprof_version"),)),
    "dlprof-build": ("build of DLProf to name", (("read_only_system_config", "dlprof_build"),)),
    "user": ("who made the database", (("aggregations", "server_user_name"),)),
    "host": ("where it was made", (("aggregations", "server_host_name"),)),
    "time": ("when it was made, YYYY-MM-DD HH:MM:SS", (("aggregations", "start_timestamp"),)),
}
_BATCH_ROWS = 1 << 17


def write(view: View, path: Path, progress: Progress, *, options: Mapping[str, str] | None = None) -> None:
    """Write the database."""
    tables = _named(view.model("dlprof"), options or {})
    total, done = sum(f.height for f in tables.values()), 0
    with _Target(path) as target:
        target.run("tables")
        for name, rows in tables.items():
            for batch in rows.iter_slices(_BATCH_ROWS) if rows.height else ():
                target.insert(name, batch)
                done += batch.height
                progress(done, total)
        target.run("indexes", "views")


def _named(tables: Mapping[str, pl.DataFrame], options: Mapping[str, str]) -> dict[str, pl.DataFrame]:
    """Put options in their places."""
    import polars as pl

    made = dict(tables)
    for name, value in options.items():
        for table, column in OPTIONS[name][1]:
            made[table] = made[table].with_columns(pl.lit(value).alias(column))
    return made


class _Target(contextlib.AbstractContextManager["_Target"]):
    """A database that is being written."""

    def __init__(self, path: Path) -> None:
        from adbc_driver_sqlite import dbapi

        self.path = path
        length = len(os.fsencode(os.path.realpath(path)))
        if length > LONGEST_SQLITE_PATH:
            longest = f"SQLite opens no path of more than {LONGEST_SQLITE_PATH} bytes"
            what = f"cannot be written: {longest}, and this needs {length}"
            raise ExportError(what, path=path, hint="choose a shorter path")
        with self._failing():
            self.connection = dbapi.connect(path.absolute().as_uri(), autocommit=True)

    def __enter__(self) -> Self:
        self._execute("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "PRAGMA cache_size = -65536")
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def run(self, *files: str) -> None:
        """Run the statements of files of ``schemas/dlprof``."""
        texts = [(schemas.FOLDER / "dlprof" / f"{name}.sql").read_text("utf-8") for name in files]
        plain = ["\n".join(line for line in t.splitlines() if not line.startswith("--")) for t in texts]
        self._execute("BEGIN", *(s for t in plain for s in t.split(";") if s.strip()), "COMMIT")

    def insert(self, table: str, rows: pl.DataFrame) -> None:
        """Add rows to a table."""
        with self._failing(), self.connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.adbc_ingest(table, _storable(rows), mode="append")
            cursor.execute("COMMIT")

    def _execute(self, *statements: str) -> None:
        with self._failing(), self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    @contextlib.contextmanager
    def _failing(self) -> Any:
        from adbc_driver_manager import dbapi

        try:
            yield
        except dbapi.Error as e:
            full = "disk is full" in str(e) or "I/O error" in str(e)
            hint = "make room on the disk, or choose another folder" if full else "choose another folder"
            raise ExportError(f"cannot be written: {str(e).splitlines()[0]}", path=self.path, hint=hint) from e


def _storable(rows: pl.DataFrame) -> Any:
    """Turn rows into Arrow as SQLite takes it: plain integers, reals and texts."""
    import polars as pl

    kinds = {t: pl.Int64 if t.is_integer() else pl.String for t in rows.dtypes if not t.is_float()}
    return rows.with_columns(pl.col(c).cast(kinds[t]) for c, t in rows.schema.items() if t in kinds).to_arrow()


def _exporter(options: Mapping[str, str]) -> Exporter:
    return Exporter(
        "dlprof-db",
        "Database of DLProf 1.8, for its viewer",
        (".dldb.sqlite",),
        write=functools.partial(write, options=options),
        options={name: doc for name, (doc, _) in OPTIONS.items()},
        configure=_exporter,
    )


EXPORTER = _exporter({})
