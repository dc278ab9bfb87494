"""Build declared tables from a rocpd database. Each table is read when it is used."""

from __future__ import annotations

import functools
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.readers.common.columns import DICTIONARY
from tracekit.readers.common.sqlite.compressed import open_database
from tracekit.readers.rocm import ROCPD_TABLE, tables
from tracekit.readers.rocm.agents import build_devices
from tracekit.registry.interface import Undecoded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from tracekit.registry.source import Source

HINT = "copy the file again from where rocprofv3 wrote it, or record it again"
_SPANS = {
    "kernel_dispatch": ("start", "end"),
    "memory_copy": ("start", "end"),
    "memory_allocate": ("start",),
    "region": ("start", "end"),
    "sample": ("timestamp",),
}
_MAX_MARKERS = 100
_NODE_FACTOR = 1 << 32
_ALLOCATIONS = {"ALLOC": "Allocation", "FREE": "Deallocation"}
_MEMORY_KINDS = {"REAL": "Device", "VIRTUAL": "Virtual", "SCRATCH": "Scratch"}
_SHARED = ("devices", "processes", "threads")
"""Tables that several processes of a database describe."""
_MAX_AGENT_BYTES = 1 << 20
"""Maximum size of the JSON that describes an agent. Larger descriptions are not read."""


class ProcessTables(NamedTuple):
    """The tables of one profiled process.

    Attributes:
        number: Number of the process in the database, counted from 0.
        names: Names of the tables by kind.
    """

    number: int
    names: Mapping[str, str]


class RowsOfCategories(NamedTuple):
    """A filter that keeps the events of some categories."""

    column: str
    values: tuple[int, ...]


class RocpdCapture(tables.RocmCapture):
    """An open rocpd database."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.path, HINT)
        self._database = open_database(source, HINT)
        by_suffix: dict[str, dict[str, str]] = {}
        for table in sorted(self._database.columns):
            if match := ROCPD_TABLE.fullmatch(table):
                by_suffix.setdefault(match[2], {})[match[1]] = table
        self._events: dict[int, pl.DataFrame] = {}
        self._processes = [ProcessTables(n, names) for n, names in enumerate(by_suffix.values())]

    def names(self) -> list[str]:
        """Return the names of the declared tables that may have rows."""
        return [*_BUILDERS, "capture_info"]

    def build_table(self, name: str) -> pl.DataFrame:
        """Build a table from the tables of all processes."""
        frame = _concatenate([_BUILDERS[name](self, process) for process in self._processes])
        key = [*schemas.table(name).key]
        return frame.unique(key, keep="first", maintain_order=True) if name in _SHARED else frame

    def count_undecoded(self) -> Mapping[str, Undecoded]:
        """Return the number of events that are in no table, by kind."""
        self.time_span  # noqa: B018 (counts the events without valid times)
        counts = Counter({tables.UNTIMED: self.untimed})
        for process in self._processes:
            copies, allocations = self.count_rows(process, "memory_copy"), self.count_rows(process, "memory_allocate")
            counts["copies between processors"] += copies - _BUILDERS["memcpys"](self, process).height
            counts["allocations of memory of processors"] += (
                allocations - _BUILDERS["memory_events"](self, process).height
            )
            known = _BUILDERS["profiler_metrics"](self, process)["event_count"].sum()
            known += _BUILDERS["counters"](self, process).height
            counts["values of counters of other events"] += self.count_rows(process, "pmc_event") - int(known)
        undecoded = tables.count_as_undecoded(counts)
        arguments = sum(self.count_rows(process, "arg") for process in self._processes)
        return undecoded | ({tables.ARGUMENTS: Undecoded(arguments, is_auxiliary=True)} if arguments else {})

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def measure_time_span(self) -> tuple[int, int]:
        """Return the earliest and the latest recorded time."""
        spans = []
        for process in self._processes:
            for kind, columns in _SPANS.items():
                names = dict(zip(columns, tables.TIMES[:: len(columns)], strict=False))
                rows = self.read_rows(process, kind, columns).rename(names)
                self.untimed += tables.count_untimed_rows(rows)
                spans.append(tables.find_time_span([rows]))
        known = [span for span in spans if span != (0, 0)]
        return (min(first for first, _ in known), max(last for _, last in known)) if known else (0, 0)

    def describe_capture(self) -> dict[str, str]:
        """Return the metadata of the profile without those of the host, the user and the command."""
        info = {"tool": "rocprofv3", "device_vendors": "AMD"}
        for process in self._processes[:1]:
            rows = self.read_rows(process, "metadata", (), ("tag", "value"))
            values = dict(zip(rows["tag"].to_list(), rows["value"].to_list(), strict=True))
            if isinstance(version := values.get("schema_version"), str):
                info["schema_version"] = version
        return info

    def read_rows(
        self,
        process: ProcessTables,
        kind: str,
        integers: Sequence[str],
        strings: Sequence[str] = (),
        small: Collection[str] = (),
    ) -> pl.DataFrame:
        """Read columns of a table of a process, as ``tables.read_frame`` does.

        Raises:
            CorruptTraceError: The table is damaged, or a value does not have the requested type.
        """
        types = dict.fromkeys(integers, pa.int64()) | dict.fromkeys(strings, DICTIONARY)
        frame = tables.read_frame(self._database, process.names.get(kind), types, small)
        return frame.with_columns(pl.col(c).cast(pl.String) for c in strings)

    def read_columns(self, process: ProcessTables, kind: str, types: Mapping[str, pa.DataType]) -> pl.DataFrame:
        """Read columns of a table of a process, with the given types. Columns that the table lacks are null.

        Raises:
            CorruptTraceError: The table is damaged, or a value does not have the requested type.
        """
        return tables.read_frame(self._database, process.names.get(kind), types)

    def count_rows(self, process: ProcessTables, kind: str) -> int:
        """Return the number of rows of a table of a process."""
        return self._database.count_table_rows(process.names[kind]) if kind in process.names else 0

    def read_strings(self, process: ProcessTables, column: str) -> pl.DataFrame:
        """Return the strings of a process as ``column``, with their ids as ``string_id``."""
        strings = self.read_rows(process, "string", ("id",), ("string",))
        return strings.rename({"id": "string_id", "string": column})

    @functools.cached_property
    def nodes(self) -> list[int]:
        """Ids of the machines in the database, in ascending order."""
        rows = [self.read_rows(process, "info_process", ("nid",)) for process in self._processes]
        return _concatenate(rows)["nid"].unique().drop_nulls().sort().to_list()

    def read_processes(self, process: ProcessTables) -> pl.DataFrame:
        """Return the ids of processes, by their row id. Processes of further machines have numbers above 2^32."""
        rows = self.read_rows(process, "info_process", ("id", "nid", "pid"))
        node = pl.col("nid").replace_strict(self.nodes, range(len(self.nodes)), default=0, return_dtype=pl.Int64)
        return rows.select(process_key="id", process_id=pl.col("pid") + node * _NODE_FACTOR)

    def read_threads(self, process: ProcessTables) -> pl.DataFrame:
        """Return the threads of a process, by their row id."""
        rows = self.read_rows(process, "info_thread", ("id", "pid", "tid"), ("name",)).rename({"pid": "process_key"})
        joined = tables.join_first(rows, self.read_processes(process), left_on="process_key", right_on="process_key")
        return joined.select("process_id", "name", thread_key="id", thread_id="tid")

    def read_agents(self, process: ProcessTables) -> pl.DataFrame:
        """Return the number of the device of each agent, which is null for processors, by the id of the agent.

        GPUs have the numbers of the GPUs of their machine. If there are several machines, the numbers continue.
        """
        return self._agents.filter(process=process.number).select("agent_key", "device_id")

    @functools.cached_property
    def _agents(self) -> pl.DataFrame:
        rows = _concatenate(
            [
                self.read_rows(p, "info_agent", ("id", "nid", "type_index"), ("type",)).with_columns(
                    process=pl.lit(p.number, pl.Int64)
                )
                for p in self._processes
            ]
        )
        is_gpu = pl.col("type") == "GPU"
        index = pl.coalesce("type_index", "id")
        gpus = rows.filter(is_gpu).select("nid", index=index).unique().sort("nid", "index")
        number = pl.col("index") if gpus["nid"].n_unique() <= 1 else pl.int_range(pl.len(), dtype=pl.Int64)
        gpus = gpus.with_columns(device_id=number)
        return (
            rows.with_columns(index=pl.when(is_gpu).then(index))
            .join(gpus, on=["nid", "index"], how="left", maintain_order="left", nulls_equal=True)
            .rename({"id": "agent_key"})
        )

    def add_event_columns(self, process: ProcessTables, rows: pl.DataFrame) -> pl.DataFrame:
        """Add to rows with an ``event_id`` the correlation id and the category (``category_id``) of their events."""
        if process.number not in self._events:
            columns = {"id": "event_id", "stack_id": "correlation_id", "category_id": "category_id"}
            events = self.read_rows(process, "event", [*columns], small=[*columns][1:]).rename(columns)
            self._events[process.number] = events.with_columns(correlation_id=tables.correlation_expr())
        return tables.join_first(rows, self._events[process.number], left_on="event_id", right_on="event_id")

    def read_messages(self, process: ProcessTables) -> pl.DataFrame:
        """Return the JSON that contains the messages of markers, by ``event_id``."""
        categories = self.map_categories(process)
        markers = categories.filter(pl.col("category").str.starts_with("MARKER"))["category_id"].to_list()
        types = {"id": pa.int64(), "extdata": DICTIONARY}
        name = process.names.get("event") if markers else None
        where = RowsOfCategories("category_id", tuple(markers[:_MAX_MARKERS]))
        rows = tables.read_frame(self._database, name, types, where=where)
        return rows.select(event_id="id", message=pl.col("extdata").cast(pl.String))

    def map_categories(self, process: ProcessTables) -> pl.DataFrame:
        """Return the categories of events, by ``category_id``, and the API of those that are calls."""
        names = self.read_strings(process, "category").rename({"string_id": "category_id"})
        return names.with_columns(api=tables.find_api_expr(pl.col("category")))

    def read_activities(
        self, process: ProcessTables, kind: str, integers: Sequence[str], strings: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Read activities with the declared columns that all kinds have: times, process, stream and correlation id."""
        columns = ("start", "end", "pid", "queue_id", "stream_id", "event_id", *integers)
        rows = self.read_rows(process, kind, columns, strings, {*columns[2:]} - {"event_id", "address", "size"}).rename(
            {"start": "start_ns", "end": "end_ns", "pid": "process_key"}
        )
        rows = tables.join_first(rows, self.read_processes(process), left_on="process_key", right_on="process_key")
        rows = self.add_event_columns(process, rows.drop("process_key"))
        return rows.with_columns(stream_id=self._stream_expr).drop("queue_id", "category_id")

    @functools.cached_property
    def _stream_expr(self) -> pl.Expr:
        columns = ("queue_id", "stream_id")
        return tables.choose_stream_expr(
            _concatenate([self.read_rows(process, "kernel_dispatch", columns) for process in self._processes])
        )


def _concatenate(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(frames, how="vertical") if len(frames) > 1 else frames[0]


def build_kernels(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the kernels of a process."""
    rows = capture.read_activities(process, "kernel_dispatch", ("agent_id", "kernel_id", *tables.LAUNCH))
    symbols = _read_symbols(capture, process)
    rows = tables.join_first(rows.drop("event_id"), symbols, left_on="kernel_id", right_on="id").drop("kernel_id")
    rows = tables.join_first(rows, capture.read_agents(process), left_on="agent_id", right_on="agent_key")
    return tables.describe_kernels(rows)


def _read_symbols(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the names and resources of kernels by ``id``."""
    numbers = ("id", "group_segment_size", "arch_vgpr_count", "accum_vgpr_count")
    symbols = capture.read_rows(process, "info_kernel_symbol", numbers, ("kernel_name", "display_name"))
    return tables.describe_symbols(symbols, "id")


def build_memcpys(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the copies of a process to or from a GPU."""
    rows = capture.read_activities(process, "memory_copy", ("name_id", "dst_agent_id", "src_agent_id", "size"))
    rows = tables.join_first(rows, capture.read_strings(process, "kind"), left_on="name_id", right_on="string_id")
    for end in ("src", "dst"):
        agents = capture.read_agents(process).rename({"device_id": f"{end}_device_id"})
        rows = tables.join_first(rows, agents, left_on=f"{end}_agent_id", right_on="agent_key")
    return tables.describe_copies(rows.rename({"size": "bytes"}))


def build_calls(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the calls of HIP and HSA of a process."""
    rows = _add_names(capture, process, _read_regions(capture, process, of_api=True))
    columns = ("start_ns", "end_ns", "process_id", "thread_id", "correlation_id", "api")
    return rows.select(*columns, name="operation")


def build_ranges(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the regions of a process that are no calls of HIP or HSA."""
    rows = _add_names(capture, process, _read_regions(capture, process, of_api=False))
    return _describe_ranges(capture, process, rows)


def build_marks(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the samples of a process that have no counters, which are regions without a duration."""
    with_values = capture.read_rows(process, "pmc_event", ("event_id",)).unique()
    rows = _read_samples(capture, process).join(with_values, on="event_id", how="anti", maintain_order="left")
    rows = rows.with_columns(start_ns="timestamp_ns", end_ns="timestamp_ns")
    rows = _describe_ranges(capture, process, _add_names(capture, process, rows))
    return rows.rename({"start_ns": "timestamp_ns"}).drop("end_ns", "kind")


def _read_regions(capture: RocpdCapture, process: ProcessTables, *, of_api: bool) -> pl.DataFrame:
    """Return the regions that are calls of HIP or HSA, or the others."""
    rows = capture.read_rows(process, "region", ("start", "end", "pid", "tid", "name_id", "event_id"))
    rows = capture.add_event_columns(process, rows.rename({"start": "start_ns", "end": "end_ns"}))
    calls = capture.map_categories(process).drop_nulls("api")["category_id"]
    is_call = rows["category_id"].cast(pl.Int64).is_in(calls.implode()).fill_null(value=False)
    return rows.filter(is_call if of_api else ~is_call)


def _read_samples(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the samples of a process, whose tracks state thread and name."""
    rows = capture.read_rows(process, "sample", ("track_id", "timestamp", "event_id"))
    tracks = capture.read_rows(process, "track", ("id", "pid", "tid", "name_id"))
    rows = tables.join_first(rows, tracks, left_on="track_id", right_on="id").rename({"timestamp": "timestamp_ns"})
    return capture.add_event_columns(process, rows)


def _add_names(capture: RocpdCapture, process: ProcessTables, rows: pl.DataFrame) -> pl.DataFrame:
    """Add the category and ``operation`` of regions or samples, and their process and thread."""
    rows = tables.join_first(rows, capture.read_strings(process, "operation"), left_on="name_id", right_on="string_id")
    rows = tables.join_first(rows, capture.read_processes(process), left_on="pid", right_on="process_key")
    threads = capture.read_threads(process).select("thread_key", "thread_id")
    rows = tables.join_first(rows, threads, left_on="tid", right_on="thread_key").drop("pid", "tid", "name_id")
    categories = capture.map_categories(process)
    return tables.join_first(
        rows.with_columns(pl.col("category_id").cast(pl.Int64)),
        categories,
        left_on="category_id",
        right_on="category_id",
    )


def _describe_ranges(capture: RocpdCapture, process: ProcessTables, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the declared columns of ranges. A marker has the name of its message."""
    messages = capture.read_messages(process)
    named = tables.join_first(rows, messages, left_on="event_id", right_on="event_id")
    return named.select(
        *("start_ns", "end_ns", "process_id", "thread_id"),
        *tables.describe_range_exprs(pl.col("category"), pl.col("operation"), pl.col("category_id")),
        name=pl.coalesce(pl.col("message").str.json_path_match("$.message"), "operation"),
    )


def build_metrics(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the counters of kernels, summed over the instances of a counter, with their number as ``event_count``."""
    values = _read_counter_values(capture, process)
    values = values.group_by("event_id", "metric", maintain_order=True).agg(
        pl.col("value").sum(), event_count=pl.len().cast(pl.Int64)
    )
    columns = ("start", "end", "agent_id", "kernel_id", "event_id")
    kernels = capture.read_rows(process, "kernel_dispatch", columns if values.height else ())
    if not kernels.height:
        kernels = pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))
    kernels = kernels.rename({"start": "start_ns", "end": "end_ns"})
    rows = tables.join_first(values, kernels, left_on="event_id", right_on="event_id").drop_nulls("start_ns")
    names = _read_symbols(capture, process).select("id", range_name="name")
    rows = tables.join_first(rows, names, left_on="kernel_id", right_on="id").drop("kernel_id")
    rows = tables.join_first(rows, capture.read_agents(process), left_on="agent_id", right_on="agent_key")
    return rows.with_columns(profiler_range_id=pl.col("event_id") + process.number * _NODE_FACTOR)


def build_counters(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the counters that were sampled, such as those of ROCm Systems Profiler."""
    values = _read_counter_values(capture, process)
    if not values.height or not capture.count_rows(process, "sample"):
        values, samples = values.clear(), _read_samples(capture, process).clear()
    else:
        samples = _read_samples(capture, process)
    samples = _add_names(capture, process, samples).select("event_id", "timestamp_ns", "process_id", "thread_id")
    values = values.join(samples.unique("event_id"), on="event_id", how="inner")
    return values.select(
        *("timestamp_ns", "process_id", "thread_id"),
        event_id=pl.col("event_id") + process.number * _NODE_FACTOR,
        source=pl.lit("rocpd_sample"),
        name="metric",
        field="metric",
        value_type=pl.lit("double"),
        value_float="value",
    )


def _read_counter_values(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the values of counters: ``event_id``, ``metric`` and ``value``."""
    columns = {"event_id": pa.int64(), "pmc_id": pa.int64(), "value": pa.float64()}
    values = capture.read_columns(process, "pmc_event", columns)
    counters = capture.read_rows(process, "info_pmc", ("id",), ("name",)).rename({"name": "metric"})
    return tables.join_first(values, counters, left_on="pmc_id", right_on="id").drop_nulls("event_id")


def build_memory_events(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the allocations of memory of GPUs, and the deallocations whose allocation was recorded."""
    columns = ("agent_id", "address", "size")
    rows = capture.read_activities(process, "memory_allocate", columns, ("type", "level"))
    rows = tables.join_first(rows, capture.read_agents(process), left_on="agent_id", right_on="agent_key")
    return tables.match_deallocations(
        rows.select(
            *("process_id", "stream_id", "correlation_id", "device_id", "address"),
            timestamp_ns="start_ns",
            bytes="size",
            operation=pl.col("type").replace_strict(_ALLOCATIONS, default=None, return_dtype=pl.String),
            memory_kind=pl.col("level").replace_strict(_MEMORY_KINDS, default=None, return_dtype=pl.String),
        )
    )


def build_processes(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the processes without their command lines."""
    rows = capture.read_processes(process).select("process_id").drop_nulls().unique(maintain_order=True)
    return rows.with_columns(name=pl.lit(None, pl.String))


def build_threads(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the threads of a process."""
    rows = capture.read_threads(process).select("process_id", "thread_id", "name")
    return rows.drop_nulls(["process_id", "thread_id"]).unique(["process_id", "thread_id"], maintain_order=True)


def build_device_table(capture: RocpdCapture, process: ProcessTables) -> pl.DataFrame:
    """Return the GPUs of the machine of a process."""
    columns = ("name", "product_name", "extdata")
    rows = capture.read_rows(process, "info_agent", ("id",), columns)
    rows = tables.join_first(rows, capture.read_agents(process), left_on="id", right_on="agent_key")
    return build_devices((row["device_id"], _parse_agent(row)) for row in rows.drop_nulls("device_id").to_dicts())


def _parse_agent(row: dict[str, Any]) -> dict[str, Any]:
    """Return the values of an agent, of which most are stored as JSON."""
    text = row["extdata"] or ""
    try:
        described = json.loads(text) if len(text) <= _MAX_AGENT_BYTES else None
    except (ValueError, RecursionError):
        described = None
    return row | (described if isinstance(described, dict) else {})


_BUILDERS: Mapping[str, Callable[[RocpdCapture, ProcessTables], pl.DataFrame]] = {
    "kernels": build_kernels,
    "memcpys": build_memcpys,
    "api_calls": build_calls,
    "nvtx_ranges": build_ranges,
    "nvtx_marks": build_marks,
    "profiler_metrics": build_metrics,
    "counters": build_counters,
    "memory_events": build_memory_events,
    "devices": build_device_table,
    "processes": build_processes,
    "threads": build_threads,
}
