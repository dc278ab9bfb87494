"""Compute the recipe ``diff`` of nsys: the differences between the statistics that one recipe returned for two jobs.

Source: output of nsys 2025.3.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import MissingTableError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLES = ("rank_stats", "all_stats")
"""Tables whose rows are compared."""
FILES = "files"
_NAME, _RANK = "Name", "Rank"


def subtract_statistics(a: Mapping[str, pl.DataFrame], b: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the statistics of job A minus those of job B, by name and rank.

    If only one job has a name, the values of the other job are 0.

    Args:
        a: Tables that a recipe wrote for job A, keyed by name.
        b: Tables that the same recipe wrote for job B.

    Returns:
        ``rank_stats`` and ``all_stats`` with the differences, sorted by name, and ``files`` with the names of the
        captures of both jobs by rank.

    Raises:
        MissingTableError: No table of statistics is in both outputs.
        SchemaError: The tables of the outputs have different columns or no names, or two rows have the same name
            and rank.
    """
    tables = {name: _subtract_tables(name, a[name], b[name]) for name in TABLES if name in a and name in b}
    if not tables:
        raise MissingTableError(
            "the outputs of the two jobs have neither the table rank_stats nor the table all_stats in common",
            hint="compare outputs of the same recipe",
        )
    if FILES in a and FILES in b:
        tables[FILES] = _build_files_table(a[FILES], b[FILES])
    return tables


def _subtract_tables(table: str, a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    """Return the numbers of table ``a`` minus those of table ``b`` in the rows with the same name and rank."""
    if a.schema != b.schema:
        message = f"table {table} does not have the same columns in both outputs"
        raise SchemaError(message, hint="compare outputs of the same recipe")
    if _NAME not in a.columns:
        hint = "compare outputs of a recipe whose rows have names, such as cuda_gpu_kern_sum"
        raise SchemaError(f"table {table} has no column {_NAME!r}", hint=hint)
    keys = [c for c in (_RANK, _NAME) if c in a.columns]
    numbers = [c for c, dtype in a.schema.items() if c not in keys and dtype.is_numeric()]
    for side in (a, b):
        if side.select(keys).is_duplicated().any():
            raise SchemaError(f"table {table} has two rows with the same {' and '.join(keys)}")
    sides = [side.select(*keys, pl.col(numbers).name.suffix(suffix)) for side, suffix in ((a, "_a"), (b, "_b"))]
    joined = sides[0].join(sides[1], on=keys, how="full", coalesce=True)
    differences = (pl.col(f"{c}_a").fill_null(0) - pl.col(f"{c}_b").fill_null(0) for c in numbers)
    columns = [c for c in keys if c != _NAME] + numbers + [_NAME]
    return (
        joined.with_columns(d.alias(c) for d, c in zip(differences, numbers, strict=True))
        .select(columns)
        .sort(_NAME, *(c for c in keys if c != _NAME))
    )


def _build_files_table(a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    """Return the names of the captures of both jobs, one row per rank."""
    names = [f.to_series(0).cast(pl.String).alias(f"File{i}") for i, f in enumerate((a, b), start=1)]
    return pl.concat([n.to_frame() for n in names], how="horizontal")
