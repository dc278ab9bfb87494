"""Assign events to tracks, which are the threads of a process and the streams of a device.

For a GPU activity, the profiler writes the device as ``pid`` and the stream as ``tid``, and writes both again as
arguments. The process of the activity is that of the API call with the same correlation id. In files that tracekit
wrote, the metadata event that names a track also contains the process, thread, device, stream or NVTX domain of the
track.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.readers.common import columns as col
from tracekit.readers.kineto import repairs
from tracekit.readers.kineto.keys import Slot
from tracekit.system.forks import check_polars_can_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    ReadMember = Callable[[Slot], pa.Array]
    """Function that returns the collected values of a member in row order."""
    Members = Mapping[str, pa.Array | pa.ChunkedArray]

ON_CPU = repairs.ON_CPU
STREAM_SLOTS = {"device_id": Slot.DEVICE, "context_id": Slot.CONTEXT, "stream_id": Slot.STREAM}
NO_STREAM = (1 << 32) - 1
"""Stream id of synchronizations that do not wait for a single stream. The profiler writes a negative stream id."""
PROJECTION = "projection"
_TRACK = {
    "process_id": Slot.PROCESS,
    "thread_id": Slot.THREAD,
    **STREAM_SLOTS,
    "domain_id": Slot.DOMAIN_ID,
    "kind": Slot.KIND,
}
_INT32 = 1 << 31


class Tracks:
    """The tracks of all events of a file.

    Attributes:
        exported: Whether tracekit wrote the file.
        members: Values collected from the events, by table and member. Projections of NVTX ranges are not included.
        track_names: Values collected from the events that name processes and threads, by member.
    """

    def __init__(self, members: Mapping[str, Members], track_names: Members, *, exported: bool) -> None:
        self.exported = exported
        if not exported and repairs.has_text_ids(members.values()):
            check_polars_can_run()
            members, track_names = repairs.number_processes_and_devices(members, track_names)
        self.track_names = track_names
        self.members = self._drop_projections(members) if exported else repairs.replace_missing_correlation_ids(members)

    def find_values_of_calls(self, slot: Slot, process_ids: pa.Array, correlation_ids: pa.Array) -> pa.Array | None:
        """Return the value of a JSON member in the API call that launched each activity, such as the grid.

        The value is null if the call was not recorded or has no such member. The result is None if no call has it.

        Args:
            slot: The JSON member.
            process_ids: The process of each activity.
            correlation_ids: The correlation id of each activity.
        """
        calls = self.members.get("api_calls", {})
        if slot.name not in calls or col.is_all_null(calls[slot.name]):
            return None
        check_polars_can_run()
        values = col.concatenate_chunks(calls[slot.name])
        keys = {"process": calls[Slot.PID.name], "correlation": calls[Slot.CORRELATION.name]}
        launches = pl.DataFrame({name: pl.Series(col.concatenate_chunks(ids)) for name, ids in keys.items()})
        launches = launches.with_row_index("row").filter(pl.Series(values.is_valid())).drop_nulls()
        launches = launches.unique(["process", "correlation"], keep="first", maintain_order=True)
        activities = pl.DataFrame({"process": pl.Series(process_ids), "correlation": pl.Series(correlation_ids)})
        rows = activities.join(launches, ["process", "correlation"], how="left", maintain_order="left")["row"]
        return values.take(rows.to_arrow())

    def build_track_columns(self, table: str, read_member: ReadMember) -> dict[str, pa.Array]:
        """Build the columns that identify the track of each event in a table, such as ``stream_id``."""
        if self.exported:
            return self._build_track_columns_of_export(read_member)
        if table in ON_CPU:
            return {"process_id": read_member(Slot.PID), "thread_id": read_member(Slot.TID)}
        streams = _build_stream_columns(read_member)
        owner = self._find_process_ids_of_activities(table, read_member(Slot.CORRELATION))
        if owner.null_count:
            owner = self._fill_process_ids_by_stream(owner, streams)
        return {"process_id": owner, **streams}

    def list_process_ids(self) -> list[int]:
        """Return the ids of the processes that have CPU events. Processes with API calls come first."""
        processes: dict[int, None] = {}
        for name in ON_CPU:
            if name in self.members:
                pids = pc.unique(col.concatenate_chunks(self.members[name][Slot.PID.name])).drop_null().to_pylist()
                processes |= dict.fromkeys(pids)
        return list(processes)

    def map_process_ids_by_pid(self) -> dict[int, int]:
        """Return the process id that belongs to each ``pid`` with CPU events.

        In files that tracekit wrote, the ``pid`` differs from the process id if viewers cannot show the process id, or
        if another process has the same id.
        """
        pids = self.list_process_ids()
        if not self.exported:
            return {pid: pid for pid in pids}
        named = self.list_thread_tracks().filter(pl.col("pid").is_in(pids)).drop_nulls("process_id")
        owners = dict(named.unique("pid", keep="first").select("pid", "process_id").iter_rows())
        return {pid: owners.get(pid, pid) for pid in pids}

    def _drop_projections(self, members: Mapping[str, Members]) -> Mapping[str, Members]:
        """Return the collected values without the projections of NVTX ranges.

        A projection is a copy of a range on a GPU track, which tracekit exports in addition to the range itself.
        """
        ranges = members.get("nvtx_ranges")
        if ranges is None:
            return members
        keep = pa.array(self._find_tracks_of_events(ranges)["kind"].ne_missing(PROJECTION).to_arrow())
        return {
            **members,
            "nvtx_ranges": {name: col.concatenate_chunks(column).filter(keep) for name, column in ranges.items()},
        }

    def _find_process_ids_of_activities(self, table: str, correlation_ids: pa.Array) -> pa.Array:
        """Return the process id of each GPU activity of a table, given its correlation id.

        If the file has a single process, all activities belong to it. Otherwise, an activity belongs to the process
        with an API call that has the same correlation id. If no process or several processes have such an API call,
        the process id is null. In a file with the merged traces of several ranks, this applies to each rank.
        """
        processes = self.list_process_ids()
        if len(processes) <= 1 or "api_calls" not in self.members:
            only = processes[0] if len(processes) == 1 else None
            return pa.array([only], pa.int64()).take(pa.array(np.zeros(len(correlation_ids), np.int64)))
        check_polars_can_run()
        calls = self._select_columns("api_calls", {"correlation": Slot.CORRELATION.name, "process": Slot.PID.name})
        owners = calls.drop_nulls().group_by("rank", "correlation").agg(pl.col("process").unique())
        owners = owners.filter(pl.col("process").list.len() == 1).with_columns(pl.col("process").list.first())
        activities = self._select_columns(table, {}).with_columns(correlation=pl.Series(correlation_ids))
        return activities.join(owners, ["rank", "correlation"], how="left", maintain_order="left")["process"].to_arrow()

    def _select_columns(self, table: str, names: Mapping[str, str]) -> pl.DataFrame:
        """Return collected values of a table under new names, and the number of the rank of each row as ``rank``."""
        members = self.members[table]
        rows = len(members[Slot.START.name])
        rank = (
            _convert_to_series(members[repairs.RANK])
            if repairs.RANK in members
            else pl.zeros(rows, pl.Int64, eager=True)
        )
        return pl.DataFrame({"rank": rank, **{name: _convert_to_series(members[m]) for name, m in names.items()}})

    def _fill_process_ids_by_stream(self, process_ids: pa.Array, streams: Mapping[str, pa.Array]) -> pa.Array:
        """Replace null process ids of GPU activities with the only process of the other activities on their stream.

        The call that launched an activity may have been made before the capture began. A process id remains null if
        several processes use the stream, or if no process of its activities is known.
        """
        check_polars_can_run()
        rows = pl.DataFrame({name: pl.Series(values).cast(pl.Int64) for name, values in streams.items()})
        filled = rows.join(self._process_id_by_stream, list(STREAM_SLOTS), how="left", maintain_order="left")
        return filled.select(pl.coalesce(pl.Series(process_ids), "process_id")).to_series().to_arrow()

    @functools.cached_property
    def _process_id_by_stream(self) -> pl.DataFrame:
        """The streams whose activities with a known process all belong to one process, with its ``process_id``."""
        frames = [pl.DataFrame(schema=dict.fromkeys((*STREAM_SLOTS, "process_id"), pl.Int64))]
        for table in {*schemas.list_tables("activity")} & self.members.keys():
            members = self.members[table]
            read_member = functools.partial(_read_concatenated_member, members)
            owner = self._find_process_ids_of_activities(table, read_member(Slot.CORRELATION))
            columns = {**_build_stream_columns(read_member), "process_id": owner}
            rows = pl.DataFrame({name: pl.Series(values).cast(pl.Int64) for name, values in columns.items()})
            frames.append(rows.drop_nulls().unique())
        known = pl.concat(frames).unique()
        return known.filter(pl.struct(*STREAM_SLOTS).is_unique())

    def _build_track_columns_of_export(self, read_member: ReadMember) -> dict[str, pa.Array]:
        tracks = self._find_tracks_of_events({s.name: read_member(s) for s in (Slot.PID, Slot.TID)})
        columns = {name: tracks[name].to_arrow() for name in _TRACK if name != "kind"}
        columns["device_id"] = replace_numbers_beyond_int32_with_null(columns["device_id"])
        for name in STREAM_SLOTS:
            columns[name] = columns[name].fill_null(0)
        columns["kind"] = (
            tracks["kind"].to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string()).dictionary_encode()
        )
        return columns

    def _find_tracks_of_events(self, members: Members) -> pl.DataFrame:
        """Return the track of each event as a row of ``list_thread_tracks``.

        The row contains nulls if no track has the pid and tid of the event.
        """
        keys = pl.DataFrame(
            {"pid": _convert_to_series(members[Slot.PID.name]), "tid": _convert_to_series(members[Slot.TID.name])}
        )
        return keys.join(self.list_thread_tracks(), ["pid", "tid"], how="left", maintain_order="left")

    def list_thread_tracks(self) -> pl.DataFrame:
        """Return the tracks in a file that tracekit wrote.

        A track with overlapping events consists of several named threads.

        Returns:
            One row per named thread: its pid, tid and label, and the process, thread, device, stream or NVTX domain
            that its track represents.
        """
        check_polars_can_run()
        columns = {"pid": Slot.PID, "tid": Slot.TID, "label": Slot.NAME, **_TRACK}
        if not self.track_names:
            types = {n: pl.String if n in ("kind", "label") else pl.Int64 for n in columns}
            return pl.DataFrame(schema=types)
        data = {n: _convert_to_series(self.track_names[s.name]) for n, s in columns.items()}
        frame = pl.DataFrame(data).filter(pl.col("label") == "thread_name")
        return frame.unique(["pid", "tid"], keep="first", maintain_order=True)

    def list_recorded_names(self) -> pl.DataFrame:
        """Return the names that the file assigns to processes and threads.

        Returns:
            One row per event that assigns a name. The column ``what`` is the kind of the event, such as
            ``thread_name``.
        """
        columns = {"what": Slot.NAME, "pid": Slot.PID, "tid": Slot.TID, "name": Slot.FULL_NAME, "labels": Slot.LABELS}
        if not self.track_names:
            return pl.DataFrame(schema={n: pl.Int64 if n in ("pid", "tid") else pl.String for n in columns})
        return pl.DataFrame({n: _convert_to_series(self.track_names[s.name]) for n, s in columns.items()})


def replace_numbers_beyond_int32_with_null(numbers: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Replace numbers that do not fit into signed 32-bit integers with null."""
    numbers = col.concatenate_chunks(numbers)
    fits = pc.and_(pc.greater_equal(numbers, -_INT32), pc.less(numbers, _INT32))
    return pc.if_else(fits, numbers, pa.scalar(None, pa.int64()))


def _convert_to_series(column: pa.Array | pa.ChunkedArray) -> pl.Series:
    array = col.concatenate_chunks(column)
    return pl.Series(array.cast(pa.string()) if pa.types.is_dictionary(array.type) else array)


def _read_concatenated_member(members: Members, slot: Slot) -> pa.Array:
    return col.concatenate_chunks(members[slot.name])


def _build_stream_columns(read_member: ReadMember) -> dict[str, pa.Array]:
    """Build the columns that identify the stream of each GPU activity. Missing numbers become 0."""
    device = pc.coalesce(read_member(Slot.DEVICE), read_member(Slot.PID))
    stream = pc.coalesce(read_member(Slot.STREAM), read_member(Slot.TID)).fill_null(0)
    return {
        "device_id": replace_numbers_beyond_int32_with_null(device).fill_null(0),
        "context_id": read_member(Slot.CONTEXT).fill_null(0),
        "stream_id": pc.if_else(pc.less(stream, 0), NO_STREAM, stream),
    }
