"""Where the time of each iteration went, device by device.

Every moment counts once, for the first that applies: a Tensor Core kernel runs on the device, another kernel runs,
memory is copied or set, the data loader is at work, files are read or written, an op is open on a CPU, none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.rollup import unions

if TYPE_CHECKING:
    from tracekit.core.iterations import Iterations
    from tracekit.core.rollup.measures import Measures

PARTS = ("tensor_core", "other_kernel", "memory", "dataloader", "io", "cpu", "other")
LOADERS = ("dataloader", "dali")
_ON_DEVICE = 3
_OPEN = tuple(f"_{p}" for p in PARTS[:-1])


def breakdown(measures: Measures, iterations: Iterations, devices: pl.Series) -> pl.DataFrame:
    """Divide up iterations.

    Returns:
        One row an iteration and device, in this order: ``iteration``, ``device_id``, and ns by part.
    """
    cells = iterations.frame.select("iteration").join(pl.DataFrame({"device_id": devices}), how="cross")
    host, work = _host(measures), _on_gpu(measures)
    found = [_divided(pl.concat([work.filter(device_id=d).drop("device_id"), host]), iterations, d) for d in devices]
    made = pl.concat(found).pivot("part", index=["iteration", "device_id"], values="length") if found else cells
    missing = [pl.lit(0, pl.Int64).alias(p) for p in PARTS if p not in made.columns]
    whole = cells.join(made.with_columns(missing), on=["iteration", "device_id"], how="left", maintain_order="left")
    return whole.select("iteration", "device_id", pl.col(PARTS).fill_null(0))


def _on_gpu(measures: Measures) -> pl.DataFrame:
    """Stretches by device and part, without overlaps: ``device_id``, ``part`` (its number), times."""
    kernel, uses = pl.col("kind") == "kernel", pl.col("uses_tc").fill_null(value=False)
    part = pl.when(kernel & uses).then(0).when(kernel).then(1).otherwise(2).cast(pl.Int64)
    work = measures.gpu_work.with_columns(part=part)
    return unions.merge(work, by=["device_id", "part"])


def _host(measures: Measures) -> pl.DataFrame:
    """Stretches of the parts on the CPU: ``part``, times."""
    found = measures.instances.select("start_ns", "end_ns", kind=pl.col("op_type").cast(pl.String))
    parts = (
        pl.col("kind").str.to_lowercase().is_in(LOADERS),
        pl.col("kind") == "IO",
        pl.lit(value=True),
    )
    made = [found.filter(p).select("start_ns", "end_ns", part=pl.lit(_ON_DEVICE + i)) for i, p in enumerate(parts)]
    merged = unions.merge(pl.concat(made).with_columns(pl.col("part").cast(pl.Int64)), by=["part"])
    return merged.select("part", "start_ns", "end_ns")


def _divided(stretches: pl.DataFrame, iterations: Iterations, device: int) -> pl.DataFrame:
    """Give each moment to one part: ``iteration``, ``device_id``, ``part`` (its name), ``length`` in ns."""
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
    moments = steps.with_columns(opened).select("t", part=part, length=pl.col("t").shift(-1) - pl.col("t"))
    first, last = iterations.frame["start_ns"][0], iterations.frame["end_ns"][-1]
    moments = moments.filter((pl.col("t") >= first) & (pl.col("t") < last) & (pl.col("length") > 0))
    at = iterations.frame["end_ns"].search_sorted(moments["t"], side="right").cast(pl.Int64)
    moments = moments.with_columns(iteration=at, device_id=pl.lit(device, pl.Int32))
    return moments.group_by("iteration", "device_id", "part").agg(pl.col("length").sum())
