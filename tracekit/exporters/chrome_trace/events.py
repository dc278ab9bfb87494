"""Format events as lines of JSON with vectorized operations on columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.exporters.chrome_trace import kinds, text

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracekit.exporters.chrome_trace.kinds import Arg, EventKind


class Clock(NamedTuple):
    """The conversion of times of the capture to times in the file.

    Attributes:
        shift_ns: Number of ns that is added to every time so that no time is negative.
        end_ns: End of the capture in ns, which is used as the end of events that were never closed. 0 if unused.
        drift: Number of ns per ns that is added to every time, so that several traces share one clock.
    """

    shift_ns: int = 0
    end_ns: int = 0
    drift: float = 0.0

    def convert(self, time: pl.Expr) -> pl.Expr:
        """Return a time of the capture in ns, as written to the file."""
        drifted = time + (time * self.drift).round().cast(pl.Int64) if self.drift else time
        return drifted + self.shift_ns if self.shift_ns else drifted


def event_columns(kind: EventKind, names: Collection[str]) -> list[str]:
    """Return the columns that are used to draw a kind of event, or no columns if the table lacks a required one.

    Args:
        kind: The kind of event.
        names: The columns of the table.
    """
    required = [*position_columns(kind), *_column_names(_key_value(kind), kind.name, kind.where)]
    if not set(required) <= set(names):
        return []
    args = available_args(kind.row_args + kind.repeated_args, names)
    arg_columns = [column for arg in args for column in _column_names(arg.value)]
    links = [c for c in (*kind.links, *(["api_call_id"] if kind.launched else [])) if c in names]
    return list(dict.fromkeys([*required, *arg_columns, *links]))


def _key_value(kind: EventKind) -> pl.Expr:
    """Return the value of the first argument."""
    return pl.col(kind.key) if kind.key_value is None else kind.key_value


def position_columns(kind: EventKind) -> list[str]:
    """Return the columns that determine the position of an event, which are the keys of its track and its times."""
    times = _column_names(kind.start, kind.end) if kind.phase == kinds.SLICE else _column_names(kind.start)
    return list(dict.fromkeys([*kind.placement.keys, *times]))


def available_args(args: tuple[Arg, ...], names: Collection[str]) -> list[Arg]:
    """Return the arguments whose columns are all in a table."""
    return [arg for arg in args if set(_column_names(arg.value)) <= set(names)]


def _column_names(*expressions: pl.Expr | None) -> list[str]:
    """Return the names of the columns that the given expressions use."""
    return [name for e in expressions if e is not None for name in e.meta.root_names()]


def start_time(kind: EventKind, clock: Clock) -> pl.Expr:
    """Return the start of an event in ns, as written to the file."""
    return clock.convert(kind.start)


def slice_duration(kind: EventKind, clock: Clock) -> pl.Expr:
    """Return the duration of a slice in ns, as written to the file.

    A slice that was never closed ends with the capture. The duration is 0 for a slice that ends before it starts.
    """
    end = kind.end.fill_null(clock.end_ns)
    duration = clock.convert(end) - clock.convert(kind.start) if clock.drift else end - kind.start
    return duration.clip(lower_bound=0)


def format_events(kind: EventKind, rows: pl.DataFrame, lane_texts: pl.Series, clock: Clock) -> pl.Series:
    """Format each event as a line of JSON that ends with a comma.

    Args:
        kind: The kind of the events.
        rows: Columns of the table of the events, and ``lane_id``.
        lane_texts: JSON members that identify each lane, by lane id.
        clock: The conversion of times of the capture to times in the file.
    """
    row_args = rows.select(_row_arguments(kind, rows.columns))
    args = f',"args":{{"{kind.key}":'
    middle = {kinds.SLICE: ',"dur":', kinds.INSTANT: f',"s":"t"{args}'}.get(kind.phase, args)
    line = row_args.with_columns(
        _format_repeated(kind, rows, lane_texts),
        *_format_times("start", start_time(kind, clock), rows, middle),
        *(_format_times("duration", slice_duration(kind, clock), rows, args) if kind.phase == kinds.SLICE else ()),
    )
    times = ["start_us", "start_rest", *(["duration_us", "duration_rest"] if kind.phase == kinds.SLICE else [])]
    parts: list[str | pl.Expr] = [f'{{"ph":"{kind.phase}","ts":', *map(pl.col, [*times, kind.key])]
    for column in row_args.iter_columns():
        parts += _format_member(column) if column.name != kind.key else []
    return line.select(text.concat_text([*parts, pl.col("repeated")])).to_series()


def _row_arguments(kind: EventKind, names: Collection[str]) -> list[pl.Expr]:
    """Return expressions for the arguments that differ from row to row, beginning with the key."""
    args = [
        _key_value(kind).alias(kind.key),
        *(arg.value.alias(arg.key) for arg in available_args(kind.row_args, names)),
    ]
    if kind.phase == kinds.SLICE:
        duration = kind.end - kind.start
        args.append(pl.when(kind.end.is_null()).then(pl.lit("true")).alias("open"))
        args.append(pl.when(duration < 0).then(duration).alias("negative_duration_ns"))
    return args


def _format_times(name: str, time: pl.Expr, rows: pl.DataFrame, suffix: str) -> list[pl.Series]:
    """Format a time in µs as two columns, which are the integer part, and the decimals followed by ``suffix``."""
    microseconds, rest = text.format_thousandths(time, suffix)
    return rows.select(microseconds.alias(f"{name}_us"), rest.alias(f"{name}_rest")).get_columns()


def _format_member(column: pl.Series) -> list[str | pl.Expr]:
    """Return the components of a line for one member of ``args``. Null values are omitted."""
    lead = f',"{column.name}":'
    if column.null_count() == len(column):
        return []
    if column.null_count() == 0:
        return [lead, pl.col(column.name)]
    return [text.concat_text([lead, pl.col(column.name)]).fill_null("")]


def _format_repeated(kind: EventKind, rows: pl.DataFrame, lane_texts: pl.Series) -> pl.Series:
    """Format the end of each line: repeated arguments, lane and name. Each combination of values is formatted once."""
    args = available_args(kind.repeated_args, rows.columns)
    keys = list(dict.fromkeys(["lane_id", *_column_names(kind.name, *(arg.value for arg in args))]))
    members = [text.concat_text([f',"{arg.key}":', arg.value]).fill_null("") for arg in args]
    lane = pl.lit(lane_texts).gather("lane_id")
    line = text.concat_text([*members, "},", lane, ',"name":', text.quote_strings(kind.name), "},\n"])
    group_keys = [key for key in keys if rows[key].null_count() < rows.height]
    combinations = (
        rows.with_row_index("row").group_by(group_keys).agg("row", pl.col(set(keys) - set(group_keys)).first())
    )
    formatted = combinations.select("row", repeated=line).explode("row").sort("row")
    return formatted["repeated"]


def format_arrows(links: pl.DataFrame, lane_texts: pl.Series, clock: Clock, first_id: int, name: str) -> pl.Series:
    """Format arrows from one event to another, as two events per arrow.

    Args:
        links: One row per arrow with the columns ``from_ns``, ``from_lane_id``, ``to_ns`` and ``to_lane_id``.
        lane_texts: JSON members that identify each lane, by lane id.
        clock: The conversion of times of the capture to times in the file.
        first_id: Id of the first arrow. The other arrows have the ids after it.
        name: Name and category of the arrows.
    """

    def arrow_end(phase: str, end: str) -> list[str | pl.Expr]:
        times = text.format_thousandths(clock.convert(pl.col(f"{end}_ns")))
        lead = f'{{"ph":"{phase}","cat":"{name}","name":"{name}","id":'
        return [lead, pl.col("id"), ',"ts":', *times, ",", pl.lit(lane_texts).gather(f"{end}_lane_id")]

    numbered = links.with_row_index("id", offset=first_id)
    parts = [*arrow_end("s", "from"), "},\n", *arrow_end("f", "to"), ',"bp":"e"},\n']
    return numbered.select(text.concat_text(parts)).to_series()
