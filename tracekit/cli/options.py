"""Arguments and options that several verbs share, and what they become."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from contextlib import AbstractContextManager

    import polars as pl

    from tracekit.cli.output import Page
    from tracekit.trace import Trace

    Select: TypeAlias = Callable[[Trace], Trace]
    RollUp: TypeAlias = Callable[..., Trace]

Verb = TypeVar("Verb", bound="Callable[..., Any]")

_UNITS = (("ns", 1), ("us", 1_000), ("µs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))
_LIMIT = 1 << 62
_DIGITS = 10
_VIA = "tracekit.via"


def times(text: str) -> tuple[int | None, int | None]:
    """Parse ``A:B``; either end may be left out.

    Raises:
        click.BadParameter: It is none, or empty.
    """
    low, colon, high = (part.strip() for part in text.partition(":"))
    try:
        start, end = (nanoseconds(part) if part else None for part in (low, high))
    except ValueError:
        colon = ""
    if not colon:
        raise click.BadParameter(f"{text!r} is not A:B, such as 1.5s:2s or 10ms:")
    if start is not None and end is not None and start >= end:
        raise click.BadParameter(f"{text!r} ends where it starts, or before")
    return start, end


def duration(text: str) -> int:
    """Parse a length of time.

    Raises:
        click.BadParameter: It is none.
    """
    try:
        return nanoseconds(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a duration, such as 10us") from None


def nanoseconds(text: str) -> int:
    """Parse a time in nanoseconds, or with a unit: ``1.5s``.

    Raises:
        ValueError: It is none, or lies beyond a century.
    """
    unit, factor = next(((u, f) for u, f in _UNITS if text.endswith(u)), ("", 1))
    try:
        value = Decimal(text.removesuffix(unit).strip()) * factor
    except InvalidOperation:
        raise ValueError(text) from None
    if not (value.is_finite() and abs(value) < _LIMIT):
        raise ValueError(text)
    return int(value)


def split_names(text: str) -> list[str]:
    """Split a list with commas.

    Raises:
        click.BadParameter: It is empty.
    """
    names = [n.strip() for n in text.split(",") if n.strip()]
    if not names:
        raise click.BadParameter(f"{text!r} names nothing")
    return names


def completes(names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """Let a shell complete one of some names, also the last one of a list with commas."""

    def complete(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
        before, comma, last = typed.rpartition(",")
        return [CompletionItem(before + comma + n) for n in names() if n.startswith(last)]

    return complete


def _readers() -> Iterable[str]:
    from tracekit import registry

    return registry.readers()


def _exporters() -> Iterable[str]:
    from tracekit import registry

    return registry.exporters()


def table_names() -> Iterable[str]:
    """Names of the declared tables."""
    from tracekit import schemas

    return schemas.tables()


input_argument = click.argument("path", metavar="IN", type=click.Path(path_type=Path))
force_option = click.option("-f", "--force", is_flag=True, help="Replace the output if it exists.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress, no remarks.")
correlated_option = click.option("--correlated", is_flag=True, help="With the columns that correlation adds.")


def limit_option(text: str) -> Callable[[Verb], Verb]:
    """Add -n."""
    return click.option("-n", "--limit", metavar="N", type=click.IntRange(min=0), help=text)


def from_option(verb: Verb) -> Verb:
    """Add --from, which the verb is given as ``from_``, and --via, which ``load`` finds by itself."""
    options = (
        click.option(
            "--from",
            "from_",
            metavar="FORMAT",
            shell_complete=completes(_readers),
            help="Format of IN; recognised if left out.",
        ),
        click.option(
            "--via",
            type=click.Choice(["nsys"]),
            expose_value=False,
            callback=_remember_via,
            help="Let nsys on the PATH export the report IN, and read the export.",
        ),
    )
    return _with(options, verb)


def _remember_via(context: click.Context, _: click.Parameter, via: str | None) -> None:
    context.meta[_VIA] = via


def to_option(text: str) -> Callable[[Verb], Verb]:
    """Add --to."""
    return click.option("--to", metavar="FORMAT", shell_complete=completes(_exporters), help=text)


ops_option = click.option("--ops", is_flag=True, help="Also to which op and iteration each activity of a GPU belongs.")


def selection_options(verb: Verb) -> Verb:
    """Add --time, --device, --domain and --min-dur; the verb is given ``select``, which applies them to a trace."""
    options = (
        click.option(
            "--time", metavar="A:B", type=times, help="Only what overlaps A:B, since the trace origin: 1.5s:2s, 10ms:."
        ),
        click.option(
            "--device", "devices", metavar="ID", type=int, multiple=True, help="Only this GPU; may be repeated."
        ),
        click.option(
            "--domain", "domains", metavar="NAME", multiple=True, help='Only this NVTX domain ("" is the default one).'
        ),
        click.option(
            "--min-dur",
            "min_duration_ns",
            metavar="TIME",
            type=duration,
            help="Only what lasts at least so long: 10us.",
        ),
    )

    @functools.wraps(verb)
    def bundled(*, time: Any, devices: Any, domains: Any, min_duration_ns: int | None, **others: Any) -> Any:
        wanted = {
            "time": time,
            "devices": devices or None,
            "domains": domains or None,
            "min_duration_ns": min_duration_ns,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        return verb(select=lambda trace: trace.select(**given) if given else trace, **others)

    return _with(options, bundled)


EXTENDED = "extended"


def rollup_options(verb: Verb) -> Verb:
    """Add --key-op, --iterations, --dialect and --tensor-cores; the verb is given ``roll_up``, which applies them.

    What is rolled up takes time: a trace is left as it is unless one of them is given, a table is named that the file
    does not hold and a roll-up makes, or it is asked for.
    """
    modes = click.Choice([EXTENDED, "dlprof"])
    options = (
        click.option("--key-op", metavar="OP", help="Id or name of the op that delimits iterations."),
        click.option(
            "--iterations", metavar="A:B", type=numbers, help="Only iterations A to B, both included, from 0: 2:9, 2:."
        ),
        click.option(
            "--dialect", metavar="NAME", shell_complete=completes(_dialects), help="How ranges name ops; recognised."
        ),
        click.option(
            "--tensor-cores", type=modes, default=EXTENDED, help="Kernels known to use them, or all as DLProf 1.8 did."
        ),
    )

    @functools.wraps(verb)
    def bundled(*, key_op: Any, iterations: Any, dialect: Any, tensor_cores: Any, **others: Any) -> Any:
        given = {"key_op": key_op, "iterations": iterations, "dialect": dialect, "tensor_cores": tensor_cores}

        def roll_up(trace: Trace, *tables: str, asked: bool = False) -> Trace:
            from tracekit.plan import ROLLED_UP

            wanted = asked or any(v not in (None, EXTENDED) for v in given.values())
            made = any(t in ROLLED_UP and not trace.count(t) for t in tables)
            return trace.rollup(**given) if wanted or made else trace

        return verb(roll_up=roll_up, **others)

    return _with(options, bundled)


def numbers(text: str) -> tuple[int | None, int | None]:
    """Parse ``A:B`` of whole numbers; either end may be left out, or both be one number.

    Raises:
        click.BadParameter: It is none.
    """
    low, colon, high = (part.strip() for part in text.partition(":"))
    if not all((part.isdecimal() and len(part) < _DIGITS) or not part for part in (low, high)) or not (low or high):
        raise click.BadParameter(f"{text!r} is not A:B, such as 2:9 or 2:")
    first = int(low) if low else None
    return first, (int(high) if high else None) if colon else first


def named_value(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``.

    Raises:
        click.BadParameter: It is none.
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def _dialects() -> Iterable[str]:
    from tracekit.core.ops import DIALECTS

    return DIALECTS


STYLES = ("table", "csv", "json", "jsonl", "parquet", "arrow")
BINARY = ("parquet", "arrow")
_BY_SUFFIX = {
    **{f".{style}": style for style in STYLES[1:]},
    ".ndjson": "jsonl",
    ".feather": "arrow",
}


@dataclass(frozen=True, slots=True)
class Printing:
    """How and where a verb prints.

    Attributes:
        style: One of ``STYLES``.
        out: File to print to; None or ``-`` is standard output.
        force: Whether the file is replaced if it exists.
        spreadsheet: Whether text in CSV that looks like a formula gets an apostrophe.
    """

    style: str
    out: Path | None
    force: bool
    spreadsheet: bool = False

    @property
    def is_for_people(self) -> bool:
        """Whether a table is printed on a terminal, where only what fits a screen or two is useful."""
        from tracekit.cli.output import STDOUT

        return self.style == "table" and self.out in (None, STDOUT) and sys.stdout is not None and sys.stdout.isatty()

    def page(self, of: Trace | None = None, *, limit: int | None = None) -> AbstractContextManager[Page]:
        """Give the page to print on.

        Args:
            of: The trace that is read.
            limit: Number of rows that was asked for; 0, which is all of them, takes a pager on a terminal.
        """
        from tracekit.cli.output import page

        return page(self.out, overwrite=self.force, of=of, paged=self.is_for_people and limit == 0)

    def show(self, page: Page, frame: pl.DataFrame, *, prose: Collection[str] = ()) -> None:
        """Print a frame; ``prose`` names columns of sentences."""
        page.show(frame, self.style, prose=prose, spreadsheet=self.spreadsheet)


def printing_options(verb: Verb) -> Verb:
    """Add --format, --spreadsheet, -o and -f; the verb is given ``printing``."""
    options = (
        click.option(
            "--format",
            "style",
            type=click.Choice(STYLES),
            help="How to print; if left out, what the suffix of the -o file says, else a table.",
        ),
        click.option(
            "--spreadsheet", is_flag=True, help="In CSV, put an apostrophe before text that looks like a formula."
        ),
        click.option("-o", "--output", "out", type=click.Path(path_type=Path), help="File to print to."),
        force_option,
    )

    @functools.wraps(verb)
    def bundled(*, style: str | None, out: Path | None, force: bool, spreadsheet: bool, **others: Any) -> Any:
        chosen = style or _BY_SUFFIX.get("" if out is None else out.suffix.lower(), "table")
        return verb(printing=Printing(chosen, out, force, spreadsheet), **others)

    return _with(options, bundled)


def _with(options: Iterable[Callable[[Verb], Verb]], verb: Callable[..., Any]) -> Verb:
    made: Verb = functools.reduce(lambda v, option: option(v), reversed(tuple(options)), verb)  # type: ignore[assignment]
    return made


def load(path: Path, from_: str | None) -> Trace:
    """Open the input of a verb, by way of --via if it was given."""
    from tracekit import no_pandas
    from tracekit.trace import load as load_trace

    no_pandas.keep_out()
    return load_trace(path, from_, via=click.get_current_context().meta.get(_VIA))
