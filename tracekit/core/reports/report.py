"""Declare reports. A report has printed columns, and a function that computes rows from the tables of a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports.table import ReportColumn, ReportTable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

Frames = Callable[[str], pl.LazyFrame]
Computation = Callable[[Frames], object]
Window = tuple[int | None, int | None]
Without = Callable[..., Frames]
Prefetch = Callable[[Computation], None]

KERNEL_NAME_OPTIONS = ("base", "mangled")
KERNEL_OPTIONS = ("nvtx-name", *KERNEL_NAME_OPTIONS)
LAUNCHES_IN_RANGES = ("nvtx_ranges", "api_calls")
THREAD = ("process_id", "thread_id")
CALL_KEY = ("process_id", "correlation_id")  # joins GPU activities to the API calls that launched them
TIMES = ("start_ns", "end_ns")
CALL_COLUMNS = (*THREAD, "correlation_id", *TIMES)
RANGE_COLUMNS = ("range_id", *TIMES, "kind", *THREAD, "end_thread_id", "domain", "name")
STRING_COLUMNS: Mapping[str, Sequence[str]] = {"nvtx_ranges": ("name",)}
"""Columns that reports read as String, not Categorical, keyed by table: often nearly every range has its own name."""
_EXACT_ROUNDING_SINCE = (2024, 5)


@dataclass(frozen=True, slots=True)
class Request:
    """The input from which a report is computed.

    Attributes:
        frames: Function that returns the declared table with a given name.
        options: Options without a value, such as ``nvtx-name`` and ``base`` in ``cuda_gpu_kern_sum:nvtx-name:base``.
        legacy_rounding: Whether averages are rounded as in nsys before 2024.5.
        parameters: Values of options with a value, such as ``rows`` in ``um_sum:rows=5``, keyed by option.
        window: The time window ``[a, b)`` in ns to which the tables of ``frames`` are limited. Either bound may be
            None.
        without: Function that returns a function like ``frames`` for the tables without some conditions on rows, such
            as ``time``, or with all recorded rows. If None, ``frames`` is used.
    """

    frames: Frames
    options: Collection[str] = ()
    legacy_rounding: bool = False
    parameters: Mapping[str, int] = field(default_factory=dict)
    window: Window = (None, None)
    without: Without | None = None

    def with_frames(self, frames: Frames) -> Request:
        """Return a copy of this request that reads all tables with one function."""
        return replace(self, frames=frames, without=None)

    def get_frames_without(self, *conditions: str) -> Frames:
        """Return a function that returns the tables without some conditions on rows, or with all recorded rows."""
        return self.frames if self.without is None else self.without(*conditions)


RowsFunction = Callable[[Request], pl.LazyFrame]


@dataclass(frozen=True, slots=True)
class Report:
    """The declaration of a report. It is callable with a request, and then returns the computed report.

    Attributes:
        name: Name of the report, as in nsys.
        doc: One-line description of the report.
        columns: The printed columns, in order.
        options: Options without a value that the report accepts.
        required_tables: Tables that the report requires if the capture has kernels. As in nsys, the report is empty if
            the capture has no rows of a required table.
        build_rows: Function that takes a request, and returns the rows in printed order.
        parameter_defaults: Default values of the options with an integer value, keyed by option.
    """

    name: str
    doc: str
    columns: tuple[ReportColumn, ...]
    options: tuple[str, ...]
    required_tables: tuple[str, ...]
    build_rows: RowsFunction
    parameter_defaults: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, request: Request) -> ReportTable:
        """Compute the report for a request. A parameter that the request does not set has its default value."""
        request = replace(request, parameters={**self.parameter_defaults, **request.parameters})
        rows = self.build_rows(
            _create_request_with_empty_tables(request) if self._lacks_required_tables(request) else request
        )
        return ReportTable(self.name, self.columns, rows.collect(), request.legacy_rounding)

    def _lacks_required_tables(self, request: Request) -> bool:
        """Return whether the capture has kernels, but no rows of a table that the report requires."""
        *tables, kernels = self.list_required_tables(request.options) or ("kernels",)
        frames = request.get_frames_without()
        return any(not has_rows(frames, t) for t in tables) and has_rows(frames, kernels)

    def list_required_tables(self, options: Collection[str]) -> tuple[str, ...]:
        """Return the tables that the report requires, followed by ``kernels``, or () if it requires no tables."""
        tables = LAUNCHES_IN_RANGES if "nvtx-name" in options else self.required_tables
        return (*tables, "kernels") if tables else ()


def report(
    *columns: ReportColumn,
    options: tuple[str, ...] = (),
    required_tables: tuple[str, ...] = (),
    parameter_defaults: Mapping[str, int] | None = None,
) -> Callable[[RowsFunction], Report]:
    """Return a decorator that turns a function into a report.

    The decorated function computes the rows. Its name becomes the name of the report, and the first line of its
    docstring becomes the description. The arguments are the other attributes of ``Report``.
    """

    def declare_report(build_rows: RowsFunction) -> Report:
        doc = (build_rows.__doc__ or "").partition("\n")[0]
        return Report(build_rows.__name__, doc, columns, options, required_tables, build_rows, parameter_defaults or {})

    return declare_report


def has_rows(frames: Frames, table: str) -> bool:
    """Return whether the declared table with a given name has rows."""
    return not frames(table).select(pl.first()).head(1).collect().is_empty()


def _create_request_with_empty_tables(request: Request) -> Request:
    return replace(request, frames=lambda table: request.frames(table).clear())


def has_legacy_rounding(frames: Frames) -> bool:
    """Return whether averages must be rounded like SQLite before 3.43.

    This is the case if nsys before 2024.5, or an unknown version, wrote the capture.
    """
    versions = frames("capture_info").filter(name="tool_version").select("value").collect()["value"]
    numbers = versions.str.extract_groups(r"^(\d+)\.(\d+)").struct.unnest().cast(pl.Int64).drop_nulls()
    return not any(v >= _EXACT_ROUNDING_SINCE for v in numbers.iter_rows())
