"""Select events, add up their weights by call stack, and merge stacks whose frames have the same text."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import MissingTableError, TracekitError, create_choices_hint
from tracekit.registry.absence import find_recording_command
from tracekit.registry.analyses import FIGURE, Option, parse_name
from tracekit.registry.interface import Exporter
from tracekit.registry.tables import count_rows, read_table, scan_table
from tracekit.schemas.callstacks import BATCH_FRAMES, iterate_frame_batches
from tracekit.system.forks import check_polars_can_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tracekit.registry.interface import Progress, View
    from tracekit.registry.tables import Tables
    from tracekit.schemas.callstacks import Int64Array

EVENTS = {
    "cpu_samples": "CPU samples",
    "osrt_calls": "Operating system calls",
    "api_calls": "CUDA API calls",
    "python_samples": "Python samples",
    "python_calls": "Python stacks of CUDA calls",
}
"""Titles of the events that can have call stacks, by name: that of a table, or ``python_calls``."""
_EVENTS, _WEIGHT, *_IDS = parse_name("functions", kinds=[FIGURE])[0].options
OPTIONS = (
    _EVENTS,
    _WEIGHT,
    Option(
        "by",
        "thread or process: export the stacks of each thread or process separately; none (default): merge "
        "the stacks of all threads",
        default="none",
        choices=("none", "thread", "process"),
    ),
    *_IDS,
    Option("range", "name of NVTX push/pop ranges: export only stacks of a thread while it is inside such a range"),
    Option(
        "modules",
        "yes (default) or no: write the name of the program or library after the function",
        "flag",
        default=True,
    ),
)
MAX_DEPTH = 4096
"""Maximum number of frames of a stack. Of deeper stacks, only the outermost frames are used."""
MAX_TEXT = 1 << 14
"""Maximum number of characters of a frame. Longer frames are shortened."""
UNKNOWN = "[unknown]"
"""Maximum number of threads, processes or ranges that a hint lists."""
_PYTHON = {"python_samples": "periodic", "python_calls": "cuda"}
"""Value of ``kind`` in the table ``python_samples``, by name of events."""
_HINT = "record them with nsys profile --sample=process-tree, or --cudabacktrace=all for those of CUDA API calls"
_PYTHON_HINT = "record them with nsys profile --python-sampling=true, or --python-backtrace=cuda for CUDA API calls"
_ALLOCATOR_HINT = "print those of allocations with tracekit stats --report allocator_owners:owner=stack"
_EXPORT_HINT = "read the report, or export it with --include-blobs=true, because other exports lack Python call stacks"
_THREAD = schemas.get_key("thread")
_KEYS = {"none": [], "thread": [*_THREAD], "process": ["process_id"]}


class StackSelection(NamedTuple):
    """The values of the options of an exporter of call stacks.

    Attributes:
        events: One of ``EVENTS``, or None for the first of them that has call stacks.
        weight: Weight of the stacks: ``samples`` or ``time``.
        by: Grouping of the events: ``none``, ``thread`` or ``process``.
        thread: Id of the thread to export, or None to export all threads.
        process: Id of the process to export, or None to export all processes.
        range: Name of the NVTX ranges during which events are exported, or None to export all events.
        modules: Whether frames contain the name of their module.
    """

    events: str | None = None
    weight: str = "samples"
    by: str = "none"
    thread: int | None = None
    process: int | None = None
    range: str | None = None
    modules: bool = True


def create_stack_exporter(
    format: str,  # noqa: A002 - the name of the attribute
    description: str,
    suffixes: tuple[str, ...],
    write: Callable[[View, Path, Progress, StackSelection], None],
) -> Exporter:
    """Return an exporter of call stacks in one format."""
    return Exporter(format, description, suffixes, write=functools.partial(_write, write), options=OPTIONS)


def _write(
    write: Callable[[View, Path, Progress, StackSelection], None],
    view: View,
    path: Path,
    progress: Progress,
    *,
    options: Mapping[str, Any],
) -> None:
    write(view, path, progress, StackSelection(**options))


class FrameTextBatch(NamedTuple):
    """The texts of the frames of a batch of call stacks.

    Stack ``i`` of the batch has the labels ``labels[offsets[i]:offsets[i + 1]]``, from the outermost to the innermost
    frame.

    Attributes:
        rows: Slice of the row numbers of the call stacks in the batch.
        offsets: Offset of the first frame of each stack in ``labels``, followed by the total number of frames.
        labels: Index of the text of each frame in ``Profile.texts``.
    """

    rows: slice
    offsets: Int64Array
    labels: Int64Array


@dataclass(frozen=True)
class Profile:
    """Weighted call stacks as a tree of frames. Stacks whose frames have the same texts share nodes.

    Attributes:
        events: Kind of the events, one of ``EVENTS``.
        unit: Unit of the weights: ``samples`` or ``nanoseconds``.
        texts: Distinct texts of frames.
        functions: Function name of each text.
        modules: Module of each text, or null if the module is unknown or not requested.
        parents: Node of the caller of each node. Node 0 is the root, which is not a frame. A caller has a lower node
            number than the nodes that it calls.
        labels: Index of the text of each node in ``texts``.
        depths: Number of frames from the outermost caller of each node to the node itself.
        groups: Name of each group of events. If the events are not grouped, the list is ``[None]``.
        weights: Total weight per group and node, sorted by both: the columns ``group`` (index in ``groups``), ``node``
            (innermost frame of the stack) and ``weight``.
    """

    events: str
    unit: str
    texts: pa.Array
    functions: pa.Array
    modules: pa.Array
    parents: Int64Array
    labels: Int64Array
    depths: Int64Array
    groups: list[str | None]
    weights: pl.DataFrame

    def iterate_frame_batches(self, nodes: Int64Array) -> Iterator[FrameTextBatch]:
        """Yield the frames of call stacks in batches, as indexes in ``texts``.

        Args:
            nodes: Node of the innermost frame of each call stack.
        """
        for rows, edges, frames in iterate_frame_batches(self.parents, self.depths, nodes, BATCH_FRAMES):
            yield FrameTextBatch(rows, edges, self.labels[frames])


def read_profile(tables: Tables, selection: StackSelection) -> Profile:
    """Return the weighted call stacks of the events of a trace that match the options.

    Events without a call stack are omitted.

    Raises:
        MissingTableError: The trace has no call stacks.
    """
    check_polars_can_run()
    name = selection.events or next((n for n in EVENTS if has_stacks(tables, n)), None)
    if name is None or not has_stacks(tables, name):
        raise MissingTableError(
            f"the trace has no call stacks{' of samples or calls' if name is None else f' of {name}'}",
            hint=_create_missing_stacks_hint(tables, name),
        )
    events = _select_events(tables, name, selection)
    keys = _KEYS[selection.by]
    weight = pl.len()
    if selection.weight == "time":
        events, weight = _build_events_and_time_expr(tables, name, events)
    sums = events.group_by(*keys, "stack_id").agg(weight=weight.cast(pl.Int64)).collect()
    groups = sums.select(keys).unique().sort(keys) if keys else pl.DataFrame({"group": [0]})
    numbered = groups.with_row_index("group") if keys else groups
    sums = sums.join(numbered, on=keys, nulls_equal=True) if keys else sums.with_columns(group=pl.lit(0))
    texts, label_of_stack = _build_frame_texts_and_stack_labels(tables, with_modules=selection.modules)
    text, functions, module = (texts[c].to_arrow().cast(pa.string()) for c in ("text", "symbol", "module"))
    stacks = scan_table(tables, "stacks").select(pl.col("parent_id").fill_null(0), "depth").collect()
    tree = _merge_stacks(stacks["parent_id"].to_numpy(), stacks["depth"].to_numpy().astype(np.int64), label_of_stack)
    nodes, parents, labels, depths = tree
    weights = (
        sums.select("group", "weight", node=pl.Series(nodes[sums["stack_id"].to_numpy()]))
        .group_by("group", "node")
        .agg(pl.col("weight").sum())
        .sort("group", "node")
    )
    unit = "samples" if selection.weight == "samples" else "nanoseconds"
    names = _format_group_names(tables, groups, keys)
    return Profile(name, unit, text, functions, module, parents, labels, depths, names, weights)


def read_nonempty_profile(tables: Tables, selection: StackSelection) -> Profile:
    """Return the result of ``read_profile``, or raise an error if the options select no events with call stacks.

    Raises:
        MissingTableError: The trace has no call stacks, or no call stacks inside the range.
        TracekitError: The thread or process in the options has no call stacks, or the range does not exist. The hint
            lists valid values.
    """
    profile = read_profile(tables, selection)
    if profile.weights.is_empty():
        raise _create_empty_selection_error(tables, profile.events, selection)
    return profile


def _create_empty_selection_error(tables: Tables, event_kind: str, selection: StackSelection) -> TracekitError:
    """Return the error to raise if the options select none of the events with call stacks."""
    events = _read_events_with_stacks(tables, event_kind)
    selected = f"call stacks of {event_kind}"
    for noun, plural_noun, number in (
        ("process", "processes", selection.process),
        ("thread", "threads", selection.thread),
    ):
        if number is None:
            continue
        column = f"{noun}_id"
        ids = events.select(pl.col(column).drop_nulls().unique().sort()).collect()[column].to_list()
        if number not in ids:
            hint = create_choices_hint(plural_noun, list(map(str, ids)), str(number))
            return TracekitError(f"{noun} {number} has no {selected}", hint=hint)
        events = events.filter(pl.col(column) == number)
        selected += f" in {noun} {number}"
    range_name = selection.range or ""
    ranges = scan_table(tables, "nvtx_ranges").filter(pl.col("kind").cast(pl.String) == "push_pop")
    names = ranges.select(pl.col("name").cast(pl.String)).collect()["name"].drop_nulls().unique(maintain_order=True)
    if range_name not in names.to_list():
        hint = create_choices_hint("ranges", names.to_list(), range_name, quoted=True)
        return TracekitError(f"there is no NVTX push/pop range {range_name!r}", hint=hint)
    return MissingTableError(f"there are no {selected} inside the range {range_name!r}", hint="choose another range")


def _read_events_with_stacks(tables: Tables, event_kind: str) -> pl.LazyFrame:
    """Return the events of one kind of ``EVENTS``, such as ``cpu_samples``, that have a call stack."""
    return _read_events(tables, event_kind).filter(pl.col("stack_id").is_not_null())


def _read_events(tables: Tables, event_kind: str) -> pl.LazyFrame:
    """Return all events of one kind of ``EVENTS``, such as ``cpu_samples``, with or without a call stack."""
    if event_kind not in _PYTHON:
        return scan_table(tables, event_kind)
    return scan_table(tables, "python_samples").filter(pl.col("kind").cast(pl.String) == _PYTHON[event_kind])


def has_stacks(tables: Tables, event_kind: str) -> bool:
    """Return whether any event of one kind of ``EVENTS``, such as ``cpu_samples``, has a call stack."""
    return bool(_read_events(tables, event_kind).select(pl.col("stack_id").count()).collect().item())


def _create_missing_stacks_hint(tables: Tables, event_kind: str | None) -> str:
    """Return a hint on how to record or export the call stacks that the trace lacks."""
    if event_kind is None and count_rows(tables, "allocator_events"):
        return _ALLOCATOR_HINT
    info = read_table(tables, "capture_info", ["name", "value"]).to_pylist()
    tool = next((row["value"] or "" for row in info if row["name"] == "tool"), "")
    command = find_recording_command("python_samples" if event_kind in _PYTHON else "stacks", "", tool)
    if command is not None and not command.startswith("nsys "):
        return f"record them with {command}"
    if event_kind not in _PYTHON:
        return _HINT
    return _EXPORT_HINT if _read_events(tables, event_kind).select(pl.len()).collect().item() else _PYTHON_HINT


def _select_events(tables: Tables, event_kind: str, selection: StackSelection) -> pl.LazyFrame:
    """Return the events with a call stack that match the thread, process and range in the options."""
    events = _read_events_with_stacks(tables, event_kind)
    if selection.thread is not None:
        events = events.filter(pl.col("thread_id") == selection.thread)
    if selection.process is not None:
        events = events.filter(pl.col("process_id") == selection.process)
    return (
        events
        if selection.range is None
        else _select_events_inside_ranges(tables, events, selection.range, _find_time_column(event_kind))
    )


def _find_time_column(event_kind: str) -> str:
    return "timestamp_ns" if event_kind in ("cpu_samples", *_PYTHON) else "start_ns"


def _select_events_inside_ranges(
    tables: Tables, events: pl.LazyFrame, range_name: str, time_column: str
) -> pl.LazyFrame:
    """Return the events that occur while their thread is in a push/pop range with the name ``range_name``.

    An event is inside a range if more ranges with this name have started than have ended in the thread of the event up
    to the time of the event.

    Args:
        tables: The tables of the trace.
        events: The events.
        range_name: Name of the ranges.
        time_column: Name of the column that contains the time of an event.
    """
    ranges = scan_table(tables, "nvtx_ranges").filter(
        (pl.col("name").cast(pl.String) == range_name) & (pl.col("kind").cast(pl.String) == "push_pop")
    )

    def compute_running_counts(column: str, count_name: str) -> pl.LazyFrame:
        times = ranges.select(*_THREAD, pl.col(column).alias(time_column)).drop_nulls(time_column).sort(time_column)
        return times.with_columns(pl.int_range(1, pl.len() + 1).over(_THREAD).alias(count_name))

    events = events.sort(time_column)
    for column, count in (("start_ns", "started"), ("end_ns", "ended")):
        counts = compute_running_counts(column, count)
        events = events.join_asof(counts, on=time_column, by=_THREAD, strategy="backward", check_sortedness=False)
    return events.filter(pl.col("started").fill_null(0) > pl.col("ended").fill_null(0))


def _build_events_and_time_expr(tables: Tables, event_kind: str, events: pl.LazyFrame) -> tuple[pl.LazyFrame, pl.Expr]:
    """Return the events, and an expression that aggregates their total time in ns.

    The time of a call is its duration. The time of a sample is the median sampling period. For Python stacks of CUDA
    API calls, the returned events have an additional column with the duration of the call.
    """
    if event_kind in ("osrt_calls", "api_calls"):
        return events, pl.col("end_ns").sub(pl.col("start_ns")).sum()
    if event_kind == "python_calls":
        duration = pl.col("end_ns").sub(pl.col("start_ns")).alias("duration_ns")
        calls = scan_table(tables, "api_calls").select(*_THREAD, duration, timestamp_ns="start_ns")
        calls = calls.unique([*_THREAD, "timestamp_ns"], keep="first", maintain_order=True)
        return events.join(calls, on=[*_THREAD, "timestamp_ns"], how="left"), pl.col("duration_ns").sum()
    gaps = pl.col("timestamp_ns").sort().diff().over(_THREAD)
    period = _read_events(tables, event_kind).select(gaps.median().fill_null(0).round().cast(pl.Int64)).collect().item()
    return events, pl.len().cast(pl.Int64) * period


def _build_frame_texts_and_stack_labels(tables: Tables, *, with_modules: bool) -> tuple[pl.DataFrame, Int64Array]:
    """Return the distinct texts of frames, and the label of the innermost frame of each row of the table ``stacks``.

    Args:
        tables: The tables of the trace.
        with_modules: Whether texts contain the module of the frame.

    Returns:
        A data frame with the columns ``label`` (row number), ``text``, ``symbol`` and ``module``, and an array with the
        label of each row of ``stacks``.
    """
    names = scan_table(tables, "stacks").select("symbol", *(["module"] if with_modules else [])).collect()
    keys = [pl.col(c).to_physical().fill_null(-1).cast(pl.Int64) for c in names.columns]
    coded = names.with_columns(key=keys[0] if len(keys) == 1 else keys[0] * ((1 << 31) + 1) + keys[1])
    distinct = coded.unique("key", maintain_order=True)
    symbol = pl.col("symbol").cast(pl.String).fill_null(UNKNOWN)
    module = pl.col("module").cast(pl.String) if with_modules else pl.lit(None, pl.String)
    text = pl.when(module.is_null() | (module == symbol)).then(symbol).otherwise(symbol + " [" + module + "]")
    distinct = distinct.select("key", text=text.str.slice(0, MAX_TEXT), symbol=symbol, module=module)
    texts = distinct.drop("key").unique("text", keep="first", maintain_order=True).with_row_index("label")
    labels = distinct.join(texts, on="text", maintain_order="left").select("key", "label")
    of_stacks = coded.select("key").join(labels, on="key", how="left", maintain_order="left")["label"]
    return texts, of_stacks.to_numpy().astype(np.int64)


class _StackTree(NamedTuple):
    """A tree of frames. Stacks whose frames have the same texts share one node.

    Attributes:
        nodes: The node of each stack, by stack id. Id 0, which does not identify a stack, has the root as its node.
        parents: The parent of each node. Node 0 is the root.
        labels: The label of each node.
        depths: The depth of each node.
    """

    nodes: Int64Array
    parents: Int64Array
    labels: Int64Array
    depths: Int64Array


def _merge_stacks(parents: Int64Array, depths: Int64Array, labels: Int64Array) -> _StackTree:
    """Merge call stacks into a tree in which stacks whose frames have the same texts share one node.

    Args:
        parents: Id of the parent of each stack, or 0 for stacks with a single frame. Stack ids start at 1.
        depths: Number of frames of each stack.
        labels: Label (index of the text) of the innermost frame of each stack.
    """
    nodes = np.zeros(len(parents) + 1, np.int64)
    order = np.argsort(depths, kind="stable")
    bounds = np.searchsorted(depths[order], np.arange(1, min(int(depths.max(initial=0)), MAX_DEPTH) + 2))
    width = int(labels.max(initial=0)) + 1
    levels = [np.zeros(1, np.int64)]
    of_nodes = [np.zeros(1, np.int64)]
    sizes = [1]
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = order[begin:end]
        keys, inverse = np.unique(nodes[parents[rows]] * width + labels[rows], return_inverse=True)
        nodes[rows + 1] = sum(sizes) + inverse
        levels.append(keys // width)
        of_nodes.append(keys % width)
        sizes.append(len(keys))
    deep = np.flatnonzero(depths > MAX_DEPTH)
    ancestors = np.arange(len(nodes))
    ancestors[deep + 1] = parents[deep]
    while len(deep) and (nodes[ancestors[deep + 1]] == 0).any():
        ancestors[deep + 1] = ancestors[ancestors[deep + 1]]
    nodes[deep + 1] = nodes[ancestors[deep + 1]]
    node_depths = np.repeat(np.arange(len(sizes)), sizes)
    return _StackTree(nodes, np.concatenate(levels), np.concatenate(of_nodes), node_depths)


def _format_group_names(tables: Tables, groups: pl.DataFrame, keys: list[str]) -> list[str | None]:
    """Return the name of each group of events: the name and id of its thread or process, such as ``python (1234)``.

    Args:
        tables: The tables of the trace.
        groups: One row per group, with the columns ``keys``.
        keys: Names of the columns that identify a group. If the list is empty, the result is ``[None]``.
    """
    if not keys:
        return [None]
    kind = keys[-1].removesuffix("_id")
    table = "threads" if kind == "thread" else "processes"
    known = scan_table(tables, table).select(*keys, pl.col("name").cast(pl.String))
    known = known.unique(keys, keep="last", maintain_order=True)
    named = groups.join(known.collect(), on=keys, how="left", nulls_equal=True, maintain_order="left")
    return [f"{name or kind} ({number if number is not None else 'unknown'})" for *_, number, name in named.iter_rows()]


def replace_separators(texts: pa.Array) -> pa.Array:
    """Replace semicolons with colons, and line breaks with spaces.

    Semicolons separate frames and line breaks separate stacks in the collapsed format.
    """
    return pc.replace_substring_regex(pc.replace_substring(texts, ";", ":"), r"[\r\n]", " ")
