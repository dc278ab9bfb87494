"""What a report is: a function from the tables of a trace to rows, and the columns that are printed of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports.table import Column, ReportTable

if TYPE_CHECKING:
    from collections.abc import Collection

Frames = Callable[[str], pl.LazyFrame]
Reads = Mapping[str, Sequence[str]]
Prefetch = Callable[[Reads], None]

KERNEL_NAME_OPTIONS = ("base", "mangled")
KERNEL_OPTIONS = ("nvtx-name", *KERNEL_NAME_OPTIONS)
LAUNCHES_IN_RANGES = ("nvtx_ranges", "api_calls")
THREAD = ("process_id", "thread_id")
CALL = ("process_id", "correlation_id")  # what links GPU work to the call that launched it
TIMES = ("start_ns", "end_ns")
CALLS = (*THREAD, "correlation_id", *TIMES)
RANGES = ("range_id", *TIMES, "kind", *THREAD, "end_thread_id", "domain", "name")
_OTHER_NAMES = {"base": "short_name", "mangled": "mangled_name"}
_EXACT_ROUNDING_SINCE = (2024, 5)


@dataclass(frozen=True, slots=True)
class Request:
    """What a report is made from.

    Attributes:
        frames: Gives a declared table by name.
        options: nsys's options, as in ``cuda_gpu_kern_sum:nvtx-name:base``.
        legacy_rounding: Whether averages are rounded as by nsys before 2024.5.
    """

    frames: Frames
    options: Collection[str] = ()
    legacy_rounding: bool = False


Build = Callable[[Request], pl.LazyFrame]


@dataclass(frozen=True, slots=True)
class Report:
    """One named report; call it with a request.

    Attributes:
        name: nsys's name of it.
        doc: One line that says what it shows.
        columns: What is printed, in order.
        options: nsys's options that it takes.
        needs: Tables without which a capture of kernels makes it empty, as it does with nsys.
        reads: Columns that it reads, by table, so that they are read together; names of kernels are understood.
        build: Makes the rows, in the order printed.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    options: tuple[str, ...]
    needs: tuple[str, ...]
    reads: Reads
    build: Build

    def __call__(self, request: Request) -> ReportTable:
        """Make the report."""
        rows = self.build(_without_rows(request) if self._lacks_tables(request) else request)
        return ReportTable(self.name, self.columns, rows.collect(), request.legacy_rounding)

    def reads_with(self, request: Request) -> dict[str, list[str]]:
        """Columns that it reads with some options, by table; they decide what kernels are called."""
        read = {table: list(columns) for table, columns in self.reads.items()}
        if "kernels" in read:
            read["kernels"] += ["name", *(c for option, c in _OTHER_NAMES.items() if option in request.options)]
        if "nvtx-name" in request.options:
            read["kernels"] += CALL
            read["nvtx_ranges"], read["api_calls"] = list(RANGES), [*read.get("api_calls", ()), *CALLS]
        for table in self._needs(request):
            read.setdefault(table, []).append(request.frames(table).collect_schema().names()[0])
        return {table: list(dict.fromkeys(columns)) for table, columns in read.items()}

    def _lacks_tables(self, request: Request) -> bool:
        *needs, kernels = self._needs(request) or ("kernels",)
        return any(not _has_rows(request, t) for t in needs) and _has_rows(request, kernels)

    def _needs(self, request: Request) -> tuple[str, ...]:
        needs = LAUNCHES_IN_RANGES if "nvtx-name" in request.options else self.needs
        return (*needs, "kernels") if needs else ()


def report(
    *columns: Column, reads: Reads = MappingProxyType({}), options: tuple[str, ...] = (), needs: tuple[str, ...] = ()
) -> Callable[[Build], Report]:
    """Declare the decorated function to be the report of its name, printed in these columns."""

    def declare(build: Build) -> Report:
        doc = (build.__doc__ or "").partition("\n")[0]
        return Report(build.__name__, doc, columns, options, needs, reads, build)

    return declare


def _has_rows(request: Request, table: str) -> bool:
    return not request.frames(table).select(pl.first()).head(1).collect().is_empty()


def _without_rows(request: Request) -> Request:
    return replace(request, frames=lambda table: request.frames(table).clear())


def has_legacy_rounding(frames: Frames) -> bool:
    """Tell whether the tool that wrote the capture rounds as SQLite before 3.43: nsys before 2024.5, or unknown."""
    versions = frames("capture_info").filter(name="tool_version").select("value").collect()["value"]
    numbers = versions.str.extract_groups(r"^(\d+)\.(\d+)").struct.unnest().cast(pl.Int64).drop_nulls()
    return not any(v >= _EXACT_ROUNDING_SINCE for v in numbers.iter_rows())
