"""Declare reports: a function from the tables of a trace to rows, and the columns that are printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports.table import ReportColumn, ReportTable

if TYPE_CHECKING:
    from collections.abc import Collection

Frames = Callable[[str], pl.LazyFrame]
Reads = Mapping[str, Sequence[str]]
Prefetch = Callable[[Reads], None]

KERNEL_NAME_OPTIONS = ("base", "mangled")
KERNEL_OPTIONS = ("nvtx-name", *KERNEL_NAME_OPTIONS)
LAUNCHES_IN_RANGES = ("nvtx_ranges", "api_calls")
THREAD = ("process_id", "thread_id")
CALL_KEY = ("process_id", "correlation_id")  # joins GPU activities to the API calls that launched them
TIMES = ("start_ns", "end_ns")
CALL_COLUMNS = (*THREAD, "correlation_id", *TIMES)
RANGE_COLUMNS = ("range_id", *TIMES, "kind", *THREAD, "end_thread_id", "domain", "name")
_NAME_COLUMNS = {"base": "short_name", "mangled": "mangled_name"}
_EXACT_ROUNDING_SINCE = (2024, 5)


@dataclass(frozen=True, slots=True)
class Request:
    """The input of a report.

    Attributes:
        frames: Returns a declared table by name.
        options: Options of nsys, as in ``cuda_gpu_kern_sum:nvtx-name:base``.
        legacy_rounding: Whether averages are rounded as in nsys before 2024.5.
    """

    frames: Frames
    options: Collection[str] = ()
    legacy_rounding: bool = False


RowsFunction = Callable[[Request], pl.LazyFrame]


@dataclass(frozen=True, slots=True)
class Report:
    """A declared report; calling it with a request computes it.

    Attributes:
        name: Name of the report, as in nsys.
        doc: What it shows, in one line.
        columns: The printed columns, in order.
        options: The options of nsys that it accepts.
        needs: Tables that must have rows if there are kernels; otherwise the report is empty, as in nsys.
        reads: The columns that it reads, by table, without the names of kernels, which depend on the options.
        build_rows: Returns the rows, in the order printed.
    """

    name: str
    doc: str
    columns: tuple[ReportColumn, ...]
    options: tuple[str, ...]
    needs: tuple[str, ...]
    reads: Reads
    build_rows: RowsFunction

    def __call__(self, request: Request) -> ReportTable:
        """Compute the report."""
        rows = self.build_rows(_without_rows(request) if self._lacks_tables(request) else request)
        return ReportTable(self.name, self.columns, rows.collect(), request.legacy_rounding)

    def columns_read(self, request: Request) -> dict[str, list[str]]:
        """Return the columns that the report reads with the options of a request, by table."""
        read = {table: list(columns) for table, columns in self.reads.items()}
        if "kernels" in read:
            read["kernels"] += ["name", *(c for option, c in _NAME_COLUMNS.items() if option in request.options)]
        if "nvtx-name" in request.options:
            read["kernels"] += CALL_KEY
            read["nvtx_ranges"], read["api_calls"] = list(RANGE_COLUMNS), [*read.get("api_calls", ()), *CALL_COLUMNS]
        for table in self._needed_tables(request):
            read.setdefault(table, []).append(request.frames(table).collect_schema().names()[0])
        return {table: list(dict.fromkeys(columns)) for table, columns in read.items()}

    def _lacks_tables(self, request: Request) -> bool:
        *needs, kernels = self._needed_tables(request) or ("kernels",)
        return any(not _has_rows(request, t) for t in needs) and _has_rows(request, kernels)

    def _needed_tables(self, request: Request) -> tuple[str, ...]:
        needs = LAUNCHES_IN_RANGES if "nvtx-name" in request.options else self.needs
        return (*needs, "kernels") if needs else ()


def report(
    *columns: ReportColumn,
    reads: Reads = MappingProxyType({}),
    options: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
) -> Callable[[RowsFunction], Report]:
    """Return a decorator that declares a function as a report with its name, docstring and printed columns."""

    def declare(build_rows: RowsFunction) -> Report:
        doc = (build_rows.__doc__ or "").partition("\n")[0]
        return Report(build_rows.__name__, doc, columns, options, needs, reads, build_rows)

    return declare


def _has_rows(request: Request, table: str) -> bool:
    return not request.frames(table).select(pl.first()).head(1).collect().is_empty()


def _without_rows(request: Request) -> Request:
    return replace(request, frames=lambda table: request.frames(table).clear())


def has_legacy_rounding(frames: Frames) -> bool:
    """Return whether the tool that wrote the capture rounds as SQLite before 3.43: nsys before 2024.5, or unknown."""
    versions = frames("capture_info").filter(name="tool_version").select("value").collect()["value"]
    numbers = versions.str.extract_groups(r"^(\d+)\.(\d+)").struct.unnest().cast(pl.Int64).drop_nulls()
    return not any(v >= _EXACT_ROUNDING_SINCE for v in numbers.iter_rows())
