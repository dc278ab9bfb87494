"""Where verbs print and how they show progress: stdout, or the file of ``-o``, is data; stderr is talk."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from tracekit import interrupts
from tracekit.cli.options import BINARY
from tracekit.errors import TracekitError, shown
from tracekit.text import UNDECODED, json_text, printable, without_formulas

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import polars as pl

    from tracekit.registry import Progress
    from tracekit.trace import Trace

STDOUT = Path("-")
_ROWS_AT_ONCE = 1 << 16
_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Page:
    """What a verb prints on; no text of a file acts on a terminal.

    What people read, and all that a terminal gets, is spelled out; JSON has its own escapes.

    Attributes:
        data: Takes CSV and other bytes.
        width: Cells of the terminal; None if it is none.
        bold: Whether headings are printed bold.
    """

    data: BinaryIO
    width: int | None = None
    bold: bool = False

    def line(self, text: str = "") -> None:
        """Print a line for people; bytes of a path that are not UTF-8 stay as they are, except on a terminal."""
        self._write(printable(text, keep="" if self._terminal else UNDECODED))

    def json(self, value: Any, *, indent: int | None = None) -> None:
        """Print a value as JSON."""
        self._write(json_text(json.dumps(value, indent=indent, ensure_ascii=False)))

    def show(self, frame: pl.DataFrame, style: str, *, prose: Collection[str] = (), spreadsheet: bool = False) -> None:
        """Print a frame: a table for people, or a format for programs; bytes are hexadecimal in all that is text.

        Args:
            frame: The rows.
            style: One of ``options.STYLES``.
            prose: Names of columns of sentences, which a table wraps.
            spreadsheet: Whether cells of CSV that look like formulas get an apostrophe.
        """
        import polars as pl

        if style in BINARY:
            self._show_binary(frame, style)
            return
        frame = frame.with_columns(pl.col(pl.Binary).bin.encode("hex"))
        if style == "csv":
            (without_formulas(frame) if spreadsheet else frame).write_csv(self.data)
        elif style == "json":
            self._write(json_text(frame.write_json()))
        elif style == "jsonl":
            for part in frame.iter_slices(_ROWS_AT_ONCE):
                self._write(json_text(part.write_ndjson()), end=b"")
        else:
            from tracekit.cli.layout import lines

            for line in lines(frame, self.width, prose=prose, bold=self.bold):
                self._write(line)

    def rows(self, frame: pl.DataFrame) -> list[str]:
        """Print a table for people with one line per row; return the titles of the columns that did not fit."""
        from tracekit.cli.layout import rows

        lines, omitted = rows(frame, self.width or sys.maxsize, bold=self.bold)
        for line in lines:
            self._write(line)
        return omitted

    def _show_binary(self, frame: pl.DataFrame, style: str) -> None:
        """Write a frame as Parquet or as an Arrow file."""
        if self._terminal is not None:
            raise click.UsageError(f"{style} is not text: give a file with -o, or > FILE")
        content = io.BytesIO()
        frame.write_parquet(content) if style == "parquet" else frame.write_ipc(content)
        self.data.write(content.getbuffer())

    def _write(self, text: str, end: bytes = b"\n") -> None:
        (self._terminal or self.data).write(text.encode("utf-8", "surrogateescape") + end)

    @property
    def _terminal(self) -> BinaryIO | None:
        return self.data.terminal if isinstance(self.data, Spelling) else None


class Spelling(io.RawIOBase):
    """A stream of UTF-8 to a terminal, in which everything that the terminal would act on is spelled out."""

    def __init__(self, terminal: BinaryIO) -> None:
        super().__init__()
        self.terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        """Return that it can be written to."""
        return True

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        """Write bytes; a character may be divided between two calls."""
        whole = bytes(data)
        self.terminal.write(printable(self._decoder.decode(whole), keep="\n").encode())
        return len(whole)


@contextlib.contextmanager
def page(
    out: Path | None = None, *, overwrite: bool = False, of: Trace | None = None, paged: bool = False
) -> Iterator[Page]:
    """Give the page to print on: standard output, or a file that appears whole or not at all.

    Args:
        out: File to write; None or ``-`` is standard output.
        overwrite: Replace the file if it exists.
        of: The trace that is read; none of its files is written on.
        paged: Show what is longer than a terminal in a pager.

    Raises:
        ExportError: The file exists, or cannot be written.
        TracekitError: Standard output is closed.
    """
    if out is None or out == STDOUT:
        stream = stdout()
        if not sys.stdout.isatty():
            yield Page(stream)
        elif paged:
            content = io.BytesIO()
            yield _terminal(content)
            _print_paged(content.getvalue().decode())
        else:
            yield _terminal(stream)
        sys.stdout.flush()
        return
    from tracekit import targets

    inputs = () if of is None else of.inputs
    with targets.output(out, overwrite=overwrite, inputs=inputs) as new, new.open("wb") as stream:
        yield Page(stream)


def stdout() -> BinaryIO:
    """Return standard output.

    Raises:
        TracekitError: It is closed.
    """
    if sys.stdout is None:
        raise TracekitError("standard output is closed", hint="write to a file: -o FILE, or > FILE")
    return sys.stdout.buffer


def _print_paged(text: str) -> None:
    """Print a text on a terminal, in a pager if it is longer than that."""
    if text.count("\n") < shutil.get_terminal_size().lines:
        click.echo(text, nl=False)
    else:
        click.echo_via_pager(text.removesuffix("\n"))


def _terminal(stream: BinaryIO) -> Page:
    return Page(Spelling(stream), shutil.get_terminal_size().columns, bold=not os.environ.get("NO_COLOR"))  # type: ignore[arg-type]


@contextlib.contextmanager
def target(out: Path, suffix: str) -> Iterator[Path]:
    """Give the path of a file to write: ``out``, or for ``-`` a temporary one that then goes to standard output."""
    if out != STDOUT:
        yield out
        return
    from tracekit import targets

    stream = stdout()
    with targets.workspace(Path(tempfile.gettempdir())) as folder:
        file = folder / f"out{suffix}"
        yield file
        with file.open("rb") as content:
            _print(content, stream)


def _print(content: BinaryIO, stream: BinaryIO) -> None:
    """Copy a file to standard output; a terminal gets text only, and nothing that it would act on."""
    if sys.stdout.isatty():
        sample = content.read(_SAMPLE_BYTES)
        if b"\0" in sample or not _is_utf8(sample):
            raise click.UsageError("the output is not text: give a file, or > FILE")
        content.seek(0)
        stream = Spelling(stream)  # type: ignore[assignment]
    shutil.copyfileobj(content, stream)
    sys.stdout.flush()


def _is_utf8(sample: bytes) -> bool:
    """Return whether bytes, perhaps cut within a character, are UTF-8."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return False
    return True


def fail(error: Exception) -> None:
    """Print an error on stderr: its message, without a traceback."""
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, TracekitError) and error.strerror:
        text = f"{shown(error.filename)}: {error.strerror}" if error.filename else error.strerror
    say(f"tracekit: {text}")


def say(text: str, *, quiet: bool = False) -> None:
    """Print a remark on stderr."""
    if not quiet:
        click.echo(printable(text, keep="\n"), err=True)


@contextlib.contextmanager
def progress(title: str, *, quiet: bool) -> Iterator[Progress]:
    """Show a progress bar on a terminal; elsewhere, or if quiet, nothing."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar, interrupts.cleaning_up(bar.stop):
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
