"""Build all declared tables of an Nsight Compute CSV file at once, because they share the rows of the file.

Read the session page of an Nsight Compute CSV file, which lists versions, the start time, processes and devices.

Command lines, host names and addresses are not added to any table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit import schemas
from tracekit.errors import (
    CorruptTraceError,
    MissingTableError,
    TracekitError,
    UnsupportedVersionError,
    format_count,
    warn,
)
from tracekit.readers.ncu import nvtx, units
from tracekit.readers.ncu.units import ATTRIBUTE_PREFIX, DURATION, find_section_name
from tracekit.readers.ncu_csv import frame, launches
from tracekit.readers.ncu_csv.frame import NEWLINE, parse_csv_line
from tracekit.readers.ncu_csv.launches import Metrics, iso_timestamp_expr
from tracekit.readers.ncu_csv.numbers import ENGLISH, parse_numbers
from tracekit.readers.ncu_csv.rows import RULES, RowCollector
from tracekit.registry.interface import Capture
from tracekit.system.forks import check_polars_can_run

if TYPE_CHECKING:
    from collections.abc import Iterable

    Attributes = dict[int, dict[str, float | str | None]]
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracekit.readers.ncu_csv.frame import NcuPage
    from tracekit.readers.ncu_csv.numbers import NumberStyle
    from tracekit.registry.source import Source

TOOL = "NVIDIA Nsight Compute"
MACHINE_COLUMNS = {
    "launch_id": pl.Int64,
    "device_id": pl.Int32,
    "compute_major": pl.Int32,
    "compute_minor": pl.Int32,
    "process_id": pl.Int64,
    "process_name": pl.String,
}
"""The columns of launches from which the tables of devices and processes are built."""
_MAX_ROWS = 10_000
_MAX_DURATION_NS = 1 << 62
_PRINT_RAW_PAGE = "print the raw page with ncu --import REPORT --page raw --csv --print-units base"
_TABLES = ("ncu_launches", "ncu_metrics", "ncu_rules", "ncu_nvtx_ranges", "capture_info", "devices", "processes")


def build_capture_info_table(session: SessionPage, pages: Iterable[str]) -> pl.DataFrame:
    """Build the table ``capture_info`` from the metadata on the session page and the layouts of the pages."""
    metadata = {"tool": TOOL, **session.metadata, "pages": ", ".join(pages)}
    rows = [(name, value) for name, value in metadata.items() if value is not None]
    return pl.DataFrame(rows, ["name", "value"], orient="row")


def build_devices_table(session: SessionPage, launches: pl.DataFrame, metrics: Metrics | None) -> pl.DataFrame:
    """Build the table ``devices`` from the launches, their metrics and the session page, with one row per device."""
    first_launches = launches.drop_nulls("device_id").unique("device_id", keep="first", maintain_order=True)
    rows_by_device = {
        r["device_id"]: r for r in first_launches.select("device_id", "compute_major", "compute_minor").rows(named=True)
    }
    for attributes_by_device in (
        _collect_attributes_by_device(first_launches, metrics) if metrics else {},
        session.devices,
    ):
        for device, attributes in attributes_by_device.items():
            values = {
                name: value for name, value in units.compute_device_values(attributes).items() if value is not None
            }
            rows_by_device[device] = {"device_id": device} | rows_by_device.get(device, {}) | values
    rows = [{**rows_by_device[device], "cuda_device_id": device} for device in sorted(rows_by_device)]
    return pl.DataFrame(rows, schemas.polars_schema(schemas.table("devices")))


def build_processes_table(session: SessionPage, launches: pl.DataFrame) -> pl.DataFrame:
    """Return one row per process that has a launch or is listed on the session page, ordered by process id."""
    launched = launches.select("process_id", "process_name").drop_nulls("process_id").unique("process_id", keep="first")
    names = {process: re.split(r"[/\\]", path)[-1] for process, path in session.processes.items()} | dict(
        launched.rows()
    )
    return pl.DataFrame(sorted(names.items()), {"process_id": pl.Int64, "name": pl.String}, orient="row")


def _collect_attributes_by_device(first_launches: pl.DataFrame, metrics: Metrics) -> Attributes:
    """Return the attributes of each device, by device id, from the metrics of the first launch on the device."""
    rows = metrics.select_metrics(lambda name: name.startswith(ATTRIBUTE_PREFIX)).join(
        first_launches, "launch_id", maintain_order="left"
    )
    attributes: Attributes = {}
    for device, name, value, text in rows.select("device_id", "metric", "value", "text").iter_rows():
        attributes.setdefault(device, {})[name.removeprefix(ATTRIBUTE_PREFIX)] = text if value is None else value
    return attributes


@dataclass(slots=True)
class SessionPage:
    """The contents of the session page of an Nsight Compute CSV file.

    Attributes:
        attributes: Values of the attributes of the session, by printed name.
        processes: Path of the program of each process, by process id.
        devices: Attributes of each device by name, by device id.
    """

    attributes: dict[str, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    devices: dict[int, dict[str, float | str | None]] = field(default_factory=dict)

    def add_rows(self, page: NcuPage, text: bytes) -> None:
        """Add the rows of one of the tables on the session page."""
        for line in text.split(b"\n", _MAX_ROWS)[:_MAX_ROWS]:
            row = parse_csv_line(line.decode("utf-8", "replace").replace(NEWLINE, "\n"))
            if len(row) < len(page.header):
                continue
            if page.header[0] == "Session Attribute":
                self.attributes[row[0]] = row[1]
            elif page.header[0] == "Process Id" and re.fullmatch(r"[0-9]{1,9}", row[0]):
                self.processes[int(row[0])] = row[1]
            elif page.header[0] == "Device Attribute":
                self._add_device_attribute(page, row)

    @property
    def metadata(self) -> dict[str, str | None]:
        """The versions and the start time from the session page, keyed by their names in the table ``capture_info``."""
        version = self.attributes.get("Nsight Compute Target", "").split(" ")[0]
        return {
            "tool_version": version or None,
            "cuda_version": self.attributes.get("CUDA Version"),
            "created_local": pl.select(iso_timestamp_expr(pl.lit(self.attributes.get("Created"), pl.String))).item(),
        }

    def _add_device_attribute(self, page: NcuPage, row: list[str]) -> None:
        for header, value in zip(page.header[1:], row[1:], strict=False):
            match = re.fullmatch(r"Device ([0-9]{1,9})", header)
            if match is not None and value:
                self.devices.setdefault(int(match[1]), {})[row[0]] = value


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
    if (damage := frame.describe_damaged_end(source.path)) is not None:
        warn(damage, path=source.path)
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
    number = sum(counts[k] for k in frame.MESSAGE_KINDS)
    count = f"{format_count(number, 'message')} ({format_count(counts['ERROR'], 'error')})"
    return f"printed {count} and {content}", "run ncu with --csv, and let it finish"


def _warn_about_skipped_content(
    path: Path, pages: Collection[str], rows: RowCollector, messages: frame.NcuMessages
) -> None:
    """Warn about skipped rows, skipped pages, and raw pages without units."""
    if dropped := rows.invalid_rows + messages.incomplete:
        rest, rest_of_one = "do not match the header of their table", "does not match the header of its table"
        skipped = format_count(dropped, "row", rest, rest_of_one)
        warn(f"{skipped} and {'was' if dropped == 1 else 'were'} skipped", path=path)
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
