"""Build all declared tables of an Nsight Compute CSV file at once, because they share the rows of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit import schemas
from tracekit.errors import CorruptTraceError, MissingTableError, TracekitError, UnsupportedVersionError, warn
from tracekit.readers.ncu import nvtx
from tracekit.readers.ncu.labels import DURATION, find_section_name
from tracekit.readers.ncu_csv import frame, launches
from tracekit.readers.ncu_csv.metrics import Metrics
from tracekit.readers.ncu_csv.numbers import ENGLISH, parse_numbers
from tracekit.readers.ncu_csv.rows import RULES, RowCollector
from tracekit.readers.ncu_csv.session import (
    MACHINE_COLUMNS,
    SessionPage,
    build_capture_info_table,
    build_devices_table,
    build_processes_table,
)
from tracekit.registry.interface import Capture
from tracekit.system.forks import check_polars_can_run

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracekit.readers.ncu_csv.numbers import NumberStyle
    from tracekit.registry.source import Source

_MAX_DURATION_NS = 1 << 62
_PRINT_RAW_PAGE = "print the raw page with ncu --import REPORT --page raw --csv --print-units base"


_TABLES = ("ncu_launches", "ncu_metrics", "ncu_rules", "ncu_nvtx_ranges", "capture_info", "devices", "processes")


class CsvCapture(Capture):
    """The tables of an Nsight Compute CSV file, which were read at once."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self._tables = tables

    def names(self) -> Collection[str]:
        """Return the names of the tables that have rows."""
        return self._tables.keys()

    def can_contain(self, name: str) -> bool:
        """Return whether ncu prints rows of a table as CSV."""
        return name in _TABLES

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return int(self._tables[name].num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table."""
        return self._tables[name].select(list(columns))


def read_tables(source: Source) -> dict[str, pa.Table]:
    """Read an Nsight Compute CSV file, and return its declared tables by name.

    Raises:
        MissingTableError: The file has no rows, because nothing was profiled, or because ncu or the program failed.
        UnsupportedVersionError: The file has only pages that are not supported.
        CorruptTraceError: No row matches its header.
    """
    check_polars_can_run()
    rows, session, messages = RowCollector(source.path), SessionPage(), frame.NcuMessages()
    pages: dict[str, None] = {}
    for page, text in frame.iterate_table_rows(source.path, messages):
        pages[page.layout] = None
        if page.layout == "session":
            session.add_rows(page, text)
        elif page.layout != "source" and text:
            rows.add_rows(page, text)
    rows.parse_pending_rows()
    if not rows.runs and "session" not in pages:
        raise create_no_rows_error(source.path, pages, rows, messages)
    _warn_about_skipped_content(source.path, pages, rows, messages)
    pages.pop("source", None)
    return build_tables(rows, session, pages)


def create_no_rows_error(
    path: Path, pages: Collection[str], rows: RowCollector, messages: frame.NcuMessages
) -> TracekitError:
    """Return an error that explains why an Nsight Compute CSV file has no supported rows."""
    if dropped := rows.invalid_rows + messages.incomplete:
        what = f"none of the {dropped} rows matches the header of its table"
        return CorruptTraceError(what, path=path, table="ncu_launches", hint="run ncu --csv again")
    if "source" in pages:
        return UnsupportedVersionError(
            "the file contains only source pages of ncu, which are not supported", path=path, hint=_PRINT_RAW_PAGE
        )
    if messages.has_printed_page and not pages:
        return UnsupportedVersionError(
            "the file contains a page that ncu printed as plain text instead of CSV", path=path, hint=_PRINT_RAW_PAGE
        )
    what, hint = _explain_missing_rows(messages, "a header, but no rows" if pages else "no table")
    return MissingTableError(f"ncu {what}", path=path, hint=hint)


def _explain_missing_rows(messages: frame.NcuMessages, content: str) -> tuple[str, str]:
    """Return the reason why ncu printed no rows, and a hint on how to solve the problem.

    Args:
        messages: Messages that ncu printed.
        content: Description of what the file contains instead of rows.
    """
    counts = messages.counts
    if counts[frame.PERMISSION]:
        guide = "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
        return (
            "has no permission to read performance counters",
            f"allow this user to read performance counters: {guide}",
        )
    if counts[frame.PROGRAM_FAILED]:
        return "profiled nothing: the program failed", "make sure that the program runs without ncu"
    if counts[frame.NO_KERNELS]:
        return (
            "profiled no kernel",
            "check the options of ncu that select kernels, such as --kernel-name, --launch-skip and --nvtx-include",
        )
    count = f"{sum(counts[k] for k in frame.MESSAGE_KINDS)} messages ({counts['ERROR']} errors)"
    return f"printed {count} and {content}", "run ncu with --csv, and let it finish"


def _warn_about_skipped_content(
    path: Path, pages: Collection[str], rows: RowCollector, messages: frame.NcuMessages
) -> None:
    """Warn about skipped rows, skipped pages, and raw pages without units."""
    if dropped := rows.invalid_rows + messages.incomplete:
        warn(f"{dropped} rows do not match the header of their table and were skipped", path=path)
    if rows.has_unitless_page:
        warn("a raw page has no row of units: the values of the page are not converted to base units", path=path)
    if "source" in pages:
        warn("source pages are not supported and were skipped", path=path)


def build_tables(rows: RowCollector, session: SessionPage, pages: Collection[str]) -> dict[str, pa.Table]:
    """Build the declared tables from the collected rows and the session page, and return them by name."""
    tables: dict[str, pl.DataFrame] = {"capture_info": build_capture_info_table(session, pages)}
    machine = pl.DataFrame(schema=MACHINE_COLUMNS)
    metrics = None
    if rows.runs:
        first_runs, launch_ids_by_run = launches.assign_launch_ids(pl.concat(rows.runs))
        metrics = Metrics(rows, launch_ids_by_run)
        style = rows.number_style or ENGLISH
        ranges = launches.parse_nvtx_ranges(first_runs)
        typed = launches.convert_launch_columns(first_runs, style).join(
            _compute_launch_durations(metrics), "launch_id", how="left", maintain_order="left"
        )
        tables["ncu_launches"] = _add_range_columns(typed, ranges)
        tables["ncu_nvtx_ranges"] = ranges
        tables["ncu_rules"] = _build_rules_table(
            pl.concat(rows.rules or [pl.DataFrame(schema=RULES)]), launch_ids_by_run, style
        )
        machine = typed.with_columns(first_runs["process_name"]).select(list(MACHINE_COLUMNS))
    tables["devices"] = build_devices_table(session, machine, metrics)
    tables["processes"] = build_processes_table(session, machine)
    complete = {name: _convert_to_declared_table(name, table) for name, table in tables.items()}
    return complete if metrics is None else {**complete, "ncu_metrics": metrics.build_table()}


def _compute_launch_durations(metrics: Metrics) -> pl.DataFrame:
    """Return the duration of each launch in ns. If several durations are printed, the most precise one is used."""
    durations = metrics.select_metrics(lambda name: name == DURATION).filter(
        pl.col("value").is_between(0, _MAX_DURATION_NS)
    )
    best = durations.sort("resolution", nulls_last=True, maintain_order=True).group_by("launch_id")
    return best.agg(duration_ns=pl.col("value").first().round().cast(pl.Int64))


def _add_range_columns(launch_rows: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Add the columns of ``ncu_launches`` that describe the NVTX ranges around each launch.

    If ncu put the name of a range before the name of a kernel, the name of the range is removed.
    """
    return launch_rows.join(
        nvtx.build_range_paths(ranges), "launch_id", how="left", maintain_order="left"
    ).with_columns(
        launches.name_without_range_expr(pl.col("name"), pl.col("range_name")).alias("name"),
        pl.col("range_depth").fill_null(0),
    )


def _build_rules_table(rule_messages: pl.DataFrame, launch_ids_by_run: pl.Series, style: NumberStyle) -> pl.DataFrame:
    """Build the table ``ncu_rules`` from the collected messages of rules and the launch id of each run of rows."""
    speedup = parse_numbers(
        rule_messages["speedup_percent"].fill_null(""), np.zeros(rule_messages.height, np.int64), style
    )["value"]
    sections = {s: find_section_name(s) for s in rule_messages["section"].unique()}
    return rule_messages.select(
        pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias("message_id"),
        launch_ids_by_run.gather(rule_messages["run"]).alias("launch_id"),
        pl.col("section").replace_strict(sections, return_dtype=pl.String),
        pl.col("section").alias("section_id"),
        "rule_id",
        pl.col("type").replace("", None),
        "message",
        pl.col("speedup_type").replace("", None),
        speedup.alias("speedup_percent"),
    )


def _convert_to_declared_table(name: str, rows: pl.DataFrame) -> pa.Table:
    """Convert a frame to a declared table. Declared columns that the frame lacks are null."""
    declared = schemas.polars_schema(schemas.table(name))
    return rows.with_columns(pl.lit(None, t).alias(c) for c, t in declared.items() if c not in rows.columns).to_arrow()
