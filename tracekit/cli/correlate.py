"""The command ``tracekit correlate``, which writes one row per kernel with its API call and NVTX range."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import (
    CAPTURE,
    force_option,
    input_options,
    inputs_argument,
    load_inputs,
    ops_option,
    output_format_option,
    parse_names,
    quiet_option,
    rank_option,
    rollup_options,
    selection_options,
)
from tracekit.cli.output import STDOUT, open_output_path, print_message, print_recorded_warnings, show_progress_bar
from tracekit.errors import format_count

if TYPE_CHECKING:
    from tracekit.cli.options import CapturePath, RollUpOptions, Select, TraceOrSet
    from tracekit.trace import Trace


@click.command("correlate")
@inputs_argument
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write, or - for standard output.",
)
@output_format_option("Format of the output: parquet, arrow or csv. By default, its suffix determines the format.")
@click.option(
    "--ncu",
    "ncu",
    metavar="FILE",
    type=CAPTURE,
    help="Nsight Compute report or CSV of the same program, whose metrics are joined with the kernels.",
)
@click.option(
    "--metrics",
    metavar="NAME[,NAME]",
    type=parse_names,
    help="Join only these metrics of --ncu. By default, all metrics are joined.",
)
@ops_option
@input_options
@rank_option
@selection_options
@rollup_options
@force_option
@quiet_option
def correlate_command(
    *,
    paths: tuple[CapturePath, ...],
    out: Path,
    to: str | None,
    ncu: CapturePath | None,
    metrics: list[str] | None,
    ops: bool,
    from_: str | None,
    select: Select,
    roll_up: RollUpOptions,
    force: bool,
    quiet: bool,
) -> None:
    """Write one row per kernel of IN with its API call, thread, and the name, path and depth of its NVTX range.

    Rows are in the order of the capture. The selection options filter kernels only, so a kernel keeps its range even if
    the range lies outside --time.

    --ops adds the op of each kernel, its instance, direction and iteration. --key-op, --iterations and --dialect
    control how ops and iterations are determined. Only the selected events are considered. A selection can therefore
    change the op of a kernel, and iterations are counted from the start of the selection.

    --ncu adds metrics that Nsight Compute measured in another run of the program. Kernels are matched by name, grid,
    block, NVTX range and order. The column ncu_match contains the kind of match. A message reports the share of matched
    kernels.

    Several inputs are treated as the ranks of one job. A column then contains the rank of each kernel.
    """
    from tracekit import registry
    from tracekit.trace import Trace

    if to is None and out == STDOUT:
        raise click.UsageError("the output format is missing: add --to FORMAT")
    if metrics is not None and ncu is None:
        raise click.UsageError("--metrics can only be used together with --ncu FILE")
    registry.find_table_exporter_for(out, to)
    with contextlib.ExitStack() as stack:
        loaded = load_inputs(paths, from_)
        stack.callback(loaded.close)
        print_recorded_warnings(loaded, quiet=quiet)
        trace = roll_up(loaded, required=ops)
        measured = None if ncu is None else stack.enter_context(_load_ncu_results(ncu))
        correlated = select(trace.correlate() if measured is None else _join_ncu_results(trace, measured, metrics))
        with open_output_path(out, ".out") as file, show_progress_bar("correlating", quiet=quiet):
            _write_kernels(correlated, file, to, overwrite=force)
        print_message(f"wrote {out}: {_describe_correlation(correlated)}", quiet=quiet or out == STDOUT)
        if isinstance(correlated, Trace) and measured is not None:
            print_message(_describe_ncu_matches(correlated), quiet=quiet)


def _join_ncu_results(trace: TraceOrSet, ncu_results: Trace, metrics: list[str] | None) -> Trace:
    """Return a trace whose kernels are joined with Nsight Compute results.

    Raises:
        click.UsageError: ``trace`` is a set of traces.
    """
    from tracekit.trace import Trace

    if not isinstance(trace, Trace):
        raise click.UsageError(
            "--ncu needs one capture, but IN is a set of ranks: pass one file without --rank, or omit --ncu"
        )
    return trace.join_ncu(ncu_results, metrics=metrics)


def _write_kernels(trace: TraceOrSet, file: Path, format_name: str | None, *, overwrite: bool) -> None:
    """Write the kernels of a trace to a file. For a set of ranks, add a column that contains the rank."""
    from tracekit.trace import Trace, write_table

    if isinstance(trace, Trace):
        write_table(trace, "kernels", file, format=format_name, overwrite=overwrite)
    else:
        trace.export(file, format=format_name, tables=["kernels"], overwrite=overwrite)


def _load_ncu_results(path: CapturePath) -> Trace:
    """Load an Nsight Compute report or CSV output."""
    from tracekit.trace import load as load_trace

    return load_trace(path)


def _describe_ncu_matches(trace: Trace) -> str:
    """Return a message with the number of kernels that have Nsight Compute metrics, by kind of match."""
    matches = {row["match"]: row for row in trace.ncu_matches().iter_rows(named=True)}
    unmatched = matches.pop(None, {"launches": 0})["launches"]
    total, matched = trace.count("kernels"), sum(row["kernels"] for row in matches.values())
    by_kind = "".join(f", {row['kernels']:,} by {kind}" for kind, row in matches.items())
    percent = f"{100 * matched / total:.1f}%" if total else "none"
    return (
        f"Nsight Compute: {matched:,} of {total:,} kernels have metrics ({percent}){by_kind}; "
        f"{format_count(unmatched, 'result', 'match', 'matches')} no kernel"
    )


def _describe_correlation(trace: TraceOrSet) -> str:
    """Return a message with the numbers of kernels with an API call, in an NVTX range and in a layer of a graph."""
    rows = trace.count("kernels")
    calls, ranges = (rows - trace.table("kernels", [c])[c].null_count for c in ("api_call_id", "range_id"))
    layers = rows - trace.table("kernels", ["capture_path"])["capture_path"].null_count
    in_layers = f", {layers:,} in a layer of a CUDA graph" if layers else ""
    return f"{format_count(rows, 'kernel')}, {calls:,} with an API call, {ranges:,} in an NVTX range{in_layers}"
