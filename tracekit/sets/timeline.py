"""Align the clocks of several traces and connect their events with flows (arrows), for exporters of timelines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit.core.communication import Communication, read_call_tables
from tracekit.core.communication.calls import MESSAGES, MPI
from tracekit.core.communication.matching import UNMATCHED
from tracekit.core.communication.stragglers import NONE
from tracekit.errors import ExportError
from tracekit.registry.interface import AlignedTraces
from tracekit.sets import communication
from tracekit.sets.member_set import MemberSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracekit.registry.interface import Part

_LISTED = 8


def align_traces(traces: MemberSet, parts: Sequence[Part]) -> AlignedTraces:
    """Return the traces of a set for an exporter, with their clocks and with flows between communicating ranks.

    All rows of the captures are used to align the clocks, including rows that the set does not select. A warning lists
    ranks that are aligned only by the UTC times of their origins.

    Args:
        traces: The set of traces.
        parts: The traces in the order of ranks, which are not aligned yet.

    Raises:
        ExportError: A rank cannot be aligned.
    """
    whole = MemberSet(traces.members, engine=traces.engine)
    analysis = Communication(communication.collect_rank_tables(whole, read_call_tables))
    clocks = {row["rank"]: row for row in analysis.clocks.iter_rows(named=True)}
    unaligned = [rank for rank, row in clocks.items() if row["method"] == NONE]
    if unaligned:
        listed = ", ".join(map(str, unaligned[:_LISTED])) + (", …" if len(unaligned) > _LISTED else "")
        message = f"rank {listed}: the clock cannot be aligned with that of rank {traces.ranks[0]}"
        reason = "neither common collectives nor the UTC time of the trace origin are recorded"
        raise ExportError(f"{message}, because {reason}", hint="export these ranks separately")
    communication.warn_about_unaligned_clocks(analysis.clocks)
    aligned = [
        replace(part, offset_ns=clocks[rank]["offset_ns"], drift=clocks[rank]["drift_ppm"] / 1e6)
        for rank, part in zip(traces.ranks, parts, strict=True)
    ]
    metadata = {"ranks": str(len(parts))} | {
        f"clock_rank_{rank}": _describe_clock_alignment(row) for rank, row in clocks.items()
    }
    return AlignedTraces(
        aligned, find_flows_between_ranks(analysis.calls, traces.ranks), traces.members[0].origin_utc_ns, metadata
    )


def find_flows_between_ranks(calls: pl.DataFrame, ranks: list[int]) -> pl.DataFrame:
    """Return the flows (arrows in a timeline) between calls of different ranks, as rows of ``AlignedTraces.links``.

    The calls of one collective are connected in order of start. A flow also leads from the start of a call that sends
    a message to the end of the call that receives it. If the kernel of a call was recorded, the flow is attached to
    the kernel instead of the call.

    Args:
        calls: The result of ``Communication.calls``, with times on the shared clock.
        ranks: The ranks, in the order of ``AlignedTraces.parts``.
    """
    import polars as pl

    has_kernel = pl.col("kernel_id").is_not_null()
    in_table = pl.when(pl.col("library") == MPI).then(pl.lit("mpi_calls")).otherwise(pl.lit("nvtx_ranges"))
    part = pl.col("trace_rank").replace_strict(ranks, list(range(len(ranks))), return_dtype=pl.Int64)
    members = calls.filter(pl.col("status") != UNMATCHED).select(
        "collective_id",
        part=part,
        table=pl.when(has_kernel).then(pl.lit("kernels")).otherwise(in_table),
        id=pl.when(has_kernel).then("kernel_id").otherwise("call_id"),
        ns=pl.when(has_kernel).then("kernel_start_ns").otherwise("call_start_ns"),
        end_ns=pl.when(has_kernel).then("kernel_end_ns").otherwise("call_end_ns"),
        is_message=pl.col("kind").is_in(MESSAGES),
        sends=pl.col("kind") == "send",
    )
    members = members.drop_nulls(["id", "ns"])
    both = [
        _find_collective_flows(members.filter(~pl.col("is_message"))),
        _find_message_flows(members.filter("is_message")),
    ]
    # flows between MPI calls of one trace are drawn with the trace
    own = (pl.col("from_part") == pl.col("to_part")) & (pl.col("from_table") == "mpi_calls")
    return pl.concat(both).filter(~own)


def _find_collective_flows(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the flows that connect the calls of each collective in order of start."""
    import polars as pl

    columns = ("part", "table", "id", "ns")
    ordered = calls.unique(["collective_id", "part", "table", "id"]).sort("collective_id", "ns", "part", "id")
    before = [pl.col(c).shift(1).over("collective_id").alias(f"from_{c}") for c in columns]
    flows = ordered.select(pl.lit("collective").alias("name"), *before, *(pl.col(c).alias(f"to_{c}") for c in columns))
    return flows.drop_nulls("from_part")


def _find_message_flows(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the flows from the start of each call that sends a message to the end of the call that receives it."""
    import polars as pl

    columns = ("part", "table", "id", "ns")
    last = pl.max_horizontal("ns", pl.col("end_ns").fill_null(pl.col("ns")) - 1)
    sent = calls.filter("sends").select("collective_id", *(pl.col(c).alias(f"from_{c}") for c in columns))
    received = calls.filter(~pl.col("sends")).with_columns(ns=last)
    received = received.select("collective_id", *(pl.col(c).alias(f"to_{c}") for c in columns))
    joined = sent.join(received, on="collective_id", maintain_order="left")
    return joined.select(pl.lit("message").alias("name"), pl.all().exclude("collective_id"))


def _describe_clock_alignment(clock: dict[str, object]) -> str:
    """Return a description of how the times of a rank were converted to the clock of the first rank."""
    if clock["method"] == "reference":
        return "reference"
    text = f"{clock['method']}, offset {clock['offset_ns']} ns"
    if clock["residual_ns"] is None:
        return text
    return (
        f"{text}, drift {clock['drift_ppm']:.3f} ppm, residual {clock['residual_ns']} ns "
        f"(max {clock['max_residual_ns']} ns) of {clock['collective_count']} collectives"
    )
