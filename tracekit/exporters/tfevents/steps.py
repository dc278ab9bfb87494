"""Where nodes lie on the time axis of a step, for TensorBoard.

TensorBoard takes as the time of a group how long it is from the first start to the last end of its nodes. Laid out as
things ran, that would count pauses, and whatever else ran in between. So nodes are laid end to end in the order of the
tree: the time of a node is its own, and that of a group is the sum of its nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ALL = "all iterations"
_ROW = ["node", "device_id"]


def steps_of(tables: Mapping[str, pl.DataFrame], time: str, steps: int) -> Iterator[tuple[str, int, int, pl.DataFrame]]:
    """Lay out all iterations together, and the first ones each.

    Args:
        tables: The trace's ``model("graph")``.
        time: ``gpu`` or ``cpu``.
        steps: How many iterations, at most.

    Yields:
        Tag, number and start (ns since the trace origin) of the step, and rows as of ``laid``.
    """
    stats, nodes = tables["stats"], tables["nodes"]
    starts = tables["scalars"].select("iteration", "start_ns").unique(maintain_order=True).sort("iteration")
    for number, start_ns in starts.head(1).iter_rows():
        yield ALL, number, start_ns, laid(nodes, stats, time)
    for number, start_ns in starts.head(steps).iter_rows():
        yield f"step {number}", number, start_ns, laid(nodes, stats.filter(pl.col("iteration") == number), time)


def laid(nodes: pl.DataFrame, stats: pl.DataFrame, time: str) -> pl.DataFrame:
    """Sum up what nodes took and lay it end to end.

    Returns:
        One row a node that was called and device, in order of device and tree: ``node``, ``device_id`` (null is the
        CPU), ``at_ns`` (since the start of the step), ``ns``.
    """
    if time == "cpu":
        stats = stats.with_columns(device_id=pl.lit(None, stats.schema["device_id"]), gpu_ns="cpu_ns")
    spent = stats.group_by(_ROW).agg(ns=pl.col("gpu_ns").sum())
    spent = _without_idle_host(spent)
    name = nodes["name"].gather(spent["node"]).str.replace_all("/", "\0", literal=True)
    ordered = spent.with_columns(name=name).sort("name", "device_id", nulls_last=True)
    placed = ordered.with_columns(at_ns=pl.col("ns").cum_sum() - pl.col("ns"))
    return placed.sort("device_id", maintain_order=True, nulls_last=True).select(*_ROW, "at_ns", "ns")


def _without_idle_host(spent: pl.DataFrame) -> pl.DataFrame:
    """Leave out the CPU of nodes that ran on a GPU in other iterations."""
    on_gpu = pl.col("device_id").is_not_null().any().over("node")
    return spent.filter(pl.col("device_id").is_not_null() | ~on_gpu)
