"""A capture as DLProf 1.8.0 kept it: the rows of every table of its database.

``strings`` is the dictionary that all texts are kept in, ``metrics`` the table of distinct metrics, ``model`` the
figures of the whole, ``advice`` the findings of the expert systems. Times are those of the capture, rows and ids in
DLProf's order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.core.dlprof import advice
from tracekit.core.dlprof.metrics import Metrics, rounded
from tracekit.core.dlprof.model import ON_DEVICE, Model
from tracekit.core.dlprof.strings import Dictionary, used
from tracekit.core.rollup import KERNEL_METRICS, METRICS
from tracekit.core.rollup.breakdown import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracekit.core.rollup import Rollup

DOMAIN = "default-domain"
MODES = {"pyprof": (4, "pytorch"), "emit-nvtx": (4, "pytorch")}
SYSTEM = ("gpu_count", "cpu_model", "driver_version", "framework", "cuda_version", "cudnn_version", "nsys_version")
FLAGS = (
    *("cudnn_benchmark_disabled", "detect_anomaly", "gradcheck", "gradgradcheck", "autograd_profile"),
    *("autograd_set_detect_anomaly", "emit_nvtx", "amp_enabled"),
)
UNKNOWN = "UNKNOWN"
_COPIES = (
    *("Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array"),
    *("Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer"),
)
_SYNCS = ("Unknown", "Event sync", "Stream wait sync", "Stream sync", "Context sync")
_NO_EVENT = (1 << 32) - 1
_BLOCK = ["x", "y", "z"]
_KERNEL_METRICS = KERNEL_METRICS[::-1]
_OP_TEXTS = (
    *("op_id", "op_type", "device", "data_type", "data_format", "output_format", "parameters_format", "direction"),
)
_INSTANCE_TEXTS = ("input_names", "input_shapes", "output_names", "output_shapes", "parameters")


def tables(rollup: Rollup) -> dict[str, pl.DataFrame]:
    """Make the rows of every table of the database, without their ids, which are the numbers of the rows from 1.

    Returns:
        Tables by name in the order in which DLProf writes the first row of each; those without rows at the end.
    """
    made = Database(rollup)
    return {name: getattr(made, name) for name in made.order()}


@dataclass(frozen=True)
class Database:
    """The tables of the database, each an attribute of its name; made when first asked for.

    Attributes:
        rollup: The roll-up they are made of.
    """

    rollup: Rollup

    def order(self) -> list[str]:
        """Names of the tables, in the order in which they get their first row."""
        names = [*_FIRST, *self._op_tables(), *_LAST]
        filled = [n for n in names if getattr(self, n).height]
        return [*filled, *(n for n in names if n not in filled)]

    @functools.cached_property
    def model(self) -> Model:
        """Figures of the whole."""
        return Model(self.rollup)

    @functools.cached_property
    def texts(self) -> Dictionary:
        """The dictionary."""
        key, ranked = pl.Series([self.rollup.iterations.key]), self._by_id
        named = ranked.select(pl.concat_list(pl.col("op_id"), pl.col("op_name").cast(pl.String)).alias("text"))
        then = [key, self._groups["path"], named.explode("text")["text"]]
        return Dictionary.of(DOMAIN, self._uses(), then)

    @functools.cached_property
    def metrics(self) -> Metrics:
        """The distinct metrics."""
        both = (*METRICS, *_KERNEL_METRICS)
        uses = [(self._by_id, both), (self._groups, METRICS), (self._kernel_summaries, _KERNEL_METRICS)]
        return Metrics.of([*uses, (self._op_types, METRICS)])

    @functools.cached_property
    def dictionary(self) -> pl.DataFrame:
        """Every text once."""
        return self.texts.texts.to_frame("string")

    @property
    def read_only_domains(self) -> pl.DataFrame:
        """The one domain."""
        return pl.DataFrame({"domain_name_id": [1]})

    @functools.cached_property
    def read_only_gpu_infos(self) -> pl.DataFrame:
        """The GPUs: those listed in order of number, and any others that something ran on."""
        wanted = {"name": UNKNOWN, "compute_major": 0, "compute_minor": 0, "sm_count": 0}
        listed = self.rollup.devices if "name" in self.rollup.devices.columns else _NO_DEVICES
        seen = self._children["device_id"].drop_nulls().unique().sort().to_frame()
        others = seen.join(listed, on="device_id", how="anti")
        both = pl.concat([listed.select("device_id", *wanted), others], how="diagonal")
        filled = both.with_columns(pl.col(c).fill_null(v) for c, v in wanted.items())
        return filled.rename(
            {
                "name": "gpu_name",
                "compute_major": "compute_capability_major",
                "compute_minor": "compute_capability_minor",
            }
        )

    @property
    def gpu_memories(self) -> pl.DataFrame:
        """Memory of each GPU, which a capture does not tell."""
        none = pl.repeat(0, self.read_only_gpu_infos.height, dtype=pl.Int64, eager=True)
        return pl.DataFrame({"total": none, "used": none})

    @property
    def read_only_system_config(self) -> pl.DataFrame:
        """The machine, as far as the capture tells."""
        known = dict(self.rollup.measures.ops.frames("capture_info").select("name", "value").collect().iter_rows())
        told = {s: known.get(s) for s in SYSTEM}
        valid = any(v is not None for v in told.values())
        if not valid and "tool_version" in known:
            told |= {"gpu_count": str(self.read_only_gpu_infos.height), "nsys_version": known["tool_version"]}
        number, mode = MODES.get(self.rollup.measures.ops.dialect.name, (0, "simple"))
        names = ("num_gpus", *SYSTEM[1:])
        row = {"is_valid": int(valid)} | {
            n: UNKNOWN if told[s] is None else told[s] for n, s in zip(names, SYSTEM, strict=True)
        }
        rest = {"dlprof_version": "v1.8.0", "dlprof_build": "", "profile_name": "", "mode_enum": number}
        return pl.DataFrame([{**row, **rest, "mode_string": mode, "original_command": UNKNOWN}])

    @property
    def db_version(self) -> pl.DataFrame:
        """Version of the database."""
        return pl.DataFrame({"current_version": ["1.8.0"], "original_version": ["1.8.0"]})

    @property
    def read_only_model_config(self) -> pl.DataFrame:
        """What the program recorded of its settings."""
        told = self.rollup.measures.ops.timeline.config
        row = {"num_workers": advice.number(told, "num_workers"), "pin_memory": int(bool(told.get("pin_memory", True)))}
        return pl.DataFrame([row | {f: int(bool(told.get(f))) for f in FLAGS}])

    @property
    def read_only_model_info(self) -> pl.DataFrame:
        """The one model."""
        return pl.DataFrame({"domain_id": [1], "domain_name": [DOMAIN], "profile_name": [""]})

    @functools.cached_property
    def read_only_ops(self) -> pl.DataFrame:
        """The ops, in order of name and id."""
        ids = {f"{c}_id": self.texts.ids(self._ops[c]) for c in _OP_TEXTS}
        return self._ops.select(
            pl.lit(1).alias("domain_id"),
            op_id_id=ids["op_id_id"],
            op_id="op_id",
            op_name=pl.col("op_name").cast(pl.String),
            op_type_id=ids["op_type_id"],
            device_id=ids["device_id"],
            tc_support_status="support",
            **{c: ids[c] for c in ("data_type_id", "data_format_id", "output_format_id", "parameters_format_id")},
            direction_id=ids["direction_id"],
            stack_trace=pl.col("stack_trace").cast(pl.String).fill_null(""),
        )

    @functools.cached_property
    def read_only_op_instances(self) -> pl.DataFrame:
        """The instances, op by op."""
        return self._instances.select(
            pl.col("op").alias("read_only_ops_id") + 1,
            cpu_start="start_ns",
            cpu_stop="end_ns",
            **_BY,
            **{f"{c}_id": self.texts.ids(self._instances[c]) for c in _INSTANCE_TEXTS},
        )

    @property
    def read_only_sub_ops(self) -> pl.DataFrame:
        """Always empty."""
        return pl.DataFrame(schema=dict.fromkeys(("op_id", "start_time", "stop_time"), pl.Int64))

    @functools.cached_property
    def read_only_grid_block(self) -> pl.DataFrame:
        """Distinct sizes of grids and blocks, in the order of their first use."""
        row = pl.int_range(pl.len())
        both = [
            self._launches.select(*(pl.col(f"{w}_{c}").alias(c) for c in _BLOCK), at=row * 2 + i)
            for i, w in enumerate(("grid", "block"))
        ]
        return pl.concat(both).sort("at").unique(_BLOCK, keep="first", maintain_order=True).drop("at")

    @functools.cached_property
    def read_only_kernels(self) -> pl.DataFrame:
        """The kernels, op by op, by name and start of the call."""
        sizes = self.read_only_grid_block.with_row_index("id", offset=1)
        ids = {
            f"{w}_id": self._launches.select(pl.col(f"{w}_{c}").alias(c) for c in _BLOCK).join(
                sizes, on=_BLOCK, how="left", maintain_order="left"
            )["id"]
            for w in ("grid", "block")
        }
        return self._launches.select(
            *_PARENT,
            name_id="name_id",
            long_name_id="long_name_id",
            uses_tc=pl.col("uses_tc").cast(pl.Int8),
            **_API,
            **_GPU,
            **ids,
            **_WHERE,
        )

    @functools.cached_property
    def read_only_memsets(self) -> pl.DataFrame:
        """The sets of memory, likewise."""
        rows, of = self._of_kind("memset", "memsets", ["bytes"])
        return rows.select(*_PARENT, "name_id", **_API, **_GPU, num_bytes=of["bytes"], **_WHERE)

    @functools.cached_property
    def read_only_memcpys(self) -> pl.DataFrame:
        """The copies, likewise."""
        rows, of = self._of_kind("memcpy", "memcpys", ["bytes", "copy_kind"])
        kind = of["copy_kind"].cast(pl.String).replace_strict(_COPIES, range(len(_COPIES)), default=0)
        return rows.select(*_PARENT, "name_id", **_API, **_GPU, num_bytes=of["bytes"], copy_kind=kind, **_WHERE)

    @functools.cached_property
    def read_only_cuda_syncs(self) -> pl.DataFrame:
        """The waits, likewise."""
        rows, of = self._of_kind("sync", "syncs", ["sync_type", "event_id"])
        kind = of["sync_type"].cast(pl.String).replace_strict(_SYNCS, range(len(_SYNCS)), default=0)
        never = {"gpu_start": pl.lit(0, pl.Int64), "gpu_stop": pl.lit(0, pl.Int64)}
        event = of["event_id"].fill_null(_NO_EVENT)
        return rows.select(*_PARENT, "name_id", **_API, **never, sync_type=kind, event_id=event, **_WHERE)

    @functools.cached_property
    def read_only_cuda_calls(self) -> pl.DataFrame:
        """All other calls, launches of whole graphs among them."""
        rows = self._children.filter(pl.col("kind").is_in(["call", "graph"]))
        return rows.select(*_PARENT, "name_id", **_API, **_BY)

    @property
    def aggregations(self) -> pl.DataFrame:
        """This aggregation; who made it where and when is not known."""
        blank = {"server_user_name": "", "server_host_name": "", "start_timestamp": "", "end_timestamp": 0}
        return pl.DataFrame([blank])

    @functools.cached_property
    def expert_systems_feedback(self) -> pl.DataFrame:
        """The findings of the expert systems."""
        names = ("exp_sys_id", "problem", "recommendation", "javascript_function", "javascript_args")
        rows = [(1, *f) for f in advice.findings(self.model)]
        schema = {"aggr_id": pl.Int64(), **dict.fromkeys(names, pl.String())}
        return pl.DataFrame(rows, schema=schema, orient="row")

    @property
    def iteration_key(self) -> pl.DataFrame:
        """The key op."""
        return pl.DataFrame({"aggr_id": [1], "key_node_id": [self._key_id]})

    @property
    def iteration_list(self) -> pl.DataFrame:
        """All iterations."""
        return self.rollup.iterations.frame.select(
            aggr_id=1, iter_value="iteration", start_time="start_ns", stop_time="end_ns"
        )

    @property
    def iteration_aggregation_list(self) -> pl.DataFrame:
        """The aggregated iterations, and where their time went."""
        whole = self.model.shares.with_columns(pl.col(PARTS).cast(pl.Int64, strict=False).fill_null(0))
        total = pl.sum_horizontal(PARTS)
        used = 100 * pl.sum_horizontal(ON_DEVICE)
        share = whole.select(pl.when(total > 0).then(used / total).otherwise(0.0)).to_series()
        times = {n: pl.col(p) for n, p in zip(_DURATIONS, PARTS, strict=True)}
        return whole.select(aggr_id=1, iter_value="iteration", gpu_utilization=rounded(share), **times)

    @property
    def category_summary(self) -> pl.DataFrame:
        """The eight categories."""
        return self.model.categories

    @property
    def model_summary(self) -> pl.DataFrame:
        """The figures of the whole."""
        model, its = self.model, self.rollup.iterations
        mean, deviation = model.iteration_ns
        rates = {"gpu_utilization": model.gpu_utilization, "tc_utilization": model.tc_utilization}
        shares = {f"{n}_pct": model.percentages[p] for n, p in zip(_DURATIONS, PARTS, strict=True)}
        lasted = {"avg_iteration_time": mean, "iteration_time_std_dev": deviation}
        counted = {"iter_total": its.frame.height, "iter_aggregated": its.chosen.height}
        row: dict[str, Any] = {"aggr_id": 1, "domain_id": 1, "is_custom_domain": 1, "wall_time": model.wall_ns}
        row |= {f"nodes_{n}_id": i for i, n in enumerate(("total", "tc_eligible", "using_tc", "other"), 1)}
        row |= {n: round(v, 6) for n, v in (rates | shares | lasted).items()}
        row |= counted | {"iter_start": its.first, "iter_stop": its.last, "key_node_id": self._key_id}
        return pl.DataFrame([row])

    @property
    def device_gpu_utilizations(self) -> pl.DataFrame:
        """Utilisation of each GPU."""
        ids = {d: i for i, d in enumerate(self.read_only_gpu_infos["device_id"].to_list(), 1)}
        rows = [(1, 1, ids[d], round(v, 6)) for d, v in self.model.device_utilization.items()]
        names = {"aggr_id": pl.Int64, "domain_id": pl.Int64, "gpu_info_id": pl.Int64, "gpu_utilization": pl.Float64}
        return pl.DataFrame(rows, schema=names, orient="row")

    @property
    def metric(self) -> pl.DataFrame:
        """Every metric once."""
        return self.metrics.frame

    @property
    def node_time_metrics(self) -> pl.DataFrame:
        """Metrics of ops, groups, ops once more, and types."""
        frames = (self._by_id, self._groups, self._by_id, self._op_types)
        names = ("cpu_time", "gpu_time", "api_time", "cpu_overhead_time", "gpu_idle_time")
        wanted = list(zip(names, METRICS, strict=True))
        return pl.concat([pl.DataFrame({f"{n}_metric_id": self.metrics.ids(f, m) for n, m in wanted}) for f in frames])

    @property
    def kernel_time_metrics(self) -> pl.DataFrame:
        """Metrics of the kernels of ops."""
        ids = {m: self.metrics.ids(self._by_id, m) for m in KERNEL_METRICS}
        return pl.DataFrame({"api_time_metric_id": ids["kernel_api"], "gpu_time_metric_id": ids["kernel_gpu"]})

    @property
    def op_nodes(self) -> pl.DataFrame:
        """The ops, in order of id, over the aggregated iterations."""
        number = pl.int_range(1, pl.len() + 1)
        return self._by_id.select(
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
        """The group nodes, and below them the ops in order of id."""
        path, name = self.texts.ids(self._groups["path"]), self._by_id["op_name"].cast(pl.String)
        nodes = self._groups.select(
            _AGGREGATION,
            row_type=1,
            group_op_full_id_id=path,
            group_op_full_name_id=path,
            level="level",
            num_op_instances="instance_count",
            num_supported_leaf_ops="eligible_count",
            num_tc_leaf_ops="uses_tc_count",
        )
        leaves = self._by_id.select(
            _AGGREGATION,
            row_type=2,
            group_op_full_id_id=self.texts.ids(self._by_id["op_id"]),
            group_op_full_name_id=self.texts.ids(name),
            level=name.str.count_matches("/", literal=True).cast(pl.Int64) + 1,
            num_op_instances="count",
            num_supported_leaf_ops=pl.col("eligible").cast(pl.Int64),
            num_tc_leaf_ops=pl.col("uses_tc").cast(pl.Int64),
        )
        number = pl.int_range(pl.len()) + 1 + self._by_id.height
        return pl.concat([nodes, leaves]).unnest("ids").with_columns(group_op_time_metrics_id=number)

    @property
    def kernel_summaries(self) -> pl.DataFrame:
        """Kernels by op and short name, in order of op id."""
        rows = self._kernel_summaries
        return rows.select(
            _AGGREGATION,
            read_only_ops_id=pl.col("op") + 1,
            kernel_name_id=self.texts.ids(rows["name"]),
            api_time_metric_id=self.metrics.ids(rows, "kernel_api"),
            gpu_time_metric_id=self.metrics.ids(rows, "kernel_gpu"),
            uses_tc=pl.col("uses_tc").cast(pl.Int8),
        ).unnest("ids")

    @property
    def kernel_iteration_stats(self) -> pl.DataFrame:
        """Kernels by iteration."""
        rows = self.rollup.kernels_by_iteration
        return rows.select(_AGGREGATION, iter_value="iteration", **_COUNTED).unnest("ids")

    @property
    def kernel_iteration_node(self) -> pl.DataFrame:
        """Each kernel with what its op ran in its iteration."""
        by = ["op", "iteration"]
        rows = self._launches.select(*by, kernel=pl.int_range(1, pl.len() + 1)).drop_nulls("iteration")
        rows = rows.join(self.rollup.kernels_by_op_and_iteration, on=by, how="left", maintain_order="left")
        ids = {"read_only_ops_id": pl.col("op") + 1, "read_only_kernel_id": pl.col("kernel")}
        return rows.select(_AGGREGATION, **ids, iter_value="iteration", **_COUNTED).unnest("ids")

    @property
    def kernel_summary_metrics(self) -> pl.DataFrame:
        """Which categories are those of kernels."""
        return pl.DataFrame(
            [{"aggr_id": 1, "domain_id": 1, "kernels_total_id": 5, "kernels_using_tc_id": 6, "kernels_non_tc_id": 7}]
        )

    @property
    def memory_summary_metrics(self) -> pl.DataFrame:
        """Which category is that of memory."""
        return pl.DataFrame([{"aggr_id": 1, "domain_id": 1, "memory_time_id": 8}])

    @property
    def op_type_metrics(self) -> pl.DataFrame:
        """The op types that have instances."""
        before = 2 * self._by_id.height + self._groups.height
        return self._op_types.select(
            _AGGREGATION,
            op_node_type_id=self.texts.ids(self._op_types["op_type"]),
            op_type_metrics_id=pl.int_range(1, pl.len() + 1) + before,
            num_nodes="op_count",
            num_calls="count",
        ).unnest("ids")

    @functools.cached_property
    def _ops(self) -> pl.DataFrame:
        """The ops, texts as DLProf writes them."""
        blank = ("data_type", "data_format", "output_format", "parameters_format", "direction")
        texts = {c: pl.col(c).cast(pl.String).fill_null("") for c in (*blank, "op_type")}
        return self.rollup.ops.with_columns(**texts, device=pl.lit(""))

    @functools.cached_property
    def _by_id(self) -> pl.DataFrame:
        """The ops, in order of id."""
        return self.rollup.ops.sort("op_id")

    @functools.cached_property
    def _groups(self) -> pl.DataFrame:
        """The group nodes, without the whole model."""
        return self.rollup.groups.filter(pl.col("level") > 0)

    @functools.cached_property
    def _op_types(self) -> pl.DataFrame:
        """The op types that have instances."""
        return self.rollup.op_types.filter(pl.col("count") > 0)

    @functools.cached_property
    def _kernel_summaries(self) -> pl.DataFrame:
        """Kernels by op and name, in order of op id."""
        rank = self._by_id.select("op", rank=pl.int_range(pl.len()))
        return self.rollup.kernel_summaries.join(rank, on="op").sort("rank", "name")

    @functools.cached_property
    def _instances(self) -> pl.DataFrame:
        """The instances op by op, texts as DLProf writes them: JSON and a line break, ``null`` for none."""
        texts = self.rollup.measures.instances.with_columns(
            output_shapes=self.rollup.measures.described["output_shapes"]
        )
        named = pl.when(pl.col("output_shapes").is_not_null()).then(pl.lit('[""]', pl.Categorical))
        texts = texts.with_columns(output_names=named).sort("op", "index")
        return texts.with_columns(_lines(texts[c]).alias(c) for c in _INSTANCE_TEXTS)

    @functools.cached_property
    def _children(self) -> pl.DataFrame:
        """The calls of ops in the order written, with ``name_id``."""
        rows = self.rollup.children.with_columns(pl.col("name").cast(pl.String).fill_null("").cast(pl.Categorical))
        return rows.with_columns(name_id=self.texts.ids(rows["name"])) if rows.height else rows.with_columns(name_id=0)

    @functools.cached_property
    def _launches(self) -> pl.DataFrame:
        """The kernels of ops in the order written, with sizes and the number of the long name."""
        rows, of = self._of_kind("kernel", "kernels", [f"{w}_{c}" for w in ("grid", "block") for c in _BLOCK])
        return rows.hstack(of).with_columns(long_name_id=self.texts.ids(_no_null(rows["long_name"])))

    def _of_kind(self, kind: str, table: str, columns: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The calls of a kind, and columns of the activity behind each."""
        rows = self._children.filter(pl.col("kind") == kind)
        found = self.rollup.measures.ops.frames(table).select(columns).collect()
        return rows, found.select(pl.all().gather(rows["activity"]))

    @property
    def _key_id(self) -> int:
        return int(self.texts.ids(pl.Series([self.rollup.iterations.key]))[0])

    def _uses(self) -> Iterator[pl.DataFrame]:
        """Where ops, their instances and their calls use texts."""
        for slot, c in enumerate(_OP_TEXTS):
            yield used(self._ops[c], self._ops["op"], 0, slot)
        for slot, c in enumerate(_INSTANCE_TEXTS):
            yield used(self._instances[c], self._instances["op"], 1, slot)
        calls = self.rollup.children
        yield used(_no_null(calls["name"]), calls["op"], 2, 0)
        long = _no_null(calls["long_name"]).zip_with(calls["kind"] == "kernel", _nulls(calls.height))
        yield used(long, calls["op"], 2, 1)

    def _op_tables(self) -> list[str]:
        """Tables that are filled op by op, in the order of their first row."""
        first = self.rollup.children.with_row_index("row").group_by("kind").agg(pl.col("row").min()).sort("row")
        found = [t for k in first["kind"].cast(pl.String) for t in _OF_KIND[k]]
        every = [t for names in _OF_KIND.values() for t in names]
        return ["read_only_ops", "read_only_op_instances", *dict.fromkeys([*found, *every]), "read_only_sub_ops"]


_NO_DEVICES = pl.DataFrame(
    schema={
        **dict.fromkeys(("device_id", "compute_major", "compute_minor", "sm_count"), pl.Int32),
        "name": pl.String,
    }
)
_FIRST = (
    *("dictionary", "read_only_domains", "read_only_gpu_infos", "gpu_memories", "read_only_system_config"),
    *("db_version", "read_only_model_config", "read_only_model_info"),
)
_LAST = (
    *("aggregations", "expert_systems_feedback", "iteration_key", "iteration_list", "iteration_aggregation_list"),
    *("category_summary", "model_summary", "device_gpu_utilizations", "metric", "node_time_metrics"),
    *("kernel_time_metrics", "op_nodes", "group_ops", "kernel_summaries", "kernel_iteration_stats"),
    *("kernel_iteration_node", "kernel_summary_metrics", "memory_summary_metrics", "op_type_metrics"),
)
_OF_KIND: Mapping[str, tuple[str, ...]] = {
    "kernel": ("read_only_grid_block", "read_only_kernels"),
    "memset": ("read_only_memsets",),
    "memcpy": ("read_only_memcpys",),
    "sync": ("read_only_cuda_syncs",),
    "call": ("read_only_cuda_calls",),
    "graph": ("read_only_cuda_calls",),
}
_DURATIONS = tuple(f"{n}_duration" for n in ("tc", "non_tc", "memory", "dataloader", "io", "cpu", "other"))
_AGGREGATION = pl.struct(aggr_id=pl.lit(1, pl.Int64), domain_id=pl.lit(1, pl.Int64)).alias("ids")
_PARENT = ((pl.col("op") + 1).alias("read_only_ops_id"), pl.col("index").alias("op_instance"))
_API = {"api_start": pl.col("start_ns"), "api_stop": pl.col("end_ns")}
_GPU = {"gpu_start": pl.col("gpu_start_ns"), "gpu_stop": pl.col("gpu_end_ns")}
_BY = {c: pl.col(c).fill_null(0) for c in ("process_id", "thread_id")}
_WHERE = {"device_id": pl.col("device_id"), **_BY}
_COUNTED = {
    "total_count": pl.col("kernel_count"),
    "uses_tc_count": pl.col("tc_count"),
    "total_gpu_time": pl.col("gpu_time"),
    "tc_gpu_time": pl.col("tc_time"),
}


def _lines(values: pl.Series) -> pl.Series:
    """Write JSON as DLProf does: n texts in, n texts out, each with a line break, ``null`` for none."""
    distinct = values.unique().to_frame("value")
    made = distinct.with_columns(line=(pl.col("value").cast(pl.String).fill_null("null") + "\n").cast(pl.Categorical))
    joined = values.to_frame("value").join(made, on="value", how="left", maintain_order="left", nulls_equal=True)
    return joined["line"]


def _no_null(values: pl.Series) -> pl.Series:
    """Put an empty text where there is none; n texts in, n texts out (Categorical)."""
    return values.to_frame("v").select(pl.col("v").fill_null(pl.lit("", pl.Categorical))).to_series()


def _nulls(count: int) -> pl.Series:
    return pl.repeat(None, count, dtype=pl.Categorical(), eager=True)
