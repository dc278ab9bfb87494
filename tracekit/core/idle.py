"""Explain why GPUs are idle: what the CPU did in each idle interval.

An idle interval of a GPU ends when the next activity starts on it. The thread that launched this activity kept the GPU
waiting, so the events of this thread explain the interval. If the call that launched the activity was not recorded, the
thread of the next launch on the same GPU is examined, or that of the previous launch if there is no next one.

Each moment of an idle interval has exactly one cause: the first cause in ``CAUSES`` that applies. The times that
are attributed to the causes therefore add up to the idle time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.core import intervals
from tracekit.core.categorical import match_categories_expr
from tracekit.core.intervals import Axis, NestingIndex
from tracekit.core.ops.calls import MODULE_LOAD_PATTERN
from tracekit.core.rollup.breakdown import LOADER_NAME_PATTERN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Frames = Callable[[str], pl.LazyFrame]

CAUSES = {
    "launched": "The next activity was launched but had not started, because of latency or dependencies.",
    "jit_compilation": "The driver compiled code for the GPU in the thread, or loaded or stored compiled code in its "
    "cache.",
    "module_loading": "The thread was in an API call that loads code onto the GPU.",
    "synchronization": "The thread was in an API call that waits for a GPU.",
    "memory_management": "The thread was in an API call that allocates or frees memory.",
    "api_call": "The thread was in another CUDA API call, such as a launch or a copy.",
    "data_loading": "The thread was in an NVTX range that loads data.",
    "os_call": "The thread was in a call of an operating system runtime function.",
    "scheduled_out": "The thread did not run on any CPU.",
    "nvtx_range": "The thread was in another NVTX range.",
    "sampled": "The thread ran on a CPU, as its samples show.",
    "other": "Nothing was recorded about the thread at this time.",
}
"""The causes of idle time in the order of their priority, with their meaning."""

ACTIVITIES = ("kernels", "memcpys", "memsets", "graph_launches")
WAIT_PATTERN = r"Synchronize|cu(?:da)?(?:Event|Stream)Query"
_MEMORY_FUNCTIONS = (
    *("Malloc", "Free", "Host(?:Alloc|Register|Unregister)"),
    "Mem(?:Alloc|Free|Create|Map|Unmap|Release|Address|Pool|Host)",
)
MEMORY_PATTERN = f"^cu(?:da)?(?:{'|'.join(_MEMORY_FUNCTIONS)})"
MAX_SAMPLE_PERIODS = 2
"""A sample represents the time until the next sample, but at most this multiple of the median sampling interval."""

TRACED_CALL = 27  # event class of traced calls; other rows are samples and blocked states
_THREAD = ["process_id", "thread_id"]
_CALL_KEY = ["process_id", "correlation_id"]
_TIMES = ["start_ns", "end_ns"]
_DURATION = pl.col("end_ns") - pl.col("start_ns")
_TRACK = ["device_id", *_THREAD]
_CALL_CAUSES = (
    ("module_loading", MODULE_LOAD_PATTERN),
    ("synchronization", WAIT_PATTERN),
    ("memory_management", MEMORY_PATTERN),
    ("api_call", ""),
)
COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    "device_id": pl.Int32,
    "process_id": pl.Int64,
    "thread_id": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "cause": pl.Enum(list(CAUSES)),
    "name": pl.Categorical,
}
"""Columns of the intervals that ``divide_idle_times_by_cause`` returns."""

_NO_EVENTS = pl.DataFrame(schema={c: t for c, t in COLUMNS.items() if c != "cause"})


def find_idle_times(frames: Frames) -> pl.DataFrame:
    """Return the intervals in which each GPU is idle between its first and its last activity.

    Returns:
        One row per idle interval, sorted by device and start. The columns are ``device_id``, ``start_ns`` and
        ``end_ns``.
    """
    return intervals.find_gaps(_read_gpu_activities(frames).select("device_id", *_TIMES), by=["device_id"])


def divide_idle_times_by_cause(frames: Frames, idle: pl.DataFrame) -> pl.DataFrame:
    """Divide the idle intervals of GPUs by the cause of the idle time.

    Args:
        frames: Function that returns the declared table with a given name.
        idle: Disjoint intervals in which GPUs are idle: ``device_id``, ``start_ns``, ``end_ns``.

    Returns:
        Disjoint intervals that cover ``idle``, sorted by device and start, with the columns ``COLUMNS``. ``process_id``
        and ``thread_id`` identify the thread whose events explain the interval. ``name`` is the innermost API call, OS
        call or range that is the cause. These columns are null if they are unknown.
    """
    typed = [
        _select_interval_columns(p.add_names_to_times().with_columns(_cause_expr(p.cause)))
        for p in _divide_by_cause(frames, idle)
    ]
    return pl.concat(typed).filter(_has_duration_expr()).sort("device_id", "start_ns")


class IdleTimeTotals(NamedTuple):
    """The idle time of GPUs by cause.

    Attributes:
        totals: One row per cause, longest time first: ``cause`` and ``time_ns``.
        main_name: Name of the API call, OS call, range or other event that covers the largest part of the time of the
            first cause, or None if no event is known.
    """

    totals: pl.DataFrame
    main_name: str | None


def sum_idle_times(frames: Frames, idle: pl.DataFrame) -> IdleTimeTotals:
    """Sum the idle time of GPUs by cause.

    This is faster than summing the intervals that ``divide_idle_times_by_cause`` returns.

    Args:
        frames: Function that returns the declared table with a given name.
        idle: Disjoint intervals in which GPUs are idle, as for ``divide_idle_times_by_cause``.
            At least one interval must not be empty.
    """
    totals: list[tuple[str, int]] = []

    def sum_part_times(part: _Part) -> int:
        totals.append((part.cause, part.times.select(_DURATION.sum()).item()))
        return totals[-1][1]

    main = max(_divide_by_cause(frames, idle, divide_at_events=False), key=sum_part_times)
    rows = [(cause, time) for cause, time in totals if time]
    frame = pl.DataFrame(rows, schema={"cause": COLUMNS["cause"], "time_ns": pl.Int64}, orient="row")
    return IdleTimeTotals(frame.sort("time_ns", "cause", descending=[True, False]), main.find_name_with_most_time())


class _Part(NamedTuple):
    """The idle times of GPUs that have the same cause.

    Attributes:
        cause: The cause, a key of ``CAUSES``.
        times: The disjoint idle intervals, with the columns ``_TRACK``, ``start_ns`` and ``end_ns``.
        events: The events of CPU threads that are the cause, with the same columns and ``name``. The frame is empty if
            the cause is not an event.
    """

    cause: str
    times: pl.DataFrame
    events: pl.DataFrame

    def add_names_to_times(self) -> pl.DataFrame:
        """Return the idle intervals with the column ``name``: the name of the innermost event, or null."""
        innermost = NestingIndex.from_intervals(self.events, _TRACK).find_innermost(self.times, "start_ns")
        return self.times.with_columns(name=self.events["name"].gather(innermost))

    def find_name_with_most_time(self) -> str | None:
        """Return the event name with the longest total time, or None if no event has a name.

        If several names have the same time, the alphabetically first one is returned.
        """
        times, _ = _split_by_overlap(self.times, self.events)
        named = (
            self._replace(times=times)
            .add_names_to_times()
            .drop_nulls("name")
            .group_by("name")
            .agg(time_ns=_DURATION.sum())
        )
        longest = named.filter(pl.col("time_ns") == pl.col("time_ns").max())
        name: str | None = longest.select(pl.col("name").cast(pl.String).min()).item()
        return name


def _divide_by_cause(frames: Frames, idle: pl.DataFrame, *, divide_at_events: bool = True) -> Iterator[_Part]:
    """Yield the idle times of GPUs by cause, in the order of ``CAUSES``.

    Args:
        frames: Function that returns the declared table with a given name.
        idle: Disjoint intervals in which GPUs are idle.
        divide_at_events: Whether intervals are divided where an event starts or ends.
    """
    waits = _add_launching_threads(idle, _read_gpu_launches(frames))
    rest = waits.select(*_TRACK, "start_ns", end_ns=pl.col("launched_ns"))
    yield _Part("launched", waits.select(*_TRACK, start_ns="launched_ns", end_ns="end_ns"), _NO_EVENTS)
    rest = rest.filter(_has_duration_expr())
    has_thread = pl.col("thread_id").is_not_null() & pl.col("process_id").is_not_null()
    without_thread, rest = rest.filter(~has_thread), rest.filter(has_thread)
    tracks = rest.select(_TRACK).unique()
    for cause, events in _read_cpu_events_by_cause(frames):
        relevant = events.join(tracks, on=_THREAD, how="inner")
        if relevant.is_empty():
            continue
        covered, rest = _split_by_overlap(
            rest, relevant if divide_at_events else _merge_events(relevant, rest["end_ns"].max())
        )
        yield _Part(cause, covered, relevant)
    yield _Part("other", pl.concat([without_thread, rest]), _NO_EVENTS)


def _merge_events(events: pl.DataFrame, last_ns: object) -> pl.DataFrame:
    """Merge the events of each device and thread that overlap or touch. A null end is replaced with ``last_ns``."""
    ends = pl.col("end_ns").fill_null(pl.lit(last_ns, pl.Int64))
    return intervals.merge_intervals(events.with_columns(ends), by=_TRACK)


def _select_interval_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Return intervals with the columns and types of ``COLUMNS``."""
    return rows.select(pl.col(column).cast(dtype) for column, dtype in COLUMNS.items())


def _cause_expr(cause: str) -> pl.Expr:
    return pl.lit(cause, COLUMNS["cause"]).alias("cause")


def _has_duration_expr() -> pl.Expr:
    return pl.col("start_ns") < pl.col("end_ns")


def _read_gpu_activities(frames: Frames) -> pl.DataFrame:
    """Return all GPU activities that have a positive duration.

    The columns are ``device_id``, ``start_ns``, ``end_ns`` and those of ``_CALL_KEY``, which identify the API call.
    """
    rows = [frames(table).select("device_id", *_CALL_KEY, *_TIMES) for table in ACTIVITIES]
    return pl.concat(rows).filter(_has_duration_expr()).collect()


def _read_gpu_launches(frames: Frames) -> pl.DataFrame:
    """Return all GPU activities in order of device and start, with the thread that launched them.

    The columns are ``device_id``, ``process_id``, ``thread_id``, ``start_ns`` and ``call_end_ns``, the end of the
    launching call. If the call was not recorded, ``call_end_ns`` is null, and the thread is that of the next or
    previous launch on the device.
    """
    recorded = frames("api_calls").filter(pl.col("correlation_id") != 0)
    calls = recorded.select(*_CALL_KEY, "thread_id", call_end_ns="end_ns").collect()
    calls = calls.unique(_CALL_KEY, keep="first", maintain_order=True)
    rows = _read_gpu_activities(frames).sort("device_id", "start_ns", maintain_order=True)
    rows = rows.join(calls, on=_CALL_KEY, how="left", maintain_order="left")
    thread = pl.when(pl.col("thread_id").is_not_null())
    neighbors = (
        thread.then(column).alias(column).backward_fill().over("device_id").forward_fill().over("device_id")
        for column in _THREAD
    )
    return rows.select("device_id", *neighbors, "start_ns", "call_end_ns")


def _add_launching_threads(idle: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Add to each idle interval the thread that launched the next activity, and the time at which the launch returned.

    Returns:
        The rows of ``idle`` with ``process_id``, ``thread_id`` and ``launched_ns``, the end of the launching call,
        clipped to the interval. If the call is unknown, ``launched_ns`` is the end of the interval.
    """
    first = launches.unique(["device_id", "start_ns"], keep="first", maintain_order=True).sort("start_ns")
    last = launches.group_by("device_id").agg(pl.col(_THREAD).last().name.suffix("_last"))
    next_start = first.rename({"start_ns": "next_start_ns"})
    waits = idle.sort("end_ns").join_asof(
        next_start,
        left_on="end_ns",
        right_on="next_start_ns",
        by="device_id",
        strategy="forward",
        check_sortedness=False,
    )
    waits = waits.join(last, on="device_id", how="left")
    launched = pl.col("call_end_ns").fill_null(pl.col("end_ns")).clip(pl.col("start_ns"), pl.col("end_ns"))
    threads = (
        pl.when(pl.col("next_start_ns").is_null()).then(f"{column}_last").otherwise(column).alias(column)
        for column in _THREAD
    )
    return waits.with_columns(*threads, launched.alias("launched_ns"))


def _read_cpu_events_by_cause(frames: Frames) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each cause of idle time with the events of CPU threads that indicate it, in the order of ``CAUSES``.

    The columns of the events are ``process_id``, ``thread_id``, ``start_ns``, ``end_ns`` and ``name``.
    """
    yield "jit_compilation", frames("jit_operations").select(*_THREAD, *_TIMES, "name").collect()
    calls = frames("api_calls").select(*_THREAD, *_TIMES, "name").collect()
    for cause, pattern in _CALL_CAUSES:
        condition = name_matches_expr(pattern) if pattern else pl.lit(value=True)
        yield cause, calls.filter(condition)
        calls = calls.filter(~condition)
    ranges = frames("nvtx_ranges").select(*_THREAD, *_TIMES, "name").collect()
    loads = ranges.select(name_matches_expr(LOADER_NAME_PATTERN)).to_series()
    yield "data_loading", ranges.filter(loads)
    os_calls = frames("osrt_calls").filter(event_class=TRACED_CALL)
    yield "os_call", os_calls.select(*_THREAD, *_TIMES, "name").collect()
    yield "scheduled_out", _find_scheduled_out_times(frames)
    yield "nvtx_range", ranges.filter(~loads)
    yield "sampled", _compute_sampled_times(frames)


def name_matches_expr(pattern: str) -> pl.Expr:
    """Return an expression for whether the Categorical column ``name`` matches a regular expression.

    The pattern is applied once to each distinct name. The result is false for a null.
    """
    return match_categories_expr(pl.col("name"), lambda names: names.str.contains(pattern))


def _find_scheduled_out_times(frames: Frames) -> pl.DataFrame:
    """Return the intervals in which threads did not run on any CPU: from each switch out to the next switch in."""
    columns = (*_THREAD, "timestamp_ns", "is_scheduled_in", "thread_state")
    switches = frames("cpu_scheduling").select(columns).collect().sort(*_THREAD, "timestamp_ns", maintain_order=True)
    back = pl.col("timestamp_ns").shift(-1).over(_THREAD)
    away = switches.with_columns(end_ns=back).filter(~pl.col("is_scheduled_in")).drop_nulls("end_ns")
    return away.select(*_THREAD, "end_ns", start_ns="timestamp_ns", name="thread_state")


def _compute_sampled_times(frames: Frames) -> pl.DataFrame:
    """Return the interval that each CPU sample represents: the time until the next sample of the thread.

    An interval is at most ``MAX_SAMPLE_PERIODS`` times as long as the median time between the samples of its thread.
    """
    samples = frames("cpu_samples").select(*_THREAD, "timestamp_ns").collect()
    samples = samples.sort(*_THREAD, "timestamp_ns")
    distance = (pl.col("timestamp_ns").shift(-1) - pl.col("timestamp_ns")).over(_THREAD)
    samples = samples.with_columns(distance=distance)
    usual = pl.col("distance").median().floor().cast(pl.Int64).over(_THREAD) * MAX_SAMPLE_PERIODS
    end = pl.col("timestamp_ns") + pl.min_horizontal(pl.col("distance").fill_null(usual), usual)
    sampled = samples.select(*_THREAD, start_ns="timestamp_ns", end_ns=end, name=pl.lit(None, pl.Categorical))
    return sampled.drop_nulls("end_ns")


def _split_by_overlap(times: pl.DataFrame, events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Divide disjoint intervals into the parts in which events run, and the parts in which no event runs.

    Args:
        times: The disjoint intervals to divide: the columns ``_TRACK``, ``start_ns`` and ``end_ns``.
        events: The events, with the same columns. They may overlap. An event with a null end never ends.

    Returns:
        The intervals in which events run, and those in which no event runs. Intervals are also divided at the start and
        end of each event.
    """
    axis = Axis.from_intervals(times, events, by=_TRACK)
    edges = [
        axis.compute_nonempty_positions(rows).select(
            t=c, inside=pl.lit(inside * step), open=pl.lit((1 - inside) * step)
        )
        for inside, rows in ((1, times), (0, events))
        for c, step in (("start", 1), ("end", -1))
    ]
    sweep = (
        pl.concat(edges)
        .sort("t")
        .select(start="t", end=pl.col("t").shift(-1), inside=pl.col("inside").cum_sum(), open=pl.col("open").cum_sum())
    )
    pieces = sweep.filter((pl.col("inside") > 0) & (pl.col("start") < pl.col("end")))
    covered, rest = (axis.convert_to_intervals(pieces.filter(c)) for c in (pl.col("open") > 0, pl.col("open") == 0))
    return covered, rest
