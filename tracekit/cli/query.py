"""Filter, sort and select the rows of a table for ``tracekit rows``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.errors import SchemaError, create_choices_hint, get_first_line_of_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracekit.cli.options import TraceOrSet
    from tracekit.text.names import TableName

DURATION = "duration_ns"
_TIMES = ("start_ns", "end_ns")
_ENCODED_SUFFIX = " (dictionary-encoded)"


def select_rows(
    trace: TraceOrSet,
    table: TableName,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    sort: Sequence[str] | None = None,
    wide: bool = False,
) -> pl.DataFrame:
    """Return the rows of a table that match a condition, sorted, with only the selected columns.

    Args:
        trace: The trace.
        table: Name of the table.
        columns: Names of the columns to return. If None, all columns of the table are returned. If the table
            has a start and an end, ``duration_ns`` can also be used.
        where: An SQL expression. Rows for which it is true are returned. If None, all rows are returned.
        sort: Names of the columns to sort by, with ``-`` before a name for descending order. Nulls are last, and the
            sort is stable.
        wide: Whether to return one row per Nsight Compute launch, with one column per metric.

    Raises:
        SchemaError: The table or a column does not exist.
        click.BadParameter: ``where`` is not a valid condition, or cannot be computed for the values of the table, or a
            column is selected twice.
    """
    import polars as pl

    _check_columns_are_distinct(columns or ())
    rows = _read_wide_ncu_metrics(trace).lazy() if wide else trace.frame(table)
    names = rows.collect_schema().names()
    rows = _add_duration_column(rows, names)
    known = [*names, *({DURATION} - set(names) if set(_TIMES) <= set(names) else ())]
    condition = None if where is None else _parse_condition_expr(rows, where, known, table)
    order = [(name.removeprefix("-"), name.startswith("-")) for name in sort or ()]
    for name in [*(columns or ()), *(name for name, _ in order)]:
        _check_column(name, known, table)
    encoded = [name for name, kind in rows.collect_schema().items() if kind == pl.Categorical]
    if condition is not None:
        rows = _filter_rows(rows, condition, encoded)
    if order:
        by = [pl.col(name).cast(pl.String) if name in encoded else pl.col(name) for name, _ in order]
        rows = rows.sort(by, descending=[down for _, down in order], nulls_last=True, maintain_order=True)
    try:
        return rows.select(columns or names).collect()
    except pl.exceptions.PolarsError as e:
        if where is None:
            raise
        raise _create_condition_error(where, e) from e


def _check_columns_are_distinct(columns: Sequence[str]) -> None:
    """Check that no column is selected twice.

    Raises:
        click.BadParameter: A column is repeated.
    """
    repeated = next((name for n, name in enumerate(columns) if name in columns[:n]), None)
    if repeated is not None:
        raise click.BadParameter(f"column {repeated!r} is listed twice", param_hint="--columns")


def _read_wide_ncu_metrics(trace: TraceOrSet) -> pl.DataFrame:
    """Return the Nsight Compute results with one column per metric and, for a set, the column ``rank``."""
    from tracekit.trace import Trace

    return trace.wide() if isinstance(trace, Trace) else trace.frames(Trace.wide)


def _filter_rows(rows: pl.LazyFrame, condition: pl.Expr, encoded_columns: Sequence[str]) -> pl.LazyFrame:
    """Return the rows that match a condition. The condition sees dictionary-encoded columns as plain strings."""
    import polars as pl

    named = [name for name in dict.fromkeys(condition.meta.root_names()) if name in encoded_columns]
    plain = rows.with_columns(
        *(pl.col(name).alias(f"{name}{_ENCODED_SUFFIX}") for name in named),
        *(pl.col(name).cast(pl.String) for name in named),
    )
    return plain.filter(condition).with_columns(pl.col(f"{name}{_ENCODED_SUFFIX}").alias(name) for name in named)


def _add_duration_column(rows: pl.LazyFrame, column_names: Sequence[str]) -> pl.LazyFrame:
    """Add the column ``duration_ns`` to rows with a start and an end. Other rows are returned unchanged."""
    import polars as pl

    if DURATION in column_names or not set(_TIMES) <= set(column_names):
        return rows
    return rows.with_columns((pl.col("end_ns") - pl.col("start_ns")).alias(DURATION))


def _parse_condition_expr(rows: pl.LazyFrame, where: str, known_columns: Sequence[str], table: str) -> pl.Expr:
    """Return the expression for an SQL condition, after a check that it uses only columns of the table."""
    import polars as pl

    try:
        condition = pl.sql_expr(where)
        named = condition.meta.root_names()
    except (pl.exceptions.PolarsError, pl.exceptions.SQLInterfaceError) as e:
        raise click.BadParameter(
            f"{where!r} is not a condition: {get_first_line_of_message(e)}", param_hint="--where"
        ) from e
    except UnicodeEncodeError as e:
        message = f"{where!r} is not a condition, because it is not valid UTF-8"
        raise click.BadParameter(message, param_hint="--where") from e
    for name in named:
        if name in where:  # polars invents names for subqueries, which are not columns of the table
            _check_column(name, known_columns, table)
    types = {n: pl.String() if kind == pl.Categorical else kind for n, kind in rows.collect_schema().items()}
    try:
        kind = pl.DataFrame(schema=types).select(condition.alias("keep")).schema["keep"]
    except pl.exceptions.PolarsError as e:
        raise _create_condition_error(where, e) from e
    if kind not in (pl.Boolean, pl.Null):
        raise click.BadParameter(f"{where!r} is not a condition but a value of type {kind}", param_hint="--where")
    return condition


def _create_condition_error(where: str, error: Exception) -> click.BadParameter:
    return click.BadParameter(f"{where!r} cannot be computed: {get_first_line_of_message(error)}", param_hint="--where")


def _check_column(name: str, known_columns: Sequence[str], table: str) -> None:
    """Check that a column exists.

    Raises:
        SchemaError: The column is not one of ``known_columns``.
    """
    if name not in known_columns:
        raise SchemaError(
            f"table {table!r} has no column {name!r}", hint=create_choices_hint("columns", known_columns, name)
        )
