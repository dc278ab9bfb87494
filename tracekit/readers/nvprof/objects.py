"""Build the tables of objects, such as devices and threads, and of events that several rows of the database describe.

CUPTI stores the process and the thread of such an event as bytes: two unsigned integers of 4 bytes. The objects that
have names are stored in the same way.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import polars as pl

from tracekit.readers.common import cupti
from tracekit.readers.nvprof import PREFIX
from tracekit.readers.nvprof.activities import DEVICE_COLUMNS, DEVICE_UNITS, MEMORY_KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.nvprof.database import NvprofDatabase

TABLES = (
    *("nvtx_ranges", "nvtx_marks", "memory_events", "overheads", "cuda_overheads"),
    *("devices", "contexts", "streams", "processes", "threads", "capture_info"),
)
SOURCES = ("MARKER", "MEMORY", "OVERHEAD")
"""Tables of the database whose undecoded events this module counts."""
_PROCESS, _THREAD, _STREAM = 1, 2, 5
_MARK, _START, _END = 1, 2, 4
_COLOR = 2
_MAX_ID = 0xFFFFFFFF
_ROUNDS = 8
_OVERHEADS = {1: cupti.OVERHEAD_TYPES[2]} | {
    number << 16: label for number, label in enumerate(cupti.OVERHEAD_TYPES[3:], 1)
}
_PROFILER_OVERHEADS = tuple(number << 16 for number in (1, 2, 3))
_CUDA_OVERHEADS = tuple(kind for kind in _OVERHEADS if kind not in _PROFILER_OVERHEADS)
_STREAM_TYPES = dict(enumerate(cupti.STREAM_TYPES))
_PAYLOADS = {0: ("double", pl.Float64), 1: ("uint64", pl.Int64), 4: ("int64", pl.Int64)}
"""Types of the payloads of markers by the number that CUPTI stores."""


class Objects:
    """The tables of objects and of events that several rows describe."""

    def __init__(self, database: NvprofDatabase) -> None:
        self._database = database
        self._recorded = [kind for kind in SOURCES if PREFIX + kind in database.columns]

    def find_bounds(self) -> tuple[list[int], list[int]]:
        """Return the earliest and the latest time of each kind of events."""
        frames = (self._markers, self._memory, self._overheads)
        times = [
            frame.select(pl.concat_list(pl.col("^(start|end|timestamp)$")).explode()).to_series() for frame in frames
        ]
        known = [t.filter(t > 0) for t in times]
        return [int(t.min()) for t in known if len(t)], [int(t.max()) for t in known if len(t)]  # type: ignore[arg-type]

    @functools.cached_property
    def process_id(self) -> int | None:
        """The profiled process, or None if the database contains several or none."""
        return self._processes[0] if len(self._processes) == 1 else None

    @functools.cached_property
    def _processes(self) -> list[int]:
        calls = [self._database.read_frame(kind, ["processId"]).to_series() for kind in ("RUNTIME", "DRIVER")]
        named = self._names.filter(pl.col("objectKind") <= _THREAD)["process_id"]
        listed = pl.concat([*calls, named.cast(pl.Int64), self._overheads["process_id"].cast(pl.Int64)])
        return sorted(listed.drop_nulls().unique().to_list())

    def build_table(self, name: str, origin_ns: int, end_ns: int) -> pl.DataFrame:
        """Return a table with the declared columns that the database contains."""
        if name == "capture_info":
            info = {
                "tool": "nvprof",
                "schema_version": self._version,
                "origin_utc_ns": str(origin_ns),
                "duration_ns": str(max(0, end_ns - origin_ns)),
            }
            rows = {key: value for key, value in info.items() if value is not None}
            return pl.DataFrame({"name": list(rows), "value": list(rows.values())})
        frame: pl.DataFrame = getattr(self, f"_build_{name}")()
        times = [c for c in ("start_ns", "end_ns", "timestamp_ns") if c in frame.columns]
        return frame.with_columns(pl.col(c) - origin_ns for c in times)

    def count_undecoded(self) -> Mapping[str, int]:
        """Return the number of events that are in no table, by kind."""
        rows = {kind: self._database.count_table_rows(PREFIX + kind) for kind in self._recorded}
        marks, ranges = self._build_nvtx_marks().height, self._build_nvtx_ranges()
        ended = ranges.height - ranges["end_ns"].null_count()
        overheads = self._build_overheads().height + self._build_cuda_overheads().height
        allocations = (self._build_memory_events()["operation"] == cupti.MEMORY_OPERATIONS[0]).sum()
        return {
            "markers": rows.get("MARKER", 0) - marks - ranges.height - ended,
            "memory": rows.get("MEMORY", 0) - int(allocations),
            "overhead": rows.get("OVERHEAD", 0) - overheads,
        }

    @functools.cached_property
    def _version(self) -> str | None:
        if "version" not in self._database.columns.get("Version", ()):
            return None
        version = self._database.read_first_row("Version", ["version"]).get("version")
        return str(version) if isinstance(version, int) else None

    @functools.cached_property
    def _names(self) -> pl.DataFrame:
        """The names of objects, with the numbers of the object."""
        frame = self._database.read_frame("NAME", ["objectKind", "objectId", "name"])
        return self._resolve_strings(frame.with_columns(self._number_exprs("objectId")))

    @functools.cached_property
    def _overheads(self) -> pl.DataFrame:
        frame = self._database.read_frame("OVERHEAD", ["overheadKind", "objectKind", "objectId", "start", "end"])
        return self._decode_threads(frame)

    @functools.cached_property
    def _memory(self) -> pl.DataFrame:
        names = ["memoryKind", "address", "bytes", "start", "end", "allocPC", "freePC"]
        return self._database.read_frame("MEMORY", [*names, "processId", "deviceId", "contextId", "name"])

    @functools.cached_property
    def _markers(self) -> pl.DataFrame:
        names = ["flags", "timestamp", "id", "objectKind", "objectId", "name", "domain"]
        frame = self._decode_threads(self._database.read_frame("MARKER", names))
        return frame.filter(pl.col("timestamp") > 0)

    @functools.cached_property
    def _described_markers(self) -> pl.DataFrame:
        """The markers with the columns that marks and ranges share."""
        names = ["id", "flags", "payloadKind", "payload", "color", "category"]
        details = self._database.read_frame("MARKER_DATA", names).unique("id", keep="first", maintain_order=True)
        kind, raw = pl.col("payloadKind"), pl.col("payload").str.slice(0, 16)
        has_payload = raw.str.contains("[1-9a-f]")
        number = raw.str.decode("hex", strict=False)
        details = details.select(
            "id",
            color=pl.when((pl.col("flags") & _COLOR) > 0).then(pl.col("color") & _MAX_ID),
            category_id=pl.when(pl.col("category") != 0).then(pl.col("category") & _MAX_ID),
            payload_type=pl.when(has_payload).then(
                kind.replace_strict(
                    {n: name for n, (name, _) in _PAYLOADS.items()}, default=None, return_dtype=pl.String
                )
            ),
            payload_int=pl.when(has_payload & kind.is_in([1, 4])).then(
                number.bin.reinterpret(dtype=pl.Int64, endianness="little")
            ),
            payload_float=pl.when(has_payload & (kind == 0)).then(
                number.bin.reinterpret(dtype=pl.Float64, endianness="little")
            ),
        )
        domains = self._resolve_strings(self._markers.select(name="domain")).rename({"name": "domain"})
        markers = self._resolve_strings(self._markers.with_columns(domain_id=pl.col("domain").fill_null(0)))
        return pl.concat([markers.drop("domain"), domains], how="horizontal").join(
            details, on="id", how="left", maintain_order="left"
        )

    def _build_nvtx_marks(self) -> pl.DataFrame:
        marks = self._described_markers.filter((pl.col("flags") & (_MARK | _START | _END)) == _MARK)
        return marks.select(
            pl.int_range(1, pl.len() + 1).alias("mark_id"),
            pl.col("timestamp").alias("timestamp_ns"),
            *("process_id", "thread_id", "domain_id", "domain", "category_id", "color", "name"),
            *("payload_type", "payload_int", "payload_float"),
        )

    def _build_nvtx_ranges(self) -> pl.DataFrame:
        """Return the ranges. A start and an end with the same id are one range.

        CUPTI does not store whether a range was pushed on the stack of its thread. A range is considered to be a
        start/end range if it ends on another thread, or if it overlaps a range of its thread without being nested.
        """
        kind = pl.col("flags") & (_MARK | _START | _END)
        markers = self._described_markers
        starts = markers.filter(kind == _START).unique("id", keep="first", maintain_order=True)
        ends = markers.filter(kind == _END).unique("id", keep="first", maintain_order=True)
        ends = ends.select("id", end_ns="timestamp", end_thread="thread_id")
        ranges = starts.join(ends, on="id", how="left", maintain_order="left").rename({"timestamp": "start_ns"})
        ranges = ranges.with_columns(end_ns=pl.when(pl.col("end_ns") >= pl.col("start_ns")).then("end_ns"))
        ranges = ranges.sort("start_ns", "id").with_columns(pl.int_range(1, pl.len() + 1).alias("range_id"))
        crosses = pl.col("end_thread").ne_missing(pl.col("thread_id")) & pl.col("end_ns").is_not_null()
        ranges = ranges.with_columns(is_start_end=crosses)
        for _ in range(_ROUNDS):
            crossing = _find_crossing_ranges(ranges.filter(~pl.col("is_start_end")))
            if crossing.is_empty():
                break
            ranges = ranges.with_columns(
                is_start_end=pl.col("is_start_end") | pl.col("range_id").is_in(crossing.implode())
            )
        else:
            ranges = ranges.with_columns(is_start_end=pl.lit(value=True))
        return ranges.select(
            *("range_id", "start_ns", "end_ns"),
            pl.when("is_start_end").then(pl.lit("start_end")).otherwise(pl.lit("push_pop")).alias("kind"),
            *("process_id", "thread_id"),
            pl.when(crosses).then("end_thread").alias("end_thread_id"),
            *("domain_id", "domain", "category_id", "color", "name", "payload_type", "payload_int", "payload_float"),
        )

    def _build_memory_events(self) -> pl.DataFrame:
        """Return the allocations and deallocations, which the database stores in one row."""
        frame = self._resolve_strings(self._memory).filter((pl.col("start") > 0) & (pl.col("deviceId") >= 0))
        labels = pl.col("memoryKind").replace_strict(MEMORY_KINDS, default=None, return_dtype=pl.String)
        events = [
            frame.filter(pl.col(time) >= pl.col("start")).select(
                pl.col(time).alias("timestamp_ns"),
                process_id="processId",
                device_id="deviceId",
                context_id="contextId",
                operation=pl.lit(operation),
                memory_kind=labels,
                address="address",
                bytes="bytes",
                name="name",
                program_counter=counter,
            )
            for time, operation, counter in zip(
                ("start", "end"), cupti.MEMORY_OPERATIONS, ("allocPC", "freePC"), strict=True
            )
        ]
        ordered = pl.concat(events).sort("timestamp_ns", maintain_order=True)
        return ordered.with_columns(pl.int_range(1, pl.len() + 1).alias("memory_event_id"))

    def _build_overheads(self) -> pl.DataFrame:
        return self._select_overheads("overhead_id", _PROFILER_OVERHEADS)

    def _build_cuda_overheads(self) -> pl.DataFrame:
        return self._select_overheads("cuda_overhead_id", _CUDA_OVERHEADS)

    def _select_overheads(self, number: str, kinds: tuple[int, ...]) -> pl.DataFrame:
        valid = (pl.col("start") > 0) & (pl.col("end") >= pl.col("start")) & pl.col("overheadKind").is_in(kinds)
        label = pl.col("overheadKind").replace_strict(_OVERHEADS, default=None, return_dtype=pl.String)
        return self._overheads.filter(valid).select(
            pl.int_range(1, pl.len() + 1).alias(number),
            start_ns="start",
            end_ns="end",
            process_id="process_id",
            thread_id="thread_id",
            name=label,
            overhead_type=label,
        )

    def _build_devices(self) -> pl.DataFrame:
        names = [*dict.fromkeys(DEVICE_COLUMNS.values()), "uuid", "name"]
        frame = self._resolve_strings(self._database.read_frame("DEVICE", names)).filter(pl.col("id") >= 0)
        digits = [pl.col("uuid").str.slice(at, size) for at, size in ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))]
        has_uuid = (pl.col("uuid").str.len_bytes() == 32) & pl.col("uuid").str.contains("[1-9a-f]")  # noqa: PLR2004
        return frame.unique("id", keep="first", maintain_order=True).select(
            *(pl.col(c).mul(DEVICE_UNITS.get(d, 1)).alias(d) for d, c in DEVICE_COLUMNS.items()),
            name="name",
            uuid=pl.when(has_uuid).then(pl.format("GPU-{}", pl.concat_str(digits, separator="-"))),
        )

    def _build_contexts(self) -> pl.DataFrame:
        frame = self._database.read_frame("CONTEXT", ["contextId", "deviceId", "nullStreamId"])
        known = frame.drop_nulls("contextId").unique("contextId", keep="first", maintain_order=True)
        columns = {"context_id": "contextId", "device_id": "deviceId", "null_stream_id": "nullStreamId"}
        return self._add_process(known.select(**columns))

    def _build_streams(self) -> pl.DataFrame:
        frame = self._database.read_frame("STREAM", ["contextId", "streamId", "priority", "flag"])
        known = frame.drop_nulls(["contextId", "streamId"])
        label = pl.col("flag").replace_strict(_STREAM_TYPES, default=None, return_dtype=pl.String)
        streams = known.unique(["contextId", "streamId"], keep="first", maintain_order=True).select(
            context_id="contextId", stream_id="streamId", priority="priority", stream_type=label
        )
        names = self._names.filter(pl.col("objectKind") == _STREAM)
        named = names.select(context_id="thread_id", stream_id="third_id", name="name").cast(
            {"context_id": pl.Int64, "stream_id": pl.Int64}
        )
        named = named.unique(["context_id", "stream_id"], keep="first", maintain_order=True)
        joined = streams.join(named, on=["context_id", "stream_id"], how="left", maintain_order="left")
        return self._add_process(joined)

    def _build_processes(self) -> pl.DataFrame:
        """Return the processes. A name with a space is omitted: it is the end of a command line with arguments."""
        names = self._names.filter((pl.col("objectKind") == _PROCESS) & ~pl.col("name").str.contains(r"\s"))
        named = names.select("process_id", "name").unique("process_id", keep="first", maintain_order=True)
        return pl.DataFrame({"process_id": self._processes}, {"process_id": pl.Int64}).join(
            named, on="process_id", how="left", maintain_order="left"
        )

    def _build_threads(self) -> pl.DataFrame:
        names = self._names.filter((pl.col("objectKind") == _THREAD) & pl.col("name").is_not_null())
        named = names.select("process_id", "thread_id", "name").drop_nulls(["process_id", "thread_id"])
        return named.unique(["process_id", "thread_id"], keep="last", maintain_order=True)

    def _add_process(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add the process to rows that need one. They are omitted if the process is unknown."""
        rows = frame if self.process_id is not None else frame.clear()
        return rows.with_columns(process_id=pl.lit(self.process_id, pl.Int64))

    def _decode_threads(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add the columns of the process and of the thread to rows with objects."""
        numbers = frame.with_columns(self._number_exprs("objectId"))
        is_known = pl.col("objectKind").is_in([_PROCESS, _THREAD])
        return numbers.with_columns(
            process_id=pl.when(is_known).then("process_id"),
            thread_id=pl.when(is_known & (pl.col("thread_id") != 0)).then("thread_id"),
        ).drop("objectId", "third_id")

    def _number_exprs(self, column: str) -> list[pl.Expr]:
        """Return expressions for the three numbers of an object."""
        numbers = ("process_id", "thread_id", "third_id")
        digits = (pl.col(column).str.slice(8 * n, 8) for n in range(3))
        decoded = (
            d.str.decode("hex", strict=False).bin.reinterpret(dtype=pl.UInt32, endianness="little") for d in digits
        )
        return [number.cast(pl.Int64).alias(name) for name, number in zip(numbers, decoded, strict=True)]

    def _resolve_strings(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Replace the ids of names with the names."""
        strings = self._strings
        return frame.with_columns(name=pl.col("name").replace_strict(strings, default=None, return_dtype=pl.String))

    @functools.cached_property
    def _strings(self) -> dict[int, str]:
        table = self._database.read_strings()
        return dict(zip(table.ids.to_pylist(), table.values.to_pylist(), strict=True))


def _find_crossing_ranges(ranges: pl.DataFrame) -> pl.Series:
    """Return the ids of ranges whose start and end are at different depths of the stack of their thread."""
    tracks = ["process_id", "thread_id", "domain_id"]
    ended = ranges.filter(pl.col("end_ns") > pl.col("start_ns"))
    starts = ended.select(*tracks, "range_id", time="start_ns", step=pl.lit(1), order=-pl.col("end_ns"))
    ends = ended.select(*tracks, "range_id", time="end_ns", step=pl.lit(-1), order=-pl.col("start_ns"))
    tie = pl.col("range_id") * pl.col("step")
    events = (
        pl.concat([starts, ends]).with_columns(tie=tie).sort(*tracks, "time", "step", "order", "tie", nulls_last=True)
    )
    depth = pl.col("step").cum_sum().over(tracks) + (pl.col("step") < 0)
    depths = events.with_columns(depth=depth).group_by("range_id").agg(pl.col("depth").n_unique())
    return depths.filter(pl.col("depth") > 1)["range_id"]
