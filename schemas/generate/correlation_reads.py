"""The columns that correlation reads for each column that it adds, found by running it on tables with one row.

They are stored in ``schemas/arrow/_correlation_reads.json``, so that no process that correlates has to find them again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.core.correlate import Correlation
from tracekit.core.reads import find_read_columns
from tracekit.plan.stages import PROJECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

FILE = schemas.FOLDER / "arrow" / "_correlation_reads.json"

Reads = dict[str, list[str]]


def all_reads() -> dict[str, dict[str, Reads]]:
    """Return the names of the columns that are read, by table to read, by added column, by table."""
    computed = {PROJECTIONS: {schemas.ALL_COLUMNS: reads_of(PROJECTIONS, ())}}
    added = {name: names for name in schemas.table_names() if (names := added_columns(name))}
    return {name: {c: reads_of(name, (c,)) for c in names} for name, names in added.items()} | computed


def added_columns(name: str) -> tuple[str, ...]:
    """Return the names of the columns that correlation adds to a table."""
    return tuple(schemas.correlated_schema(name).names[len(schemas.table(name).names) :])


def reads_of(name: str, columns: Sequence[str]) -> Reads:
    """Return the names of the columns that correlation reads to compute some columns, by table."""

    def compute(frames: Callable[[str], pl.LazyFrame]) -> None:
        correlation = Correlation(frames)
        if name == PROJECTIONS:
            correlation.compute_projections()
        else:
            correlation.compute_columns(name, columns)

    reads = find_read_columns(compute, lambda table: schemas.create_example_frame(schemas.table(table)))
    return dict(sorted(reads.items()))  # polars reads the sides of a join in any order


def text() -> str:
    """Return the content of the file, with one line per added column."""
    tables = []
    for name, columns in all_reads().items():
        lines = [f"    {json.dumps(column)}: {json.dumps(reads)}" for column, reads in columns.items()]
        tables.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(tables) + "\n}\n"
