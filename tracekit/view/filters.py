"""Translate filters, searches and sort orders of AG Grid into polars expressions."""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_FILTERS = 200
"""Maximum number of columns in a filter, of conditions per column, and of columns to sort by."""
MAX_TEXT = 32_768
"""Maximum number of characters of a text in a filter. Names of C++ functions may have thousands of characters."""


class SortColumn(NamedTuple):
    """A column by which rows are sorted."""

    name: str
    is_descending: bool


def filter_expr(filter_model: Mapping[str, Any], schema: Mapping[str, pl.DataType]) -> pl.Expr | None:
    """Return an expression that is true for rows that match a filter model of AG Grid, or None if the model is empty.

    Args:
        filter_model: The filter of each column: a condition with ``type`` and ``filter``, or several ``conditions`` and
            their ``operator``.
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


def parse_sort_columns(sort_model: Sequence[Any], schema: Mapping[str, pl.DataType]) -> list[SortColumn]:
    """Return the columns of a sort model of AG Grid.

    Raises:
        TracekitError: The sort model is not valid or names an unknown column.
    """
    if not isinstance(sort_model, list) or len(sort_model) > MAX_FILTERS:
        raise TracekitError(f"the sort order must be a JSON list of at most {MAX_FILTERS} columns")
    columns = []
    for each in sort_model:
        if not isinstance(each, dict) or each.get("sort") not in ("asc", "desc"):
            raise TracekitError("each column of the sort order must have the direction asc or desc")
        columns.append(SortColumn(_require_column(each.get("colId"), schema), each["sort"] == "desc"))
    return columns


def _column_filter_expr(name: object, column_filter: object, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return an expression that is true for rows that match the filter of one column."""
    column = _require_column(name, schema)
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


def _require_column(name: object, schema: Mapping[str, pl.DataType]) -> str:
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
_NUMBERS: Mapping[str, Callable[[pl.Expr, Any], pl.Expr]] = {
    "equals": operator.eq,
    "notEqual": operator.ne,
    "lessThan": operator.lt,
    "lessThanOrEqual": operator.le,
    "greaterThan": operator.gt,
    "greaterThanOrEqual": operator.ge,
}
