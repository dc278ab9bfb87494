"""Build declared tables from a timeline. The whole file is read when it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import CorruptTraceError, MissingTableError, warn
from tracekit.readers.ascend.events import EXPORT_AGAIN, MAX_TIME_NS, read_events
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import convert_damage
from tracekit.readers.common.frame_capture import convert_frame
from tracekit.registry.interface import Capture, Undecoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracekit.readers.ascend.events import AscendEvents
    from tracekit.registry.source import Source

_CANN, _HARDWARE = "CANN", "Ascend Hardware"
_COMMUNICATION = ("HCCL", "Communication")
_ENQUEUE, _DEQUEUE, _QUEUE_FLOW = "enqueue", "dequeue", "async_task_queue"
_DOMAINS = {"cpu_op": 1, "user_annotation": 2, "python_function": 3, _DEQUEUE: 6}
_KERNEL = r"(?i)^(kernel_)?(ai_?core|ai_?vector_core|ai_?vec|aiv|aic|ai_?cpu|mix_?ai[cv]|dsa|ffts_plus|dpu)"
_COPY = r"(?i)memcpy|sdma|pcie_?dma"
_WAIT, _RECORD = r"(?i)(event|notify).?wait", r"(?i)(event|notify).?record"
_COLLECTIVE = r"(?i)^(hcom|hccl)_"
_DEVICE_BITS, _PID_BITS = 31, 10
"""A layer has the process id PID · 2¹⁰ + LAYER · 2⁵ + DEVICE."""
_EARLIEST_UTC_NS = 946_684_800_000_000_000
_AUXILIARY = ("Overlap Analysis", "flow ", "task PROFILING_", *_COMMUNICATION)
"""Kinds of events that repeat others, such as the steps of collectives, or only describe the capture."""
_KEYS = {
    "kernels": "kernel_id",
    "memcpys": "memcpy_id",
    "syncs": "sync_id",
    "api_calls": "api_call_id",
    "nvtx_ranges": "range_id",
    "cuda_events": "cuda_event_id",
}
_TIMES = ("start_ns", "end_ns", "timestamp_ns")


def read_timeline(source: Source) -> AscendCapture:
    """Read a timeline of the Ascend PyTorch profiler, and return its tables.

    Raises:
        CorruptTraceError: The file is damaged, or truncated before the end of its first event.
        MissingTableError: The file contains no events of the profiler.
        TracekitError: The file cannot be read, or changed while it was read.
    """
    with source.open() as file, convert_damage(source.path, file=file):
        timeline = read_events(source.path, file, Budget(file.size))
        file.check_unchanged()
    _warn_about_skipped_data(source.path, timeline)
    return AscendCapture(source.path, timeline.frame)


def _warn_about_skipped_data(path: Path, timeline: AscendEvents) -> None:
    document, damage, count = timeline.document, timeline.damage, timeline.frame.height
    if not count:
        raise CorruptTraceError("the file contains no complete events", path=path, hint=EXPORT_AGAIN)
    if document.truncated or damage:
        reason = damage or "its JSON is incomplete"
        read = "1 complete event was read" if count == 1 else f"{count:,} complete events were read"
        warn(f"the file is truncated ({reason}): {read}", path=path)
    if document.invalid:
        rest = "event is not valid JSON and was" if document.invalid == 1 else "events are not valid JSON and were"
        warn(f"{document.invalid:,} {rest} skipped", path=path)


class AscendCapture(Capture):
    """The tables of a timeline of the Ascend PyTorch profiler."""

    def __init__(self, path: Path, events: pl.DataFrame) -> None:
        """Assign the events to tables.

        Raises:
            MissingTableError: No event belongs to a table.
        """
        self._path = path
        slices = _add_layers(events)
        tables = _build_tables(slices, events)
        if not any(rows.height for rows in tables.values()):
            raise MissingTableError(
                f"the file contains {events.height} events, but none from the Ascend PyTorch profiler",
                path=path,
                hint="read the trace_view.json that the profiler exported",
            )
        starts = [
            rows.select(pl.min_horizontal([t for t in _TIMES if t in rows.columns]).min()).item()
            for rows in tables.values()
        ]
        origin = min((start for start in starts if start is not None), default=0)
        self._tables = {name: _number(name, rows, origin) for name, rows in tables.items() if rows.height}
        self._undecoded = _count_undecoded(slices, events)
        self._tables |= {name: rows for name, rows in _build_owners(events, self._tables).items() if rows.height}
        ends = [rows["end_ns"].max() for rows in self._tables.values() if "end_ns" in rows.columns]
        info = {
            "tool": "Ascend PyTorch profiler",
            "device_vendors": "Huawei",
            "origin_utc_ns": str(origin) if origin >= _EARLIEST_UTC_NS else None,
            "duration_ns": str(max((end for end in ends if isinstance(end, int)), default=0)),
        }
        known = {name: value for name, value in info.items() if value is not None}
        self._tables["capture_info"] = pl.DataFrame({"name": list(known), "value": list(known.values())})

    def names(self) -> list[str]:
        """Return the names of the tables that may have rows."""
        return list(self._tables)

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return self._tables[name].height

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table."""
        return convert_frame(name, self._tables[name], columns, self._path, EXPORT_AGAIN)

    def count_undecoded(self) -> Mapping[str, Undecoded]:
        """Return the number of events that are in no table, by layer, category or type of the task."""
        return {
            kind: Undecoded(count, is_auxiliary=kind.startswith(_AUXILIARY)) for kind, count in self._undecoded.items()
        }


def _add_layers(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events with a duration and valid times, each with its layer and the name of its table.

    The columns ``process_id``, ``device_id``, ``start_ns`` and ``end_ns`` are added. A layer of CANN belongs to the
    only process with ops or, if there are several, to the one with the id in that of the layer.
    """
    named = events.filter((pl.col("ph") == "M") & (pl.col("name") == "process_name"))
    layers = named.select("pid", layer=pl.col("args.name").str.strip_chars()).drop_nulls()
    layers = layers.unique("pid", keep="last", maintain_order=True)
    is_timed = pl.col("ts").is_between(-MAX_TIME_NS, MAX_TIME_NS) & pl.col("dur").is_between(0, MAX_TIME_NS >> 1)
    rows = events.filter((pl.col("ph") == "X") & is_timed.fill_null(value=False))
    rows = rows.join(layers, on="pid", how="left", maintain_order="left")
    layer, category = pl.col("layer").fill_null(""), pl.col("cat").fill_null("")
    is_known = layer.is_in([_CANN, _HARDWARE, *_COMMUNICATION])
    is_op = (category != "") & ~is_known
    processes = rows.filter(is_op)["pid"].drop_nulls().unique()
    own = pl.lit(processes[0], pl.Int64) if len(processes) == 1 else pl.col("pid") // (1 << _PID_BITS)
    task = pl.col("Task Type").fill_null("")
    hardware = (
        pl.when(task.str.contains(_KERNEL))
        .then(pl.lit("kernels"))
        .when(task.str.contains(_COPY))
        .then(pl.lit("memcpys"))
        .when(task.str.contains(_WAIT))
        .then(pl.lit("syncs"))
        .when(task.str.contains(_RECORD))
        .then(pl.lit("cuda_events"))
    )
    table = (
        pl.when(layer == _HARDWARE)
        .then(hardware)
        .when(layer.is_in(_COMMUNICATION) & pl.col("name").str.contains(_COLLECTIVE))
        .then(pl.lit("kernels"))
        .when((layer == _CANN) | (category == _ENQUEUE))
        .then(pl.lit("api_calls"))
        .when(is_op)
        .then(pl.lit("nvtx_ranges"))
    )
    return rows.with_columns(
        table=table,
        process_id=pl.when(is_known).then(own).otherwise("pid"),
        device_id=(pl.col("pid") & _DEVICE_BITS).cast(pl.Int32),
        start_ns="ts",
        end_ns=pl.col("ts") + pl.col("dur"),
    )


def _build_tables(slices: pl.DataFrame, events: pl.DataFrame) -> dict[str, pl.DataFrame]:
    of_table = {name: slices.filter(pl.col("table") == name) for name in _KEYS}
    calls = of_table["api_calls"].with_columns(
        correlation_id=_call_correlation_expr(), thread_id=pl.coalesce("Thread Id", "tid")
    )
    calls, launches = _join_queue(calls, of_table["nvtx_ranges"], events)
    stream = pl.coalesce("Physic Stream Id", "tid")
    common = ("start_ns", "end_ns", "process_id", "device_id")
    where = {"context_id": pl.lit(0, pl.Int64), "stream_id": stream, "correlation_id": pl.col("launch_id")}
    on_npu = {
        name: of_table[name].join(launches, on=["process_id", "connection_id"], how="left", maintain_order="left")
        for name in ("kernels", "memcpys", "syncs", "cuda_events")
    }
    copies = pl.col("name").str.to_lowercase()
    kinds = {
        "host to device": "Host-to-Device",
        "device to host": "Device-to-Host",
        "device to device": "Device-to-Device",
    }
    kind = pl.coalesce([pl.when(copies.str.contains(t, literal=True)).then(pl.lit(k)) for t, k in kinds.items()])
    category = pl.col("cat")
    return {
        "kernels": on_npu["kernels"].select(*common, "name", short_name="name", **where),
        "memcpys": on_npu["memcpys"].select(*common, bytes="size(Byte)", copy_kind=kind, **where),
        "syncs": on_npu["syncs"].select(*common, sync_type=pl.lit("Stream wait sync"), **where),
        "cuda_events": on_npu["cuda_events"].select("process_id", "device_id", timestamp_ns="end_ns", **where),
        "api_calls": calls.select(
            *common[:3],
            "thread_id",
            "correlation_id",
            api=pl.when(category == _ENQUEUE).then(pl.lit("task queue")).otherwise(pl.lit("CANN")),
            name="name",
            name_id=pl.col("name").rank("dense").cast(pl.Int64),
        ),
        "nvtx_ranges": of_table["nvtx_ranges"].select(
            *common[:3],
            "name",
            kind=pl.lit("push_pop"),
            thread_id="tid",
            domain=category,
            domain_id=category.replace_strict(_DOMAINS, default=1, return_dtype=pl.Int64),
            payload_type=pl.lit("json"),
            payload_text="args",
        ),
    }


def _call_correlation_expr() -> pl.Expr:
    """Return an expression for the connection id of the calls that launch tasks, and null for other calls.

    If a call of the layer ``Node`` has a connection id, the task belongs to this call. Otherwise, it belongs to the
    call that started last.
    """
    by = ["process_id", "connection_id"]
    is_node = pl.col("name").str.starts_with("Node@").fill_null(value=False)
    rank = (pl.col("start_ns") + pl.when(is_node).then(1 << 62).otherwise(0)).rank("ordinal", descending=True).over(by)
    return pl.when(pl.col("connection_id").is_not_null() & (rank == 1)).then("connection_id")


def _join_queue(calls: pl.DataFrame, ranges: pl.DataFrame, events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the calls, and the id of the call to which the tasks of each connection belong.

    Ops only put their tasks into a queue, and another thread takes them out and launches them. A flow with an id leads
    from the call that enqueues a task to the range in which it is launched. The task then belongs to the call that
    enqueued it, which lies in its op and has a negative correlation id.
    """
    flows = events.filter(pl.col("cat") == _QUEUE_FLOW).select("ph", "pid", "tid", "ts", flow="id").drop_nulls()
    flow_ids = flows.select("flow").unique(maintain_order=True).with_row_index("number", 1)
    flows = flows.join(flow_ids, on="flow", maintain_order="left").with_columns(number=-pl.col("number").cast(pl.Int64))
    at = ["pid", "tid", "ts"]
    starts, ends = (
        flows.filter(pl.col("ph") == phase).unique(at, keep="first", maintain_order=True).select(*at, "number")
        for phase in ("s", "f")
    )
    calls = calls.join(starts, on=at, how="left", maintain_order="left")
    is_enqueue = pl.col("cat") == _ENQUEUE
    calls = calls.with_columns(correlation_id=pl.when(is_enqueue).then("number").otherwise("correlation_id")).drop(
        "number"
    )
    queued = (
        calls.filter(is_enqueue).drop_nulls("correlation_id").select("process_id", number="correlation_id").unique()
    )
    dequeued = ranges.filter(pl.col("cat") == _DEQUEUE).join(ends, on=at).join(queued, on=["process_id", "number"])
    spans = dequeued.select("process_id", "start_ns", "end_ns", "number", thread_id="tid").sort("start_ns")
    launching = calls.filter(~is_enqueue.fill_null(value=False)).drop_nulls("correlation_id")
    launching = launching.select("process_id", "thread_id", "start_ns", connection_id="correlation_id").sort("start_ns")
    launching = launching.join_asof(spans, on="start_ns", by=["process_id", "thread_id"], check_sortedness=False)
    inside = pl.when(pl.col("start_ns") < pl.col("end_ns")).then("number")
    launches = launching.select("process_id", "connection_id", launch_id=pl.coalesce(inside, "connection_id"))
    return calls, launches.unique(["process_id", "connection_id"], keep="first", maintain_order=True)


def _number(name: str, rows: pl.DataFrame, origin: int) -> pl.DataFrame:
    """Return the rows of a table with ids, and with times since the origin."""
    times = [(pl.col(time) - origin).alias(time) for time in _TIMES if time in rows.columns]
    return rows.with_columns(*times, pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias(_KEYS[name]))


def _count_undecoded(slices: pl.DataFrame, events: pl.DataFrame) -> dict[str, int]:
    task = pl.format("task {}", "Task Type")
    of_layer = pl.when(pl.col("layer") == _HARDWARE).then(task)
    label = pl.coalesce(of_layer, "layer", "cat", pl.lit("without category"))
    rest = slices.filter(pl.col("table").is_null()).select(kind=label)
    is_flow = pl.col("ph").is_in(["s", "t", "f"])
    other = events.filter(~pl.col("ph").is_in(["X", "M"]).fill_null(value=False))
    flow = pl.format("flow {}", pl.col("cat").fill_null("without category"))
    kinds = other.select(kind=pl.when(is_flow).then(flow).otherwise(pl.format("phase {}", pl.col("ph").fill_null(""))))
    untimed = events.filter(pl.col("ph") == "X").height - slices.height
    counts = pl.concat([rest, kinds]).group_by("kind").len().sort("kind").head(1000)
    return dict(counts.iter_rows()) | ({"without a valid time": untimed} if untimed else {})


def _build_owners(events: pl.DataFrame, tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables of processes, threads, devices, contexts and streams."""
    on_cpu = [rows for name, rows in tables.items() if name in ("api_calls", "nvtx_ranges")]
    on_npu = [rows for name, rows in tables.items() if "device_id" in rows.columns]
    owners: dict[str, pl.DataFrame] = {}
    if on_cpu:
        keys = ["process_id", "thread_id"]
        threads = pl.concat([rows.select(keys) for rows in on_cpu]).drop_nulls().unique()
        named = events.filter((pl.col("ph") == "M") & (pl.col("name") == "thread_name"))
        names = named.select(process_id="pid", thread_id="tid", name="args.name").unique(keys, keep="last")
        owners["threads"] = threads.join(names, on=keys, how="left").sort(keys)
        owners["processes"] = threads.select("process_id").unique().sort("process_id")
    if on_npu:
        streams = pl.concat([rows.select("process_id", "device_id", "context_id", "stream_id") for rows in on_npu])
        streams = streams.drop_nulls().unique()
        owners["devices"] = streams.select("device_id").unique().sort("device_id")
        owners["contexts"] = streams.select("process_id", "context_id", "device_id").unique().sort(pl.all())
        owners["streams"] = streams.select("process_id", "context_id", "stream_id").unique().sort(pl.all())
    return owners
