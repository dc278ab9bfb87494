"""Build the tables of a DLProf database that contain recorded data: the machine, ops, op instances and API calls.

These tables do not depend on the aggregated iterations.
"""

from __future__ import annotations

import functools

import polars as pl

from tracekit.core.dlprof import advice
from tracekit.core.dlprof.frames import AXES, DOMAIN, INSTANCE_STRINGS, OP_STRINGS, DatabaseFrames
from tracekit.core.relations import THREAD
from tracekit.core.series import decode_categories_expr

DIALECT_MODES = {"pyprof": (4, "pytorch"), "emit-nvtx": (4, "pytorch")}
DIALECT_FRAMEWORKS = {"pyprof": "PyTorch", "emit-nvtx": "PyTorch", "tensorflow": "TensorFlow", "tensorrt": "TensorRT"}
"""The framework of each dialect. XLA is missing because both JAX and TensorFlow write its ranges."""

SYSTEM_METADATA = (
    "gpu_count",
    "cpu_model",
    "driver_version",
    "framework",
    "cuda_version",
    "cudnn_version",
    "nsys_version",
)
FLAGS = (
    *("cudnn_benchmark_disabled", "detect_anomaly", "gradcheck", "gradgradcheck", "autograd_profile"),
    *("autograd_set_detect_anomaly", "emit_nvtx", "amp_enabled"),
)
UNKNOWN = "UNKNOWN"
_COPY_KINDS = (
    *("Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array"),
    *("Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer"),
)
_SYNC_TYPES = ("Unknown", "Event sync", "Stream wait sync", "Stream sync", "Context sync")
_NO_EVENT = (1 << 32) - 1
_NO_DEVICES = pl.DataFrame(
    schema={
        **dict.fromkeys(("device_id", "compute_major", "compute_minor", "sm_count"), pl.Int32),
        "name": pl.String,
    }
)
_INSTANCE = ((pl.col("op") + 1).alias("read_only_ops_id"), pl.col("index").alias("op_instance"))
_API_TIMES = {"api_start": pl.col("start_ns"), "api_stop": pl.col("end_ns")}
_GPU_TIMES = {"gpu_start": pl.col("gpu_start_ns"), "gpu_stop": pl.col("gpu_end_ns")}
_THREAD = {c: pl.col(c).fill_null(0) for c in THREAD}
_DEVICE_AND_THREAD = {"device_id": pl.col("device_id"), **_THREAD}


class RecordedDlprofTables(DatabaseFrames):
    """The tables of a DLProf database that do not depend on the aggregated iterations.

    Each table is an attribute with the name of the table.
    """

    @functools.cached_property
    def dictionary(self) -> pl.DataFrame:
        """The table ``dictionary``: the distinct strings of the DLProf database, in the order of their ids."""
        return self.strings.strings.to_frame("string")

    @property
    def read_only_domains(self) -> pl.DataFrame:
        """The table ``read_only_domains``: one row for the only domain, ``default-domain``, to which all ops belong."""
        return pl.DataFrame({"domain_name_id": [1]})

    @functools.cached_property
    def read_only_gpu_infos(self) -> pl.DataFrame:
        """The table ``read_only_gpu_infos``.

        One row per GPU: first the GPUs in the table ``devices``, then other GPUs with activities, each in order of
        ``device_id``.
        """
        defaults = {"name": UNKNOWN, "compute_major": 0, "compute_minor": 0, "sm_count": 0}
        listed = self.rollup.devices if "name" in self.rollup.devices.columns else _NO_DEVICES
        seen = self._calls["device_id"].drop_nulls().unique().sort().to_frame()
        others = seen.join(listed, on="device_id", how="anti")
        both = pl.concat([listed.select("device_id", *defaults), others], how="diagonal")
        filled = both.with_columns(pl.col(c).fill_null(v) for c, v in defaults.items())
        return filled.rename(
            {
                "name": "gpu_name",
                "compute_major": "compute_capability_major",
                "compute_minor": "compute_capability_minor",
            }
        )

    @property
    def gpu_memories(self) -> pl.DataFrame:
        """The table ``gpu_memories``: total and used memory of each GPU.

        All values are 0, because captures do not record memory sizes.
        """
        zeros = pl.repeat(0, self.read_only_gpu_infos.height, dtype=pl.Int64, eager=True)
        return pl.DataFrame({"total": zeros, "used": zeros})

    @property
    def read_only_system_config(self) -> pl.DataFrame:
        """The table ``read_only_system_config``: one row for the machine on which the capture was recorded.

        Unknown properties are ``UNKNOWN``.
        """
        number, mode = DIALECT_MODES.get(self.rollup.measures.ops.dialect.name, (0, "simple"))
        metadata = self._read_machine_metadata()
        valid = any(metadata.get(s) is not None for s in SYSTEM_METADATA)
        names = ("num_gpus", *SYSTEM_METADATA[1:])
        row = {"is_valid": int(valid)} | {
            n: UNKNOWN if metadata.get(s) is None else metadata[s] for n, s in zip(names, SYSTEM_METADATA, strict=True)
        }
        rest = {"dlprof_version": "v1.8.0", "dlprof_build": "", "profile_name": "", "mode_enum": number}
        return pl.DataFrame([{**row, **rest, "mode_string": mode, "original_command": UNKNOWN}])

    def _read_machine_metadata(self) -> dict[str, str]:
        """Return metadata of the machine, keyed by name. Values in ``capture_info`` override derived values."""
        metadata = dict(self.rollup.measures.ops.frames("capture_info").select("name", "value").collect().iter_rows())
        if "nsys_version" in metadata or "tool_version" not in metadata:
            return metadata
        framework = DIALECT_FRAMEWORKS.get(self.rollup.measures.ops.dialect.name, "")
        gpus = str(self.read_only_gpu_infos.height)
        defaults = {"gpu_count": gpus, "framework": framework, "cudnn_version": ""}
        return defaults | {"nsys_version": metadata["tool_version"]} | metadata

    @property
    def db_version(self) -> pl.DataFrame:
        """The table ``db_version``: one row with the version of the DLProf database format."""
        return pl.DataFrame({"current_version": ["1.8.0"], "original_version": ["1.8.0"]})

    @property
    def read_only_model_config(self) -> pl.DataFrame:
        """The table ``read_only_model_config``: one row with the recorded settings of the profiled program."""
        settings = self.rollup.measures.ops.timeline.config
        row = {"num_workers": advice.read_integer_setting(settings, "num_workers")}
        row["pin_memory"] = int(bool(settings.get("pin_memory", True)))
        return pl.DataFrame([row | {f: int(bool(settings.get(f))) for f in FLAGS}])

    @property
    def read_only_model_info(self) -> pl.DataFrame:
        """The table ``read_only_model_info``: one row for the profiled model, whose domain is ``default-domain``."""
        return pl.DataFrame({"domain_id": [1], "domain_name": [DOMAIN], "profile_name": [""]})

    @functools.cached_property
    def read_only_ops(self) -> pl.DataFrame:
        """The table ``read_only_ops``: one row per op, in order of name and id."""
        ids = {f"{c}_id": self.strings.look_up_string_ids(self._ops[c]) for c in OP_STRINGS}
        return self._ops.select(
            pl.lit(1).alias("domain_id"),
            op_id_id=ids["op_id_id"],
            op_id="op_id",
            op_name=decode_categories_expr(pl.col("op_name")),
            op_type_id=ids["op_type_id"],
            device_id=ids["device_id"],
            tc_support_status="support",
            **{c: ids[c] for c in ("data_type_id", "data_format_id", "output_format_id", "parameters_format_id")},
            direction_id=ids["direction_id"],
            stack_trace=decode_categories_expr(pl.col("stack_trace")).fill_null(""),
        )

    @functools.cached_property
    def read_only_op_instances(self) -> pl.DataFrame:
        """The table ``read_only_op_instances``: one row per op instance, in order of op and index."""
        return self._instances.select(
            pl.col("op").alias("read_only_ops_id") + 1,
            cpu_start="start_ns",
            cpu_stop="end_ns",
            **_THREAD,
            **{f"{c}_id": self.strings.look_up_string_ids(self._instances[c]) for c in INSTANCE_STRINGS},
        )

    @property
    def read_only_sub_ops(self) -> pl.DataFrame:
        """The table ``read_only_sub_ops``: the ops nested in other ops.

        The table is always empty, as in DLProf's databases.
        """
        return pl.DataFrame(schema=dict.fromkeys(("op_id", "start_time", "stop_time"), pl.Int64))

    @functools.cached_property
    def read_only_grid_block(self) -> pl.DataFrame:
        """The table ``read_only_grid_block``.

        The distinct sizes of grids and blocks (``x``, ``y``, ``z``), in the order of their first use.
        """
        first_uses = [
            self._kernels.select(*(pl.col(f"{w}_{c}").alias(c) for c in AXES), position=pl.int_range(pl.len()) * 2 + i)
            .group_by(AXES)
            .agg(pl.col("position").min())
            for i, w in enumerate(("grid", "block"))
        ]
        return pl.concat(first_uses).sort("position").unique(AXES, keep="first", maintain_order=True).drop("position")

    @functools.cached_property
    def read_only_kernels(self) -> pl.DataFrame:
        """The table ``read_only_kernels``.

        One row per kernel that an op launched, in order of op, name and start of the API call.
        """
        sizes = self.read_only_grid_block.with_row_index("id", offset=1)
        ids = {
            f"{w}_id": self._kernels.select(pl.col(f"{w}_{c}").alias(c) for c in AXES).join(
                sizes, on=AXES, how="left", maintain_order="left"
            )["id"]
            for w in ("grid", "block")
        }
        return self._kernels.select(
            *_INSTANCE,
            name_id="name_id",
            long_name_id="long_name_id",
            uses_tc=pl.col("uses_tc").cast(pl.Int8),
            **_API_TIMES,
            **_GPU_TIMES,
            **ids,
            **_DEVICE_AND_THREAD,
        )

    @functools.cached_property
    def read_only_memsets(self) -> pl.DataFrame:
        """The table ``read_only_memsets``.

        One row per memory set that an op launched, in order of op, name and start of the API call.
        """
        rows, activities = self._select_calls_and_activities("memset", "memsets", ["bytes"])
        return rows.select(
            *_INSTANCE,
            "name_id",
            **_API_TIMES,
            **_GPU_TIMES,
            num_bytes=activities["bytes"].fill_null(0),
            **_DEVICE_AND_THREAD,
        )

    @functools.cached_property
    def read_only_memcpys(self) -> pl.DataFrame:
        """The table ``read_only_memcpys``.

        One row per memory copy that an op launched, in order of op, name and start of the API call.
        """
        rows, activities = self._select_calls_and_activities("memcpy", "memcpys", ["bytes", "copy_kind"])
        kind = activities["copy_kind"].cast(pl.String).replace_strict(_COPY_KINDS, range(len(_COPY_KINDS)), default=0)
        return rows.select(
            *_INSTANCE,
            "name_id",
            **_API_TIMES,
            **_GPU_TIMES,
            num_bytes=activities["bytes"].fill_null(0),
            copy_kind=kind,
            **_DEVICE_AND_THREAD,
        )

    @functools.cached_property
    def read_only_cuda_syncs(self) -> pl.DataFrame:
        """The table ``read_only_cuda_syncs``.

        One row per synchronization of an op, in order of op, name and start of the API call.
        """
        rows, activities = self._select_calls_and_activities("sync", "syncs", ["sync_type", "event_id"])
        kind = activities["sync_type"].cast(pl.String).replace_strict(_SYNC_TYPES, range(len(_SYNC_TYPES)), default=0)
        no_gpu_times = {"gpu_start": pl.lit(0, pl.Int64), "gpu_stop": pl.lit(0, pl.Int64)}
        event = activities["event_id"].fill_null(_NO_EVENT)
        return rows.select(
            *_INSTANCE, "name_id", **_API_TIMES, **no_gpu_times, sync_type=kind, event_id=event, **_DEVICE_AND_THREAD
        )

    @functools.cached_property
    def read_only_cuda_calls(self) -> pl.DataFrame:
        """The table ``read_only_cuda_calls``.

        One row per API call of an op that is not in another table, including launches of whole CUDA graphs.

        The rows are in order of op, name and start of the call.
        """
        rows = self._calls.filter(pl.col("kind").is_in(["call", "graph"]))
        return rows.select(*_INSTANCE, "name_id", **_API_TIMES, **_THREAD)
