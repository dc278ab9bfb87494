"""Format the metadata events that name and order the processes and threads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.exporters.timeline.tracks import LaneRegistry


def format_pid_tid_members(lanes: LaneRegistry) -> pl.Series:
    """Return the JSON members ``"pid":…,"tid":…`` of all lanes, by lane id. No lane may be added afterwards."""
    members = {thread.lane_id: f'"pid":{thread.pid},"tid":{thread.tid}' for thread in lanes.iterate_threads()}
    return pl.Series([members[lane_id] for lane_id in range(len(members))], dtype=pl.String)


def format_metadata_events(lanes: LaneRegistry) -> Iterator[str]:
    """Yield the JSON events that name and order the processes and threads."""
    for process in lanes.iterate_processes():
        yield _format_metadata_event("process_name", process.pid, 0, name=process.name)
        yield _format_metadata_event("process_sort_index", process.pid, 0, sort_index=process.sort_index)
    for thread in lanes.iterate_threads():
        if thread.name is not None:
            yield _format_metadata_event("thread_name", thread.pid, thread.tid, name=thread.name, **thread.attributes)
            yield _format_metadata_event("thread_sort_index", thread.pid, thread.tid, sort_index=thread.tid)


def _format_metadata_event(name: str, pid: int, tid: int, /, **args: str | int) -> str:
    """Return a JSON event that names or orders a process or thread."""
    event = {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)
