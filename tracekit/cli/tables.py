"""The command ``tracekit tables``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - click needs it
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import from_option, input_argument, load_input, printing_options

if TYPE_CHECKING:
    from tracekit.cli.options import Printing


@click.command("tables")
@input_argument
@from_option
@printing_options
def command(*, path: Path, from_: str | None, printing: Printing) -> None:
    """List the tables of IN with their row counts."""
    import polars as pl

    with load_input(path, from_) as trace:
        declared, counts = [trace.schema(name) for name in trace.tables], trace.count_all()
        rows = [(t.name, counts[t.name], len(t.columns), t.doc) for t in declared]
        frame = pl.DataFrame(rows, schema=["table", "rows", "columns", "doc"], orient="row")
        with printing.open_page(trace) as page:
            printing.print_frame(page, frame, prose=["doc"])
