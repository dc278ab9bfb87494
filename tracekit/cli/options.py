"""Arguments and options that several commands share, and functions that parse their values."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import click
from click.shell_completion import CompletionItem

from tracekit.core.select import FILTERS
from tracekit.text import parse_byte_count, parse_nanoseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import polars as pl

    from tracekit.cli.output import CommandOutput, HasInputs
    from tracekit.cli.times import Times
    from tracekit.sets import TraceSet
    from tracekit.text.names import TableName
    from tracekit.trace import Trace

    CapturePath: TypeAlias = Path | str
    TraceOrSet: TypeAlias = Trace | TraceSet
    AnyTraceOrSet = TypeVar("AnyTraceOrSet", bound=TraceOrSet)

    class Select(Protocol):
        """A function that applies the selection options of a command to a trace or a set."""

        def __call__(self, traces: AnyTraceOrSet, /) -> AnyTraceOrSet:
            """Return the trace or set with only the selected rows."""
            ...


Command = TypeVar("Command", bound="Callable[..., Any]")

_MAX_DIGITS = 10
_VIA, _RANKS, _JOBS, _NO_CACHE = "tracekit.via", "tracekit.ranks", "tracekit.jobs", "tracekit.no_cache"
_STRICT, _LAYERS = "tracekit.strict", "tracekit.layers"


def parse_time_window(text: str) -> tuple[int | None, int | None]:
    """Parse a time window ``A:B`` into a start and an end in nanoseconds. An omitted start or end is None.

    Raises:
        click.BadParameter: The text is not a time window, or its end is not after its start.
    """
    low, colon, high = (part.strip() for part in text.partition(":"))
    try:
        start, end = (parse_nanoseconds(part) if part else None for part in (low, high))
    except ValueError:
        colon = ""
    if not colon:
        raise click.BadParameter(f"{text!r} is not a time window A:B, such as 1.5s:2s or 10ms:")
    if start is not None and end is not None and start >= end:
        raise click.BadParameter(f"{text!r}: the end must be after the start")
    return start, end


def parse_duration(text: str) -> int:
    """Parse a duration, such as ``10us``, into nanoseconds.

    Raises:
        click.BadParameter: The text is not a duration.
    """
    try:
        return parse_nanoseconds(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a duration, such as 10us") from None


def parse_size(text: str) -> int:
    """Parse a size such as ``500MB`` or ``2GB``, and return it in bytes.

    Raises:
        click.BadParameter: The text is not a size.
    """
    try:
        return parse_byte_count(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a size, such as 500MB or 2GB") from None


def parse_names(text: str) -> list[str]:
    """Split a comma-separated list into names.

    Raises:
        click.BadParameter: The list is empty.
    """
    names = [n.strip() for n in text.split(",") if n.strip()]
    if not names:
        raise click.BadParameter(f"{text!r} is not a list of names, such as A,B")
    return names


def create_name_completer(list_names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """Return a function for shell completion that completes a name, or the last name in a comma-separated list."""

    def complete_typed_name(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
        before, comma, last = typed.rpartition(",")
        return [CompletionItem(before + comma + n) for n in list_names() if n.startswith(last)]

    return complete_typed_name


def _list_reader_names() -> Iterable[str]:
    """Return the names of the formats that can be read. Readers are imported only when this function is called."""
    from tracekit import registry

    return registry.readers()


def _list_exporter_names() -> Iterable[str]:
    """Return the names of the formats that can be written. Exporters are imported only when this function is called."""
    from tracekit import registry

    return registry.exporters()


def list_table_names() -> Iterable[str]:
    """Return the names of the declared tables."""
    from tracekit import schemas

    return schemas.table_names()


class CaptureType(click.Path):
    """The type of an argument that names captures: a ``Path``, or a URL of captures on another machine as a string."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a URL as a string, and any other argument, such as a URL with the scheme ``file``, as a ``Path``."""
        from tracekit.text.urls import is_url

        if not is_url(value):
            return super().convert(value, param, ctx)
        from tracekit.system.files import convert_file_url_to_path

        path = convert_file_url_to_path(value)
        return path if is_url(path) else Path(path)


class LayersType(CaptureType):
    """The type of ``--layers``: ``capture``, or an argument that names a capture."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return an argument that names a capture. It must not be empty, because a path would be this folder."""
        if value == "":
            self.fail("the name is empty: pass capture or FILE", param, ctx)
        return super().convert(value, param, ctx)


CAPTURE = CaptureType(path_type=Path)
inputs_argument = click.argument("paths", metavar="IN...", nargs=-1, required=True, type=CAPTURE)
input_argument = click.argument("path", metavar="IN", type=CAPTURE)


def check_local(paths: Iterable[CapturePath], command: str) -> list[Path]:
    """Return the inputs of a command that reads only files of this machine.

    Raises:
        TracekitError: One of them is a URL.
    """
    from tracekit.errors import TracekitError

    paths = list(paths)
    for path in paths:
        if isinstance(path, str):
            hint = "download the file, and pass the path of the copy"
            raise TracekitError(f"{command} reads only files of this machine, not URLs", path=path, hint=hint)
    return [Path(path) for path in paths]


def get_local_name(path: CapturePath) -> Path:
    """Return the path of an input, or for a URL its file name, as a path in the current folder."""
    from tracekit.system.platform.file_names import create_file_name
    from tracekit.system.remote import convert_url_to_path

    return path if isinstance(path, Path) else Path(create_file_name(convert_url_to_path(path).name))


force_option = click.option("-f", "--force", is_flag=True, help="Replace the output if it exists.")
quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Print no progress bar and no messages except warnings and errors."
)
correlated_option = click.option("--correlated", is_flag=True, help="Include the columns that correlation adds.")


def _limit_memory(context: click.Context, _: click.Parameter, size: int | None) -> None:
    """Limit the memory for columns until the command ends."""
    if size is not None:
        from tracekit.system import memory

        context.with_resource(memory.limit_memory_of_process(size))


memory_option = click.option(
    "--memory",
    metavar="SIZE",
    type=parse_size,
    callback=_limit_memory,
    expose_value=False,
    help="Memory for the columns of tables, such as 2GB, which the processes of --jobs divide among themselves. Larger "
    "tables are stored in temporary files. Each process needs at least 250 MB more, for libraries and computations. "
    "The default is half of the free memory.",
)


def limit_option(help_text: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the option ``-n`` with the given help text to a command."""
    return click.option("-n", "--limit", metavar="N", type=click.IntRange(min=0), help=help_text)


def _store_strict(context: click.Context, _: click.Parameter, strict: bool) -> None:  # noqa: FBT001
    """Store the value of ``--strict`` in the context of the command."""
    context.meta[_STRICT] = strict


strict_option = click.option(
    "--strict",
    is_flag=True,
    expose_value=False,
    callback=_store_strict,
    help="Fail if one of several captures cannot be read. By default, a warning names it, and the others are read.",
)


def is_strict() -> bool:
    """Return whether ``--strict`` is used: whether a capture of several that cannot be read is an error."""
    return bool(click.get_current_context().meta.get(_STRICT))


def _store_layers(context: click.Context, _: click.Parameter, layers: CapturePath | None) -> None:
    """Store the value of ``--layers`` in the context of the command."""
    context.meta[_LAYERS] = layers


def get_layers() -> CapturePath | None:
    """Return the value of ``--layers``, as ``Trace.with_layers`` expects it, or None if the option is not used."""
    layers: CapturePath | None = click.get_current_context().meta.get(_LAYERS)
    return str(layers) if layers == Path("capture") else layers


layers_option = click.option(
    "--layers",
    metavar="capture|FILE",
    type=LayersType(path_type=Path),
    expose_value=False,
    callback=_store_layers,
    help="Place the ranges in which CUDA graphs were captured inside the replays of the graphs, so that kernels of "
    "graphs belong to their layers. capture takes the ranges from IN itself, FILE is a second capture of the program.",
)


def input_options(command: Command) -> Command:
    """Add the options ``--from``, ``--via``, ``--layers``, ``--no-cache``, ``--strict`` and ``--memory`` to a command.

    The command receives the format as ``from_``. The other values are stored in the context for ``load_input``.
    """
    options = (
        click.option(
            "--from",
            "from_",
            metavar="FORMAT",
            shell_complete=create_name_completer(_list_reader_names),
            help="Format of IN. By default, it is detected from the content.",
        ),
        click.option(
            "--via",
            type=click.Choice(["nsys"]),
            expose_value=False,
            callback=_store_via,
            help="Export the report IN with the program nsys on the PATH, and read the export.",
        ),
        layers_option,
        click.option(
            "--no-cache",
            is_flag=True,
            expose_value=False,
            callback=_store_no_cache,
            help="Neither read columns of large captures from the cache nor store them in it.",
        ),
        strict_option,
        memory_option,
    )
    return add_options(options, command)


def rank_option(command: Command) -> Command:
    """Add the option ``--rank`` to a command. Its values are stored in the context for ``load_inputs``."""
    option = click.option(
        "--rank",
        metavar="FILE=N",
        type=parse_rank_assignment,
        multiple=True,
        expose_value=False,
        callback=_store_ranks,
        help="Use rank N for the profile with this file name, instead of the recorded rank. Can be repeated.",
    )
    return add_options((option,), command)


def jobs_option(command: Command) -> Command:
    """Add the option ``--jobs`` to a command. Its value is stored in the context for ``load_set``."""
    option = click.option(
        "--jobs",
        metavar="N",
        type=click.IntRange(min=1),
        expose_value=False,
        callback=_store_jobs,
        help="Number of processes that read the profiles of several ranks. The default depends on the sizes of the "
        "profiles, the CPU cores and the memory.",
    )
    return add_options((option,), command)


def parse_rank_assignment(text: str) -> tuple[str, int]:
    """Parse ``FILE=N`` into a file name and a rank.

    Raises:
        click.BadParameter: The text has no name or no number.
    """
    name, _, rank = text.rpartition("=")
    if not (name and rank.isdecimal() and rank.isascii() and len(rank) < _MAX_DIGITS):
        raise click.BadParameter(f"{text!r} does not have the form FILE=N, such as worker.nsys-rep=3")
    return name, int(rank)


def _store_ranks(context: click.Context, _: click.Parameter, ranks: tuple[tuple[str, int], ...]) -> None:
    """Store the values of ``--rank`` in the context of the command."""
    context.meta[_RANKS] = dict(ranks)


def _store_jobs(context: click.Context, _: click.Parameter, jobs: int | None) -> None:
    """Store the value of ``--jobs`` in the context of the command. It is 0 if the option is not used."""
    context.meta[_JOBS] = jobs or 0


def _store_via(context: click.Context, _: click.Parameter, via: str | None) -> None:
    """Store the value of ``--via`` in the context of the command."""
    context.meta[_VIA] = via


def _store_no_cache(context: click.Context, _: click.Parameter, no_cache: bool) -> None:  # noqa: FBT001
    """Store the value of ``--no-cache`` in the context of the command."""
    context.meta[_NO_CACHE] = no_cache


def is_cache_enabled() -> bool:
    """Return whether ``--no-cache`` and ``TRACEKIT_CACHE`` allow the use of the cache. The default is True."""
    from tracekit.trace import uses_cache

    return False if click.get_current_context().meta.get(_NO_CACHE) else uses_cache(None, default=True)


def output_format_option(help_text: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the option ``--to`` with the given help text to a command."""
    return click.option(
        "--to", metavar="FORMAT", shell_complete=create_name_completer(_list_exporter_names), help=help_text
    )


ops_option = click.option(
    "--ops",
    is_flag=True,
    help="Include the op (framework operation) of each GPU activity, its instance, direction and iteration.",
)


def selection_options(command: Command) -> Command:
    """Add the options of filters, such as ``--time``, to a command.

    The command receives ``select``, a function that applies these options to a trace or a set.
    """
    types = {"text": str, "integer": int, "duration": parse_duration, "time_window": parse_time_window}
    filters = [declared for declared in FILTERS.values() if declared.option]
    options = tuple(
        click.option(f.option, f.name, metavar=f.metavar, type=types[f.kind], multiple=f.is_repeated, help=f.help)
        for f in filters
    )

    @functools.wraps(command)
    def run_with_selection(**values: Any) -> Any:
        selected = {f.name: values.pop(f.name) for f in filters}
        selection = {name: value for name, value in selected.items() if value not in (None, ())}
        return command(select=lambda trace: trace.select(**selection) if selection else trace, **values)

    return add_options(options, run_with_selection)


EXTENDED = "extended"
_ROLLUP_ARGUMENTS = ("key_op", "iterations", "include_warm_up", "dialect", "tensor_cores")


class RollUpOptions(NamedTuple):
    """A roll-up with the options that ``rollup_options`` adds to a command.

    Attributes:
        values: Arguments of ``Trace.rollup``. Options that are not used are None or ``EXTENDED``.
    """

    values: Mapping[str, Any]

    @property
    def used_options(self) -> list[str]:
        """The names of the options that the user set to values other than the defaults, such as ``--iterations``."""
        return [f"--{name.replace('_', '-')}" for name, v in self.values.items() if v not in (None, EXTENDED)]

    def __call__(self, trace: TraceOrSet, *tables: TableName, required: bool = False) -> TraceOrSet:
        """Return the rolled-up trace, or the trace itself if no roll-up is needed.

        A roll-up is needed if an option is used, if ``required`` is true, or if one of the tables is computed by a
        roll-up and has no rows in the file.
        """
        from tracekit.plan import ROLLED_UP

        has_missing_tables = any(t in ROLLED_UP and not trace.count(t) for t in tables)
        return trace.rollup(**self.values) if required or self.used_options or has_missing_tables else trace

    def include_warm_up_in(self, trace: TraceOrSet) -> TraceOrSet:
        """Return the rolled-up trace with the warm-up, which tables of a roll-up always include."""
        return trace.rollup(**{**self.values, "include_warm_up": True})


def rollup_options(command: Command) -> Command:
    """Add the options of a roll-up, such as ``--key-op`` and ``--iterations``, to a command.

    The command receives ``roll_up``, a ``RollUpOptions`` that rolls up a trace with these options.
    """
    modes = click.Choice([EXTENDED, "dlprof"])
    options = (
        click.option(
            "--key-op",
            metavar="OP",
            help="Id or name of the op that delimits iterations, or the name of a range, such as 'step'. By default, a "
            "range is chosen that covers most GPU work.",
        ),
        click.option(
            "--iterations",
            metavar="A:B",
            type=parse_iterations,
            help="Aggregate iterations A to B in ops, groups and reports of DLProf, such as '2:9' or '2:'. Both are "
            "included, and counted from 0. Events of other iterations are kept.",
        ),
        click.option(
            "--include-warm-up",
            is_flag=True,
            default=None,
            help="Aggregate the first iterations even if they are much slower than the others. By default, advice and "
            "pages leave them out.",
        ),
        click.option(
            "--dialect",
            metavar="NAME",
            shell_complete=create_name_completer(_list_dialect_names),
            help="Conventions by which NVTX ranges name ops, such as emit-nvtx. By default, they are detected.",
        ),
        click.option(
            "--tensor-cores",
            type=modes,
            default=EXTENDED,
            help="How Tensor Core kernels are detected. dlprof also computes everything else as DLProf 1.8 did.",
        ),
    )

    @functools.wraps(command)
    def run_with_rollup(**arguments: Any) -> Any:
        values = {name: arguments.pop(name) for name in _ROLLUP_ARGUMENTS}
        return command(roll_up=RollUpOptions(values), **arguments)

    return add_options(options, run_with_rollup)


def parse_iterations(text: str) -> tuple[int | None, int | None]:
    """Parse a range ``A:B`` or a single iteration into a first and a last iteration. An omitted one is None.

    Raises:
        click.BadParameter: The text is neither a range of iterations nor a single iteration.
    """
    low, colon, high = (part.strip() for part in text.partition(":"))
    if not all((part.isdecimal() and len(part) < _MAX_DIGITS) or not part for part in (low, high)) or not (low or high):
        raise click.BadParameter(f"{text!r} is not a range of iterations A:B, such as 2:9 or 2:")
    first = int(low) if low else None
    return first, (int(high) if high else None) if colon else first


def parse_name_value(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE`` into a name and a value.

    Raises:
        click.BadParameter: The text has no name or no equals sign.
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text!r} does not have the form NAME=VALUE, such as profile-name=run7")
    return name, value


def _list_dialect_names() -> Iterable[str]:
    """Return the names of the dialects, which are conventions by which NVTX ranges name ops."""
    from tracekit.core.ops import DIALECTS

    return DIALECTS


STYLES = ("table", "csv", "json", "jsonl", "parquet", "arrow")
ANSWER = "answer"
"""Output format that prints the envelope that all answers share."""
_STYLE_BY_SUFFIX = {
    **{f".{style}": style for style in STYLES[1:]},
    ".ndjson": "jsonl",
    ".feather": "arrow",
}
PAGE_SUFFIXES = (".html", ".htm")
_UNPRINTABLE_SUFFIXES = (*PAGE_SUFFIXES, ".gz", ".zst", ".zip", ".bz2", ".xz", ".xlsx", ".xls", ".ods")


class Printing(NamedTuple):
    """The destination and format of the output of a command, which its options ``--format`` and ``-o`` select.

    Attributes:
        style: Output format, one of ``STYLES``.
        out: File to write. None or ``-`` is standard output.
        force: Whether to replace the file if it exists.
        spreadsheet: Whether to put an apostrophe before strings in CSV that look like a formula.
        timeunit: Unit of times in tables. None selects human units on a terminal, and ns otherwise.
    """

    style: str
    out: Path | None
    force: bool
    spreadsheet: bool = False
    timeunit: str | None = None

    def get_times(self, other_time_columns: Collection[str] = (), *, is_terminal: bool) -> Times | None:
        """Return the unit of times in a table. None stands for ns.

        Args:
            other_time_columns: Names of columns with times in ns whose names do not contain the unit.
            is_terminal: Whether the table is printed on a terminal.
        """
        from tracekit.cli.times import AUTO, Times

        unit = self.timeunit or (AUTO if is_terminal else None)
        return None if unit is None else Times(unit, other_time_columns)

    @property
    def is_terminal_table(self) -> bool:
        """Whether the output is a table on a terminal, where the number of rows is limited by default."""
        from tracekit.cli.output import STDOUT

        return self.style == "table" and self.out in (None, STDOUT) and sys.stdout is not None and sys.stdout.isatty()

    def open_output_page(
        self, source: HasInputs | None = None, *, limit: int | None = None
    ) -> AbstractContextManager[CommandOutput]:
        """Return a context manager that opens the output of a command, to which a ``CommandOutput`` prints.

        Args:
            source: What is being read, such as a trace. The output must not replace its files.
            limit: Value of ``--limit``. If it is 0 and the output is a table on a terminal, a pager shows the output.
        """
        from tracekit.cli.output import open_output_page

        return open_output_page(
            self.out, overwrite=self.force, source=source, paged=self.is_terminal_table and limit == 0
        )

    def print_frame(self, page: CommandOutput, frame: pl.DataFrame, *, prose_columns: Collection[str] = ()) -> None:
        """Print a frame to a page in the output format.

        Args:
            page: The page.
            frame: The frame to print.
            prose_columns: Names of columns that contain sentences, which are wrapped in tables.
        """
        times = self.get_times(is_terminal=page.width is not None)
        page.print_frame(frame, self.style, prose_columns=prose_columns, spreadsheet=self.spreadsheet, times=times)


_LONG_UNITS = {"nsec": "ns", "usec": "us", "µs": "us", "msec": "ms", "sec": "s"}


def _parse_time_unit(text: str) -> str:
    """Parse a unit of times. The names that nsys uses, such as ``msec``, are accepted as well.

    Raises:
        click.BadParameter: The text is not a unit.
    """
    from tracekit.cli.times import AUTO, UNITS

    unit = _LONG_UNITS.get(text.lower(), text.lower())
    if unit not in (AUTO, *UNITS):
        raise click.BadParameter(f"{text!r} is not a unit of times: choose {AUTO}, {', '.join(UNITS)}")
    return unit


timeunit_option = click.option(
    "--timeunit",
    metavar="UNIT",
    type=_parse_time_unit,
    help="Unit of times in tables: ns, us, ms, s, or auto for a unit per column. The default is auto on a terminal. "
    "Other output always has times in ns.",
)


def check_time_unit(timeunit: str | None, style: str) -> None:
    """Check that a unit of times is chosen only for tables.

    Raises:
        click.UsageError: A unit is chosen, but the output format is not a table.
    """
    if timeunit is not None and style != "table":
        raise click.UsageError(f"--timeunit applies only to tables: {style} output always has times in ns")


def printing_options(command: Command) -> Command:
    """Add the options ``--format``, ``--timeunit``, ``--spreadsheet``, ``-o`` and ``-f`` to a command.

    The command receives their values as ``printing``.
    """
    return _add_printing_options(STYLES, "", command)


def answer_printing_options(command: Command) -> Command:
    """Add the options that ``printing_options`` adds. The output format can also be ``answer``."""
    text = " answer is JSON with the captures, the rows, their columns and evidence, and a status."
    return _add_printing_options((*STYLES, ANSWER), text, command)


def _add_printing_options(styles: Sequence[str], help_text: str, command: Command) -> Command:
    options = (
        click.option(
            "--format",
            "style",
            type=click.Choice(styles),
            help="Output format. By default, the suffix of the -o file determines it. Without one, a table is printed."
            + help_text,
        ),
        timeunit_option,
        click.option(
            "--spreadsheet", is_flag=True, help="In CSV, put an apostrophe before text that looks like a formula."
        ),
        click.option(
            "-o", "--output", "out", type=click.Path(path_type=Path), help="File to write instead of standard output."
        ),
        force_option,
    )

    @functools.wraps(command)
    def run_with_printing(
        *, style: str | None, out: Path | None, force: bool, spreadsheet: bool, timeunit: str | None, **others: Any
    ) -> Any:
        if "to" in others and style is None and out is not None and out.suffix.lower() in PAGE_SUFFIXES:
            others["to"] = "html"
        resolved_style = style or ("table" if out is None or others.get("to") else choose_style_for(out))
        check_time_unit(timeunit, resolved_style)
        return command(printing=Printing(resolved_style, out, force, spreadsheet, timeunit), **others)

    return add_options(options, run_with_printing)


def has_table_suffix(path: Path) -> bool:
    """Return whether a path has the suffix of a file with rows of a table, such as .csv."""
    return path.suffix.lower() in _STYLE_BY_SUFFIX


def choose_style_for(out: Path) -> str:
    """Return the output format that the suffix of a file stands for. Other suffixes, such as .txt, stand for a table.

    Raises:
        click.UsageError: The suffix is that of files which do not contain printed rows, such as .html or .csv.gz.
    """
    suffix = out.suffix.lower()
    if has_table_suffix(out):
        return _STYLE_BY_SUFFIX[suffix]
    from tracekit import registry

    if suffix in _UNPRINTABLE_SUFFIXES or (suffix and registry.has_exporter_for(out)):
        raise click.UsageError(
            f"rows cannot be written as {suffix}: use one of the suffixes {', '.join(_STYLE_BY_SUFFIX)} or .txt, or "
            "choose the format with --format"
        )
    return "table"


def add_options(options: Iterable[Callable[[Command], Command]], command: Callable[..., Any]) -> Command:
    """Add several options to a command, and return the command. ``--help`` lists the options in the given order."""
    decorated: Command = functools.reduce(lambda c, option: option(c), reversed(tuple(options)), command)  # type: ignore[assignment]
    return decorated


def load_set(paths: Sequence[CapturePath], from_: str | None) -> TraceSet:
    """Load the inputs of a command as one set of traces, even if there is only one input.

    The options ``--from``, ``--via``, ``--rank`` and ``--jobs`` apply. Commands without ``--jobs`` use one process.
    """
    from tracekit.sets import LocalEngine, load_many
    from tracekit.sets.engines import choose_process_count
    from tracekit.sets.paths import locate_captures
    from tracekit.system import no_pandas

    no_pandas.hide_pandas()
    meta = click.get_current_context().meta
    jobs = meta.get(_JOBS, 1)
    if not jobs:  # the sizes of remote captures are not known
        is_local = all(isinstance(path, Path) for path in paths)
        jobs = choose_process_count(list(locate_captures(paths, from_).urls)) if is_local else 1
    engine = LocalEngine(jobs)
    traces = load_many(
        paths, from_, ranks=meta.get(_RANKS) or None, via=meta.get(_VIA), engine=engine, strict=is_strict()
    )
    layers = get_layers()
    return traces if layers is None else traces.with_layers(layers)


def load_input(path: CapturePath, from_: str | None) -> Trace:
    """Load the input of a command according to the options ``--from``, ``--via`` and ``--layers``."""
    from tracekit.system import no_pandas
    from tracekit.trace import load as load_trace

    no_pandas.hide_pandas()
    via, layers = click.get_current_context().meta.get(_VIA), get_layers()
    return load_trace(path, from_, via=via, cache=is_cache_enabled(), layers=layers)


def load_inputs(paths: Sequence[CapturePath], from_: str | None) -> TraceOrSet:
    """Load the inputs of a command: one input as a trace, and several inputs or a folder of captures as a set.

    A single input is also loaded as a set if ``--rank`` states its rank.
    """
    ranks = click.get_current_context().meta.get(_RANKS)
    if len(paths) == 1 and not ranks and not is_folder_or_pattern(paths[0]):
        return load_input(paths[0], from_)
    return load_set(paths, from_)


def is_folder_or_pattern(path: CapturePath) -> bool:
    """Return whether a path or URL is a pattern, or a folder of captures that is not itself a capture."""
    if isinstance(path, Path) and path.exists() and not path.is_dir():
        return False
    from tracekit.sets.paths import is_single_capture

    return not is_single_capture(path)
