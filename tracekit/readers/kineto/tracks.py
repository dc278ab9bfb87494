"""Where events lie: on a thread of a process, or on a stream of a device.

The profiler gives a GPU's event the device as process and the stream as thread, and its arguments tell both;
the process is that of the call with the same correlation id. In a file of tracekit the events that name the
tracks tell all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.forks import check_polars
from tracekit.readers.common import columns as col
from tracekit.readers.kineto.keys import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Member = Callable[[Slot], pa.Array]
    """Gives what was kept of a member, in the order of the rows."""
    Kept = Mapping[str, pa.Array | pa.ChunkedArray]

ON_CPU = ("api_calls", "nvtx_ranges", "nvtx_marks", "osrt_calls")
QUEUE = {"device_id": Slot.DEVICE, "context_id": Slot.CONTEXT, "stream_id": Slot.STREAM}
NO_STREAM = (1 << 32) - 1
PROJECTION = "projection"
_TRACK = {"process_id": Slot.PROCESS, "thread_id": Slot.THREAD, **QUEUE, "domain_id": Slot.DOMAIN_ID, "kind": Slot.KIND}
_INT32 = 1 << 31


class Tracks:
    """All tracks of a file.

    Attributes:
        exported: Whether tracekit wrote it.
        kept: What was kept of the events, by table and member.
        namings: What was kept of the events that name processes and threads.
    """

    def __init__(self, kept: Mapping[str, Kept], namings: Kept, *, exported: bool) -> None:
        self.exported = exported
        self.namings = namings
        self.kept = self._without_projections(kept) if exported else kept

    def places(self, name: str, member: Member) -> dict[str, pa.Array]:
        """Return process, thread, device, context and stream of each row of a table, and what else its track tells."""
        if self.exported:
            return self._named(member)
        pid, tid = member(Slot.PID), member(Slot.TID)
        if name in ON_CPU:
            return {"process_id": pid, "thread_id": tid}
        device = narrow(pc.coalesce(member(Slot.DEVICE), pid)).fill_null(0)
        stream = pc.coalesce(member(Slot.STREAM), tid).fill_null(0)
        stream = pc.if_else(pc.less(stream, 0), NO_STREAM, stream)
        context = member(Slot.CONTEXT).fill_null(0)
        owner = self._owners(member(Slot.CORRELATION))
        return {"process_id": owner, "device_id": device, "context_id": context, "stream_id": stream}

    def processes(self) -> list[int]:
        """Return the processes that have events of their own, of calls first."""
        found: dict[int, None] = {}
        for name in ON_CPU:
            if name in self.kept:
                pids = pc.unique(col.whole(self.kept[name][Slot.PID.name])).drop_null().to_pylist()
                found |= dict.fromkeys(pids)
        return list(found)

    def _without_projections(self, kept: Mapping[str, Kept]) -> Mapping[str, Kept]:
        """Leave out the ranges that are drawn again where they are on the GPU."""
        ranges = kept.get("nvtx_ranges")
        if ranges is None:
            return kept
        own = pa.array(self._on(ranges)["kind"].ne_missing(PROJECTION).to_arrow())
        return {**kept, "nvtx_ranges": {name: col.whole(column).filter(own) for name, column in ranges.items()}}

    def _owners(self, correlation: pa.Array) -> pa.Array:
        """Return the process of what calls launched: of the call, if only one process has one of that number."""
        processes = self.processes()
        if len(processes) <= 1 or "api_calls" not in self.kept:
            only = processes[0] if len(processes) == 1 else None
            return pa.array([only], pa.int64()).take(pa.array(np.zeros(len(correlation), np.int64)))
        check_polars()
        calls = pl.DataFrame(
            {
                "correlation": pl.Series(col.whole(self.kept["api_calls"][Slot.CORRELATION.name])),
                "process": pl.Series(col.whole(self.kept["api_calls"][Slot.PID.name])),
            }
        ).drop_nulls()
        own = calls.group_by("correlation").agg(pl.col("process").unique())
        own = own.filter(pl.col("process").list.len() == 1).with_columns(pl.col("process").list.first())
        wanted = pl.DataFrame({"correlation": pl.Series(correlation)})
        return wanted.join(own, "correlation", how="left", maintain_order="left")["process"].to_arrow()

    def _named(self, member: Member) -> dict[str, pa.Array]:
        found = self._on({s.name: member(s) for s in (Slot.PID, Slot.TID)})
        made = {name: found[name].to_arrow() for name in _TRACK if name != "kind"}
        made["device_id"] = narrow(made["device_id"])
        for name in QUEUE:
            made[name] = made[name].fill_null(0)
        made["kind"] = (
            found["kind"].to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string()).dictionary_encode()
        )
        return made

    def _on(self, kept: Kept) -> pl.DataFrame:
        """Return the track of each event."""
        keys = pl.DataFrame({"pid": _plain(kept[Slot.PID.name]), "tid": _plain(kept[Slot.TID.name])})
        return keys.join(self.named(), ["pid", "tid"], how="left", maintain_order="left")

    def named(self) -> pl.DataFrame:
        """Return the tracks that the file names: pid, tid, and what they stand for."""
        check_polars()
        columns = {"pid": Slot.PID, "tid": Slot.TID, "label": Slot.NAME, **_TRACK}
        if not self.namings:
            types = {n: pl.String if n in ("kind", "label") else pl.Int64 for n in columns}
            return pl.DataFrame(schema=types)
        data = {n: _plain(self.namings[s.name]) for n, s in columns.items()}
        frame = pl.DataFrame(data).filter(pl.col("label") == "thread_name")
        return frame.unique(["pid", "tid"], keep="first", maintain_order=True)

    def labels(self) -> pl.DataFrame:
        """Return what the file calls processes and threads: what is named, pid, tid, name, labels."""
        columns = {"what": Slot.NAME, "pid": Slot.PID, "tid": Slot.TID, "name": Slot.FULL_NAME, "labels": Slot.LABELS}
        if not self.namings:
            return pl.DataFrame(schema={n: pl.Int64 if n in ("pid", "tid") else pl.String for n in columns})
        return pl.DataFrame({n: _plain(self.namings[s.name]) for n, s in columns.items()})


def narrow(numbers: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Make what 32 bits cannot hold null."""
    numbers = col.whole(numbers)
    fits = pc.and_(pc.greater_equal(numbers, -_INT32), pc.less(numbers, _INT32))
    return pc.if_else(fits, numbers, pa.scalar(None, pa.int64()))


def _plain(column: pa.Array | pa.ChunkedArray) -> pl.Series:
    whole = col.whole(column)
    return pl.Series(whole.cast(pa.string()) if pa.types.is_dictionary(whole.type) else whole)
