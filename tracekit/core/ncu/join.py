"""Match Nsight Compute results to the kernels of another capture of the same program.

The two captures come from two runs of the program. Process ids, times and ids differ, but the order of launches should
be the same. A kernel is identified by its name, grid and block, by the NVTX ranges around its launch, and by its
position in the order of launches of its process and GPU. Nsight Compute may have profiled only some launches: it can
skip the first launches, stop after a number of launches, or select kernels by name.

A *location* is a pair of process and GPU. A *shape* is a combination of location, kernel name, grid and block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.series import map_categories_expr
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    import numpy.typing as npt

    Codes = npt.NDArray[np.int64]

UNNAMED = "<unnamed>"
FREE_CELLS, CELLS_PER_VALUE = 1 << 22, 64
"""A wide table may have FREE_CELLS cells, and CELLS_PER_VALUE further cells for each value."""
_COLUMNS = ("launch_id", "metric", "label", "section", "value", "text", "resolution")
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


def normalize_kernel_names_expr(names: pl.Expr) -> pl.Expr:
    """Return an expression that converts different spellings of a kernel name to one spelling.

    Newer Nsight Compute versions omit casts of template arguments (``(int)8`` becomes ``8``) and some namespaces
    (``at::native::X`` becomes ``at::X``). This function removes all casts, suffixes of numbers, namespaces, return
    types and blanks.
    """
    unified = names.str.replace_all("(anonymous namespace)", UNNAMED, literal=True)
    unqualified = unified.str.replace(r"^\s*void\s+", "").str.replace_all(rf"(?:[A-Za-z_]\w*|{UNNAMED})::", "")
    without_casts = unqualified.str.replace_all(r"\([A-Za-z_][\w ]*\)(-?\d)", "${1}").str.replace_all(
        r"(\d)[uUlL]+\b", "${1}"
    )
    return without_casts.str.replace_all(r"\s+", "")


def add_metric_columns(launches: pl.LazyFrame, metrics: pl.LazyFrame) -> pl.DataFrame:
    """Add one column per metric to the table of launches.

    Args:
        launches: The table ``ncu_launches``.
        metrics: The table ``ncu_metrics``.

    Returns:
        One row per launch, with the columns of ``ncu_launches`` and one column per metric, in the order in which
        metrics first occur. A column is named after its metric, or ``section: label`` if the metric is unknown. It
        contains numbers in base units, or strings if the metric has no numbers. If a launch has several values of a
        metric, the most precise one is used.

    Raises:
        TracekitError: The table would have too many empty cells, because most launches have only a few of the metrics.
    """
    rows, best = launches.collect(), select_most_precise_values(metrics)
    kinds = best.group_by("column", maintain_order=True).agg(pl.col("value").is_not_null().any())
    _check_table_size(rows.height, kinds.height, best.height)
    for values, columns in (("value", kinds.filter("value")), ("text", kinds.filter(~pl.col("value")))):
        selected = best.filter(pl.col("column").is_in(columns["column"].implode()))
        rows = rows.join(pivot_values(selected, values), "launch_id", how="left", maintain_order="left")
    return rows.select(*launches.collect_schema().names(), *kinds["column"])


def _check_table_size(launch_count: int, column_count: int, value_count: int) -> None:
    """Raise an error if a wide table would be too large because most of its cells are empty."""
    cell_count = launch_count * column_count
    if cell_count > FREE_CELLS + CELLS_PER_VALUE * value_count:
        need = f"{launch_count:,} launches with {column_count:,} metrics need {cell_count:,} cells"
        raise TracekitError(
            f"the table with one column per metric is too large: {need} for {value_count:,} values",
            hint="read the table ncu_metrics, which has one row per value",
        )


def select_most_precise_values(metrics: pl.LazyFrame) -> pl.DataFrame:
    """Return the most precise value of each metric of each launch.

    Args:
        metrics: Rows of the table ``ncu_metrics``.

    Returns:
        One row per launch and metric, in file order: ``launch_id``, ``column``, ``value``, ``text``, ``resolution``.
        ``column`` is the name of the metric, or ``section: label`` if the metric is unknown.
    """
    label = pl.concat_str([pl.col("section").cast(pl.String), pl.col("label").cast(pl.String)], separator=": ")
    rows = metrics.select(*_COLUMNS).with_columns(
        column=pl.coalesce(pl.col("metric").cast(pl.String), label, pl.col("label").cast(pl.String))
    )
    return (
        rows.drop_nulls("column")
        .select("launch_id", "column", "value", "text", "resolution")
        .with_row_index("row")
        .sort(pl.col("value").is_null(), "resolution", "row")
        .unique(["launch_id", "column"], keep="first", maintain_order=True)
        .sort("row")
        .collect()
    )


def pivot_values(values: pl.DataFrame, column: str) -> pl.DataFrame:
    """Pivot one column of values into a frame with one row per launch that has a value, and one column per metric."""
    if not values.height:
        return pl.DataFrame(schema={"launch_id": pl.Int64})
    return values.pivot(on="column", index="launch_id", values=column)


def match_kernels(kernels: pl.LazyFrame, launches: pl.LazyFrame) -> pl.DataFrame:
    """Return the Nsight Compute result that matches each kernel.

    Args:
        kernels: The correlated table ``kernels``, with ``KERNEL_COLUMNS``.
        launches: The table ``ncu_launches``, with ``LAUNCH_COLUMNS``. Groups of launches, from a summary, are used only
            if there are no single launches.

    Returns:
        One row per kernel, in the same order: ``ncu_launch_id`` (null if no result matches) and ``ncu_match``, the kind
        of the match:

        - ``range``: The result has the same kernel name, grid, block and NVTX ranges, and was matched in the order of
          launches.
        - ``order``: As ``range``, but the NVTX ranges differ or are unknown.
        - ``group``: The result is the group of a summary that includes the kernel.
        - ``shape``: The result is another launch with the same kernel name, grid and block.
    """
    named = launches.select(LAUNCH_COLUMNS).filter(pl.col("name").is_not_null()).collect()
    single = named.filter(pl.col("kind").cast(pl.String) == "kernel")
    rows = kernels.select(KERNEL_COLUMNS).collect().with_row_index("row")
    if single.height:
        candidates, results = _encode_shapes(rows, single)
        pairs = _match_kernels_in_order(candidates, results)
    else:
        candidates, results = _encode_shapes(rows, named.filter(pl.col("kind").cast(pl.String) == "group"))
        pairs = _match_kernels_to_groups(candidates, results)
    pairs = pl.concat([pairs, _match_by_shape(candidates, results, pairs)])
    return rows.select("row").join(pairs, "row", how="left", maintain_order="left").drop("row")


def count_matches_by_kind(matches: pl.DataFrame | None, launches: pl.DataFrame | None) -> pl.DataFrame:
    """Count kernels and Nsight Compute results by the kind of their match.

    Args:
        matches: The result of ``match_kernels``, or None if nothing was joined.
        launches: All results, with the column ``launch_id``, or None if nothing was joined.

    Returns:
        One row per kind of match that occurs: ``match``, ``kernels`` (number of kernels), ``share`` (of all kernels),
        ``launches`` (number of distinct results). A row with a null ``match`` counts the kernels and results without a
        match. The frame has no rows if nothing was joined.
    """
    schema = {"match": pl.String, "kernels": pl.Int64, "share": pl.Float64, "launches": pl.Int64}
    if matches is None or launches is None:
        return pl.DataFrame(schema=schema)
    counts = matches.group_by(match=pl.col("ncu_match").cast(pl.String)).agg(
        kernels=pl.len().cast(pl.Int64), launches=pl.col("ncu_launch_id").n_unique().cast(pl.Int64)
    )
    ways = pl.DataFrame({"match": [RANGE, ORDER, GROUP, SHAPE, None], "rank": range(5)})
    unmatched = launches.join(matches, left_on="launch_id", right_on="ncu_launch_id", how="anti").height
    rows = (
        ways.join(counts, "match", how="left", nulls_equal=True)
        .sort("rank")
        .with_columns(
            pl.col("kernels").fill_null(0),
            pl.when(pl.col("match").is_null()).then(unmatched).otherwise("launches").fill_null(0).alias("launches"),
        )
    )
    occurring = rows.filter((pl.col("kernels") > 0) | (pl.col("launches") > 0))
    share = pl.col("kernels") / max(matches.height, 1)
    return occurring.with_columns(share=share).select(list(schema)).cast(schema)  # type: ignore[arg-type]


def _encode_shapes(rows: pl.DataFrame, launches: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Replace the locations, shapes and range paths of kernels and launches with integers.

    Returns:
        Two frames. The first has the kernels whose name occurs among the launches, in launch order: ``row``,
        ``location``, ``shape`` and ``path`` (null if no launch has the path). The second has the launches in file
        order: ``launch_id``, ``location``, ``shape``, ``path``, ``ranged`` (whether the path is known).
    """
    rows, launches = _add_name_keys(rows, launches)
    rows, launches = _add_locations(rows, launches)
    shapes = launches.select("location", "key", *SIZES).unique(maintain_order=True).with_row_index("shape")
    paths = launches.select("location", "range_path").unique(maintain_order=True).with_row_index("path")
    names = shapes.select("location", "key").unique()
    rows = rows.join(names, ["location", "key"], how="semi")

    def add_shapes_and_paths(frame: pl.DataFrame) -> pl.DataFrame:
        shaped = frame.join(shapes, ["location", "key", *SIZES], how="left", nulls_equal=True, maintain_order="left")
        return shaped.join(paths, ["location", "range_path"], how="left", nulls_equal=True, maintain_order="left")

    kernels = add_shapes_and_paths(rows.sort("location", "correlation_id", "row"))
    ranged = pl.col("range_path").is_not_null().alias("ranged")
    results = add_shapes_and_paths(launches).select("launch_id", "location", "shape", "path", ranged)
    return kernels.select("row", "location", "shape", "path"), results


def _add_name_keys(rows: pl.DataFrame, launches: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add the column ``key`` to kernels and launches: their mangled, full or short kernel names.

    The kind of name that the most launches have in common with the kernels is used. If there is a tie, mangled names
    are preferred to full names, and full names to short names.
    """
    short = pl.coalesce("short_name", "name")
    full_key, short_key = (map_categories_expr(name, normalize_kernel_names_expr) for name in (pl.col("name"), short))
    keys = {
        "mangled": (pl.col("mangled_name"), pl.coalesce("mangled_name", "name")),
        "full": (full_key, full_key),
        "short": (short_key, short_key),
    }
    rows = rows.with_columns(ours.alias(kind) for kind, (ours, _) in keys.items())
    launches = launches.with_columns(theirs.alias(kind) for kind, (_, theirs) in keys.items())
    counts = {kind: launches.join(rows.select(kind).drop_nulls(), kind, how="semi").height for kind in keys}
    best = max(counts, key=lambda kind: counts[kind])
    return rows.with_columns(key=pl.col(best)).filter(pl.col("key").is_not_null()), launches.with_columns(
        key=pl.col(best)
    ).filter(pl.col("key").is_not_null())


def _add_locations(rows: pl.DataFrame, launches: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add the column ``location``, which combines the device and the process, to kernels and launches.

    Processes are compared by the order of their ids, and only if both captures have the same number of processes.
    A column that has nulls in either frame is ignored.
    """
    location = pl.lit(0, pl.Int64)
    for column in ("process_id", "device_id"):
        both = [frame[column] for frame in (rows, launches)]
        if any(s.null_count() for s in both):
            continue
        if column == "device_id":
            location = location * (1 << 31) + pl.col(column).cast(pl.Int64)
        elif both[0].n_unique() == both[1].n_unique():
            location = pl.col(column).rank("dense").cast(pl.Int64)
    return rows.with_columns(location.alias("location")), launches.with_columns(location.alias("location"))


def _match_kernels_in_order(rows: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Pair kernels and launches one to one: ``row``, ``ncu_launch_id``, ``ncu_match``.

    If the shapes of the launches occur as a consecutive sequence among the kernels, the launches are paired with that
    sequence, unless pairing by range path gives more pairs with equal range paths. Otherwise, the n-th launch of a
    shape in a range path is paired with the n-th kernel of the same shape in the same range path. This is necessary if,
    for example, several threads launch kernels or only some ranges were profiled. The remaining launches are paired by
    shape alone.
    """
    pairs, kernels_by_location = [_create_empty_pairs()], rows.partition_by("location", as_dict=True)
    for location, results in launches.partition_by("location", as_dict=True, maintain_order=True).items():
        kernels = kernels_by_location.get(location, rows.clear())
        by_range = _pair_by_occurrence(kernels, results.filter("ranged"), ["shape", "path"], RANGE)
        start = _find_start_of_matching_sequence(kernels, results)
        by_row = _create_empty_pairs() if start is None else _pair_by_row(kernels.slice(start, results.height), results)
        if start is not None and by_row.filter(pl.col("ncu_match") == RANGE).height >= by_range.height:
            pairs.append(by_row)
            continue
        other_kernels = kernels.join(by_range, "row", how="anti")
        other_results = results.join(by_range, left_on="launch_id", right_on="ncu_launch_id", how="anti")
        pairs += [by_range, _pair_by_occurrence(other_kernels, other_results, ["shape"], ORDER)]
    return pl.concat(pairs)


def _create_empty_pairs() -> pl.DataFrame:
    return pl.DataFrame(schema={"row": pl.UInt32, "ncu_launch_id": pl.Int64, "ncu_match": pl.String})


def _pair_by_row(kernels: pl.DataFrame, results: pl.DataFrame) -> pl.DataFrame:
    """Pair each kernel with the launch in the same row. Both frames must have the same number of rows."""
    same_path = pl.col("path").eq_missing(results["path"]) & results["ranged"]
    match = pl.when(same_path).then(pl.lit(RANGE)).otherwise(pl.lit(ORDER))
    return kernels.select("row", results["launch_id"].alias("ncu_launch_id"), match.alias("ncu_match"))


def _pair_by_occurrence(kernels: pl.DataFrame, results: pl.DataFrame, keys: list[str], match: str) -> pl.DataFrame:
    """Pair the n-th kernel with the n-th launch among those with equal values in the columns ``keys``."""
    occurrence = pl.int_range(pl.len()).over(keys).alias("occurrence")
    pairs = kernels.with_columns(occurrence).join(results.with_columns(occurrence), [*keys, "occurrence"])
    return pairs.select("row", pl.col("launch_id").alias("ncu_launch_id"), pl.lit(match).alias("ncu_match"))


def _find_start_of_matching_sequence(kernels: pl.DataFrame, results: pl.DataFrame) -> int | None:
    """Return the row of the first kernel in a sequence of kernels that has the shapes of all launches in order.

    If there are several such sequences, the range paths of a sample of the launches are compared, and the sequence with
    the most equal paths is chosen. The result is None if there is no such sequence.
    """
    shapes, result_shapes = (_convert_to_integer_codes(frame["shape"]) for frame in (kernels, results))
    starts = _find_sequence_positions(shapes, result_shapes)
    if not len(starts):
        return None
    paths, result_paths = _convert_to_integer_codes(kernels["path"]), _convert_to_integer_codes(results["path"])
    agreeing = np.zeros(len(starts), np.int64)
    for sample in np.unique(np.linspace(0, len(result_paths) - 1, _SAMPLES).astype(np.int64)):
        agreeing += paths[starts + sample] == result_paths[sample]
    start = int(starts[agreeing.argmax()])
    # Different sequences can have equal hashes.
    same = np.array_equal(shapes[start : start + len(result_shapes)], result_shapes)
    return start if same else None


def _convert_to_integer_codes(column: pl.Series) -> Codes:
    """Return an integer column as a numpy array, in which -1 replaces nulls."""
    codes: Codes = column.cast(pl.Int64).fill_null(-1).to_numpy()
    return codes


def _find_sequence_positions(codes: Codes, sequence: Codes) -> npt.NDArray[np.int64]:
    """Return the positions at which a sequence occurs in an array.

    The search compares rolling hashes modulo 2**64, so it may also find a different sequence with an equal hash.
    """
    count = len(sequence)
    if not 0 < count <= len(codes):
        return np.empty(0, np.int64)
    generator = np.random.default_rng(_SEED)
    values = generator.integers(1 << 63, size=int(max(codes.max(), sequence.max())) + 2, dtype=np.uint64)
    powers = np.full(len(codes) + 1, _BASE, np.uint64)
    powers[0] = 1
    np.multiply.accumulate(powers, out=powers)
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(values[codes] * powers[:-1], out=sums[1:])
    sequence_hash = (values[sequence] * powers[:count]).sum(dtype=np.uint64)
    return np.flatnonzero(sums[count:] - sums[:-count] == sequence_hash * powers[: len(codes) - count + 1])


def _match_kernels_to_groups(kernels: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Match each kernel to the group of launches with the same shape.

    In a summary by range, the range paths must be equal as well.
    """
    matched = [_create_empty_pairs()]
    for keys, groups in (
        (["shape", "path"], launches.filter("ranged")),
        (["shape"], launches.filter(~pl.col("ranged"))),
    ):
        pairs = kernels.join(groups.unique(keys, keep="first", maintain_order=True), keys)
        kernels = kernels.join(pairs, "row", how="anti")
        matched.append(
            pairs.select("row", pl.col("launch_id").alias("ncu_launch_id"), pl.lit(GROUP).alias("ncu_match"))
        )
    return pl.concat(matched)


def _match_by_shape(rows: pl.DataFrame, launches: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Match the kernels that are not yet in a pair to launches of the same shape.

    If there are several such launches, kernels are matched to them in rotation. The rotation starts at the first kernel
    that is already matched, so that in a loop the n-th kernel of each iteration is matched to the same launch.
    """
    turn = pl.int_range(pl.len()).over("shape").cast(pl.Int64).alias("turn")
    turns = rows.filter(pl.col("shape").is_not_null()).with_columns(turn)
    first = turns.join(pairs, "row", how="semi").group_by("shape").agg(pl.col("turn").min().alias("first"))
    result_turns = launches.with_columns(turn, pl.len().over("shape").cast(pl.Int64).alias("count"))
    counts = result_turns.select("shape", "count").unique()
    remaining = turns.join(pairs, "row", how="anti").join(counts, "shape").join(first, "shape", how="left")
    result_turn = (pl.col("turn") - pl.col("first").fill_null(0)).mod("count")
    matched = remaining.with_columns(result_turn.alias("turn")).join(result_turns, ["shape", "turn"])
    return matched.select("row", pl.col("launch_id").alias("ncu_launch_id"), pl.lit(SHAPE).alias("ncu_match"))
