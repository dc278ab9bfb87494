"""What DLProf rolled up: ops, their instances, iterations, groups, of the last aggregation in a database.

A user of DLProf can aggregate again over other iterations; the database keeps every aggregation, its viewer shows one.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.dlprof_db.database import Database

TABLES = ("ops", "op_instances", "iterations", "group_nodes")
SOURCES = {"ops": "read_only_ops", "op_instances": "read_only_op_instances"}
NEEDED: Mapping[str, tuple[str, ...]] = {
    "aggregations": ("id",),
    "metric": ("id", "count", "sum"),
    "node_time_metrics": (
        *("id", "cpu_time_metric_id", "gpu_time_metric_id", "api_time_metric_id"),
        *("cpu_overhead_time_metric_id", "gpu_idle_time_metric_id"),
    ),
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
"""Columns that the queries name beside those of the tables of calls."""

_TIMES = {
    "cpu_time_ns": "cpu_time",
    "gpu_time_ns": "gpu_time",
    "api_time_ns": "api_time",
    "cpu_overhead_ns": "cpu_overhead_time",
    "gpu_idle_ns": "gpu_idle_time",
}
_PARTS = ("tc", "non_tc", "memory", "dataloader", "io", "cpu", "other")
_IN = (
    *("in_tensor_core_kernels_ns", "in_other_kernels_ns", "in_memory_ops_ns", "in_dataloader_ns", "in_io_ns"),
    *("in_cpu_ns", "in_nothing_ns"),
)
_SUPPORT = {0: "eligible", 3: "not eligible"}
_LAST = "(SELECT max(id) FROM aggregations)"
_GPU_TABLES = ("read_only_kernels", "read_only_memsets", "read_only_memcpys")
_INSTANCE = ["read_only_ops_id", "op_instance"]


def table(database: Database, name: str) -> pa.Table:
    """Make one of ``TABLES``; empty if its source is not there."""
    made: pa.Table = _MAKERS[name](database).to_arrow()
    return made


def _ops(database: Database) -> pl.DataFrame:
    sql = f"""SELECT i.string AS op_id, o.op_name, t.string AS op_type, x.string AS direction,
        d.string AS data_type, o.stack_trace, o.tc_support_status AS support, coalesce(n.using_tc, 0) AS uses,
        coalesce(n.num_calls, 0) AS instance_count, coalesce(n.kernel_calls, 0) AS kernel_count, {_sums()}
        FROM read_only_ops o LEFT JOIN dictionary i ON i.id = o.op_id_id LEFT JOIN dictionary t ON t.id = o.op_type_id
        LEFT JOIN dictionary x ON x.id = o.direction_id LEFT JOIN dictionary d ON d.id = o.data_type_id
        LEFT JOIN op_nodes n ON n.read_only_ops_id = o.id AND n.aggr_id = {_LAST}
        {_joined("n.node_time_metrics_id")} ORDER BY o.id"""  # noqa: S608 - all of it ours
    texts = ("op_id", "op_name", "op_type", "direction", "data_type", "stack_trace")
    found = _read(database, sql, texts, ("support", "uses", "instance_count", "kernel_count", *_TIMES), "read_only_ops")
    support = pl.col("support").replace_strict(_SUPPORT, default="maybe", return_dtype=pl.String)
    return found.with_columns(
        *(_given(c) for c in ("direction", "data_type", "stack_trace")),
        is_associated=~pl.col("op_name").str.starts_with("unassociated_"),
        tensor_core_support=support,
        uses_tensor_cores=pl.col("uses") != 0,
    )


def _op_instances(database: Database) -> pl.DataFrame:
    sql = """SELECT t.id - 1 AS op_instance_id, t.read_only_ops_id, t.cpu_start AS start_ns, t.cpu_stop AS end_ns,
        t.process_id, t.thread_id, i.string AS op_id, o.op_name, n.string AS input_names, s.string AS input_shapes,
        u.string AS output_shapes, p.string AS parameters
        FROM read_only_op_instances t LEFT JOIN read_only_ops o ON o.id = t.read_only_ops_id
        LEFT JOIN dictionary i ON i.id = o.op_id_id LEFT JOIN dictionary n ON n.id = t.input_names_id
        LEFT JOIN dictionary s ON s.id = t.input_shapes_id LEFT JOIN dictionary u ON u.id = t.output_shapes_id
        LEFT JOIN dictionary p ON p.id = t.parameters_id ORDER BY t.id"""
    json = ("input_names", "input_shapes", "output_shapes", "parameters")
    numbers = ("op_instance_id", "read_only_ops_id", "start_ns", "end_ns", "process_id", "thread_id")
    found = _read(database, sql, ("op_id", "op_name", *json), numbers, "read_only_op_instances")
    found = found.with_columns(op_instance=pl.int_range(pl.len()).over("read_only_ops_id"))
    measured = found.join(_measured(database), on=_INSTANCE, how="left", maintain_order="left")
    spent = measured.with_columns(pl.col("kernel_count", "gpu_time_ns", "gpu_idle_ns", "api_time_ns").fill_null(0))
    length = pl.col("end_ns") - pl.col("start_ns")
    texts = [pl.col(c).str.strip_chars_end().replace(["", "null"], None) for c in json]
    absent = ("range_id", "parent_id", "forward_id", "sequence_number")
    return spent.with_columns(
        *texts,
        *(pl.lit(None, pl.Int64).alias(c) for c in absent),
        iteration=_iteration_of(database, spent["end_ns"]),
        cpu_time_ns=length,
        cpu_overhead_ns=length - pl.col("api_time_ns"),
    )


def _measured(database: Database) -> pl.DataFrame:
    """Measure instances, by op and number: kernels, and the lengths that DLProf gives them."""
    gpu, calls = [], []
    for source in (*_GPU_TABLES, "read_only_cuda_syncs", "read_only_cuda_calls"):
        on_gpu = source in _GPU_TABLES
        columns = ("read_only_ops_id", "op_instance", "api_start", "api_stop")
        more = ("gpu_start", "gpu_stop", "device_id") if on_gpu else ()
        sql = f"SELECT {', '.join((*columns, *more))} FROM {source}"  # noqa: S608 - ours
        rows = _read(database, sql, (), (*columns, *more), source)
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
    """Give the aggregated iteration that each instance ended in; null for none."""
    known = _iterations(database).sort("end_ns")
    at = known["end_ns"].search_sorted(ends, side="left").cast(pl.Int64)
    rows = pl.DataFrame({"at": at, "end": ends}).with_columns(pl.when(pl.col("at") < known.height).then("at"))
    found = known.select(pl.col("iteration", "start_ns", "is_aggregated").gather(rows["at"]))
    inside = found["is_aggregated"] & (found["start_ns"] < rows["end"])
    return found["iteration"].zip_with(
        inside.fill_null(value=False), pl.repeat(None, len(at), eager=True, dtype=pl.Int64)
    )


def _iterations(database: Database) -> pl.DataFrame:
    spent = ", ".join(f"a.{p}_duration AS {n}" for p, n in zip(_PARTS, _IN, strict=True))
    sql = f"""SELECT t.iter_value AS iteration, t.start_time AS start_ns, t.stop_time AS end_ns,
        k.string AS key_op, a.tc_duration IS NOT NULL AS aggregated, s.total_count AS kernel_count,
        s.uses_tc_count AS tensor_core_kernel_count, s.total_gpu_time AS kernel_time_ns,
        s.tc_gpu_time AS tensor_core_kernel_time_ns, {spent}
        FROM iteration_list t
        LEFT JOIN iteration_aggregation_list a ON a.aggr_id = t.aggr_id AND a.iter_value = t.iter_value
        LEFT JOIN kernel_iteration_stats s ON s.aggr_id = t.aggr_id AND s.iter_value = t.iter_value
        LEFT JOIN iteration_key y ON y.aggr_id = t.aggr_id LEFT JOIN dictionary k ON k.id = y.key_node_id
        WHERE t.aggr_id = {_LAST} ORDER BY t.iter_value"""  # noqa: S608 - all of it ours
    counted = ("kernel_count", "tensor_core_kernel_count", "kernel_time_ns", "tensor_core_kernel_time_ns", *_IN)
    numbers = ("iteration", "start_ns", "end_ns", "aggregated", *counted)
    found = _read(database, sql, ("key_op",), numbers, "iteration_list")
    return found.with_columns(_given("key_op"), pl.col(counted).fill_null(0), is_aggregated=pl.col("aggregated") != 0)


def _group_nodes(database: Database) -> pl.DataFrame:
    sql = f"""SELECT d.string AS path, t.level, t.num_op_instances AS instance_count,
        t.num_supported_leaf_ops AS eligible_op_count, t.num_tc_leaf_ops AS tensor_core_op_count,
        coalesce(m_cpu_time.count, 0) AS iteration_count, {_sums()}
        FROM group_ops t LEFT JOIN dictionary d ON d.id = t.group_op_full_name_id
        {_joined("t.group_op_time_metrics_id")} WHERE t.row_type = 1 AND t.aggr_id = {_LAST} ORDER BY t.id"""  # noqa: S608
    counted = ("level", "instance_count", "eligible_op_count", "tensor_core_op_count", "iteration_count", *_TIMES)
    found = _read(database, sql, ("path",), counted, "group_ops")
    names = _read(database, "SELECT op_name FROM read_only_ops", ("op_name",), (), "read_only_ops")["op_name"]
    ordered = sorted(n.encode() for n in names.drop_nulls())
    paths = [p.encode() for p in found["path"].fill_null("")]
    below = [bisect_left(ordered, p + b"\xff") - bisect_left(ordered, p) for p in paths]
    rows = {p: row for row, p in enumerate(paths)}
    parents = [rows.get(p[: p.rfind(b"/", 0, -1) + 1]) for p in paths]
    return found.with_columns(
        op_count=pl.Series(below, dtype=pl.Int64),
        group_node_id=pl.int_range(pl.len()),
        parent_id=pl.Series(parents, dtype=pl.Int64),
        direction=pl.lit(None, pl.String),
    )


_MAKERS = {"ops": _ops, "op_instances": _op_instances, "iterations": _iterations, "group_nodes": _group_nodes}


def _sums() -> str:
    return ", ".join(f"coalesce(m_{m}.sum, 0) AS {n}" for n, m in _TIMES.items())


def _joined(metrics: str) -> str:
    joins = (f"LEFT JOIN metric m_{m} ON m_{m}.id = w.{m}_metric_id" for m in _TIMES.values())
    return f"LEFT JOIN node_time_metrics w ON w.id = {metrics} {' '.join(joins)}"


def _given(column: str) -> pl.Expr:
    return pl.when(pl.col(column) != "").then(pl.col(column)).alias(column)


def _read(database: Database, sql: str, texts: tuple[str, ...], numbers: tuple[str, ...], source: str) -> pl.DataFrame:
    kinds = dict.fromkeys(texts, pa.string()) | dict.fromkeys(numbers, pa.int64())
    return pl.DataFrame(pa.table(database.read(sql, kinds, table=source)))
