"""Where the time of each iteration went, device by device.

Every moment counts once, for the first that applies: a Tensor Core kernel runs on the device, another kernel or a CUDA
graph that was recorded as a whole runs, memory is copied or set, the data loader is at work, files are read or written,
an op is open on a CPU, none of these. Iterations that overlap each count the time they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals

if TYPE_CHECKING:
    from tracekit.core.iterations import Iterations
    from tracekit.core.rollup.measures import Measures

PARTS = ("tensor_core", "other_kernel", "memory", "dataloader", "io", "cpu", "other")
KERNELS = ("kernel", "graph")
"""Kinds of activities in which kernels run: of a whole CUDA graph it is not known which."""

LOADERS = ("dataloader", "dali")
"""Types of ops that load data, as DLProf knew them."""

_LOADS = (
    r"dataloader|data[ _]?load",
    r"enumerate\(|__next__",
    r"^load(?: \*)?$",
    r"\b(?:next|fetch|get|load|read)[ _]?(?:batch|data)\b",
)
LOADER = "(?i)" + "|".join(_LOADS)
"""Names of other ops that load data: the last part of their path."""

_ON_DEVICE = 3
_OPEN = tuple(f"_{p}" for p in PARTS[:-1])
_SCHEMA = {"iteration": pl.Int64, "device_id": pl.Int32, **dict.fromkeys(PARTS, pl.Int64)}


def breakdown(measures: Measures, iterations: Iterations, devices: pl.Series) -> pl.DataFrame:
    """Divide up iterations.

    Returns:
        One row an iteration and device, in this order: ``iteration``, ``device_id``, and ns by part.
    """
    cells = iterations.frame.select("iteration").join(pl.DataFrame({"device_id": devices}), how="cross")
    host, work = _host(measures), _on_gpu(measures)
    found = [_divided(pl.concat([work.filter(device_id=d).drop("device_id"), host]), iterations, d) for d in devices]
    made = pl.concat([*found, pl.DataFrame(schema=_SCHEMA)])
    return cells.join(made, on=["iteration", "device_id"], how="left", maintain_order="left")


def _on_gpu(measures: Measures) -> pl.DataFrame:
    """Stretches by device and part, without overlaps: ``device_id``, ``part`` (its number), times."""
    kernel, uses = pl.col("kind").is_in(KERNELS), pl.col("uses_tc").fill_null(value=False)
    part = pl.when(kernel & uses).then(0).when(kernel).then(1).otherwise(2).cast(pl.Int64)
    work = measures.gpu_work.with_columns(part=part)
    return intervals.merge(work, by=["device_id", "part"])


def loads(measures: Measures) -> pl.Series:
    """Return whether each op loads data, by its type and, unless in DLProf's mode, by its name."""
    ops = measures.ops.ops
    told = ops["op_type"].cast(pl.String).str.to_lowercase().is_in(LOADERS)
    leaf = ops["op_name"].cast(pl.String).str.extract(r"([^/]*)$").str.contains(LOADER)
    return told | leaf if measures.mode == "extended" else told


def _host(measures: Measures) -> pl.DataFrame:
    """Stretches of the parts on the CPU: ``part``, times."""
    found = measures.instances.select("start_ns", "end_ns", loads=loads(measures).gather(measures.instances["op"]))
    found = found.with_columns(kind=measures.instances["op_type"].cast(pl.String))
    parts = (pl.col("loads"), pl.col("kind") == "IO", pl.lit(value=True))
    made = [found.filter(p).select("start_ns", "end_ns", part=pl.lit(_ON_DEVICE + i)) for i, p in enumerate(parts)]
    merged = intervals.merge(pl.concat(made).with_columns(pl.col("part").cast(pl.Int64)), by=["part"])
    return merged.select("part", "start_ns", "end_ns")


def _divided(stretches: pl.DataFrame, iterations: Iterations, device: int) -> pl.DataFrame:
    """Give each moment of each iteration to one part: columns of ``_SCHEMA``, in ns."""
    bounds = pl.concat([iterations.frame["start_ns"], iterations.frame["end_ns"]]).unique()
    edges = [
        stretches.select("part", t="start_ns", step=pl.lit(1)),
        stretches.select("part", t="end_ns", step=pl.lit(-1)),
        pl.DataFrame({"part": -1, "t": bounds, "step": 0}, schema={"part": pl.Int64, "t": pl.Int64, "step": pl.Int32}),
    ]
    steps = pl.concat([e.cast({"step": pl.Int32}) for e in edges]).sort("t")
    opened = [(pl.col("step") * (pl.col("part") == i)).cum_sum().alias(c) for i, c in enumerate(_OPEN)]
    part = pl.lit(PARTS[-1])
    for name, opening in reversed(list(zip(PARTS, _OPEN, strict=False))):
        part = pl.when(pl.col(opening) > 0).then(pl.lit(name)).otherwise(part)
    lasted = pl.col("t") - pl.col("t").shift(1)
    moments = steps.with_columns(opened).select("t", part=part.shift(1), length=lasted.fill_null(0))
    spent = [pl.when(pl.col("part") == p).then("length").otherwise(0).cum_sum().alias(p) for p in PARTS]
    until = moments.select("t", *spent).unique("t", keep="last", maintain_order=True)
    ends = [iterations.frame.select(t=c).join(until, on="t", how="left", maintain_order="left") for c in _TIMES]
    lengths = {p: ends[1][p] - ends[0][p] for p in PARTS}
    return iterations.frame.select("iteration", pl.lit(device, pl.Int32).alias("device_id"), **lengths)


_TIMES = ("start_ns", "end_ns")
