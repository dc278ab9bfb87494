"""What a report is: a function from the tables of a trace to rows, and the columns that are printed of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports.table import Column, ReportTable

if TYPE_CHECKING:
    from collections.abc import Collection

Frames = Callable[[str], pl.LazyFrame]

KERNEL_NAME_OPTIONS = ("base", "mangled")
KERNEL_OPTIONS = ("nvtx-name", *KERNEL_NAME_OPTIONS)
LAUNCHES_IN_RANGES = ("nvtx_ranges", "api_calls")
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
        build: Makes the rows, in the order printed.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    options: tuple[str, ...]
    needs: tuple[str, ...]
    build: Build

    def __call__(self, request: Request) -> ReportTable:
        """Make the report."""
        rows = self.build(_without_rows(request) if self._lacks_tables(request) else request)
        return ReportTable(self.name, self.columns, rows.collect(), request.legacy_rounding)

    def _lacks_tables(self, request: Request) -> bool:
        needs = LAUNCHES_IN_RANGES if "nvtx-name" in request.options else self.needs
        return any(not _has_rows(request, t) for t in needs) and _has_rows(request, "kernels")


def report(*columns: Column, options: tuple[str, ...] = (), needs: tuple[str, ...] = ()) -> Callable[[Build], Report]:
    """Declare the decorated function to be the report of its name, printed in these columns."""

    def declare(build: Build) -> Report:
        doc = (build.__doc__ or "").partition("\n")[0]
        return Report(build.__name__, doc, columns, options, needs, build)

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
