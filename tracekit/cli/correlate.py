"""``tracekit correlate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import (
    force_option,
    from_option,
    input_argument,
    load,
    quiet_option,
    selection_options,
    to_option,
)
from tracekit.cli.output import STDOUT, progress, say, target

if TYPE_CHECKING:
    from tracekit.cli.options import Select
    from tracekit.trace import Trace


@click.command("correlate")
@input_argument
@click.option(
    "-o", "--output", "out", required=True, type=click.Path(path_type=Path), help="File to write; - is standard output."
)
@to_option("Format of the output: parquet, arrow, csv; taken from its suffix if left out.")
@from_option
@selection_options
@force_option
@quiet_option
def command(
    *, path: Path, out: Path, to: str | None, from_: str | None, select: Select, force: bool, quiet: bool
) -> None:
    """Write one row a kernel of IN: its API call, thread, NVTX range, path and depth.

    The rows have the order of the file. The options choose kernels; ranges outside of --time still name them.
    """
    from tracekit.trace import write_table

    if to is None and out == STDOUT:
        raise click.UsageError("give the format: --to FORMAT")
    with load(path, from_) as trace:
        linked = select(trace.correlate())
        with target(out, ".out") as file, progress("correlating", quiet=quiet):
            write_table(linked, "kernels", file, format=to, overwrite=force)
        say(f"wrote {out}: {_summary(linked)}", quiet=quiet or out == STDOUT)


def _summary(trace: Trace) -> str:
    rows = trace.count("kernels")
    calls, ranges = (rows - trace.table("kernels", [c])[c].null_count for c in ("api_call_id", "range_id"))
    return f"{rows:,} kernels, {calls:,} with API call, {ranges:,} in a range"
