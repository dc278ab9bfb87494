"""How verbs print frames and show progress: stdout is data, stderr is talk."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from tracekit.registry import Progress


def show(frame: pl.DataFrame, style: str) -> None:
    """Print a frame as a table for people, CSV, one JSON array or JSON lines."""
    if style == "csv":
        frame.write_csv(sys.stdout.buffer)
    elif style == "json":
        click.echo(frame.write_json())
    elif style == "jsonl":
        frame.write_ndjson(sys.stdout.buffer)
    else:
        _table(frame)


def _table(frame: pl.DataFrame) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    numbers = [dtype.is_numeric() for dtype in frame.dtypes]
    for name, number in zip(frame.columns, numbers, strict=True):
        table.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in frame.iter_rows():
        table.add_row(*(Text(_cell(v)) for v in row))
    console = Console()
    Console(width=None if console.is_terminal else 400).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@contextlib.contextmanager
def progress(title: str, *, quiet: bool) -> Iterator[Progress]:
    """Show a progress bar on a terminal; elsewhere, or if quiet, nothing."""
    if quiet or not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
