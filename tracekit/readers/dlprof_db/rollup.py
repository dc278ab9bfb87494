"""Build ``ops``, ``op_instances``, ``iterations`` and ``group_nodes`` from the last aggregation in a DLProf database.

An aggregation contains sums over a set of iterations. A database contains all aggregations that its user requested. The
DLProf viewer shows one of them at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.dlprof_db.tables import ID, map_strings_by_id
from tracekit.system.forks import check_polars_can_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.dlprof_db.tables import DlprofFile

    Columns = dict[str, pa.Array]

TABLES = ("ops", "op_instances", "iterations", "group_nodes")
SOURCES = {"ops": "read_only_ops", "op_instances": "read_only_op_instances"}
_METRICS = ("cpu_time", "gpu_time", "api_time", "cpu_overhead_time", "gpu_idle_time")
_TIMES = dict(
    zip(("cpu_time_ns", "gpu_time_ns", "api_time_ns", "cpu_overhead_ns", "gpu_idle_ns"), _METRICS, strict=True)
)
REQUIRED_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "aggregations": ("id",),
    "metric": ("id", "count", "sum"),
    "node_time_metrics": ("id", *(f"{m}_metric_id" for m in _METRICS)),
    "op_nodes": ("aggr_id", "read_only_ops_id", "node_time_metrics_id", "num_calls", "kernel_calls", "using_tc"),
    "iteration_list": ("aggr_id", "iter_value", "start_time", "stop_time"),
    "iteration_aggregation_list": ("aggr_id", "iter_value", "tc_duration"),
    "kernel_iteration_stats": (
        "aggr_id",
        "iter_value",
        "total_count",
        "uses_tc_count",
        "total_gpu_time",
        "tc_gpu_time",
    ),
    "iteration_key": ("aggr_id", "key_node_id"),
    "group_ops": ("aggr_id", "row_type", "level", "group_op_full_name_id", "group_op_time_metrics_id"),
}
"""Columns that are read, by table, in addition to those in ``tables.REQUIRED_COLUMNS``."""

_ITERATION_PARTS = ("tc", "non_tc", "memory", "dataloader", "io", "cpu", "other")
_PART_COLUMNS = (
    *("in_tensor_core_kernels_ns", "in_other_kernels_ns", "in_memory_ops_ns", "in_dataloader_ns", "in_io_ns"),
    *("in_cpu_ns", "in_nothing_ns"),
)
_TENSOR_CORE_SUPPORT = {0: "eligible", 3: "not eligible"}
_GPU_TABLES = ("read_only_kernels", "read_only_memsets", "read_only_memcpys")
_PREFIX_BOUNDS = (b"\xff", b"")
"""Last arguments of ``binary_join_element_wise``, which appends a byte to each path.

The first is the byte 0xFF, which makes a path sort after all names that begin with the path. The second is an empty
separator.
"""

_INSTANCE_KEY = ["read_only_ops_id", "op_instance"]


def build_table(database: DlprofFile, name: str) -> pa.Table:
    """Build one of the declared tables in ``TABLES``, given the name of the table."""
    check_polars_can_run()
    return pa.table(_TABLE_BUILDERS[name](database))


def _read_ops_columns(database: DlprofFile) -> Columns:
    source = SOURCES["ops"]
    numbers = ("op_id_id", "op_type_id", "direction_id", "data_type_id", "tc_support_status")
    ops = database.read_rows_by_id(source, numbers, ("op_name", "stack_trace"))
    count_columns = ("num_calls", "kernel_calls", "using_tc")
    nodes = _read_last_aggregation(database, "op_nodes", ("read_only_ops_id", "node_time_metrics_id", *count_columns))
    nodes = _add_time_sums(
        database, database.require_unique_keys(nodes, ["read_only_ops_id"], "op_nodes"), "node_time_metrics_id"
    )
    joined = ops.join(nodes, left_on=ID, right_on="read_only_ops_id", how="left", maintain_order="left")
    support = pl.col("tc_support_status").replace_strict(_TENSOR_CORE_SUPPORT, default="maybe", return_dtype=pl.String)
    table = joined.select(
        "op_name",
        *(pl.col(c).fill_null(0) for c in _TIMES),
        stack_trace=pl.col("stack_trace").replace("", None),
        is_associated=~pl.col("op_name").str.starts_with("unassociated_"),
        tensor_core_support=support,
        uses_tensor_cores=pl.col("using_tc").fill_null(0) != 0,
        instance_count=pl.col("num_calls").fill_null(0),
        kernel_count=pl.col("kernel_calls").fill_null(0),
    )
    return {
        **_convert_to_arrow_columns(table),
        "op_id": database.decode_dictionary(database.look_up_strings(ops["op_id_id"]), source),
        "op_type": database.look_up_strings(ops["op_type_id"]),
        "direction": database.look_up_strings(ops["direction_id"], _replace_empty_with_null),
        "data_type": database.look_up_strings(ops["data_type_id"], _replace_empty_with_null),
    }


def _read_op_instances_columns(database: DlprofFile) -> Columns:
    source, json = SOURCES["op_instances"], ("input_names", "input_shapes", "output_shapes", "parameters")
    numbers = ("read_only_ops_id", "cpu_start", "cpu_stop", "process_id", "thread_id", *(f"{c}_id" for c in json))
    ops = database.read_rows_by_id(SOURCES["ops"], ("op_id_id",), ("op_name",))
    rows = database.read_rows_by_id(source, numbers).rename({"cpu_start": "start_ns", "cpu_stop": "end_ns"})
    rows = rows.with_columns(op_instance=pl.int_range(pl.len()).over("read_only_ops_id"))
    rows = rows.join(
        ops.select(ID, "op_id_id"), left_on="read_only_ops_id", right_on=ID, how="left", maintain_order="left"
    )
    with_metrics = rows.join(_read_op_instance_metrics(database), on=_INSTANCE_KEY, how="left", maintain_order="left")
    duration, zero_if_missing = (
        pl.col("end_ns") - pl.col("start_ns"),
        ("kernel_count", "gpu_time_ns", "gpu_idle_ns", "api_time_ns"),
    )
    missing = ("range_id", "parent_id", "forward_id", "sequence_number")
    table = with_metrics.select(
        *("start_ns", "end_ns", "process_id", "thread_id"),
        *(pl.col(c).fill_null(0) for c in zero_if_missing),
        *(pl.lit(None, pl.Int64).alias(c) for c in missing),
        op_instance_id=pl.col(ID) - 1,
        iteration=_find_iteration_numbers_at_ends(database, with_metrics["end_ns"]),
        cpu_time_ns=duration,
        cpu_overhead_ns=duration - pl.col("api_time_ns").fill_null(0),
    )
    return {
        **_convert_to_arrow_columns(table),
        "op_id": database.look_up_strings(rows["op_id_id"]),
        "op_name": database.look_up_strings(rows["read_only_ops_id"], strings=map_strings_by_id(ops, "op_name")),
        **{c: database.look_up_strings(rows[f"{c}_id"], _clean_json_texts) for c in json},
    }


def _read_op_instance_metrics(database: DlprofFile) -> pl.DataFrame:
    """Return the kernel count, GPU time, GPU idle time and API time of each op instance, as DLProf defines them."""
    activity_frames, call_frames = [], []
    for source in (*_GPU_TABLES, "read_only_cuda_syncs", "read_only_cuda_calls"):
        on_gpu = source in _GPU_TABLES
        gpu_columns = ("gpu_start", "gpu_stop", "device_id") if on_gpu else ()
        rows = database.read_rows(source, (*_INSTANCE_KEY, "api_start", "api_stop", *gpu_columns))
        call_frames.append(rows.select(*_INSTANCE_KEY, start="api_start", end="api_stop"))
        if on_gpu:
            kernel = pl.lit(source == _GPU_TABLES[0])
            activity_frames.append(
                rows.select(*_INSTANCE_KEY, "device_id", start="gpu_start", end="gpu_stop", kernel=kernel)
            )
    activities = pl.concat(activity_frames)
    by_device = _compute_union_durations(activities, [*_INSTANCE_KEY, "device_id"])
    gpu_times = by_device.group_by(_INSTANCE_KEY).agg(
        gpu_time_ns=pl.col("union").sum(), gpu_idle_ns=(pl.col("span") - pl.col("union")).sum()
    )
    api = _compute_union_durations(pl.concat(call_frames), _INSTANCE_KEY).select(*_INSTANCE_KEY, api_time_ns="union")
    kernels = activities.group_by(_INSTANCE_KEY).agg(kernel_count=pl.col("kernel").sum().cast(pl.Int64))
    return api.join(gpu_times, on=_INSTANCE_KEY, how="left").join(kernels, on=_INSTANCE_KEY, how="left")


def _compute_union_durations(rows: pl.DataFrame, key_columns: list[str]) -> pl.DataFrame:
    """Return the duration of the union of all intervals with the same keys, and the span of these intervals.

    The result has one row per combination of keys. The column ``union`` contains the duration of the union. The column
    ``span`` contains the time from the first start to the last end. Both are in ns.
    """
    ordered = rows.filter(pl.col("end") >= pl.col("start")).sort("start")
    latest_end = pl.col("end").cum_max().shift(1).over(key_columns)
    added = pl.col("end") - pl.max_horizontal(pl.col("start"), latest_end)
    with_added = ordered.with_columns(new=pl.max_horizontal(added, 0))
    return with_added.group_by(key_columns).agg(
        union=pl.col("new").sum(), span=pl.col("end").max() - pl.col("start").min()
    )


def _find_iteration_numbers_at_ends(database: DlprofFile, ends: pl.Series) -> pl.Series:
    """Return the number of the aggregated iteration in which each op instance ends, null if there is no such iteration.

    Args:
        database: The database.
        ends: End of each op instance in ns.
    """
    iterations = _read_iteration_rows(database).sort("end_ns")
    positions = iterations["end_ns"].search_sorted(ends, side="left").cast(pl.Int64)
    rows = pl.DataFrame({"at": positions, "end": ends}).with_columns(
        pl.when(pl.col("at") < iterations.height).then("at")
    )
    candidates = iterations.select(pl.col("iteration", "start_ns", "is_aggregated").gather(rows["at"]))
    is_inside = candidates["is_aggregated"] & (candidates["start_ns"] < rows["end"])
    return candidates["iteration"].zip_with(
        is_inside.fill_null(value=False), pl.repeat(None, len(positions), eager=True, dtype=pl.Int64)
    )


def _read_iterations_columns(database: DlprofFile) -> Columns:
    rows = _read_iteration_rows(database)
    return {
        **_convert_to_arrow_columns(rows.drop("key_node_id")),
        "key_op": database.look_up_strings(rows["key_node_id"], _replace_empty_with_null),
    }


def _read_iteration_rows(database: DlprofFile) -> pl.DataFrame:
    """Return the iterations of the last aggregation, ordered by iteration number.

    The column ``key_node_id`` contains the dictionary id of the name of the key op.
    """
    parts = dict(zip((f"{p}_duration" for p in _ITERATION_PARTS), _PART_COLUMNS, strict=True))
    stats = {
        "total_count": "kernel_count",
        "uses_tc_count": "tensor_core_kernel_count",
        "total_gpu_time": "kernel_time_ns",
        "tc_gpu_time": "tensor_core_kernel_time_ns",
    }
    times = {"iter_value": "iteration", "start_time": "start_ns", "stop_time": "end_ns"}
    key, list_table = ["iter_value"], "iteration_list"
    rows = database.require_unique_keys(_read_last_aggregation(database, list_table, tuple(times)), key, list_table)
    part_times = _read_last_aggregation(database, "iteration_aggregation_list", (*key, *parts)).rename(parts)
    part_times = database.require_unique_keys(part_times, key, "iteration_aggregation_list")
    part_times = part_times.with_columns(is_aggregated=pl.col("in_tensor_core_kernels_ns").is_not_null())
    kernels = _read_last_aggregation(database, "kernel_iteration_stats", (*key, *stats)).rename(stats)
    keys = _read_last_aggregation(database, "iteration_key", ("key_node_id",))
    key_node_id = database.require_unique_keys(keys.with_columns(one=1), ["one"], "iteration_key")["key_node_id"].max()
    joined = rows.join(part_times, on=key, how="left").join(kernels, on=key, how="left").rename(times).sort("iteration")
    return joined.with_columns(
        pl.col("is_aggregated").fill_null(value=False),
        pl.col(*stats.values(), *_PART_COLUMNS).fill_null(0),
        name=pl.lit(None, pl.String),
        window_start_ns="start_ns",
        window_end_ns="end_ns",
        is_warm_up=pl.lit(value=False),
        key_node_id=pl.lit(key_node_id, pl.Int64),
    )


def _build_group_node_columns(database: DlprofFile) -> Columns:
    numbers = ("level", "num_op_instances", "num_supported_leaf_ops", "num_tc_leaf_ops")
    id_columns = (ID, "row_type", "group_op_full_name_id", "group_op_time_metrics_id")
    rows = _read_last_aggregation(database, "group_ops", (*id_columns, *numbers)).filter(pl.col("row_type") == 1)
    with_times = _add_time_sums(database, rows, "group_op_time_metrics_id")
    paths = database.decode_dictionary(database.look_up_strings(rows["group_op_full_name_id"]), "group_ops")
    names = database.read_rows(SOURCES["ops"], (), ("op_name",))["op_name"]
    table = with_times.select(
        "level",
        *(pl.col(c).fill_null(0) for c in _TIMES),
        instance_count="num_op_instances",
        eligible_op_count="num_supported_leaf_ops",
        tensor_core_op_count="num_tc_leaf_ops",
        iteration_count=pl.col("count").fill_null(0),
        op_count=_count_names_with_prefix(pl.Series(paths), names),
        group_node_id=pl.int_range(pl.len()),
        parent_id=_find_parent_row_numbers(pl.Series(paths).fill_null("")),
        direction=pl.lit(None, pl.String),
    )
    return {**_convert_to_arrow_columns(table), "path": paths}


def _find_parent_row_numbers(paths: pl.Series) -> pl.Series:
    """Return the row number of the parent of each path, null for the root and for paths without a parent row."""
    rows = pl.DataFrame({"path": paths}).with_row_index("row").unique("path", keep="last").cast({"row": pl.Int64})
    parent_paths = pl.DataFrame({"path": paths.str.replace(r"[^/]*/\z", "")})
    parents = parent_paths.join(rows, on="path", how="left", maintain_order="left")["row"]
    return parents.zip_with(paths != "", pl.Series([None], dtype=pl.Int64))


def _count_names_with_prefix(paths: pl.Series, names: pl.Series) -> pl.Series:
    """Return, for each path, the number of names that begin with the path."""
    lower_bounds = paths.fill_null("").cast(pl.Binary)
    upper_bounds = pl.Series(
        pc.binary_join_element_wise(lower_bounds.to_arrow(), *(pa.scalar(b, pa.large_binary()) for b in _PREFIX_BOUNDS))
    )
    strings = pl.concat([lower_bounds, upper_bounds, names.drop_nulls().cast(pl.Binary)])
    is_name = pl.int_range(len(strings), eager=True) >= 2 * len(paths)
    rows = pl.DataFrame({"text": strings, "is_name": is_name}).with_row_index("row").sort("text", "is_name")
    names_before = rows.with_columns(before=pl.col("is_name").cum_sum()).sort("row")["before"].cast(pl.Int64)
    return names_before[len(paths) : 2 * len(paths)] - names_before[: len(paths)]


_TABLE_BUILDERS = {
    "ops": _read_ops_columns,
    "op_instances": _read_op_instances_columns,
    "iterations": _read_iterations_columns,
    "group_nodes": _build_group_node_columns,
}


def _read_last_aggregation(database: DlprofFile, table: str, columns: tuple[str, ...]) -> pl.DataFrame:
    """Read columns of the rows of a table that belong to the last aggregation in the database."""
    last = database.read_rows("aggregations", (ID,))[ID].max()
    return (
        database.read_rows(table, ("aggr_id", *columns))
        .filter(pl.col("aggr_id") == pl.lit(last, pl.Int64))
        .drop("aggr_id")
    )


def _add_time_sums(database: DlprofFile, rows: pl.DataFrame, metrics_id_column: str) -> pl.DataFrame:
    """Add one column per time metric with its sum in ns, and the column ``count``.

    The column ``count`` contains the number of values whose sum is the CPU time.

    Args:
        database: The database.
        rows: The rows to extend.
        metrics_id_column: Name of the column of ``rows`` that refers to the time metrics.
    """
    metrics = database.read_rows_by_id("metric", ("count", "sum"))
    sums = database.read_rows_by_id("node_time_metrics", tuple(f"{m}_metric_id" for m in _METRICS))
    for name, metric in _TIMES.items():
        columns = ["sum", "count"] if metric == "cpu_time" else ["sum"]
        metric_sums = metrics.select(ID, *columns).rename({"sum": name})
        sums = sums.join(metric_sums, left_on=f"{metric}_metric_id", right_on=ID, how="left", maintain_order="left")
    sums = sums.select(ID, *_TIMES, "count")
    return rows.join(sums, left_on=metrics_id_column, right_on=ID, how="left", maintain_order="left")


def _replace_empty_with_null(texts: pl.Series) -> pl.Series:
    """Replace empty strings in a series with null."""
    return texts.replace("", None)


def _clean_json_texts(texts: pl.Series) -> pl.Series:
    """Replace empty strings and the string ``null`` with null, and strip trailing spaces from all other strings."""
    return texts.str.strip_chars_end().replace(["", "null"], None)


def _convert_to_arrow_columns(frame: pl.DataFrame) -> Columns:
    return {c.name: c.to_arrow() for c in frame}
