"""What each op instance took on the CPU and on the GPU, whatever the iterations.

CPU time is that of the instance less that of the instances inside it. API time is how long at least one of its calls
was open, CPU overhead the rest. GPU time is how long, device by device, at least one of its kernels, copies and sets
ran; GPU idle is what is missing to the stretch from its first to its last.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals, tensor_cores
from tracekit.core.ops.calls import ON_GPU
from tracekit.core.ops.shapes import described

if TYPE_CHECKING:
    from tracekit.core.ops import Ops
    from tracekit.core.tensor_cores import Mode

METRICS = ("cpu", "gpu", "api", "overhead", "idle")
_LENGTH = pl.col("end_ns") - pl.col("start_ns")
AMD = r"(?i)\b(?:AMD|Radeon|Instinct|gfx\d+|MI\d{3}X?)\b"
_HALF = {"dlprof": ("float16",), "extended": ("float16", "bfloat16")}


@dataclass(frozen=True)
class Measures:
    """The ops of a capture, measured; found once and kept.

    Attributes:
        ops: The ops.
        mode: Which kernels are taken to use Tensor Cores, as in ``tensor_cores.uses_tensor_cores``.
    """

    ops: Ops
    mode: Mode = "extended"

    @functools.cached_property
    def instances(self) -> pl.DataFrame:
        """The instances (``Ops.instances``) with ``cpu``, ``gpu``, ``api``, ``overhead``, ``idle`` in ns, in order."""
        found = self.ops.instances
        inside = found.filter(pl.col("parent").is_not_null()).group_by("parent").agg(inside=_LENGTH.sum())
        rows = found.select("start_ns", "end_ns", row=pl.int_range(pl.len()))
        taken = rows.join(inside, left_on="row", right_on="parent", how="left", maintain_order="left")
        taken = taken.join(self._api, left_on="row", right_on="instance", how="left", maintain_order="left")
        taken = taken.join(self._gpu, left_on="row", right_on="instance", how="left", maintain_order="left")
        taken = taken.select(
            cpu=_LENGTH - pl.col("inside").fill_null(0),
            gpu=pl.col("gpu").fill_null(0),
            api=pl.col("api").fill_null(0),
            idle=pl.col("idle").fill_null(0),
        )
        return found.hstack(taken.with_columns(overhead=pl.col("cpu") - pl.col("api")))

    @functools.cached_property
    def calls(self) -> pl.DataFrame:
        """The calls of ops (``Ops.calls``) with ``op``, ``index`` (of the instance), ``long_name`` and ``uses_tc``.

        Other calls than kernels have neither. To DLProf, kernels of one op with the same short name are one.
        ``tc_unknown`` says that the name of a kernel cannot tell whether it uses Tensor Cores, or that the GPU has
        none by that name, being AMD's.
        """
        rows = self.ops.calls
        of = self.ops.instances.select(pl.col("op", "index").gather(rows["instance"]))
        known = rows.hstack(of).with_row_index("_row")
        kernels = known.filter(pl.col("kind") == "kernel")
        names = self.ops.frames("kernels").select("name").collect()["name"].gather(kernels["activity"])
        uses = tensor_cores.uses_tensor_cores(pl.col("long_name"), mode=self.mode)
        if self.mode == "extended":
            uses = pl.when(~pl.col("device_id").is_in(self._amd.implode())).then(uses)
        kernels = kernels.with_columns(long_name=names).with_columns(uses_tc=uses)
        kernels = kernels.with_columns(
            pl.col("uses_tc").fill_null(value=False),
            tc_unknown=pl.col("uses_tc").is_null() & pl.col("long_name").is_not_null(),
        )
        kernels = kernels if self.mode == "extended" else _by_short_name(kernels)
        added = kernels.select("_row", "long_name", "uses_tc", "tc_unknown")
        return known.join(added, on="_row", how="left", maintain_order="left").drop("_row")

    @functools.cached_property
    def described(self) -> pl.DataFrame:
        """Formats and result of each instance: ``data_format`` and so on, as of ``shapes.described``."""
        wanted = described(self.ops.instances)
        if self.ops.timeline.described:
            return wanted
        blank = {c: pl.lit("", pl.Categorical) for c in ("data_format", "output_format", "parameters_format")}
        return wanted.with_columns(**blank, output_shapes=pl.lit(None, pl.Categorical))

    @functools.cached_property
    def kinds(self) -> pl.DataFrame:
        """What is known of each op beside ``Ops.ops``: ``support`` (0 eligible, 2 maybe, 3 not), ``half``, formats."""
        ops = self.ops.ops
        status = tensor_cores.support(pl.col("op_type").cast(pl.String), mode=self.mode)
        used = self.calls.filter("uses_tc")["op"].unique()
        uses = pl.int_range(pl.len()).is_in(used.implode())
        formats = self.described.select("data_format", "output_format", "parameters_format", op=self.instances["op"])
        first = self.instances["index"] == 0
        formats = formats.filter(first).sort("op").drop("op")
        return ops.select(
            support=pl.when(uses).then(0).when(~pl.col("associated")).then(2).otherwise(status).cast(pl.Int8),
            half=pl.col("data_type").cast(pl.String).is_in(_HALF[self.mode]).fill_null(value=False),
        ).hstack(formats)

    @functools.cached_property
    def gpu_work(self) -> pl.DataFrame:
        """What calls of ops ran on GPUs: ``instance``, ``device_id``, times, ``kind``, ``uses_tc``."""
        ran = self.calls.filter(pl.col("kind").is_in(ON_GPU))
        times = pl.col("gpu_start_ns").alias("start_ns"), pl.col("gpu_end_ns").alias("end_ns")
        return ran.select("instance", "device_id", *times, "kind", "uses_tc")

    @functools.cached_property
    def spans(self) -> pl.DataFrame:
        """First start and last end of what each instance ran on each device: ``instance``, ``device_id``, the times."""
        by = ["instance", "device_id"]
        return self.gpu_work.group_by(by).agg(pl.col("start_ns").min(), pl.col("end_ns").max())

    @functools.cached_property
    def busy(self) -> pl.DataFrame:
        """When each instance ran anything on each device, without overlaps: columns of ``spans``."""
        return intervals.merge(self.gpu_work, by=["instance", "device_id"])

    @property
    def _amd(self) -> pl.Series:
        """The GPUs that are AMD's: of such a name, or all of a program that calls HIP."""
        devices = self.ops.frames("devices").select("device_id", pl.col("name").cast(pl.String)).collect()
        calls = self.ops.frames("api_calls").select(pl.col("name").unique().cast(pl.String))
        if calls.select(pl.col("name").str.starts_with("hip").any()).collect().item():
            return self.ops.calls["device_id"].unique().drop_nulls()
        return devices.filter(pl.col("name").str.contains(AMD))["device_id"]

    @property
    def _api(self) -> pl.DataFrame:
        calls = self.ops.calls.select("instance", "start_ns", "end_ns")
        return intervals.merge(calls, by=["instance"]).group_by("instance").agg(api=_LENGTH.sum())

    @property
    def _gpu(self) -> pl.DataFrame:
        last = pl.col("end_ns").max() - pl.col("start_ns").min()
        by_device = self.busy.group_by("instance", "device_id").agg(gpu=_LENGTH.sum(), span=last)
        return by_device.group_by("instance").agg(pl.col("gpu").sum(), idle=(pl.col("span") - pl.col("gpu")).sum())


def _by_short_name(kernels: pl.DataFrame) -> pl.DataFrame:
    """Make kernels with the same short name in one op alike, as DLProf does: n rows in, n rows out in any order.

    They use Tensor Cores if any of them does, and have the demangled name of the last one in the first instance of the
    op that has any.
    """
    one = kernels.sort("index", -pl.col("call_id")).group_by("op", "name").agg(
        pl.col("long_name").first(), pl.col("uses_tc").any()
    )  # fmt: skip
    return kernels.drop("long_name", "uses_tc").join(one, on=["op", "name"], how="left", nulls_equal=True)
