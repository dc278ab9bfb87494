"""Declare the kinds of events on a timeline, each with its table, tracks, name and arguments.

To add a kind of event, add an ``EventKind`` to ``_STAGES_BY_TRACK``, and a ``Placement`` to ``tracks`` if it needs new
tracks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit.exporters.timeline import tracks
from tracekit.exporters.timeline.exporter import concat_expr

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracekit.exporters.timeline.tracks import Placement

SLICE, INSTANT, COUNTER = "X", "i", "C"


INTEGER, UNSIGNED, REAL, THOUSANDTHS, STRING, TRUE = "integer", "unsigned", "real", "thousandths", "string", "true"
"""Types of argument values: int64, uint64, finite float64, integer to be divided by 1000, string, and true or null."""


class ArgumentValue(NamedTuple):
    """A value of an event argument: an expression, and the type (``form``) of its result, such as ``INTEGER``."""

    form: str
    expression: pl.Expr


class Arg(NamedTuple):
    """An event argument: its key, and alternative values of which the first that is not null is used.

    The argument is omitted if all values are null.
    """

    key: str
    values: tuple[ArgumentValue, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EventKind:
    """A kind of event, such as kernels. It declares how rows of a table are drawn on the timeline.

    Attributes:
        table: The table that contains the events.
        placement: The rule that assigns the events to tracks.
        key: Name of the first argument: the row id, or the value of a counter. The argument is never null.
        name: Label of an event in the viewer. The label is never null.
        row_args: Arguments that differ in most rows.
        repeated_args: Arguments that are equal in many rows. Each combination of their values is formatted once.
        phase: Shape in which the events are drawn: ``SLICE``, ``INSTANT`` or ``COUNTER``.
        start: Start of an event in ns.
        end: End of an event in ns, or null if the event was never closed.
        where: Condition for the rows to draw, or None to draw all rows.
        launched: Whether API calls launch the events. If so, flows are drawn from the calls to the events.
        links: Columns added by correlation that determine the flows between events of this kind.
        key_values: Alternative values of the first argument, or an empty tuple to use the column ``key``.
    """

    table: str
    placement: Placement
    key: str
    name: pl.Expr
    row_args: tuple[Arg, ...] = ()
    repeated_args: tuple[Arg, ...] = ()
    phase: str = SLICE
    start: pl.Expr = pl.col("start_ns")  # noqa: RUF009 - expressions never change
    end: pl.Expr = pl.col("end_ns")  # noqa: RUF009
    where: pl.Expr | None = None
    launched: bool = False
    links: tuple[str, ...] = ()
    key_values: tuple[ArgumentValue, ...] = ()


def _declare_number_arg(column: str, key: str | None = None) -> Arg:
    """Return an argument with the values of an integer column. The default key is the name of the column."""
    return Arg(key or column, (ArgumentValue(INTEGER, pl.col(column)),))


def _declare_real_arg(column: str) -> Arg:
    """Return an argument with the values of a column of finite floating-point numbers."""
    return Arg(column, (ArgumentValue(REAL, pl.col(column)),))


def _declare_string_arg(column: str, key: str | None = None) -> Arg:
    """Return an argument with the values of a string column. The default key is the name of the column."""
    return Arg(key or column, (ArgumentValue(STRING, pl.col(column).cast(pl.String)),))


def _declare_triple_arg(prefix: str) -> Arg:
    """Return an argument that formats the columns ``PREFIX_x``, ``PREFIX_y`` and ``PREFIX_z`` as ``[x,y,z]``."""
    x, y, z = (pl.col(f"{prefix}_{axis}") for axis in "xyz")
    return Arg(prefix, (ArgumentValue(STRING, concat_expr(["[", x, ",", y, ",", z, "]"])),))


def _first_name_expr(*columns: str, default: str) -> pl.Expr:
    """Return an expression for the first non-null value of the given columns, or ``default`` if all values are null."""
    return pl.coalesce(*(pl.col(c).cast(pl.String) for c in columns), pl.lit(default))


def _declare_throughput_arg() -> Arg:
    """Return the argument that contains the throughput of a copy or set in GB/s (bytes per ns), with three decimals."""
    duration = pl.col("end_ns") - pl.col("start_ns")
    thousandths = pl.when(duration > 0).then(pl.col("bytes") * 1000 // duration)
    return Arg("throughput_gb_per_s", (ArgumentValue(THOUSANDTHS, thousandths),))


def _declare_integer_values(column: str, type_column: str) -> tuple[ArgumentValue, ArgumentValue]:
    """Return the alternative values of an int64 column that stores uint64 values as their two's complement.

    Args:
        column: Name of the column.
        type_column: Name of the column that contains the types of the values, such as ``uint64``.
    """
    unsigned = pl.col(column).cast(pl.UInt64, wrap_numerical=True)
    is_unsigned = pl.col(type_column).cast(pl.String) == "uint64"
    return ArgumentValue(UNSIGNED, pl.when(is_unsigned).then(unsigned)), ArgumentValue(INTEGER, pl.col(column))


def _declare_payload_arg() -> Arg:
    """Return the argument that contains the NVTX payload. Infinite numbers and NaN are formatted as strings."""
    number = pl.col("payload_float")
    finite = ArgumentValue(REAL, pl.when(number.is_finite()).then(number))
    special = ArgumentValue(STRING, pl.when(~number.is_finite()).then(number.cast(pl.String)))
    text = ArgumentValue(STRING, pl.col("payload_text").cast(pl.String))
    return Arg("payload", (*_declare_integer_values("payload_int", "payload_type"), finite, special, text))


_HEX = pl.Series([f"{n:02X}" for n in range(256)])


def _declare_color_arg() -> Arg:
    """Return the argument that contains the color of an event as ``#RRGGBB``, without alpha."""
    pairs = [pl.lit(_HEX).gather(pl.col("color") // weight % 256) for weight in (1 << 16, 1 << 8, 1)]
    return Arg("color", (ArgumentValue(STRING, concat_expr(["#", *pairs])),))


_API_NAME = pl.col("name").cast(pl.String).str.replace(r"_v\d{4}$", "").fill_null("API call")
_OTHER_API = Arg(
    "api",
    (
        ArgumentValue(
            STRING,
            pl.when(~pl.col("api").cast(pl.String).str.starts_with("CUDA")).then(pl.col("api").cast(pl.String)),
        ),
    ),
)
"""The API of a call of another runtime than CUDA. That of a call of CUDA follows from the name of the function."""
_CORRELATION_ARGS = (_declare_number_arg("correlation_id"), _declare_number_arg("graph_node_id"))
_RANGE_PATH = (_declare_string_arg("range_path", "nvtx_path"),)
_NVTX_NAME = _first_name_expr("name", default="(no text)")
_NVTX_ROW_ARGS = (_declare_payload_arg(), _declare_number_arg("gpu_op_count"), _declare_number_arg("gpu_time_ns"))
_NVTX_REPEATED_ARGS = (
    _declare_string_arg("domain"),
    _declare_number_arg("category_id"),
    _declare_string_arg("category"),
    _declare_color_arg(),
    _declare_string_arg("payload_type"),
)
_PUSH_POP, _START_END = pl.col("kind") == "push_pop", pl.col("kind") == "start_end"


def _declare_range_kind(placement: Placement, condition: pl.Expr, *more_args: Arg) -> EventKind:
    """Return the ``EventKind`` of the NVTX ranges that meet a condition, with additional event arguments."""
    repeated_args = (*_NVTX_REPEATED_ARGS, *more_args)
    return EventKind("nvtx_ranges", placement, "range_id", _NVTX_NAME, _NVTX_ROW_ARGS, repeated_args, where=condition)


def _declare_projection_kind(placement: Placement, condition: pl.Expr) -> EventKind:
    """Return the ``EventKind`` of the projections of the NVTX ranges that meet a condition."""
    row_args = (_declare_number_arg("gpu_op_count"), _declare_number_arg("gpu_time_ns"))
    repeated_args = (_declare_string_arg("domain"), _declare_number_arg("thread_id"), _declare_number_arg("depth"))
    return EventKind("nvtx_projections", placement, "range_id", _NVTX_NAME, row_args, repeated_args, where=condition)


API_CALLS = EventKind(
    "api_calls",
    tracks.API_TRACKS,
    "api_call_id",
    name=_API_NAME,
    row_args=(_declare_number_arg("correlation_id"),),
    repeated_args=(_declare_number_arg("return_value"), _OTHER_API),
)
OSRT_CALLS = EventKind(
    "osrt_calls",
    tracks.OSRT_TRACKS,
    "osrt_call_id",
    name=_first_name_expr("name", default="OS runtime call"),
    row_args=(_declare_number_arg("return_value"),),
)
KERNELS = EventKind(
    "kernels",
    tracks.STREAM_TRACKS,
    "kernel_id",
    name=_first_name_expr("short_name", "name", default="kernel"),
    row_args=_CORRELATION_ARGS,
    repeated_args=(
        _declare_triple_arg("grid"),
        _declare_triple_arg("block"),
        _declare_number_arg("registers_per_thread"),
        _declare_number_arg("static_shared_memory_bytes", "static_shared_bytes"),
        _declare_number_arg("dynamic_shared_memory_bytes", "dynamic_shared_bytes"),
        *map(_declare_real_arg, ("blocks_per_sm", "warps_per_sm", "achieved_occupancy_percent")),
        _declare_string_arg("name"),
        *_RANGE_PATH,
    ),
    launched=True,
)
MEMCPYS = EventKind(
    "memcpys",
    tracks.STREAM_TRACKS,
    "memcpy_id",
    name=concat_expr(["Memcpy ", _first_name_expr("copy_kind", default="")]).str.strip_chars_end(),
    row_args=(_declare_number_arg("bytes"), _declare_throughput_arg(), *_CORRELATION_ARGS),
    repeated_args=(
        _declare_string_arg("copy_kind"),
        _declare_string_arg("src_memory_kind"),
        _declare_string_arg("dst_memory_kind"),
        _declare_string_arg("migration_cause"),
        *_RANGE_PATH,
    ),
    launched=True,
)
MEMSETS = EventKind(
    "memsets",
    tracks.STREAM_TRACKS,
    "memset_id",
    name=concat_expr(["Memset ", _first_name_expr("memory_kind", default="")]).str.strip_chars_end(),
    row_args=(_declare_number_arg("bytes"), _declare_throughput_arg(), *_CORRELATION_ARGS),
    repeated_args=(_declare_number_arg("value"), _declare_string_arg("memory_kind"), *_RANGE_PATH),
    launched=True,
)
GRAPH_LAUNCHES = EventKind(
    "graph_launches",
    tracks.STREAM_TRACKS,
    "graph_launch_id",
    name=concat_expr(["Graph ", pl.col("graph_id")]),
    row_args=(_declare_number_arg("correlation_id"),),
    repeated_args=(_declare_number_arg("graph_id"), _declare_number_arg("graph_exec_id"), *_RANGE_PATH),
    launched=True,
)
SYNCS = EventKind(
    "syncs",
    tracks.SYNC_TRACKS,
    "sync_id",
    name=_first_name_expr("sync_type", default="sync"),
    row_args=(
        _declare_number_arg("event_id"),
        _declare_number_arg("event_sync_id"),
        _declare_number_arg("correlation_id"),
    ),
)
CUDA_EVENTS = EventKind(
    "cuda_events",
    tracks.EVENT_TRACKS,
    "cuda_event_id",
    name=concat_expr(["CUDA event ", pl.col("event_id")]),
    row_args=(
        _declare_number_arg("event_id"),
        _declare_number_arg("event_sync_id"),
        _declare_number_arg("correlation_id"),
    ),
    phase=INSTANT,
    start=pl.col("timestamp_ns"),
    where=pl.col("timestamp_ns").is_not_null(),
)
NVTX_MARKS = EventKind(
    "nvtx_marks",
    tracks.NVTX_TRACKS,
    "mark_id",
    name=_NVTX_NAME,
    row_args=(_declare_payload_arg(),),
    repeated_args=_NVTX_REPEATED_ARGS,
    phase=INSTANT,
    start=pl.col("timestamp_ns"),
)
GPU_METRICS = EventKind(
    "gpu_metrics",
    tracks.METRIC_TRACKS,
    "value",
    name=pl.coalesce(pl.col("metric").cast(pl.String), concat_expr(["metric ", pl.col("metric_id")])),
    phase=COUNTER,
    start=pl.col("timestamp_ns"),
)
MEMORY = EventKind(
    "memory_events",
    tracks.METRIC_TRACKS,
    "used_bytes",
    name=concat_expr(["memory in use: ", _first_name_expr("memory_kind", default="Unknown")]),
    phase=COUNTER,
    start=pl.col("timestamp_ns"),
)
_OPERATION = pl.col("operation").cast(pl.String)
_ALLOCATES = _OPERATION.is_in(("allocate", "free"))
_IN_USE = pl.when(_ALLOCATES).then("allocated_bytes").otherwise("reserved_bytes")
ALLOCATOR = EventKind(
    "allocator_events",
    tracks.METRIC_TRACKS,
    "bytes",
    name=pl.when(_ALLOCATES).then(pl.lit("allocated memory")).otherwise(pl.lit("reserved memory")),
    phase=COUNTER,
    start=pl.col("timestamp_ns"),
    where=pl.col("timestamp_ns").is_not_null()
    & _IN_USE.is_not_null()
    & (_ALLOCATES | _OPERATION.str.contains("segment$")),
    key_values=(ArgumentValue(INTEGER, _IN_USE),),
)
_COUNTER, _FIELD = pl.col("name").cast(pl.String), pl.col("field").cast(pl.String)
COUNTERS = EventKind(
    "counters",
    tracks.COUNTER_TRACKS,
    "value",
    name=pl.when(_COUNTER != _FIELD)
    .then(concat_expr([_COUNTER, ": ", _FIELD]))
    .otherwise(pl.coalesce(_FIELD, _COUNTER, pl.lit("counter"))),
    phase=COUNTER,
    start=pl.col("timestamp_ns"),
    where=pl.col("value_int").is_not_null() | pl.col("value_float").is_finite(),
    key_values=(*_declare_integer_values("value_int", "value_type"), ArgumentValue(REAL, pl.col("value_float"))),
)
PERFORMANCE_COUNTERS = EventKind(
    "performance_counters",
    tracks.COMPONENT_TRACKS,
    "count",
    name=pl.coalesce(pl.col("metric").cast(pl.String), concat_expr(["metric ", pl.col("metric_id")])).fill_null(
        "events"
    ),
    phase=COUNTER,
    where=pl.col("count").is_not_null(),
    key_values=(ArgumentValue(INTEGER, pl.col("count")),),
)
GPU_PAGE_FAULTS = EventKind(
    "gpu_page_faults",
    tracks.PAGE_FAULT_TRACKS,
    "gpu_page_fault_id",
    name=concat_expr(["page fault ", _first_name_expr("access_type", default="")]).str.strip_chars_end(),
    row_args=(_declare_number_arg("virtual_address"), _declare_number_arg("page_faults")),
    repeated_args=(_declare_string_arg("access_type"),),
)
CPU_PAGE_FAULTS = EventKind(
    "cpu_page_faults",
    tracks.CPU_PAGE_FAULT_TRACKS,
    "cpu_page_fault_id",
    name=_first_name_expr("function", default="page fault"),
    row_args=(_declare_number_arg("virtual_address"),),
    repeated_args=(_declare_string_arg("source_file"), _declare_number_arg("source_line")),
    phase=INSTANT,
    start=pl.col("timestamp_ns"),
)
STEP_STATS = EventKind(
    "step_stats",
    tracks.TENSORFLOW_TRACKS,
    "execution_id",
    name=_first_name_expr("node_name", default="node"),
    row_args=(
        _declare_number_arg("op_start_ns"),
        _declare_number_arg("op_end_ns"),
        _declare_number_arg("scheduled_ns"),
        _declare_number_arg("requested_bytes"),
    ),
    repeated_args=(_declare_string_arg("tag"), _declare_number_arg("step"), _declare_string_arg("timeline_label")),
    where=pl.col("start_ns").is_not_null(),
)


def _declare_call_kind(
    table: str, placement: Placement, key: str, default_name: str, *row_args: Arg, **more: Any
) -> EventKind:
    """Return the ``EventKind`` of the calls in a table. Calls are drawn as slices labeled by the column ``name``.

    Args:
        table: Name of the table.
        placement: The rule that assigns the calls to tracks.
        key: Name of the column of the first argument.
        default_name: Label of a call without a name.
        row_args: Arguments that differ in most rows.
        more: Other attributes of ``EventKind``.
    """
    return EventKind(table, placement, key, _first_name_expr("name", default=default_name), row_args, **more)


def _declare_sample_kind(table: str, placement: Placement, key: str, *repeated_args: Arg) -> EventKind:
    """Return the ``EventKind`` of the samples in a table. Each is labeled by the innermost function of its stack."""
    path = pl.col("stack").cast(pl.String)
    return EventKind(
        table,
        placement,
        key,
        name=path.str.extract("([^;]*)$", 1).fill_null("sample"),
        repeated_args=(*repeated_args, _declare_string_arg("stack")),
        phase=INSTANT,
        start=pl.col("timestamp_ns"),
    )


def _declare_instant_kind(table: str, placement: Placement, key: str, name: pl.Expr, *args: Arg) -> EventKind:
    """Return the ``EventKind`` of the events in a table that have a timestamp but no duration."""
    return EventKind(table, placement, key, name, repeated_args=args, phase=INSTANT, start=pl.col("timestamp_ns"))


MPI_CALLS = _declare_call_kind(
    "mpi_calls",
    tracks.create_thread_track_rule("MPI", tracks.MPI),
    "mpi_call_id",
    "MPI call",
    _declare_number_arg("size_bytes"),
    _declare_number_arg("receive_size_bytes"),
    _declare_number_arg("request"),
    repeated_args=(_declare_number_arg("tag"), _declare_number_arg("remote_rank"), _declare_number_arg("root_rank")),
    links=("sender_call_id", "collective_id"),
)
OPENMP_EVENTS = EventKind(
    "openmp_events",
    tracks.create_thread_track_rule("OpenMP", tracks.OPENMP),
    "openmp_event_id",
    _first_name_expr("name", "kind", default="OpenMP"),
    (_declare_number_arg("parallel_id"), _declare_number_arg("task_id")),
    (_declare_string_arg("detail"),),
)
OPENACC_EVENTS = _declare_call_kind(
    "openacc_events",
    tracks.create_thread_track_rule("OpenACC", tracks.OPENACC),
    "openacc_event_id",
    "OpenACC",
    _declare_number_arg("bytes"),
    repeated_args=(
        _declare_string_arg("function"),
        _declare_number_arg("line"),
        _declare_string_arg("variable"),
        _declare_string_arg("kernel"),
    ),
)
UCX_CALLS = _declare_call_kind(
    "ucx_calls",
    tracks.create_thread_track_rule("UCX", tracks.UCX),
    "ucx_call_id",
    "UCX call",
    _declare_number_arg("packed_bytes"),
    _declare_number_arg("tag"),
)
LIBRARY_CALLS = _declare_call_kind(
    "library_calls",
    tracks.create_thread_track_rule("libraries", tracks.LIBRARIES),
    "library_call_id",
    "library call",
    repeated_args=(_declare_string_arg("library"),),
)
GRAPHICS_CALLS = EventKind(
    "graphics_calls",
    tracks.create_thread_track_rule("graphics", tracks.GRAPHICS),
    "graphics_call_id",
    _first_name_expr("name", "text", "kind", default="graphics call"),
    repeated_args=(_declare_string_arg("text"), _declare_number_arg("frame_id")),
)
GRAPHICS_WORKLOADS = EventKind(
    "graphics_workloads",
    tracks.create_thread_track_rule("graphics on GPU", tracks.GRAPHICS_GPU),
    "graphics_workload_id",
    _first_name_expr("name", "text", "kind", default="workload"),
    repeated_args=(_declare_string_arg("text"), _declare_number_arg("frame_id"), _declare_number_arg("gpu")),
)
GRAPHICS_DEBUG = EventKind(
    "khr_debug_events",
    tracks.create_thread_track_rule("graphics debug", tracks.GRAPHICS_DEBUG),
    "khr_debug_event_id",
    _first_name_expr("text", "event_class", default="debug event"),
    repeated_args=(_declare_string_arg("severity"),),
)
CUDA_GRAPH_EVENTS = _declare_call_kind(
    "cuda_graph_events",
    tracks.create_thread_track_rule("CUDA graphs", tracks.GRAPHS),
    "cuda_graph_event_id",
    "graph",
    *(_declare_number_arg(c) for c in ("graph_id", "original_graph_id", "graph_exec_id")),
)
CUDA_GRAPH_NODE_EVENTS = _declare_call_kind(
    "cuda_graph_node_events",
    tracks.create_thread_track_rule("CUDA graph nodes", tracks.GRAPH_NODES),
    "cuda_graph_node_event_id",
    "node",
    *(_declare_number_arg(c) for c in ("graph_node_id", "original_graph_node_id")),
)
JIT_OPERATIONS = EventKind(
    "jit_operations",
    tracks.create_thread_track_rule("compilation", tracks.JIT),
    "jit_operation_id",
    _first_name_expr("operation_type", "name", default="compilation"),
    (_declare_number_arg("correlation_id"), _declare_number_arg("cache_bytes")),
    (_declare_string_arg("entry_type"),),
)
OVERHEADS = EventKind(
    "overheads",
    tracks.create_thread_track_rule("profiler overhead", tracks.OVERHEADS),
    "overhead_id",
    _first_name_expr("overhead_type", "name", default="overhead"),
)
CUDA_OVERHEADS = EventKind(
    "cuda_overheads",
    tracks.create_thread_track_rule("CUDA overhead", tracks.CUDA_OVERHEADS),
    "cuda_overhead_id",
    _first_name_expr("overhead_type", "name", default="overhead"),
    (_declare_number_arg("correlation_id"),),
)
SYSCALLS = _declare_call_kind(
    "syscalls",
    tracks.create_thread_track_rule("system calls", tracks.SYSCALLS),
    "syscall_id",
    "system call",
    _declare_number_arg("return_value"),
)
THREAD_STATES = EventKind(
    "cpu_scheduling",
    tracks.create_thread_track_rule("thread state", tracks.STATES),
    "cpu_scheduling_id",
    pl.when("is_scheduled_in")
    .then(concat_expr(["CPU ", pl.col("cpu")]))
    .otherwise(pl.coalesce(pl.col("thread_state").cast(pl.String).replace("Unknown", None), pl.lit("not running"))),
    start=pl.col("timestamp_ns"),
    end=pl.col("next_switch_ns"),
    where=pl.col("is_scheduled_in") | pl.col("next_switch_ns").is_not_null(),
)
CPU_SAMPLES = _declare_sample_kind(
    "cpu_samples",
    tracks.create_thread_track_rule("CPU samples", tracks.SAMPLES),
    "cpu_sample_id",
    _declare_number_arg("cpu"),
    _declare_string_arg("thread_state"),
)
PYTHON_SAMPLES = _declare_sample_kind(
    "python_samples",
    tracks.create_thread_track_rule("Python samples", tracks.PYTHON),
    "python_sample_id",
    _declare_string_arg("thread_state"),
)
MEMORY_POOL_EVENTS = _declare_instant_kind(
    "memory_pool_events",
    tracks.MEMORY_POOL_TRACKS,
    "memory_pool_event_id",
    _first_name_expr("operation", default="memory pool"),
    _declare_number_arg("pool_address"),
    _declare_number_arg("pool_size_bytes"),
)
CONTEXT_SWITCHES = _declare_instant_kind(
    "gpu_context_switches",
    tracks.CONTEXT_SWITCH_TRACKS,
    "gpu_context_switch_id",
    _first_name_expr("operation", default="context switch"),
    _declare_number_arg("context_id"),
)
DIAGNOSTICS = _declare_instant_kind(
    "diagnostics",
    tracks.DIAGNOSTICS_TRACKS,
    "diagnostic_id",
    _first_name_expr("text", default="diagnostic message"),
    _declare_string_arg("severity"),
    _declare_string_arg("source"),
)
_CALL_NAME = _first_name_expr("name", "kind", default="communication")
_CALL_ROW_ARGS = (*map(_declare_number_arg, ("sequence", "message_bytes", "duration_ns")),)
_CALL_REPEATED_ARGS = (
    *map(_declare_string_arg, ("kind", "communicator_name", "communicator")),
    *map(_declare_number_arg, ("communicator_rank", "peer", "root")),
    *map(_declare_string_arg, ("state", "reduction", "data_type", "algorithm", "protocol")),
)
_CALL_START = pl.coalesce("start_ns", "start_seen_ns", "created_ns")
_IS_PENDING = pl.col("state").cast(pl.String).is_in(("scheduled", "started")).fill_null(value=False)
COMMUNICATION_CALLS = EventKind(
    "communication_calls",
    tracks.COMMUNICATION_TRACKS,
    "communication_call_id",
    _CALL_NAME,
    _CALL_ROW_ARGS,
    _CALL_REPEATED_ARGS,
    start=_CALL_START,
    end=pl.when(~_IS_PENDING).then(pl.coalesce("end_ns", pl.col("start_ns") + pl.col("duration_ns"), "end_seen_ns")),
    where=pl.col("start_ns").is_not_null() | (_IS_PENDING & _CALL_START.is_not_null()),
)
"""Calls whose execution was timed, and calls that had not ended, which are drawn as never closed."""
UNTIMED_COMMUNICATION_CALLS = EventKind(
    "communication_calls",
    tracks.COMMUNICATION_TRACKS,
    "communication_call_id",
    _CALL_NAME,
    _CALL_ROW_ARGS,
    _CALL_REPEATED_ARGS,
    phase=INSTANT,
    start=_CALL_START,
    where=pl.col("start_ns").is_null() & _CALL_START.is_not_null() & ~_IS_PENDING,
)
"""Calls that ended, but of which only the times on the CPU are known. As slices, they would need a lane each."""

_STAGES_BY_TRACK: dict[str, tuple[tuple[EventKind, ...], ...]] = {
    "api": ((API_CALLS,),),
    "gpu": ((KERNELS, MEMCPYS, MEMSETS, GRAPH_LAUNCHES), (SYNCS,), (CUDA_EVENTS,)),
    "nvtx": (
        (_declare_range_kind(tracks.NVTX_TRACKS, _PUSH_POP, _declare_number_arg("depth")),),
        (
            _declare_range_kind(
                tracks.START_END_TRACKS,
                _START_END,
                _declare_number_arg("end_thread_id"),
                _declare_number_arg("thread_id"),
            ),
        ),
        (NVTX_MARKS,),
    ),
    "osrt": ((OSRT_CALLS,),),
    "projections": (
        (_declare_projection_kind(tracks.PROJECTED_TRACKS, _PUSH_POP),),
        (_declare_projection_kind(tracks.PROJECTED_START_END_TRACKS, _START_END),),
    ),
    "counters": ((GPU_METRICS, MEMORY, ALLOCATOR), (COUNTERS,), (PERFORMANCE_COUNTERS,)),
    "page-faults": ((GPU_PAGE_FAULTS,), (CPU_PAGE_FAULTS,)),
    "tensorflow": ((STEP_STATS,),),
    "mpi": ((MPI_CALLS,),),
    "openmp": ((OPENMP_EVENTS,),),
    "openacc": ((OPENACC_EVENTS,),),
    "ucx": ((UCX_CALLS,),),
    "libraries": ((LIBRARY_CALLS,),),
    "graphics": ((GRAPHICS_CALLS,), (GRAPHICS_WORKLOADS,), (GRAPHICS_DEBUG,)),
    "graphs": ((CUDA_GRAPH_EVENTS,),),
    "compilation": ((JIT_OPERATIONS,),),
    "overheads": ((OVERHEADS,),),
    "cuda-overheads": ((CUDA_OVERHEADS,),),
    "samples": ((CPU_SAMPLES,),),
    "python": ((PYTHON_SAMPLES,),),
    "threads": ((THREAD_STATES,),),
    "syscalls": ((SYSCALLS,),),
    "graph-nodes": ((CUDA_GRAPH_NODE_EVENTS,),),
    "memory-pools": ((MEMORY_POOL_EVENTS,),),
    "context-switches": ((CONTEXT_SWITCHES,),),
    "diagnostics": ((DIAGNOSTICS,),),
    "communication": ((COMMUNICATION_CALLS,), (UNTIMED_COMMUNICATION_CALLS,)),
}
"""Kinds of events by the name of their tracks and then by stage, in the order of the file.

The kinds of a stage share tracks and are laid out together. API calls are first, because a flow can only be written
once the lanes of both its ends are known.
"""
STAGES = tuple(stage for stages in _STAGES_BY_TRACK.values() for stage in stages)
"""All kinds of events by stage."""


def group_kinds_by_stage(names: Collection[str]) -> tuple[tuple[EventKind, ...], ...]:
    """Return the event kinds of the tracks with the given names, grouped into stages of kinds that share tracks."""
    return tuple(stage for name, stages in _STAGES_BY_TRACK.items() if name in names for stage in stages)


NOT_DRAWN = frozenset(
    {
        *("mpi_communicators", "network_metrics"),
        *("wddm_packets", "wddm_paging_packets", "wddm_queue_events"),
        *("video_engine_workloads", "network_congestion_events", "profiler_metrics"),
    }
)
"""Tables of events that have times and are not drawn."""
