"""The command ``tracekit tables``, which lists the tables of a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli.options import input_options, inputs_argument, jobs_option, load_inputs, printing_options, rank_option
from tracekit.cli.output import print_message
from tracekit.registry.absence import describe_undecoded

if TYPE_CHECKING:
    import polars as pl

    from tracekit.cli.options import CapturePath, Printing
    from tracekit.trace import Trace


@click.command("tables")
@inputs_argument
@input_options
@rank_option
@jobs_option
@printing_options
def tables_command(*, paths: tuple[CapturePath, ...], from_: str | None, printing: Printing) -> None:
    """List the tables of IN with their row counts.

    Several inputs are treated as the ranks of one job. The rows of each rank are then counted separately.
    """
    from tracekit.trace import Trace

    with load_inputs(paths, from_) as trace:
        frame = _describe_tables(trace) if isinstance(trace, Trace) else trace.frames(_describe_tables)
        with printing.open_output_page(trace) as page:
            printing.print_frame(page, frame, prose_columns=["doc"])
        undecoded = [_list_undecoded_events(trace)] if isinstance(trace, Trace) else trace.map(_list_undecoded_events)
    for line in dict.fromkeys(line for lines in undecoded for line in lines):
        print_message(line, quiet=False)


def _list_undecoded_events(trace: Trace) -> list[str]:
    """Return a line for each class of events that are recorded, but not decoded, and may belong to a table."""
    return [
        f"{', '.join(size.tables)}: {describe_undecoded({name: size})}"
        for name, size in trace.undecoded.items()
        if size.tables
    ]


def _describe_tables(trace: Trace) -> pl.DataFrame:
    """Return a frame with one row per table: name, number of rows, number of columns and description."""
    import polars as pl

    declared, counts = [trace.schema(name) for name in trace.tables], trace.count_all()
    rows = [(t.name, counts[t.name], len(t.columns), t.doc) for t in declared]
    return pl.DataFrame(rows, schema=["table", "rows", "columns", "doc"], orient="row")
