"""The command line: one module a verb, imported when the verb is used, so that ``--help`` is instant."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import warnings

import click

from tracekit.errors import TracekitError, TracekitWarning

VERBS = {
    "convert": "Convert a profile from one format to another.",
    "correlate": "Write which NVTX range each kernel belongs to.",
    "formats": "List the formats that can be read and written.",
    "info": "Show what a profile holds.",
    "rows": "Print rows of a table.",
    "schema": "Show the declared tables and columns.",
    "stats": "Print the reports of nsys stats.",
    "tables": "List the tables of a profile with their row counts.",
}


class Verbs(click.Group):
    """Knows the verbs by name and imports one when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"tracekit.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tracekit", message="%(package)s %(version)s")
def cli() -> None:
    """Read GPU profiler files, attribute kernels to NVTX ranges, export what other tools open."""


def main() -> None:
    """Run the command line; our errors end in a message and exit status 1, wrong usage in 2."""
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", TracekitWarning)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as e:
        e.show()
        sys.exit(e.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted; nothing was written", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (TracekitError, OSError) as e:
        _fail(str(e) if isinstance(e, TracekitError) else f"{e.filename or 'tracekit'}: {e.strerror or e}", 1)


def _fail(message: str, status: int) -> None:
    click.echo(f"tracekit: {message}", err=True)
    sys.exit(status)


def _interrupt(_: int, __: object) -> None:
    raise KeyboardInterrupt


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"tracekit: warning: {message}", err=True)
