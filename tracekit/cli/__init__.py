"""The command line of tracekit. Each command is a module that is imported only when the command runs."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import warnings

import click

import tracekit
from tracekit.cli.output import print_error, print_message
from tracekit.errors import TracekitError, TracekitWarning, create_choices_hint
from tracekit.system import interrupts

COMMANDS = {
    "analyze": "Apply rules that find problems, such as those of nsys analyze.",
    "cache": "List or delete the stored columns of large captures.",
    "check": "Check whether runs of a program became slower.",
    "convert": "Convert a profile to another format.",
    "correlate": "Write one row per kernel with its API call and NVTX range.",
    "diff": "Compare two captures: what is new, gone, faster or slower.",
    "formats": "List the formats that tracekit reads and writes.",
    "info": "Show the format, devices, time span and row counts of profiles.",
    "mcp": "Answer the questions of assistants about captures (MCP).",
    "recipe": "Aggregate the profiles of several ranks, as nsys recipe does.",
    "redact": "Copy a profile without private values, or count them.",
    "rows": "Print the rows of a table.",
    "schema": "Show the declared tables and columns.",
    "stats": "Print reports, such as those of nsys stats.",
    "tables": "List the tables of a profile with their row counts.",
    "view": "Show profiles in the browser.",
    "watch": "Compare the ranks of a job while they write captures.",
    "what-if": "Predict how long a step would take after edits.",
    "why": "Explain why a step is slow, and what each cure would save.",
}

_OPTIONS_NAMED_AS_COMMANDS = ("help", "version")


class CommandGroup(click.Group):
    """A command group that lists its commands by name and imports a command only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the module of a command and return the command. Return None if the command does not exist."""
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"tracekit.cli.{name}")
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command name, the command and the remaining arguments, or fail and suggest the closest command.

        If the first argument is a file and not a command, all arguments are those of the command that summarizes files.
        """
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            if args[0] in _OPTIONS_NAMED_AS_COMMANDS and not os.path.lexists(args[0]):
                ctx.fail(f"unknown command {args[0]!r}; did you mean `tracekit --{args[0]}`?")
            if not _is_path(args[0]):
                ctx.fail(f"unknown command {args[0]!r}; {create_choices_hint('commands', COMMANDS, args[0])}")
            from tracekit.cli.summary import summary_command

            return "", summary_command, args
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands for ``--help`` without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _is_path(argument: str) -> bool:
    """Return whether an argument is a file or folder, or looks like a path, a pattern, a URL or a file name."""
    return any(character in argument for character in "/\\.*?") or os.path.lexists(argument)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(tracekit.__version__, prog_name="tracekit", message="%(prog)s %(version)s")
def cli() -> None:
    """Read GPU profiler files, attribute kernels to NVTX ranges, and export to the formats of other tools.

    tracekit FILE... shows why a step is slow, and what a capture contains.
    """


def main() -> None:
    """Run the command line and exit. The exit status is 1 after an error and 2 after a usage error."""
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning
        warnings.simplefilter("always", TracekitWarning)
        sys.exit(_run_command_line())


def _run_command_line() -> int:
    """Run the command line and return its exit status."""
    interrupts.mark_output_incomplete()
    try:
        status = int(cli.main(standalone_mode=False) or 0)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status  # noqa: TRY300 - flushing may fail, too
    except click.ClickException as e:
        _print_usage_error(e)
        return e.exit_code
    except (click.Abort, KeyboardInterrupt):
        if interrupts.is_output_complete():
            return 0
        print_message("tracekit: interrupted")
        return interrupts.INTERRUPTED
    except (TracekitError, OSError) as e:
        if not (isinstance(e, OSError) and _is_broken_pipe(e)):
            print_error(e)
        _discard_unwritten_output()
        return 1


def _print_usage_error(error: click.ClickException) -> None:
    """Print a usage error in the style of click, with control characters escaped."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        error = _add_suggestion(error, error.ctx)
    text = io.StringIO()
    error.show(text)
    print_message(text.getvalue().rstrip("\n"))


def _add_suggestion(error: click.NoSuchOption, context: click.Context) -> click.NoSuchOption:
    """Return an error that names the option that was probably meant, or the commands that have the unknown option."""
    from tracekit.text.choices import MAX_LISTED, OPTION_SYNONYMS, find_similar_name, find_synonym

    name, known, group = error.option_name, _list_option_names(context.command), context.find_root().command
    commands = {n: group.get_command(context, n) for n in COMMANDS} if isinstance(group, CommandGroup) else {}
    users = [f"tracekit {n}" for n, c in commands.items() if c is not None and name in _list_option_names(c)]
    if meant := find_synonym(name, known, OPTION_SYNONYMS):
        suggestion = f" Did you mean {meant!r}?"
    elif users:
        suggestion = f" It is an option of {', '.join(users[:MAX_LISTED])}."
    else:
        meant = find_similar_name(name, known)
        suggestion = f" Did you mean {meant!r}?" if meant else ""
    return click.NoSuchOption(name, f"No such option {name!r}.{suggestion}", ctx=context)


def _list_option_names(command: click.Command) -> list[str]:
    """Return the long names of the options of a command."""
    return [name for parameter in command.params for name in parameter.opts if name.startswith("--")]


def _discard_unwritten_output() -> None:
    """Discard output that cannot be written, so that the interpreter does not report another error at exit."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_broken_pipe(error: OSError) -> bool:
    """Return whether an error means that the reader of standard output has closed it.

    polars raises an ``OSError`` without an error number, so its message is searched.
    """
    return isinstance(error, BrokenPipeError) or os.strerror(errno.EPIPE) in str(error)


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning to standard error. This function replaces ``warnings.showwarning``."""
    print_message(f"tracekit: warning: {message}")
