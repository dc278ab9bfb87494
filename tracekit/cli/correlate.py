"""``tracekit correlate``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import (
    force_option,
    from_option,
    input_argument,
    load,
    ops_option,
    quiet_option,
    rollup_options,
    selection_options,
    split_names,
    to_option,
)
from tracekit.cli.output import STDOUT, progress, say, target

if TYPE_CHECKING:
    from tracekit.cli.options import RollUp, Select
    from tracekit.trace import Trace


@click.command("correlate")
@input_argument
@click.option(
    "-o", "--output", "out", required=True, type=click.Path(path_type=Path), help="File to write; - is standard output."
)
@to_option("Format of the output: parquet, arrow, csv; taken from its suffix if left out.")
@click.option(
    "--ncu",
    "ncu",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Report or CSV of Nsight Compute of the same program, whose metrics are put beside the kernels.",
)
@click.option(
    "--metrics",
    metavar="NAME[,NAME]",
    type=split_names,
    help="Of --ncu only these metrics; all if left out.",
)
@ops_option
@from_option
@selection_options
@rollup_options
@force_option
@quiet_option
def command(
    *,
    path: Path,
    out: Path,
    to: str | None,
    ncu: Path | None,
    metrics: list[str] | None,
    ops: bool,
    from_: str | None,
    select: Select,
    roll_up: RollUp,
    force: bool,
    quiet: bool,
) -> None:
    """Write one row a kernel of IN: its API call, thread, NVTX range, path and depth.

    The rows have the order of the file. The options choose kernels; ranges outside of --time still name them. With
    --ops also the op, its instance, direction and iteration: --key-op, --iterations and --dialect say which.

    With --ncu also the metrics that Nsight Compute measured, in another run: found by name, grid, block, NVTX range
    and order. The column ncu_match says how; the share found is told.
    """
    from tracekit.trace import write_table

    if to is None and out == STDOUT:
        raise click.UsageError("give the format: --to FORMAT")
    if metrics is not None and ncu is None:
        raise click.UsageError("--metrics are those of --ncu FILE")
    with contextlib.ExitStack() as opened:
        trace = roll_up(opened.enter_context(load(path, from_)), asked=ops)
        measured = None if ncu is None else opened.enter_context(_load(ncu))
        linked = select(trace.correlate() if measured is None else trace.join_ncu(measured, metrics=metrics))
        with target(out, ".out") as file, progress("correlating", quiet=quiet):
            write_table(linked, "kernels", file, format=to, overwrite=force)
        say(f"wrote {out}: {_summary(linked)}", quiet=quiet or out == STDOUT)
        if measured is not None:
            say(_found(linked), quiet=quiet)


def _load(path: Path) -> Trace:
    from tracekit.trace import load as load_trace

    return load_trace(path)


def _found(trace: Trace) -> str:
    """Say how many kernels have metrics, and which way they were found."""
    ways = {row["match"]: row for row in trace.ncu_matches().iter_rows(named=True)}
    lost = ways.pop(None, {"launches": 0})["launches"]
    total, found = trace.count("kernels"), sum(row["kernels"] for row in ways.values())
    how = "".join(f", {row['kernels']:,} by {way}" for way, row in ways.items())
    percent = f"{100 * found / total:.1f} %" if total else "none"
    return (
        f"Nsight Compute: {found:,} of {total:,} kernels have metrics ({percent}){how}; {lost:,} results have no kernel"
    )


def _summary(trace: Trace) -> str:
    rows = trace.count("kernels")
    calls, ranges = (rows - trace.table("kernels", [c])[c].null_count for c in ("api_call_id", "range_id"))
    return f"{rows:,} kernels, {calls:,} with API call, {ranges:,} in a range"
