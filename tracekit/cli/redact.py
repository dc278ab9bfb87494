"""``tracekit redact``."""

from __future__ import annotations

from pathlib import Path

import click

from tracekit.cli.options import force_option, input_argument, quiet_option
from tracekit.cli.output import STDOUT, page, say, target

REMAINS = 3
"""Exit status of a check that finds something."""


@click.command("redact")
@input_argument
@click.argument("out", metavar="[OUT]", type=click.Path(path_type=Path), required=False)
@click.option("--check", is_flag=True, help="Write nothing; count what there is to replace. Exit status 3 if anything.")
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a secret key: the same values get the same pseudonyms in every file redacted with it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@force_option
@quiet_option
@click.pass_context
def command(
    context: click.Context,
    *,
    path: Path,
    out: Path | None,
    check: bool,
    key_file: Path | None,
    as_json: bool,
    force: bool,
    quiet: bool,
) -> None:
    """Copy IN without what identifies people and machines, so that OUT can be shared.

    Empties environments, command lines, user names and program output in a report or SQLite export of nsys, and puts
    pseudonyms in place of host names, UUIDs and PCI addresses. Where names, addresses, secrets and private folders
    stand in other texts, they are overwritten. All else stays as it is. Prints how many values of each kind it
    replaced, and none of them. OUT can be - for standard output.
    """
    from tracekit.redacting import redact, unredacted

    if check == (out is not None):
        raise click.UsageError("Give OUT, or --check and no OUT.")
    if out is None:
        counts = unredacted(path)
        _print(counts, "remains", as_json=as_json)
        context.exit(REMAINS if any(counts.values()) else 0)
    with target(out, path.suffix) as file:
        counts = redact(path, file, overwrite=force, key=key_file)
    say(f"wrote {out}", quiet=quiet or out == STDOUT)
    if out != STDOUT:
        _print(counts, "replaced", as_json=as_json)


def _print(counts: dict[str, int], title: str, *, as_json: bool) -> None:
    import polars as pl

    with page() as shown:
        if as_json:
            shown.json(counts)
        else:
            rows = list(counts.items())
            shown.show(pl.DataFrame(rows, schema=[title, "number"], orient="row"), "table")
