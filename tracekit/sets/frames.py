"""Concatenate the tables of the captures of a set, with one open capture at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.registry.tables import Tables
from tracekit.system.forks import check_polars_can_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import polars as pl
    import pyarrow as pa

    from tracekit.schemas import TableSchema
    from tracekit.sets.member import Member
    from tracekit.text.names import TableName
    from tracekit.trace import Trace

RANK, RECORDED_RANK = "rank", "recorded_rank"
"""Name of the added column with the rank of each row, and new name of a recorded column ``rank``."""
_RANK_COLUMN = schemas.Column(RANK, "int64", "Rank of the capture that contains the row.")


def add_rank_to_schema(schema: TableSchema) -> TableSchema:
    """Return the schema of a table with an additional first column ``rank``, which becomes part of the key."""
    own = [replace(c, name=RECORDED_RANK) if c.name == RANK else c for c in schema.columns]
    return replace(schema, columns=(_RANK_COLUMN, *own), key=(RANK, *(k for k in schema.key if k != RANK)))


def add_rank_column(frame: pl.DataFrame, rank: int) -> pl.DataFrame:
    """Return a frame with an additional first column ``rank``. A recorded column ``rank`` is renamed."""
    import polars as pl

    own = frame.rename({RANK: RECORDED_RANK}, strict=False)
    return own.select(pl.lit(rank, pl.Int64).alias(RANK), pl.all())


def convert_to_trace_column_name(column: str) -> str:
    """Return the name that a column of a multi-rank table has in the trace of one rank.

    ``column`` must not be the added column ``rank``, which the trace does not have.
    """
    return RANK if column == RECORDED_RANK else column


def scan_members(
    members: Sequence[Member], open_member: Callable[[Member], Trace], name: TableName, schema: TableSchema
) -> pl.LazyFrame:
    """Return a table of all members as a LazyFrame. Collecting the frame opens the members one at a time.

    Args:
        members: The members, in the order in which their rows are returned.
        open_member: Function that opens the trace of a member.
        name: Name of the table.
        schema: Schema of the table, with the column ``rank``.
    """
    from polars.io.plugins import register_io_source

    check_polars_can_run()
    columns = schemas.polars_schema(schema)

    def read_batches(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        check_polars_can_run()
        names = list(columns) if with_columns is None else with_columns or [RANK]
        left = n_rows
        for member in _select_members(members, predicate):
            if left is not None and left <= 0:
                return
            with open_member(member) as trace:
                frame = _read_columns(trace, name, names, member.rank)
            frame = frame if left is None else frame.head(left)
            left = None if left is None else left - frame.height
            yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(read_batches, schema=columns)


def _select_members(members: Sequence[Member], predicate: pl.Expr | None) -> list[Member]:
    """Return the members whose rows may match a filter: all members, unless the filter uses only ``rank``."""
    import polars as pl

    if predicate is None or set(predicate.meta.root_names()) != {RANK}:
        return list(members)
    ranks = pl.DataFrame({RANK: [m.rank for m in members]}, schema={RANK: pl.Int64})
    chosen = set(ranks.filter(predicate)[RANK])
    return [m for m in members if m.rank in chosen]


def _read_columns(trace: Trace, name: TableName, columns: Sequence[str], rank: int) -> pl.DataFrame:
    """Read columns of a table of one member, including ``rank`` if it is requested."""
    import polars as pl

    own = [c for c in columns if c != RANK]
    if not own:
        return pl.DataFrame({RANK: pl.repeat(rank, trace.count(name), dtype=pl.Int64, eager=True)})
    frame = trace.frame(name).select(pl.col(convert_to_trace_column_name(c)).alias(c) for c in own).collect()
    return frame.select(pl.lit(rank, pl.Int64).alias(RANK) if c == RANK else pl.col(c) for c in columns)


class RankedTables(Tables):
    """The tables of one member with an additional first column ``rank``. A recorded column ``rank`` is renamed."""

    def __init__(self, tables: Tables, rank: int) -> None:
        self._tables = tables
        self._rank = rank

    def schema(self, name: str) -> TableSchema:
        """Return the schema of a table, with the column ``rank``."""
        return add_rank_to_schema(self._tables.schema(name))

    def count_many(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the number of rows of several tables, by table name."""
        return self._tables.count_many(names)

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
        """Return the requested columns of several tables, by table name."""
        recorded = {name: list_recorded_columns(self.schema(name), names) for name, names in columns.items()}
        tables = self._tables.read_many(recorded)
        return {n: add_rank_to_table(self.schema(n), columns[n], self._rank, table) for n, table in tables.items()}


def list_recorded_columns(schema: TableSchema, columns: Sequence[str]) -> list[str]:
    """Return the columns that are read from each member for columns of all ranks: at least one, to count its rows."""
    return [convert_to_trace_column_name(c) for c in columns if c != RANK] or [
        convert_to_trace_column_name(schema.names[1])
    ]


def add_rank_to_table(schema: TableSchema, columns: Sequence[str], rank: int, recorded: pa.Table) -> pa.Table:
    """Return the table of one member with the requested columns, which may include ``rank``.

    Args:
        schema: Schema of the table, with the column ``rank``.
        columns: Names of the columns of the result.
        rank: Value of the column ``rank``.
        recorded: The columns that ``list_recorded_columns`` lists.
    """
    import pyarrow as pa

    arrays = dict(zip((c for c in columns if c != RANK), recorded.columns, strict=False))
    arrays[RANK] = pa.repeat(pa.scalar(rank, pa.int64()), recorded.num_rows)
    return pa.table([arrays[c] for c in columns], schema=schemas.arrow_schema(schema, columns))
