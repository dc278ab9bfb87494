"""Attribute API calls to op instances.

A call is attributed to the op instance that contains the call, bounds included:

1. Instances of the same thread are considered first.
2. If none of them contains the call, instances of all threads of the process are considered, because calls of the
   autograd thread belong to the backward op.
3. If none of them contains the call, and the call launches activities or waits for them, it becomes the root of a new
   instance. This instance is *unassociated*.

If several instances contain the call, the one that started last is used.

In a layered trace, the activities of a CUDA graph have launches of their own. Such a launch is attributed to the last
instance of its thread that contains it, and otherwise like its call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.intervals import containment
from tracekit.core.intervals.axis import replace_with_null_unless
from tracekit.core.relations import CALL, LAUNCH, THREAD, find_first_row_numbers, list_launch_columns
from tracekit.core.runtimes import API_PREFIX
from tracekit.core.series import gather_in_blocks, map_frame_blocks, sort_frame
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from tracekit.core.correlate import Frames

KINDS = pl.Enum(["kernel", "memset", "memcpy", "sync", "graph", "call"])
ON_GPU = ("kernel", "memset", "memcpy", "graph")
MODULE_LOAD_PATTERN = API_PREFIX + "(?:Library|Module)Load"
"""Regular expression that matches the names of the API functions that load code onto a GPU."""
TABLES = {"kernel": "kernels", "memset": "memsets", "memcpy": "memcpys", "sync": "syncs", "graph": "graph_launches"}
COLUMNS = (
    *("call", "kind", "activity", "call_id", "start_ns", "end_ns", *THREAD, "name"),
    *("gpu_start_ns", "gpu_end_ns", "device_id"),
)
_ROW_NUMBERS = ("call", "activity", "instance")
_OF_CALLS = {"call_id": "api_call_id"} | {c: c for c in ("start_ns", "end_ns", *THREAD)}
_OF_ACTIVITIES = {"gpu_start_ns": pl.Int64, "gpu_end_ns": pl.Int64, "device_id": pl.Int32}


class AttributedCalls(NamedTuple):
    """The API calls that are attributed to an op instance, with the activities that they launched.

    To save memory, only row numbers, kinds and names are stored. ``select`` gathers other columns from the tables.

    Attributes:
        frames: Function that returns the declared table with a given name.
        stored: One row per pair of a call and an activity: ``call``, ``kind``, ``activity``, ``name``, ``instance``
            and, in a layered trace, ``launch_ns`` (null unless the launch is moved). Row numbers are UInt32.
    """

    frames: Frames
    stored: pl.DataFrame

    @classmethod
    def from_rows(cls, frames: Frames, calls: pl.DataFrame) -> Self:
        """Create attributed calls from rows of ``pair_calls_with_activities`` with the added column ``instance``."""
        launches = [c for c in calls.columns if c == LAUNCH]
        columns = [pl.col(_ROW_NUMBERS).cast(pl.UInt32), "kind", "name", *launches]
        return cls(frames, map_frame_blocks(lambda block: calls[block].select(columns), calls.height))

    def select(self, columns: Sequence[str], rows: pl.Series | None = None) -> pl.DataFrame:
        """Return selected columns and rows of the attributed calls.

        Args:
            columns: Names of columns of ``pair_calls_with_activities``, or ``instance``.
            rows: Row numbers of the pairs to return, or None for all rows.
        """
        of_calls = [c for c in columns if c in _OF_CALLS]
        of_activities = [c for c in columns if c in _OF_ACTIVITIES]
        needed = {*columns, *(["call", LAUNCH] if of_calls else []), *(["activity", "kind"] if of_activities else [])}
        stored = self.stored.select(c for c in self.stored.columns if c in needed)
        stored = stored if rows is None else stored.select(pl.all().gather(rows))
        parts = [stored.with_columns(pl.col(c).cast(pl.Int64) for c in _ROW_NUMBERS if c in columns)]
        parts += [self._gather_call_columns(stored, of_calls)] if of_calls else []
        parts += [self._gather_activity_columns(stored, of_activities)] if of_activities else []
        return pl.concat(parts, how="horizontal").select(columns)

    def _gather_call_columns(self, stored: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        """Return columns of the API calls of the rows in ``stored``. A moved launch has times of its own."""
        api_calls = self.frames("api_calls").select(**{c: _OF_CALLS[c] for c in columns}).collect()
        rows = pl.DataFrame([gather_in_blocks(column, stored["call"]) for column in api_calls.iter_columns()])
        if LAUNCH not in stored.columns:
            return rows
        times = [pl.coalesce(LAUNCH, c).alias(c) for c in ("start_ns", "end_ns") if c in columns]
        return rows.with_columns(stored[LAUNCH]).with_columns(times).drop(LAUNCH)

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
        rows = stored["activity"] + first
        return pl.DataFrame([gather_in_blocks(column, rows) for column in pl.concat(tables).iter_columns()])


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
        ``call`` and ``sync``. In a layered trace, the rows also have ``launch_ns``, and a call whose launches are moved
        has an additional row of the kind ``call``.
    """
    columns = ["start_ns", "end_ns", *CALL, "thread_id", "name", pl.col("api_call_id").alias("call_id")]
    api_calls = frames("api_calls").select(columns).collect()
    keys = api_calls.select(CALL)
    by_kind = {kind: _read_activities_of_calls(frames, kind, keys) for kind in TABLES}
    waits = by_kind.pop("sync").unique("call", keep="first", maintain_order=True)
    has_activity = np.zeros(api_calls.height, np.bool_)
    for activities in by_kind.values():
        has_activity[activities["call"].to_numpy()] = True
    waits = waits.filter(create_series(~has_activity).gather(waits["call"]))
    launched = pl.concat([*by_kind.values(), waits], how="diagonal", rechunk=False)
    if LAUNCH in launched.columns:
        moved = launched.drop_nulls(LAUNCH).select(pl.col("call").unique())
        launched = pl.concat([launched, moved], how="diagonal")
    call_of_row = launched["call"].to_numpy()
    launched = sort_frame(launched, call_of_row)
    call_of_row = launched["call"].to_numpy()

    def pair_block(block: slice) -> pl.DataFrame:
        first, stop = np.searchsorted(call_of_row, [block.start, block.stop])
        calls = api_calls[block].with_columns(call=pl.int_range(block.start, block.stop))
        paired = calls.join(launched[first:stop], on="call", how="left", maintain_order="left_right")
        return paired.select(
            "call",
            pl.col("kind").fill_null("call"),
            *["activity", "call_id", "start_ns", "end_ns"],
            *THREAD,
            pl.coalesce("kernel_name", "name", pl.lit("", pl.Categorical)).alias("name"),
            *["gpu_start_ns", "gpu_end_ns", "device_id"],
            *(c for c in paired.columns if c == LAUNCH),
        )

    return map_frame_blocks(pair_block, api_calls.height)


def _read_activities_of_calls(frames: Frames, kind: str, call_keys: pl.DataFrame) -> pl.DataFrame:
    """Return the activities of one kind that API calls launched, with their times, devices and kernel names."""
    name = pl.col("short_name") if kind == "kernel" else pl.lit(None, pl.Categorical)
    launches = list_launch_columns(frames(TABLES[kind]))
    keys = frames(TABLES[kind]).select(CALL).collect()
    calls = find_first_row_numbers(call_keys, keys)

    def read_block(block: slice) -> pl.DataFrame:
        rows = _read_activities(frames, kind).slice(block.start, block.stop - block.start)
        numbers = pl.lit(kind, KINDS).alias("kind"), pl.int_range(pl.len()).alias("activity") + block.start
        activities = rows.select(*numbers, *_OF_ACTIVITIES, name.alias("kernel_name"), *launches).collect()
        return activities.with_columns(call=calls[block]).drop_nulls("call")

    return map_frame_blocks(read_block, keys.height)


def _read_activities(frames: Frames, kind: str) -> pl.LazyFrame:
    """Return the activities of one kind, with their times on the GPU, which are null for synchronizations."""
    time = pl.col if kind in ON_GPU else lambda _: pl.lit(None, pl.Int64)
    return frames(TABLES[kind]).with_columns(gpu_start_ns=time("start_ns"), gpu_end_ns=time("end_ns"))


def find_instances_of_launches(launches: pl.DataFrame, instances: pl.DataFrame) -> pl.Series:
    """Return the op instance to which each launch is attributed that a layered trace moves.

    Args:
        launches: One row per launch: ``process_id``, ``thread_id``, ``launch_ns``.
        instances: Op instances in order of start: ``process_id``, ``thread_id``, ``start_ns``, ``end_ns``.

    Returns:
        One row number of ``instances`` per launch. It is null if the launch is not moved, or if no instance contains
        it.
    """
    moments = launches.select(*THREAD, start_ns=LAUNCH, end_ns=LAUNCH)
    return containment.find_last_containers(moments, instances, by=THREAD)


def find_instances_of_calls(calls: pl.DataFrame, instances: pl.DataFrame) -> pl.DataFrame:
    """Return the op instance to which each API call is attributed.

    Args:
        calls: One row per call: ``call_id`` (ascending in time), ``process_id``, ``thread_id``, ``start_ns``,
            ``end_ns``, ``has_work`` (whether the call launches activities or waits for them).
        instances: Op instances in order of start: ``process_id``, ``thread_id``, ``start_ns``, ``end_ns``.

    Returns:
        One row per call: ``instance`` (row number in ``instances``) and ``root_call`` (row number of the call that is
        the root of its unassociated instance, possibly the call itself). At most one of them is not null.
    """
    own = containment.find_last_containers(calls, instances, by=THREAD)
    left = calls.with_row_index("row").filter(own.is_null())
    shared = containment.find_last_containers(left, instances, by=["process_id"])
    outside = left.filter(shared.is_null() & left["has_work"])
    roots = outside.filter(_find_latest_roots_with_larger_ids(outside, outside).is_null())
    is_root = left.select(pl.col("row").is_in(roots["row"].implode())).to_series()
    root = roots["row"].gather(_find_latest_roots_with_larger_ids(left, roots)).cast(pl.Int64)
    starts = pl.DataFrame({"op": instances["start_ns"].gather(shared), "root": calls["start_ns"].gather(root)})
    in_root = starts.select((pl.col("root") >= pl.col("op")).fill_null(pl.col("root").is_not_null())).to_series()
    rows = left["row"].cast(pl.Int64)
    attributed = left.select(
        "row",
        instance=pl.when(~in_root & ~is_root).then(shared),
        root_call=pl.when(is_root).then(rows).when(in_root).then(root),
    )
    empty = pl.repeat(None, calls.height, dtype=pl.Int64, eager=True)
    return pl.DataFrame(
        {
            "instance": own.scatter(attributed["row"], attributed["instance"]),
            "root_call": empty.scatter(attributed["row"], attributed["root_call"]),
        }
    )


def _find_latest_roots_with_larger_ids(calls: pl.DataFrame, roots: pl.DataFrame) -> pl.Series:
    """Return the root call that contains each API call. Only root calls with a larger call id are considered.

    Calls are attributed from the last to the first, so all roots that exist when a call is attributed have larger ids.
    If several of them contain the call, the one that started last is returned.

    Returns:
        One row number of ``roots`` per call (Int64), or null if no root with a larger id contains the call.
    """
    best = pl.DataFrame({"start": pl.repeat(None, calls.height, dtype=pl.Int64, eager=True)})
    best = best.with_columns(id=pl.col("start"), root=pl.col("start"))
    if not calls.height or not roots.height:
        return best["root"]
    by = ["process_id"]
    root_positions, call_positions = containment.compute_axis_positions(
        containment.drop_inverted_ends(roots), calls, by=by
    )
    for chain in containment.split_into_chains(root_positions):
        ids = roots["call_id"].gather(chain["row"])
        containing = _find_enclosing_slices(call_positions, chain)
        last = _find_last_rows_above_limit(ids, containing, calls["call_id"].gather(call_positions["row"]))
        candidates = pl.DataFrame(
            {
                "row": call_positions["row"],
                "start": roots["start_ns"].gather(chain["row"].gather(last)),
                "id": ids.gather(last),
                "root": chain["row"].gather(last).cast(pl.Int64),
            }
        ).drop_nulls()
        best = _replace_with_later_candidates(best, candidates)
    return best["root"]


def _find_enclosing_slices(positions: pl.DataFrame, chain: pl.DataFrame) -> pl.DataFrame:
    """Find the intervals of a chain that contain each given interval, bounds included.

    In a chain, starts and ends are both ascending.

    Returns:
        One slice of the chain per given interval: ``first`` (first row) and ``stop`` (row after the last row).
    """
    first = chain["end"].search_sorted(positions["end"], side="left").cast(pl.Int64)
    stop = chain["start"].search_sorted(positions["start"], side="right").cast(pl.Int64)
    return pl.DataFrame({"first": first, "stop": stop})


def _find_last_rows_above_limit(values: pl.Series, slices: pl.DataFrame, limits: pl.Series) -> pl.Series:
    """For each slice, return the last row with a value above the limit of the slice, or null if there is none.

    The search starts at the end of the slice. Each step skips a block of rows if no value in the block is above the
    limit. The size of the blocks is halved after each step.
    """
    maxima = [values]
    while (width := 1 << len(maxima)) <= len(values):
        half = maxima[-1]
        maxima.append(pl.select(pl.max_horizontal(half, half.shift(-(width >> 1)))).to_series())
    stop, first = slices["stop"], slices["first"]
    for power in range(len(maxima) - 1, -1, -1):
        start = stop - (1 << power)
        inside = start >= first
        largest = maxima[power].gather(replace_with_null_unless(inside, start))
        stop = start.zip_with((inside & (largest <= limits)).fill_null(False), stop)  # noqa: FBT003
    return pl.select(pl.when(stop > first).then(stop - 1)).to_series()


def _replace_with_later_candidates(best: pl.DataFrame, candidates: pl.DataFrame) -> pl.DataFrame:
    """Replace rows with candidates that started later.

    A candidate with the same start replaces a row if the id of the candidate is smaller. A row of nulls is always
    replaced.

    Args:
        best: The rows to replace: ``start``, ``id`` and other columns.
        candidates: The same columns, and ``row``, the row number in ``best``.
    """
    old = best.select(pl.all().gather(candidates["row"]))
    same_start = candidates["start"] == old["start"]
    better = (candidates["start"] > old["start"]) | (same_start & (candidates["id"] < old["id"]))
    better_rows = candidates.filter(better.fill_null(True))  # noqa: FBT003
    return best.with_columns(best[c].scatter(better_rows["row"], better_rows[c]).alias(c) for c in best.columns)
