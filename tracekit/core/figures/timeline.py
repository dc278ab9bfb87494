"""Sample values over time: the share of time in which GPUs were busy, and the extremes of measured values."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

import polars as pl

from tracekit.core import allocator, intervals, memory, queues
from tracekit.core.relations import ACTIVITIES
from tracekit.errors import MissingTableError, UnknownFormatError, create_choices_hint
from tracekit.registry.tables import scan_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.figures import FigureInputs, Frames

_TIMES = ["start_ns", "end_ns"]
_BUSY = {"device_id": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "busy_ns": pl.Int64}
_PARTS_OF_BIN = 16


def utilization_over_time(inputs: FigureInputs, *, bins: int, device: int | None, rows: int) -> pl.DataFrame:
    """Return the busy time of each GPU in consecutive time bins of equal duration.

    The columns ``min_percent`` and ``max_percent`` are the lowest and the highest utilization in the sixteenths of a
    bin, so that a short peak is visible in a long bin.

    Args:
        inputs: The trace.
        bins: Number of bins. Fewer bins are used if the result would have more than ``rows`` rows.
        device: Id of the GPU. If None, the result has the bins of all GPUs.
        rows: Maximum number of rows, with one row per GPU and bin.
    """
    activities = read_gpu_activities(inputs.frames, device)
    devices = max(activities["device_id"].n_unique(), 1)
    times = compute_utilization_in_bins(activities, max(1, min(bins, rows // devices)))
    if times.is_empty():
        noun = "GPU activities" if device is None else f"activities on GPU {device}"
        raise MissingTableError(f"the capture has no {noun}")
    return times


def memory_usage(inputs: FigureInputs, *, rows: int) -> pl.DataFrame:
    """Return the memory in use over time, reduced to about the given number of rows."""
    changes = read_memory_changes(functools.partial(scan_table, inputs.view.without("time")), rows, inputs.window)
    if changes.is_empty():
        raise MissingTableError("the capture has no allocations")
    return changes


def queue_length(inputs: FigureInputs, *, streams: int, rows: int) -> pl.DataFrame:
    """Return the lengths of the longest queues over time, reduced to about the given number of rows.

    Args:
        inputs: The trace.
        streams: Maximum number of streams.
        rows: Approximate number of rows.
    """
    launches = queues.read_launches(inputs.frames, functools.partial(scan_table, inputs.view.without()))
    lengths = queues.compute_queue_lengths(launches)
    if lengths.is_empty():
        raise MissingTableError("the capture has no operations of the GPU whose launches were recorded")
    by = queues.QUEUE
    longest = (
        lengths.group_by(by).agg(pl.col("length").max()).sort("length", *by, descending=[True, *[False] * len(by)])
    )
    chosen = longest.head(streams).select(by)
    lengths = lengths.join(chosen, on=by, how="semi", nulls_equal=True).sort("timestamp_ns", maintain_order=True)
    reduced = reduce_samples(lengths, by=by, value_column="length", summary="last", rows=rows)
    return reduced.rename({"minimum": "min_length", "maximum": "max_length"})


def metrics(inputs: FigureInputs, *, names: Sequence[str] | None, count: int, rows: int) -> pl.DataFrame:
    """Return the samples of GPU metrics, reduced to about the given number of rows.

    Args:
        inputs: The trace.
        names: Names of the metrics. If None, the percentage metrics with the highest values are returned.
        count: Maximum number of metrics if ``names`` is None.
        rows: Approximate number of rows.
    """
    frames = inputs.frames
    known = list_metric_names(frames)
    if not known:
        raise MissingTableError("the capture has no GPU metrics")
    for name in names or ():
        if name not in known:
            raise UnknownFormatError(f"there is no metric {name!r}", hint=create_choices_hint("metrics", known, name))
    return read_metric_samples(frames, list(names or find_names_of_highest_metrics(frames, count)), rows)


def read_gpu_activities(frames: Frames, device: int | None = None) -> pl.DataFrame:
    """Return the start and end of each activity on one GPU, or on all GPUs if ``device`` is None.

    The columns are ``device_id``, ``start_ns`` and ``end_ns``.
    """
    rows = pl.concat([frames(table).select("device_id", *_TIMES) for table in ACTIVITIES])
    return (rows if device is None else rows.filter(pl.col("device_id") == device)).collect()


def compute_busy_times(activities: pl.DataFrame, bins: int) -> pl.DataFrame:
    """Return how long each GPU was busy in each bin of time.

    A GPU is busy while at least one activity runs on it. Times are exact: the busy times of all bins add up to the
    duration of the union of the activities.

    Args:
        activities: Activities, as ``read_gpu_activities`` returns them.
        bins: Number of bins between the first start and the last end of all GPUs. The duration of bins differs by at
            most 1 ns. If there are fewer nanoseconds than bins, there is one bin per nanosecond.

    Returns:
        One row per GPU and bin, sorted by both: ``device_id``, ``start_ns``, ``end_ns`` and ``busy_ns``.
    """
    return _divide_busy_times(intervals.merge_intervals(activities, by=["device_id"]), bins)


def _divide_busy_times(busy: pl.DataFrame, bins: int) -> pl.DataFrame:
    """Return how long each GPU was busy in each bin of time, from the disjoint intervals in which it was busy."""
    if busy.is_empty():
        return pl.DataFrame(schema=_BUSY)
    first, last = (int(t) for t in busy.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0))
    count = min(bins, last - first)
    edges = pl.Series("edge", [first + (last - first) * i // count for i in range(count + 1)], dtype=pl.Int64)
    devices = busy.partition_by("device_id", maintain_order=True)
    rows = []
    for device in devices:
        times = _compute_busy_time_before(device, edges).diff().slice(1)
        cells = pl.DataFrame({"start_ns": edges.slice(0, count), "end_ns": edges.slice(1), "busy_ns": times})
        rows.append(cells.select(pl.lit(device["device_id"][0]).alias("device_id"), pl.all()))
    return pl.concat(rows).cast(_BUSY)  # type: ignore[arg-type]


def compute_utilization_in_bins(activities: pl.DataFrame, bins: int) -> pl.DataFrame:
    """Return the busy times of GPUs in bins, with the lowest and the highest utilization in the parts of each bin.

    Args:
        activities: Activities, as ``read_gpu_activities`` returns them.
        bins: Number of bins, as for ``compute_busy_times``. A bin of 16 ns or more has 16 parts.

    Returns:
        The rows of ``compute_busy_times`` with the columns ``min_percent`` and ``max_percent``.
    """
    busy = intervals.merge_intervals(activities, by=["device_id"])
    whole = _divide_busy_times(busy, bins)
    if whole.is_empty():
        return whole.with_columns(min_percent=pl.lit(0.0), max_percent=pl.lit(0.0))
    count = whole["start_ns"].n_unique()
    shortest = int(whole.select((pl.col("end_ns") - pl.col("start_ns")).min()).item())
    parts = max(1, min(_PARTS_OF_BIN, shortest))
    percent = pl.col("busy_ns") * 100.0 / (pl.col("end_ns") - pl.col("start_ns"))
    cells = _divide_busy_times(busy, count * parts).with_columns(percent=percent)
    extremes = cells.group_by("device_id", pl.int_range(pl.len()).over("device_id") // parts, maintain_order=True).agg(
        min_percent=pl.col("percent").min(), max_percent=pl.col("percent").max()
    )
    return whole.with_columns(extremes["min_percent"], extremes["max_percent"])


def _compute_busy_time_before(busy: pl.DataFrame, times: pl.Series) -> pl.Series:
    """Return how long one GPU was busy before each of the given times, in ns.

    Args:
        busy: The times in which one GPU was busy, as disjoint intervals: ``start_ns`` (ascending) and ``end_ns``.
        times: Times in ns.
    """
    total = (busy["end_ns"] - busy["start_ns"]).cum_sum()
    preceding = busy["start_ns"].search_sorted(times, side="left").cast(pl.Int64) - 1
    row = pl.select(pl.when(preceding >= 0).then(preceding)).to_series()
    rows = pl.DataFrame({"time": times, "total": total.gather(row), "end": busy["end_ns"].gather(row)})
    remaining = pl.max_horizontal("end", "time") - pl.col("time")
    return rows.select((pl.col("total") - remaining).fill_null(0)).to_series()


def reduce_samples(
    samples: pl.DataFrame, *, by: Sequence[str], value_column: str, summary: Literal["median", "last"], rows: int
) -> pl.DataFrame:
    """Merge the samples of each series in bins of time, unless there are few. Extremes are kept.

    Args:
        samples: Samples in order of ``timestamp_ns``: the columns ``by``, ``timestamp_ns`` and ``value_column``.
        by: Columns that identify a series.
        value_column: Name of the column with the values.
        summary: Which sample is the value of a bin: the last one, or the lower median.
        rows: Maximum number of rows. All series have the same bins, between the first and the last sample.

    Returns:
        One row per series and bin with samples, or one per sample if there are at most ``rows``, in order of time:
        ``timestamp_ns`` (time of the first sample), the columns ``by``, ``value_column``, ``minimum``, ``maximum``,
        ``maximum_ns`` (time of the first sample with the largest value) and ``sample_count``.
    """
    time, value = pl.col("timestamp_ns"), pl.col(value_column)
    if samples.height <= rows:
        extremes = {"minimum": value, "maximum": value, "maximum_ns": time, "sample_count": pl.lit(1, pl.Int64)}
        return samples.select("timestamp_ns", *by, value_column, **extremes)
    bins = max(1, rows // samples.select(by).n_unique())
    nth = (time - time.min()) // ((time.max() - time.min()) // bins + 1)
    ordered = value.drop_nulls().sort()
    chosen = value.drop_nulls().last() if summary == "last" else ordered.get((ordered.len() - 1) // 2)
    by_bin = samples.drop_nulls(value_column).with_columns(bin=nth).group_by(*by, "bin", maintain_order=True)
    merged = by_bin.agg(
        time.first(),
        chosen,
        minimum=value.min(),
        maximum=value.max(),
        maximum_ns=time.get(value.arg_max()),
        sample_count=pl.len().cast(pl.Int64),
    )
    columns = ("timestamp_ns", *by, value_column, "minimum", "maximum", "maximum_ns", "sample_count")
    return merged.select(columns).sort("timestamp_ns", maintain_order=True)


def read_memory_changes(
    frames: Frames, points: int, window: tuple[int | None, int | None] = (None, None)
) -> pl.DataFrame:
    """Return the memory in use by device and kind after each change, reduced to about ``points`` rows.

    Args:
        frames: Function that returns the table with a given name. The tables must not be limited to the window, because
            memory that was allocated earlier may still be in use.
        points: Approximate number of rows to return.
        window: Start and end ``[a, b)`` in ns. Either may be None. The memory in use at the start of the window is
            returned as a row with that time.

    Returns:
        One row per change, or per bin of time if there are more than ``points``: ``timestamp_ns``, ``device_id``,
        ``memory_kind``, ``used_bytes`` (after the last change in the bin), ``min_bytes``, ``max_bytes``,
        ``maximum_ns`` (time of the largest value) and ``sample_count``, in order of time.
    """
    usage = memory.compute_memory_usage(memory.pair_allocations(frames("memory_events").select(memory.READ).collect()))
    reserved = allocator.compute_changes(frames("allocator_events").select(allocator.CHANGES).collect())
    usage = pl.concat([usage.select(reserved.columns), reserved]).sort("timestamp_ns", maintain_order=True)
    changes = memory.select_memory_changes_in_window(usage, window)
    if window[0] is not None:
        changes = changes.with_columns(pl.col("timestamp_ns").clip(lower_bound=window[0]))
    rows = reduce_samples(changes, by=memory.GROUP, value_column="used_bytes", summary="last", rows=points)
    return rows.rename({"minimum": "min_bytes", "maximum": "max_bytes"})


def list_metric_names(frames: Frames) -> list[str]:
    """Return the names of the GPU metrics of a capture, in order of their first sample."""
    names = frames("gpu_metrics").select(pl.col("metric").unique(maintain_order=True).cast(pl.String)).collect()
    return names["metric"].drop_nulls().to_list()


def find_names_of_highest_metrics(frames: Frames, limit: int) -> list[str]:
    """Return the names of the GPU metrics in percent that reach the highest values, highest first.

    If no metric is in percent, all metrics are considered.
    """
    highest = frames("gpu_metrics").group_by("metric").agg(pl.col("value").max()).collect().drop_nulls("metric")
    names = highest.with_columns(pl.col("metric").cast(pl.String)).sort("value", "metric", descending=[True, False])
    percent = names.filter(pl.col("metric").str.ends_with("%]"))
    return (percent if percent.height else names)["metric"].head(limit).to_list()


def read_metric_samples(frames: Frames, names: Sequence[str], points: int) -> pl.DataFrame:
    """Return the samples of GPU metrics, reduced to about ``points`` rows.

    Returns:
        One row per sample, or per bin of time if there are more than ``points``: ``timestamp_ns``, ``device_id``,
        ``metric`` (String), ``value`` (the lower median of the bin), ``min_value``, ``max_value``, ``maximum_ns`` (time
        of the largest value) and ``sample_count``, in order of time.
    """
    metrics = frames("gpu_metrics").select("timestamp_ns", "device_id", pl.col("metric").cast(pl.String), "value")
    samples = metrics.filter(pl.col("metric").is_in(names)).collect().sort("timestamp_ns", maintain_order=True)
    series = ["device_id", "metric"]
    rows = reduce_samples(samples, by=series, value_column="value", summary="median", rows=points)
    return rows.rename({"minimum": "min_value", "maximum": "max_value"})
