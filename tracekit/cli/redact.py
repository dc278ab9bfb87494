"""The command ``tracekit redact``, which copies a profile without private values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import check_local, force_option, input_argument, memory_option, quiet_option
from tracekit.cli.output import STDOUT, open_output_page, open_output_path, print_message

if TYPE_CHECKING:
    from tracekit.cli.options import CapturePath

PRIVATE_VALUES_REMAIN = 3
"""Exit status of ``--check`` if the file contains private values."""


@click.command("redact")
@input_argument
@click.argument("out", metavar="[OUT]", type=click.Path(path_type=Path), required=False)
@click.argument(
    "others", metavar="", nargs=-1, expose_value=False, callback=lambda _, __, paths: _reject_extra_arguments(paths)
)
@click.option(
    "--check",
    is_flag=True,
    help="Count the private values without writing a file. The exit status is 3 if there are any.",
)
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a secret key. The same key gives the same pseudonyms for the same values in every file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@memory_option
@force_option
@quiet_option
@click.pass_context
def redact_command(
    context: click.Context,
    *,
    path: CapturePath,
    out: Path | None,
    check: bool,
    key_file: Path | None,
    as_json: bool,
    force: bool,
    quiet: bool,
) -> None:
    """Copy IN without values that identify people and machines, so that OUT can be shared.

    IN is a report or SQLite export of nsys, or a trace of the PyTorch profiler. Environments, command lines, user names
    and program output are emptied, and host names, UUIDs and PCI addresses are replaced with pseudonyms. Names,
    addresses, secrets and private folders in other strings are overwritten. Everything else stays unchanged. The number
    of replaced values is printed by kind, without the values. Use - as OUT for standard output.
    """
    from tracekit.readers.redaction import redact, unredacted

    if check == (out is not None):
        raise click.UsageError("exactly one of OUT and --check is required")
    (path,) = check_local([path], "redact")
    if out is None:
        counts = unredacted(path)
        _print_counts(counts, "remains", as_json=as_json)
        context.exit(PRIVATE_VALUES_REMAIN if any(counts.values()) else 0)
    with open_output_path(out, path.suffix) as file:
        counts = redact(path, file, overwrite=force, key=key_file)
    print_message(f"wrote {out}", quiet=quiet or out == STDOUT)
    if out != STDOUT:
        _print_counts(counts, "replaced", as_json=as_json)


def _reject_extra_arguments(extra_arguments: tuple[str, ...]) -> None:
    """Check that there are no more arguments than IN and OUT.

    Raises:
        click.UsageError: There are more arguments.
    """
    if extra_arguments:
        raise click.UsageError(
            "redact accepts one IN and one OUT, but there are more arguments: run redact once per input, with the same "
            "--key-file if equal values must have equal pseudonyms in all outputs"
        )


def _print_counts(counts: dict[str, int], title: str, *, as_json: bool) -> None:
    """Print the number of private values of each kind, under a title."""
    import polars as pl

    with open_output_page() as page:
        if as_json:
            page.print_json(counts)
        else:
            rows = list(counts.items())
            page.print_frame(pl.DataFrame(rows, schema=[title, "number"], orient="row"), "table")
