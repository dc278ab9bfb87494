"""Print data to standard output or a file, and messages and progress to standard error."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

import click

from tracekit import schemas
from tracekit.errors import TracekitError, convert_to_printable_path
from tracekit.system import interrupts
from tracekit.system.platform import console
from tracekit.text import UNDECODED, escape_formulas, escape_json_text, to_printable
from tracekit.text.urls import remove_secrets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import polars as pl

    from tracekit.cli.times import Times
    from tracekit.registry.interface import Progress
    from tracekit.sets import TraceSet
    from tracekit.system.files import Input
    from tracekit.trace import Trace

    class HasInputs(Protocol):
        """An object that is read from files, such as a trace."""

        @property
        def inputs(self) -> tuple[Input, ...]:
            """The files and folders that are being read. An output must not replace any of them."""


STDOUT = Path("-")
_BINARY_STYLES = ("parquet", "arrow")
_BATCH_ROWS = 1 << 16
_SAMPLE_BYTES = 1 << 16


class CommandOutput(NamedTuple):
    """The output of a command, which is printed to standard output or to a file.

    Control characters are escaped in tables, and in all output to a terminal, so that strings of a capture cannot
    control the terminal. In JSON they are escaped as JSON requires.

    Attributes:
        data: The stream to which CSV and binary formats are written.
        width: Width of the terminal in cells. None if the output is not a terminal.
        bold: Whether headings are printed in bold.
    """

    data: BinaryIO
    width: int | None = None
    bold: bool = False

    def print_line(self, text: str = "") -> None:
        """Print a line of text. Bytes of a path that are not valid UTF-8 are escaped only on a terminal."""
        self._write_unescaped(to_printable(text, keep="" if self._terminal_stream else UNDECODED))

    def print_wrapped_line(self, text: str) -> None:
        """Print a line of text. On a terminal, wrap it between words, and indent all its lines like the first one."""
        if self.width is None or len(text) <= self.width:
            self.print_line(text)
            return
        margin = " " * (len(text) - len(text.lstrip()))
        for line in textwrap.wrap(to_printable(text), self.width, subsequent_indent=margin):
            self.print_line(line)

    def print_json(self, value: Any, *, indent: int | None = None) -> None:
        """Print a value as JSON."""
        self._write_unescaped(escape_json_text(json.dumps(value, indent=indent, ensure_ascii=False)))

    def print_frame(
        self,
        frame: pl.DataFrame,
        style: str,
        *,
        prose_columns: Collection[str] = (),
        spreadsheet: bool = False,
        times: Times | None = None,
    ) -> None:
        """Print a frame in an output format. Binary columns are printed as hexadecimal digits in text formats.

        Args:
            frame: The frame to print.
            style: Output format, one of ``options.STYLES``.
            prose_columns: Names of columns that contain sentences, which are wrapped in a table.
            spreadsheet: Whether to put an apostrophe before strings in CSV that look like a formula.
            times: The unit of times in a table. If None, times are printed in human units on a terminal, and in ns
                otherwise.
        """
        import polars as pl

        if style in _BINARY_STYLES:
            self._write_binary(frame, style)
            return
        frame = frame.with_columns(pl.col(pl.Binary).bin.encode("hex"))
        if style == "csv":
            (escape_formulas(frame) if spreadsheet else frame).write_csv(self.data)
        elif style == "json":
            self._write_unescaped(escape_json_text(frame.write_json()))
        elif style == "jsonl":
            for batch in frame.iter_slices(_BATCH_ROWS):
                self._write_unescaped(escape_json_text(batch.write_ndjson()), end=b"")
        else:
            from tracekit.cli.layout import format_table

            times = times or self._default_times
            for line in format_table(frame, self.width, prose_columns=prose_columns, bold=self.bold, times=times):
                self._write_unescaped(line)

    def print_rows(self, frame: pl.DataFrame, *, key_columns: Collection[str] = (), times: Times | None = None) -> None:
        """Print a table with one line per row, and a line with the titles of the columns that did not fit.

        Args:
            frame: The frame to print.
            key_columns: Names of the columns that are omitted last.
            times: The unit of times. If None, times are printed in human units on a terminal, and in ns otherwise.
        """
        from tracekit.cli.layout import format_rows_and_list_omitted_titles

        lines, omitted = format_rows_and_list_omitted_titles(
            frame,
            self.width or sys.maxsize,
            bold=self.bold,
            key_columns=key_columns,
            times=times or self._default_times,
        )
        for line in lines:
            self._write_unescaped(line)
        if omitted:
            self.print_line(f"(omitted columns: {', '.join(omitted)}; widen the terminal or use --format csv)")

    @property
    def _default_times(self) -> Times | None:
        """The unit of times in a table: human units on a terminal, and None otherwise."""
        from tracekit.cli.times import Times

        return None if self.width is None else Times()

    def _write_binary(self, frame: pl.DataFrame, style: str) -> None:
        """Write a frame as a Parquet file or an Arrow file."""
        if self._terminal_stream is not None:
            raise click.UsageError(f"{style} is binary and cannot be printed on a terminal: name a file with -o")
        content = io.BytesIO()
        frame.write_parquet(content) if style == "parquet" else frame.write_ipc(content)
        self.data.write(content.getbuffer())

    def _write_unescaped(self, text: str, end: bytes = b"\n") -> None:
        """Write a string without escaping it.

        Python represents bytes of a path that are not valid UTF-8 as surrogates. These are written as the original
        bytes.
        """
        stream = self._escaping_stream
        encoding = console.UTF_8 if stream is None else stream.encoding
        (self._terminal_stream or self.data).write(console.encode(text, encoding) + end)

    @property
    def _terminal_stream(self) -> BinaryIO | None:
        """The stream of the terminal, which escapes nothing. None if the output is not a terminal."""
        return None if self._escaping_stream is None else self._escaping_stream.terminal

    @property
    def _escaping_stream(self) -> EscapingStream | None:
        return self.data if isinstance(self.data, EscapingStream) else None


class EscapingStream(io.RawIOBase):
    """A stream that gets UTF-8, escapes control characters and escape sequences, and writes text to a terminal.

    Attributes:
        terminal: The stream of the terminal.
        encoding: Encoding of the terminal.
    """

    def __init__(self, terminal: BinaryIO, encoding: str = console.UTF_8) -> None:
        super().__init__()
        self.terminal = terminal
        self.encoding = encoding
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        """Return True, because the stream can be written to."""
        return True

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        """Write bytes and return their number. A character may be split between two calls."""
        content = bytes(data)
        text = to_printable(self._decoder.decode(content), keep="\n")
        self.terminal.write(console.encode(text, self.encoding))
        return len(content)


@contextlib.contextmanager
def open_output_page(
    out: Path | None = None, *, overwrite: bool = False, source: HasInputs | None = None, paged: bool = False
) -> Iterator[CommandOutput]:
    """Open standard output or a file for the output of a command, and yield a ``CommandOutput`` that prints to it.

    A file is written atomically.

    Args:
        out: File to write. None or ``-`` is standard output.
        overwrite: Whether to replace the file if it exists.
        source: What is being read, such as a trace. The output must not replace its files.
        paged: Whether to show the output in a pager if it has more lines than the terminal.

    Raises:
        ExportError: The file exists, or cannot be written.
        TracekitError: Standard output is closed.
    """
    if out is None or out == STDOUT:
        stream = open_standard_output()
        if not sys.stdout.isatty():
            yield CommandOutput(stream)
        elif paged:
            content = io.BytesIO()
            yield _open_terminal_page(content)
            _print_paged(content.getvalue().decode(console.get_encoding(sys.stdout)))
        else:
            yield _open_terminal_page(stream)
        sys.stdout.flush()
        return
    from tracekit.system import targets

    inputs = () if source is None else source.inputs
    with targets.open_atomic_output(out, overwrite=overwrite, inputs=inputs) as new, new.open("wb") as stream:
        yield CommandOutput(stream)


def open_standard_output() -> BinaryIO:
    """Return the binary stream of standard output.

    Raises:
        TracekitError: Standard output is closed.
    """
    if sys.stdout is None:
        raise TracekitError("standard output is closed", hint="write to a file with -o FILE")
    return sys.stdout.buffer


def _print_paged(text: str) -> None:
    """Print text on a terminal, with a pager if it has more lines than the terminal."""
    if text.count("\n") < shutil.get_terminal_size().lines:
        click.echo(text, nl=False)
    else:
        click.echo_via_pager(text.removesuffix("\n"))


def _open_terminal_page(stream: BinaryIO) -> CommandOutput:
    """Return a page for a terminal, which has the width of the terminal and escapes control characters."""
    width, escaping = shutil.get_terminal_size().columns, EscapingStream(stream, console.get_encoding(sys.stdout))
    bold = not os.environ.get("NO_COLOR") and console.interprets_escape_sequences(sys.stdout)
    return CommandOutput(escaping, width, bold=bold)  # type: ignore[arg-type]


@contextlib.contextmanager
def open_output_path(out: Path, suffix: str) -> Iterator[Path]:
    """Yield the path of a file to write.

    If ``out`` is ``-``, the path is that of a temporary file, which is then copied to standard output.
    """
    if out != STDOUT:
        yield out
        return
    from tracekit.system import targets

    stream = open_standard_output()
    with targets.create_workspace(Path(tempfile.gettempdir())) as folder:
        file = folder / f"out{suffix}"
        yield file
        with file.open("rb") as content:
            _copy_to_stdout(content, stream)


def _copy_to_stdout(file: BinaryIO, stdout: BinaryIO) -> None:
    """Copy a file to standard output. On a terminal, escape control characters, and reject binary files."""
    if sys.stdout.isatty():
        sample = file.read(_SAMPLE_BYTES)
        if b"\0" in sample or not _is_utf8(sample):
            raise click.UsageError("the output is binary and cannot be printed on a terminal: name an output file")
        file.seek(0)
        stdout = EscapingStream(stdout, console.get_encoding(sys.stdout))  # type: ignore[assignment]
    shutil.copyfileobj(file, stdout)
    sys.stdout.flush()


def _is_utf8(sample: bytes) -> bool:
    """Return whether bytes are valid UTF-8. Their last character may be incomplete."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return False
    return True


def print_error(error: Exception) -> None:
    """Print the message of an error to standard error, without a traceback."""
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, TracekitError) and error.strerror:
        text = f"{convert_to_printable_path(error.filename)}: {error.strerror}" if error.filename else error.strerror
    print_message(f"tracekit: {text}")


def print_message(text: str, *, quiet: bool = False) -> None:
    """Print a message without the secrets of URLs to standard error, unless ``quiet`` is true."""
    if not quiet:
        click.echo(to_printable(remove_secrets(text), keep="\n"), err=True)


def print_recorded_warnings(trace: Trace | TraceSet, *, quiet: bool) -> None:
    """Print the warnings and errors that the profiler recorded in one capture, if standard error is a terminal.

    They are not printed for the captures of a set, because every capture would be read once more.
    """
    from tracekit.registry.notices import format_notices, list_recorded_warnings
    from tracekit.trace import Trace, get_trace_view

    if quiet or sys.stderr is None or not sys.stderr.isatty() or not isinstance(trace, Trace):
        return
    for sentence in format_notices(list_recorded_warnings(get_trace_view(trace)), None):
        print_message(f"{sentence[:1].lower()}{sentence[1:]}")


def print_steps(trace: Trace | TraceSet, *, quiet: bool) -> None:
    """Print which range delimits the steps of a capture, how many there are, and how much work lies in them.

    Nothing is printed for captures without GPU activities. For a set of ranks, one line is printed for all ranks whose
    steps agree.
    """
    if quiet or not any(trace.count(table) for table in schemas.list_tables("activity")):
        return
    for note in list_step_notes(trace):
        print_message(note)


def list_step_notes(trace: Trace | TraceSet) -> list[str]:
    """Return a sentence about the steps of a capture, or one for all ranks of a set whose steps agree.

    A sentence begins with "Warning" if steps miss much of the work.
    """
    from tracekit.core.reports.steps import list_notes

    return list_notes(trace.stats("steps"))


@contextlib.contextmanager
def show_progress_bar(title: str, *, quiet: bool) -> Iterator[Progress]:
    """Show a progress bar, and yield the callback that updates it.

    No bar is shown if ``quiet`` is true or standard error is not a terminal.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar, interrupts.cleaning_up(bar.stop):
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
