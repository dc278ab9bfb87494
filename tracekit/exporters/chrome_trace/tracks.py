"""Tracks: which row of the viewer an event lies on, how the rows are called, and in which order they stand.

A viewer knows processes (``pid``) with threads (``tid``) in them. Here a viewer's process is a ``Group``:

.. code-block:: text

    python · 1234                      CPU side of a process; pid is the system's
      NVTX start/end [domain]          ranges that may cross threads, on lanes
      NVTX [domain] · python 1234      then thread by thread: ranges and marks,
      CUDA API · python 1234           API calls,
      OS runtime · python 1234         calls of the OS runtime
    GPU 0 NVIDIA H200 · pid 1234       what that process did on one device
      NVTX · stream 7                  ranges, projected on what they launched there
      stream 7                         kernels, copies, sets and graphs; overlaps on further lanes
      stream 7 · sync                  waits
      stream 7 · CUDA events
    GPU 0 NVIDIA H200 · metrics        counters
    /device:GPU:0 · run                executions of nodes that TensorFlow traced, by thread, on lanes

Thread numbers count the lanes of the whole file from 1 in this order, for Perfetto shows threads by their number and
knows no sort index; the system's number is in the name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.registry import View

FIRST_PID = 4_194_305
"""First number of a group that is no process: above the largest that Linux gives (2^22)."""
AFTER_PROCESSES = 1 << 40
NO_STREAM = (1 << 32) - 1
"""What CUPTI gives where a wait is not for one stream."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process of the viewer."""

    pid: int
    name: str
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Track:
    """A row of the viewer, before overlaps spread it over lanes; without a name it is no row of its own.

    ``about`` tells a reader of the file what lies on it: columns, and their value on the track.
    """

    group: Group
    name: str | None
    order: tuple[int, ...] = ()
    about: tuple[tuple[str, int | str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """How events are put on tracks.

    Attributes:
        keys: Columns that tell the tracks apart.
        track: Makes a track of the machine and one value of each key.
        nests: Whether slices may lie within slices of the same track; otherwise overlaps go on lanes.
    """

    keys: tuple[str, ...]
    track: Callable[..., Track]
    nests: bool = False


@dataclass(slots=True)
class Machine:
    """Names of processes, threads, devices and streams; and the groups of GPU tracks met so far."""

    processes: dict[int, str]
    threads: dict[tuple[int, int], str]
    devices: dict[int, str]
    streams: dict[tuple[int, int, int], str]
    contexts: dict[tuple[int, int], int | None]
    runs: dict[tuple[str, str], int] = field(default_factory=dict)
    groups: dict[tuple[int, ...], Group] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View) -> Machine:
        """Read the names from the tables of a trace."""

        def rows(table: str, *columns: str) -> list[tuple[Any, ...]]:
            return view.frame(table).select(pl.col(columns)).collect().rows()

        streams = rows("streams", "process_id", "context_id", "stream_id", "name")
        return cls(
            processes={p: name for p, name in rows("processes", "process_id", "name") if name},
            threads={(p, t): name for p, t, name in rows("threads", "process_id", "thread_id", "name") if name},
            devices={d: name for d, name in rows("devices", "device_id", "name") if name},
            streams={(p, c, s): name for p, c, s, name in streams if name},
            contexts={(p, c): d for p, c, d in rows("contexts", "process_id", "context_id", "device_id")},
        )

    def cpu(self, process: int | None) -> Group:
        """Group of the CPU tracks of a process."""
        pid = process or 0
        return Group(pid, self.processes.get(pid, "process" if pid else "unknown process"), (pid, 0))

    def gpu(self, process: int | None, device: int) -> Group:
        """Group of what a process did on a device."""
        return self._group(f"{self.device(device)} · pid {process or 0}", (process or 0, 1, device))

    def metrics(self, device: int) -> Group:
        """Group of the counters of a device."""
        return self._group(f"{self.device(device)} · metrics", (AFTER_PROCESSES, device))

    def traced(self, run: str, device: str) -> Group:
        """Group of what TensorFlow traced on a device in a run."""
        number = self.runs.setdefault((run, device), len(self.runs))
        return self._group(f"{device} · {run}", (AFTER_PROCESSES + 1, number))

    def device(self, device: int) -> str:
        """Name of a device."""
        return f"GPU {device} {self.devices.get(device, '')}".rstrip()

    def thread(self, process: int | None, thread: int | None) -> str:
        """Name of a thread."""
        if thread is None:
            return "unknown thread"
        return f"{self.threads.get((process or 0, thread), 'thread')} {thread}"

    def stream(self, process: int | None, context: int, stream: int) -> str:
        """Name of a stream; its context is told if the process has several."""
        pid = process or 0
        parts = ["context" if stream == NO_STREAM else f"stream {stream}", self.streams.get((pid, context, stream))]
        if sum(owner == pid for owner, _ in self.contexts) > 1:
            parts.insert(1, f"context {context}")
        return " · ".join(filter(None, parts))

    def _group(self, name: str, order: tuple[int, ...]) -> Group:
        """Return the group of that order; a new one gets a number that no process of the system has."""
        return self.groups.setdefault(order, Group(FIRST_PID + len(self.groups), name, order))


class Book:
    """The lanes of all tracks: their places, numbered as they are met, and their ``tid``, in the viewer's order."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._places: dict[tuple[Track, int], int] = {}

    def places(self, track: Track, lanes: int) -> list[int]:
        """Return the places of the first lanes of a track."""
        return [self._places.setdefault((track, lane), len(self._places)) for lane in range(lanes)]

    def texts(self) -> pl.Series:
        """Return the JSON members ``"pid":…,"tid":…`` of every place; to be called when all are known."""
        members = {place: f'"pid":{track.group.pid},"tid":{tid}' for tid, track, _, place in self._ordered()}
        return pl.Series([members[place] for place in range(len(members))], dtype=pl.String)

    def metadata(self) -> Iterator[str]:
        """Give the events that name the tracks and put them in order."""
        groups = sorted({track.group for track, _ in self._places}, key=lambda g: (g.order, g.pid))
        for nth, group in enumerate(groups):
            yield _metadata("process_name", group.pid, 0, name=group.name)
            yield _metadata("process_sort_index", group.pid, 0, sort_index=nth)
        for tid, track, lane, _ in self._ordered():
            if track.name is not None:
                name = f"{track.name} · lane {lane + 1}" if lane else track.name
                about = {column: value for column, value in track.about if value is not None}
                yield _metadata("thread_name", track.group.pid, tid, name=name, **about)
                yield _metadata("thread_sort_index", track.group.pid, tid, sort_index=tid)

    def _ordered(self) -> Iterator[tuple[int, Track, int, int]]:
        """Give tid, track, lane and place of every lane; viewers show them by their tid."""
        ordered = sorted(self._places.items(), key=lambda p: (p[0][0].group.order, p[0][0].order, p[0][1], p[1]))
        for tid, ((track, lane), place) in enumerate(ordered, 1):
            yield tid, track, lane, place


def _metadata(what: str, pid: int, tid: int, /, **args: str | int) -> str:
    event = {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


START_END, NVTX, API, OSRT = range(4)
PROJECTED_START_END, PROJECTED, BUSY, SYNC, EVENTS = range(5)
PUSH_POP, PROJECTION = "push_pop", "projection"


def _range_label(domain_id: int, domain: str | None) -> str:
    """Name of an NVTX domain on a track; the default domain has none."""
    name = domain or (f"domain {domain_id}" if domain_id else None)
    return "NVTX" if name is None else f"NVTX [{name}]"


def _on_thread(process: int | None, thread: int | None) -> dict[str, int | None]:
    return {"process_id": process, "thread_id": thread}


def _on_stream(process: int | None, device: int, context: int, stream: int) -> dict[str, int | None]:
    return {"process_id": process, "device_id": device, "context_id": context, "stream_id": stream}


def _about(columns: dict[str, int | None], kind: str | None = None) -> tuple[tuple[str, int | str | None], ...]:
    return (*columns.items(), ("kind", kind))


def _nvtx(machine: Machine, process: int | None, thread: int | None, domain_id: int, domain: str | None) -> Track:
    name = f"{_range_label(domain_id, domain)} · {machine.thread(process, thread)}"
    about = _about({**_on_thread(process, thread), "domain_id": domain_id}, PUSH_POP)
    return Track(machine.cpu(process), name, (1, thread or 0, NVTX, domain_id), about)


def _start_end(machine: Machine, process: int | None, domain_id: int, domain: str | None) -> Track:
    about = _about({"process_id": process, "domain_id": domain_id}, "start_end")
    return Track(machine.cpu(process), f"{_range_label(domain_id, domain)} start/end", (0, domain_id), about)


def _api(machine: Machine, process: int | None, thread: int | None) -> Track:
    about = _about(_on_thread(process, thread))
    return Track(machine.cpu(process), f"CUDA API · {machine.thread(process, thread)}", (1, thread or 0, API), about)


def _osrt(machine: Machine, process: int | None, thread: int | None) -> Track:
    about = _about(_on_thread(process, thread))
    return Track(machine.cpu(process), f"OS runtime · {machine.thread(process, thread)}", (1, thread or 0, OSRT), about)


def _projected(machine: Machine, process: int | None, device: int, context: int, stream: int) -> Track:
    name = f"NVTX · {machine.stream(process, context, stream)}"
    about = _about(_on_stream(process, device, context, stream), PROJECTION)
    return Track(machine.gpu(process, device), name, (context, stream, PROJECTED), about)


def _projected_start_end(machine: Machine, process: int | None, device: int, context: int, stream: int) -> Track:
    name = f"NVTX start/end · {machine.stream(process, context, stream)}"
    about = _about(_on_stream(process, device, context, stream), PROJECTION)
    return Track(machine.gpu(process, device), name, (context, stream, PROJECTED_START_END), about)


def _stream(machine: Machine, process: int | None, device: int, context: int, stream: int) -> Track:
    name = machine.stream(process, context, stream)
    about = _about(_on_stream(process, device, context, stream))
    return Track(machine.gpu(process, device), name, (context, stream, BUSY), about)


def _sync(machine: Machine, process: int | None, device: int, context: int, stream: int) -> Track:
    """Waits lie with the device of their context: the one that CUPTI gives them is 0 in processes that use another."""
    group = machine.gpu(process, machine.contexts.get((process or 0, context)) or device)
    about = _about(_on_stream(process, device, context, stream))
    return Track(group, f"{machine.stream(process, context, stream)} · sync", (context, stream, SYNC), about)


def _events(machine: Machine, process: int | None, device: int, context: int, stream: int) -> Track:
    name = f"{machine.stream(process, context, stream)} · CUDA events"
    about = _about(_on_stream(process, device, context, stream))
    return Track(machine.gpu(process, device), name, (context, stream, EVENTS), about)


def _metrics(machine: Machine, device: int) -> Track:
    """Counters belong to a process of the viewer, not to a thread."""
    return Track(machine.metrics(device), None)


def _traced(machine: Machine, run: str | None, device: str | None, thread: int | None) -> Track:
    name = "executor" if thread is None else f"thread {thread}"
    return Track(machine.traced(run or ".", device or "unknown device"), name, (thread or 0,))


_THREAD = ("process_id", "thread_id")
_DOMAIN = ("domain_id", "domain")
_QUEUE = ("process_id", "device_id", "context_id", "stream_id")

NVTX_TRACKS = Placement((*_THREAD, *_DOMAIN), _nvtx, nests=True)
START_END_TRACKS = Placement(("process_id", *_DOMAIN), _start_end)
API_TRACKS = Placement(_THREAD, _api, nests=True)
OSRT_TRACKS = Placement(_THREAD, _osrt, nests=True)
PROJECTED_TRACKS = Placement(_QUEUE, _projected, nests=True)
PROJECTED_START_END_TRACKS = Placement(_QUEUE, _projected_start_end)
STREAM_TRACKS = Placement(_QUEUE, _stream)
SYNC_TRACKS = Placement(_QUEUE, _sync)
EVENT_TRACKS = Placement(_QUEUE, _events)
METRIC_TRACKS = Placement(("device_id",), _metrics)
TRACED_TRACKS = Placement(("run", "device", "thread_id"), _traced)
