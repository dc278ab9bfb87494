"""Read the events of one process that ``why`` explains: steps, API calls, GPU operations, and ranges of the program.

A *GPU operation* is a kernel, a memory copy, a memory set or a CUDA graph that was recorded as a whole. All times are
in ns since the origin of the trace.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core import intervals
from tracekit.core.categories import OPERATION_TEXT
from tracekit.core.diagnosis import kinds
from tracekit.core.ops.emit_nvtx import name_without_arguments_expr
from tracekit.core.relations import ACTIVITIES, CALL, STREAM, THREAD, find_first_row_numbers
from tracekit.core.series import decode_categories, map_categories_expr, map_frame_blocks, select_by_string, sort_frame
from tracekit.system.sorting import create_series, iterate_row_blocks

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    import numpy.typing as npt

    from tracekit.core.correlate import Frames
    from tracekit.core.rollup import Rollup

    Int64s = npt.NDArray[np.int64]
    Int32s = npt.NDArray[np.int32]

_IDS = {
    "kernels": "kernel_id",
    "memcpys": "memcpy_id",
    "memsets": "memset_id",
    "graph_launches": "graph_launch_id",
}
_LAUNCHING_KINDS = {
    table: kinds.CALL_NUMBERS[kind]
    for table, kind in zip(ACTIVITIES, ("launch", "copy", "memset", "graph_launch"), strict=True)
}
_STREAM_AND_GRAPH = (*STREAM[1:], "graph_node_id")
READ_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "nvtx_ranges": ("payload_text",),
    "kernels": (
        *("kernel_id", "operation", "graph_id", *_STREAM_AND_GRAPH),
        *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"),
        *("registers_per_thread", "static_shared_memory_bytes", "dynamic_shared_memory_bytes"),
    ),
    "memcpys": (
        *("memcpy_id", "bytes", "copy_kind", "src_memory_kind", "dst_memory_kind", "migration_cause"),
        *_STREAM_AND_GRAPH,
    ),
    "memsets": ("memset_id", "bytes", *_STREAM_AND_GRAPH),
    "graph_launches": ("graph_launch_id", "graph_exec_id", *STREAM[1:]),
    "syncs": ("context_id", "stream_id", "event_sync_id"),
    "osrt_calls": (*THREAD, "start_ns", "end_ns", "name"),
    **dict.fromkeys(("cpu_samples", "python_samples"), ("timestamp_ns", *THREAD, "stack_id")),
}
"""The columns that the diagnosis reads of large tables, keyed by table, in addition to those of the roll-up."""

SIZES = ("bytes", "blocks", "threads", "registers", "shared_bytes", "pageable", "name")
"""The columns of ``Events.operations`` that describe operations."""

FRAMEWORK_PATTERN = (
    r"^(aten::|autograd::|torch::|c10|cudnn|cublas|cuda[A-Z]|cu[A-Z]|hip[A-Z]|musa[A-Z]|cub::|nccl|TorchDynamo"
    r"|## Call|Torch-Compiled"
    r"|\[memory\]|enumerate\(DataLoader\)|_MultiProcessing|Optimizer\.|AccumulateGrad|autograd|PyTorch|triton_|CompiledFunction)"
    r"|Backward\d*$|^XlaModule|^TSL|^Thunk|^ProfilerStep#"
    r"|^(\[\d+\] |Scheduled )?(GpuExecutable|CommonPjRt|PjRt|PJRT_|PjitFunction|Tfrt|ThunkExecutor|tpu::System|py_xla)"
)
"""Regular expression that matches the names of ranges that a framework, not the program, records."""
_PLACES = ((r"^(enumerate\(DataLoader\)|_MultiProcessing)", "data loader"), (r"^Optimizer\.step", "optimizer"))
_EXCLUDED_DOMAINS = r"(?i)nccl|cccl|cub\b|thrust|python_function|^cpu_op$"
_SUFFIXES_OF_EMIT_NVTX = r"(?s), (seq|op_id|sizes|input_op_ids) = .*$"
_NUMBERS = r"([ _#:\-\[\(]*\d+[\]\)]*| *[\[\(][\d, \[\]\(\)]+[\]\)])$"
"""Numbers and sizes at the end of the name of a range."""
_LABEL_CHARS = 200
_STEP_OF_XLA = r"#step_num=(?:-?\d+|\*+)#$"
_PATH_OF_THUNK = r"(?s)^Thunk:#(?:[^#]*,)?name=(.*?)(?:,(?:hlo_op|hlo_module|program_id)=.*)?#$"
_ROOT_OF_PATH, _PRIMITIVE = r"^p?jit\([^()]*\)/", r"/*[^/]*$"
_TRANSFORMATION, _NESTED_TRANSFORMATIONS = r"\b(?:transpose|jvp|vmap|checkpoint|remat)\(([^()]*)\)", 4
"""Parts of the path of an operation of XLA, such as ``jit(step)/transpose(jvp(layer0))/dot_general``, whose scope
``layer0`` is the label."""
MAX_TIME_NS = 1 << 61
"""Largest time from the origin, of 73 years, so that differences of times fit into 64 bits."""


class JoinedResults(NamedTuple):
    """Results of Nsight Compute that are joined to the kernels of a capture.

    Attributes:
        key: Value that identifies the join.
        frames: Function that returns the table ``kernels``, with the column ``ncu_launch_id``, and the tables of the
            results.
    """

    key: Hashable
    frames: Frames


class Step(NamedTuple):
    """A step of the main loop of a process.

    Attributes:
        name: Name that the program gave to the step.
        start_ns: Time at which the CPU begins the step.
        end_ns: Time at which the CPU ends the step.
        is_cold: Whether the step belongs to the warm-up.
        iteration: Number of the iteration in the table ``iterations``.
    """

    name: str
    start_ns: int
    end_ns: int
    is_cold: bool
    iteration: int = 0


@dataclass(frozen=True)
class Events:
    """The events of one process.

    Attributes:
        process_id: Id of the process, or None if it is unknown.
        key_op: Name of the range that delimits steps, or None if all of the capture is one step.
        steps: The steps in order of time.
        calls: The API calls in order of start: ``row`` (number in ``api_calls``), ``call_id``, ``thread_id``,
            ``start_ns``, ``end_ns``, ``name``, ``kind`` (number in ``kinds.CALL_KINDS``), ``correlation_id``.
        operations: The GPU operations in order of start: ``table``, ``id`` (of the row in this table), ``start_ns``,
            ``end_ns``, ``device_id``, ``lane`` (number of the stream), ``call`` (row number in ``calls``, or null),
            ``cls`` (number in ``kinds.CLASSES``), ``bytes``, ``blocks``, ``threads``, ``registers`` (per thread),
            ``shared_bytes`` (of shared memory per block), ``pageable``, ``name``,
            ``graph_node_id``, ``graph_id``.
        lanes: The streams: ``device_id``, ``context_id``, ``stream_id``, ``lane``.
        main_thread: Id of the thread that runs the steps.
        frames: Function that returns the declared table with a given name.
        distant: Number of API calls and GPU operations that are left out because they are further from the origin than
            ``MAX_TIME_NS``.
        joined: Results of Nsight Compute that are joined to the kernels, or None.
    """

    process_id: int | None
    key_op: str | None
    steps: tuple[Step, ...]
    calls: pl.DataFrame
    operations: pl.DataFrame
    lanes: pl.DataFrame
    main_thread: int | None
    frames: Frames
    distant: int = 0
    joined: JoinedResults | None = None

    def read(self, table: str) -> pl.LazyFrame:
        """Return the rows of a declared table that belong to the process."""
        return self.frames(table).filter(pl.col("process_id").eq_missing(pl.lit(self.process_id, pl.Int64)))

    def read_thread(self, table: str, thread: int | None) -> pl.LazyFrame:
        """Return the rows of a declared table that belong to a thread of the process."""
        return self.read(table).filter(pl.col("thread_id").eq_missing(pl.lit(thread, pl.Int64)))

    @functools.cached_property
    def launch_ns(self) -> Int64s:
        """Time at which each GPU operation was launched, or started if its launch is unknown."""
        started = self.operations["start_ns"]
        return self.calls["start_ns"].gather(self.operations["call"]).fill_null(started).to_numpy()

    @functools.cached_property
    def ranges(self) -> pl.DataFrame:
        """The closed push/pop ranges of the main thread: ``start_ns``, ``end_ns``, ``name`` (Categorical)."""
        return self._read_ranges(self.main_thread)

    def _read_ranges(self, thread: int | None) -> pl.DataFrame:
        rows = self.read_thread("nvtx_ranges", thread).filter(
            (pl.col("kind").cast(pl.String) == "push_pop")
            & pl.col("name").is_not_null()
            & (pl.col("end_ns") > pl.col("start_ns"))
            & ~pl.col("domain").cast(pl.String).fill_null("").str.contains(_EXCLUDED_DOMAINS)
        )
        return rows.select("start_ns", "end_ns", "name").collect()

    def list_labeled_ranges(self, label: str, first: int, last: int) -> pl.DataFrame:
        """Return the ranges with a label that overlap with a time: ``id``, ``name``, ``start_ns``, ``end_ns``."""
        rows = self.read("nvtx_ranges").filter((pl.col("end_ns") > first) & (pl.col("start_ns") < last))
        ranges = rows.select("name", "start_ns", "end_ns", id="range_id").drop_nulls("name").collect()
        labels = self._find_labels_of_names(ranges["name"]).cast(pl.String)
        return ranges.filter(labels == label)

    @functools.cached_property
    def _distinct_names(self) -> tuple[pl.Series, pl.Series]:
        texts = self.frames("nvtx_ranges").select(pl.col("name").unique()).drop_nulls().collect().to_series()
        names = texts.cast(pl.String).to_frame().select(name_without_arguments_expr(pl.col("name")))
        return texts, names.to_series().cast(pl.Categorical)

    @functools.cached_property
    def range_names(self) -> pl.Series:
        """The distinct names of ranges, as ``remove_arguments`` returns them."""
        return self._distinct_names[1].unique().cast(pl.String)

    def remove_arguments(self, names: pl.Series) -> pl.Series:
        """Return names of ranges without the arguments of ops, by which nearly all names of ``emit_nvtx`` differ.

        Args:
            names: Values of the column ``name`` of ``nvtx_ranges``.
        """
        texts, without_arguments = self._distinct_names
        return select_by_string(without_arguments, texts, names)

    def _find_labels_of_names(self, names: pl.Series) -> pl.Series:
        """Return the label of each name of a range."""
        without_arguments = self.remove_arguments(names).to_frame("name")
        return without_arguments.select(map_categories_expr(pl.col("name"), convert_to_label_expr)).to_series()

    @functools.cached_property
    def labels(self) -> Labels:
        """The innermost range of the program that is open on the main thread, over time.

        If this thread has none, those of the thread that launches most operations count.
        """
        labels = self._find_labels(self.ranges)
        launching = _find_most_common_thread(self.calls, self.operations)
        if len(labels.names) > 1 or launching in (None, self.main_thread):
            return labels
        return self._find_labels(self._read_ranges(launching))

    def _find_labels(self, ranges: pl.DataFrame) -> Labels:
        """Return the innermost range of the program over time. Ranges of frameworks count only for lack of others.

        The range that delimits steps has no label of its own.
        """
        named = ranges.with_columns(label=self._find_labels_of_names(ranges["name"]))
        text = decode_categories(named["label"].unique()).drop_nulls()
        of_step = pl.select(convert_to_label_expr(pl.lit(self.key_op or "").str.replace(r"\*+$", "0"))).item()
        hidden = text.filter(text.is_in(["", of_step]))
        rows = named.filter(~pl.col("label").is_in(hidden.cast(pl.Categorical).implode()))
        if rows.is_empty():
            return Labels(np.zeros(0, np.int64), np.zeros(0, np.int32), [""])
        spans = rows.select("start_ns", "end_ns", t=pl.lit(0))
        index = intervals.NestingIndex.from_intervals(spans, by=["t"])
        times = pl.concat([rows["start_ns"], rows["end_ns"]]).unique().sort()
        inner = index.find_innermost(times.to_frame("time").with_columns(t=pl.lit(0)), "time")
        labels = rows["label"].gather(inner)
        listed = labels.unique().drop_nulls()
        names = ["", *decode_categories(listed).to_list()]
        numbers = pl.int_range(1, len(names), eager=True, dtype=pl.Int32)
        codes = select_by_string(numbers, listed, labels).fill_null(0).to_numpy()
        changes = np.flatnonzero(np.diff(codes, prepend=-1))
        return Labels(times.to_numpy()[changes], codes[changes], names)

    @property
    def has_no_cpu_events(self) -> bool:
        """Whether neither API calls nor ranges of the program were recorded, so that the work of the CPU is unknown."""
        return self.calls.is_empty() and len(self.labels.names) == 1

    @functools.cached_property
    def framework(self) -> str:
        """The framework of the program: ``pytorch``, ``jax``, ``tensorflow`` or ``cuda``."""
        return find_framework(self.range_names, decode_categories(self.operations["name"].unique()).drop_nulls())


_FRAMEWORKS = (
    (
        "pytorch",
        r"\bat::|c10::|torch::|triton_(poi|red|per)_",
        r"^(aten::|Optimizer\.|ProfilerStep#|\{'mod': '(torch|Tensor))",
    ),
    ("tensorflow", r"tensorflow::|Eigen::", r"^tensorflow|^TF\b"),
    (
        "jax",
        r"^(loop_|input_|wrapped_|gemm_fusion|triton_softmax)|_fusion(_\d+)?$|\bxla",
        r"^(jit[_(]|PjitFunction|TSL:|Xla[A-Z]|Thunk)",
    ),
)


def find_framework(ranges: pl.Series, kernels: pl.Series) -> str:
    """Return the framework of a program: ``pytorch``, ``jax``, ``tensorflow`` or ``cuda``.

    Args:
        ranges: Names of the ranges. They may lack the arguments of ops.
        kernels: Names of the kernels.
    """
    for framework, of_kernels, of_ranges in _FRAMEWORKS:
        if kernels.str.contains(of_kernels).any() or ranges.str.contains(of_ranges).any():
            return framework
    return "cuda"


class Labels(NamedTuple):
    """The label of each moment: the innermost range of the program on the main thread.

    Attributes:
        times: Times at which the label changes, ascending, in ns. The first label applies before the first time, too.
        codes: Number of the label from each of these times on.
        names: The labels, by number. Number 0 is "", which means no range.
    """

    times: Int64s
    codes: Int32s
    names: list[str]

    def find(self, times: Int64s) -> Int32s:
        """Return the number of the label at each time."""
        if not len(self.times):
            return np.zeros(len(times), np.int32)
        row = np.searchsorted(self.times, times, side="right") - 1
        return np.where(row >= 0, self.codes[np.maximum(row, 0)], 0).astype(np.int32)


def read_events(rollup: Rollup, joined: JoinedResults | None = None) -> Iterator[Events]:
    """Yield the events of each process that ran GPU operations, in order of their GPU time, the largest first.

    If a process recorded no steps of its own, those of all processes together apply. A capture without GPU operations
    yields nothing.
    """
    frames = rollup.measures.ops.frames
    operations, lanes = _read_operations(frames)
    if operations.is_empty():
        return
    times = (
        _select_near(operations).group_by("process_id").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("time"))
    )
    for process in times.sort("time", "process_id", descending=[True, False], nulls_last=True)["process_id"]:
        yield replace(_read_process(rollup, process, operations, lanes), joined=joined)


def _read_process(rollup: Rollup, process: int | None, operations: pl.DataFrame, lanes: pl.DataFrame) -> Events:
    frames = rollup.measures.ops.frames
    is_process = pl.col("process_id").eq_missing(pl.lit(process, pl.Int64))
    columns = [*CALL, "thread_id", "start_ns", "end_ns", "name", pl.col("api_call_id").alias("call_id")]
    table = frames("api_calls").select(columns).collect()

    def select_calls(block: slice) -> pl.DataFrame:
        rows = table[block].with_row_index("row", block.start)
        return rows.filter(is_process & (pl.col("end_ns") >= pl.col("start_ns")))

    calls = map_frame_blocks(select_calls, table.height)
    calls = sort_frame(calls, calls["start_ns"].to_numpy(), -calls["end_ns"].to_numpy())
    own = map_frame_blocks(lambda block: operations[block].filter(is_process), operations.height)
    distant = calls.height + own.height
    calls, rows = _select_near(calls), _select_near(own)
    distant -= calls.height + rows.height
    kind = create_series(kinds.map_names(calls["name"], kinds.classify_call_name, 0)).alias("kind")
    calls = calls.with_columns(kind)
    call = find_first_row_numbers(calls.select(CALL), rows.select(CALL))
    rows = sort_frame(rows.with_columns(call=call), rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
    calls = calls.with_columns(kind=_name_launching_calls(calls, rows))
    steps, key_op = _find_steps(rollup, process, calls, rows)
    thread = _find_main_thread(frames, process, steps) if key_op is not None else None
    if thread is None:
        thread = _find_most_common_thread(calls, rows)
    return Events(process, key_op, steps, calls.drop("process_id"), rows.drop(CALL), lanes, thread, frames, distant)


def _is_near_expr() -> pl.Expr:
    """Return an expression for whether an event is so near to the origin that differences of times fit into 64 bits."""
    return (pl.col("start_ns") >= -MAX_TIME_NS) & (pl.col("end_ns") <= MAX_TIME_NS)


def _select_near(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the events that are near enough to the origin."""
    is_near = rows.select(_is_near_expr()).to_series()
    return rows if is_near.all() else rows.filter(is_near)


def _name_launching_calls(calls: pl.DataFrame, operations: pl.DataFrame) -> pl.Series:
    """Return the kind of each call. Calls whose names were not recorded are named after the operations they launch."""
    if not calls["name"].null_count():
        return calls["kind"]
    kind = pl.col("table").cast(pl.String).replace_strict(_LAUNCHING_KINDS, return_dtype=pl.Int8)
    first = operations.drop_nulls("call").unique("call", keep="first").select("call", launching=kind)
    launching = calls.select(call=pl.int_range(pl.len())).join(
        first.cast({"call": pl.Int64}), on="call", how="left", maintain_order="left"
    )["launching"]
    is_unnamed = calls["name"].is_null() & launching.is_not_null()
    return launching.zip_with(is_unnamed, calls["kind"])


def _read_operations(frames: Frames) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the GPU operations of all processes that have a duration, and their streams."""
    rows = pl.concat([_read_operations_of_table(frames, table) for table in ACTIVITIES], rechunk=False)
    streams = [rows[block].select(STREAM).unique() for block in iterate_row_blocks(rows.height)]
    lanes = pl.concat([rows.select(STREAM).clear(), *streams]).unique().sort(STREAM).with_row_index("lane")

    def add_lanes(block: slice) -> pl.DataFrame:
        joined = rows[block].join(lanes, on=list(STREAM), how="left", maintain_order="left", nulls_equal=True)
        return joined.drop("context_id", "stream_id")

    return map_frame_blocks(add_lanes, rows.height), lanes


def _read_operations_of_table(frames: Frames, table: str) -> pl.DataFrame:
    size, no_name = pl.lit(None, pl.Int64), pl.lit(None, pl.Categorical)
    columns: dict[str, pl.Expr] = {
        "table": pl.lit(table, pl.Enum(ACTIVITIES)),
        "id": pl.col(_IDS[table]),
        **{c: pl.col(c) for c in (*CALL, *STREAM, "start_ns", "end_ns")},
        "bytes": size,
        "blocks": size,
        "threads": size,
        "registers": size,
        "shared_bytes": size,
        "pageable": pl.lit(value=False),
        "name": no_name,
        "graph_node_id": size,
        "graph_id": size,
    }
    if table == "kernels":
        columns["blocks"] = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z")
        columns["threads"] = pl.col("block_x").cast(pl.Int64) * pl.col("block_y") * pl.col("block_z")
        columns["registers"] = pl.col("registers_per_thread").cast(pl.Int64)
        shared = ("static_shared_memory_bytes", "dynamic_shared_memory_bytes")
        columns["shared_bytes"] = pl.sum_horizontal(*(pl.col(c).cast(pl.Int64) for c in shared), ignore_nulls=False)
        columns |= {c: pl.col(c) for c in ("name", "operation", "graph_node_id", "graph_id")}
    elif table == "memcpys":
        ends = [pl.col(c).cast(pl.String).str.contains("(?i)pageable") for c in ("src_memory_kind", "dst_memory_kind")]
        columns["pageable"] = pl.any_horizontal(*ends).fill_null(value=False)
        columns["name"] = pl.col("copy_kind")
    if table in ("memcpys", "memsets"):
        columns |= {c: pl.col(c) for c in ("bytes", "graph_node_id")}
    if table == "graph_launches":
        columns["graph_id"] = pl.col("graph_exec_id")

    def read_block(block: slice) -> pl.DataFrame:
        rows = frames(table).slice(block.start, block.stop - block.start).select(**columns).collect()
        rows = rows.with_columns(pl.col("name").cast(pl.Categorical))
        rows = rows.with_columns(create_series(_classify(table, rows)).alias("cls")).drop("operation", strict=False)
        return rows.filter(pl.col("end_ns") >= pl.col("start_ns"))

    return map_frame_blocks(read_block, frames(table).select(pl.len()).collect().item())


def _classify(table: str, rows: pl.DataFrame) -> npt.NDArray[np.int8]:
    """Return the class of each GPU operation of a table."""
    if table == "kernels":
        texts = rows.select(OPERATION_TEXT).to_series()
        return kinds.map_names(texts, kinds.classify_kernel_name, kinds.NUMBERS["other_kernel"])
    if table == "memcpys":
        return kinds.map_names(rows["name"], _classify_copy, kinds.NUMBERS["copy_d2d"])
    name = "memset" if table == "memsets" else "opaque_graph"
    return np.full(rows.height, kinds.NUMBERS[name], np.int8)


def _classify_copy(kind: str) -> int:
    text = kind.lower()
    to_device = (text.startswith("host-to-") and "host-to-host" not in text) or "htod" in text
    to_host = (text.endswith("-to-host") and not text.startswith("host")) or "dtoh" in text
    return kinds.NUMBERS["copy_h2d" if to_device else "copy_d2h" if to_host else "copy_d2d"]


def _find_steps(
    rollup: Rollup, process: int | None, calls: pl.DataFrame, operations: pl.DataFrame
) -> tuple[tuple[Step, ...], str | None]:
    """Return the steps of a process in order, and the name of the range that delimits them, or None."""
    its = rollup.iterations
    bounds = its.by_process.filter(pl.col("process_id").eq_missing(pl.lit(process, pl.Int64)))
    bounds = bounds if bounds.height else its.frame
    chosen = its.frame.select("iteration", "name", "is_warm_up", "aggregated")
    rows = bounds.select("iteration", "start_ns", "end_ns").join(chosen, on="iteration", how="left").sort("start_ns")
    rows = rows.filter(_is_near_expr())
    if rollup.span is not None:
        rows = rows.filter("aggregated")
    if its.is_whole_capture or not rows.height:
        starts = [operations["start_ns"].min(), calls["start_ns"].min()]
        ends = [operations["end_ns"].max(), calls["end_ns"].max()]
        first = min(int(s) for s in starts if isinstance(s, int))
        return (Step("whole capture", first, max(int(e) for e in ends if isinstance(e, int)), is_cold=False),), None
    warm = pl.col("is_warm_up") & ~pl.col("aggregated")
    listed = rows.select(
        pl.col("name").fill_null(pl.format("step {}", "iteration")), "start_ns", "end_ns", warm, "iteration"
    )
    return tuple(Step(*row) for row in listed.iter_rows()), its.label


def _find_main_thread(frames: Frames, process: int | None, steps: tuple[Step, ...]) -> int | None:
    """Return the thread whose ranges begin or end at the bounds of steps, or None."""
    ranges = frames("nvtx_ranges").filter(pl.col("process_id").eq_missing(pl.lit(process, pl.Int64)))
    for column, bounds in (("start_ns", [s.start_ns for s in steps]), ("end_ns", [s.end_ns for s in steps])):
        at_bounds = ranges.filter(pl.col(column).is_in(pl.Series(bounds, dtype=pl.Int64).implode()))
        threads = at_bounds.select("thread_id", "name").collect()
        counts = threads.group_by("thread_id").agg(pl.len()).sort("len", "thread_id", descending=[True, False])
        if counts.height and isinstance(counts["thread_id"][0], int):
            return int(counts["thread_id"][0])
    return None


def _find_most_common_thread(calls: pl.DataFrame, operations: pl.DataFrame) -> int | None:
    """Return the thread that launched most GPU operations, or made most calls."""
    launching = calls["thread_id"].gather(operations["call"].drop_nulls())
    threads = launching if len(launching) else calls["thread_id"]
    counts = threads.to_frame("t").group_by("t").agg(pl.len()).sort("len", "t", descending=[True, False])
    return int(counts["t"][0]) if counts.height and counts["t"][0] is not None else None


def convert_to_label_expr(text: pl.Expr) -> pl.Expr:
    """Return an expression for the label of the name of a range: "" if a framework recorded it."""
    text = text.str.replace(_SUFFIXES_OF_EMIT_NVTX, "").str.replace(_STEP_OF_XLA, "")
    label = (
        pl.when(text.str.contains(FRAMEWORK_PATTERN))
        .then(pl.lit(""))
        .otherwise(text.str.head(_LABEL_CHARS).str.replace(_NUMBERS, ""))
    )
    scope = text.str.extract(_PATH_OF_THUNK).str.replace(_ROOT_OF_PATH, "")
    for _ in range(_NESTED_TRANSFORMATIONS):
        scope = scope.str.replace_all(_TRANSFORMATION, "$1")
    label = pl.when(scope.is_not_null()).then(scope.str.replace(_PRIMITIVE, "").str.head(_LABEL_CHARS)).otherwise(label)
    for pattern, place in _PLACES:
        label = pl.when(text.str.contains(pattern)).then(pl.lit(place)).otherwise(label)
    return label
