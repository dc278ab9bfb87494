"""The tables of what was recorded: the machine, ops, instances, calls. No choice of iterations changes them."""

from __future__ import annotations

import functools

import polars as pl

from tracekit.core.dlprof import advice
from tracekit.core.dlprof.frames import BLOCK, DOMAIN, INSTANCE_TEXTS, OP_TEXTS, Frames

MODES = {"pyprof": (4, "pytorch"), "emit-nvtx": (4, "pytorch")}
FRAMEWORKS = {"pyprof": "PyTorch", "emit-nvtx": "PyTorch", "tensorflow": "TensorFlow", "tensorrt": "TensorRT"}
"""Whose ranges those of a dialect are; XLA's are JAX's or TensorFlow's."""

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
_NO_DEVICES = pl.DataFrame(
    schema={
        **dict.fromkeys(("device_id", "compute_major", "compute_minor", "sm_count"), pl.Int32),
        "name": pl.String,
    }
)
_PARENT = ((pl.col("op") + 1).alias("read_only_ops_id"), pl.col("index").alias("op_instance"))
_API = {"api_start": pl.col("start_ns"), "api_stop": pl.col("end_ns")}
_GPU = {"gpu_start": pl.col("gpu_start_ns"), "gpu_stop": pl.col("gpu_end_ns")}
_BY = {c: pl.col(c).fill_null(0) for c in ("process_id", "thread_id")}
_WHERE = {"device_id": pl.col("device_id"), **_BY}


class Recorded(Frames):
    """The tables that hold for every aggregation, each an attribute of its name."""

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
        number, mode = MODES.get(self.rollup.measures.ops.dialect.name, (0, "simple"))
        told = self._machine()
        valid = any(told.get(s) is not None for s in SYSTEM)
        names = ("num_gpus", *SYSTEM[1:])
        row = {"is_valid": int(valid)} | {
            n: UNKNOWN if told.get(s) is None else told[s] for n, s in zip(names, SYSTEM, strict=True)
        }
        rest = {"dlprof_version": "v1.8.0", "dlprof_build": "", "profile_name": "", "mode_enum": number}
        return pl.DataFrame([{**row, **rest, "mode_string": mode, "original_command": UNKNOWN}])

    def _machine(self) -> dict[str, str]:
        """What is known of the machine: as DLProf noted it or, if it did not, as the capture describes it."""
        known = dict(self.rollup.measures.ops.frames("capture_info").select("name", "value").collect().iter_rows())
        if "nsys_version" in known or "tool_version" not in known:
            return known
        framework = FRAMEWORKS.get(self.rollup.measures.ops.dialect.name, "")
        gpus = str(self.read_only_gpu_infos.height)
        made = {"gpu_count": gpus, "nsys_version": known["tool_version"], "framework": framework, "cudnn_version": ""}
        return made | known

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
        ids = {f"{c}_id": self.texts.ids(self._ops[c]) for c in OP_TEXTS}
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
            **{f"{c}_id": self.texts.ids(self._instances[c]) for c in INSTANCE_TEXTS},
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
            self._launches.select(*(pl.col(f"{w}_{c}").alias(c) for c in BLOCK), at=row * 2 + i)
            for i, w in enumerate(("grid", "block"))
        ]
        return pl.concat(both).sort("at").unique(BLOCK, keep="first", maintain_order=True).drop("at")

    @functools.cached_property
    def read_only_kernels(self) -> pl.DataFrame:
        """The kernels, op by op, by name and start of the call."""
        sizes = self.read_only_grid_block.with_row_index("id", offset=1)
        ids = {
            f"{w}_id": self._launches.select(pl.col(f"{w}_{c}").alias(c) for c in BLOCK).join(
                sizes, on=BLOCK, how="left", maintain_order="left"
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
