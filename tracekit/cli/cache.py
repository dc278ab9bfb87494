"""The command ``tracekit cache``, which lists or deletes the stored columns of large captures."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import printing_options
from tracekit.errors import convert_to_printable_path

if TYPE_CHECKING:
    from tracekit.cli.options import Printing
    from tracekit.plan.cache import CacheEntry


@click.command("cache")
@click.option("--clear", is_flag=True, help="Delete all stored columns, and list their captures.")
@printing_options
def cache_command(*, clear: bool, printing: Printing) -> None:
    """List the captures whose columns are stored in the cache, the most recently used one first.

    Commands store the columns that they read from reports, SQLite exports and PyTorch traces of at least 16 MiB, and
    read them from the cache the next time. In the list, current is false if another version of tracekit stored the
    columns.
    """
    import polars as pl

    from tracekit.plan.cache import CacheFolder

    cache = CacheFolder()
    entries = cache.delete_entries() if clear else cache.list_entries()
    columns = {"capture": pl.String, "format": pl.String, "bytes": pl.Int64, "used": pl.String, "current": pl.Boolean}
    with printing.open_output_page() as page:
        printing.print_frame(
            page, pl.DataFrame([_build_cache_row(entry) for entry in entries], schema=columns, orient="row")
        )


def _build_cache_row(entry: CacheEntry) -> tuple[str, str, int, str, bool]:
    """Return the row of a cache entry: its path, format, size in bytes, time of last use, and whether it is current."""
    used = dt.datetime.fromtimestamp(entry.used, dt.UTC)
    return (
        convert_to_printable_path(entry.path),
        entry.format,
        entry.bytes,
        f"{used:%Y-%m-%d %H:%M:%S} UTC",
        entry.is_current,
    )
