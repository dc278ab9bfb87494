"""Which result of Nsight Compute belongs to which kernel of another capture of the same program.

The two tools run the program twice: processes, times and ids differ, what is launched in which order should not. A
kernel is known by its name, grid and block, by the NVTX ranges around its launch, and by its place in the order of
launches of its process and device. Nsight Compute may have profiled some of the launches only: the first ones left
out, a number of them taken, some names only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.ncu.names import plain
from tracekit.core.reports.names import relabelled

if TYPE_CHECKING:
    import numpy.typing as npt

    Codes = npt.NDArray[np.int64]

RANGE, ORDER, GROUP, SHAPE = "range", "order", "group", "shape"
SIZES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
KERNEL_COLUMNS = (
    *("process_id", "device_id", "correlation_id", "name", "short_name", "mangled_name", "range_path", *SIZES),
)
LAUNCH_COLUMNS = (
    *("launch_id", "kind", "process_id", "device_id", "name", "short_name", "mangled_name"),
    *("range_path", "range_depth", *SIZES),
)
_SAMPLES, _SEED, _BASE = 64, 0, 0x9E3779B97F4A7C15


def join(kernels: pl.LazyFrame, launches: pl.LazyFrame) -> pl.DataFrame:
    """Find the result of Nsight Compute for each kernel: n kernels in, n rows out in their order.

    Args:
        kernels: ``kernels``, correlated: ``KERNEL_COLUMNS``.
        launches: ``ncu_launches``: ``LAUNCH_COLUMNS``. Groups of a summary count only if there are no single launches.

    Returns:
        ``ncu_launch_id``, null where there is none, and ``ncu_match``, which says how it was found: ``range`` (the
        same kernel with the same grid and block, in the same NVTX ranges, in order), ``order`` (in order, but the
        ranges differ or are not known), ``group`` (the group of a summary), ``shape`` (another launch of the same
        kernel with the same grid and block).
    """
    own = launches.select(LAUNCH_COLUMNS).filter(pl.col("name").is_not_null()).collect()
    single = own.filter(pl.col("kind").cast(pl.String) == "kernel")
    every = kernels.select(KERNEL_COLUMNS).collect().with_row_index("row")
    if single.height:
        rows, wanted = _keyed(every, single)
        pairs = _in_order(rows, wanted)
    else:
        rows, wanted = _keyed(every, own.filter(pl.col("kind").cast(pl.String) == "group"))
        pairs = _of_groups(rows, wanted)
    pairs = pl.concat([pairs, _of_shape(rows, wanted, pairs)])
    return every.select("row").join(pairs, "row", how="left", maintain_order="left").drop("row")


def counted(matches: pl.DataFrame | None, launches: pl.DataFrame | None) -> pl.DataFrame:
    """Count what was found: a row a way, and one, with null, for what was not.

    Args:
        matches: What ``join`` returns; None if nothing was joined: then no rows.
        launches: ``launch_id`` of all results.

    Returns:
        match, kernels, share (of all kernels), launches (different ones).
    """
    schema = {"match": pl.String, "kernels": pl.Int64, "share": pl.Float64, "launches": pl.Int64}
    if matches is None or launches is None:
        return pl.DataFrame(schema=schema)
    given = matches.group_by(match=pl.col("ncu_match").cast(pl.String)).agg(
        kernels=pl.len().cast(pl.Int64), launches=pl.col("ncu_launch_id").n_unique().cast(pl.Int64)
    )
    ways = pl.DataFrame({"match": [RANGE, ORDER, GROUP, SHAPE, None], "at": range(5)})
    left = launches.join(matches, left_on="launch_id", right_on="ncu_launch_id", how="anti").height
    rows = (
        ways.join(given, "match", how="left", nulls_equal=True)
        .sort("at")
        .with_columns(
            pl.col("kernels").fill_null(0),
            pl.when(pl.col("match").is_null()).then(left).otherwise("launches").fill_null(0).alias("launches"),
        )
    )
    found = rows.filter((pl.col("kernels") > 0) | (pl.col("launches") > 0))
    share = pl.col("kernels") / max(matches.height, 1)
    return found.with_columns(share=share).select(list(schema)).cast(schema)  # type: ignore[arg-type]


def _keyed(rows: pl.DataFrame, launches: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Number what kernels and launches have in common.

    Returns:
        Kernels that have a name of the launches, in the order of their launch: row, place, shape (null: that no launch
        has), path (null: that no launch has). Launches in the order of the file: launch_id, place, shape, path, ranged.
    """
    rows, launches = _named(rows, launches)
    rows, launches = _placed(rows, launches)
    shapes = launches.select("place", "key", *SIZES).unique(maintain_order=True).with_row_index("shape")
    paths = launches.select("place", "range_path").unique(maintain_order=True).with_row_index("path")
    names = shapes.select("place", "key").unique()
    rows = rows.join(names, ["place", "key"], how="semi")

    def numbered(frame: pl.DataFrame) -> pl.DataFrame:
        shaped = frame.join(shapes, ["place", "key", *SIZES], how="left", nulls_equal=True, maintain_order="left")
        return shaped.join(paths, ["place", "range_path"], how="left", nulls_equal=True, maintain_order="left")

    kernels = numbered(rows.sort("place", "correlation_id", "row"))
    ranged = pl.col("range_path").is_not_null().alias("ranged")
    results = numbered(launches).select("launch_id", "place", "shape", "path", ranged)
    return kernels.select("row", "place", "shape", "path"), results


def _named(rows: pl.DataFrame, launches: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give both a ``key``, the kind of name that most launches have in common with the kernels; mangled names first."""
    short = pl.coalesce("short_name", "name")
    keys = {
        "mangled": (pl.col("mangled_name"), pl.coalesce("mangled_name", "name")),
        "whole": (relabelled(pl.col("name"), plain), relabelled(pl.col("name"), plain)),
        "short": (relabelled(short, plain), relabelled(short, plain)),
    }
    rows = rows.with_columns(mine.alias(kind) for kind, (mine, _) in keys.items())
    launches = launches.with_columns(theirs.alias(kind) for kind, (_, theirs) in keys.items())
    found = {kind: launches.join(rows.select(kind).drop_nulls(), kind, how="semi").height for kind in keys}
    best = max(found, key=lambda kind: found[kind])
    return rows.with_columns(key=pl.col(best)).filter(pl.col("key").is_not_null()), launches.with_columns(
        key=pl.col(best)
    ).filter(pl.col("key").is_not_null())


def _placed(rows: pl.DataFrame, launches: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give both a ``place``: process and device, each only if both captures know and have as many."""
    place = pl.lit(0, pl.Int64)
    for column in ("process_id", "device_id"):
        both = [frame[column] for frame in (rows, launches)]
        if any(s.null_count() for s in both):
            continue
        if column == "device_id":
            place = place * (1 << 31) + pl.col(column).cast(pl.Int64)
        elif both[0].n_unique() == both[1].n_unique():
            place = pl.col(column).rank("dense").cast(pl.Int64)
    return rows.with_columns(place.alias("place")), launches.with_columns(place.alias("place"))


def _in_order(rows: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Pair kernels and launches one to one: ``row``, ``ncu_launch_id``, ``ncu_match``.

    Where launches follow one another as kernels do, they are these, unless ranges say otherwise. Else, as when threads
    launch at the same time or only some ranges were profiled, the first is the first in its ranges, and so on.
    """
    found, here = [_empty()], rows.partition_by("place", as_dict=True)
    for place, theirs in launches.partition_by("place", as_dict=True, maintain_order=True).items():
        mine = here.get(place, rows.clear())
        ranged = _by_turn(mine, theirs.filter("ranged"), ["shape", "path"], RANGE)
        at = _window(mine, theirs)
        beside = _empty() if at is None else _beside(mine.slice(at, theirs.height), theirs)
        if at is not None and beside.filter(pl.col("ncu_match") == RANGE).height >= ranged.height:
            found.append(beside)
            continue
        left = mine.join(ranged, "row", how="anti")
        unpaired = theirs.join(ranged, left_on="launch_id", right_on="ncu_launch_id", how="anti")
        found += [ranged, _by_turn(left, unpaired, ["shape"], ORDER)]
    return pl.concat(found)


def _empty() -> pl.DataFrame:
    return pl.DataFrame(schema={"row": pl.UInt32, "ncu_launch_id": pl.Int64, "ncu_match": pl.String})


def _beside(mine: pl.DataFrame, theirs: pl.DataFrame) -> pl.DataFrame:
    """Pair as many kernels with as many launches, row by row."""
    same = pl.col("path").eq_missing(theirs["path"]) & theirs["ranged"]
    match = pl.when(same).then(pl.lit(RANGE)).otherwise(pl.lit(ORDER))
    return mine.select("row", theirs["launch_id"].alias("ncu_launch_id"), match.alias("ncu_match"))


def _by_turn(mine: pl.DataFrame, theirs: pl.DataFrame, keys: list[str], match: str) -> pl.DataFrame:
    """Pair the first kernel with some keys with the first launch with them, the second with the second, and so on."""
    turn = pl.int_range(pl.len()).over(keys).alias("turn")
    pairs = mine.with_columns(turn).join(theirs.with_columns(turn), [*keys, "turn"])
    return pairs.select("row", pl.col("launch_id").alias("ncu_launch_id"), pl.lit(match).alias("ncu_match"))


def _window(mine: pl.DataFrame, theirs: pl.DataFrame) -> int | None:
    """Find where the launches follow one another among the kernels without a gap.

    Of several places it is the one where most ranges agree, of these the first; None if there is no such place.
    """
    kernels, launches = (_codes(frame["shape"]) for frame in (mine, theirs))
    starts = _occurrences(kernels, launches)
    if not len(starts):
        return None
    paths, wanted = _codes(mine["path"]), _codes(theirs["path"])
    agreeing = np.zeros(len(starts), np.int64)
    for sample in np.unique(np.linspace(0, len(wanted) - 1, _SAMPLES).astype(np.int64)):
        agreeing += paths[starts + sample] == wanted[sample]
    at = int(starts[agreeing.argmax()])
    return at if np.array_equal(kernels[at : at + len(launches)], launches) else None


def _codes(column: pl.Series) -> Codes:
    codes: Codes = column.cast(pl.Int64).fill_null(-1).to_numpy()
    return codes


def _occurrences(codes: Codes, wanted: Codes) -> Codes:
    """Return where some codes stand among others in their order, by a rolling hash that wraps at 2**64."""
    count = len(wanted)
    if not 0 < count <= len(codes):
        return np.empty(0, np.int64)
    dice = np.random.default_rng(_SEED)
    worth = dice.integers(1 << 63, size=int(max(codes.max(), wanted.max())) + 2, dtype=np.uint64)
    powers = np.full(len(codes) + 1, _BASE, np.uint64)
    powers[0] = 1
    np.multiply.accumulate(powers, out=powers)
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(worth[codes] * powers[:-1], out=sums[1:])
    whole = (worth[wanted] * powers[:count]).sum(dtype=np.uint64)
    return np.flatnonzero(sums[count:] - sums[:-count] == whole * powers[: len(codes) - count + 1])


def _of_groups(rows: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Give kernels the group of their kernel, grid and block; of a summary by range, that of their ranges."""
    found = [_empty()]
    for keys, groups in (
        (["shape", "path"], launches.filter("ranged")),
        (["shape"], launches.filter(~pl.col("ranged"))),
    ):
        pairs = rows.join(groups.unique(keys, keep="first", maintain_order=True), keys)
        rows = rows.join(pairs, "row", how="anti")
        found.append(pairs.select("row", pl.col("launch_id").alias("ncu_launch_id"), pl.lit(GROUP).alias("ncu_match")))
    return pl.concat(found)


def _of_shape(rows: pl.DataFrame, launches: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Give the kernels that are left a launch of the same kernel, grid and block: of several, in turn.

    The turns go on from the kernels that were paired, before and after, so that what repeats keeps its place.
    """
    turn = pl.int_range(pl.len()).over("shape").cast(pl.Int64).alias("turn")
    numbered = rows.filter(pl.col("shape").is_not_null()).with_columns(turn)
    first = numbered.join(pairs, "row", how="semi").group_by("shape").agg(pl.col("turn").min().alias("first"))
    of_shape = launches.with_columns(turn, pl.len().over("shape").cast(pl.Int64).alias("count"))
    counts = of_shape.select("shape", "count").unique()
    left = numbered.join(pairs, "row", how="anti").join(counts, "shape").join(first, "shape", how="left")
    place = (pl.col("turn") - pl.col("first").fill_null(0)).mod("count")
    found = left.with_columns(place.alias("turn")).join(of_shape, ["shape", "turn"])
    return found.select("row", pl.col("launch_id").alias("ncu_launch_id"), pl.lit(SHAPE).alias("ncu_match"))
