"""Declare the tracks of a timeline: their names, their order, and the events on each track.

A viewer shows processes (``pid``), which contain threads (``tid``). tracekit shows each ``TrackGroup`` as a process of
the viewer, and each lane of a track as a thread:

.. code-block:: text

    python · 1234                      CPU side of a process, with the pid of the operating system
      NVTX start/end [domain]          start/end ranges, on lanes
      NVTX [domain] · python 1234      push/pop ranges and marks of each thread
      MPI · python 1234                MPI calls of each thread; likewise OpenMP, OpenACC, UCX, libraries, graphics
      CUDA API · python 1234           API calls of each thread
      CUDA graphs · python 1234        creation of graphs; likewise compilation, overhead of the profiler
      OS runtime · python 1234         calls of the OS runtime of each thread, and likewise system calls
      thread state · python 1234       when the thread ran on which CPU
      CPU samples · python 1234        samples of the thread with their call stacks, and likewise Python samples
      communication · rank 0           collectives and messages that the rank logged, on lanes
    GPU 0 NVIDIA H200 · pid 1234       activities of that process on one device
      stream 7                         kernels, memcpys, memsets and graph launches, on lanes
      stream 7 · CUDA events           CUDA events
    GPU 0 … · NVTX and sync · pid 1234 ranges and waits of that process that refer to the device
      NVTX · stream 7                  projections of ranges
      stream 7 · sync                  synchronizations
    GPU 0 NVIDIA H200 · metrics        counters of GPU metrics, and of the memory in use by kind
    Operating System · counters        counters of events of the operating system, a processor or the SoC
    /device:GPU:0 · run                node executions that TensorFlow traced, by thread, on lanes

Lanes are numbered from 1 across the whole file in this order. The lane number is used as ``tid``, because Perfetto
sorts threads by ``tid`` and ignores the sort index. The thread id of the operating system is part of the thread name.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit import schemas
from tracekit.registry.tables import scan_table
from tracekit.text.makers import is_without_cuda, list_makers_of_capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.registry.tables import Tables

    Id = int | None

FIRST_PID = 4_194_305
"""First pid of groups that are not processes. It is larger than any process id of Linux, which is at most 2^22."""
SHOWN_PIDS = range(-(1 << 31), 1 << 31)
"""Pids that viewers can show. Perfetto traces store pids as 32-bit integers."""
AFTER_PROCESSES = 1 << 40
"""First sort key of groups that follow all processes. It is larger than any process id."""
NO_STREAM = (1 << 32) - 1
"""Stream id that CUPTI records for a synchronization that does not wait for a single stream."""
_CUDA_API, _OTHER_API = "CUDA API", "API"
"""Labels of the tracks of API calls on GPUs of NVIDIA or unknown makers, and on those of other makers."""


class TrackGroup(NamedTuple):
    """A group of tracks, which viewers show as a process.

    Attributes:
        process_id: Process id if the group is the CPU side of a process, or else None.
        name: Name of the group.
        order: Sort key of the group.
    """

    process_id: int | None
    name: str
    order: tuple[int, ...]


class Track(NamedTuple):
    """A track, which consists of one or more lanes. Viewers show each lane as a thread.

    Attributes:
        group: The group that contains the track.
        name: Name of the track, or None for counters, which belong to the group itself.
        order: Sort key within the group.
        attributes: Names and values of the columns that have the same value for all events of the track. They are
            written to Chrome traces, and tracekit restores the columns from them when it reads such a trace.
    """

    group: TrackGroup
    name: str | None
    order: tuple[int, ...] = ()
    attributes: tuple[tuple[str, int | str | None], ...] = ()


class Placement(NamedTuple):
    """A rule that assigns events to tracks.

    Attributes:
        keys: Columns that identify a track.
        make_track: Function that takes the ``TrackNames`` and the value of each key, and returns a track.
        nests: Whether slices on the same lane may be nested. Otherwise, nested slices are on different lanes.
    """

    keys: tuple[str, ...]
    make_track: Callable[..., Track]
    nests: bool = False


@dataclass(slots=True)
class TrackNames:
    """Names of the processes, threads, devices and streams of a trace, from which tracks are named.

    Attributes:
        processes: Name of each process, by process id.
        threads: Name of each thread, by process id and thread id.
        devices: Name of each device, by device id.
        streams: Name of each stream, by process id, context id and stream id.
        contexts: Device id of each context, by process id and context id.
        runs: Index of each TensorFlow device, by run and name of the device.
        components: Index of each component whose events were counted, by name and instance.
        api_label: Label of the tracks of API calls.
    """

    processes: dict[int, str]
    threads: dict[tuple[int, int], str]
    devices: dict[int, str]
    streams: dict[tuple[int, int | None, int | None], str]
    contexts: dict[tuple[int, int | None], int | None]
    runs: dict[tuple[str, str], int] = field(default_factory=dict)
    components: dict[tuple[str | None, int | None], int] = field(default_factory=dict)
    api_label: str = _CUDA_API

    @classmethod
    def read(cls, tables: Tables) -> TrackNames:
        """Read the names of processes, threads, devices and streams from the tables of a trace."""

        def read_rows(table: str, *columns: str) -> list[tuple[Any, ...]]:
            return scan_table(tables, table).select(pl.col(columns)).collect().rows()

        def read_names(table: str, *columns: str) -> list[tuple[Any, ...]]:
            """Return rows with ids and the last nonempty name of these ids. The last column contains the names."""
            *keys, name = columns
            named = scan_table(tables, table).select(columns).filter(pl.col(name).cast(pl.String) != "")
            return named.unique(keys, keep="last").collect().rows()

        info = dict(read_rows("capture_info", "name", "value"))
        gpus = [{"name": name, "chip": chip} for name, chip in read_rows("devices", "name", "chip")]
        streams = read_rows("streams", "process_id", "context_id", "stream_id", "name")
        return cls(
            processes=dict(read_names("processes", "process_id", "name")),
            threads={(p, t): name for p, t, name in read_names("threads", "process_id", "thread_id", "name")},
            devices={d: name for d, name in read_rows("devices", "device_id", "name") if name},
            streams={(p, c, s): name for p, c, s, name in streams if name},
            contexts={(p, c): d for p, c, d in read_rows("contexts", "process_id", "context_id", "device_id")},
            api_label=_OTHER_API if is_without_cuda(list_makers_of_capture(info, gpus)) else _CUDA_API,
        )

    def create_cpu_group(self, process: int | None) -> TrackGroup:
        """Return the track group of the CPU side of a process."""
        pid = process or 0
        return TrackGroup(pid, self.processes.get(pid, "process" if pid else "unknown process"), (pid, 0))

    def create_gpu_group(self, process: int | None, device: int) -> TrackGroup:
        """Return the track group of the activities of a process on a GPU."""
        name = _append_process(self.format_device_name(device), process)
        return TrackGroup(None, name, (process or 0, 1, device, 0))

    def create_gpu_range_group(self, process: int | None, device: int) -> TrackGroup:
        """Return the track group of the ranges and waits of a process that refer to a GPU.

        They are not in the group of the GPU, because a viewer summarizes the slices of a collapsed group: the GPU would
        look busy while it is idle.
        """
        name = _append_process(f"{self.format_device_name(device)} · NVTX and sync", process)
        return TrackGroup(None, name, (process or 0, 1, device, 1))

    def create_metrics_group(self, device: int) -> TrackGroup:
        """Return the track group of the counters of a GPU."""
        return TrackGroup(None, f"{self.format_device_name(device)} · metrics", (AFTER_PROCESSES, device))

    def create_tensorflow_group(self, run: str, device: str) -> TrackGroup:
        """Return the track group of the TensorFlow node executions on one device in one run."""
        number = self.runs.setdefault((run, device), len(self.runs))
        return TrackGroup(None, f"{device} · {run}", (AFTER_PROCESSES + 1, number))

    def create_component_group(self, component: str | None, instance: int | None) -> TrackGroup:
        """Return the track group of the counters of a machine component, such as a processor."""
        number = self.components.setdefault((component, instance), len(self.components))
        name = " ".join(str(part) for part in (component or "machine", instance) if part is not None)
        return TrackGroup(None, f"{name} · counters", (AFTER_PROCESSES + 2, number))

    def format_device_name(self, device: int) -> str:
        """Return the display name of a GPU, such as ``GPU 0 NVIDIA H200``."""
        return f"GPU {device} {self.devices.get(device, '')}".rstrip()

    def format_thread_name(self, process: int | None, thread: int | None) -> str:
        """Return the display name of a thread, such as ``python 1234``."""
        if thread is None:
            return "unknown thread"
        return f"{self.threads.get((process or 0, thread), 'thread')} {thread}"

    def format_stream_name(self, process: int | None, context: int | None, stream: int | None) -> str:
        """Return the display name of a stream. It includes the context if the process has several contexts."""
        pid = process or 0
        label = "unknown stream" if stream is None else "context" if stream == NO_STREAM else f"stream {stream}"
        parts = [label, self.streams.get((pid, context, stream))]
        if context is not None and sum(owner == pid for owner, _ in self.contexts) > 1:
            parts.insert(1, f"context {context}")
        return " · ".join(filter(None, parts))


@dataclass(slots=True)
class Numbering:
    """The pids used in a file, and the numbers of lanes and track groups in the file so far.

    Attributes:
        pids: The pids used in the file so far.
        lanes: Number of lanes in the file so far.
        groups: Number of track groups in the file so far.
    """

    pids: set[int] = field(default_factory=set)
    lanes: int = 0
    groups: int = 0

    def assign_pids(self, groups: Sequence[TrackGroup]) -> dict[TrackGroup, int]:
        """Return a pid for each track group, and mark these pids as used.

        The pid of a process is its process id if this id is unused and viewers can show it. All other groups get unused
        pids from ``FIRST_PID``: first the other processes by process id, then the groups that are not processes.
        """
        ids = {group: group.process_id for group in groups}
        pids = {g: n for g, n in ids.items() if n is not None and n in SHOWN_PIDS and n not in self.pids}
        self.pids.update(pids.values())
        others = sorted((g for g in groups if g not in pids), key=lambda g: (ids[g] is None, ids[g] or 0))
        unused = (pid for pid in itertools.count(FIRST_PID) if pid not in self.pids)
        pids |= zip(others, unused, strict=False)
        self.pids.update(pids.values())
        return pids


class ShownProcess(NamedTuple):
    """A track group as viewers show it: a process with a pid, a name and a sort index."""

    pid: int
    name: str
    sort_index: int


class ShownThread(NamedTuple):
    """A lane as viewers show it: a thread of a process.

    Attributes:
        lane_id: Id of the lane.
        pid: Pid of the process.
        tid: Number of the lane, in the order in which viewers show lanes.
        name: Name of the lane, or None for the lane of counters, which belong to the process itself.
        attributes: Values, by column name, of the columns that have the same value for all events of the track.
    """

    lane_id: int
    pid: int
    tid: int
    name: str | None
    attributes: dict[str, int | str]


class _NumberedLane(NamedTuple):
    """A lane with its place in the file.

    Attributes:
        tid: Number of the lane in the file.
        track: The track that contains the lane.
        lane: Number of the lane in its track, counted from 0.
        lane_id: Id of the lane.
    """

    tid: int
    track: Track
    lane: int
    lane_id: int


class LaneRegistry:
    """The lanes of all tracks of a trace.

    A lane has an id, in the order of creation, and a ``tid``, in the order in which viewers show lanes.
    """

    def __init__(self, names: TrackNames) -> None:
        self.names = names
        self._lane_ids: dict[tuple[Track, int], int] = {}
        self._prefix, self._first_tid, self._first_group = "", 1, 0
        self._pids: dict[TrackGroup, int] = {}

    def continue_numbering(self, prefix: str, numbering: Numbering) -> None:
        """Number the track groups and lanes of this trace after those of earlier traces in the file.

        All lanes must exist.

        Args:
            prefix: Prefix of the names of all groups.
            numbering: The numbers used in the file so far. The numbers of this trace are added.
        """
        self._prefix, self._first_tid, self._first_group = prefix, numbering.lanes + 1, numbering.groups
        self._pids = numbering.assign_pids(self._list_groups())
        numbering.lanes += len(self._lane_ids)
        numbering.groups += len(self._pids)

    def get_or_create_lane_ids(self, track: Track, lane_count: int) -> list[int]:
        """Return the ids of the first ``lane_count`` lanes of a track. Lanes that do not exist are created."""
        return [self._lane_ids.setdefault((track, lane), len(self._lane_ids)) for lane in range(lane_count)]

    def get_pid(self, process_id: int | None) -> int | None:
        """Return the pid with which viewers show a process, or None if they cannot. All lanes must exist."""
        pid = self._assign_pids_to_groups().get(self.names.create_cpu_group(process_id), process_id)
        return pid if pid in SHOWN_PIDS else None

    def iterate_processes(self) -> Iterator[ShownProcess]:
        """Yield the track groups as processes, in the order in which viewers show them. All lanes must exist."""
        pids = self._assign_pids_to_groups()
        ordered = sorted(self._list_groups(), key=lambda group: group.order)
        for nth, group in enumerate(ordered, self._first_group):
            pid = pids[group]
            shown = group.name if group.process_id in (None, pid) else f"{group.name} · pid {group.process_id}"
            yield ShownProcess(pid, f"{self._prefix}{shown}", nth)

    def iterate_threads(self) -> Iterator[ShownThread]:
        """Yield the lanes of all tracks as threads, in the order in which viewers show them. All lanes must exist."""
        pids = self._assign_pids_to_groups()
        for tid, track, lane, lane_id in self._iterate_lanes_in_order():
            name = f"{track.name} · lane {lane + 1}" if track.name is not None and lane else track.name
            attributes = {column: value for column, value in track.attributes if value is not None}
            yield ShownThread(lane_id, pids[track.group], tid, name, attributes)

    def _list_groups(self) -> list[TrackGroup]:
        """Return the track groups in the order of creation."""
        return list(dict.fromkeys(track.group for track, _ in self._lane_ids))

    def _assign_pids_to_groups(self) -> dict[TrackGroup, int]:
        """Return the pid of each track group.

        If ``continue_numbering`` was called, the pids follow those of the traces before this trace in the file.
        Otherwise, this trace is the only one in the file.
        """
        return self._pids or Numbering().assign_pids(self._list_groups())

    def _iterate_lanes_in_order(self) -> Iterator[_NumberedLane]:
        """Yield every lane, in the order in which viewers show lanes."""
        ordered = sorted(self._lane_ids.items(), key=lambda p: (p[0][0].group.order, p[0][0].order, p[0][1], p[1]))
        for tid, ((track, lane), lane_id) in enumerate(ordered, self._first_tid):
            yield _NumberedLane(tid, track, lane, lane_id)


NVTX, MPI, OPENMP, OPENACC, UCX, LIBRARIES, GRAPHICS, GRAPHICS_GPU, GRAPHICS_DEBUG = range(1, 10)
API, GRAPHS, GRAPH_NODES, JIT, OVERHEADS, CUDA_OVERHEADS, OSRT, SYSCALLS, STATES, SAMPLES, PYTHON = range(10, 21)
PROJECTED_START_END, PROJECTED, ACTIVITIES, SYNC, EVENTS = range(5)
"""Sort keys of the tracks of a thread and of a stream."""
PAGE_FAULTS, MEMORY_POOLS, CONTEXT_SWITCHES = range(1 << 40, (1 << 40) + 3)
"""Sort keys of the tracks of a GPU that follow all contexts."""
PUSH_POP, PROJECTION = "push_pop", "projection"


def _format_range_label(domain_id: int, domain: str | None) -> str:
    """Return the label of the ranges in an NVTX domain: ``NVTX [name]``, or ``NVTX`` for the default domain."""
    name = domain or (f"domain {domain_id}" if domain_id else None)
    return "NVTX" if name is None else f"NVTX [{name}]"


def _append_process(name: str, process: int | None) -> str:
    return name if process is None else f"{name} · pid {process}"


def _order_stream(context: int | None, stream: int | None, order: int) -> tuple[int, int, int]:
    """Return the sort key of a track of a stream. Unknown streams come first."""
    return (-1 if context is None else context, -1 if stream is None else stream, order)


def _build_thread_ids(process: int | None, thread: int | None) -> dict[str, int | None]:
    """Return the ids that identify a thread, by column name."""
    return {"process_id": process, "thread_id": thread}


def _build_stream_ids(process: Id, device: int, context: Id, stream: Id) -> dict[str, int | None]:
    """Return the ids that identify a stream, by column name."""
    return {"process_id": process, "device_id": device, "context_id": context, "stream_id": stream}


def _build_track_attributes(
    columns: dict[str, int | None], kind: str | None = None
) -> tuple[tuple[str, int | str | None], ...]:
    """Return the attributes of a track: the given columns, and the kind of its ranges (None for other events)."""
    return (*columns.items(), ("kind", kind))


def _create_nvtx_track(
    names: TrackNames, process: int | None, thread: int | None, domain_id: int, domain: str | None
) -> Track:
    """Return the track of the push/pop ranges and marks of one NVTX domain on one thread."""
    name = f"{_format_range_label(domain_id, domain)} · {names.format_thread_name(process, thread)}"
    attributes = _build_track_attributes({**_build_thread_ids(process, thread), "domain_id": domain_id}, PUSH_POP)
    return Track(names.create_cpu_group(process), name, (1, thread or 0, NVTX, domain_id), attributes)


def _create_start_end_track(names: TrackNames, process: int | None, domain_id: int, domain: str | None) -> Track:
    """Return the track of the start/end ranges of one NVTX domain in one process."""
    attributes = _build_track_attributes({"process_id": process, "domain_id": domain_id}, "start_end")
    return Track(
        names.create_cpu_group(process),
        f"{_format_range_label(domain_id, domain)} start/end",
        (0, domain_id),
        attributes,
    )


def create_thread_track_rule(label: str, order: int) -> Placement:
    """Return a rule that assigns events to one track per thread.

    Args:
        label: Label of the tracks, which precedes the name of the thread.
        order: Sort key of the track among the tracks of its thread.
    """

    def make_track(names: TrackNames, process: int | None, thread: int | None) -> Track:
        shown = names.api_label if order == API else label
        name = f"{shown} · {names.format_thread_name(process, thread)}"
        attributes = _build_track_attributes(_build_thread_ids(process, thread))
        return Track(names.create_cpu_group(process), name, (1, thread or 0, order), attributes)

    return Placement(_THREAD, make_track, nests=True)


def _create_projection_track(names: TrackNames, process: Id, device: int, context: Id, stream: Id) -> Track:
    """Return the track of the projections of push/pop ranges on a stream."""
    name = f"NVTX · {names.format_stream_name(process, context, stream)}"
    attributes = _build_track_attributes(_build_stream_ids(process, device, context, stream), PROJECTION)
    return Track(
        names.create_gpu_range_group(process, device),
        name,
        _order_stream(context, stream, PROJECTED),
        attributes,
    )


def _create_start_end_projection_track(
    names: TrackNames, process: int | None, device: int, context: int, stream: int
) -> Track:
    """Return the track of the projections of start/end ranges on a stream."""
    name = f"NVTX start/end · {names.format_stream_name(process, context, stream)}"
    attributes = _build_track_attributes(_build_stream_ids(process, device, context, stream), PROJECTION)
    group = names.create_gpu_range_group(process, device)
    return Track(group, name, _order_stream(context, stream, PROJECTED_START_END), attributes)


def _create_stream_track(names: TrackNames, process: Id, device: int, context: Id, stream: Id) -> Track:
    """Return the track of the activities on a stream."""
    name = names.format_stream_name(process, context, stream)
    attributes = _build_track_attributes(_build_stream_ids(process, device, context, stream))
    return Track(names.create_gpu_group(process, device), name, _order_stream(context, stream, ACTIVITIES), attributes)


def _create_sync_track(names: TrackNames, process: Id, device: int, context: Id, stream: Id) -> Track:
    """Return the track of the synchronizations of a stream.

    The device is taken from the context, because CUPTI records device 0 even in processes that use another device.
    """
    group = names.create_gpu_range_group(process, names.contexts.get((process or 0, context)) or device)
    attributes = _build_track_attributes(_build_stream_ids(process, device, context, stream))
    return Track(
        group,
        f"{names.format_stream_name(process, context, stream)} · sync",
        _order_stream(context, stream, SYNC),
        attributes,
    )


def _create_cuda_event_track(names: TrackNames, process: Id, device: int, context: Id, stream: Id) -> Track:
    """Return the track of the CUDA events on a stream."""
    name = f"{names.format_stream_name(process, context, stream)} · CUDA events"
    attributes = _build_track_attributes(_build_stream_ids(process, device, context, stream))
    return Track(names.create_gpu_group(process, device), name, _order_stream(context, stream, EVENTS), attributes)


def _create_page_fault_track(names: TrackNames, process: int | None, device: int) -> Track:
    """Return the track of the page faults of a process on a GPU."""
    attributes = _build_track_attributes({"process_id": process, "device_id": device})
    return Track(names.create_gpu_group(process, device), "page faults", (PAGE_FAULTS,), attributes)


def _create_memory_pool_track(names: TrackNames, process: int | None, device: int) -> Track:
    """Return the track of the memory pools of a process on a GPU."""
    attributes = _build_track_attributes({"process_id": process, "device_id": device})
    return Track(names.create_gpu_group(process, device), "memory pools", (MEMORY_POOLS,), attributes)


def _create_context_switch_track(names: TrackNames, process: int | None, device: int | None) -> Track:
    """Return the track of the context switches of a process on a GPU."""
    attributes = _build_track_attributes({"process_id": process, "device_id": device})
    return Track(names.create_gpu_group(process, device or 0), "context switches", (CONTEXT_SWITCHES,), attributes)


def _create_diagnostics_track(names: TrackNames, process: int | None) -> Track:
    """Return the track of the profiler messages about a process."""
    return Track(names.create_cpu_group(process), "diagnostics", (3,), _build_track_attributes({"process_id": process}))


def _create_communication_track(names: TrackNames, process: int | None, rank: int | None) -> Track:
    """Return the track of the collectives and messages that a process or rank logged."""
    name = "communication" if rank is None else f"communication · rank {rank}"
    attributes = _build_track_attributes({"process_id": process})
    return Track(names.create_cpu_group(process), name, (4, -1 if rank is None else rank), attributes)


def _create_cpu_page_fault_track(names: TrackNames, process: int | None) -> Track:
    """Return the track of the CPU page faults that a process causes in unified memory."""
    return Track(names.create_cpu_group(process), "page faults", (2,), _build_track_attributes({"process_id": process}))


def _create_metrics_track(names: TrackNames, device: int) -> Track:
    """Return the unnamed track of the counters of a GPU."""
    return Track(names.create_metrics_group(device), None, attributes=_build_track_attributes({"device_id": device}))


def _create_counter_track(names: TrackNames, process: int | None) -> Track:
    """Return the unnamed track of the counters of a process."""
    return Track(names.create_cpu_group(process), None, attributes=_build_track_attributes({"process_id": process}))


def _create_component_track(names: TrackNames, component: str | None, instance: int | None) -> Track:
    """Return the unnamed track of the counters of a machine component, such as a processor."""
    return Track(names.create_component_group(component, instance), None)


def _create_tensorflow_track(names: TrackNames, run: str | None, device: str | None, thread: int | None) -> Track:
    """Return the track of the TensorFlow node executions on one thread of a device."""
    name = "executor" if thread is None else f"thread {thread}"
    return Track(names.create_tensorflow_group(run or ".", device or "unknown device"), name, (thread or 0,))


_THREAD = schemas.get_key("thread")
_DOMAIN = ("domain_id", "domain")
_STREAM = ("process_id", *schemas.get_key("stream"))

NVTX_TRACKS = Placement((*_THREAD, *_DOMAIN), _create_nvtx_track, nests=True)
START_END_TRACKS = Placement(("process_id", *_DOMAIN), _create_start_end_track)
API_TRACKS = create_thread_track_rule(_CUDA_API, API)
OSRT_TRACKS = create_thread_track_rule("OS runtime", OSRT)
PROJECTED_TRACKS = Placement(_STREAM, _create_projection_track, nests=True)
PROJECTED_START_END_TRACKS = Placement(_STREAM, _create_start_end_projection_track)
STREAM_TRACKS = Placement(_STREAM, _create_stream_track)
SYNC_TRACKS = Placement(_STREAM, _create_sync_track)
EVENT_TRACKS = Placement(_STREAM, _create_cuda_event_track)
PAGE_FAULT_TRACKS = Placement(("process_id", "device_id"), _create_page_fault_track)
CPU_PAGE_FAULT_TRACKS = Placement(("process_id",), _create_cpu_page_fault_track)
MEMORY_POOL_TRACKS = Placement(("process_id", "device_id"), _create_memory_pool_track)
CONTEXT_SWITCH_TRACKS = Placement(("process_id", "device_id"), _create_context_switch_track)
DIAGNOSTICS_TRACKS = Placement(("process_id",), _create_diagnostics_track)
COMMUNICATION_TRACKS = Placement(("process_id", "rank"), _create_communication_track)
METRIC_TRACKS = Placement(("device_id",), _create_metrics_track)
COUNTER_TRACKS = Placement(("process_id",), _create_counter_track)
COMPONENT_TRACKS = Placement(("component", "instance"), _create_component_track)
TENSORFLOW_TRACKS = Placement(("run", "device", "thread_id"), _create_tensorflow_track)
