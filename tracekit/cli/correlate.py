"""``tracekit correlate``."""

from __future__ import annotations

from pathlib import Path

import click

from tracekit.cli.options import force_option, from_option, input_argument, load, quiet_option


@click.command("correlate")
@input_argument
@click.option("-o", "--output", "out", required=True, type=click.Path(path_type=Path), help="File to write, by its suffix.")
@from_option
@force_option
@quiet_option
def command(path: Path, out: Path, from_: str | None, force: bool, quiet: bool) -> None:  # noqa: FBT001
    """Write one row a kernel of IN: its API call, thread, NVTX range, path and depth.

    The order is that of the file. The suffix of the output chooses the format: .parquet, .arrow, .csv.
    """
    from tracekit.trace import write_table

    with load(path, from_) as trace:
        linked = trace.correlate()
        write_table(linked, "kernels", out, overwrite=force)
        if not quiet:
            rows = linked.count("kernels")
            calls, ranges = (rows - linked.table("kernels", [c])[c].null_count for c in ("api_call_id", "range_id"))
            click.echo(f"wrote {out}: {rows:,} kernels, {calls:,} with API call, {ranges:,} in a range", err=True)
