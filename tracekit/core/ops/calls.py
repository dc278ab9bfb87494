"""Pair API calls with the GPU activities that they launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.core.correlate import CALL, find_first_row_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from tracekit.core.correlate import Frames

KINDS = pl.Enum(["kernel", "memset", "memcpy", "sync", "graph", "call"])
ON_GPU = ("kernel", "memset", "memcpy", "graph")
MODULE_LOAD_PATTERN = r"^cu(?:da)?(?:Library|Module)Load"
"""Regular expression that matches the names of the API functions that load code onto a GPU."""
TABLES = {"kernel": "kernels", "memset": "memsets", "memcpy": "memcpys", "sync": "syncs", "graph": "graph_launches"}
COLUMNS = (
    *("call", "kind", "activity", "call_id", "start_ns", "end_ns", "process_id", "thread_id", "name"),
    *("gpu_start_ns", "gpu_end_ns", "device_id"),
)
_ROW_NUMBERS = ("call", "activity", "instance")
_OF_CALLS = {"call_id": "api_call_id"} | {c: c for c in ("start_ns", "end_ns", "process_id", "thread_id")}
_OF_ACTIVITIES = {"gpu_start_ns": pl.Int64, "gpu_end_ns": pl.Int64, "device_id": pl.Int32}


class AttributedCalls(NamedTuple):
    """The API calls that are attributed to an op instance, with the activities that they launched.

    To save memory, only row numbers, kinds and names are stored. ``select`` gathers other columns from the tables.

    Attributes:
        frames: Function that returns the declared table with a given name.
        stored: One row per pair of a call and an activity: ``call``, ``kind``, ``activity``, ``name``, ``instance``.
            Row numbers are UInt32.
    """

    frames: Frames
    stored: pl.DataFrame

    @classmethod
    def from_rows(cls, frames: Frames, calls: pl.DataFrame) -> Self:
        """Create attributed calls from rows of ``pair_calls_with_activities`` with the added column ``instance``."""
        return cls(frames, calls.select(pl.col(_ROW_NUMBERS).cast(pl.UInt32), "kind", "name"))

    def select(self, columns: Sequence[str], rows: pl.Series | None = None) -> pl.DataFrame:
        """Return selected columns and rows of the attributed calls.

        Args:
            columns: Names of columns of ``pair_calls_with_activities``, or ``instance``.
            rows: Row numbers of the pairs to return, or None for all rows.
        """
        of_calls = [c for c in columns if c in _OF_CALLS]
        of_activities = [c for c in columns if c in _OF_ACTIVITIES]
        needed = {*columns, *(["call"] if of_calls else []), *(["activity", "kind"] if of_activities else [])}
        stored = self.stored.select(c for c in self.stored.columns if c in needed)
        stored = stored if rows is None else stored.select(pl.all().gather(rows))
        parts = [stored.with_columns(pl.col(c).cast(pl.Int64) for c in _ROW_NUMBERS if c in columns)]
        parts += [self._gather_call_columns(stored["call"], of_calls)] if of_calls else []
        parts += [self._gather_activity_columns(stored, of_activities)] if of_activities else []
        return pl.concat(parts, how="horizontal").select(columns)

    def _gather_call_columns(self, call_rows: pl.Series, columns: Sequence[str]) -> pl.DataFrame:
        """Return columns of the API calls with the given row numbers."""
        api_calls = self.frames("api_calls").select(**{c: _OF_CALLS[c] for c in columns}).collect()
        return api_calls.select(pl.all().gather(call_rows))

    def _gather_activity_columns(self, stored: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        """Return columns of the activities in ``stored``, which has their kinds and row numbers."""
        used = stored["kind"].unique().to_list()
        kinds = [kind for kind in TABLES if kind in used]
        empty = pl.DataFrame(schema={c: _OF_ACTIVITIES[c] for c in columns})
        tables = [empty, *(_read_activities(self.frames, kind).select(columns).collect() for kind in kinds)]
        heights = pl.Series([table.height for table in tables], dtype=pl.UInt32)
        first = stored.select(
            pl.col("kind").replace_strict(kinds, heights.cum_sum()[:-1], default=None, return_dtype=pl.UInt32)
        ).to_series()
        return pl.concat(tables).select(pl.all().gather(stored["activity"] + first))


def pair_calls_with_activities(frames: Frames) -> pl.DataFrame:
    """Pair every API call with each activity that it launched.

    A synchronization is paired with a call only if the call launched no activity. The kind of the row is then ``sync``.
    A call with neither an activity nor a synchronization has the kind ``call``. A call that launched a CUDA graph has
    one row per recorded activity of the graph.

    Returns:
        One row per pair, in the order of calls and, within a call, of kinds and row numbers:

        - ``call``: row number in ``api_calls``
        - ``kind``, ``activity``: kind of the activity, and row number in the table of this kind
        - ``call_id``, ``start_ns``, ``end_ns``, ``process_id``, ``thread_id``: columns of the call
        - ``name`` (Categorical): short name of a kernel, otherwise name of the API function
        - ``gpu_start_ns``, ``gpu_end_ns``, ``device_id``: columns of the activity

        ``activity`` and ``device_id`` are null for the kind ``call``. The times on the GPU are null for the kinds
        ``call`` and ``sync``.
    """
    columns = ["start_ns", "end_ns", *CALL, "thread_id", "name", pl.col("api_call_id").alias("call_id")]
    api_calls = frames("api_calls").select(columns).collect().with_columns(call=pl.int_range(pl.len()))
    keys = api_calls.select(CALL)
    launched = pl.concat([_read_activities_of_calls(frames, kind, keys) for kind in TABLES])
    non_sync = launched.filter(pl.col("kind") != "sync")
    waits = launched.filter(pl.col("kind") == "sync").unique("call", keep="first", maintain_order=True)
    launched = pl.concat([non_sync, waits.join(non_sync.select("call").unique(), on="call", how="anti")])
    paired = api_calls.join(launched, on="call", how="left", maintain_order="left_right")
    return paired.select(
        "call",
        pl.col("kind").fill_null("call"),
        *["activity", "call_id", "start_ns", "end_ns"],
        *["process_id", "thread_id"],
        pl.coalesce("kernel_name", "name", pl.lit("", pl.Categorical)).alias("name"),
        *["gpu_start_ns", "gpu_end_ns", "device_id"],
    )


def _read_activities_of_calls(frames: Frames, kind: str, call_keys: pl.DataFrame) -> pl.DataFrame:
    """Return the activities of one kind that API calls launched, with their times, devices and kernel names."""
    name = pl.col("short_name") if kind == "kernel" else pl.lit(None, pl.Categorical)
    numbers = pl.lit(kind, KINDS).alias("kind"), pl.int_range(pl.len()).alias("activity")
    columns = [*CALL, *numbers, *_OF_ACTIVITIES, name.alias("kernel_name")]
    activities = _read_activities(frames, kind).select(columns).collect()
    return (
        activities.drop(CALL)
        .with_columns(call=find_first_row_numbers(call_keys, activities.select(CALL)))
        .drop_nulls("call")
    )


def _read_activities(frames: Frames, kind: str) -> pl.LazyFrame:
    """Return the activities of one kind, with their times on the GPU, which are null for synchronizations."""
    time = pl.col if kind in ON_GPU else lambda _: pl.lit(None, pl.Int64)
    return frames(TABLES[kind]).with_columns(gpu_start_ns=time("start_ns"), gpu_end_ns=time("end_ns"))
