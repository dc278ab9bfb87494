"""The command ``tracekit formats``, which lists the formats that tracekit reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli.options import printing_options

if TYPE_CHECKING:
    from tracekit.cli.options import Printing


@click.command("formats")
@printing_options
def formats_command(*, printing: Printing) -> None:
    """List the formats that tracekit reads and writes, including plug-ins."""
    import polars as pl

    from tracekit import registry

    read, write = registry.readers(), registry.exporters()
    rows = []
    for name in sorted({*read, *write}):
        handlers = [p[name] for p in (read, write) if name in p]
        suffixes = " ".join(dict.fromkeys(s for p in handlers for s in p.suffixes))
        rows.append((name, *("yes" if name in p else "" for p in (read, write)), suffixes, handlers[0].doc))
    frame = pl.DataFrame(rows, schema=["format", "read", "write", "suffixes", "doc"], orient="row")
    with printing.open_output_page() as page:
        printing.print_frame(page, frame, prose_columns=["doc"])
