"""Compute reports on NVTX ranges: their durations, the kernels launched inside them, and their projection onto the GPU.

An API call is attributed to all ranges of its thread that contain the call, bounds included, not only to the innermost
one. Ranges of different domains can be nested. No report shows marks, categories or payloads.

These reports differ from nsys in one respect. If two threads of a process create domains with the same id, nsys counts
the ranges of these domains twice in three summaries, and fails in the other reports. tracekit counts each range once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.intervals.containment import (
    compute_axis_positions,
    compute_slice_minima,
    find_contained_slices,
    find_last_covering_rows,
    find_shortest_containers,
    list_contained_pairs,
    split_into_chains,
)
from tracekit.core.relations import (
    CALL,
    OPERATIONS,
    THREAD,
    find_only_row_numbers,
    join_calls,
    list_launch_columns,
    move_launches,
)
from tracekit.core.reports.names import range_tag_expr
from tracekit.core.reports.sources import (
    read_api_calls,
    read_attributable_ranges,
    read_kernels,
    read_ranges,
    set_open_range_ends,
)
from tracekit.core.reports.summary import (
    DURATION,
    sort_largest_total_first,
    statistics_exprs,
    summarize_groups,
    weighted_statistics_exprs,
)
from tracekit.core.series import decode_categories_expr, gather_in_blocks, string_ranks_expr
from tracekit.core.trees import ELLIPSIS, MAX_LEVELS, compute_depths, concat_strings_from_root, skip_middle_ancestors
from tracekit.system.sorting import create_series, group_row_numbers, iterate_row_blocks, map_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from tracekit.core.reports.report import Frames, Request
    from tracekit.system.sorting import GroupedRows

_STYLE = pl.when(pl.col("kind") == "push_pop").then(pl.lit("PushPop")).otherwise(pl.lit("StartEnd")).alias("style")
_TAG = pl.concat_str(pl.col("domain").cast(pl.String), pl.lit(":"), pl.col("name").cast(pl.String)).alias("tag")
_MAX_PAIRS_PER_KERNEL = 4
_PAIRS_AT_ONCE = 1 << 21
"""Number of pairs of a range and a kernel that are in memory at a time, unless one group of ranges has more."""
_COPIES = pl.len().cast(pl.Int64)
CHILDREN = pl.len().alias("children")


def nvtx_sum(request: Request) -> pl.LazyFrame:
    """NVTX ranges by name and style."""
    grouped = _summarize_by_tag(_read_all_ranges(request.frames), "kind")
    return sort_largest_total_first(grouped.with_columns(_STYLE), "tag", "style")


def nvtx_pushpop_sum(request: Request) -> pl.LazyFrame:
    """Push/pop ranges by name."""
    ranges = _read_all_ranges(request.frames).filter(pl.col("kind") == "push_pop")
    return sort_largest_total_first(_summarize_by_tag(ranges), "tag")


def nvtx_startend_sum(request: Request) -> pl.LazyFrame:
    """Start/end ranges by name."""
    ranges = _read_all_ranges(request.frames).filter(pl.col("kind") == "start_end")
    return sort_largest_total_first(_summarize_by_tag(ranges), "tag")


def nvtx_pushpop_trace(request: Request) -> pl.LazyFrame:
    """Every push/pop range with its level, parent and children, in order of start and duration."""
    rows = set_open_range_ends(read_ranges(request.frames).filter(pl.col("kind") == "push_pop"))
    tree = add_range_stacks(_add_parents(rows.with_columns(DURATION, range_tag_expr()).collect()))
    tree = add_child_aggregates(tree, CHILDREN, pl.col("duration_ns").sum().alias("children_ns"))
    rows = tree.drop("name").lazy().filter(pl.col("level").is_not_null()).sort("start_ns", "duration_ns", "range_id")
    own_ns = pl.col("duration_ns") - pl.col("children_ns")
    return _decode_tags(rows.with_columns(own_ns.alias("own_ns"), _indented_tag_expr()))


def nvtx_kern_sum(request: Request) -> pl.LazyFrame:
    """Kernels by name, launching thread and enclosing range, including kernels outside of all ranges.

    Times are summed over pairs of a range and a kernel, so a kernel in two nested ranges of the same name counts twice.
    """
    ranges = read_attributable_ranges(request.frames).collect()
    kernels, calls = pl.collect_all([_read_kernel_durations(request), read_api_calls(request.frames)])
    rows = find_only_row_numbers(calls.select(CALL), kernels.select(CALL))
    if rows is not None:
        sums = _summarize_kernels(ranges, _add_columns_of_calls(kernels.with_row_index("kernel"), calls, rows))
    elif _has_repeated_calls(kernels, calls):
        sums = _summarize_repeated_kernels(ranges, kernels, calls)
    else:
        sums = _summarize_kernels(ranges, _join_kernels_to_calls(kernels.with_row_index("kernel"), calls))
    grouped = pl.concat(sums, how="diagonal").lazy()
    style = pl.when(pl.col("kind").is_not_null()).then(_STYLE)
    order = [*map(pl.col, ("tag_order", *THREAD, "total", "style")), string_ranks_expr(pl.col("name"))]
    descending = [False, False, False, True, False, False]
    ordered = grouped.with_columns(style.alias("style")).sort(*order, descending=descending, nulls_last=descending)
    return _decode_tags(ordered)


def nvtx_gpu_proj_trace(request: Request) -> pl.LazyFrame:
    """Ranges with the extent of the GPU activities that they launched, in order of range id."""
    return _decode_tags(add_range_stacks(project_ranges(request.frames).drop("name")).lazy().sort("range_id"))


def nvtx_gpu_proj_sum(request: Request) -> pl.LazyFrame:
    """Ranges that launched GPU activities, by name and style."""
    rows = project_ranges(request.frames)
    means = (pl.col(c).mean().alias(f"mean_{c}") for c in ("ops", "level", "children"))
    totals = (pl.len().alias("count"), pl.col("duration_ns").sum().alias("range_ns"), pl.col("ops").sum())
    grouped = rows.lazy().group_by("tag", "style").agg(*statistics_exprs("gpu_ns"), *totals, *means)
    return _decode_tags(sort_largest_total_first(grouped, "tag", "style"))


def _decode_tags(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the rows with the column ``tag`` as String, in which rows with equal tags share memory."""
    return rows.with_columns(decode_categories_expr(pl.col("tag")))


def _indented_tag_expr() -> pl.Expr:
    """Return an expression for the tag of each range with two dashes per level, as the String column ``indented``.

    The text is formed once for each distinct pair of a level and a tag.
    """
    keys = ["level", "tag"]

    def indent_tags(ranges: pl.Series) -> pl.Series:
        rows = ranges.struct.unnest()
        indent = pl.lit("").str.pad_start(2 * pl.col("level"), "-")
        texts = rows.unique().with_columns(indented=pl.concat_str(indent, pl.col("tag").cast(pl.String)))
        return rows.join(texts, on=keys, how="left", maintain_order="left", nulls_equal=True)["indented"]

    return pl.struct(keys).map_batches(indent_tags, return_dtype=pl.String).alias("indented")


def _read_all_ranges(frames: Frames) -> pl.LazyFrame:
    """Read all NVTX ranges, including ranges that another thread ended. Open ranges end at the last NVTX event."""
    last_mark = frames("nvtx_marks").select(pl.col("timestamp_ns").max()).collect().item()
    return set_open_range_ends(read_ranges(frames), last_mark).with_columns(DURATION)


def _summarize_by_tag(ranges: pl.LazyFrame, *keys: str) -> pl.LazyFrame:
    """Return the statistics of the durations of ranges by the String column ``tag``, and by the columns ``keys``.

    Ranges are grouped by domain and name, so that each tag is formed once, unless two of these could have equal tags.
    """
    rows, by = ranges.with_columns(pl.col("domain", "name").fill_null("")).collect(), ["domain", "name"]
    prefixes = sorted(f"{domain}:" for domain in rows["domain"].unique().cast(pl.String))
    if any(longer.startswith(prefix) for prefix, longer in pairwise(prefixes)):
        rows, by = rows.with_columns(_TAG), ["tag"]
    groups = summarize_groups(rows.lazy(), [*by, *keys])
    return groups if by == ["tag"] else groups.with_columns(_TAG)


def _add_parents(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the row number, the parent and the level of each range.

    The columns are ``row``, ``parent`` (row number of the parent) and ``level`` (0 for a root). The level is null for
    ranges with equal bounds, and for all ranges inside them.
    """
    parent = find_shortest_containers(rows, by=THREAD)
    level = compute_depths(parent).cast(pl.Int64) - 1
    return rows.with_row_index("row").with_columns(parent.alias("parent"), level.alias("level"))


def add_range_stacks(tree: pl.DataFrame) -> pl.DataFrame:
    """Add the id of the parent of each range, and the path of ids from the outermost range to the range itself.

    The columns are ``parent_id`` and ``stack`` (such as ``:1:4:7``). Both are null for ranges without a ``level``. The
    path of a range at more than ``MAX_LEVELS`` levels contains only the outermost ids and its own id (``:1:4:…:700``).
    """
    parent, is_deep = skip_middle_ancestors(tree["parent"], MAX_LEVELS)
    separator = pl.when(is_deep).then(pl.lit(f":{ELLIPSIS}:")).otherwise(pl.lit(":"))
    range_ids = tree.select(pl.concat_str(separator, pl.col("range_id").cast(pl.String))).to_series()
    parent_id = tree["range_id"].gather(tree["parent"]).alias("parent_id")
    has_level = pl.col("level").is_not_null()
    return tree.with_columns(
        pl.when(has_level).then(parent_id).alias("parent_id"),
        concat_strings_from_root(parent, range_ids).alias("stack"),
    )


def add_child_aggregates(tree: pl.DataFrame, *aggregates: pl.Expr) -> pl.DataFrame:
    """Add aggregates of the children of each node, which are 0 for a node without children.

    Args:
        tree: One row per node: ``row``, ``parent`` (``row`` of the parent, null for a root), and any further columns.
        aggregates: Expressions that aggregate the rows of the children.
    """
    children = tree.filter(pl.col("parent").is_not_null()).group_by("parent").agg(*aggregates)
    added = children.columns[1:]
    tree = tree.join(children, left_on="row", right_on="parent", how="left", maintain_order="left")
    return tree.with_columns(pl.col(added).fill_null(0))


def _read_kernel_durations(request: Request) -> pl.LazyFrame:
    """Read the columns ``CALL``, ``name`` and ``duration_ns`` of kernels and, in a layered trace, ``launch_ns``."""
    columns = [*CALL, *list_launch_columns(request.frames("kernels"))]
    return read_kernels(request, *columns, "start_ns", "end_ns").select(*columns, "name", DURATION)


def _has_repeated_calls(kernels: pl.DataFrame, calls: pl.DataFrame) -> bool:
    """Return whether a join of kernels to their API calls would consist mostly of repeated pairs.

    This is the case if the events of a capture were copied, so that many calls have the same correlation id. nsys joins
    each copy of a kernel to each copy of its call.
    """
    counts = calls.group_by(CALL).len("calls").filter(pl.col("calls") > 1)
    pairs = kernels.select(CALL).join(counts, on=CALL, how="inner")["calls"].sum()
    return bool(pairs > _MAX_PAIRS_PER_KERNEL * kernels.height)


def _join_kernels_to_calls(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return one row per pair of a kernel and the API call that launched it, with the columns of both frames.

    A kernel without a call has one row, in which the thread is null.
    """
    joined = join_calls(kernels, calls.with_columns(pl.col("process_id").alias("caller")), "all", "left")
    return move_launches(joined.drop(CALL).rename({"caller": "process_id"}))


def _add_columns_of_calls(kernels: pl.DataFrame, calls: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """Return the result of ``_join_kernels_to_calls``, given the row of the only call of each kernel."""
    columns = [calls[c] for c in ("process_id", "thread_id", "start_ns", "end_ns")]
    return move_launches(kernels.drop(CALL).hstack([gather_in_blocks(column, rows) for column in columns]))


def _summarize_kernels(ranges: pl.DataFrame, launches: pl.DataFrame) -> list[pl.DataFrame]:
    """Summarize the durations of kernels by name, separately for kernels inside and outside of NVTX ranges.

    The pairs of a range and a kernel are listed for some groups of ranges at a time.

    Args:
        ranges: The NVTX ranges.
        launches: The kernels with their API calls, as ``_join_kernels_to_calls`` returns them.

    Returns:
        Two frames: the kernels inside of ranges, by group of ranges and kernel name, and the kernels outside of all
        ranges, by thread and kernel name.
    """
    range_positions, launch_positions = compute_axis_positions(ranges, launches, by=THREAD)
    chains = list(split_into_chains(launch_positions))
    slices = [find_contained_slices(range_positions, chain) for chain in chains]
    groups, group = _group_ranges(ranges, [rows["row"] for rows in slices])
    statistics = [*statistics_exprs("duration_ns"), pl.col("kernel").n_unique().alias("kernels")]
    inside = []
    for batch in _iterate_slices_of_groups(slices, group, groups.height):
        pairs = pl.concat([list_contained_pairs(*each) for each in zip(batch, chains, strict=True)])
        owned = launches.select(pl.col("kernel", "name", "duration_ns").gather(pairs["member"]))
        owned = owned.with_columns(range=pairs["row"], group=create_series(group[pairs["row"]]))
        inside.append(owned.group_by("group", "name").agg(*statistics, pl.col("range").n_unique().alias("ranges")))
    is_alone = np.ones(launches.height, np.bool_)
    for rows, chain in zip(slices, chains, strict=True):
        is_alone[chain["row"].to_numpy()[find_last_covering_rows(rows, chain.height) >= 0]] = False
    alone = launches.select("kernel", "name", "duration_ns", *THREAD).filter(create_series(is_alone))
    outside = alone.group_by(*THREAD, "name").agg(*statistics, pl.lit(0, pl.UInt32).alias("ranges"))
    return [pl.concat(inside).join(groups, on="group", how="left").drop("group"), outside]


def _iterate_slices_of_groups(
    slices: Sequence[pl.DataFrame], group: npt.NDArray[np.uint32], group_count: int
) -> Iterator[list[pl.DataFrame]]:
    """Yield the slices of some groups of ranges at a time, which are those of about ``_PAIRS_AT_ONCE`` pairs.

    Args:
        slices: The slices of launches that ranges contain, for each chain of launches.
        group: Number of the group of each range.
        group_count: Number of groups.
    """
    pairs = np.zeros(group_count, np.int64)
    for rows in slices:
        for block in iterate_row_blocks(rows.height):
            sizes = rows[block].select(pl.col("stop") - pl.col("first")).to_series()
            pairs += np.bincount(group[rows["row"][block]], sizes, group_count).astype(np.int64)
    batch_of_group = (np.cumsum(pairs) - pairs) // _PAIRS_AT_ONCE
    batch_count = int(batch_of_group.max(initial=0)) + 1

    def order_by_batch(rows: pl.DataFrame) -> GroupedRows:
        return group_row_numbers(lambda block: batch_of_group[group[rows["row"][block]]], rows.height, batch_count)

    ordered = [order_by_batch(rows) for rows in slices]
    for batch in range(batch_count):
        yield [
            rows[create_series(order[starts[batch] : starts[batch + 1]])]
            for rows, (order, starts) in zip(slices, ordered, strict=True)
        ]


def _summarize_repeated_kernels(ranges: pl.DataFrame, kernels: pl.DataFrame, calls: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the result of ``_summarize_kernels`` for a capture with repeated events.

    Ranges, kernels and calls that occur several times are processed once, and weighted by the number of occurrences.
    """
    ranges = ranges.group_by("domain", "name", "kind", *THREAD, "start_ns", "end_ns").agg(range_copies=_COPIES)
    kernels = kernels.group_by(kernels.columns).agg(kernel_copies=_COPIES).with_row_index("kernel")
    calls = calls.group_by(*CALL, "thread_id", "start_ns", "end_ns").agg(call_copies=_COPIES)
    launches = _join_kernels_to_calls(kernels, calls)
    launches = launches.with_columns(copies=pl.col("kernel_copies") * pl.col("call_copies").fill_null(1))
    launches = launches.sort("duration_ns")
    pairs = pair_ranges_with_launches(ranges, launches).sort("member")
    groups, group = _group_ranges(ranges, [pairs["row"]])
    group_of_pair = create_series(group[pairs["row"]]).alias("group")
    owned = launches.select("kernel", "name", "duration_ns", "kernel_copies", "copies")[pairs["member"]]
    owned = owned.with_columns(pairs["row"].alias("range"), group_of_pair, ranges["range_copies"].gather(pairs["row"]))
    owned = owned.with_columns(pl.col("copies") * pl.col("range_copies"))
    copies = pl.col("kernel_copies").filter(pl.col("kernel").is_first_distinct()).sum()
    range_count = pl.col("range_copies").filter(pl.col("range").is_first_distinct()).sum()
    statistics = [*weighted_statistics_exprs("duration_ns", "copies"), copies.alias("kernels")]
    inside = owned.group_by("group", "name").agg(*statistics, range_count.alias("ranges"))
    alone = launches.with_row_index("member").join(
        pairs.select("member"), on="member", how="anti", maintain_order="left"
    )
    outside = alone.group_by(*THREAD, "name").agg(*statistics, pl.lit(0, pl.Int64).alias("ranges"))
    return [inside.join(groups, on="group", how="left").drop("group"), outside]


def _group_ranges(ranges: pl.DataFrame, used: Sequence[pl.Series]) -> tuple[pl.DataFrame, npt.NDArray[np.uint32]]:
    """Group ranges by name, kind and thread.

    Args:
        ranges: The NVTX ranges.
        used: Columns of the row numbers of the ranges to group, which may repeat.

    Returns:
        A frame with one row per group (``group``, ``tag``, ``kind``, the columns of the thread and ``tag_order``), and
        the number of the group of each range, which is 0 for the other ranges.
    """
    is_used = np.zeros(ranges.height, np.bool_)
    for numbers_of_ranges in used:
        is_used[numbers_of_ranges.to_numpy()] = True
    keys, named = ["tag", "kind", *THREAD], ["domain", "name", "kind", *THREAD]
    rows = ranges.select(named)
    blocks = [rows[b].filter(create_series(is_used[b])).unique() for b in iterate_row_blocks(rows.height)]
    distinct = pl.concat([rows.clear(), *blocks]).unique()
    tagged = distinct.with_columns(range_tag_expr())
    groups = tagged.select(keys).unique().sort(string_ranks_expr(pl.col("tag")))
    groups = groups.with_columns(pl.col("tag").rle_id().alias("tag_order")).with_row_index("group")
    numbers = tagged.join(groups, on=keys, nulls_equal=True).select(*named, "group")

    def find_groups(block: slice) -> npt.NDArray[np.uint32]:
        joined = rows[block].join(numbers, on=named, how="left", nulls_equal=True, maintain_order="left")
        return joined["group"].fill_null(0).to_numpy()

    return groups, map_blocks(find_groups, rows.height, np.uint32)


def pair_ranges_with_launches(ranges: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return all pairs of an NVTX range and a launch that the range contains.

    The columns are ``row`` (row number of the range) and ``member`` (row number of the launch).
    """
    range_positions, launch_positions = compute_axis_positions(ranges, launches, by=THREAD)
    return _pair_ranges_with_launches(range_positions, launch_positions)


def _pair_ranges_with_launches(range_positions: pl.DataFrame, launch_positions: pl.DataFrame) -> pl.DataFrame:
    """Return all pairs of an NVTX range and a launch that the range contains.

    The arguments are the positions of ranges and launches that ``compute_axis_positions`` returns.
    """
    return pl.concat(
        [
            list_contained_pairs(find_contained_slices(range_positions, chain), chain)
            for chain in split_into_chains(launch_positions)
        ]
    )


def project_ranges(frames: Frames) -> pl.DataFrame:
    """Return the NVTX ranges that launched GPU activities, and their projections onto the GPU.

    The ranges form a tree, because a range that contains another range also contains the launches of that range.

    Returns:
        One row per range, with the columns of the range, and:

        - ``gpu_start_ns``, ``gpu_ns``: start and duration of the projection
        - ``ops``: number of distinct correlation ids, so that the launch of a whole CUDA graph counts once
        - ``children``: number of child ranges that launched activities
    """
    ranges = read_attributable_ranges(frames).collect()
    launches = read_gpu_launches(frames, OPERATIONS).drop("gpu_first_end_ns").collect()
    range_positions, launch_positions = compute_axis_positions(ranges, launches, by=THREAD)
    extents = _compute_range_gpu_extents(range_positions, launch_positions, launches)
    if launches["activity"].n_unique() < launches.height:
        extents = extents.drop("ops").join(
            _count_distinct_launches(range_positions, launch_positions, launches), on="row"
        )
    extents = extents.select("row", gpu_start_ns="low", gpu_ns=pl.col("high") - pl.col("low"), ops="ops").sort("row")
    projected = ranges[extents["row"]].with_columns(DURATION, range_tag_expr(), _STYLE).drop("kind")
    return add_child_aggregates(_add_parents(projected.hstack(extents.drop("row"))), CHILDREN)


def read_gpu_launches(frames: Frames, tables: Sequence[str]) -> pl.LazyFrame:
    """Read the API calls that launched GPU activities, with the extent of these activities.

    Args:
        frames: Function that returns the table with a given name.
        tables: Tables of activities.

    Returns:
        One row per call, or per time to which a layered trace moves launches of the call: the columns ``CALL_COLUMNS``,
        ``activity`` (number of the correlation id, which calls of a process with the same id share), ``gpu_start_ns``
        (first start), ``gpu_end_ns`` (last end) and ``gpu_first_end_ns`` (first end).
    """
    launches = list_launch_columns(frames(tables[0]))
    times = (_read_gpu_times(frames(t), launches) for t in tables)
    start, end = pl.col("gpu_start_ns"), pl.col("gpu_end_ns")
    extents = pl.concat(times).group_by(*CALL, *launches).agg(start.min(), end.max(), gpu_first_end_ns=end.min())
    if not launches:
        return read_api_calls(frames).join(extents.with_row_index("activity"), on=CALL, how="inner")
    numbers = extents.select(CALL).unique().with_row_index("activity")
    rows = read_api_calls(frames).join(numbers, on=CALL, how="inner").join(extents, on=CALL, how="inner")
    return move_launches(rows.collect()).lazy()


def _read_gpu_times(activities: pl.LazyFrame, launches: Sequence[str]) -> pl.LazyFrame:
    """Read the columns ``CALL``, ``launches`` (null in tables that lack them), ``gpu_start_ns`` and ``gpu_end_ns``."""
    missing = [] if list_launch_columns(activities) else [pl.lit(None, pl.Int64).alias(c) for c in launches]
    rows = activities.with_columns(missing)
    return rows.select(*CALL, *launches, gpu_start_ns="start_ns", gpu_end_ns="end_ns")


def compute_range_gpu_extents(ranges: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return the extent of the GPU activities that were launched in each range, according to nsys.

    A launch is in a range if its whole API call is, bounds included. ``correlate.project_onto_gpu`` attributes it to
    the ranges that are open when the call starts, and counts activities instead of launches.

    Args:
        ranges: Ranges, with the columns ``process_id``, ``thread_id``, ``start_ns`` and ``end_ns``.
        launches: API calls, with the columns of ``ranges``, and ``gpu_start_ns`` and ``gpu_end_ns`` of the activities.

    Returns:
        One row per range that contains launches, in the order of the ranges: ``row`` (row number of the range), ``low``
        (first start in ns), ``high`` (last end in ns) and ``ops`` (number of launches).
    """
    range_positions, launch_positions = compute_axis_positions(ranges, launches, by=THREAD)
    return _compute_range_gpu_extents(range_positions, launch_positions, launches).sort("row")


def _compute_range_gpu_extents(
    range_positions: pl.DataFrame, launch_positions: pl.DataFrame, launches: pl.DataFrame
) -> pl.DataFrame:
    by_chain = [
        _compute_gpu_extents_in_chain(range_positions, chain, launches) for chain in split_into_chains(launch_positions)
    ]
    return pl.concat(by_chain).group_by("row").agg(pl.col("low").min(), pl.col("high").max(), pl.col("ops").sum())


def _compute_gpu_extents_in_chain(
    range_positions: pl.DataFrame, chain: pl.DataFrame, launches: pl.DataFrame
) -> pl.DataFrame:
    """Return the columns of ``compute_range_gpu_extents`` for one of the chains into which launches are split."""
    inside = find_contained_slices(range_positions, chain)
    starts, ends = (launches[c].gather(chain["row"]) for c in ("gpu_start_ns", "gpu_end_ns"))
    low, high = compute_slice_minima(starts, inside), -compute_slice_minima(-ends, inside)
    return inside.select("row", low.alias("low"), high.alias("high"), (pl.col("stop") - pl.col("first")).alias("ops"))


def _count_distinct_launches(
    range_positions: pl.DataFrame, launch_positions: pl.DataFrame, launches: pl.DataFrame
) -> pl.DataFrame:
    """Return ``row`` (row number) and ``ops`` (number of distinct correlation ids of the launches) of each range."""
    activity = launches["activity"].gather(launch_positions["row"]).alias("activity")
    distinct_launches = launch_positions.with_columns(activity).unique(["start", "end", "activity"])
    distinct_ranges = range_positions.unique(["start", "end"])
    pairs = _pair_ranges_with_launches(distinct_ranges, distinct_launches)
    activity = launches["activity"].gather(pairs["member"]).alias("ops")
    counts = pairs.with_columns(activity).group_by("row").agg(pl.col("ops").n_unique().cast(pl.Int64))
    bounds = distinct_ranges.join(counts, on="row").select("start", "end", "ops")
    return range_positions.join(bounds, on=["start", "end"]).select("row", "ops")
