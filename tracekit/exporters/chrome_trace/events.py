"""Format events as lines of JSON, in batches.

A program in C writes the lines (``tracekit.native.lines``). Numbers and times are passed to it as columns. Strings are
passed as codes and one string per code: an expression that results in a string is evaluated once per string of a
dictionary, or once per combination of values, unless most rows have different strings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.batches import (
    duration_expr,
    get_key_arg,
    list_anomaly_args,
    list_column_names,
    select_available_args,
    start_expr,
)
from tracekit.exporters.timeline.blocks import NULL_CODE, DefaultString
from tracekit.exporters.timeline.kinds import Arg, ArgumentValue
from tracekit.native import lines
from tracekit.native.combinations import CombinationFinder
from tracekit.native.lines import LineField, LineWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.exporters.timeline.batches import FileClock
    from tracekit.exporters.timeline.blocks import RowBatch, TableRows
    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.system.sorting import Array

_FORMS = {
    kinds.INTEGER: lines.INTEGER,
    kinds.UNSIGNED: lines.UNSIGNED,
    kinds.THOUSANDTHS: lines.THOUSANDTHS,
    kinds.TRUE: lines.CONSTANT,
}
"""Forms of the fields of values that are numbers or flags."""
_ROWS_PER_STRING = 2
"""Minimum average number of rows per string or combination for which an expression is evaluated once for each."""
_MIN_ROWS = 1 << 10
"""Number of rows as which smaller batches count when strings are compared with rows."""


class Programs(NamedTuple):
    """The programs in C that format a batch. Only one thread at a time may use them."""

    writer: LineWriter
    finder: CombinationFinder

    @classmethod
    def create(cls) -> Programs:
        """Return the programs with separate memory."""
        return cls(LineWriter(), CombinationFinder())


class _Strings(NamedTuple):
    """The strings of an expression.

    Attributes:
        codes: Code of the string in each row. The code of a null is ``NULL_CODE``.
        texts: The strings by code.
        default: The string that is written instead of null, or None.
    """

    codes: Array
    texts: pa.Array
    default: str | None = None

    @classmethod
    def from_series(cls, strings: pl.Series, codes: Array) -> _Strings:
        """Return the strings of rows, given a series of strings that may have nulls, and its row for each row."""
        if strings.null_count():
            is_null = np.append(strings.is_null().to_numpy(), True)
            codes = np.where(is_null[np.minimum(codes, len(strings))], NULL_CODE, codes).astype(np.uint32)
        return cls(codes, strings.to_arrow(compat_level=pl.CompatLevel.oldest()))


class EventFormatter:
    """Formatter of the events of one kind. Several threads may use it at the same time."""

    def __init__(
        self, kind: EventKind, rows: TableRows, lane_ids: Array, lane_texts: pa.LargeStringArray, clock: FileClock
    ) -> None:
        """Prepare to format events.

        Args:
            kind: The kind of the events.
            rows: The events.
            lane_ids: Lane id of each event.
            lane_texts: The JSON members ``pid`` and ``tid`` of each lane, by lane id. Viewers show a lane as a thread.
            clock: The conversion of times in the capture to times in the file.
        """
        self._rows, self._lane_ids, self._lane_texts = rows, lane_ids, lane_texts
        start = Arg("ts", (ArgumentValue(kinds.THOUSANDTHS, start_expr(kind, clock)),))
        duration = Arg("dur", (ArgumentValue(kinds.THOUSANDTHS, duration_expr(kind, clock)),))
        scope = ',"s":"t"' if kind.phase == kinds.INSTANT else ""
        args = [
            *select_available_args(kind.row_args, rows.columns),
            *list_anomaly_args(kind),
            *select_available_args(kind.repeated_args, rows.columns),
        ]
        self._members = [
            (f'{{"ph":"{kind.phase}","ts":', start),
            *([(',"dur":', duration)] if kind.phase == kinds.SLICE else []),
            (f'{scope},"args":{{"{kind.key}":', get_key_arg(kind)),
            *((f',"{arg.key}":', arg) for arg in args),
            (',"name":', Arg("name", (ArgumentValue(kinds.STRING, kind.name),))),
        ]
        self._defaults: dict[int, DefaultString] = {}
        self._known: dict[int, pl.Series] = {}
        """The values of expressions for all strings of a dictionary and for null, by id of the expression."""

    def format(self, numbers: slice | Array, programs: Programs) -> memoryview:
        """Format some events, each as a line of JSON that ends with a comma.

        Args:
            numbers: Row numbers of the events.
            programs: The programs to use. They are in use until the result has been written.

        Returns:
            The lines as UTF-8.
        """
        batch = self._rows.read_batch(numbers)
        columns = self._select_numbers(batch)
        fields: list[LineField] = []
        for place, (lead, arg) in enumerate(self._members):
            alternatives = [
                field
                for nth, value in enumerate(arg.values)
                for field in self._create_fields(lead, value, columns.get(f"{place} {nth}"), batch, programs.finder)
            ]
            if place == len(self._members) - 1:
                fields.append(LineField(lines.TEXT, b"},", self._lane_ids[numbers], self._lane_texts))
            fields += [field._replace(alternatives=len(alternatives) - n) for n, field in enumerate(alternatives, 1)]
        fields.append(LineField(lines.CONSTANT, b"},\n"))
        return programs.writer.write(fields, batch.height)

    def _select_numbers(self, batch: RowBatch) -> dict[str, pl.Series]:
        """Return the values of all members that are flags, or numbers whose columns are not all null."""
        is_null = {name: batch.is_all_null(name) for name in self._rows.columns}
        expressions = [
            value.expression.alias(f"{place} {nth}")
            for place, (_, arg) in enumerate(self._members)
            for nth, value in enumerate(arg.values)
            if value.form == kinds.TRUE
            or (value.form in _FORMS and not all(is_null[name] for name in list_column_names(value.expression)))
        ]
        frame = batch.read_frame(list(dict.fromkeys(list_column_names(*expressions))))
        return {column.name: column for column in frame.select(expressions).iter_columns()}

    def _create_fields(
        self, lead: str, value: ArgumentValue, column: pl.Series | None, batch: RowBatch, finder: CombinationFinder
    ) -> Iterator[LineField]:
        """Yield the fields for a value of an argument, of which at most one is written per row."""
        if value.form not in _FORMS:
            form = lines.STRING if value.form == kinds.STRING else lines.TEXT
            strings = self._read_strings(value.expression, batch, finder)
            if (strings.codes != NULL_CODE).any():
                yield LineField(form, lead.encode(), strings.codes, strings.texts)
            if strings.default is not None:
                default = pa.array([strings.default], pa.large_string())
                yield LineField(form, lead.encode(), np.zeros(batch.height, np.uint32), default)
        elif column is not None and column.null_count() < len(column):
            is_valid = column.is_not_null().to_numpy() if column.null_count() else None
            if value.form == kinds.TRUE:
                yield LineField(lines.CONSTANT, f"{lead}true".encode(), is_valid=is_valid)
            else:
                numbers = (column.fill_null(0) if column.null_count() else column).to_numpy()
                yield LineField(_FORMS[value.form], lead.encode(), numbers, is_valid=is_valid)

    def _read_strings(self, expression: pl.Expr, batch: RowBatch, finder: CombinationFinder) -> _Strings:
        """Return the values of an expression as strings. Other values than strings are formatted as text."""
        names, key, table = list(dict.fromkeys(list_column_names(expression))), id(expression), self._rows.table
        if key not in self._defaults:
            self._defaults[key] = DefaultString.of_expression(expression, batch.read_frame(names))
        default = self._defaults[key]
        if all(batch.is_all_null(name) for name in names):
            return _Strings(np.full(batch.height, NULL_CODE, np.uint32), pa.array([], pa.string()), default.text)
        if len(names) == 1 and (dictionaries := self._rows.dictionaries.get(names[0])) is not None:
            if default.is_plain:
                codes = batch.read_codes(names[0])
                return _Strings(*dictionaries.select(codes), default.text if NULL_CODE in codes else None)
            if dictionaries.string_count * _ROWS_PER_STRING <= max(batch.height, _MIN_ROWS):
                if key not in self._known:
                    strings = dictionaries.list_strings().append(pl.Series([None], dtype=pl.String))
                    self._known[key] = strings.alias(names[0]).to_frame().select(expression.cast(pl.String)).to_series()
                codes = np.minimum(batch.read_codes(names[0]), np.uint32(dictionaries.string_count))
                return _Strings.from_series(self._known[key], codes)
        elif all(name in self._rows.dictionaries or pa.types.is_primitive(table[name].type) for name in names):
            combinations = finder.find(batch.read_keys(names))
            if len(combinations.first_rows) * _ROWS_PER_STRING <= max(batch.height, _MIN_ROWS):
                frame = batch.take(combinations.first_rows).read_frame(names)
                return _Strings.from_series(frame.select(expression.cast(pl.String)).to_series(), combinations.codes)
        strings = batch.read_frame(names).select(expression.cast(pl.String)).to_series()
        return _Strings.from_series(strings, np.arange(batch.height, dtype=np.uint32))


def format_flows(
    links: pl.DataFrame,
    lane_texts: pa.LargeStringArray,
    clock: FileClock,
    programs: Programs,
    *,
    first_id: int,
    name: str,
) -> memoryview:
    """Format flows (arrows from one event to another) as JSON, with a start event and an end event per flow.

    Args:
        links: One row per flow with the columns ``from_ns``, ``from_lane_id``, ``to_ns`` and ``to_lane_id``.
        lane_texts: The JSON members ``pid`` and ``tid`` of each lane, by lane id. Viewers show a lane as a thread.
        clock: The conversion of times in the capture to times in the file.
        programs: The programs to use. They are in use until the result has been written.
        first_id: Id of the first flow. The ids of the following flows are consecutive.
        name: Name of the flows, which is also their category.
    """
    ids = np.arange(first_id, first_id + links.height)
    fields: list[LineField] = []
    for phase, end, tail in (("s", "from", ""), ("f", "to", ',"bp":"e"')):
        times = links.select(clock.converted_time_expr(pl.col(f"{end}_ns"))).to_series().to_numpy()
        lead = f'{{"ph":"{phase}","cat":"{name}","name":"{name}","id":'
        fields += [
            LineField(lines.INTEGER, lead.encode(), ids),
            LineField(lines.THOUSANDTHS, b',"ts":', times),
            LineField(lines.TEXT, b",", links[f"{end}_lane_id"].to_numpy(), lane_texts),
            LineField(lines.CONSTANT, f"{tail}}},\n".encode()),
        ]
    return programs.writer.write(fields, links.height)
