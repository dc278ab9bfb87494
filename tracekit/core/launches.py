"""Count the kernels whose API calls were not recorded, by the likely reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.correlate import CALL, find_first_row_numbers

if TYPE_CHECKING:
    import numpy.typing as npt

    Mask = npt.NDArray[np.bool_]

_MAX_PROCESSES, _SLOTS_PER_ROW = 16, 8
"""Maximum number of processes that are examined one by one, and of elements per row in their arrays of ids."""


@dataclass(frozen=True, slots=True)
class KernelsWithoutCalls:
    """Numbers of kernels whose API calls were not recorded.

    Attributes:
        kernel_count: Number of all kernels.
        without_id: Kernels without a correlation id. An id of 0 is no id.
        without_process: Kernels with a correlation id whose process is unknown.
        earlier: Kernels whose correlation id is lower than those of all recorded calls of the process.
        other: All other kernels whose calls were not recorded.
    """

    kernel_count: int
    without_id: int
    without_process: int
    earlier: int
    other: int

    @property
    def count(self) -> int:
        """Number of all kernels whose calls were not recorded."""
        return self.without_id + self.without_process + self.earlier + self.other

    def describe(self, call_count: int) -> str:
        """Return a sentence with the numbers and the likely reasons.

        Args:
            call_count: Number of recorded API calls.
        """
        reasons = {
            "have no correlation id": self.without_id,
            "have a correlation id that belongs to calls of several processes or of none": self.without_process,
            "were probably launched before the recording began, because their correlation ids are lower than those "
            "of all recorded calls": self.earlier,
            "have a correlation id that no recorded call has": self.other,
        }
        listed = "; ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
        return (
            f"the API calls of {self.count:,} of {self.kernel_count:,} kernels cannot be found, so these kernels "
            f"are not attributed to calls, ranges and ops: "
            + (listed if call_count else "the capture contains no API calls")
        )


def count_kernels_without_calls(kernels: pl.DataFrame, calls: pl.DataFrame) -> KernelsWithoutCalls:
    """Count the kernels whose API calls were not recorded.

    Args:
        kernels: The columns ``process_id`` and ``correlation_id`` of all kernels.
        calls: The same columns of all API calls.
    """
    process, number = CALL
    without_id = pl.col(number).is_null() | (pl.col(number) == 0)
    no_id, no_process = kernels.select(
        without_id=without_id.sum(), without_process=(~without_id & pl.col(process).is_null()).sum()
    ).row(0)
    kernel_count = kernels.height
    if no_id or no_process:
        kernels = kernels.filter(~without_id & pl.col(process).is_not_null())
    processes = kernels[process].unique()
    if len(processes) > _MAX_PROCESSES:
        missing = find_first_row_numbers(calls, kernels).is_null()
        lost = kernels.filter(missing)
        lowest = calls.drop_nulls().group_by(process).agg(low=pl.col(number).min())
        is_earlier = lost.join(lowest, process, how="left").select(pl.col(number) < pl.col("low")).to_series()
        earlier, missing_count = int(is_earlier.sum()), lost.height
    else:
        pairs = [_count_missing_ids(kernels, calls, int(p)) for p in processes]
        missing_count, earlier = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0, 0)
    return KernelsWithoutCalls(kernel_count, no_id, no_process, earlier, missing_count - earlier)


def _count_missing_ids(kernels: pl.DataFrame, calls: pl.DataFrame, process: int) -> tuple[int, int]:
    """Return how many kernels of a process have an id that no call of the process has, and how many a lower one."""
    ids, known = (_select_ids(table, process) for table in (kernels, calls))
    if not len(known):
        return len(ids), 0
    low, high = int(known.min()), int(known.max())
    earlier = int((ids < low).sum())
    if high - low >= _SLOTS_PER_ROW * (len(ids) + len(known)):
        return int((~np.isin(ids, known)).sum()), earlier
    is_known: Mask = np.zeros(high - low + 1, np.bool_)
    is_known[known - low] = True
    inside = ids[(ids >= low) & (ids <= high)]
    return len(ids) - int(is_known[inside - low].sum()), earlier


def _select_ids(table: pl.DataFrame, process: int) -> npt.NDArray[np.int64]:
    """Return the correlation ids of one process, without nulls."""
    name, number = CALL
    is_process = table[name] == process
    ids = table[number] if is_process.all() and not is_process.null_count() else table.filter(is_process)[number]
    return ids.drop_nulls().to_numpy()
