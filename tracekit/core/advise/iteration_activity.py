"""Provide the data that the rules of ``advise`` examine: the kernels of the aggregated iterations."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.core.rollup import Rollup

DURATION = pl.col("end_ns") - pl.col("start_ns")
MAX_NAME_LENGTH = 80
_TIMES_ON_GPU = {"gpu_start_ns": "start_ns", "gpu_end_ns": "end_ns"}


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause of slow steps, or a problem that a rule of ``advise`` measures.

    Each attribute becomes a column of the result of ``advise``, where ``figures`` is serialized as a JSON object.
    """

    rule: str
    problem: str
    evidence: str
    advice: str
    time_ns: int
    share: float
    after: float | None
    count: int
    start_ns: int
    end_ns: int
    figures: Mapping[str, float]


@dataclass(frozen=True)
class IterationActivity:
    """The kernels of the aggregated iterations of a roll-up.

    Attributes:
        rollup: The roll-up that provides the kernels and the iterations.
    """

    rollup: Rollup

    @functools.cached_property
    def windows(self) -> pl.DataFrame:
        """The windows of the aggregated iterations: ``start_ns`` and ``end_ns``.

        Overlapping windows are merged. In DLProf's mode, no window starts before the first op of the capture.
        """
        first = self.rollup.select_instances("start_ns")["start_ns"].min()
        start = pl.max_horizontal("start_ns", pl.lit(first if isinstance(first, int) else 0))
        return self.rollup.iterations.merged_times.with_columns(start_ns=start).filter(DURATION > 0)

    @functools.cached_property
    def duration_ns(self) -> int:
        """Total duration of the time windows of the aggregated iterations, in ns."""
        return sum_durations(self.windows)

    @functools.cached_property
    def kernels(self) -> pl.DataFrame:
        """The kernels that the aggregated iterations launched, in order of start.

        The columns are ``device_id``, ``start_ns``, ``end_ns`` and ``name``.
        """
        measures = self.rollup.measures
        is_kernel = (measures.select_calls("kind").to_series() == "kernel").arg_true()
        columns = ("device_id", *_TIMES_ON_GPU, "name", "instance", "process_id", "start_ns")
        rows = measures.select_calls(*columns, rows=is_kernel)
        rows = rows.filter(self.rollup.find_call_iterations(rows).is_not_null())
        rows = rows.drop("instance", "process_id", "start_ns").rename(_TIMES_ON_GPU)
        return rows.drop_nulls("start_ns").filter(DURATION > 0).sort("start_ns", "end_ns")

    def compute_percentage(self, time_ns: int) -> float:
        """Return a duration as a percentage of the total duration of the aggregated iterations."""
        return 100 * time_ns / self.duration_ns


def shorten_name(name: str) -> str:
    """Shorten a name to at most 80 characters by replacing its beginning with an ellipsis."""
    return name if len(name) <= MAX_NAME_LENGTH else "…" + name[1 - MAX_NAME_LENGTH :]


def sum_durations(rows: pl.DataFrame) -> int:
    """Return the sum of the durations of the intervals, in ns."""
    return int(rows.select(DURATION.sum()).item())
