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
from tracekit.errors import TracekitError
from tracekit.text import UNDECODED, json_text, printable, without_formulas

if TYPE_CHECKING:
    from collections.abc import Iterator

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

    def show(self, frame: pl.DataFrame, style: str, *, prose: str | None = None, spreadsheet: bool = False) -> None:
        """Print a frame as a table for people, CSV, one JSON array or JSON lines; bytes are hexadecimal.

        Args:
            frame: The rows.
            style: ``table``, ``csv``, ``json`` or ``jsonl``.
            prose: Name of a column of sentences, which a table wraps.
            spreadsheet: Whether cells of CSV that look like formulas get an apostrophe.
        """
        import polars as pl

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
def page(out: Path | None = None, *, overwrite: bool = False, of: Trace | None = None) -> Iterator[Page]:
    """Give the page to print on: standard output, or a file that appears whole or not at all.

    Args:
        out: File to write; None or ``-`` is standard output.
        overwrite: Replace the file if it exists.
        of: The trace that is read; none of its files is written on.

    Raises:
        ExportError: The file exists, or cannot be written.
        TracekitError: Standard output is closed.
    """
    if out is None or out == STDOUT:
        stream = stdout()
        yield _terminal(stream) if sys.stdout.isatty() else Page(stream)
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


def say(text: str, *, quiet: bool) -> None:
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
