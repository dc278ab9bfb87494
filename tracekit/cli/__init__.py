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
from tracekit.cli.output import fail, say
from tracekit.errors import TracekitError, TracekitWarning, choices

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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; of an unknown one say which it was probably meant to be."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(f"no verb is called {args[0]!r}; {choices('verbs', VERBS, args[0])}")
        return super().resolve_command(ctx, args)

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
    interrupts.reset()
    try:
        return int(cli.main(standalone_mode=False) or 0)
    except click.ClickException as e:
        _show(e)
        return e.exit_code
    except (click.Abort, KeyboardInterrupt):
        if interrupts.is_complete():
            return 0
        say("tracekit: interrupted")
        return interrupts.INTERRUPTED
    except (TracekitError, OSError) as e:
        if isinstance(e, OSError) and _is_broken_pipe(e):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            fail(e)
        return 1


def _show(error: click.ClickException) -> None:
    """Print an error of usage as click does, with nothing in it that acts on a terminal."""
    text = io.StringIO()
    error.show(text)
    say(text.getvalue().rstrip("\n"))


def _is_broken_pipe(error: OSError) -> bool:
    """Whether the reader of our output has gone; polars says so in words only."""
    return isinstance(error, BrokenPipeError) or os.strerror(errno.EPIPE) in str(error)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    say(f"tracekit: warning: {message}")
