"""Build declared tables from a profile of XLA. All events are read when it is opened, compiled programs when used."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit import schemas
from tracekit.errors import CorruptTraceError, TracekitError, UnknownFormatError, format_count, warn
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage
from tracekit.readers.xplane import (
    NAME_OF_PLANE,
    cores,
    devices,
    hosts,
    is_viewer_trace,
    launches,
    programs,
    sniff,
    space,
    thunks,
    totals,
    viewer,
)
from tracekit.readers.xplane.hosts import convert_to_frame
from tracekit.readers.xplane.values import EventValues
from tracekit.registry.detection import describe_unrecognized
from tracekit.registry.interface import Capture, Undecoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracekit.readers.xplane.space import Space
    from tracekit.registry.source import Source

INSTRUCTIONS = "hlo_instructions"
_RECORD_AGAIN = "copy the file again from its source, or record the profile again"
_EARLIEST_UTC_NS = 946_684_800_000_000_000
"""Start of the year 2000. Earlier times are relative to the start of the profile."""
_ENVIRONMENT, _START, _STOP = "Task Environment", "profile_start_time", "profile_stop_time"
_VERSIONS = ("jax_version", "jaxlib_version", "gpu_version", "cuda_driver_version", "cuda_runtime_version")
_MAX_TEXT_LENGTH, _MAX_ID = 200, 1 << 40
_MAX_COMPRESSION_RATIO = 32
"""Decompressed bytes per byte of a gzipped profile for which memory is allowed."""
_API = r"^(cu|cuda|hip|hsa_?)[A-Z]\w*"
_TIMES = ("start_ns", "timestamp_ns", "end_ns")
_IDS = {
    "kernels": "kernel_id",
    "memcpys": "memcpy_id",
    "memsets": "memset_id",
    "graph_launches": "graph_launch_id",
    "api_calls": "api_call_id",
    "nvtx_ranges": "range_id",
    "nvtx_marks": "mark_id",
    "memory_events": "memory_event_id",
    "activity_totals": "activity_total_id",
}


def read_profile(source: Source) -> ProfileCapture:
    """Read a profile and return its tables.

    Raises:
        UnknownFormatError: The file is not a profile of XLA. The message names the probable type of the file.
        CorruptTraceError: The file is truncated or damaged.
        TracekitError: The file cannot be read, or changed while it was read.
    """
    with source.open() as file:
        try:
            if is_viewer_trace(source):
                budget = Budget(file.size)
                profile = viewer.read_viewer_trace(file, budget)
            else:
                buffer, size = space.read_content(file)
                budget = Budget(min(size, _MAX_COMPRESSION_RATIO * file.size))
                profile = space.read_space(buffer, size, budget).remove_repeated_planes()
            capture = ProfileCapture(source.path, profile, budget)
        except Damage as e:
            file.check_unchanged()
            if not sniff(source):
                raise _create_unsupported_error(source) from e
            raise CorruptTraceError(str(e), path=source.path, hint=_RECORD_AGAIN) from e
        except MemoryError as e:
            raise TracekitError(
                f"the profile ({source.size:,} bytes) does not fit into memory",
                path=source.path,
                hint="close other programs, or open the file on a machine with more memory",
            ) from e
    if not capture.has_known_planes and not sniff(source):
        raise _create_unsupported_error(source)
    capture.warn_about_skipped_data()
    return capture


def _create_unsupported_error(source: Source) -> UnknownFormatError:
    """Return an error that states what the file contains instead of a profile of XLA."""
    unknown = "this is not a profile of XLA", "read a file that ends in .xplane.pb"
    what, hint = describe_unrecognized(source, unknown)
    return UnknownFormatError(what, path=source.path, hint=hint)


class ProfileCapture(Capture):
    """The tables of a profile that has been read."""

    def __init__(self, path: Path, profile: Space, budget: Budget) -> None:
        """Build all tables except that of the compiled programs, which is built when it is used.

        Raises:
            Damage: An event is invalid.
        """
        self._path = path
        self._space = profile
        self._budget = budget
        self._gpus = [plane for plane in profile.planes if devices.GPU.fullmatch(plane.name)]
        self._cores = [plane for plane in profile.planes if cores.CORE.fullmatch(plane.name)]
        self._process_id = self._find_process_id()
        self._first_core = max((devices.get_device(plane) + 1 for plane in self._gpus), default=0)
        activities = devices.build_activities(self._gpus)
        self._undecoded = self._count_undecoded(activities)
        self._tables = self._build_thread_tables(activities)
        self._tables |= self._build_streams()
        summed = totals.build_totals(profile.planes, self._first_core)
        self._tables |= {"activity_totals": summed} if summed.height else {}
        self._subtract_origin()
        self._tables["capture_info"] = self._build_capture_info()
        self._free_planes()

    def names(self) -> list[str]:
        """Return the names of the declared tables that may have rows."""
        return [*self._tables, INSTRUCTIONS]

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return self._instructions.num_rows if name == INSTRUCTIONS else self._tables[name].height

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table.

        Raises:
            CorruptTraceError: A compiled program is damaged.
        """
        table = self._instructions if name == INSTRUCTIONS else self._convert_table(name)
        return table.select([column for column in columns if column in table.column_names])

    def count_undecoded(self) -> Mapping[str, int | Undecoded]:
        """Return the number of events that are in no table, by kind."""
        about = {"messages of the profiler": self._space.errors + self._space.warnings}
        about["repeated planes"] = self._space.repeated
        return {**self._undecoded, **{kind: Undecoded(n, is_auxiliary=True) for kind, n in about.items() if n}}

    def warn_about_skipped_data(self) -> None:
        """Warn if planes are repeated, or if the profiler reported errors."""
        if self._space.repeated:
            rest, rest_of_one = "repeat others byte for byte and are", "repeats another byte for byte and is"
            what = format_count(self._space.repeated, "plane", rest, rest_of_one)
            warn(f"{what} read once: the profile was appended to itself, or written twice", path=self._path)
        for noun, count in (("error", self._space.errors), ("warning", self._space.warnings)):
            if count:
                warn(f"the profiler reported {count} {noun}{'s' * (count > 1)}: events may be missing", path=self._path)

    @property
    def has_known_planes(self) -> bool:
        """Whether a plane belongs to a device or a host, or there are no planes."""
        return self._has_known_planes

    def _has_known_names(self) -> bool:
        names = [plane.name.encode() for plane in self._space.planes]
        return not names or any(map(NAME_OF_PLANE.match, names))

    def _find_process_id(self) -> int:
        """Return the process that was profiled, or 0 if the profile does not contain its id."""
        for plane in self._space.planes:
            ids, has_id = EventValues.of_plane(plane).get_integers("process_id")
            if has_id[0]:
                return int(ids[0])
        return 0

    @functools.cached_property
    def _environment(self) -> dict[str, int]:
        """The times at which the profile started and ended, in ns since 1970."""
        planes = [plane for plane in self._space.planes if plane.name == _ENVIRONMENT]
        numbers = {name: EventValues.of_plane(plane).get_integers(name) for plane in planes for name in (_START, _STOP)}
        return {name: int(n[0]) for name, (n, valid) in numbers.items() if valid[0] and n[0] >= _EARLIEST_UTC_NS}

    @functools.cached_property
    def _instructions(self) -> pa.Table:
        planes = (plane for plane in self._space.planes if plane.name == programs.METADATA)
        try:
            table = programs.build_instruction_table(programs.iterate_programs(planes), self._budget)
            return programs.add_costs(table, self._kinds)
        except Damage as e:
            raise CorruptTraceError(str(e), path=self._path, table=INSTRUCTIONS, hint=_RECORD_AGAIN) from e

    def _free_planes(self) -> None:
        """Free the content of the profile, except for the compiled programs and the id of the process."""
        self._has_known_planes = self._has_known_names()
        programs_only = [plane.copy() for plane in self._space.planes if plane.name == programs.METADATA]
        self._space = self._space._replace(planes=programs_only)
        self._gpus, self._cores = [], []

    def _count_undecoded(self, activities: devices.GpuActivities) -> Counter[str]:
        counts = Counter(activities.undecoded)
        counts["other events of the trace viewer"] += self._space.others
        for plane in self._gpus:
            for line, count in zip(plane.lines, plane.count_events_by_line(), strict=True):
                if devices.is_derived(plane, line.name):
                    counts["derived events of GPUs"] += count
        return +counts

    def _build_thread_tables(self, activities: devices.GpuActivities) -> dict[str, pl.DataFrame]:
        planes = [plane for plane in self._space.planes if hosts.HOST.match(plane.name)]
        threads = hosts.read_hosts(planes, has_cores=bool(self._cores))
        self._undecoded += Counter({"memory events of the host": threads.undecoded})
        merged = hosts.merge_threads(threads)
        of_line = merged.select("line", "thread_id")
        calls, ranges, marks, operations, flows = (
            frame.join(of_line, on="line", how="left", maintain_order="left")
            for frame in (threads.calls, threads.ranges, threads.marks, threads.operations, threads.flows)
        )
        memory = threads.memory.with_columns(pl.col("device_id") + self._first_core * bool(self._cores))
        del threads
        calls = _add_annotations_of_activities(calls, activities)
        lines = self._number_device_lines()
        spans = self._read_device_lines(lines)
        events = cores.read_cores(self._cores, [lines[plane.start] for plane in self._cores], self._first_core)
        self._kinds = cores.list_distinct_kinds(events)
        on_host = _merge_ranges(thunks.build_ranges(ranges, calls), self._build_cpu_operations(operations))
        del ranges, operations
        on_cores = launches.build_launches(events, flows, on_host, spans, _find_first_free_id(calls, activities))
        launched = pl.concat([_build_api_calls(calls), on_cores.calls], how="diagonal_relaxed")
        del calls, flows
        all_ranges = _merge_ranges(on_host, on_cores.ranges)
        instants = spans.filter(~pl.col("has_duration")).select("thread_id", "start_ns", "end_ns", "name", "payload")
        marks = pl.concat([marks.select(instants.columns), instants])
        named = self._name_threads(merged, lines)
        used = pl.concat([frame.select("thread_id") for frame in (launched, all_ranges, marks)]).unique()
        named = named.join(used, on="thread_id", how="semi", maintain_order="left")
        return {
            **_concat_activities(activities, on_cores.activities),
            "api_calls": launched,
            "nvtx_ranges": _describe_ranges(all_ranges).with_columns(kind=pl.lit("push_pop")),
            "nvtx_marks": _describe_ranges(marks.with_columns(domain=pl.lit(thunks.TRACE_ME))).rename(
                {"start_ns": "timestamp_ns"}
            ),
            "memory_events": memory,
            "threads": named.select("thread_id", "name").unique("thread_id", keep="first", maintain_order=True),
            "processes": pl.DataFrame(
                {"process_id": [self._process_id], "name": [None]}, {"process_id": pl.Int64, "name": pl.String}
            ),
            "devices": self._build_devices(),
        }

    def _number_device_lines(self) -> dict[int, list[int]]:
        """Return the id of the thread that stands for each line of a device, by the start of its plane.

        Only lines that are no streams of GPUs are numbered. The ids are negative.
        """
        gpus = {plane.start for plane in self._gpus}
        planes = [p for p in self._space.planes if not hosts.HOST.match(p.name) and p.start not in gpus]
        numbers = itertools.count(1)
        return {plane.start: [-next(numbers) for _ in plane.lines] for plane in planes}

    def _read_device_lines(self, lines: Mapping[int, list[int]]) -> pl.DataFrame:
        """Return the events of devices that are no activities, as those of threads."""
        parts = [pl.DataFrame(schema=hosts.DEVICE_SPANS)]
        for plane in self._space.planes:
            if plane.start in lines and plane.lines:
                ops = cores.list_lines_of_ops(plane)
                others = [i for i in range(len(plane.lines)) if i not in ops]
                parts.append(hosts.read_device_lines(plane, others, lines[plane.start]))
        return pl.concat(parts)

    def _name_threads(self, merged: pl.DataFrame, lines: Mapping[int, list[int]]) -> pl.DataFrame:
        """Return the threads of hosts and the lines of devices: ``thread_id``, ``name``."""
        rows = [
            (number, f"{plane.name} {line.name}")
            for plane in self._space.planes
            for number, line in zip(lines.get(plane.start, ()), plane.lines, strict=False)
        ]
        own = pl.DataFrame(rows, {"thread_id": pl.Int64, "name": pl.String}, orient="row")
        return pl.concat([merged.select("thread_id", "name"), own])

    def _build_cpu_operations(self, operations: pl.DataFrame) -> pl.DataFrame:
        """Return the ranges of operations that ran on CPUs, with their paths in the source."""
        if operations.is_empty():
            return thunks.build_cpu_ranges(operations, pl.DataFrame(schema=programs.PATHS))
        planes = (plane for plane in self._space.planes if plane.name == programs.METADATA)
        return thunks.build_cpu_ranges(operations, programs.read_paths(programs.iterate_programs(planes)))

    def _build_devices(self) -> pl.DataFrame:
        rows = devices.build_device_rows(self._gpus) + cores.build_device_rows(self._cores, self._first_core)
        return pl.DataFrame(rows, _get_schema("devices"))

    def _build_streams(self) -> dict[str, pl.DataFrame]:
        columns = ["device_id", "context_id", "stream_id"]
        empty = pl.DataFrame(schema={"device_id": pl.Int32, "context_id": pl.Int64, "stream_id": pl.Int64})
        used = [self._tables[name] for name in devices.TABLES if name in self._tables]
        used = [table.select(c for c in columns if c in table.columns) for table in used]
        streams = pl.concat([empty, *used], how="diagonal").drop_nulls().unique().sort(columns)
        return {
            "contexts": streams.select("context_id", "device_id").unique("context_id", maintain_order=True),
            "streams": streams.select("context_id", "stream_id").unique(maintain_order=True),
        }

    def _subtract_origin(self) -> None:
        """Make times relative to the origin, unless they are relative to the start of the profile already."""
        times = {name: [c for c in _TIMES if c in table.columns] for name, table in self._tables.items()}
        columns = [self._tables[name][c] for name, names in times.items() for c in names]
        all_times = pl.concat([pl.Series(dtype=pl.Int64), *columns]).drop_nulls()
        bounds = all_times.min(), all_times.max()
        first, last = (bound if isinstance(bound, int) else 0 for bound in bounds)
        self._origin_ns = first if first >= _EARLIEST_UTC_NS else 0
        self._end_ns = last - self._origin_ns
        for name, table in self._tables.items():
            self._tables[name] = table.with_columns(pl.col(c) - self._origin_ns for c in times[name])

    def _build_capture_info(self) -> pl.DataFrame:
        """Return the metadata of the profile, except values that may identify a host, user or folder."""
        info: dict[str, str | None] = {"tool": "XLA profiler"}
        for plane in self._space.planes:
            if plane.name == programs.METADATA:
                values = EventValues.of_plane(plane)
                info |= {name: values.get_strings(name)[0].as_py() for name in _VERSIONS}
        vendors = devices.read_vendors(self._gpus)
        info["device_vendors"] = ", ".join(vendors) or None
        origin = self._origin_ns or self._environment.get(_START)
        info["origin_utc_ns"] = None if origin is None else str(origin)
        info["duration_ns"] = str(self._end_ns)
        rows = {name: value for name, value in info.items() if value is not None and len(value) <= _MAX_TEXT_LENGTH}
        return pl.DataFrame({"name": list(rows), "value": list(rows.values())})

    def _convert_table(self, name: str) -> pa.Table:
        """Return a table with its declared columns. Columns that a profile does not contain are omitted."""
        frame, declared = self._tables[name], _get_schema(name)
        if name in _IDS:
            frame = frame.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias(_IDS[name]))
        if "process_id" in declared:
            frame = frame.with_columns(process_id=pl.lit(self._process_id, pl.Int64))
        columns = {c: kind for c, kind in declared.items() if c in frame.columns}
        table = frame.select(pl.col(c).cast(kind) for c, kind in columns.items()).to_arrow()
        return table.cast(schemas.arrow_schema(schemas.table(name), list(columns)))


def _get_schema(name: str) -> dict[str, Any]:
    return dict(schemas.polars_schema(schemas.table(name)))


def _add_annotations_of_activities(calls: pl.DataFrame, activities: devices.GpuActivities) -> pl.DataFrame:
    """Add to API calls without an operation what the profiler recorded with the first activity of the call."""
    columns = ["program_id", *devices.ANNOTATIONS.values()]
    if not activities.annotations.num_rows:
        return calls
    recorded = convert_to_frame(activities.annotations).drop_nulls("correlation_id")
    if not recorded["correlation_id"].is_sorted() or recorded["correlation_id"].n_unique() < recorded.height:
        recorded = recorded.unique("correlation_id", keep="first", maintain_order=True)
    is_bare = calls.select(pl.all_horizontal(pl.col(c).is_null() for c in columns)).to_series()
    bare = calls.filter(is_bare).drop(columns)
    joined = bare.join(recorded, on="correlation_id", how="left", maintain_order="left").select(calls.columns)
    return pl.concat([calls.filter(~is_bare), joined])


def _merge_ranges(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of two frames in the order of their starts, the longest first. The first frame is in order."""
    if second.is_empty():
        return first
    merged = pl.concat([first, second.select(first.columns)], how="vertical_relaxed")
    return merged.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)


def _concat_activities(
    activities: devices.GpuActivities, frames: Mapping[str, pl.DataFrame]
) -> dict[str, pl.DataFrame]:
    """Return the tables of the activities of GPUs and of TPU cores. Tables without rows are left out."""
    tables = {name: [convert_to_frame(table)] for name, table in activities.tables.items()}
    for name, frame in frames.items():
        if frame.height:
            tables.setdefault(name, []).append(frame)
    return {name: pl.concat(parts, how="diagonal_relaxed") for name, parts in tables.items()}


def _find_first_free_id(calls: pl.DataFrame, activities: devices.GpuActivities) -> int:
    """Return a correlation id from which on no id is used."""
    used = [calls["correlation_id"].max()]
    if activities.annotations.num_rows:
        used.append(convert_to_frame(activities.annotations)["correlation_id"].max())
    return max((int(number) for number in used if isinstance(number, int)), default=0) % _MAX_ID + 1


def _describe_ranges(ranges: pl.DataFrame) -> pl.DataFrame:
    """Add the declared columns of the domain and of the payload."""
    return ranges.with_columns(
        domain_id=pl.col("domain").replace_strict(thunks.DOMAINS, default=0, return_dtype=pl.Int64),
        payload_type=pl.when(pl.col("payload").is_not_null()).then(pl.lit("json")),
        payload_text="payload",
    )


def _build_api_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the API calls. The name is null if the profiler recorded that of a kernel instead of the function."""
    name = pl.col("recorded").cast(pl.String).str.extract(_API, 0)
    is_driver = name.str.contains(r"^cu[A-Z]")
    api = pl.when(is_driver).then(pl.lit("CUDA driver")).when(name.str.starts_with("cuda")).then(pl.lit("CUDA runtime"))
    hip = api.when(name.str.starts_with("hip")).then(pl.lit("HIP runtime"))
    distinct = calls.select(recorded=pl.col("name").unique()).with_columns(api=hip, name=name)
    columns = calls.select("thread_id", "start_ns", "end_ns", "correlation_id", recorded="name")
    return columns.join(distinct, on="recorded", how="left", nulls_equal=True, maintain_order="left").drop("recorded")
