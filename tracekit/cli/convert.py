"""``tracekit convert``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import (
    completes,
    force_option,
    from_option,
    input_argument,
    load,
    named_value,
    quiet_option,
    rollup_options,
    selection_options,
    table_names,
    to_option,
)
from tracekit.cli.output import STDOUT, progress, say, target

if TYPE_CHECKING:
    from tracekit.cli.options import RollUp, Select
    from tracekit.registry import Exporter


@click.command("convert")
@input_argument
@click.argument("out", metavar="[OUT]", type=click.Path(path_type=Path), required=False)
@to_option("Format of the output; taken from OUT's suffix if left out.")
@from_option
@click.option(
    "--table",
    "tables",
    metavar="TABLE",
    multiple=True,
    shell_complete=completes(table_names),
    help="Only this table; may be repeated. One alone makes one file.",
)
@selection_options
@rollup_options
@click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    type=named_value,
    multiple=True,
    help="Option of the format, such as profile-name=run7 of dlprof-db; may be repeated.",
)
@force_option
@quiet_option
def command(
    *,
    path: Path,
    out: Path | None,
    to: str | None,
    from_: str | None,
    tables: tuple[str, ...],
    select: Select,
    roll_up: RollUp,
    options: tuple[tuple[str, str], ...],
    force: bool,
    quiet: bool,
) -> None:
    """Convert IN to another format.

    OUT left out is IN's name with the suffix of the format; - is standard output.
    """
    exporter = _exporter(out, to)
    with load(path, from_) as trace, progress("converting", quiet=quiet) as tell:
        chosen = roll_up(select(trace.correlate() if exporter.correlated else trace), *tables)
        goal = out or _beside(path, exporter)
        if goal == STDOUT and exporter.write is None and len(tables) != 1:
            raise click.UsageError(f"{exporter.format} makes a file a table: name one with --table, or give a folder")
        if goal == STDOUT and exporter.folder:
            raise click.UsageError(f"{exporter.format} makes a folder: give its name")
        with target(goal, exporter.suffixes[0]) as file:
            chosen.export(
                file,
                format=exporter.format,
                tables=tables or None,
                overwrite=force,
                options=dict(options),
                progress=tell,
            )
    say(f"wrote {goal}", quiet=quiet or goal == STDOUT)


def _exporter(out: Path | None, to: str | None) -> Exporter:
    from tracekit import registry

    if to is not None:
        return registry.exporter(to)
    if out is None or out == STDOUT:
        raise click.UsageError("give the format: --to FORMAT")
    return registry.exporter_for(out)


def _beside(path: Path, exporter: Exporter) -> Path:
    named = path if path.name.strip(".") else path.resolve()
    return named.with_suffix(exporter.suffixes[0])
