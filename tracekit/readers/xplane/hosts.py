"""Read the events of threads from the planes of hosts."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.readers.common.columns import build_number_array, compact_dictionary
from tracekit.readers.xplane.devices import ANNOTATIONS, build_annotations
from tracekit.readers.xplane.values import EventValues

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracekit.readers.xplane.space import EventBatch, Plane

HOST = re.compile(r"/host:")
"""Matches the names of the planes of hosts."""
_OPERATIONS = {"MemoryAllocation": "Allocation", "MemoryDeallocation": "Deallocation"}
_IGNORED = ("_src",)
"""EventValues that are not shown: the source file of the profiler that recorded an event."""
_STEP = "step_num"
_API_THREAD = "Host Threads/"
MAX_CANDIDATES = 256
"""Maximum number of lines that are compared with the threads of API calls."""
_ALLOCATOR = r"^GPU_(\d{1,9})_bfc$"
_MAX_DEVICE = 1 << 30


_SPAN = {"line": pl.Int64(), "start_ns": pl.Int64(), "end_ns": pl.Int64(), "name": pl.Categorical()}
_ANNOTATED = {"correlation_id": pl.Int64(), "program_id": pl.Int64()} | dict.fromkeys(
    ANNOTATIONS.values(), pl.Categorical()
)
FLOWS = {"producer_type": "_pt", "producer": "_p", "consumer_type": "_ct", "consumer": "_c"}
"""Columns of what threads hand to one another, and the names of their values."""
_SCHEMAS: Mapping[str, Mapping[str, pl.DataType]] = {
    "ranges": _SPAN | {"payload": pl.String()},
    "marks": _SPAN | {"payload": pl.String()},
    "calls": _SPAN | _ANNOTATED,
    "operations": _SPAN | _ANNOTATED | {"payload": pl.String()},
    "flows": {"line": pl.Int64(), "start_ns": pl.Int64(), "end_ns": pl.Int64()} | dict.fromkeys(FLOWS, pl.Int64()),
    "memory": {
        "timestamp_ns": pl.Int64(),
        "device_id": pl.Int32(),
        "operation": pl.Categorical(),
        "address": pl.Int64(),
        "bytes": pl.Int64(),
        "name": pl.Categorical(),
    },
}


DEVICE_SPANS = {
    "thread_id": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "name": pl.Categorical(),
    "payload": pl.String(),
    "has_duration": pl.Boolean(),
}


class Hosts(NamedTuple):
    """The events of all threads.

    Attributes:
        threads: Columns ``line`` (row number), ``thread_id``, ``name``, ``label`` (the name in the trace viewer).
        ranges: Columns ``line``, ``start_ns``, ``end_ns``, ``name``, ``payload`` of the events with a duration.
        marks: The same columns of the events without a duration.
        calls: Columns ``line``, ``start_ns``, ``end_ns``, ``name`` of API calls, and those of ``build_annotations``.
        operations: The same columns, and ``payload``, of operations of compiled programs that ran on CPUs.
        flows: The columns of ``FLOWS``, and ``line``, ``start_ns``, ``end_ns``, of the events that hand something to
            another thread or to a device, or take it. They are ranges or marks, too.
        memory: Columns of ``memory_events``.
        undecoded: Number of allocations and deallocations of memory that belongs to no device.
    """

    threads: pl.DataFrame
    ranges: pl.DataFrame
    marks: pl.DataFrame
    calls: pl.DataFrame
    operations: pl.DataFrame
    flows: pl.DataFrame
    memory: pl.DataFrame
    undecoded: int


def read_hosts(planes: Iterable[Plane], *, has_cores: bool = False) -> Hosts:
    """Return the events of all threads.

    Args:
        planes: The planes of hosts.
        has_cores: Whether the profile contains TPU cores. Only then are flows read, and events that allocate memory
            name a core instead of an allocator.

    Raises:
        Damage: An event is invalid.
    """
    parts = {name: [pl.DataFrame(schema=schema)] for name, schema in _SCHEMAS.items()}
    lines: list[tuple[int, str, str]] = []
    undecoded = 0
    for plane in planes:
        for events in plane.iterate_events(list(range(len(plane.lines)))):
            batch = _Batch(plane, events, len(lines), has_cores=has_cores)
            for name, frame in batch.split().items():
                parts[name].append(frame.select(*_SCHEMAS[name]))
            undecoded += batch.count_memory_of_hosts()
        lines += [(line.id, line.name, line.label) for line in plane.lines]
    threads = pl.DataFrame(lines, {"thread_id": pl.Int64, "name": pl.String, "label": pl.String}, orient="row")
    frames = {name: pl.concat(frames) for name, frames in parts.items()}
    return Hosts(threads.with_row_index("line").cast({"line": pl.Int64}), **frames, undecoded=undecoded)


def read_device_lines(plane: Plane, lines: Sequence[int], thread_ids: Sequence[int]) -> pl.DataFrame:
    """Return the events of lines of a device that are no activities, as events of threads.

    Args:
        plane: The plane.
        lines: Indices of the lines to read.
        thread_ids: Id of the thread that stands for each line of the plane.

    Returns:
        Columns ``thread_id``, ``start_ns``, ``end_ns``, ``name``, ``payload``, ``has_duration``.
    """
    parts = [pl.DataFrame(schema=DEVICE_SPANS)]
    ids = pl.Series("thread_id", list(thread_ids), pl.Int64)
    for events in plane.iterate_events(list(lines)):
        values = EventValues.of_events(plane, events)
        columns = {
            "start_ns": build_number_array(events.start_ns),
            "end_ns": build_number_array(events.end_ns),
            "name": compact_dictionary(events.names.indices, events.names.dictionary),
            "payload": values.to_json(_IGNORED, np.ones(len(events.lines), np.bool_)),
            "has_duration": pa.array(events.has_duration),
        }
        frame = convert_to_frame(pa.table(columns)).with_columns(ids.gather(events.lines))
        parts.append(frame.select(*DEVICE_SPANS))
    return pl.concat(parts)


class _Batch:
    """A batch of events of threads."""

    def __init__(self, plane: Plane, events: EventBatch, first_line: int, *, has_cores: bool) -> None:
        self._events = events
        self._has_cores = has_cores
        self._values = EventValues.of_events(plane, events)
        columns = {
            "line": build_number_array(events.lines + first_line),
            "start_ns": build_number_array(events.start_ns),
            "end_ns": build_number_array(events.end_ns),
            "name": compact_dictionary(events.names.indices, events.names.dictionary),
        }
        self._spans = convert_to_frame(pa.table(columns))
        owner = "index_on_host" if has_cores else "allocator_name"
        self._is_memory = pl.Series(pa.array(self._values.has(owner) & self._values.has("addr")))

    def split(self) -> dict[str, pl.DataFrame]:
        """Return the ranges, marks, calls, operations, flows and memory events."""
        annotations = convert_to_frame(build_annotations(self._values))
        is_call, is_memory = annotations["correlation_id"].is_not_null(), self._is_memory
        is_other = ~is_call & ~is_memory
        has_duration = pl.Series(pa.array(self._events.has_duration))
        is_operation = is_other & has_duration & annotations["hlo_op"].is_not_null()
        is_operation &= annotations["hlo_module"].is_not_null()
        texts = self._values.to_json(_IGNORED, is_other.to_numpy())
        payload = convert_to_frame(pa.table({"payload": texts}))["payload"]
        others = self._spans.with_columns(payload, name=self._name_steps())
        return {
            "ranges": others.filter(is_other & has_duration & ~is_operation),
            "marks": others.filter(is_other & ~has_duration),
            "calls": self._spans.hstack(annotations).filter(is_call),
            "operations": others.hstack(annotations).filter(is_operation),
            "flows": self._build_flows(),
            "memory": self._memory.drop_nulls("device_id"),
        }

    def _build_flows(self) -> pl.DataFrame:
        """Return the events that hand something to another thread, or take it. Only profiles of TPUs need them."""
        if not self._has_cores:
            return pl.DataFrame(schema=_SCHEMAS["flows"])
        numbers = {c: build_number_array(*self._values.get_integers(name)) for c, name in FLOWS.items()}
        frame = self._spans.hstack(convert_to_frame(pa.table(numbers)))
        return frame.filter(pl.col("producer").is_not_null() | pl.col("consumer").is_not_null())

    def _name_steps(self) -> pl.Series:
        """Return the name of each event, to which the number of the step is added if it is the annotation of a step."""
        numbers, has_number = self._values.get_integers(_STEP)
        if not has_number.any():
            return self._spans["name"]
        number = pl.DataFrame(convert_to_frame(pa.table({"n": build_number_array(numbers, has_number)})))
        numbered = pl.format("{}#step_num={}#", "name", "n").cast(pl.Categorical)
        names = pl.concat([self._spans.select("name"), number], how="horizontal")
        return names.select(pl.when(pl.col("n").is_not_null()).then(numbered).otherwise("name").alias("name"))["name"]

    @functools.cached_property
    def _memory(self) -> pl.DataFrame:
        """The allocations and deallocations of memory. The device is null for memory that belongs to no device."""
        values = self._values
        if not self._is_memory.any():
            return pl.DataFrame(schema=_SCHEMAS["memory"])
        columns = {
            "allocator": values.get_strings("allocator_name"),
            "address": build_number_array(*values.get_integers("addr")),
            "bytes": build_number_array(*values.get_integers("allocation_bytes")),
            "core": build_number_array(*values.get_integers("index_on_host")),
            "op": values.get_strings("tf_op"),
        }
        is_core = pl.lit(self._has_cores) & pl.col("core").is_between(0, _MAX_DEVICE)
        frame = self._spans.hstack(convert_to_frame(pa.table(columns))).filter(self._is_memory)
        return frame.select(
            timestamp_ns="start_ns",
            device_id=pl.when(is_core)
            .then(pl.col("core"))
            .otherwise(pl.col("allocator").cast(pl.String).str.extract(_ALLOCATOR).cast(pl.Int64))
            .cast(pl.Int32),
            operation=pl.col("name").cast(pl.String).replace_strict(_OPERATIONS, default=None).cast(pl.Categorical),
            address="address",
            bytes=pl.col("bytes").fill_null(0),
            name="op",
        )

    def count_memory_of_hosts(self) -> int:
        """Return the number of allocations and deallocations of memory that belongs to no device."""
        return self._memory["device_id"].null_count()


def convert_to_frame(table: pa.Table) -> pl.DataFrame:
    """Convert an Arrow table to a polars frame. Dictionary columns become categorical columns."""
    return pl.DataFrame(pl.from_arrow(table))


def merge_threads(hosts: Hosts) -> pl.DataFrame:
    """Return the thread of each line, which is the same for two lines that the same thread of the host wrote.

    Some versions of the profiler write the API calls of a thread to a line of their own. Its number is that of the
    thread, but the line with the ranges of the thread has another number. Both are the same thread if each call that an
    operation made lies in a range with the name of this operation on the other line, and on no third line.

    Returns:
        Columns ``line``, ``thread_id``, ``name``, with one row per line.
    """
    threads = hosts.threads
    is_api = pl.col("name").str.starts_with(_API_THREAD)
    calls = hosts.calls.select("line", "start_ns", "end_ns", name="hlo_op").drop_nulls("name")
    calls = calls.join(threads.filter(is_api).select("line"), on="line", how="semi").sort("start_ns")
    ranges = hosts.ranges.select("line", "start_ns", "end_ns", "name")
    ranges = ranges.join(calls.select(pl.col("name").unique()), on="name", how="semi").sort("start_ns")
    pairs: list[tuple[int, int]] = []
    for (line,), own in ranges.partition_by("line", as_dict=True, maintain_order=True).items():
        if len(pairs) > MAX_CANDIDATES:
            break
        inside = calls.join_asof(
            own.select("start_ns", "name", range_end_ns="end_ns"), on="start_ns", by="name", check_sortedness=False
        )
        contained = inside.group_by("line").agg(
            all=(pl.col("range_end_ns") >= pl.col("end_ns")).fill_null(value=False).all()
        )
        pairs += [(api_line, line) for api_line in contained.filter("all")["line"] if api_line != line]
    table = pl.DataFrame(pairs, {"api_line": pl.Int64, "line": pl.Int64}, orient="row")
    unique = table.filter(pl.col("line").is_unique() & pl.col("api_line").is_unique())
    ids = unique.join(threads.select(api_line="line", api_id="thread_id"), on="api_line")
    named = threads.join(ids.select("line", "api_id"), on="line", how="left", maintain_order="left")
    names = unique.join(threads.select("line", range_name="label"), on="line").select("range_name", line="api_line")
    named = named.join(names, on="line", how="left", maintain_order="left")
    return named.select(
        "line",
        thread_id=pl.coalesce("api_id", "thread_id"),
        name=pl.coalesce("range_name", "label").str.replace(r"/-?\d+$", ""),
    )
