"""What is drawn: each kind of event with its table, its place, its name and its arguments.

A new kind of event is one more ``Kind`` in ``STAGES``, and a ``Placement`` in ``tracks`` if it has rows of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.exporters.chrome_trace import text, tracks

if TYPE_CHECKING:
    from tracekit.exporters.chrome_trace.tracks import Placement

SLICE, INSTANT, COUNTER = "X", "i", "C"


class Arg(NamedTuple):
    """A member of an event's ``args``: its name and its JSON text; left out where that is null."""

    key: str
    value: pl.Expr


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One kind of event.

    Attributes:
        table: Where its rows are.
        placement: The tracks they lie on.
        key: First argument, a column without nulls: the number of the row in its table, or a counter's value.
        name: What the viewer writes on the event; never null.
        own: Arguments that mostly differ from row to row.
        shared: Arguments that mostly repeat: made once for every different combination.
        phase: Slice, instant or counter.
        start: Start in ns.
        end: End in ns; null: still open when the capture ended.
        where: Rows that are drawn.
        launched: Whether an API call caused it: gets an arrow from there.
    """

    table: str
    placement: Placement
    key: str
    name: pl.Expr
    own: tuple[Arg, ...] = ()
    shared: tuple[Arg, ...] = ()
    phase: str = SLICE
    start: pl.Expr = pl.col("start_ns")  # noqa: RUF009 - expressions never change
    end: pl.Expr = pl.col("end_ns")  # noqa: RUF009
    where: pl.Expr | None = None
    launched: bool = False


def _number(column: str, key: str | None = None) -> Arg:
    return Arg(key or column, pl.col(column))


def _text(column: str, key: str | None = None) -> Arg:
    return Arg(key or column, text.quote(pl.col(column)))


def _triple(prefix: str) -> Arg:
    x, y, z = (pl.col(f"{prefix}_{axis}") for axis in "xyz")
    return Arg(prefix, text.join(['"[', x, ",", y, ",", z, ']"']))


def _named(*columns: str, default: str) -> pl.Expr:
    return pl.coalesce(*(pl.col(c).cast(pl.String) for c in columns), pl.lit(default))


def _throughput() -> Arg:
    """GB/s with three decimals: bytes per ns are GB per s."""
    duration = pl.col("end_ns") - pl.col("start_ns")
    thousandths = pl.when(duration > 0).then(pl.col("bytes") * 1000 // duration)
    return Arg("throughput_gb_per_s", text.join(text.thousandths(thousandths)))


def _payload() -> Arg:
    integer, number = pl.col("payload_int"), pl.col("payload_float")
    unsigned = integer.cast(pl.UInt64, wrap_numerical=True).cast(pl.String)
    whole = pl.when(pl.col("payload_type") == "uint64").then(unsigned).otherwise(integer.cast(pl.String))
    real = number.cast(pl.String)
    real = pl.when(number.is_finite()).then(real).otherwise(text.quote(real))
    return Arg("payload", pl.coalesce(whole, real, text.quote(pl.col("payload_text"))))


_API_NAME = pl.col("name").cast(pl.String).str.replace(r"_v\d{4}$", "").fill_null("API call")
_LINK = (_number("correlation_id"), _number("graph_node_id"))
_FROM = (_text("range_path", "nvtx_path"),)
_NVTX_NAME = _named("name", default="(no text)")
_NVTX_OWN = (_payload(), _number("gpu_op_count"), _number("gpu_time_ns"))
_NVTX_SHARED = (
    _text("domain"),
    _number("category_id"),
    _text("category"),
    Arg("color", text.color(pl.col("color"))),
    _text("payload_type"),
)
_PUSH_POP, _START_END = pl.col("kind") == "push_pop", pl.col("kind") == "start_end"


def _range(placement: Placement, where: pl.Expr, *more: Arg) -> Kind:
    return Kind("nvtx_ranges", placement, "range_id", _NVTX_NAME, _NVTX_OWN, (*_NVTX_SHARED, *more), where=where)


def _projection(placement: Placement, where: pl.Expr) -> Kind:
    own = (_number("gpu_op_count"), _number("gpu_time_ns"))
    shared = (_text("domain"), _number("thread_id"), _number("depth"))
    return Kind("nvtx_projections", placement, "range_id", _NVTX_NAME, own, shared, where=where)


API_CALLS = Kind(
    "api_calls",
    tracks.API_TRACKS,
    "api_call_id",
    name=_API_NAME,
    own=(_number("correlation_id"),),
    shared=(_number("return_value"),),
)
OSRT_CALLS = Kind(
    "osrt_calls",
    tracks.OSRT_TRACKS,
    "osrt_call_id",
    name=_named("name", default="OS runtime call"),
    own=(_number("return_value"),),
)
KERNELS = Kind(
    "kernels",
    tracks.STREAM_TRACKS,
    "kernel_id",
    name=_named("short_name", "name", default="kernel"),
    own=_LINK,
    shared=(
        _triple("grid"),
        _triple("block"),
        _number("registers_per_thread"),
        _number("static_shared_memory_bytes", "static_shared_bytes"),
        _number("dynamic_shared_memory_bytes", "dynamic_shared_bytes"),
        _text("name"),
        *_FROM,
    ),
    launched=True,
)
MEMCPYS = Kind(
    "memcpys",
    tracks.STREAM_TRACKS,
    "memcpy_id",
    name=text.join(["Memcpy ", _named("copy_kind", default="")]).str.strip_chars_end(),
    own=(_number("bytes"), _throughput(), *_LINK),
    shared=(_text("copy_kind"), _text("src_memory_kind"), _text("dst_memory_kind"), _text("migration_cause"), *_FROM),
    launched=True,
)
MEMSETS = Kind(
    "memsets",
    tracks.STREAM_TRACKS,
    "memset_id",
    name=text.join(["Memset ", _named("memory_kind", default="")]).str.strip_chars_end(),
    own=(_number("bytes"), _throughput(), *_LINK),
    shared=(_number("value"), _text("memory_kind"), *_FROM),
    launched=True,
)
GRAPH_LAUNCHES = Kind(
    "graph_launches",
    tracks.STREAM_TRACKS,
    "graph_launch_id",
    name=text.join(["Graph ", pl.col("graph_id")]),
    own=(_number("correlation_id"),),
    shared=(_number("graph_id"), _number("graph_exec_id"), *_FROM),
    launched=True,
)
SYNCS = Kind(
    "syncs",
    tracks.SYNC_TRACKS,
    "sync_id",
    name=_named("sync_type", default="sync"),
    own=(_number("event_id"), _number("event_sync_id"), _number("correlation_id")),
)
CUDA_EVENTS = Kind(
    "cuda_events",
    tracks.EVENT_TRACKS,
    "cuda_event_id",
    name=text.join(["CUDA event ", pl.col("event_id")]),
    own=(_number("event_id"), _number("event_sync_id"), _number("correlation_id")),
    phase=INSTANT,
    start=pl.col("timestamp_ns"),
    where=pl.col("timestamp_ns").is_not_null(),
)
NVTX_MARKS = Kind(
    "nvtx_marks",
    tracks.NVTX_TRACKS,
    "mark_id",
    name=_NVTX_NAME,
    own=(_payload(),),
    shared=_NVTX_SHARED,
    phase=INSTANT,
    start=pl.col("timestamp_ns"),
)
GPU_METRICS = Kind(
    "gpu_metrics",
    tracks.METRIC_TRACKS,
    "value",
    name=pl.coalesce(pl.col("metric").cast(pl.String), text.join(["metric ", pl.col("metric_id")])),
    phase=COUNTER,
    start=pl.col("timestamp_ns"),
)
STEP_STATS = Kind(
    "step_stats",
    tracks.TRACED_TRACKS,
    "execution_id",
    name=_named("node_name", default="node"),
    own=(_number("op_start_ns"), _number("op_end_ns"), _number("scheduled_ns"), _number("requested_bytes")),
    shared=(_text("tag"), _number("step"), _text("timeline_label")),
    where=pl.col("start_ns").is_not_null(),
)

STAGES: tuple[tuple[Kind, ...], ...] = (
    (API_CALLS,),
    (KERNELS, MEMCPYS, MEMSETS, GRAPH_LAUNCHES),
    (SYNCS,),
    (CUDA_EVENTS,),
    (_range(tracks.NVTX_TRACKS, _PUSH_POP, _number("depth")),),
    (_range(tracks.START_END_TRACKS, _START_END, _number("end_thread_id"), _number("thread_id")),),
    (NVTX_MARKS,),
    (OSRT_CALLS,),
    (_projection(tracks.PROJECTED_TRACKS, _PUSH_POP),),
    (_projection(tracks.PROJECTED_START_END_TRACKS, _START_END),),
    (GPU_METRICS,),
    (STEP_STATS,),
)
"""Kinds that are laid out together stand in one stage; the order is that of the file. Arrows need both their ends
placed: so API calls come first."""
