"""Provide what the rules of causes examine: the model of steady steps, and which events already belong to a cause."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np
import polars as pl

from tracekit.core.diagnosis.cures import SCALES, SCALES_OF_EMIT_NVTX, SCALES_OF_PYTORCH, Claims, Example
from tracekit.core.diagnosis.first_calls import find_first_calls
from tracekit.core.diagnosis.kinds import CALL_NUMBERS, CLASSES, COMPUTE
from tracekit.core.diagnosis.ledger import find_exposed_times, measure_before
from tracekit.core.diagnosis.measured import Measurements, read_measurements
from tracekit.core.diagnosis.operations import LONG_NS, NO_WAIT, PAUSE, is_of_threads_expr
from tracekit.core.diagnosis.rates import Rates, compare_with_peaks
from tracekit.core.intervals import NestingIndex
from tracekit.core.series import decode_categories
from tracekit.core.work import peaks as gpu_peaks
from tracekit.system.sorting import create_series
from tracekit.text import format_duration, format_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tracekit.core.diagnosis.cures import Cure
    from tracekit.core.diagnosis.model import Model
    from tracekit.core.diagnosis.ranks import RankPlan
    from tracekit.core.diagnosis.replay import CpuScales
    from tracekit.core.work.peaks import Peaks

    Int64s = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

_RECURRING_SHARE = 0.6
_WHOLE_COUNT = 10
_ANY_NS = np.iinfo(np.int64).max
_BYTE_UNITS = (("GB", 1e9), ("MB", 1e6), ("KB", 1e3))
_QUIET_KINDS = [PAUSE, *(CALL_NUMBERS[k] for k in ("other", "query", "record_event", "wait_event", "launch"))]
_HIDDEN_SYMBOLS = r"^(0x|\[|_?_?libc_|start_thread|clone|Py_|_Py|PyEval|PyObject|cfunction|method_|_start|main$|pymain)"
"""Functions of interpreters and of the start of threads."""
_WAITING_SYMBOLS = (
    r"^(cuda[A-Z]|cu[A-Z]|hip[A-Z]|lib(cuda|cudart|amdhip64)\b|_*(pthread|sem|futex|poll|ioctl|sched_yield|clock_gettime)|syscall"
    r"|synchronize$)"
)
"""Functions that wait for the GPU on behalf of their callers."""
_HIDDEN_FUNCTIONS = (
    r"^<|^torch/(nn/modules/module|_ops|cuda/__init__|utils/_contextlib|autograd/profiler)\.py"
    r"|: _(call|wrapped_call)_impl$"
)
"""Python functions of a trace of PyTorch that only call others."""
LOCK_CALLS = r"^(pthread_(mutex|cond|rwlock|spin|barrier|join)|sem_|futex)"
"""Calls of the operating system that wait for another thread."""

_GIL_SYMBOLS, _GIL_FRAMES = r"take_gil|PyGILState_Ensure|PyEval_(RestoreThread|Acquire(Thread|Lock))", 6
"""Functions in which Python waits for the GIL, and the number of innermost frames in which they are searched for."""


@dataclass
class Inspection:
    """The model of one process, what it takes to find causes in it, and what already belongs to a cause.

    Attributes:
        model: The model.
        late_ns: Time for which each operation waits for other ranks, or None if it is unknown.
        plan: What is known about the other ranks, or None.
        claims: Which items and operations already belong to a cure.
    """

    model: Model
    late_ns: Int64s | None = None
    plan: RankPlan | None = None
    claims: Claims = field(init=False)
    _functions: dict[int | None, NestingIndex] = field(init=False, default_factory=dict)
    _os_calls: dict[int | None, pl.DataFrame] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.claims = Claims(self.model)

    @property
    def step_count(self) -> int:
        """Number of steps in the model."""
        return len(self.model.steps)

    @functools.cached_property
    def measured(self) -> Measurements | None:
        """What Nsight Compute measured of the operations, or None if its results are not joined to the kernels."""
        joined = self.model.events.joined
        if joined is None:
            return None
        frames = joined.frames
        results = read_measurements(frames)
        rows = results.limits.select("launch_id").with_row_index("result")
        kernels = frames("kernels").select("kernel_id", launch_id="ncu_launch_id").drop_nulls().collect()
        matches = kernels.join(rows, "launch_id").select("result", id="kernel_id", table=pl.lit("kernels"))
        operations = self.model.events.operations.select("id", pl.col("table").cast(pl.String))
        own = operations.select(pl.all().gather(create_series(self.model.operations.row)))
        index = own.join(matches, ["table", "id"], how="left", maintain_order="left")["result"]
        return results.gather(index.cast(pl.Int64).fill_null(-1).to_numpy())

    def find_measured(self, cause: str) -> Mask:
        """Return which free operations have a cause according to Nsight Compute."""
        free = self.claims.free_operations
        return np.zeros_like(free) if self.measured is None else free & self.measured.find_cause(cause)

    def refutes(self, cause: str) -> Mask:
        """Return of which operations Nsight Compute shows that they do not have a cause."""
        measured = self.measured
        if measured is None:
            return np.zeros(len(self.model.operations.start), np.bool_)
        known = {"precision": "tensor_share", "low_occupancy": "occupancy"}[cause]
        return ~np.isnan(measured.read(known)) & ~measured.find_cause(cause)

    def claim_measured(self, rows: Int64s) -> tuple[Int64s, tuple[Int64s, Int64s, Int64s]]:
        """Claim operations, and return the durations that stay according to Nsight Compute."""
        rows = self.claims.take_operations(rows)
        duration = self.model.operations.duration[rows]
        stays = np.ones((len(rows), 3)) if self.measured is None else self.measured.stays[rows]
        low, likely, high = ((duration * stays[:, i]).astype(np.int64) for i in range(3))
        return rows, (low, likely, high)

    def measure_rate(self, rows: Int64s, column: str) -> float:
        """Return the average of a share if Nsight Compute measured at least half of some operations, or -1."""
        measured, duration = self.measured, self.model.operations.duration[rows]
        if measured is None or 2 * duration[measured.measured_kernels[rows]].sum() < duration.sum():
            return -1.0
        average = measured.average(column, rows)
        return -1.0 if average is None else average

    def cite_measurements(self, rows: Int64s) -> str:
        """Return a clause that states how many of some kernels Nsight Compute measured, and their metrics, or ""."""
        if self.measured is None:
            return ""
        own = rows[self.measured.measured_kernels[rows]]
        metrics = self.measured.describe(own)
        return f"; Nsight Compute measured {len(own):,} of these {len(rows):,} kernels: {metrics}" if metrics else ""

    @functools.cached_property
    def peaks(self) -> Peaks:
        """The peak rates of the GPU. Those of a current one are assumed if they are unknown."""
        return self.known_peaks or gpu_peaks.get_default_peaks()

    @functools.cached_property
    def known_peaks(self) -> Peaks | None:
        """The peak rates of the GPU, or None if they are unknown."""
        return gpu_peaks.find_peaks(self._device)

    @functools.cached_property
    def rates(self) -> Rates:
        """The rates of operations as shares of the peak rates of the GPU, where their work is known."""
        return compare_with_peaks(self.model)

    @functools.cached_property
    def roofline(self) -> tuple[float, float]:
        """The share of the time of kernels whose work is known, and the share of the step at the roofline."""
        model, exposed = self.model, self.exposed_ns
        busy = int(exposed[model.find_class(*COMPUTE)].sum())
        known, at_roofline = (int(exposed[mask].sum()) for mask in (self.rates.known, self.rates.at_roofline))
        return known / max(1, busy), at_roofline / max(1, model.duration_ns)

    @functools.cached_property
    def _device(self) -> dict[str, object]:
        """The row of the GPU that works most in ``devices``, or no values if it is unknown."""
        operations = self.model.events.operations
        times = operations.group_by("device_id").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("time"))
        used = times.sort("time", descending=True)["device_id"][0] if times.height else None
        devices = self.model.events.frames("devices").select(gpu_peaks.COLUMNS).collect()
        devices = devices.filter(pl.col("device_id") == used) if used is not None else devices
        return next((row for row in devices.to_dicts() if row["name"]), {})

    @property
    def device_name(self) -> str | None:
        """The name of the GPU that works most, or None if it is unknown."""
        return cast("str | None", self._device.get("name"))

    @functools.cached_property
    def scales(self) -> tuple[CpuScales, ...]:
        """Scales between which the CPU ran without the profiler. The second one is the most likely one."""
        domains = self.model.events.frames("nvtx_ranges").select("domain").unique().collect()["domain"]
        if (domains.cast(pl.String) == "cpu_op").any():
            return SCALES_OF_PYTORCH
        return SCALES_OF_EMIT_NVTX if self.model.events.range_names.str.starts_with("aten::").any() else SCALES

    @functools.cached_property
    def is_training(self) -> bool:
        """Whether the program trains a model: it has a backward pass or an optimizer."""
        if self.model.match_labels(r"(?i)backward|optim").any():
            return True
        if self.model.find_class("optimizer").any():
            return True
        ranges = self.model.events.frames("nvtx_ranges").select("name").unique().collect()["name"]
        names = decode_categories(ranges).drop_nulls()
        of_kernels = decode_categories(self.model.names.unique()).drop_nulls()
        return bool(
            names.str.contains(r"Backward\d*$|^autograd::|transpose\(jvp").any()
            or of_kernels.str.contains(r"(?i)backward|addcdiv|_bwd|wgrad|dgrad").any()
        )

    @functools.cached_property
    def first_calls(self) -> pl.DataFrame:
        """The slow first calls of operations of the process."""
        return find_first_calls(self.model.events)

    @functools.cached_property
    def exposed_ns(self) -> Int64s:
        """How long each operation runs while no operation of a group that comes before it runs."""
        return find_exposed_times(self.model)

    @functools.cached_property
    def label_of_operation(self) -> npt.NDArray[np.int32]:
        """Number of the label of the item that launched each operation."""
        return self.model.items.label[self.model.operations.item]

    @functools.cached_property
    def step_of_operation(self) -> npt.NDArray[np.int32]:
        """Number of the step whose code launched each operation."""
        return self.model.step_of_item[self.model.operations.item]

    @functools.cached_property
    def by_start(self) -> Int64s:
        """Rows of operations in order of start."""
        return np.argsort(self.model.operations.start, kind="stable")

    @functools.cached_property
    def _launch_groups(self) -> tuple[Int64s, Mask]:
        """For each item of lane 0: the item that launches next, or ends the code before it; and which are quiet."""
        items = self.model.items
        quiet = np.isin(items.kind, _QUIET_KINDS) & (items.launches == 0) & (items.wait == NO_WAIT)
        quiet &= (items.duration < LONG_NS // 2) & (items.lane == 0)
        last = len(quiet) - 1
        index = np.where(quiet, last + 1, np.arange(len(quiet)))
        following = np.minimum.accumulate(index[::-1])[::-1]
        return following, quiet

    def group_pauses(self, rows: Int64s) -> list[tuple[int, list[int]]]:
        """Group pauses by the operations before and after them: numbers of steps with such pauses, and their rows."""
        frame = self._find_places(rows).with_columns(step=create_series(self.model.step_of_item[rows]))
        grouped = frame.group_by("after", "before", maintain_order=True).agg("row", steps=pl.col("step").n_unique())
        return [(int(count), listed) for count, listed in grouped.select("steps", "row").iter_rows()]

    def measure_recurrence(self, rows: Int64s, min_ns: int) -> npt.NDArray[np.float64]:
        """Return in which share of cases a pause lies between the same two operations, of at least some duration."""
        keys = self._operation_keys
        pairs = pl.DataFrame({"before": create_series(keys[:-1]), "after": create_series(keys[1:])})
        pairs = pairs.group_by("before", "after").agg(pl.len().alias("all"))
        long = self._find_places(np.flatnonzero(self.model.pauses & (self.model.items.duration >= min_ns)))
        long = long.group_by("before", "after").agg(pl.len().alias("long"))
        places = self._find_places(rows)
        for table in (pairs, long):
            places = places.join(table, on=["before", "after"], how="left", maintain_order="left")
        share = pl.col("long") / pl.max_horizontal(pl.col("all").fill_null(1), "long")
        return places.select(share)["long"].to_numpy()

    @functools.cached_property
    def _operation_keys(self) -> Int64s:
        """Number of the name of each operation, or of its class if it has no name."""
        names = self.model.names.to_physical().fill_null(0).to_numpy().astype(np.int64)
        return np.where(names == 0, self.model.operations.cls.astype(np.int64), names + len(CLASSES))

    def _find_places(self, rows: Int64s) -> pl.DataFrame:
        """Return the operations ``before`` and ``after`` each item, by ``row``."""
        key, first = self._operation_keys, self.model.items.first[rows]
        size = len(key)
        after = np.where(first < size, key[np.minimum(first, max(size - 1, 0))] if size else -1, -1)
        before = np.where(first > 0, key[np.maximum(first - 1, 0)] if size else -1, -1)
        columns = {"row": rows, "after": after, "before": before}
        return pl.DataFrame({name: create_series(values) for name, values in columns.items()})

    @functools.cached_property
    def recurring_code(self) -> Mask:
        """Which pauses of 0.2 to 1 ms occur at the same place in most steps, so that they belong to launching."""
        items = self.model.items
        result = np.zeros(len(items.start), np.bool_)
        rows = np.flatnonzero(self.model.long_pauses & (items.duration < 5 * LONG_NS))
        for count, listed in self.group_pauses(rows):
            if count >= max(1, _RECURRING_SHARE * self.step_count):
                result[listed] = True
        return result

    def find_launch_items(self, operations: Int64s) -> Int64s:
        """Return the items that launch operations, with the short pauses and other calls before them.

        Items that launch several operations, such as CUDA graphs, are omitted.
        """
        items = self.model.items
        launching = np.zeros(len(items.start) + 1, np.bool_)
        own = self.model.operations.item[operations]
        launching[own[(items.launches[own] == 1) & (items.lane[own] == 0)]] = True
        following, quiet = self._launch_groups
        return np.flatnonzero(launching[:-1] | (quiet & launching[following]))

    def find_pauses_near(self, rows: Int64s, distances: Sequence[int], below_ns: int = _ANY_NS) -> Int64s:
        """Return the pauses at some distances from items, counted in items, that are shorter than a limit."""
        items = self.model.items
        near = np.concatenate([rows + distance for distance in distances])
        near = near[(near >= 0) & (near < len(items.start))]
        result: Int64s = near[(items.kind[near] == PAUSE) & (items.duration[near] < below_ns)]
        return result

    def find_next_launches(self, rows: Int64s) -> Int64s:
        """Return, for each item that ``find_launch_items`` returns, the item that launches the operation."""
        following, quiet = self._launch_groups
        result: Int64s = np.where(quiet[rows], following[rows], rows)
        return result

    def per_step(self, total: float) -> float:
        """Return an amount per step."""
        return total / max(1, self.step_count)

    def describe_time(self, total_ns: float) -> str:
        """Format a total time per step, or for the whole capture if there are no steps."""
        return format_duration(self.per_step(total_ns)) + self._unit

    def describe_bytes(self, total: float) -> str:
        """Format a total number of bytes per step."""
        each = self.per_step(total)
        unit, size = next(((u, s) for u, s in _BYTE_UNITS if each >= s), ("bytes", 1))
        return f"{format_number(each / size)} {unit}{self._unit}"

    @property
    def _unit(self) -> str:
        """What follows an amount per step. A capture without steps has no such amounts."""
        return "" if self.model.events.key_op is None else " per step"

    def count_per_step(self, count: int) -> str:
        """Format a number of occurrences per step."""
        each = self.per_step(count)
        return f"{each:,.0f}" if each >= _WHOLE_COUNT or each == int(each) else f"{each:.1f}"

    def describe_count(self, count: int, noun: str, verb: str = "") -> str:
        """Format a number of occurrences per step, such as ``1 copy per step blocks``.

        Args:
            count: Number of occurrences in all steps.
            noun: Singular and plural of what is counted, such as ``copy|copies``.
            verb: Singular and plural of the verb that follows, such as ``blocks|block``.
        """
        is_rare = count < self.step_count
        number = f"{count:,}" if is_rare else self.count_per_step(count)
        form = 0 if number == "1" else -1
        text = f"{number} {noun.split('|')[form]}" + (f" in {self.step_count} steps" if is_rare else self._unit)
        return f"{text} {verb.split('|')[form]}" if verb else text

    def count_occurrences(self, cure: Cure) -> int:
        """Return the number of operations of a cure, or else of launches, calls or pauses among its first items.

        The other items are only the code around them.
        """
        items = self.model.items
        main = cure.items[0][0] if cure.items else cure.item_rows
        launches = int((self.model.find_kind("launch", "graph_launch") & (items.launches > 0))[main].sum())
        return len(cure.operation_rows) or launches or int((items.call[main] >= 0).sum()) or len(main)

    def find_main_label(self, rows: Int64s, weights: Int64s) -> str:
        """Return the label with the largest total weight among items."""
        if not len(rows):
            return ""
        totals = np.bincount(self.model.items.label[rows], weights=weights)
        return self.model.labels.names[int(totals.argmax())]

    def show_operation(self, rows: Int64s) -> Example | None:
        """Return the longest of some operations as an example."""
        if not len(rows):
            return None
        ops = self.model.operations
        row = int(rows[np.argmax(ops.duration[rows])])
        table, number = self.model.events.operations.select("table", "id").row(int(ops.row[row]))
        return Example(str(table), number, int(ops.start[row]), int(ops.end[row]))

    def show_item(self, rows: Int64s) -> Example | None:
        """Return the longest of some items as an example."""
        if not len(rows):
            return None
        items = self.model.items
        row = int(rows[np.argmax(items.end[rows] - items.start[rows])])
        call = int(items.call[row])
        number = self.model.events.calls["call_id"][call] if call >= 0 else None
        return Example("api_calls", number, int(items.start[row]), int(items.end[row]))

    def list_functions(self, rows: Int64s, count: int = 3, hidden: str = _HIDDEN_SYMBOLS) -> list[str]:
        """Return what the CPU ran during items most often, by its stacks, the most frequent first.

        Args:
            rows: Rows of items.
            count: Largest number of functions.
            hidden: Regular expression that matches functions in whose place their callers count.
        """
        if not len(rows):
            return []
        thread = self._find_working_thread(rows)
        for table in ("python_samples", "cpu_samples"):
            stacks = self._find_stacks(table, rows, thread)
            if len(stacks) and (names := _name_innermost_functions(self._symbols, stacks, hidden)):
                return names[:count]
        return self._list_recorded_functions(rows, thread)[:count]

    def list_waiting_functions(self, rows: Int64s) -> list[str]:
        """Return the functions that call what waits for the GPU in items, the most frequent first."""
        return self.list_functions(rows, hidden=f"{_HIDDEN_SYMBOLS}|{_WAITING_SYMBOLS}")

    def _list_recorded_functions(self, rows: Int64s, thread: int | None) -> list[str]:
        """Return the Python functions that a trace of PyTorch recorded with times, those with most time first."""
        items = self.model.items
        if thread not in self._functions:
            recorded = self.model.events.read_thread("nvtx_ranges", thread).filter(_is_python_function_expr())
            functions = recorded.filter((pl.col("end_ns") > self.model.start_ns) & ~_is_hidden_function_expr())
            columns = functions.select("start_ns", "end_ns", "name", track=pl.lit(0)).collect()
            self._functions[thread] = NestingIndex.from_intervals(columns, by=["track"])
        index = self._functions[thread]
        duration = create_series(items.end[rows] - items.start[rows])
        points = pl.DataFrame({"time": create_series(items.start[rows]) + duration // 2}).with_columns(track=pl.lit(0))
        names = index.intervals["name"].gather(index.find_innermost(points, "time")).cast(pl.String)
        times = pl.DataFrame({"name": names.str.replace(r"^.*/", ""), "ns": duration}).drop_nulls()
        totals = times.group_by("name").agg(pl.col("ns").sum()).sort("ns", "name", descending=[True, False])
        return totals["name"].to_list()

    @functools.cached_property
    def _threads_of_calls(self) -> tuple[pl.Series, pl.Series]:
        """The threads that make the call before and after each pause, or for calls, their own thread."""
        items = self.model.items
        call = create_series(np.where(items.lane == 0, items.call, PAUSE)).cast(pl.Int64)
        thread = self.model.events.calls["thread_id"].gather(call.set(call < 0, None))
        return thread.fill_null(strategy="forward"), thread.fill_null(strategy="backward")

    def _find_working_thread(self, rows: Int64s) -> int | None:
        """Return the thread that works during items.

        This is the one that makes the calls. During pauses, it is one of those that make the calls around them, or the
        main thread, whichever waits least for others.
        """
        main = self.model.events.main_thread
        positions = create_series(rows)
        around = pl.concat([threads.gather(positions) for threads in self._threads_of_calls]).drop_nulls()
        threads: list[int | None] = around.unique().sort().to_list() or [main]
        is_pause = bool((self.model.items.call[rows] < 0).any())
        if threads == [main] or (len(threads) == 1 and not is_pause):
            return threads[0]
        others = [t for t in threads if t != main]
        chosen = [main, *others] if main in threads else [*others, main]
        return min(chosen, key=lambda thread: self._measure_idleness(rows, thread))

    def _measure_idleness(self, rows: Int64s, thread: int | None) -> tuple[bool, bool, int]:
        """Return whether a thread waits for others during items, whether it does not run, and minus its samples."""
        time = int((self.model.items.end - self.model.items.start)[rows].sum())
        waits = pl.col("name").str.contains(LOCK_CALLS)
        calls = self._read_os_calls(thread).filter(waits)
        locked = self.measure_overlaps(rows, calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()).sum()
        away = self._measure_time_away(rows, thread)
        return 2 * int(locked) > time, 2 * away > time, -len(self._find_stacks("cpu_samples", rows, thread))

    @functools.cached_property
    def _symbols(self) -> pl.DataFrame:
        return self.model.events.frames("stacks").select("stack_id", "parent_id", "symbol").collect()

    def _find_stacks(self, table: str, rows: Int64s, thread: int | None) -> pl.Series:
        """Return the ids of the stacks of the samples of a thread during items."""
        items = self.model.items
        order = np.argsort(items.start[rows], kind="stable")
        start, end = items.start[rows][order], items.end[rows][order]
        samples = self.model.events.read_thread(table, thread).select("timestamp_ns", "stack_id")
        recorded = samples.collect().drop_nulls()
        times = recorded["timestamp_ns"].to_numpy()
        row = np.searchsorted(start, times, side="right") - 1
        inside = (row >= 0) & (times < end[np.maximum(row, 0)])
        return recorded["stack_id"].gather(create_series(np.flatnonzero(inside)))

    def measure_gil_share(self, rows: Int64s) -> float:
        """Return the share of the samples of the working thread during items that wait for the GIL of Python."""
        thread = self._find_working_thread(rows)
        stacks = self._find_stacks("cpu_samples", rows, thread) if len(rows) else pl.Series(dtype=pl.Int64)
        if not len(stacks):
            return 0.0
        current = stacks.to_frame("stack_id").with_row_index("sample")
        symbols = self._symbols.unique("stack_id")
        waiting: list[pl.Series] = []
        for _ in range(_GIL_FRAMES):
            current = current.join(symbols, on="stack_id", how="inner")
            is_waiting = pl.col("symbol").cast(pl.String).str.contains(_GIL_SYMBOLS)
            waiting.append(current.filter(is_waiting)["sample"])
            current = current.select("sample", stack_id="parent_id").drop_nulls()
        return pl.concat(waiting).n_unique() / len(stacks)

    @functools.cached_property
    def names_pauses(self) -> bool:
        """Whether samples, functions or operating system calls of the main or a launching thread were recorded."""
        events = self.model.events
        threads = is_of_threads_expr({events.main_thread, *self._threads_of_calls[0].drop_nulls().unique()})
        recorded = [events.read(table) for table in ("osrt_calls", "cpu_samples", "python_samples")]
        recorded.append(events.read("nvtx_ranges").filter(_is_python_function_expr()))
        return any(rows.filter(threads).select(pl.len()).collect().item() for rows in recorded)

    def measure_blocked_time(self, rows: Int64s) -> int:
        """Return for how long the working thread did not run on any CPU during items, in ns."""
        return self._measure_time_away(rows, self._find_working_thread(rows))

    def _measure_time_away(self, rows: Int64s, thread: int | None) -> int:
        switches = self.model.events.read_thread("cpu_scheduling", thread)
        recorded = switches.select("timestamp_ns", "is_scheduled_in").collect().drop_nulls().sort("timestamp_ns")
        away = recorded.with_columns(end_ns=pl.col("timestamp_ns").shift(-1)).filter(~pl.col("is_scheduled_in"))
        away = away.drop_nulls("end_ns").select("timestamp_ns", "end_ns")
        return int(self.measure_overlaps(rows, away["timestamp_ns"].to_numpy(), away["end_ns"].to_numpy()).sum())

    def list_os_calls(self, rows: Int64s) -> list[tuple[str, int]]:
        """Return the operating system calls of the working thread during items: name and time, the longest first."""
        calls = self._read_os_calls(self._find_working_thread(rows))
        overlap = self.measure_overlaps(rows, calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())
        totals = calls.select("name", ns=create_series(overlap)).group_by("name").agg(pl.col("ns").sum())
        totals = totals.filter(pl.col("ns") > 0).sort("ns", "name", descending=[True, False])
        return [(str(name), int(ns)) for name, ns in totals.iter_rows()]

    def measure_overlaps(self, rows: Int64s, first: Int64s, last: Int64s) -> Int64s:
        """Return how long each interval overlaps with items, which are disjoint."""
        items = self.model.items
        order = np.argsort(items.start[rows], kind="stable")
        start, end = items.start[rows][order], items.end[rows][order]
        return measure_before((start, end), last) - measure_before((start, end), first)

    def _read_os_calls(self, thread: int | None) -> pl.DataFrame:
        """Return the operating system calls of a thread in the steps, which are read only once."""
        if thread not in self._os_calls:
            is_inside = (pl.col("end_ns") > self.model.start_ns) & (pl.col("start_ns") < self.model.end_ns)
            calls = self.model.events.read_thread("osrt_calls", thread).filter(is_inside)
            columns = calls.select("start_ns", "end_ns", pl.col("name").cast(pl.String))
            self._os_calls[thread] = columns.collect().sort("start_ns")
        return self._os_calls[thread]


def _is_python_function_expr() -> pl.Expr:
    """Return an expression for whether a range is a Python function that a trace of PyTorch recorded."""
    return (pl.col("domain").cast(pl.String) == "python_function") & pl.col("name").is_not_null()


def _is_hidden_function_expr() -> pl.Expr:
    return pl.col("name").cast(pl.String).str.contains(_HIDDEN_FUNCTIONS)


def _name_innermost_functions(table: pl.DataFrame, stacks: pl.Series, hidden: str) -> list[str]:
    """Return the innermost functions of stacks that a regular expression does not match, the most frequent first."""
    current = stacks.to_frame("stack_id").with_row_index("sample")
    named: list[pl.DataFrame] = []
    for _ in range(12):
        joined = current.join(table.unique("stack_id"), on="stack_id", how="inner")
        text = pl.col("symbol").cast(pl.String)
        is_named = text.is_not_null() & ~text.str.contains(hidden)
        named.append(joined.filter(is_named).select("sample", symbol=text))
        current = joined.filter(~is_named).select("sample", stack_id="parent_id").drop_nulls()
        if current.is_empty():
            break
    counts = pl.concat(named).group_by("symbol").agg(pl.len()).sort("len", "symbol", descending=[True, False])
    return counts["symbol"].head(5).to_list()
