"""Filter, search and sort the rows of tables on the server, and return single pages of rows with sums."""

from __future__ import annotations

import json
import operator
import re
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit.errors import TracekitError
from tracekit.view import sql
from tracekit.view.datasets import find_dataset
from tracekit.view.sources import TableInputs
from tracekit.view.tree import compute_row_states, parse_expansion

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from tracekit.view.captures import ShownRows, ViewedCaptures
    from tracekit.view.state import CaptureAggregation

MAX_FILTERS = 200
"""Maximum number of columns in a filter, of conditions per column, and of columns to sort by."""
MAX_TEXT = 32_768
"""Maximum number of characters of a text in a filter. Names of C++ functions may have thousands of characters."""
_NUMBERS: Mapping[str, Callable[[pl.Expr, Any], pl.Expr]] = {
    "equals": operator.eq,
    "notEqual": operator.ne,
    "lessThan": operator.lt,
    "lessThanOrEqual": operator.le,
    "greaterThan": operator.gt,
    "greaterThanOrEqual": operator.ge,
}
MAX_INT64 = 2**63 - 1
MAX_PAGE = 1000
"""Maximum number of rows per request."""
ADDITIVE = re.compile(
    r"(?!(in_stack|wall|avg|average|med|median|min|minimum|max|maximum|stddev|proj_avg)_)(total_\w+|in_\w+_ns|(\w+_)?(time|duration|overhead|idle)_ns|(instance|kernel|op|gpu_op|copy)_count"
    r"|tensor_core_kernel_count|count(_[ab])?|time_[ab]_ns|change_ns|bytes_[ab]|num_calls|instances|launches|gaps|bytes|size_bytes"
    r"|number_ops|number_calls|op_instances|range_instances|self_count)"
)
"""Pattern of the names of columns with a meaningful sum."""


class SortColumn(NamedTuple):
    """A column by which rows are sorted."""

    name: str
    is_descending: bool


def filter_expr(filter_model: Mapping[str, Any], schema: Mapping[str, pl.DataType]) -> pl.Expr | None:
    """Return an expression that is true for rows that match the filters of columns, or None if there are no filters.

    Args:
        filter_model: The filter of each column: a condition with ``type`` and ``filter`` (and ``filterTo``, the end of
            a range), or several ``conditions`` and their ``operator``, which is ``AND`` or ``OR``.
        schema: Types of the columns by name.

    Raises:
        TracekitError: A filter names an unknown column or an unsupported comparison.
    """
    if not isinstance(filter_model, dict) or len(filter_model) > MAX_FILTERS:
        raise TracekitError(f"the filter must be a JSON object with at most {MAX_FILTERS} columns")
    conditions = [_column_filter_expr(name, each, schema) for name, each in filter_model.items()]
    return reduce(operator.and_, conditions) if conditions else None


def search_expr(text: str, schema: Mapping[str, pl.DataType]) -> pl.Expr | None:
    """Return an expression that is true for rows with a string column that contains a search text, ignoring case.

    If there are no string columns, all columns are searched. Return None if the search text is blank.
    """
    if not text.strip():
        return None
    if len(text) > MAX_TEXT:
        raise TracekitError(f"the search text has more than {MAX_TEXT} characters")
    columns = [name for name, data_type in schema.items() if _is_string_type(data_type)] or list(schema)
    return reduce(operator.or_, (_contains_expr(pl.col(name), text.strip()) for name in columns))


def parse_sort_columns(text: str, schema: Mapping[str, pl.DataType]) -> list[SortColumn]:
    """Return the columns of a sort order, such as ``time_ns:desc,name:asc``. The first column takes precedence.

    Raises:
        TracekitError: The sort order is not valid or names an unknown column.
    """
    parts = [part.rpartition(":") for part in text.split(",") if part]
    if len(parts) > MAX_FILTERS:
        raise TracekitError(f"the sort order must have at most {MAX_FILTERS} columns")
    if any(direction not in ("asc", "desc") for _, _, direction in parts):
        raise TracekitError("each column of the sort order must have the direction asc or desc, such as COLUMN:desc")
    return [SortColumn(require_column(name, schema), direction == "desc") for name, _, direction in parts]


def _column_filter_expr(name: object, column_filter: object, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return an expression that is true for rows that match the filter of one column."""
    column = require_column(name, schema)
    if not isinstance(column_filter, dict):
        raise TracekitError(f"the filter of column {column!r} must be a JSON object")
    conditions = column_filter.get("conditions")
    if conditions is None:
        return _condition_expr(column, column_filter, schema[column])
    if not isinstance(conditions, list) or not 0 < len(conditions) <= MAX_FILTERS:
        raise TracekitError(f"the filter of column {column!r} must have between 1 and {MAX_FILTERS} conditions")
    join = operator.or_ if column_filter.get("operator") == "OR" else operator.and_
    return reduce(join, (_condition_expr(column, each, schema[column]) for each in conditions))


def _condition_expr(column: str, condition: object, data_type: pl.DataType) -> pl.Expr:
    """Return an expression that is true for rows that meet a single condition on a column."""
    if not isinstance(condition, dict):
        raise TracekitError(f"each condition on column {column!r} must be a JSON object")
    comparison, value = condition.get("type"), condition.get("filter")
    col = pl.col(column)
    if comparison in ("blank", "notBlank"):
        shown = col.fill_nan(None) if data_type.is_float() else col
        blank = (col.is_null() | (col.cast(pl.String) == "")) if _is_string_type(data_type) else shown.is_null()
        return blank if comparison == "blank" else ~blank
    if data_type.is_numeric():
        number = col.fill_nan(None) if data_type.is_float() else col
        return _number_comparison_expr(number, column, str(comparison), value, condition.get("filterTo"))
    if not isinstance(comparison, str) or comparison not in _TEXT:
        raise TracekitError(
            f"the filter of column {column!r} has the unknown type {str(comparison)[:100]!r}: "
            f"choose one of the types {', '.join(_TEXT)}"
        )
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise TracekitError(
            f"the value of the filter of column {column!r} must be a string of at most {MAX_TEXT:,} characters"
        )
    return _TEXT[comparison](_displayed_strings_expr(col, data_type), value)


def _number_comparison_expr(number: pl.Expr, column: str, comparison: str, value: Any, upper: Any) -> pl.Expr:
    """Return an expression that compares the numbers of a column with a value, or with a range of values."""
    if comparison == "inRange":
        if not (_is_number(value) and _is_number(upper)):
            raise TracekitError(f"the filter of column {column!r} has the type inRange, which requires two numbers")
        return number.is_between(pl.lit(value), pl.lit(upper))
    if comparison not in _NUMBERS:
        raise TracekitError(
            f"the filter of column {column!r} has the unknown type {comparison[:100]!r}: "
            f"choose one of the types {', '.join((*_NUMBERS, 'inRange'))}"
        )
    if not _is_number(value):
        raise TracekitError(f"the value of the filter of column {column!r} must be a number that fits into 64 bits")
    return _NUMBERS[comparison](number, value)


def _is_number(value: object) -> bool:
    """Return whether a value is a number that fits into 64 bits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def _is_string_type(data_type: pl.DataType) -> bool:
    """Return whether values of a data type are strings."""
    return data_type in (pl.String, pl.Categorical, pl.Enum)


def _displayed_strings_expr(col: pl.Expr, data_type: pl.DataType) -> pl.Expr:
    """Return an expression for the strings with which a page displays the values of a non-numeric column."""
    if data_type == pl.Boolean:
        return pl.when(col).then(pl.lit("yes")).when(~col).then(pl.lit("no")).otherwise(None)
    return col.cast(pl.String)


def _contains_expr(col: pl.Expr, text: str) -> pl.Expr:
    """Return an expression that is true if a value contains a string, ignoring case, and false for null."""
    return col.cast(pl.String).str.contains(f"(?i){pl.escape_regex(text)}").fill_null(value=False)


def require_column(name: object, schema: Mapping[str, pl.DataType]) -> str:
    """Return a column name unchanged, or raise an error if the table does not have this column."""
    if not isinstance(name, str) or name not in schema:
        raise TracekitError(
            f"the filter or the sort order uses the column {str(name)[:100]!r}, which the table does not have"
        )
    return name


def _lower_case_expr(col: pl.Expr) -> pl.Expr:
    """Return an expression for lower-case strings. Nulls become empty strings."""
    return col.fill_null("").str.to_lowercase()


_TEXT: Mapping[str, Callable[[pl.Expr, str], pl.Expr]] = {
    "contains": _contains_expr,
    "notContains": lambda col, text: ~_contains_expr(col, text),
    "equals": lambda col, text: _lower_case_expr(col) == text.lower(),
    "notEqual": lambda col, text: _lower_case_expr(col) != text.lower(),
    "startsWith": lambda col, text: _lower_case_expr(col).str.starts_with(text.lower()),
    "endsWith": lambda col, text: _lower_case_expr(col).str.ends_with(text.lower()),
}


@dataclass(frozen=True)
class Query:
    """A query for the rows of a table, with filters and a sort order.

    Attributes:
        table: Name of the table.
        at: The capture and its aggregation.
        arguments: Names and values of the arguments of the table, such as values of the selected row in the table
            above it.
        filter: The filters of columns as JSON, as for ``filter_expr``.
        sort: The columns to sort by, as for ``parse_sort_columns``.
        search: String that a column of a matching row contains.
        condition: SQL condition, as written after WHERE.
        toggled: Keys of the rows of a tree that are expanded or collapsed individually, separated by commas.
    """

    table: str
    at: CaptureAggregation
    arguments: tuple[tuple[str, str], ...] = ()
    filter: str = "{}"
    sort: str = ""
    search: str = ""
    condition: str = ""
    toggled: str = ""

    @property
    def is_filtered(self) -> bool:
        """Whether the query may omit rows of the table."""
        return (self.filter, self.search.strip(), self.condition.strip()) != ("{}", "", "")

    @property
    def is_unfiltered_and_unsorted(self) -> bool:
        """Whether the rows are neither filtered nor sorted. Otherwise, a tree is shown as a flat table."""
        return not self.is_filtered and not self.sort

    def create_rows_cache_key(self) -> Hashable:
        """Return the cache key of the unfiltered rows."""
        return (self.table, self.at, self.arguments)


class PageOfRows(NamedTuple):
    """Rows of a table that a page shows.

    Attributes:
        rows: The requested rows as dictionaries, each with an additional key ``_id`` that identifies the row. The rows
            of a tree also have the key ``_expanded``: whether the row is expanded, or None if it has no children.
        matching: Number of rows that match the filters. For a tree, the number of visible rows.
        total: Number of rows of the table.
        sums: Rows below the table if rows are filtered: the sums over the matching rows, and their percentages of the
            sums over all rows.
        is_tree: Whether the rows are shown as a tree, which hides the descendants of collapsed rows.
    """

    rows: list[dict[str, Any]]
    matching: int
    total: int
    sums: list[dict[str, Any]]
    is_tree: bool = False


def load_rows(captures: ViewedCaptures, query: Query) -> ShownRows:
    """Return all rows of the table that a query names, from the cache if possible."""
    inputs = TableInputs(
        captures[query.at].get_aggregated_trace(query.at),
        dict(query.arguments),
        captures,
        query.at,
    )
    return captures.get_rows(query.create_rows_cache_key(), lambda: find_dataset(query.table).read_rows(inputs))


def compute_matching_row_numbers(captures: ViewedCaptures, query: Query) -> pl.Series | None:
    """Return the row numbers of the rows that match a query, in the sort order of the query.

    Return None if the query neither filters nor sorts the rows.
    """
    if query.is_unfiltered_and_unsorted:
        return None
    return captures.get_row_numbers(
        query, lambda: _compute_matching_row_numbers(load_rows(captures, query).frame, query)
    )


def _compute_matching_row_numbers(frame: pl.DataFrame, query: Query) -> pl.Series:
    """Compute the row numbers of the rows that match a query, in the sort order of the query."""
    schema = frame.schema
    number = "_row"
    lazy = frame.lazy().with_row_index(number)
    conditions = [
        filter_expr(parse_filter_model(query.filter), schema),
        search_expr(query.search, schema),
        sql.where_expr(query.condition, schema) if query.condition.strip() else None,
    ]
    lazy = lazy.filter(*(condition for condition in conditions if condition is not None))
    columns = parse_sort_columns(query.sort, schema)
    if columns:
        keys = [_sort_key_expr(name, schema[name]) for name, _ in columns]
        descending = [reverse for _, reverse in columns]
        lazy = lazy.sort([*keys, number], descending=[*descending, False], nulls_last=True)
    try:
        return lazy.select(number).collect()[number]
    except pl.exceptions.PolarsError as error:
        if isinstance(error, pl.exceptions.InvalidOperationError) and query.condition.strip():
            message = "an integer in the condition exceeds 64 bits"
            raise TracekitError(message, hint="write 1.0 * COLUMN to compute with floats") from error
        message = f"{_describe_filter_inputs(query)} cannot be evaluated for the values of the table"
        raise TracekitError(message, hint="enter another filter, search text or condition") from error


def _describe_filter_inputs(query: Query) -> str:
    """Return the subject of an error message: the inputs of a query that filter or sort, such as "the search text"."""
    filtered = ", ".join(map(repr, parse_filter_model(query.filter)))
    subjects = {
        f"the filter of {filtered}": filtered,
        "the search text": query.search.strip(),
        "the SQL condition": query.condition.strip(),
        "the sort order": query.sort,
    }
    return " or ".join(subject for subject, is_set in subjects.items() if is_set)


def _sort_key_expr(name: str, data_type: pl.DataType) -> pl.Expr:
    """Return an expression for the sort keys of a column. Dictionary-encoded strings are sorted by code points."""
    return pl.col(name).cast(pl.String) if data_type in (pl.Categorical, pl.Enum) else pl.col(name)


def parse_filter_model(text: str) -> dict[str, Any]:
    """Parse the filters of columns, which are JSON text.

    Raises:
        TracekitError: The text is not valid JSON, or its value is not an object.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise TracekitError("the filter in the URL is not valid JSON") from error
    if not isinstance(value, dict):
        raise TracekitError(f"the filter must be a JSON object, but its type is {type(value).__name__}")
    return value


def read_matching_frame(captures: ViewedCaptures, query: Query) -> pl.DataFrame:
    """Return all rows that match a query, in sorted order."""
    frame = load_rows(captures, query).frame
    order = compute_matching_row_numbers(captures, query)
    return frame if order is None else frame[order]


def load_page(captures: ViewedCaptures, query: Query, start: int, stop: int) -> PageOfRows:
    """Return rows ``start`` to ``stop`` (exclusive) among the rows that match a query.

    If the query filters the rows, the result contains sums over all matches.
    """
    if not 0 <= start <= stop <= start + MAX_PAGE:
        raise TracekitError(f"rows {start} to {stop} were requested, but a request can ask for at most {MAX_PAGE} rows")
    frame, described = load_rows(captures, query).frame, find_dataset(query.table)
    order, expanded = _compute_displayed_row_numbers(captures, query, frame)
    ids = pl.Series(range(start, min(stop, frame.height))) if order is None else order.slice(start, stop - start)
    part = frame.slice(start, stop - start) if order is None else frame[ids]
    named = part[described.key].cast(pl.String).to_list() if described.key else [str(each) for each in ids.to_list()]
    cells = to_cell_values(part).to_dicts()
    if expanded is not None:
        cells = [{**row, "_expanded": state} for row, state in zip(cells, expanded[ids], strict=True)]
    sums = []
    if described.has_sums and query.is_filtered:
        sums = captures.get_cached_result(
            ("sums", query), lambda: compute_summary_rows(frame, compute_matching_row_numbers(captures, query))
        )
    return PageOfRows(
        [{"_id": name, **row} for name, row in zip(named, cells, strict=True)],
        frame.height if order is None else order.len(),
        frame.height,
        sums,
        is_tree=expanded is not None,
    )


def _compute_displayed_row_numbers(
    captures: ViewedCaptures, query: Query, frame: pl.DataFrame
) -> tuple[pl.Series | None, pl.Series | None]:
    """Return the row numbers of the displayed rows in order, and which rows of a tree are expanded.

    The row numbers are None for all rows in the order of the frame. The latter is None if the rows are not a tree.
    """
    tree = find_dataset(query.table).tree
    if tree is None or not query.is_unfiltered_and_unsorted:
        return compute_matching_row_numbers(captures, query), None
    states = compute_row_states(frame, tree, parse_expansion(dict(query.arguments), query.toggled))
    return states["visible"].arg_true(), states["expanded"]


def find_position(captures: ViewedCaptures, query: Query, key: str) -> int | None:
    """Return the position of the row with a key among the displayed rows, or None if it is not displayed.

    Args:
        captures: The captures of the server.
        query: The query, of a table whose rows have keys.
        key: Key of the row, as text.
    """
    frame, column = load_rows(captures, query).frame, find_dataset(query.table).key
    if column is None:
        return None
    numbers = (frame[column].cast(pl.String) == key).arg_true()
    order, _ = _compute_displayed_row_numbers(captures, query, frame)
    if order is not None and numbers.len():
        numbers = (order == numbers[0]).arg_true()
    return int(numbers[0]) if numbers.len() else None


def to_cell_values(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with its values in the form in which cells of a table show them.

    Booleans become "yes" and "no", nested values become JSON, and NaN becomes null.
    """
    return frame.select(_to_cell_column(frame[name]) for name in frame.columns)


def _to_cell_column(column: pl.Series) -> pl.Series:
    kind = column.dtype
    if kind == pl.Boolean:
        return column.replace_strict({True: "yes", False: "no"}, return_dtype=pl.String)
    if kind.is_float():
        return column.fill_nan(None)
    if kind.is_numeric() or kind == pl.String:
        return column
    if kind.is_nested():
        return pl.Series(
            column.name, [None if v is None else json.dumps(v, default=str) for v in column.to_list()], pl.String
        )
    return column.cast(pl.String)


def exact_sum_expr(column: pl.Series) -> pl.Expr:
    """Return an expression for the sum of a numeric column, in a type that can represent the sum of all its rows.

    polars adds integers in their own type, in which the sum may overflow.
    """
    if not column.dtype.is_integer():
        return pl.col(column.name).sum()
    largest = max(abs(int(each)) for each in (column.min() or 0, column.max() or 0))  # type: ignore[arg-type]
    kind = pl.Int64 if largest * len(column) <= MAX_INT64 else pl.Int128
    return pl.col(column.name).cast(kind).sum()


def compute_summary_rows(frame: pl.DataFrame, matching: pl.Series | None) -> list[dict[str, Any]]:
    """Return the rows below a table: sums over the matching rows, and their percentages of the sums over all rows.

    Args:
        frame: All rows of the table.
        matching: Row numbers of the rows that match the filters. None for all rows.
    """
    columns = [c for c in frame.columns if frame.schema[c].is_numeric() and ADDITIVE.fullmatch(c)]
    if not columns or not frame.height:
        return []
    summands = frame.select(columns)
    selected = summands if matching is None else summands[matching]
    total = [exact_sum_expr(frame[c]) for c in columns]
    totals, parts = (each.select(total).row(0, named=True) for each in (summands, selected))
    shares = {c: f"{parts[c] * 100 / totals[c]:.1f}%" if totals[c] else "" for c in columns}
    return [
        {"_label": f"Sum of {_format_number_of_rows(selected.height)}", **parts},
        {"_label": f"Share of {'all ' * (frame.height > 1)}{_format_number_of_rows(frame.height)}", **shares},
    ]


def _format_number_of_rows(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"
