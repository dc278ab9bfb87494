"""Where verbs print and how they show progress: stdout, or the file of ``-o``, is data; stderr is talk."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from tracekit.registry import Progress
    from tracekit.trace import Trace

STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class Page:
    """What a verb prints on.

    Attributes:
        stream: Takes the bytes.
        width: Cells of the terminal; None if it is none.
        bold: Whether headings are printed bold.
    """

    stream: BinaryIO
    width: int | None = None
    bold: bool = False

    def print(self, text: str = "") -> None:
        """Print a line."""
        self.stream.write(text.encode("utf-8", "surrogateescape") + b"\n")

    def json(self, value: Any, *, indent: int | None = None) -> None:
        """Print a value as JSON."""
        self.print(json.dumps(value, indent=indent, ensure_ascii=False))

    def show(self, frame: pl.DataFrame, style: str, *, prose: str | None = None) -> None:
        """Print a frame as a table for people, CSV, one JSON array or JSON lines; bytes are hexadecimal.

        Args:
            frame: The rows.
            style: ``table``, ``csv``, ``json`` or ``jsonl``.
            prose: Name of a column of sentences, which a table wraps.
        """
        import polars as pl

        frame = frame.with_columns(pl.col(pl.Binary).bin.encode("hex"))
        if style == "csv":
            frame.write_csv(self.stream)
        elif style == "json":
            self.print(frame.write_json())
        elif style == "jsonl":
            frame.write_ndjson(self.stream)
        else:
            from tracekit.cli.layout import lines

            for line in lines(frame, self.width, prose=prose, bold=self.bold):
                self.print(line)


@contextlib.contextmanager
def page(out: Path | None = None, *, overwrite: bool = False, of: Trace | None = None) -> Iterator[Page]:
    """Give the page to print on: standard output, or a file that appears whole or not at all.

    Args:
        out: File to write; None or ``-`` is standard output.
        overwrite: Replace the file if it exists.
        of: The trace that is read, whose file is not to be written on.

    Raises:
        ExportError: The file exists, or cannot be written.
    """
    if out is None or out == STDOUT:
        yield _terminal() if sys.stdout.isatty() else Page(sys.stdout.buffer)
        sys.stdout.flush()
        return
    from tracekit import targets

    reading = None if of is None else of.path
    with targets.fresh(out, overwrite=overwrite, reading=reading) as fresh, fresh.open("wb") as stream:
        yield Page(stream)


def _terminal() -> Page:
    return Page(sys.stdout.buffer, shutil.get_terminal_size().columns, bold=not os.environ.get("NO_COLOR"))


@contextlib.contextmanager
def target(out: Path, suffix: str) -> Iterator[Path]:
    """Give the path of a file to write: ``out``, or for ``-`` a temporary one that then goes to standard output."""
    if out != STDOUT:
        yield out
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"out{suffix}"
        yield file
        with file.open("rb") as made:
            shutil.copyfileobj(made, sys.stdout.buffer)
        sys.stdout.flush()


def say(text: str, *, quiet: bool) -> None:
    """Tell the user something, on stderr."""
    if not quiet:
        click.echo(text, err=True)


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
