"""Export a SQLite database in the format of DLProf 1.8.0, for the DLProf viewer.

``schemas/dlprof`` declares the tables and views, and ``model("dlprof")`` of the trace contains the rows. ADBC inserts
the rows without converting them to Python objects. Tables are created in the same order as in DLProf, and indexes and
views after them. The user, host, time and command are empty unless options set them.
"""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING, Any, cast

from tracekit import schemas
from tracekit.exporters.databases import DatabaseWriter
from tracekit.registry.analyses import Option
from tracekit.registry.interface import Exporter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

    from tracekit.registry.analyses import Value
    from tracekit.registry.interface import Progress, View

_COLUMNS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "profile-name": (("read_only_system_config", "profile_name"), ("read_only_model_info", "profile_name")),
    "command": (("read_only_system_config", "original_command"),),
    "dlprof-version": (("read_only_system_config", "dlprof_version"),),
    "dlprof-build": (("read_only_system_config", "dlprof_build"),),
    "user": (("aggregations", "server_user_name"),),
    "host": (("aggregations", "server_host_name"),),
    "time": (("aggregations", "start_timestamp"),),
}
"""The tables and columns that contain the value of each option."""
VERSION_OPTIONS = (
    Option("dlprof-version", "DLProf version to record, such as v1.8.0"),
    Option("dlprof-build", "DLProf build to record"),
)
_BATCH_ROWS = 1 << 17
_FINDINGS = "expert_systems_feedback"  # computed while other tables are written, because it takes longest


def write(view: View, path: Path, progress: Progress, *, options: Mapping[str, Value]) -> None:
    """Write a trace as a SQLite database in the format of DLProf."""
    tables = _build_tables_with_option_values(view.model("dlprof", in_background=True), options)
    total, written = sum(tables[name].height for name in tables if name != _FINDINGS), 0
    with DatabaseWriter(path) as database:
        _run_scripts(database, "tables")
        for name in tables:
            rows = tables[name]
            total += rows.height if name == _FINDINGS else 0
            for batch in rows.iter_slices(_BATCH_ROWS) if rows.height else ():
                database.insert(name, _convert_to_sqlite_types(batch))
                written += batch.height
                progress(written, total)
        _run_scripts(database, "indexes", "views")


def _build_tables_with_option_values(
    tables: Mapping[str, pl.DataFrame], options: Mapping[str, Value]
) -> Mapping[str, pl.DataFrame]:
    """Return tables in which the columns of each export option, such as ``user``, contain the value of the option."""
    import polars as pl

    updated: dict[str, pl.DataFrame] = {}
    for name, value in options.items():
        for table, column in _COLUMNS[name] if value is not None else ():
            updated[table] = updated.get(table, tables[table]).with_columns(pl.lit(value).alias(column))
    return ChainMap(updated, cast("dict[str, pl.DataFrame]", tables))


def _run_scripts(database: DatabaseWriter, *files: str) -> None:
    """Run the SQL statements in files of ``schemas/dlprof`` in one transaction.

    Args:
        database: The database.
        files: Names of the files, without the suffix ``.sql``.
    """
    scripts = [(schemas.FOLDER / "dlprof" / f"{name}.sql").read_text("utf-8") for name in files]
    uncommented = ["\n".join(line for line in t.splitlines() if not line.startswith("--")) for t in scripts]
    database.execute("BEGIN", *(s for t in uncommented for s in t.split(";") if s.strip()), "COMMIT")


def _convert_to_sqlite_types(rows: pl.DataFrame) -> Any:
    """Return rows as an Arrow table that contains only types that SQLite supports: integers, floats and strings."""
    import polars as pl

    sqlite_types = {t: pl.Int64 if t.is_integer() else pl.String for t in rows.dtypes if not t.is_float()}
    return rows.with_columns(
        pl.col(c).cast(sqlite_types[t]) for c, t in rows.schema.items() if t in sqlite_types
    ).to_arrow()


EXPORTER = Exporter(
    "dlprof-db",
    "DLProf 1.8 database for the DLProf viewer",
    (".dldb.sqlite", "_dldb.sqlite"),
    write=write,
    options=(
        Option("profile-name", "name of the profile in the viewer"),
        Option("command", "profiled command line"),
        *VERSION_OPTIONS,
        Option("user", "name of the user"),
        Option("host", "name of the host"),
        Option("time", "time of creation, YYYY-MM-DD HH:MM:SS"),
    ),
)
