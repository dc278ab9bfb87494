"""The command ``tracekit convert``, which converts a profile to another format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import (
    CAPTURE,
    create_name_completer,
    force_option,
    get_local_name,
    input_options,
    list_table_names,
    load_inputs,
    output_format_option,
    parse_name_value,
    quiet_option,
    rank_option,
    rollup_options,
    selection_options,
)
from tracekit.cli.output import (
    STDOUT,
    open_output_path,
    print_message,
    print_recorded_warnings,
    print_steps,
    show_progress_bar,
)
from tracekit.cli.rows import AGGREGATED_TABLES
from tracekit.errors import convert_to_printable_path

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from tracekit.cli.options import CapturePath, RollUpOptions, Select, TraceOrSet
    from tracekit.registry.interface import Exporter, Progress
    from tracekit.text.names import TableName

MINIMAL_TABLES: tuple[TableName, ...] = ("capture_info", "devices")


def _list_exporter_options() -> Iterable[str]:
    """Return the options of the exporters, as the beginnings of ``NAME=VALUE``."""
    from tracekit import registry

    return dict.fromkeys(f"{option.name}=" for each in registry.exporters().values() for option in each.options)


@click.command("convert")
@click.argument("paths", metavar="IN... [OUT]", nargs=-1, required=True, type=CAPTURE)
@click.option(
    "-o",
    "--output",
    "out",
    type=click.Path(path_type=Path),
    help="File or folder to write. All arguments are then inputs.",
)
@output_format_option("Format of the output. By default, the suffix of OUT determines it.")
@input_options
@rank_option
@click.option(
    "--table",
    "tables",
    metavar="TABLE",
    multiple=True,
    shell_complete=create_name_completer(list_table_names),
    help="Convert only this table. Can be repeated. A single table is written to a file instead of a folder.",
)
@selection_options
@rollup_options
@click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    type=parse_name_value,
    multiple=True,
    shell_complete=create_name_completer(_list_exporter_options),
    help="Option of the output format, such as profile-name=run7 for dlprof-db. Can be repeated.",
)
@click.option(
    "--track",
    "tracks",
    metavar="NAME[,NAME]",
    multiple=True,
    help="Tracks to draw in a timeline, such as default,samples. Short for --option tracks=NAME[,NAME].",
)
@force_option
@quiet_option
def convert_command(
    *,
    paths: tuple[CapturePath, ...],
    out: Path | None,
    to: str | None,
    from_: str | None,
    tables: tuple[TableName, ...],
    select: Select,
    roll_up: RollUpOptions,
    options: tuple[tuple[str, str], ...],
    tracks: tuple[str, ...],
    force: bool,
    quiet: bool,
) -> None:
    """Convert IN to another format.

    By default, OUT has the name of IN with the suffix of the format. Some formats write a folder that contains one file
    per table that has rows. The default name of this folder is the name of IN without its suffix, followed by _ and
    the name of the format. Use - as OUT for standard output.

    Several inputs, or the captures in a folder IN, are treated as the ranks of one job. Files of tables then have a
    column for the rank, and a timeline has the tracks of all ranks.
    """
    paths, out = _split_inputs_and_output(paths, out)
    path = paths[0]
    exporter = _choose_exporter(out, to)
    with load_inputs(paths, from_) as trace:
        print_recorded_warnings(trace, quiet=quiet)
        selected = roll_up(select(trace.correlate() if exporter.correlated else trace), *tables)
        output = out or _choose_output_path(get_local_name(path), exporter, tables)
        has_file_per_table = exporter.write is None and len(tables) != 1
        if output == STDOUT and (has_file_per_table or exporter.folder):
            hint = "choose one table with --table, or name a folder" if has_file_per_table else "name a folder"
            raise click.UsageError(f"{exporter.format} writes a folder, so standard output cannot be used: {hint}")
        contains_all_tables = has_file_per_table and not tables
        if has_file_per_table:
            exporter.check_folder(output)
            tables = tables or _choose_tables_to_export(selected)
        values = dict(options) | ({"tracks": ",".join(tracks)} if tracks else {})
        with (
            open_output_path(output, exporter.suffixes[0]) as file,
            show_progress_bar("converting", quiet=quiet) as progress,
        ):
            if contains_all_tables:
                chosen = exporter.with_options(values)
                _write_all_tables(selected, file, chosen, tables, overwrite=force, progress=progress)
            else:
                selected.export(
                    file,
                    format=exporter.format,
                    tables=tables or None,
                    overwrite=force,
                    options=values,
                    progress=progress,
                )
        if exporter.write is None and selected is not trace and not {*tables}.isdisjoint(AGGREGATED_TABLES):
            print_steps(roll_up.include_warm_up_in(selected), quiet=quiet)
    print_message(f"wrote {output}", quiet=quiet or output == STDOUT)


def _split_inputs_and_output(
    arguments: tuple[CapturePath, ...], out: Path | None
) -> tuple[tuple[CapturePath, ...], Path | None]:
    """Return the paths of the inputs and of the output. Without ``-o``, the last of several arguments is the output.

    Raises:
        click.UsageError: The last argument is a URL, or the last of three or more arguments is a file with the suffix
            of the inputs. It is probably an input, because the shell expanded a pattern.
    """
    if out is not None or len(arguments) == 1:
        return arguments, out
    *inputs, last = arguments
    if isinstance(last, str):
        raise click.UsageError("the last argument is a URL, which cannot be written: name the output with -o OUT")
    if len(inputs) > 1 and last.is_file() and last.suffix == get_local_name(inputs[-1]).suffix:
        raise click.UsageError(
            f"{convert_to_printable_path(last)} exists and may be one of the inputs: name the output with -o OUT"
        )
    return tuple(inputs), last


def _choose_tables_to_export(trace: TraceOrSet) -> tuple[TableName, ...]:
    """Return the names of the tables to export: all tables that have rows and are not declared as optional.

    If there are fewer than two such tables, ``MINIMAL_TABLES`` are added, because a single table would be written to a
    file and not to a folder. The columns of a single trace are read and cached before the rows are counted.
    Otherwise, a report would be read twice: once to count its rows, and once to export them.
    """
    from tracekit.sets.trace_set import TraceSet
    from tracekit.trace import prefetch

    names = [t for t in trace.tables if not trace.schema(t).optional]
    if isinstance(trace, TraceSet):
        counts = trace.count_all()
    else:
        prefetch(trace, dict.fromkeys(names))
        counts = {name: trace.count(name) for name in names}
    nonempty = tuple(t for t in names if counts[t])
    return nonempty if len(nonempty) > 1 else tuple(dict.fromkeys((*nonempty, *MINIMAL_TABLES)))


def _write_all_tables(
    trace: TraceOrSet,
    path: str | os.PathLike[str],
    exporter: Exporter,
    tables: tuple[TableName, ...],
    *,
    overwrite: bool,
    progress: Progress | None,
) -> None:
    """Write the tables that have rows to a folder, and warn about all recorded events that are in none of them."""
    from tracekit.plan.exporting import write_trace
    from tracekit.sets.export import export
    from tracekit.sets.trace_set import TraceSet
    from tracekit.trace import get_trace_view

    if isinstance(trace, TraceSet):
        export(trace, path, exporter, tables=tables, overwrite=overwrite, progress=progress, is_whole=True)
        return
    view = get_trace_view(trace)
    write_trace(view, path, exporter, tables=tables, overwrite=overwrite, progress=progress, is_whole=True)


def _choose_exporter(out: Path | None, format_name: str | None) -> Exporter:
    """Return the exporter that ``--to`` names or, without ``--to``, the exporter for the suffix of the output."""
    from tracekit import registry

    if format_name is not None:
        return registry.exporter(format_name)
    if out is None or out == STDOUT:
        raise click.UsageError("the output format is missing: add --to FORMAT")
    return registry.find_exporter_for(out)


def _choose_output_path(path: Path, exporter: Exporter, tables: tuple[str, ...]) -> Path:
    """Return the default output path: the path of the input with the suffix or the name of the output format."""
    source = path if path.name.strip(".") else path.resolve()
    if exporter.write is None and len(tables) != 1:
        return source.with_name(f"{source.stem}_{exporter.format}")
    return source.with_suffix(exporter.suffixes[0])
