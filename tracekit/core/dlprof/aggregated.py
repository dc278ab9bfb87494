"""Build the database tables that depend on the aggregated iterations, such as metrics, summaries and findings."""

from __future__ import annotations

import functools
from typing import Any

import polars as pl

from tracekit.core.dlprof import advice
from tracekit.core.dlprof.model import GPU_PARTS, round_to_six_decimals
from tracekit.core.dlprof.recorded import RecordedDlprofTables
from tracekit.core.rollup import KERNEL_METRICS, METRICS
from tracekit.core.rollup.measures import PARTS
from tracekit.core.series import decode_categories

_DURATIONS = tuple(f"{n}_duration" for n in ("tc", "non_tc", "memory", "dataloader", "io", "cpu", "other"))
_AGGREGATION_IDS = pl.struct(aggr_id=pl.lit(1, pl.Int64), domain_id=pl.lit(1, pl.Int64)).alias("ids")
_KERNEL_COUNTS = {
    "total_count": pl.col("kernel_count"),
    "uses_tc_count": pl.col("tc_count"),
    "total_gpu_time": pl.col("gpu_time"),
    "tc_gpu_time": pl.col("tc_time"),
}


class AggregatedTables(RecordedDlprofTables):
    """The tables of a DLProf database, including the tables that depend on the aggregated iterations.

    Each table is an attribute with the name of the table.
    """

    @property
    def aggregations(self) -> pl.DataFrame:
        """The table ``aggregations``.

        One row that describes the aggregation of iterations. Other tables refer to this row with ``aggr_id`` 1.

        User name, host name and times are blank ("" or 0), because they are private. Exporters fill them in on request.
        """
        blank = {"server_user_name": "", "server_host_name": "", "start_timestamp": "", "end_timestamp": 0}
        return pl.DataFrame([blank])

    @functools.cached_property
    def expert_systems_feedback(self) -> pl.DataFrame:
        """The table ``expert_systems_feedback``: one row per finding of the expert systems."""
        names = ("exp_sys_id", "problem", "recommendation", "javascript_function", "javascript_args")
        rows = [(1, *f) for f in advice.compute_findings(self.model)]
        schema = {"aggr_id": pl.Int64(), **dict.fromkeys(names, pl.String())}
        return pl.DataFrame(rows, schema=schema, orient="row")

    @property
    def iteration_key(self) -> pl.DataFrame:
        """The table ``iteration_key``: one row with the string id of the key op, which delimits iterations."""
        return pl.DataFrame({"aggr_id": [1], "key_node_id": [self._key_op_name_id]})

    @property
    def iteration_list(self) -> pl.DataFrame:
        """The table ``iteration_list``: one row per iteration of the capture, with its number, start and end."""
        return self.rollup.iterations.frame.select(
            aggr_id=1, iter_value="iteration", start_time="start_ns", stop_time="end_ns"
        )

    @property
    def iteration_aggregation_list(self) -> pl.DataFrame:
        """The table ``iteration_aggregation_list``.

        One row per aggregated iteration, with its time divided into parts such as kernels and memory.
        """
        rows = self.model.part_times.with_columns(pl.col(PARTS).cast(pl.Int64, strict=False).fill_null(0))
        total = pl.sum_horizontal(PARTS)
        used = 100 * pl.sum_horizontal(GPU_PARTS)
        share = rows.select(pl.when(total > 0).then(used / total).otherwise(0.0)).to_series()
        times = {n: pl.col(p) for n, p in zip(_DURATIONS, PARTS, strict=True)}
        return rows.select(aggr_id=1, iter_value="iteration", gpu_utilization=round_to_six_decimals(share), **times)

    @property
    def category_summary(self) -> pl.DataFrame:
        """The table ``category_summary``.

        One row for each of DLProf's eight categories of ops, kernels and memory operations.
        """
        return self.model.categories

    @property
    def model_summary(self) -> pl.DataFrame:
        """The table ``model_summary``.

        One row with the utilization, times, iterations and categories of the whole model.
        """
        model, its = self.model, self.rollup.iterations
        mean, deviation = model.iteration_mean_and_std_ns
        rates = {"gpu_utilization": model.gpu_utilization, "tc_utilization": model.tc_utilization}
        shares = {f"{n}_pct": model.part_percentages[p] for n, p in zip(_DURATIONS, PARTS, strict=True)}
        times = {"avg_iteration_time": mean, "iteration_time_std_dev": deviation}
        counts = {"iter_total": its.frame.height, "iter_aggregated": its.aggregated.height}
        row: dict[str, Any] = {"aggr_id": 1, "domain_id": 1, "is_custom_domain": 1, "wall_time": model.wall_ns}
        row |= {f"nodes_{n}_id": i for i, n in enumerate(("total", "tc_eligible", "using_tc", "other"), 1)}
        row |= {n: round(v, 6) for n, v in (rates | shares | times).items()}
        row |= counts | {"iter_start": its.first, "iter_stop": its.last, "key_node_id": self._key_op_name_id}
        return pl.DataFrame([row])

    @property
    def device_gpu_utilizations(self) -> pl.DataFrame:
        """The table ``device_gpu_utilizations``: one row per GPU in the table ``devices``, with its utilization.

        The utilization is the percentage of the time of the aggregated iterations during which the GPU ran kernels.
        """
        ids = {d: i for i, d in enumerate(self.read_only_gpu_infos["device_id"].to_list(), 1)}
        rows = [(1, 1, ids[d], round(v, 6)) for d, v in self.model.device_utilization.items()]
        names = {"aggr_id": pl.Int64, "domain_id": pl.Int64, "gpu_info_id": pl.Int64, "gpu_utilization": pl.Float64}
        return pl.DataFrame(rows, schema=names, orient="row")

    @property
    def metric(self) -> pl.DataFrame:
        """The table ``metric``.

        The distinct metrics, each a tuple of count, maximum, minimum, sum and average, in the order of their
        ids.
        """
        return self.metrics.frame

    @property
    def node_time_metrics(self) -> pl.DataFrame:
        """The table ``node_time_metrics``.

        The metric ids of ops, groups, leaves of the group tree, and op types, in this order.

        The leaves of the group tree are the ops, so DLProf writes the metric ids of ops twice.
        """
        frames = (self._ops_by_id, self._groups, self._ops_by_id, self._op_types)
        names = ("cpu_time", "gpu_time", "api_time", "cpu_overhead_time", "gpu_idle_time")
        columns = list(zip(names, METRICS, strict=True))
        return pl.concat(
            [
                pl.DataFrame({f"{n}_metric_id": self.metrics.look_up_metric_ids(f, m) for n, m in columns})
                for f in frames
            ]
        )

    @property
    def kernel_time_metrics(self) -> pl.DataFrame:
        """The table ``kernel_time_metrics``.

        One row per op in order of ``op_id``: the metric ids of the API time and GPU time of its kernels.
        """
        ids = {m: self.metrics.look_up_metric_ids(self._ops_by_id, m) for m in KERNEL_METRICS}
        return pl.DataFrame({"api_time_metric_id": ids["kernel_api"], "gpu_time_metric_id": ids["kernel_gpu"]})

    @property
    def op_nodes(self) -> pl.DataFrame:
        """The table ``op_nodes``.

        One row per op in order of ``op_id``, with its statistics over the aggregated iterations.
        """
        number = pl.int_range(1, pl.len() + 1)
        return self._ops_by_id.select(
            aggr_id=1,
            read_only_ops_id=pl.col("op") + 1,
            node_time_metrics_id=number,
            kernel_time_metrics_id=number,
            num_calls="count",
            kernel_calls="kernel_count",
            tc_eligible=pl.col("eligible").cast(pl.Int8),
            using_tc=pl.col("uses_tc").cast(pl.Int8),
            is_bad_data_type=pl.col("bad_type").cast(pl.Int8),
        )

    @property
    def group_ops(self) -> pl.DataFrame:
        """The table ``group_ops``: the group nodes, followed by the ops in order of ``op_id``.

        The ops are the leaves of the group tree.
        """
        path, name = (
            self.strings.look_up_string_ids(self._groups["path"]),
            decode_categories(self._ops_by_id["op_name"]),
        )
        nodes = self._groups.select(
            _AGGREGATION_IDS,
            row_type=1,
            group_op_full_id_id=path,
            group_op_full_name_id=path,
            level="level",
            num_op_instances="instance_count",
            num_supported_leaf_ops="eligible_count",
            num_tc_leaf_ops="uses_tc_count",
        )
        leaves = self._ops_by_id.select(
            _AGGREGATION_IDS,
            row_type=2,
            group_op_full_id_id=self.strings.look_up_string_ids(self._ops_by_id["op_id"]),
            group_op_full_name_id=self.strings.look_up_string_ids(name),
            level=name.str.count_matches("/", literal=True).cast(pl.Int64) + 1,
            num_op_instances="count",
            num_supported_leaf_ops=pl.col("eligible").cast(pl.Int64),
            num_tc_leaf_ops=pl.col("uses_tc").cast(pl.Int64),
        )
        number = pl.int_range(pl.len()) + 1 + self._ops_by_id.height
        return pl.concat([nodes, leaves]).unnest("ids").with_columns(group_op_time_metrics_id=number)

    @property
    def kernel_summaries(self) -> pl.DataFrame:
        """The table ``kernel_summaries``.

        One row per op and short kernel name, in order of ``op_id`` and kernel name.
        """
        rows = self._kernel_summaries
        return rows.select(
            _AGGREGATION_IDS,
            read_only_ops_id=pl.col("op") + 1,
            kernel_name_id=self.strings.look_up_string_ids(rows["name"]),
            api_time_metric_id=self.metrics.look_up_metric_ids(rows, "kernel_api"),
            gpu_time_metric_id=self.metrics.look_up_metric_ids(rows, "kernel_gpu"),
            uses_tc=pl.col("uses_tc").cast(pl.Int8),
        ).unnest("ids")

    @property
    def kernel_iteration_stats(self) -> pl.DataFrame:
        """The table ``kernel_iteration_stats``.

        One row per aggregated iteration, with the counts and times of its kernels.
        """
        rows = self.rollup.kernels_by_iteration
        return rows.select(_AGGREGATION_IDS, iter_value="iteration", **_KERNEL_COUNTS).unnest("ids")

    @property
    def kernel_iteration_node(self) -> pl.DataFrame:
        """The table ``kernel_iteration_node``.

        One row per kernel in an iteration, with the counts and times of all kernels of the same op and
        iteration.
        """
        keys = ["op", "iteration"]
        rows = self._kernels.select(*keys, kernel=pl.int_range(1, pl.len() + 1)).drop_nulls("iteration")
        rows = rows.join(self.rollup.kernels_by_op_and_iteration, on=keys, how="left", maintain_order="left")
        ids = {"read_only_ops_id": pl.col("op") + 1, "read_only_kernel_id": pl.col("kernel")}
        return rows.select(_AGGREGATION_IDS, **ids, iter_value="iteration", **_KERNEL_COUNTS).unnest("ids")

    @property
    def kernel_summary_metrics(self) -> pl.DataFrame:
        """The table ``kernel_summary_metrics``.

        One row with the ids of the rows of ``category_summary`` that describe kernels.
        """
        return pl.DataFrame(
            [{"aggr_id": 1, "domain_id": 1, "kernels_total_id": 5, "kernels_using_tc_id": 6, "kernels_non_tc_id": 7}]
        )

    @property
    def memory_summary_metrics(self) -> pl.DataFrame:
        """The table ``memory_summary_metrics``.

        One row with the id of the row of ``category_summary`` that describes memory operations.
        """
        return pl.DataFrame([{"aggr_id": 1, "domain_id": 1, "memory_time_id": 8}])

    @property
    def op_type_metrics(self) -> pl.DataFrame:
        """The table ``op_type_metrics``.

        One row per op type with instances: its counts of ops and instances, and its id in
        ``node_time_metrics``.
        """
        preceding = 2 * self._ops_by_id.height + self._groups.height
        return self._op_types.select(
            _AGGREGATION_IDS,
            op_node_type_id=self.strings.look_up_string_ids(self._op_types["op_type"]),
            op_type_metrics_id=pl.int_range(1, pl.len() + 1) + preceding,
            num_nodes="op_count",
            num_calls="count",
        ).unnest("ids")
