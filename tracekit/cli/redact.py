"""``tracekit redact``."""

from __future__ import annotations

from pathlib import Path

import click

from tracekit.cli.options import force_option, input_argument, quiet_option
from tracekit.cli.output import STDOUT, page, say, target


@click.command("redact")
@input_argument
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@force_option
@quiet_option
def command(*, path: Path, out: Path, as_json: bool, force: bool, quiet: bool) -> None:
    """Copy IN without what identifies people and machines, so that OUT can be shared.

    Empties environments, command lines, host and user names and program output in a report or SQLite export of nsys,
    and overwrites these names where they stand in other texts. All else stays as it is. Prints how many values of each
    kind it emptied. OUT can be - for standard output.
    """
    from tracekit.trace import redact

    with target(out, path.suffix) as file:
        counts = redact(path, file, overwrite=force)
    say(f"wrote {out}", quiet=quiet or out == STDOUT)
    if out != STDOUT:
        _print(counts, as_json=as_json)


def _print(counts: dict[str, int], *, as_json: bool) -> None:
    import polars as pl

    with page() as shown:
        if as_json:
            shown.json(counts)
        else:
            rows = list(counts.items())
            shown.show(pl.DataFrame(rows, schema=["emptied", "number"], orient="row"), "table")
