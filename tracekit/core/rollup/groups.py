"""Group nodes: the inner nodes of the tree of op names, with the totals of what is below them.

Metrics of a group have one value an aggregated iteration in which it has instances. CPU, API time and CPU overhead are
sums over its instances. GPU time is, device by device, how long anything of the group ran; GPU idle how long a stretch
from the first to the last activity of one of its instances was open and nothing of the group ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.correlate import DEEPEST_PATH
from tracekit.core.rollup import statistics, unions
from tracekit.core.rollup.measures import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.rollup.measures import Measures

_SUMMED = ("cpu", "api", "overhead")
_LENGTH = (pl.col("end_ns") - pl.col("start_ns")).sum()
_CELL = ["group", "iteration"]


def prefixes(names: pl.Series) -> pl.DataFrame:
    """List the groups that each op lies in: the prefixes of its name that end in ``/``, and "", which holds all.

    Args:
        names: One op name a row.

    Returns:
        One row a pair: ``op`` (row of ``names``), ``level`` (number of ``/``, below 256), ``path``.
    """
    parts = pl.DataFrame({"part": names.cast(pl.String).str.split("/")}).with_row_index("op")
    deepest = pl.col("part").list.len().clip(upper_bound=DEEPEST_PATH)
    parts = parts.with_columns(pl.col("op").cast(pl.Int64), level=pl.int_ranges(deepest))
    pairs = parts.explode("level")
    head = pairs.select(pl.col("part").list.head("level")).to_series()
    head = head.cast(pl.List(pl.String))  # polars before 2.1 makes a list of nulls of no rows
    slash = pl.when(pl.col("level") > 0).then(pl.lit("/")).otherwise(pl.lit(""))
    return pairs.with_columns(head.list.join("/").alias("path")).select("op", "level", pl.col("path") + slash)


def groups(measures: Measures, iteration: pl.Series, devices: pl.Series, ops: pl.DataFrame) -> pl.DataFrame:
    """Sum up groups.

    Args:
        measures: The ops, measured.
        iteration: Aggregated iteration of each instance, null for none.
        devices: Devices that count for GPU time.
        ops: One row an op: ``count`` (instances that are aggregated), ``eligible``, ``uses_tc``.

    Returns:
        One row a group in order of its path (by bytes), the whole model (``path`` "") first: ``path``, ``level``,
        ``op_count``, ``instance_count``, ``eligible_count``, ``uses_tc_count``, and the statistics of ``METRICS``.
    """
    pairs = prefixes(measures.ops.ops["op_name"])
    nodes = pairs.select("path", "level").unique().sort("path").with_row_index("group")
    pairs = pairs.join(nodes, on="path").select("op", "level", pl.col("group").cast(pl.Int64))
    active = ops.with_columns(pl.int_range(pl.len()).alias("op"))
    inside = pairs.join(active, on="op").group_by("group").agg(
        op_count=pl.len().cast(pl.Int64),
        instance_count=pl.col("count").sum(),
        eligible_count=(pl.col("eligible") & (pl.col("count") > 0)).sum().cast(pl.Int64),
        uses_tc_count=pl.col("uses_tc").sum().cast(pl.Int64),
    )  # fmt: skip
    cells = _cells(measures, iteration, devices, pairs)
    found = statistics.by(cells, ["group"], METRICS)
    whole = nodes.with_columns(pl.col("group").cast(pl.Int64)).join(inside, on="group")
    whole = whole.join(found, on="group", how="left")
    return whole.with_columns(statistics.blank(METRICS)).sort("group").drop("group")


def _cells(measures: Measures, iteration: pl.Series, devices: pl.Series, pairs: pl.DataFrame) -> pl.DataFrame:
    """Measure each group in each iteration: columns of ``_CELL`` and ``METRICS``."""
    rows = measures.instances.select("op", *_SUMMED, iteration=iteration).drop_nulls("iteration")
    summed = rows.group_by("op", "iteration").agg(pl.col(_SUMMED).sum())
    summed = summed.join(pairs.select("op", "group"), on="op").group_by(_CELL).agg(pl.col(_SUMMED).sum())
    on_gpu = pl.concat(list(_gpu_by_level(measures, iteration, devices, pairs)))
    both = summed.join(on_gpu, on=_CELL, how="left")
    return both.with_columns(pl.col("gpu", "idle").fill_null(0))


def _gpu_by_level(
    measures: Measures, iteration: pl.Series, devices: pl.Series, pairs: pl.DataFrame
) -> Iterator[pl.DataFrame]:
    """Measure GPU time and idle of the groups of one level after the other; columns of ``_CELL``, ``gpu``, ``idle``."""
    op = measures.instances["op"]

    def placed(stretches: pl.DataFrame) -> pl.DataFrame:
        known = stretches.filter(pl.col("device_id").is_in(devices.implode()))
        at = known["instance"]
        known = known.with_columns(op=op.gather(at), iteration=iteration.gather(at)).drop_nulls("iteration")
        return known.drop("instance")

    work, spans = placed(measures.busy), placed(measures.spans)
    empty = {"group": pl.Int64, "iteration": pl.Int64, "gpu": pl.Int64, "idle": pl.Int64}
    yield pl.DataFrame(schema=empty)
    for level in range(int(pl.Series([pairs["level"].max()], dtype=pl.Int64).fill_null(-1).item()) + 1):
        of = pairs.filter(pl.col("level") == level).select("op", "group")
        gpu, span = (_length(f.join(of, on="op")) for f in (work, spans))
        made = span.join(gpu.rename({"length": "gpu"}), on=_CELL, how="left").with_columns(pl.col("gpu").fill_null(0))
        yield made.select(*_CELL, "gpu", idle=pl.col("length") - pl.col("gpu"))


def _length(stretches: pl.DataFrame) -> pl.DataFrame:
    """Measure the union of stretches by group and iteration, summed over devices: columns of ``_CELL``, ``length``."""
    merged = unions.merge(stretches, by=[*_CELL, "device_id"])
    return merged.group_by(_CELL).agg(length=_LENGTH)
