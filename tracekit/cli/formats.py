"""``tracekit formats``."""

from __future__ import annotations

import click

from tracekit.cli.options import style_option
from tracekit.cli.output import show


@click.command("formats")
@style_option
def command(style: str) -> None:
    """List the formats that can be read and written, plug-ins included."""
    import polars as pl

    from tracekit import registry

    read, write = registry.readers(), registry.exporters()
    rows = []
    for name in sorted({*read, *write}):
        parts = [p[name] for p in (read, write) if name in p]
        suffixes = dict.fromkeys(s for p in parts for s in p.suffixes)
        rows.append((name, "yes" if name in read else "", "yes" if name in write else "", " ".join(suffixes), parts[0].doc))
    show(pl.DataFrame(rows, schema=["format", "read", "write", "suffixes", "what"], orient="row"), style)
