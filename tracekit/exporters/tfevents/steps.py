"""Place graph nodes on the time axis of a step so that TensorBoard computes the correct time of node groups.

TensorBoard computes the time of a group as the time from the first start to the last end of its nodes. With real start
times, this would include gaps and the time of other nodes in between. Nodes are therefore placed end to end in tree
order, each with its own duration. The time of a group is then the sum of the times of its nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ALL_ITERATIONS = "all iterations"
_ROW_KEYS = ["node", "device_id"]


class PlacedStep(NamedTuple):
    """A step of the event file, with its nodes placed on a time axis.

    Attributes:
        tag: Tag of the step.
        number: Number of the step.
        start_ns: Start of the step in ns since the trace origin.
        placed_nodes: The nodes as returned by ``place_nodes``.
    """

    tag: str
    number: int
    start_ns: int
    placed_nodes: pl.DataFrame


def place_nodes_by_step(tables: Mapping[str, pl.DataFrame], time_kind: str, max_steps: int) -> Iterator[PlacedStep]:
    """Yield one step with the nodes of all iterations, then one step for each of the first ``max_steps`` iterations.

    Args:
        tables: ``model("graph")`` of the trace.
        time_kind: The time that determines the duration of nodes, ``gpu`` or ``cpu``.
        max_steps: Maximum number of steps for single iterations.
    """
    stats, nodes = tables["stats"], tables["nodes"]
    starts = tables["scalars"].select("iteration", "start_ns").unique(maintain_order=True).sort("iteration")
    for number, start_ns in starts.head(1).iter_rows():
        yield PlacedStep(ALL_ITERATIONS, number, start_ns, place_nodes(nodes, stats, time_kind))
    for number, start_ns in starts.head(max_steps).iter_rows():
        yield PlacedStep(
            f"step {number}",
            number,
            start_ns,
            place_nodes(nodes, stats.filter(pl.col("iteration") == number), time_kind),
        )


def place_nodes(nodes: pl.DataFrame, stats: pl.DataFrame, time_kind: str) -> pl.DataFrame:
    """Add up the times of each node, and place the nodes end to end on the time axis of a step.

    Returns:
        One row per device and executed node, ordered by device and then in tree order, with the columns
        ``node``, ``device_id`` (null for the CPU), ``start_ns`` (since the start of the step) and ``duration_ns``.
    """
    if time_kind == "cpu":
        stats = stats.with_columns(device_id=pl.lit(None, stats.schema["device_id"]), gpu_ns="cpu_ns")
    times = stats.group_by(_ROW_KEYS).agg(duration_ns=pl.col("gpu_ns").sum())
    times = _drop_cpu_rows_of_gpu_nodes(times)
    name = nodes["name"].gather(times["node"]).str.replace_all("/", "\0", literal=True)
    ordered = times.with_columns(name=name).sort("name", "device_id", nulls_last=True)
    placed = ordered.with_columns(start_ns=pl.col("duration_ns").cum_sum() - pl.col("duration_ns"))
    return placed.sort("device_id", maintain_order=True, nulls_last=True).select(*_ROW_KEYS, "start_ns", "duration_ns")


def _drop_cpu_rows_of_gpu_nodes(times: pl.DataFrame) -> pl.DataFrame:
    """Drop the CPU rows of nodes that also have GPU rows. These nodes used a GPU in only some of the iterations."""
    on_gpu = pl.col("device_id").is_not_null().any().over("node")
    return times.filter(pl.col("device_id").is_not_null() | ~on_gpu)
