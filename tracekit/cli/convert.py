"""``tracekit convert``."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from tracekit.cli.options import force_option, from_option, input_argument, load, quiet_option, selected, selection_options
from tracekit.cli.output import progress


@click.command("convert")
@input_argument
@click.argument("out", metavar="[OUT]", type=click.Path(path_type=Path, allow_dash=True), required=False)
@click.option("--to", metavar="FORMAT", help="Format of the output; taken from OUT's suffix if left out.")
@from_option
@click.option("--table", "tables", multiple=True, help="Only this table; may be repeated. One alone makes one file.")
@selection_options
@force_option
@quiet_option
def command(
    path: Path,
    out: Path | None,
    to: str | None,
    from_: str | None,
    tables: tuple[str, ...],
    time: tuple[int | None, int | None] | None,
    devices: tuple[int, ...],
    domains: tuple[str, ...],
    min_duration_ns: int | None,
    force: bool,  # noqa: FBT001
    quiet: bool,  # noqa: FBT001
) -> None:
    """Convert IN to another format.

    OUT left out is IN's name with the suffix of the format; - is standard output.
    """
    from tracekit import registry

    if to is None and (out is None or out == Path("-")):
        raise click.UsageError("give the format: --to FORMAT")
    exporter = registry.exporter_for(out) if to is None and out else registry.exporter(str(to))
    with load(path, from_) as trace, progress("converting", quiet=quiet) as tell:
        whole = trace.correlate() if exporter.correlated else trace
        chosen = selected(whole, time, devices, domains, min_duration_ns)
        options = {"format": exporter.format, "tables": tables or None, "overwrite": force, "progress": tell}
        if out == Path("-"):
            _to_stdout(chosen, exporter.suffixes[0], options)
            return
        written = chosen.export(out or path.with_suffix(exporter.suffixes[0]), **options)
    if not quiet:
        click.echo(f"wrote {written}", err=True)


def _to_stdout(trace, suffix: str, options: dict) -> None:  # type: ignore[no-untyped-def, type-arg]  # noqa: ANN001
    with tempfile.TemporaryDirectory() as folder:
        written = trace.export(Path(folder) / f"out{suffix}", **options)
        if written.is_dir():
            raise click.UsageError("standard output holds one file: name one table with --table")
        with written.open("rb") as f:
            shutil.copyfileobj(f, sys.stdout.buffer)
