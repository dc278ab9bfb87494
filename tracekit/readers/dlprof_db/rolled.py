"""What DLProf rolled up: ops, their instances, iterations, groups, of the last aggregation in a database.

A user of DLProf can aggregate again over other iterations; the database keeps every aggregation, its viewer shows one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.forks import check_polars
from tracekit.readers.dlprof_db.database import ID, strings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.dlprof_db.database import Database

    Columns = dict[str, pa.Array]

TABLES = ("ops", "op_instances", "iterations", "group_nodes")
SOURCES = {"ops": "read_only_ops", "op_instances": "read_only_op_instances"}
_METRICS = ("cpu_time", "gpu_time", "api_time", "cpu_overhead_time", "gpu_idle_time")
_TIMES = dict(
    zip(("cpu_time_ns", "gpu_time_ns", "api_time_ns", "cpu_overhead_ns", "gpu_idle_ns"), _METRICS, strict=True)
)
NEEDED: Mapping[str, tuple[str, ...]] = {
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
"""Columns that are read beside those of the tables of calls."""

_PARTS = ("tc", "non_tc", "memory", "dataloader", "io", "cpu", "other")
_IN = (
    *("in_tensor_core_kernels_ns", "in_other_kernels_ns", "in_memory_ops_ns", "in_dataloader_ns", "in_io_ns"),
    *("in_cpu_ns", "in_nothing_ns"),
)
_SUPPORT = {0: "eligible", 3: "not eligible"}
_GPU_TABLES = ("read_only_kernels", "read_only_memsets", "read_only_memcpys")
_AFTER = (b"\xff", b"")
"""What makes a path greater than every name that begins with it, and what stands between the two."""

_INSTANCE = ["read_only_ops_id", "op_instance"]


def table(database: Database, name: str) -> pa.Table:
    """Make one of ``TABLES``; empty if its source is not there."""
    check_polars()
    return pa.table(_MAKERS[name](database))


def _ops(database: Database) -> Columns:
    source = SOURCES["ops"]
    numbers = ("op_id_id", "op_type_id", "direction_id", "data_type_id", "tc_support_status")
    ops = database.by_id(source, numbers, ("op_name", "stack_trace"))
    counted = ("num_calls", "kernel_calls", "using_tc")
    nodes = _last(database, "op_nodes", ("read_only_ops_id", "node_time_metrics_id", *counted))
    nodes = _timed(database, database.unique(nodes, ["read_only_ops_id"], "op_nodes"), "node_time_metrics_id")
    joined = ops.join(nodes, left_on=ID, right_on="read_only_ops_id", how="left", maintain_order="left")
    support = pl.col("tc_support_status").replace_strict(_SUPPORT, default="maybe", return_dtype=pl.String)
    made = joined.select(
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
        **_arrays(made),
        "op_id": database.spelled_out(database.named(ops["op_id_id"]), source),
        "op_type": database.named(ops["op_type_id"]),
        "direction": database.named(ops["direction_id"], _filled),
        "data_type": database.named(ops["data_type_id"], _filled),
    }


def _op_instances(database: Database) -> Columns:
    source, json = SOURCES["op_instances"], ("input_names", "input_shapes", "output_shapes", "parameters")
    numbers = ("read_only_ops_id", "cpu_start", "cpu_stop", "process_id", "thread_id", *(f"{c}_id" for c in json))
    ops = database.by_id(SOURCES["ops"], ("op_id_id",), ("op_name",))
    rows = database.by_id(source, numbers).rename({"cpu_start": "start_ns", "cpu_stop": "end_ns"})
    rows = rows.with_columns(op_instance=pl.int_range(pl.len()).over("read_only_ops_id"))
    rows = rows.join(
        ops.select(ID, "op_id_id"), left_on="read_only_ops_id", right_on=ID, how="left", maintain_order="left"
    )
    measured = rows.join(_measured(database), on=_INSTANCE, how="left", maintain_order="left")
    length, zero = pl.col("end_ns") - pl.col("start_ns"), ("kernel_count", "gpu_time_ns", "gpu_idle_ns", "api_time_ns")
    absent = ("range_id", "parent_id", "forward_id", "sequence_number")
    made = measured.select(
        *("start_ns", "end_ns", "process_id", "thread_id"),
        *(pl.col(c).fill_null(0) for c in zero),
        *(pl.lit(None, pl.Int64).alias(c) for c in absent),
        op_instance_id=pl.col(ID) - 1,
        iteration=_iteration_of(database, measured["end_ns"]),
        cpu_time_ns=length,
        cpu_overhead_ns=length - pl.col("api_time_ns").fill_null(0),
    )
    return {
        **_arrays(made),
        "op_id": database.named(rows["op_id_id"]),
        "op_name": database.named(rows["read_only_ops_id"], of=strings(ops, "op_name")),
        **{c: database.named(rows[f"{c}_id"], _json) for c in json},
    }


def _measured(database: Database) -> pl.DataFrame:
    """Measure instances, by op and number: kernels, and the lengths that DLProf gives them."""
    gpu, calls = [], []
    for source in (*_GPU_TABLES, "read_only_cuda_syncs", "read_only_cuda_calls"):
        on_gpu = source in _GPU_TABLES
        more = ("gpu_start", "gpu_stop", "device_id") if on_gpu else ()
        rows = database.rows(source, (*_INSTANCE, "api_start", "api_stop", *more))
        calls.append(rows.select(*_INSTANCE, start="api_start", end="api_stop"))
        if on_gpu:
            kernel = pl.lit(source == _GPU_TABLES[0])
            gpu.append(rows.select(*_INSTANCE, "device_id", start="gpu_start", end="gpu_stop", kernel=kernel))
    work = pl.concat(gpu)
    by_device = _unions(work, [*_INSTANCE, "device_id"])
    on_gpu_time = by_device.group_by(_INSTANCE).agg(
        gpu_time_ns=pl.col("union").sum(), gpu_idle_ns=(pl.col("span") - pl.col("union")).sum()
    )
    api = _unions(pl.concat(calls), _INSTANCE).select(*_INSTANCE, api_time_ns="union")
    kernels = work.group_by(_INSTANCE).agg(kernel_count=pl.col("kernel").sum().cast(pl.Int64))
    return api.join(on_gpu_time, on=_INSTANCE, how="left").join(kernels, on=_INSTANCE, how="left")


def _unions(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Measure the intervals of each key: ``union`` of them all, and ``span`` from the first to the last moment."""
    ordered = rows.filter(pl.col("end") >= pl.col("start")).sort("start")
    before = pl.col("end").cum_max().shift(1).over(keys)
    new = pl.col("end") - pl.max_horizontal(pl.col("start"), before)
    measured = ordered.with_columns(new=pl.max_horizontal(new, 0))
    return measured.group_by(keys).agg(union=pl.col("new").sum(), span=pl.col("end").max() - pl.col("start").min())


def _iteration_of(database: Database, ends: pl.Series) -> pl.Series:
    """Return the aggregated iteration that each instance ended in; null for none."""
    known = _iteration_rows(database).sort("end_ns")
    at = known["end_ns"].search_sorted(ends, side="left").cast(pl.Int64)
    rows = pl.DataFrame({"at": at, "end": ends}).with_columns(pl.when(pl.col("at") < known.height).then("at"))
    reached = known.select(pl.col("iteration", "start_ns", "is_aggregated").gather(rows["at"]))
    inside = reached["is_aggregated"] & (reached["start_ns"] < rows["end"])
    return reached["iteration"].zip_with(
        inside.fill_null(value=False), pl.repeat(None, len(at), eager=True, dtype=pl.Int64)
    )


def _iterations(database: Database) -> Columns:
    rows = _iteration_rows(database)
    return {**_arrays(rows.drop("key_node_id")), "key_op": database.named(rows["key_node_id"], _filled)}


def _iteration_rows(database: Database) -> pl.DataFrame:
    """Return the iterations of the last aggregation in order; their key op by its id."""
    parts = dict(zip((f"{p}_duration" for p in _PARTS), _IN, strict=True))
    stats = {
        "total_count": "kernel_count",
        "uses_tc_count": "tensor_core_kernel_count",
        "total_gpu_time": "kernel_time_ns",
        "tc_gpu_time": "tensor_core_kernel_time_ns",
    }
    times = {"iter_value": "iteration", "start_time": "start_ns", "stop_time": "end_ns"}
    key, listed = ["iter_value"], "iteration_list"
    rows = database.unique(_last(database, listed, tuple(times)), key, listed)
    spent = _last(database, "iteration_aggregation_list", (*key, *parts)).rename(parts)
    spent = database.unique(spent, key, "iteration_aggregation_list")
    spent = spent.with_columns(is_aggregated=pl.col("in_tensor_core_kernels_ns").is_not_null())
    kernels = _last(database, "kernel_iteration_stats", (*key, *stats)).rename(stats)
    keys = _last(database, "iteration_key", ("key_node_id",))
    named = database.unique(keys.with_columns(one=1), ["one"], "iteration_key")["key_node_id"].max()
    joined = rows.join(spent, on=key, how="left").join(kernels, on=key, how="left").rename(times).sort("iteration")
    return joined.with_columns(
        pl.col("is_aggregated").fill_null(value=False),
        pl.col(*stats.values(), *_IN).fill_null(0),
        key_node_id=pl.lit(named, pl.Int64),
    )


def _group_nodes(database: Database) -> Columns:
    numbers = ("level", "num_op_instances", "num_supported_leaf_ops", "num_tc_leaf_ops")
    more = (ID, "row_type", "group_op_full_name_id", "group_op_time_metrics_id")
    rows = _last(database, "group_ops", (*more, *numbers)).filter(pl.col("row_type") == 1)
    timed = _timed(database, rows, "group_op_time_metrics_id")
    paths = database.spelled_out(database.named(rows["group_op_full_name_id"]), "group_ops")
    names = database.rows(SOURCES["ops"], (), ("op_name",))["op_name"]
    made = timed.select(
        "level",
        *(pl.col(c).fill_null(0) for c in _TIMES),
        instance_count="num_op_instances",
        eligible_op_count="num_supported_leaf_ops",
        tensor_core_op_count="num_tc_leaf_ops",
        iteration_count=pl.col("count").fill_null(0),
        op_count=_below(pl.Series(paths), names),
        group_node_id=pl.int_range(pl.len()),
        parent_id=_parents(pl.Series(paths).fill_null("")),
        direction=pl.lit(None, pl.String),
    )
    return {**_arrays(made), "path": paths}


def _parents(paths: pl.Series) -> pl.Series:
    """Find the row of the path one level up from each, null for the root and where it is missing: n paths in, n out."""
    rows = pl.DataFrame({"path": paths}).with_row_index("row").unique("path", keep="last").cast({"row": pl.Int64})
    up = pl.DataFrame({"path": paths.str.replace(r"[^/]*/\z", "")})
    found = up.join(rows, on="path", how="left", maintain_order="left")["row"]
    return found.zip_with(paths != "", pl.Series([None], dtype=pl.Int64))


def _below(paths: pl.Series, names: pl.Series) -> pl.Series:
    """Count the names that begin with each path: n paths in, n numbers out."""
    first = paths.fill_null("").cast(pl.Binary)
    after = pl.Series(pc.binary_join_element_wise(first.to_arrow(), *(pa.scalar(b, pa.large_binary()) for b in _AFTER)))
    texts = pl.concat([first, after, names.drop_nulls().cast(pl.Binary)])
    is_name = pl.int_range(len(texts), eager=True) >= 2 * len(paths)
    rows = pl.DataFrame({"text": texts, "is_name": is_name}).with_row_index("row").sort("text", "is_name")
    before = rows.with_columns(before=pl.col("is_name").cum_sum()).sort("row")["before"].cast(pl.Int64)
    return before[len(paths) : 2 * len(paths)] - before[: len(paths)]


_MAKERS = {"ops": _ops, "op_instances": _op_instances, "iterations": _iterations, "group_nodes": _group_nodes}


def _last(database: Database, table: str, columns: tuple[str, ...]) -> pl.DataFrame:
    """Read columns of the rows of the last aggregation."""
    last = database.rows("aggregations", (ID,))[ID].max()
    return (
        database.rows(table, ("aggr_id", *columns)).filter(pl.col("aggr_id") == pl.lit(last, pl.Int64)).drop("aggr_id")
    )


def _timed(database: Database, rows: pl.DataFrame, metrics_id: str) -> pl.DataFrame:
    """Add the sums of the metrics that each row names, and how many values the sum of the CPU time has as ``count``."""
    metrics = database.by_id("metric", ("count", "sum"))
    sets = database.by_id("node_time_metrics", tuple(f"{m}_metric_id" for m in _METRICS))
    for name, metric in _TIMES.items():
        kept = ["sum", "count"] if metric == "cpu_time" else ["sum"]
        of = metrics.select(ID, *kept).rename({"sum": name})
        sets = sets.join(of, left_on=f"{metric}_metric_id", right_on=ID, how="left", maintain_order="left")
    sets = sets.select(ID, *_TIMES, "count")
    return rows.join(sets, left_on=metrics_id, right_on=ID, how="left", maintain_order="left")


def _filled(texts: pl.Series) -> pl.Series:
    """Replace empty texts by null."""
    return texts.replace("", None)


def _json(texts: pl.Series) -> pl.Series:
    """Replace empty texts and those that say null by null, others without spaces at their end."""
    return texts.str.strip_chars_end().replace(["", "null"], None)


def _arrays(frame: pl.DataFrame) -> Columns:
    return {c.name: c.to_arrow() for c in frame}
