"""Format events as lines of JSON with vectorized operations on columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.exporters.chrome_trace import text
from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.columns import (
    available_args,
    column_names,
    duration_expr,
    exception_args,
    key_arg,
    start_expr,
    value_exprs,
)
from tracekit.exporters.timeline.text import concat_expr

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracekit.exporters.timeline.columns import Clock
    from tracekit.exporters.timeline.kinds import EventKind


def format_events(kind: EventKind, rows: pl.DataFrame, lane_texts: pl.Series, clock: Clock) -> memoryview:
    """Format each event as a line of JSON that ends with a comma.

    Args:
        kind: The kind of the events.
        rows: Columns of the table of the events, and ``lane_id``.
        lane_texts: The JSON members ``pid`` and ``tid`` of each lane, by lane id. Viewers show a lane as a thread.
        clock: The conversion of times of the capture to times in the file.
    """
    row_args = rows.select(_row_argument_exprs(kind, rows.columns))
    args = f',"args":{{"{kind.key}":'
    middle = {kinds.SLICE: ',"dur":', kinds.INSTANT: f',"s":"t"{args}'}.get(kind.phase, args)
    line = row_args.with_columns(
        _format_argument_lane_and_name_members(kind, rows, lane_texts),
        *_format_times("start", start_expr(kind, clock), rows, middle),
        *(_format_times("duration", duration_expr(kind, clock), rows, args) if kind.phase == kinds.SLICE else ()),
    )
    times = ["start_us", "start_rest", *(["duration_us", "duration_rest"] if kind.phase == kinds.SLICE else [])]
    parts: list[str | pl.Expr] = [f'{{"ph":"{kind.phase}","ts":', *map(pl.col, [*times, kind.key])]
    for column in row_args.iter_columns():
        parts += _format_member(column) if column.name != kind.key else []
    return text.utf8_bytes(line.select(concat_expr([*parts, pl.col("repeated")])).to_series())


def _row_argument_exprs(kind: EventKind, names: Collection[str]) -> list[pl.Expr]:
    """Return expressions for the arguments that differ from row to row, beginning with the key."""
    args = [key_arg(kind), *available_args(kind.row_args, names), *exception_args(kind)]
    return [text.arg_expr(arg).alias(arg.key) for arg in args]


def _format_times(name: str, time: pl.Expr, rows: pl.DataFrame, suffix: str) -> list[pl.Series]:
    """Format a time in µs as two string columns: the integer part, and the decimals followed by ``suffix``."""
    microseconds, rest = text.thousandths_exprs(time, suffix)
    return rows.select(microseconds.alias(f"{name}_us"), rest.alias(f"{name}_rest")).get_columns()


def _format_member(column: pl.Series) -> list[str | pl.Expr]:
    """Return the strings and expressions that format one member of ``args``. Null values are omitted."""
    lead = f',"{column.name}":'
    if column.null_count() == len(column):
        return []
    if column.null_count() == 0:
        return [lead, pl.col(column.name)]
    return [concat_expr([lead, pl.col(column.name)]).fill_null("")]


def _format_argument_lane_and_name_members(kind: EventKind, rows: pl.DataFrame, lane_texts: pl.Series) -> pl.Series:
    """Format the end of each line: repeated arguments, lane and name.

    Each combination of values is formatted once, unless most rows have different names.
    """
    is_null = {name for name in rows.columns if rows[name].null_count() == rows.height}
    args = [
        a for a in available_args(kind.repeated_args, rows.columns) if not is_null & {*column_names(*value_exprs(a))}
    ]
    members = [concat_expr([f',"{arg.key}":', text.arg_expr(arg)]).fill_null("") for arg in args]
    lane = pl.lit(lane_texts).gather("lane_id")
    line = concat_expr([*members, "},", lane, ',"name":', text.json_string_expr(kind.name), "},\n"])
    names = column_names(kind.name)
    if max((rows[name].n_unique() for name in names), default=0) > rows.height // 2:
        return rows.select(repeated=line).to_series()
    keys = list(dict.fromkeys(["lane_id", *names, *column_names(*value_exprs(*args))]))
    group_keys = [key for key in keys if key not in is_null]
    combinations = (
        rows.with_row_index("row").group_by(group_keys).agg("row", pl.col(set(keys) - set(group_keys)).first())
    )
    formatted = combinations.select("row", repeated=line).explode("row").sort("row")
    return formatted["repeated"]


def format_flows(links: pl.DataFrame, lane_texts: pl.Series, clock: Clock, first_id: int, name: str) -> memoryview:
    """Format flows from one event to another as JSON, with two events per flow.

    Args:
        links: One row per flow with the columns ``from_ns``, ``from_lane_id``, ``to_ns`` and ``to_lane_id``.
        lane_texts: The JSON members ``pid`` and ``tid`` of each lane, by lane id. Viewers show a lane as a thread.
        clock: The conversion of times of the capture to times in the file.
        first_id: Id of the first flow. The ids of the following flows are consecutive.
        name: Name and category of the flows.
    """

    def flow_end_parts(phase: str, end: str) -> list[str | pl.Expr]:
        times = text.thousandths_exprs(clock.convert(pl.col(f"{end}_ns")))
        lead = f'{{"ph":"{phase}","cat":"{name}","name":"{name}","id":'
        return [lead, pl.col("id"), ',"ts":', *times, ",", pl.lit(lane_texts).gather(f"{end}_lane_id")]

    numbered = links.with_row_index("id", offset=first_id)
    parts = [*flow_end_parts("s", "from"), "},\n", *flow_end_parts("f", "to"), ',"bp":"e"},\n']
    return text.utf8_bytes(numbered.select(concat_expr(parts)).to_series())
