"""Rows of a table that meet a condition, in an order, some columns of them: what ``tracekit rows`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.errors import SchemaError, choices, first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracekit.trace import Trace

DURATION = "duration_ns"
_TIMES = ("start_ns", "end_ns")
_ENCODED = " as it is kept"


def query(
    trace: Trace,
    table: str,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    sort: Sequence[str] | None = None,
    wide: bool = False,
) -> pl.DataFrame:
    """Return rows of a table.

    Args:
        trace: The trace.
        table: Name of a table.
        columns: Columns to return; all of the table if None. ``duration_ns`` is known where there are times.
        where: Condition in SQL, a single expression; rows for which it is true are returned.
        sort: Columns to sort by; one with ``-`` before it descends. Nulls come last, equal rows keep their order.
        wide: Whether the metrics of Nsight Compute stand side by side, one row per launch.

    Raises:
        SchemaError: There is no such table or column.
        click.BadParameter: The condition is none.
    """
    import polars as pl

    rows = trace.wide().lazy() if wide else trace.frame(table)
    names = rows.collect_schema().names()
    rows = _with_duration(rows, names)
    known = [*names, *({DURATION} - set(names) if set(_TIMES) <= set(names) else ())]
    condition = None if where is None else _condition(rows, where, known, table)
    order = [(name.removeprefix("-"), name.startswith("-")) for name in sort or ()]
    for name in [*(columns or ()), *(name for name, _ in order)]:
        _check(name, known, table)
    texts = [name for name, kind in rows.collect_schema().items() if kind == pl.Categorical]
    if condition is not None:
        rows = _filtered(rows, condition, texts)
    if order:
        by = [pl.col(name).cast(pl.String) if name in texts else pl.col(name) for name, _ in order]
        rows = rows.sort(by, descending=[down for _, down in order], nulls_last=True, maintain_order=True)
    return rows.select(columns or names).collect()


def _filtered(rows: pl.LazyFrame, condition: pl.Expr, texts: Sequence[str]) -> pl.LazyFrame:
    """Keep the rows that meet a condition, in which dictionary-encoded texts are plain texts."""
    import polars as pl

    named = [name for name in condition.meta.root_names() if name in texts]
    plain = rows.with_columns(
        *(pl.col(name).alias(f"{name}{_ENCODED}") for name in named), *(pl.col(name).cast(pl.String) for name in named)
    )
    return plain.filter(condition).with_columns(pl.col(f"{name}{_ENCODED}").alias(name) for name in named)


def _with_duration(rows: pl.LazyFrame, names: Sequence[str]) -> pl.LazyFrame:
    import polars as pl

    if DURATION in names or not set(_TIMES) <= set(names):
        return rows
    return rows.with_columns((pl.col("end_ns") - pl.col("start_ns")).alias(DURATION))


def _condition(rows: pl.LazyFrame, where: str, known: Sequence[str], table: str) -> pl.Expr:
    """Return a condition as an expression; it names columns of the table and nothing else."""
    import polars as pl

    try:
        condition = pl.sql_expr(where)
        named = condition.meta.root_names()
    except (pl.exceptions.PolarsError, pl.exceptions.SQLInterfaceError) as e:
        raise click.BadParameter(f"{where!r} is not a condition: {first_line(e)}", param_hint="--where") from e
    for name in named:
        if name in where:  # polars names what it makes itself, such as subqueries
            _check(name, known, table)
    types = {n: pl.String() if kind == pl.Categorical else kind for n, kind in rows.collect_schema().items()}
    try:
        kind = pl.DataFrame(schema=types).select(condition.alias("keep")).schema["keep"]
    except pl.exceptions.PolarsError as e:
        raise click.BadParameter(f"{where!r} cannot be computed: {first_line(e)}", param_hint="--where") from e
    if kind not in (pl.Boolean, pl.Null):
        raise click.BadParameter(f"{where!r} is not a condition but a value of type {kind}", param_hint="--where")
    return condition


def _check(name: str, known: Sequence[str], table: str) -> None:
    if name not in known:
        raise SchemaError(f"table {table!r} has no column {name!r}", hint=choices("columns", known, name))
