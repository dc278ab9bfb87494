"""Strategies that follow from the declarations: valid Arrow tables of any declared table."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st
from tracekit import schemas
from tracekit.plan.recorded import MAX_TIME_NS, MAX_TOTAL_NS, TIME_COLUMNS
from tracekit.schemas import Column, TableSchema

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES: dict[str, st.SearchStrategy[object]] = {
    "int64": st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 9),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 9),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": TEXT,
    "binary": st.binary(max_size=8),
    "dictionary": TEXT | st.sampled_from(["a", "b", "c"]),
}

TIMES = st.integers(-MAX_TIME_NS, MAX_TIME_NS) | st.integers(0, 9)
"""Times that a trace accepts."""
MAX_DURATION_NS = MAX_TOTAL_NS // 8
"""Durations that a trace accepts in each of a few rows."""


def values(column: Column) -> st.SearchStrategy[object]:
    """Values that a declared column may hold."""
    of_type = TIMES if column.name in TIME_COLUMNS else VALUES[column.type]
    plain = st.sampled_from(column.values) if column.values else of_type
    return st.none() | plain if column.nullable else plain


def rows(schema: TableSchema) -> st.SearchStrategy[dict[str, object]]:
    """Rows of a declared table, none of which ends before it starts."""
    row = st.fixed_dictionaries({c.name: values(c) for c in schema.columns})
    if not {"start_ns", "end_ns"} <= set(schema.names):
        return row

    def ordered(found: dict[str, object]) -> dict[str, object]:
        ends = [found["start_ns"], found["end_ns"]]
        start, end = ends if None in ends else sorted(ends)  # type: ignore[type-var]
        if isinstance(start, int) and isinstance(end, int):
            end = min(end, start + MAX_DURATION_NS)
        return {**found, "start_ns": start, "end_ns": end}

    return row.map(ordered)


def tables(schema: TableSchema, *, max_rows: int = 6) -> st.SearchStrategy[pa.Table]:
    """Arrow tables of a declared table."""
    arrow = schemas.arrow_schema(schema)
    return st.lists(rows(schema), max_size=max_rows).map(lambda r: pa.Table.from_pylist(r, schema=arrow))
