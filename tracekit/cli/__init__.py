"""The command line: one module a verb, imported when the verb is used, so that ``--help`` is instant."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import warnings

import click

import tracekit
from tracekit import interrupts
from tracekit.errors import TracekitError, TracekitWarning, shown
from tracekit.text import printable

VERBS = {
    "convert": "Convert a profile from one format to another.",
    "correlate": "Write which NVTX range each kernel belongs to.",
    "formats": "List the formats that can be read and written.",
    "info": "Show what a profile holds.",
    "redact": "Copy a profile without what identifies people and machines.",
    "rows": "Print rows of a table.",
    "schema": "Show the declared tables and columns.",
    "stats": "Print the reports of nsys stats.",
    "tables": "List the tables of a profile with their row counts.",
}


class Verbs(click.Group):
    """Knows the verbs by name and imports one when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names of the verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"tracekit.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(tracekit.__version__, prog_name="tracekit", message="%(prog)s %(version)s")
def cli() -> None:
    """Read GPU profiler files, attribute kernels to NVTX ranges, export what other tools open."""


def main() -> None:
    """Run the command line; our errors end in a message and exit status 1, wrong usage in 2."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        warnings.simplefilter("always", TracekitWarning)
        sys.exit(_run())


def _run() -> int:
    interrupts.begin()
    try:
        return int(cli.main(standalone_mode=False) or 0)
    except click.ClickException as e:
        _show(e)
        return e.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 0 if interrupts.is_complete() else _failed("interrupted", interrupts.INTERRUPTED)
    except TracekitError as e:
        return _failed(str(e), 1)
    except OSError as e:
        if _is_broken_pipe(e):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        return _failed(f"{shown(e.filename)}: {e.strerror}" if e.filename and e.strerror else e.strerror or str(e), 1)


def _show(error: click.ClickException) -> None:
    """Print an error of usage as click does, with nothing in it that acts on a terminal."""
    text = io.StringIO()
    error.show(text)
    _say(text.getvalue().rstrip("\n"))


def _failed(message: str, status: int) -> int:
    _say(f"tracekit: {message}")
    return status


def _say(text: str) -> None:
    click.echo(printable(text, keep="\n"), err=True)


def _is_broken_pipe(error: OSError) -> bool:
    """Whether the reader of our output has gone; polars says so in words only."""
    return isinstance(error, BrokenPipeError) or os.strerror(errno.EPIPE) in str(error)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _say(f"tracekit: warning: {message}")
