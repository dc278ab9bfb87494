"""From rows to JSON: each event is one line, made of whole columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.exporters.chrome_trace import kinds, text

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracekit.exporters.chrome_trace.kinds import Arg, Kind


class Clock(NamedTuple):
    """How times of the capture become times of the file.

    Attributes:
        shift_ns: Added to every time, so that none is negative.
        end_ns: End of the capture, where what was left open ends; 0 until it is needed.
    """

    shift_ns: int = 0
    end_ns: int = 0


def columns(kind: Kind, names: Collection[str]) -> list[str]:
    """Return the columns that a kind is drawn from; none if the table lacks what it cannot do without.

    Args:
        kind: A kind of event.
        names: Columns that the table has.
    """
    needed = [*vital(kind), kind.key, *_roots(kind.name, kind.where)]
    if not set(needed) <= set(names):
        return []
    args = [column for arg in present(kind.own + kind.shared, names) for column in _roots(arg.value)]
    return list(dict.fromkeys([*needed, *args, *(["api_call_id"] if kind.launched and "api_call_id" in names else [])]))


def vital(kind: Kind) -> list[str]:
    """Return the columns that a kind is placed by: those of its track, and its times."""
    times = _roots(kind.start, kind.end) if kind.phase == kinds.SLICE else _roots(kind.start)
    return list(dict.fromkeys([*kind.placement.keys, *times]))


def present(args: tuple[Arg, ...], names: Collection[str]) -> list[Arg]:
    """Keep the arguments whose columns a table has."""
    return [arg for arg in args if set(_roots(arg.value)) <= set(names)]


def _roots(*expressions: pl.Expr | None) -> list[str]:
    return [name for e in expressions if e is not None for name in e.meta.root_names()]


def start(kind: Kind, clock: Clock) -> pl.Expr:
    """Start of an event in the time of the file."""
    return kind.start + clock.shift_ns if clock.shift_ns else kind.start


def duration(kind: Kind, clock: Clock) -> pl.Expr:
    """Duration of a slice: to the end of the capture if it was left open; none if it ends before it starts."""
    return (kind.end.fill_null(clock.end_ns) - kind.start).clip(lower_bound=0)


def render(kind: Kind, rows: pl.DataFrame, places: pl.Series, clock: Clock) -> pl.Series:
    """Write events: n rows in, n lines of JSON out, each ending in a comma.

    Args:
        kind: What the rows are.
        rows: Columns of its table, and ``place``.
        places: Text of every place.
        clock: Times.
    """
    own = rows.select(_own(kind, rows.columns))
    args = f',"args":{{"{kind.key}":'
    middle = {kinds.SLICE: ',"dur":', kinds.INSTANT: f',"s":"t"{args}'}.get(kind.phase, args)
    line = own.with_columns(
        _shared(kind, rows, places),
        *_times("at", start(kind, clock), rows, middle),
        *(_times("for", duration(kind, clock), rows, args) if kind.phase == kinds.SLICE else ()),
    )
    times = ["at_us", "at_rest", *(["for_us", "for_rest"] if kind.phase == kinds.SLICE else [])]
    pieces: list[str | pl.Expr] = [f'{{"ph":"{kind.phase}","ts":', *map(pl.col, [*times, kind.key])]
    for column in own.iter_columns():
        pieces += _member(column) if column.name != kind.key else []
    return line.select(text.join([*pieces, pl.col("shared")])).to_series()


def _own(kind: Kind, names: Collection[str]) -> list[pl.Expr]:
    args = [pl.col(kind.key), *(arg.value.alias(arg.key) for arg in present(kind.own, names))]
    if kind.phase == kinds.SLICE:
        length = kind.end - kind.start
        args.append(pl.when(kind.end.is_null()).then(pl.lit("true")).alias("open"))
        args.append(pl.when(length < 0).then(length).alias("negative_duration_ns"))
    return args


def _times(name: str, time: pl.Expr, rows: pl.DataFrame, after: str) -> list[pl.Series]:
    whole, rest = text.thousandths(time, after)
    return rows.select(whole.alias(f"{name}_us"), rest.alias(f"{name}_rest")).get_columns()


def _member(column: pl.Series) -> list[str | pl.Expr]:
    """Write a further member of ``args``; what is never or always null costs nothing more."""
    lead = f',"{column.name}":'
    if column.null_count() == len(column):
        return []
    if column.null_count() == 0:
        return [lead, pl.col(column.name)]
    return [text.join([lead, pl.col(column.name)]).fill_null("")]


def _shared(kind: Kind, rows: pl.DataFrame, places: pl.Series) -> pl.Series:
    """Write the end of each line: arguments that repeat, place and name; made once a combination."""
    args = present(kind.shared, rows.columns)
    keys = list(dict.fromkeys(["place", *_roots(kind.name, *(arg.value for arg in args))]))
    members = [text.join([f',"{arg.key}":', arg.value]).fill_null("") for arg in args]
    place = pl.lit(places).gather("place")
    line = text.join([*members, "},", place, ',"name":', text.quote(kind.name), "},\n"])
    repeated = [key for key in keys if rows[key].null_count() < rows.height]
    combinations = rows.with_row_index("row").group_by(repeated).agg("row", pl.col(set(keys) - set(repeated)).first())
    written = combinations.select("row", shared=line).explode("row").sort("row")
    return written["shared"]


def arrows(links: pl.DataFrame, places: pl.Series, clock: Clock, first_id: int) -> pl.Series:
    """Write arrows from API calls to what they caused: n rows in, n texts of two events out.

    Args:
        links: ``call_start_ns``, ``call_place``, ``start_ns``, ``place``.
        places: Text of every place.
        clock: Times.
        first_id: Number of the first arrow.
    """

    def end(phase: str, start: str, place: str) -> list[str | pl.Expr]:
        times = text.thousandths(pl.col(start) + clock.shift_ns)
        lead = f'{{"ph":"{phase}","cat":"launch","name":"launch","id":'
        return [lead, pl.col("id"), ',"ts":', *times, ",", pl.lit(places).gather(place)]

    numbered = links.with_row_index("id", offset=first_id)
    pieces = [*end("s", "call_start_ns", "call_place"), "},\n", *end("f", "start_ns", "place"), ',"bp":"e"},\n']
    return numbered.select(text.join(pieces)).to_series()
