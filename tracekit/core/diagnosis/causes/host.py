"""Find causes on the CPU: work in the loop, loading of data, files, waiting, loading of code, and launching."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.diagnosis.causes.copies import SMALL_COPY_BYTES
from tracekit.core.diagnosis.cures import SCALES_OF_PYTORCH, Cure, Stays, deduplicate
from tracekit.core.diagnosis.first_calls import WAITING_OPERATION, find_compile_times
from tracekit.core.diagnosis.inspection import LOCK_CALLS
from tracekit.core.diagnosis.ledger import measure_before
from tracekit.core.diagnosis.model import MIN_STEPS, find_steps
from tracekit.core.diagnosis.operations import LONG_NS, NO_WAIT, PAUSE
from tracekit.core.diagnosis.recording import find_command
from tracekit.system.sorting import create_series
from tracekit.text import format_duration, shorten_middle

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tracekit.core.correlate import Frames
    from tracekit.core.diagnosis.inspection import Inspection

    Int64s = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

DATA_LABEL = (
    r"(?i)(^|[^a-z])(data|dataload\w*|load\w*|batch|input\w*|next\w*|fetch\w*|prefetch\w*|collate)([^a-z]|$)"
    r"|data loader"
)
IO_LABEL = r"(?i)checkpoint|save|write|dump|(^|[^a-z])log(ging|s)?([^a-z]|$)|serializ"
IO_FUNCTION = r"(?i)write|save|serializ|pickle|deflate|crc32|fflush|compress|dump"
_COMPUTE_LABEL = r"(?i)^(forward|backward|fwd|bwd|optimizer|optim|step|model|train|)$"
_READ_CALLS, _WRITE_CALLS = (
    r"^(p?read|f?open|readv|recv|fread|getline)",
    r"^(p?write|f?sync|fdatasync|fwrite|fflush|rename|fclose|close)",
)
_WAIT_CALLS = (
    r"^(poll|select|epoll|sem_|pthread_cond|pthread_join|futex|waitpid|nanosleep|usleep|sleep|clock_nanosleep|recv)"
)
_GIL_SHARE = 0.2
_RECORD_STACKS = "profile(with_stack=True)"
_RECORD_SAMPLES = "nsys profile --sample=process-tree --trace=cuda,nvtx,osrt"
_ROUND_TRIP_BYTES = 1_000_000
_RECOMPILED_SHARE = 0.3
_MIN_PLANS, _MIN_TUNED = 3, 16
"""Pauses before convolutions per step, and operations in turn, from which on plans are built or kernels are tuned."""
_EAGER_LAUNCHES = 100
_OTHERS_SHARE = 0.1
_WAITING_SHARE = 0.3
_ALL_STEPS, _WRITING_SHARE = 0.9, 0.02
"""Share of steps in which data is used on the host, and share of time spent in writing files, from which on it is a
result that the program needs."""
_RECURRING_SHARE = 0.2
"""Share of cases in which the CPU pauses between two operations from which on the pauses are no stalls."""
_DECODING = r"(?i)jpe?g|png|decode|inflate|zlib|webp|tiff|collate|dataloader|dataset|parquet|h5|lmdb|tokeniz"
_PROGRAM_NS = 5 * LONG_NS
"""Duration of a pause in ranges that launch kernels from which on it is work of the program."""

_HOST_STAYS: Stays = (0.15, 0.04, 0.0)


class _Pauses(NamedTuple):
    """Long pauses that occur at one place of the program: their rows, and the label."""

    rows: Int64s
    label: int
    is_labeled: bool


def first_calls(inspection: Inspection) -> Iterator[Cure]:
    """Find loading of code in steady steps: once (a first call), or again and again (recompilation)."""
    yield from _find_recompilations(inspection)
    yield from _find_tuning(inspection)
    by_shape = list(_find_first_calls_of_shapes(inspection))
    yield from by_shape or _find_plans(inspection)


def _find_first_calls_of_shapes(inspection: Inspection) -> Iterator[Cure]:
    """Find first calls of shapes that recur in the steady steps."""
    model, items = inspection.model, inspection.model.items
    calls = inspection.first_calls.filter((pl.col("end_ns") > model.start_ns) & (pl.col("start_ns") < model.end_ns))
    calls = calls.filter(~pl.col("name").str.contains(WAITING_OPERATION))
    starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    claimed = np.flatnonzero(~inspection.claims.free_items & (items.lane == 0))
    calls = calls.filter(create_series(2 * inspection.measure_overlaps(claimed, starts, ends) <= ends - starts))
    steps = find_steps(model.bounds, calls["start_ns"].to_numpy())
    recurs = len(np.flatnonzero(np.bincount(steps + 1))) >= _RECOMPILED_SHARE * inspection.step_count
    if not recurs or calls["excess_ns"].sum() < 0.01 * model.duration_ns:
        return
    middle = items.start + (items.end - items.start) // 2
    starts, ends = calls["start_ns"].to_numpy(), np.maximum.accumulate(calls["end_ns"].to_numpy())
    row = np.searchsorted(starts, middle, side="right") - 1
    inside = (row >= 0) & (middle < ends[np.maximum(row, 0)]) & inspection.claims.free_items
    rows = np.flatnonzero(inside)
    later, excess = (float(calls[c].sum()) for c in ("later_ns", "excess_ns"))
    remaining = later / max(1.0, later + excess)
    cure = Cure("first_call", inspection.find_main_label(rows, items.duration[rows]))
    cure.example = inspection.show_item(rows)
    cure.waits = rows[items.wait[rows] != NO_WAIT]
    cure.items = [
        (inspection.claims.take_items(rows), (min(1.0, 3 * remaining + 0.05), min(1.0, remaining + 0.01), remaining))
    ]
    names = calls.group_by("name").agg(pl.col("excess_ns").sum()).sort("excess_ns", "name", descending=[True, False])
    name = shorten_middle(str(names["name"][0]))
    cure.brief = f"of {name}" if calls.height == 1 else f"mostly of {name}"
    which = f"{calls.height:,} first calls, {cure.brief}, take"
    if calls.height == 1:
        which = f"the first call {cure.brief} takes"
    cure.evidence = f"{which} {format_duration(excess)} longer than later calls of the same shapes"
    yield cure


def _find_recompilations(inspection: Inspection) -> Iterator[Cure]:
    """Find code that is compiled and loaded again in many steps, or loaded in a single one."""
    model, items, n = inspection.model, inspection.model.items, inspection.step_count
    loads = np.flatnonzero(model.find_kind("load") & inspection.claims.free_items)
    pauses_in_ranges = _find_pauses_of_compilation(inspection)
    if not len(loads) + len(pauses_in_ranges):
        return
    compiles = deduplicate(np.concatenate([_find_compilations(inspection, loads), pauses_in_ranges]))
    own = np.concatenate([loads, compiles])
    steps = model.step_of_item[own]
    time = int((items.end - items.start)[own].sum())
    if time > 0.5 * model.duration_ns:
        pauses = np.flatnonzero(model.long_pauses & inspection.claims.free_items & (items.duration > _PROGRAM_NS))
        own = deduplicate(np.concatenate([own, pauses[np.isin(model.step_of_item[pauses], steps)]]))
        time = int((items.end - items.start)[own].sum())
    if time < 0.01 * model.duration_ns:
        return
    step_share = len(np.flatnonzero(np.bincount(steps))) / n
    recurs = n >= MIN_STEPS and step_share >= _RECOMPILED_SHARE and len(compiles) > 0
    cause = "recompilation" if recurs else "first_call"
    cure = Cure(cause, inspection.find_main_label(own, items.end[own] - items.start[own]))
    cure.example = inspection.show_item(own)
    cure.items = [(inspection.claims.take_items(own), (0.15, 0.02, 0.0))]
    where = f"in {step_share:.0%} of the steps" if recurs else "before it can be reused"
    count = inspection.describe_count(len(loads) or len(compiles), "time|times")
    cure.evidence = f"code is compiled, loaded or unloaded {count}, {where}, for {inspection.describe_time(time)}"
    yield cure


def _find_plans(inspection: Inspection) -> Iterator[Cure]:
    """Find long pauses before several convolutions of a step, in which the library builds plans for new shapes."""
    model, items, ops = inspection.model, inspection.model.items, inspection.model.operations
    rows = np.flatnonzero(model.long_pauses & inspection.claims.free_items & (items.duration >= _PROGRAM_NS))
    rows = rows[items.first[rows] < len(ops.start)]
    convolves = model.find_class("convolution", "convolution_fp32", "layout_conversion")
    rows = rows[convolves[items.first[rows]]]
    time = int(items.duration[rows].sum())
    if len(rows) < _MIN_PLANS * inspection.step_count or time < 0.05 * model.duration_ns:
        return
    cure = Cure("first_call", inspection.find_main_label(rows, items.duration[rows]))
    cure.example = inspection.show_item(rows)
    cure.items = [(inspection.claims.take_items(rows), (0.3, 0.02, 0.0))]
    cure.evidence = (
        f"{inspection.describe_count(len(rows), 'pause|pauses')} of {format_duration(_PROGRAM_NS)} or more before "
        f"convolutions, for {inspection.describe_time(time)}: the library builds plans for shapes that it has not met"
    )
    cure.functions = inspection.list_functions(rows)
    yield cure


def _find_tuning(inspection: Inspection) -> Iterator[Cure]:
    """Find autotuning in steady steps: a kernel runs again and again, each time after memory is filled or set."""
    model, items, ops = inspection.model, inspection.model.items, inspection.model.operations
    clears = model.match_names(r"FillFunctor|(?i)memset") | model.find_class("memset")
    code = np.where(clears, -1, model.names.to_physical().fill_null(0).to_numpy().astype(np.int64))
    repeats = np.zeros(len(code), np.bool_)
    if len(code) > _MIN_TUNED:
        repeats[2:] = (code[2:] == code[:-2]) & (code[2:] != code[1:-1]) & (clears[2:] | clears[1:-1])
    step = inspection.step_of_operation
    repeats[2:] &= step[2:] == step[:-2]
    number = np.cumsum(~repeats)
    length = np.bincount(number[repeats], minlength=int(number[-1]) + 1 if len(number) else 1)
    rows = np.flatnonzero(repeats & (length[number] >= _MIN_TUNED) & inspection.claims.free_operations)
    rows = rows[items.lane[ops.item[rows]] == 0]
    time = int(ops.duration[rows].sum())
    if not len(rows) or time < 0.02 * model.duration_ns:
        return
    steps = len(np.flatnonzero(np.bincount(inspection.step_of_operation[rows])))
    recurs = inspection.step_count >= MIN_STEPS and steps >= _RECOMPILED_SHARE * inspection.step_count
    inside = np.zeros(len(items.start) + 1, np.int64)
    np.add.at(inside, ops.item[rows - 1], 1)
    np.add.at(inside, ops.item[rows] + 1, -1)
    own = np.flatnonzero((np.cumsum(inside)[:-1] > 0) & (items.lane == 0))
    if int(model.find_kind("record_event")[own].sum()) < len(rows) // 4:
        return  # no events measure the kernels
    cure = Cure(
        "recompilation" if recurs else "first_call", inspection.find_main_label(ops.item[rows], ops.duration[rows])
    )
    cure.example = inspection.show_operation(rows)
    cure.waits = own[items.wait[own] != NO_WAIT]
    cure.items = [(inspection.claims.take_items(own), (0.1, 0.01, 0.0))]
    cure.operations = [inspection.claims.scale_operations(rows, (0.1, 0.01, 0.0))]
    cure.evidence = (
        f"autotuning runs {inspection.describe_count(len(rows) // 2, 'kernel|kernels')} again and again, each time "
        f"after memory is cleared, for {inspection.describe_time(time)}"
    )
    yield cure


def _find_pauses_of_compilation(inspection: Inspection) -> Int64s:
    """Return the long pauses during which ranges of compilers are open for at least half of the time."""
    model, items = inspection.model, inspection.model.items
    rows = np.flatnonzero(model.long_pauses & inspection.claims.free_items)
    times = find_compile_times(model.events.frames, model.events.process_id)
    union = (times["start_ns"].to_numpy(), times["end_ns"].to_numpy())
    compiling = measure_before(union, items.end[rows]) - measure_before(union, items.start[rows])
    result: Int64s = rows[2 * compiling >= items.end[rows] - items.start[rows]]
    return result


def _find_compilations(inspection: Inspection, loads: Int64s) -> Int64s:
    """Return the long pauses before code is loaded, with only pauses and calls that launch nothing in between."""
    model, items = inspection.model, inspection.model.items
    if not len(loads):
        return loads
    blocks = (items.launches > 0) | (items.wait != NO_WAIT)
    group = np.cumsum(blocks)
    has_load = np.zeros(int(group[-1]) + 1, np.bool_)
    has_load[group[loads]] = True
    last_load = np.zeros(len(has_load), np.int64)
    np.maximum.at(last_load, group[loads], loads)
    rows = np.flatnonzero(model.long_pauses & inspection.claims.free_items & has_load[group])
    result: Int64s = rows[(rows < last_load[group[rows]]) & (items.duration[rows] > 5 * LONG_NS)]
    return result


def host_work(inspection: Inspection) -> Iterator[Cure]:
    """Find work of the program on the CPU in the loop, and name it by its range, copies and operating system calls."""
    if inspection.model.events.has_no_cpu_events:
        return
    yield from _find_host_copies_by_label(inspection)
    yield from _find_host_copies_by_neighbors(inspection)
    for pauses in _find_recurring_pauses(inspection):
        yield from _name_host_work(inspection, pauses)


def _find_host_copies_by_label(inspection: Inspection) -> Iterator[Cure]:
    """Yield the cures of ranges that copy much data to the host and then work there."""
    model, items = inspection.model, inspection.model.items
    is_compute = model.match_labels(_COMPUTE_LABEL)
    pauses = np.flatnonzero(model.long_pauses & inspection.claims.free_items)
    labels = items.label[pauses]
    for label in np.flatnonzero(np.bincount(labels)).tolist() if len(pauses) else []:
        visits = max(1, _count_visits(inspection, label))
        if is_compute[label] or _sum_by_label(inspection, label, "copy_d2h") <= _ROUND_TRIP_BYTES * visits / 4:
            continue
        own = np.flatnonzero((items.label == label) & (items.lane == 0))
        back = _sum_by_label(inspection, label, "copy_h2d") > 0
        yield _cure_host_copies(inspection, pauses[labels == label], own, model.labels.names[label], back=back)


def _find_host_copies_by_neighbors(inspection: Inspection) -> Iterator[Cure]:
    """Yield the cure of work on the host between two kernels, to which much data is copied from the GPU."""
    model, items = inspection.model, inspection.model.items
    segments = _find_segments(inspection)
    to_host, to_device = _sum_copies(inspection, segments)
    waiting = np.bincount(segments, weights=np.where(model.long_pauses, items.duration, 0), minlength=len(to_host))
    chosen = (to_host >= _ROUND_TRIP_BYTES) & (waiting >= 5 * LONG_NS)
    own = np.flatnonzero(chosen[segments] & (items.lane == 0) & inspection.claims.free_items)
    own = own[(items.launches[own] == 0) | model.find_kind("copy", "memset")[own]]
    pauses = own[model.long_pauses[own]]
    if not len(pauses):
        return
    steps = len(np.flatnonzero(np.bincount(model.step_of_item[pauses])))
    recurs = steps >= 0.4 * inspection.step_count
    back = recurs and bool(to_device[chosen].sum() > 0)
    yield _cure_host_copies(inspection, pauses, own, inspection.find_main_label(own, items.duration[own]), back=back)


def _find_recurring_pauses(inspection: Inspection) -> Iterator[_Pauses]:
    """Yield the long pauses of each place at which they recur."""
    model, items, n = inspection.model, inspection.model.items, inspection.step_count
    rows = np.flatnonzero(model.long_pauses & inspection.claims.free_items)
    is_compute = model.match_labels(_COMPUTE_LABEL)
    duration = items.end - items.start
    totals = np.bincount(items.label, weights=np.where(items.lane == 0, duration, 0), minlength=len(model.labels.names))
    labels = items.label[rows]
    for label in np.flatnonzero(np.bincount(labels)).tolist() if len(rows) else []:
        own = rows[labels == label]
        enough = len(own) >= 0.2 * min(n, 5)
        if not is_compute[label] and enough and duration[own].sum() > 0.45 * totals[label]:
            yield _Pauses(own, label, is_labeled=True)
            continue
        yield from _find_pauses_by_neighbors(inspection, own[duration[own] >= _PROGRAM_NS], label)


def _find_pauses_by_neighbors(inspection: Inspection, rows: Int64s, label: int) -> Iterator[_Pauses]:
    """Yield long pauses of one label that recur between the same two operations of steps."""
    model, items, n = inspection.model, inspection.model.items, inspection.step_count
    if n < MIN_STEPS:
        rows = rows[inspection.measure_recurrence(rows, _PROGRAM_NS) >= _RECURRING_SHARE]
        if len(rows) and int((items.end - items.start)[rows].sum()) > 0.05 * model.duration_ns:
            yield _Pauses(rows, label, is_labeled=False)
        return
    merged: list[Int64s] = []
    grouped = inspection.group_pauses(rows)
    for count, listed in grouped:
        own = np.array(listed, np.int64)
        typical = float(np.median((items.end - items.start)[own]))
        if count >= max(2, 0.6 * n) or (count >= max(2, 0.15 * n) and typical > 20 * LONG_NS):
            merged.append(own)
    rest = np.setdiff1d(rows, np.concatenate(merged)) if merged else rows
    if merged:
        total = np.concatenate(merged)
        yield _Pauses(np.sort(total), label, is_labeled=False)
    periodic = rest[(items.end - items.start)[rest] > 50 * LONG_NS]
    steps = np.flatnonzero(np.bincount(model.step_of_item[periodic])) if len(periodic) else periodic
    if len(steps) >= max(2, 0.15 * n):
        yield _Pauses(periodic, label, is_labeled=False)


def _name_host_work(inspection: Inspection, pauses: _Pauses) -> Iterator[Cure]:
    """Yield the cures of the pauses at one place, by what the program does there."""
    label = inspection.model.labels.names[pauses.label]
    if pauses.is_labeled:
        yield _cure_cpu_work(inspection, pauses.rows, label)
        return
    segments = _find_segments(inspection)
    _, to_device = _sum_copies(inspection, segments)
    loads = to_device[segments[pauses.rows]] >= SMALL_COPY_BYTES
    for own, is_data in ((pauses.rows[loads], True), (pauses.rows[~loads], False)):
        if len(own):
            yield _cure_cpu_work(inspection, own, label, is_data=is_data)


def _find_segments(inspection: Inspection) -> Int64s:
    """Return the number of kernels that were launched before each item: items between two kernels have one number."""
    model, items = inspection.model, inspection.model.items
    is_kernel = (items.launches > 0) & ~model.find_kind("copy", "memset")
    return np.cumsum(is_kernel, dtype=np.int64)


def _sum_copies(inspection: Inspection, segments: Int64s) -> tuple[Int64s, Int64s]:
    """Return the bytes copied to the host and to the device in each segment."""
    model, ops = inspection.model, inspection.model.operations
    size = int(segments[-1]) + 1 if len(segments) else 1
    of_operation = segments[ops.item] if len(ops.item) else np.zeros(0, np.int64)

    def total(name: str) -> Int64s:
        own = model.find_class(name)
        return np.bincount(of_operation[own], weights=model.bytes[own], minlength=size).astype(np.int64)

    return total("copy_d2h"), total("copy_h2d")


def _count_visits(inspection: Inspection, label: int) -> int:
    """Return how often the main thread enters a label."""
    labels = inspection.model.labels
    inside = (labels.times >= inspection.model.start_ns) & (labels.times < inspection.model.end_ns)
    return int((labels.codes[inside] == label).sum())


def _sum_by_label(inspection: Inspection, label: int, cls: str) -> int:
    model = inspection.model
    own = model.find_class(cls) & (inspection.label_of_operation == label)
    return int(model.bytes[own].sum())


def _cure_host_copies(inspection: Inspection, pauses: Int64s, own: Int64s, label: str, *, back: bool) -> Cure:
    """Return the cure of data that is copied to the host and used there: written to files, or copied back."""
    model, items, ops = inspection.model, inspection.model.items, inspection.model.operations
    cure = Cure("host_round_trip" if back or _is_result(inspection, pauses, label) else "blocking_io", label)
    cure.example = inspection.show_item(pauses)
    time = float((items.end - items.start)[own].sum())
    copied = np.flatnonzero(np.isin(ops.item, own) & model.find_class("copy_d2h", "copy_h2d"))
    cure.waits = own[items.wait[own] != NO_WAIT]
    cure.items = [(inspection.claims.take_items(own), (0.15, 0.03, 0.0))]
    cure.operations = [inspection.claims.scale_operations(copied, (0.5, 0.2, 0.0))]
    to_host = int(model.bytes[copied][model.find_class("copy_d2h")[copied]].sum())
    what = "works on it and copies results back" if back else "uses it there"
    cure.evidence = (
        f"the CPU copies {inspection.describe_bytes(to_host)} from the GPU and {what}, for "
        f"{inspection.describe_time(time)}"
    )
    callers = inspection.list_waiting_functions(cure.waits)
    cure.functions = list(dict.fromkeys([*inspection.list_functions(pauses), *callers]))[:3]
    return cure


def _is_result(inspection: Inspection, pauses: Int64s, label: str) -> bool:
    """Return whether the program needs what it computes from copied data in pauses, as it writes no files there.

    This takes evidence of what the pauses do, in all steps: calls of the operating system, or samples of the CPU.
    """
    model = inspection.model
    steps = len(np.flatnonzero(np.bincount(model.step_of_item[pauses])))
    if steps < max(MIN_STEPS, _ALL_STEPS * inspection.step_count) or pl.Series([label]).str.contains(IO_LABEL).item():
        return False
    os_calls, functions = inspection.list_os_calls(pauses), inspection.list_functions(pauses, 10)
    writes = sum(ns for name, ns in os_calls if pl.Series([name]).str.contains(_WRITE_CALLS).item())
    if not os_calls and not functions:
        return False
    saves = pl.Series(functions, dtype=pl.String).str.contains(IO_FUNCTION).any()
    return not saves and writes < _WRITING_SHARE * int(model.items.duration[pauses].sum())


def choose_change_of_loading(frames: Frames) -> str:
    """Return the name of the change for slow data loading: another one if the data loader has workers already."""
    names = frames("nvtx_ranges").select(pl.col("name").unique()).collect()["name"].cast(pl.String)
    return (
        "more_workers" if names.str.contains("_MultiProcessingDataLoaderIter", literal=True).any() else "data_loading"
    )


def _cure_cpu_work(inspection: Inspection, rows: Int64s, label: str, *, is_data: bool = False) -> Cure:
    """Return the cure of work on the CPU that makes no API calls."""
    items = inspection.model.items
    time = float((items.end - items.start)[rows].sum())
    os_calls = inspection.list_os_calls(rows)
    writes = sum(ns for name, ns in os_calls if pl.Series([name]).str.contains(_WRITE_CALLS).item())
    labels = pl.Series([label])
    if labels.str.contains(IO_LABEL).item() or writes > 0.3 * time:
        cause = "blocking_io"
    elif labels.str.contains(DATA_LABEL).item() or (is_data and _reads_data(inspection, rows, os_calls, time)):
        cause = "data_loading"
    else:
        cause = "cpu_work"
    cure = Cure(cause, label)
    if cause == "data_loading":
        cure.change = choose_change_of_loading(inspection.model.events.frames)
    cure.example = inspection.show_item(rows)
    cure.items = [(inspection.claims.take_items(rows), _HOST_STAYS)]
    tail = inspection.find_pauses_near(rows, (-1, 1), LONG_NS)
    cure.items.append((inspection.claims.take_items(tail), (1.0, 0.5, 0.2)))
    cure.evidence = (
        f"the CPU works without API calls for {inspection.describe_time(time)}, in "
        f"{inspection.describe_count(len(rows), 'pause|pauses')}"
    )
    cure.functions = inspection.list_functions(rows)
    waits = [(name, ns) for name, ns in os_calls if ns > 0.5 * time]
    if waits:
        name = waits[0][0]
        is_lock = pl.Series([name]).str.contains(LOCK_CALLS).item()
        cure.evidence += f", mostly in {shorten_middle(name)}" + (
            ", waiting for a lock or another thread" if is_lock else ""
        )
    gil = inspection.measure_gil_share(rows)
    if gil >= _GIL_SHARE:
        cure.evidence += f"; {gil:.0%} of the samples wait for the GIL of Python, which another thread holds"
    if not inspection.names_pauses:
        is_trace = inspection.scales is SCALES_OF_PYTORCH
        samples = find_command(inspection.model.events.frames, "cpu_samples", _RECORD_SAMPLES)
        cure.missing = f"what the CPU does in the pauses: {_RECORD_STACKS if is_trace else samples}"
    return cure


def _reads_data(inspection: Inspection, rows: Int64s, os_calls: list[tuple[str, int]], time: float) -> bool:
    """Return whether the CPU reads files, waits for other processes, or decodes data in pauses before a copy."""
    waits = sum(ns for name, ns in os_calls if pl.Series([name]).str.contains(f"{_READ_CALLS}|{_WAIT_CALLS}").item())
    functions = pl.Series(inspection.list_functions(rows, 10), dtype=pl.String)
    waits = max(waits, inspection.measure_blocked_time(rows))
    return waits > _WAITING_SHARE * time or bool(functions.str.contains(_DECODING).any())


def synchronization(inspection: Inspection) -> Iterator[Cure]:
    """Find calls in the loop that make the CPU wait for the GPU."""
    model, claims = inspection.model, inspection.claims
    items, ops = model.items, model.operations
    is_small = model.find_class("copy_d2h") & (model.bytes < SMALL_COPY_BYTES)
    reads = np.zeros(len(items.start), np.bool_)
    reads[ops.item[is_small]] = True
    is_sync = model.find_kind("synchronize")
    is_sync[max(0, len(is_sync) - 2) :] = False
    rows = np.flatnonzero((is_sync | (reads & model.find_kind("copy"))) & claims.free_items)
    if not len(rows):
        return
    copies = rows[reads[rows]]
    near = inspection.find_pauses_near(copies, (-1, 1, 2, 3), LONG_NS // 2)
    cure = Cure("synchronization", inspection.find_main_label(rows, np.ones(len(rows), np.int64)))
    cure.example = inspection.show_item(rows)
    waits, small = len(rows) - len(copies), np.flatnonzero(is_small)
    time = float((items.end - items.start)[rows].sum())
    cure.waits = rows
    cure.items = [(claims.take_items(np.concatenate([rows, near])), (0.5, 0.2, 0.05))]
    cure.operations = [claims.scale_operations(small, (0.5, 0.0, 0.0))]
    cure.evidence = (
        f"the CPU waits for the GPU {inspection.describe_count(waits, 'time|times')}"
        + (f", and reads small values {inspection.describe_count(len(copies), 'time|times')}" if len(copies) else "")
        + f", for {inspection.describe_time(time)}"
    )
    cure.functions = inspection.list_waiting_functions(rows)
    yield cure


def launch_overhead(inspection: Inspection) -> Iterator[Cure]:
    """Find steps that consist of many launches, so that the CPU cannot keep the GPU busy."""
    model, items, n, claims = inspection.model, inspection.model.items, inspection.step_count, inspection.claims
    kinds_left = ~model.find_kind("synchronize", "wait_event", "record_event", "load", "allocate", "host_allocate")
    is_code = (items.duration < LONG_NS) | inspection.recurring_code
    own = claims.free_items & kinds_left & ((items.kind != PAUSE) | is_code)
    own &= ~(model.find_kind("copy") & (items.wait != NO_WAIT))
    rows = np.flatnonzero(own)
    launches = int((model.find_kind("launch", "graph_launch")[rows] & (items.launches[rows] > 0)).sum())
    if launches <= 20 * max(n, MIN_STEPS):
        return
    uses_graphs = bool(model.find_kind("graph_launch").any())
    is_eager_jax = model.events.framework == "jax" and launches > _EAGER_LAUNCHES * n
    trains = inspection.is_training and not is_eager_jax
    cure = Cure("launch_overhead", inspection.find_main_label(rows, items.duration[rows]))
    cure.example = inspection.show_item(rows[items.launches[rows] > 0])
    has_others = claims.owned_share > _OTHERS_SHARE
    claimed_rows = claims.take_items(rows)
    cure.items = [(claimed_rows, _choose_launch_stays(trains=trains, has_others=has_others))]
    cure.max_gap_ns = None if trains or uses_graphs else 300
    ops = model.operations
    launched = np.isin(ops.item, claimed_rows)
    median = float(np.median(ops.duration[launched])) if launched.any() else 0.0
    cure.brief = inspection.describe_count(launches, "launch|launches")
    cure.evidence = (
        f"{cure.brief} cost the CPU "
        f"{inspection.describe_time(float(items.duration[claimed_rows].sum()))}; the median kernel takes "
        f"{format_duration(median)}"
    )
    yield cure


def _choose_launch_stays(*, trains: bool, has_others: bool) -> Stays:
    """Return the share of the time of launching that stays with a CUDA graph.

    How much of a training step a graph can contain is a guess, which is lower if other causes own a tenth of the time.
    """
    if not trains:
        return (0.1, 0.03, 0.01)
    return (0.95, 0.8, 0.1) if has_others else (0.85, 0.15, 0.03)
