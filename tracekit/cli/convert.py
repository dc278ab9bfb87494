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
    from tracekit.trace import Trace

ALWAYS = ("capture_info", "devices")


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

    OUT left out is IN's name with the suffix of the format, or for a folder of tables with the name of the format; - is
    standard output. A folder of tables has one file per table that has rows.
    """
    exporter = _exporter(out, to)
    with load(path, from_) as trace, progress("converting", quiet=quiet) as tell:
        chosen = roll_up(select(trace.correlate() if exporter.correlated else trace), *tables)
        goal = out or _beside(path, exporter, tables)
        one_by_one = exporter.write is None and len(tables) != 1
        if goal == STDOUT and (one_by_one or exporter.folder):
            hint = "name a table with --table, or give a folder" if one_by_one else "give its name"
            raise click.UsageError(f"{exporter.format} makes a folder: {hint}")
        if one_by_one:
            exporter.check_folder(goal)
            tables = tables or _with_rows(chosen)
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


def _with_rows(trace: Trace) -> tuple[str, ...]:
    """Return the tables that have rows and are not optional, and one more if it is one: one alone would be a file."""
    counts = trace.counts()
    full = tuple(t for t in trace.tables if counts[t] and not trace.schema(t).optional)
    return full if len(full) > 1 else tuple(dict.fromkeys((*full, *ALWAYS)))


def _exporter(out: Path | None, to: str | None) -> Exporter:
    from tracekit import registry

    if to is not None:
        return registry.exporter(to)
    if out is None or out == STDOUT:
        raise click.UsageError("give the format: --to FORMAT")
    return registry.exporter_for(out)


def _beside(path: Path, exporter: Exporter, tables: tuple[str, ...]) -> Path:
    named = path if path.name.strip(".") else path.resolve()
    if exporter.write is None and len(tables) != 1:
        return named.with_name(f"{named.stem}_{exporter.format}")
    return named.with_suffix(exporter.suffixes[0])
