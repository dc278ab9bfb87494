"""Measure the CPU and GPU times of op instances, independently of iterations.

The CPU time of an instance is its duration without the durations of the instances directly inside it. API time is the
time in which at least one of its API calls runs. CPU overhead is the CPU time minus the API time. GPU time is the
time in which at least one of its activities runs, summed over devices. GPU idle time is the time from the start of its
first activity on a device to the end of its last one, minus the GPU time.

Divide the time of each iteration on each device into parts.

The time of an iteration is its window, in which its GPU activities run (see ``steps``). Each point in time counts for
the first part of ``PARTS`` whose condition holds:

1. ``tensor_core``: a kernel that uses Tensor Cores runs on the device.
2. ``other_kernel``: another kernel, or a CUDA graph that was recorded as one activity, runs on the device.
3. ``memory``: memory is copied or set on the device.
4. ``dataloader``: an op that loads data runs on the CPU.
5. ``io``: an op that reads or writes files runs on the CPU.
6. ``cpu``: any other op runs on the CPU.
7. ``other``: none of these conditions holds.

Time that several iterations share counts for each of these iterations.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals, tensor_cores
from tracekit.core.iterations import find_iterations
from tracekit.core.ops.attach import COLUMNS, ON_GPU
from tracekit.core.ops.shapes import infer_formats_and_output_shapes
from tracekit.core.series import match_categories_expr, spill_frame

if TYPE_CHECKING:
    from tracekit.core.iterations import Iterations, Span
    from tracekit.core.ops import Ops
    from tracekit.core.tensor_cores import Mode

METRICS = ("cpu", "gpu", "api", "overhead", "idle")
_DURATION = pl.col("end_ns") - pl.col("start_ns")
_OF_INSTANCES = ("op", "index")
_OF_KERNELS = ("long_name", "uses_tc", "tc_unknown")
CALL_COLUMNS = (*COLUMNS, "instance", *_OF_INSTANCES, *_OF_KERNELS)
"""Names of the columns of ``Measures.calls``."""
AMD = r"(?i)\b(?:AMD|Radeon|Instinct|gfx\d+|MI\d{3}X?)\b"
_HALF = {"dlprof": ("float16",), "extended": ("float16", "bfloat16")}
PARTS = ("tensor_core", "other_kernel", "memory", "dataloader", "io", "cpu", "other")
KERNEL_KINDS = ("kernel", "graph")
"""Kinds of activities that run kernels. The kernels of a CUDA graph that was recorded as one activity are unknown."""
LOADER_OP_TYPES = ("dataloader", "dali")
"""Types of the ops that load data according to DLProf, in lower case."""
_LOADER_NAME_PATTERNS = (
    r"dataloader|data[ _]?load",
    r"enumerate\(|__next__",
    r"^load(?: \*)?$",
    r"\b(?:next|fetch|get|load|read)[ _]?(?:batch|data)\b",
)
LOADER_NAME_PATTERN = "(?i)" + "|".join(_LOADER_NAME_PATTERNS)
"""Regular expression that matches the last part of the name of an op that loads data."""
_GPU_PARTS = 3
_OPEN = tuple(f"_{p}" for p in PARTS[:-1])
_SCHEMA = {"iteration": pl.Int64, "device_id": pl.Int32, **dict.fromkeys(PARTS, pl.Int64)}
_WINDOW = ("window_start_ns", "window_end_ns")


@dataclass(frozen=True)
class Measures:
    """Times and properties of the ops of a capture.

    Each property except ``calls``, ``gpu_activities`` and ``gpu_extents`` is computed on first access and cached.

    Attributes:
        ops: The ops of the capture.
        mode: Rules that determine which kernels use Tensor Cores (see ``tensor_cores.uses_tensor_cores_expr``).
    """

    ops: Ops
    mode: Mode = "extended"

    @functools.cached_property
    def _iterations(self) -> dict[tuple[str | None, Span | None], Iterations]:
        return {}

    def find_iterations(self, key_op: str | None, span: Span | None) -> Iterations:
        """Find the iterations of the capture, as ``iterations.find_iterations`` does. The result is cached."""
        key = (key_op, span)
        if key not in self._iterations:
            self._iterations[key] = find_iterations(self.ops, key_op=key_op, span=span, mode=self.mode)
        return self._iterations[key]

    @functools.cached_property
    def instances(self) -> pl.DataFrame:
        """The rows of ``Ops.instances`` with their times in ns: ``cpu``, ``gpu``, ``api``, ``overhead``, ``idle``."""
        instances = self.ops.instances
        inside = instances.filter(pl.col("parent").is_not_null()).group_by("parent").agg(inside=_DURATION.sum())
        rows = instances.select("start_ns", "end_ns", row=pl.int_range(pl.len()))
        times = rows.join(inside, left_on="row", right_on="parent", how="left", maintain_order="left")
        times = times.join(self._api_times, left_on="row", right_on="instance", how="left", maintain_order="left")
        times = times.join(self._gpu_times, left_on="row", right_on="instance", how="left", maintain_order="left")
        times = times.select(
            cpu=_DURATION - pl.col("inside").fill_null(0),
            gpu=pl.col("gpu").fill_null(0),
            api=pl.col("api").fill_null(0),
            idle=pl.col("idle").fill_null(0),
        )
        return instances.hstack(spill_frame(times.with_columns(overhead=pl.col("cpu") - pl.col("api"))))

    @property
    def calls(self) -> pl.DataFrame:
        """The API calls of ops, with properties of the kernels that they launched.

        The columns are those of ``Ops.calls``, ``op``, ``index`` (of the instance), ``long_name``, ``uses_tc`` and
        ``tc_unknown``. The last three are null for calls that launched no kernel. ``tc_unknown`` is true if the name of
        the kernel does not show whether it uses Tensor Cores, or if the GPU is made by AMD. In DLProf's mode, kernels
        of one op with the same short name are regarded as one kernel.
        """
        return self.select_calls(*CALL_COLUMNS)

    def select_calls(self, *columns: str, rows: pl.Series | None = None) -> pl.DataFrame:
        """Return columns of ``calls``, the API calls of ops.

        Args:
            columns: Names of the columns.
            rows: Numbers of the rows to return, or None for all rows.
        """
        of_instances = [c for c in columns if c in _OF_INSTANCES]
        of_kernels = [c for c in columns if c in _OF_KERNELS]
        of_calls = [c for c in columns if c not in (*_OF_INSTANCES, *_OF_KERNELS)]
        calls = self.ops.select_calls(*dict.fromkeys((*of_calls, *(["instance"] if of_instances else []))), rows=rows)
        parts = [calls] if calls.width else []
        parts += [self.ops.instances.select(pl.col(of_instances).gather(calls["instance"]))] if of_instances else []
        if of_kernels:
            properties = self._kernel_properties.select(of_kernels)
            parts.append(properties if rows is None else properties.select(pl.all().gather(rows)))
        return pl.concat(parts, how="horizontal").select(columns)

    @functools.cached_property
    def _kernel_properties(self) -> pl.DataFrame:
        """The columns ``long_name``, ``uses_tc`` and ``tc_unknown`` of ``calls``."""
        kinds = self.ops.select_calls("kind").to_series()
        rows = (kinds == "kernel").arg_true()
        needed = ["activity", "device_id"] if self.mode == "extended" else ["activity", "name", "call_id", "instance"]
        kernels = self.ops.select_calls(*needed, rows=rows).with_columns(_row=rows)
        names = self.ops.frames("kernels").select("name").collect()["name"].gather(kernels["activity"])
        uses = tensor_cores.uses_tensor_cores_expr(pl.col("long_name"), mode=self.mode)
        if self.mode == "extended":
            uses = pl.when(~pl.col("device_id").is_in(self._amd_devices.implode())).then(uses)
        kernels = kernels.with_columns(long_name=names).with_columns(uses_tc=uses)
        kernels = kernels.with_columns(
            pl.col("uses_tc").fill_null(value=False),
            tc_unknown=pl.col("uses_tc").is_null() & pl.col("long_name").is_not_null(),
        )
        if self.mode == "dlprof":
            instances = self.ops.instances.select(pl.col(_OF_INSTANCES).gather(kernels["instance"]))
            kernels = _unify_kernels_by_short_name(kernels.hstack(instances))
        all_rows = pl.DataFrame({"_row": pl.int_range(kinds.len(), dtype=pl.UInt32, eager=True)})
        return all_rows.join(kernels.select("_row", *_OF_KERNELS), on="_row", how="left", maintain_order="left").drop(
            "_row"
        )

    @functools.cached_property
    def formats_and_output_shapes(self) -> pl.DataFrame:
        """The data formats and output shapes of each instance (see ``shapes.infer_formats_and_output_shapes``)."""
        formats = infer_formats_and_output_shapes(self.ops.instances)
        if self.ops.timeline.has_arguments:
            return formats
        unknown = {c: pl.lit("", pl.Categorical) for c in ("data_format", "output_format", "parameters_format")}
        return formats.with_columns(**unknown, output_shapes=pl.lit(None, pl.Categorical))

    @functools.cached_property
    def op_properties(self) -> pl.DataFrame:
        """Properties of each op that ``Ops.ops`` does not contain: Tensor Core support, precision and data formats.

        The columns are ``support`` (0 eligible for Tensor Cores, 2 possibly eligible, 3 not eligible), ``half``
        (whether its data type has half precision), and the formats of its first instance.
        """
        ops = self.ops.ops
        status = tensor_cores.support_status_expr(pl.col("op_type"), mode=self.mode)
        used = self.select_calls("op", rows=self._kernel_properties["uses_tc"].arg_true()).to_series().unique()
        uses = pl.int_range(pl.len()).is_in(used.implode())
        formats = self.formats_and_output_shapes.select(
            "data_format", "output_format", "parameters_format", op=self.instances["op"]
        )
        first = self.instances["index"] == 0
        formats = formats.filter(first).sort("op").drop("op")
        return ops.select(
            support=pl.when(uses).then(0).when(~pl.col("associated")).then(2).otherwise(status).cast(pl.Int8),
            half=pl.col("data_type").cast(pl.String).is_in(_HALF[self.mode]).fill_null(value=False),
        ).hstack(formats)

    @property
    def gpu_activities(self) -> pl.DataFrame:
        """The GPU activities of ops: ``instance``, ``device_id``, ``start_ns``, ``end_ns``, ``kind``, ``uses_tc``."""
        rows = self.ops.select_calls("kind").to_series().is_in(ON_GPU).arg_true()
        columns = ("instance", "device_id", "gpu_start_ns", "gpu_end_ns", "kind", "uses_tc")
        return self.select_calls(*columns, rows=rows).rename({"gpu_start_ns": "start_ns", "gpu_end_ns": "end_ns"})

    @property
    def gpu_extents(self) -> pl.DataFrame:
        """The first start and last end of the activities of each instance on each device.

        The columns are ``instance``, ``device_id``, ``start_ns`` and ``end_ns``.
        """
        by = ["instance", "device_id"]
        return self.gpu_activities.group_by(by).agg(pl.col("start_ns").min(), pl.col("end_ns").max())

    @functools.cached_property
    def gpu_busy_times(self) -> pl.DataFrame:
        """The times in which activities of each instance run on each device, as disjoint intervals.

        The columns are those of ``gpu_extents``.
        """
        return intervals.merge_intervals(self.gpu_activities, by=["instance", "device_id"])

    @property
    def _amd_devices(self) -> pl.Series:
        """Ids of the GPUs made by AMD, recognized by name.

        If the program calls HIP, these are all GPUs that it uses.
        """
        devices = self.ops.frames("devices").select("device_id", pl.col("name").cast(pl.String)).collect()
        calls = self.ops.frames("api_calls").select(pl.col("name").unique().cast(pl.String))
        if calls.select(pl.col("name").str.starts_with("hip").any()).collect().item():
            return self.ops.select_calls("device_id").to_series().unique().drop_nulls()
        return devices.filter(pl.col("name").str.contains(AMD))["device_id"]

    @property
    def _api_times(self) -> pl.DataFrame:
        """The time in which API calls of each instance run: ``instance``, ``api``."""
        calls = self.ops.select_calls("instance", "start_ns", "end_ns")
        return intervals.merge_intervals(calls, by=["instance"]).group_by("instance").agg(api=_DURATION.sum())

    @property
    def _gpu_times(self) -> pl.DataFrame:
        """The GPU time and the GPU idle time of each instance: ``instance``, ``gpu``, ``idle``."""
        extent = pl.col("end_ns").max() - pl.col("start_ns").min()
        by_device = self.gpu_busy_times.group_by("instance", "device_id").agg(gpu=_DURATION.sum(), extent=extent)
        return by_device.group_by("instance").agg(pl.col("gpu").sum(), idle=(pl.col("extent") - pl.col("gpu")).sum())


def _unify_kernels_by_short_name(kernels: pl.DataFrame) -> pl.DataFrame:
    """Set the same properties for all kernels of one op with the same short name, as DLProf does.

    All of them are regarded as using Tensor Cores if any of them does. All of them get the demangled name of one
    kernel: the last one in the first instance of the op that has such a kernel. The order of the returned rows
    is undefined.
    """
    properties = kernels.sort("index", -pl.col("call_id")).group_by("op", "name").agg(
        pl.col("long_name").first(), pl.col("uses_tc").any()
    )  # fmt: skip
    return kernels.drop("long_name", "uses_tc").join(properties, on=["op", "name"], how="left", nulls_equal=True)


def divide_iteration_times(measures: Measures, iterations: Iterations, devices: pl.Series) -> pl.DataFrame:
    """Divide the time of each iteration on each device into parts.

    Returns:
        One row per iteration and device, sorted by both. The columns are ``iteration``, ``device_id`` and, for each
        part, a time in ns.
    """
    cells = iterations.frame.select("iteration").join(pl.DataFrame({"device_id": devices}), how="cross")
    host, gpu = _compute_cpu_times_by_part(measures), _compute_gpu_times_by_part(measures)
    by_device = [
        _compute_time_by_part(pl.concat([gpu.filter(device_id=d).drop("device_id"), host]), iterations, d)
        for d in devices
    ]
    times = pl.concat([*by_device, pl.DataFrame(schema=_SCHEMA)])
    return cells.join(times, on=["iteration", "device_id"], how="left", maintain_order="left")


def _compute_gpu_times_by_part(measures: Measures) -> pl.DataFrame:
    """Return the times in which kernels or memory operations run on each device, as disjoint intervals per part.

    The columns are ``device_id``, ``part`` (number of the part), ``start_ns`` and ``end_ns``.
    """
    kernel, uses = pl.col("kind").is_in(KERNEL_KINDS), pl.col("uses_tc").fill_null(value=False)
    part = pl.when(kernel & uses).then(0).when(kernel).then(1).otherwise(2).cast(pl.Int64)
    return intervals.merge_intervals(measures.gpu_activities.with_columns(part=part), by=["device_id", "part"])


def compute_loader_op_mask(measures: Measures) -> pl.Series:
    """Return whether each op loads data, according to its type or, except in DLProf's mode, its name."""
    ops = measures.ops.ops
    by_type = match_categories_expr(pl.col("op_type"), lambda text: text.str.to_lowercase().is_in(LOADER_OP_TYPES))
    by_name = match_categories_expr(
        pl.col("op_name"), lambda text: text.str.extract(r"([^/]*)$").str.contains(LOADER_NAME_PATTERN)
    )
    return ops.select(by_type | by_name if measures.mode == "extended" else by_type).to_series()


def _compute_cpu_times_by_part(measures: Measures) -> pl.DataFrame:
    """Return the times in which ops run on the CPU, as disjoint intervals per part.

    The columns are ``part`` (number of the part), ``start_ns`` and ``end_ns``.
    """
    loads = compute_loader_op_mask(measures).gather(measures.instances["op"])
    ops = measures.instances.select("start_ns", "end_ns", "op_type", loads=loads)
    conditions = (pl.col("loads"), pl.col("op_type") == "IO", pl.lit(value=True))
    parts = [
        ops.filter(condition).select("start_ns", "end_ns", part=pl.lit(_GPU_PARTS + i))
        for i, condition in enumerate(conditions)
    ]
    merged = intervals.merge_intervals(pl.concat(parts).with_columns(pl.col("part").cast(pl.Int64)), by=["part"])
    return merged.select("part", "start_ns", "end_ns")


def _compute_time_by_part(parts: pl.DataFrame, iterations: Iterations, device: int) -> pl.DataFrame:
    """Return the time of each part in each iteration on one device, with the columns of ``_SCHEMA``.

    Args:
        parts: Disjoint intervals of each part: ``part``, ``start_ns``, ``end_ns``.
        iterations: The iterations whose time is divided.
        device: Id of the device, which is added to the result.
    """
    bounds = pl.concat([iterations.frame[c] for c in _WINDOW]).unique()
    edges = [
        parts.select("part", t="start_ns", step=pl.lit(1)),
        parts.select("part", t="end_ns", step=pl.lit(-1)),
        pl.DataFrame({"part": -1, "t": bounds, "step": 0}, schema={"part": pl.Int64, "t": pl.Int64, "step": pl.Int32}),
    ]
    steps = pl.concat([e.cast({"step": pl.Int32}) for e in edges]).sort("t")
    opened = [(pl.col("step") * (pl.col("part") == i)).cum_sum().alias(c) for i, c in enumerate(_OPEN)]
    part = pl.lit(PARTS[-1])
    for name, opening in reversed(list(zip(PARTS, _OPEN, strict=False))):
        part = pl.when(pl.col(opening) > 0).then(pl.lit(name)).otherwise(part)
    elapsed = pl.col("t") - pl.col("t").shift(1)
    steps = steps.with_columns(opened).select("t", part=part.shift(1), elapsed=elapsed.fill_null(0))
    totals = [pl.when(pl.col("part") == p).then("elapsed").otherwise(0).cum_sum().alias(p) for p in PARTS]
    until = steps.select("t", *totals).unique("t", keep="last", maintain_order=True)
    ends = [iterations.frame.select(t=c).join(until, on="t", how="left", maintain_order="left") for c in _WINDOW]
    durations = {p: ends[1][p] - ends[0][p] for p in PARTS}
    return iterations.frame.select("iteration", pl.lit(device, pl.Int32).alias("device_id"), **durations)
