"""Format events as lines of JSON with vectorized operations on columns."""

from __future__ import annotations

import functools
import itertools
import operator
from typing import TYPE_CHECKING

import polars as pl

from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.batches import (
    duration_expr,
    get_key_arg,
    list_anomaly_args,
    list_column_names,
    select_available_args,
    start_expr,
    value_exprs,
)
from tracekit.exporters.timeline.exporter import concat_expr

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracekit.exporters.timeline.batches import FileClock
    from tracekit.exporters.timeline.kinds import Arg, ArgumentValue, EventKind

_ESCAPES = {chr(code): f"\\u{code:04x}" for code in (*range(0x20), 0x7F, 0x2028, 0x2029)}
_ESCAPES |= {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ROWS_PER_NAME, _ROWS_PER_STRING = 2, 8
"""Minimum average numbers of rows per distinct name, and per distinct value of another string column, for which each
combination of values is formatted only once."""


def json_string_expr(text: pl.Expr) -> pl.Expr:
    """Return an expression that formats strings as JSON strings. Null remains null.

    Each distinct string of a Categorical column is formatted once, and rows with equal strings share its memory.
    """
    return text.map_batches(_format_json_strings, return_dtype=pl.String)


def _format_json_strings(values: pl.Series) -> pl.Series:
    """Return strings as JSON strings. Null remains null."""
    if values.dtype == pl.Categorical:
        distinct = values.unique().drop_nulls()
        if 2 * len(distinct) <= len(values):
            numbers = pl.int_range(len(distinct), dtype=pl.UInt32, eager=True)
            codes = values.to_physical()
            rows = codes.replace_strict(distinct.to_physical(), numbers, default=None, return_dtype=pl.UInt32)
            return _format_json_strings(distinct.cast(pl.String)).gather(rows).alias(values.name)
    escaped = pl.col(values.name).cast(pl.String).str.replace_many(list(_ESCAPES), list(_ESCAPES.values()))
    return values.to_frame().select(pl.concat_str(pl.lit('"'), escaped, pl.lit('"')).alias(values.name)).to_series()


def thousandths_exprs(number: pl.Expr, suffix: str = "") -> tuple[pl.Expr, pl.Expr]:
    """Return two expressions for numbers divided by 1000: the integer part, and a string of the decimals (``.567``).

    Args:
        number: Non-negative integers, such as times in ns that are written in µs.
        suffix: String that is appended to the decimals. This is faster than a separate concatenation.
    """
    return number // 1000, pl.lit(_list_decimals_with_suffix(suffix)).gather(number % 1000)


def _signed_thousandths_expr(number: pl.Expr) -> pl.Expr:
    """Return an expression that formats integers of any sign, divided by 1000: ``-5`` becomes ``-0.005``."""
    sign = pl.when(number < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return concat_expr([sign, *thousandths_exprs(number.abs())])


@functools.cache
def _list_decimals_with_suffix(suffix: str) -> pl.Series:
    """Return the strings ``.000`` to ``.999``, each followed by ``suffix``."""
    return pl.Series([f".{n:03}{suffix}" for n in range(1000)])


def arg_expr(arg: Arg) -> pl.Expr:
    """Return an expression that formats an argument as a JSON string, number or ``true``. Null remains null."""
    values = [_json_value_expr(value) for value in arg.values]
    return values[0] if len(values) == 1 else pl.coalesce(value.cast(pl.String) for value in values)


def _json_value_expr(value: ArgumentValue) -> pl.Expr:
    """Return an expression that formats one of the alternative values of an argument as JSON. Null remains null.

    A flag is formatted as ``true``, or is null if it is not set.
    """
    if value.form == kinds.STRING:
        return json_string_expr(value.expression)
    if value.form == kinds.THOUSANDTHS:
        return _signed_thousandths_expr(value.expression)
    if value.form == kinds.TRUE:
        return pl.when(value.expression).then(pl.lit("true"))
    return value.expression


def concatenate_utf8_bytes(strings: pl.Series) -> memoryview:
    """Return the UTF-8 bytes of all strings of a series, one after the other."""
    array = strings.to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = array.buffers()
    if not len(array):
        return memoryview(b"")
    ends = memoryview(offsets).cast("B").cast("q")
    return memoryview(data)[ends[array.offset] : ends[array.offset + len(array)]]


def format_events(kind: EventKind, rows: pl.DataFrame, lane_texts: pl.Series, clock: FileClock) -> memoryview:
    """Format each event as a line of JSON that ends with a comma.

    Args:
        kind: The kind of the events.
        rows: The events, with the columns of their table and ``lane_id``.
        lane_texts: The JSON members ``pid`` and ``tid`` of each lane, by lane id. Viewers show a lane as a thread.
        clock: The conversion of times in the capture to times in the file.

    Returns:
        The lines as UTF-8.
    """
    row_args = rows.select(_row_argument_exprs(kind, rows.columns))
    args = f',"args":{{"{kind.key}":'
    middle = {kinds.SLICE: ',"dur":', kinds.INSTANT: f',"s":"t"{args}'}.get(kind.phase, args)
    tail = _format_argument_lane_and_name_members(kind, rows, lane_texts)
    line = row_args.with_columns(
        *tail,
        *_format_times("start", start_expr(kind, clock), rows, middle),
        *(_format_times("duration", duration_expr(kind, clock), rows, args) if kind.phase == kinds.SLICE else ()),
    )
    times = ["start_us", "start_rest", *(["duration_us", "duration_rest"] if kind.phase == kinds.SLICE else [])]
    parts: list[str | pl.Expr] = [f'{{"ph":"{kind.phase}","ts":', *map(pl.col, [*times, kind.key])]
    for column in row_args.iter_columns():
        parts += _list_json_member_parts(column) if column.name != kind.key else []
    return concatenate_utf8_bytes(line.select(concat_expr([*parts, *(pl.col(part.name) for part in tail)])).to_series())


def _row_argument_exprs(kind: EventKind, names: Collection[str]) -> list[pl.Expr]:
    """Return expressions that format the key and the other event arguments that differ from row to row."""
    args = [get_key_arg(kind), *select_available_args(kind.row_args, names), *list_anomaly_args(kind)]
    return [arg_expr(arg).alias(arg.key) for arg in args]


def _format_times(column_prefix: str, time: pl.Expr, rows: pl.DataFrame, suffix: str) -> list[pl.Series]:
    """Return times in µs as two columns: the integer parts, and strings of the decimals followed by ``suffix``."""
    microseconds, rest = thousandths_exprs(time, suffix)
    return rows.select(microseconds.alias(f"{column_prefix}_us"), rest.alias(f"{column_prefix}_rest")).get_columns()


def _list_json_member_parts(column: pl.Series) -> list[str | pl.Expr]:
    """Return the parts of a concatenation that formats a column as a member of ``args``. Nulls are omitted."""
    lead = f',"{column.name}":'
    if column.null_count() == len(column):
        return []
    if column.null_count() == 0:
        return [lead, pl.col(column.name)]
    return [concat_expr([lead, pl.col(column.name)]).fill_null("")]


def _format_argument_lane_and_name_members(
    kind: EventKind, rows: pl.DataFrame, lane_texts: pl.Series
) -> list[pl.Series]:
    """Return the end of each JSON line as one or more string columns: the repeated arguments, the lane and the name.

    Each combination of values is formatted once, unless most rows have different names. Columns with many different
    strings, such as range paths, are formatted separately, because they would result in too many combinations.
    """
    is_null = {name for name in rows.columns if rows[name].null_count() == rows.height}
    args = [
        a
        for a in select_available_args(kind.repeated_args, rows.columns)
        if not is_null & {*list_column_names(*value_exprs(a))}
    ]
    lane = concat_expr(["},", pl.lit(lane_texts).gather("lane_id"), ',"name":'])
    members = [*map(_optional_member_expr, args), lane, concat_expr([json_string_expr(kind.name), "},\n"])]
    names = [*(list_column_names(*value_exprs(arg)) for arg in args), ["lane_id"], list_column_names(kind.name)]
    if _has_many_values(rows, names[-1], _ROWS_PER_NAME):
        return rows.select(concat_expr(members).alias("part 0")).get_columns()
    strings = [[name for name in group if not rows[name].dtype.is_numeric()] for group in names]
    is_separate = [_has_many_values(rows, group, _ROWS_PER_STRING) for group in strings]
    parts = [
        (separate, concat_expr([member for _, member in group]))
        for separate, group in itertools.groupby(zip(is_separate, members, strict=True), key=operator.itemgetter(0))
    ]
    named = [(separate, part.alias(f"part {n}")) for n, (separate, part) in enumerate(parts)]
    repeated, separate = ([part for is_one, part in named if is_one == chosen] for chosen in (False, True))
    keys = {name for group, alone in zip(names, is_separate, strict=True) if not alone for name in group}
    null_keys = pl.col(sorted(keys & is_null)).first()
    combinations = rows.with_row_index("row").group_by(sorted(keys - is_null)).agg("row", null_keys)
    formatted = combinations.select("row", *repeated).explode("row").sort("row").drop("row")
    formatted = formatted.hstack(rows.select(separate))
    return [formatted[f"part {n}"] for n in range(len(parts))]


def _optional_member_expr(arg: Arg) -> pl.Expr:
    """Return an expression that formats an argument as a member of ``args``. Null becomes an empty string."""
    return concat_expr([f',"{arg.key}":', arg_expr(arg)]).fill_null("")


def _has_many_values(rows: pl.DataFrame, names: Collection[str], rows_per_value: int) -> bool:
    """Return whether any of the named columns has more than one distinct value per ``rows_per_value`` rows."""
    return any(rows[name].n_unique() > rows.height // rows_per_value for name in names)


def format_flows(links: pl.DataFrame, lane_texts: pl.Series, clock: FileClock, first_id: int, name: str) -> memoryview:
    """Format flows (arrows from one event to another) as JSON, with a start event and an end event per flow.

    Args:
        links: One row per flow with the columns ``from_ns``, ``from_lane_id``, ``to_ns`` and ``to_lane_id``.
        lane_texts: The JSON members ``pid`` and ``tid`` of each lane, by lane id. Viewers show a lane as a thread.
        clock: The conversion of times in the capture to times in the file.
        first_id: Id of the first flow. The ids of the following flows are consecutive.
        name: Name of the flows, which is also their category.
    """

    def list_flow_event_parts(phase: str, endpoint: str) -> list[str | pl.Expr]:
        times = thousandths_exprs(clock.converted_time_expr(pl.col(f"{endpoint}_ns")))
        lead = f'{{"ph":"{phase}","cat":"{name}","name":"{name}","id":'
        return [lead, pl.col("id"), ',"ts":', *times, ",", pl.lit(lane_texts).gather(f"{endpoint}_lane_id")]

    numbered = links.with_row_index("id", offset=first_id)
    parts = [*list_flow_event_parts("s", "from"), "},\n", *list_flow_event_parts("f", "to"), ',"bp":"e"},\n']
    return concatenate_utf8_bytes(numbered.select(concat_expr(parts)).to_series())
