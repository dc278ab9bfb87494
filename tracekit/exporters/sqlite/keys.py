"""Determine which primary keys and foreign keys of the declared tables are valid in a trace.

A capture can refer to processes, threads or streams that it does not list. SQLite would report such references as
violations, so a foreign key is declared only if all rows satisfy it. A primary key is declared only if it is unique
and not null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.registry.tables import scan_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import polars as pl

    from tracekit.registry.tables import Tables
    from tracekit.schemas import TableSchema


@dataclass(frozen=True, slots=True, order=True)
class ForeignKey:
    """A reference from columns of a table to the key of a parent table.

    Attributes:
        table: Name of the table that contains the reference.
        columns: Names of the referring columns of this table.
        parent: Name of the parent table.
        key: Names of the key columns of ``parent``, in the order of the corresponding ``columns``.
    """

    table: str
    columns: tuple[str, ...]
    parent: str
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that are valid in a trace.

    Attributes:
        unique: Names of the tables whose declared key can be a primary key, because it is unique and not null.
        foreign: The foreign keys whose references all exist.
    """

    unique: frozenset[str]
    foreign: tuple[ForeignKey, ...]

    def add_leading_column(self, name: str) -> Keys:
        """Return the keys with an additional first column, such as ``rank`` in a database of several traces.

        All tables of the database have this column. A table whose declared key already contains a column of this name
        gets no primary key, and no foreign key refers to this table.
        """
        unique = frozenset(table for table in self.unique if name not in schemas.table(table).key)
        foreign = (ForeignKey(f.table, (name, *f.columns), f.parent, (name, *f.key)) for f in self.foreign)
        return Keys(unique, tuple(f for f in foreign if f.parent in unique))

    def get_foreign_keys(self, table: str) -> list[ForeignKey]:
        """Return the foreign keys of a table."""
        return [key for key in self.foreign if key.table == table]


def find_valid_keys(tables: Tables, schemas_by_name: Mapping[str, TableSchema]) -> Keys:
    """Return the primary and foreign keys of the given tables that are valid in a trace.

    Args:
        tables: The tables of the trace.
        schemas_by_name: The schemas of the tables by name.
    """
    unique = frozenset(name for name, schema in schemas_by_name.items() if _has_unique_key(tables, schema))
    candidates = [
        key for schema in schemas_by_name.values() for key in list_declared_foreign_keys(schema, schemas_by_name)
    ]
    return Keys(
        unique, tuple(key for key in candidates if key.parent in unique and _has_only_valid_references(tables, key))
    )


def intersect_keys(keys: Iterable[Keys]) -> Keys:
    """Return the primary and foreign keys that are valid in all traces, given the valid keys of each trace."""
    first, *others = keys
    unique = first.unique.intersection(*(k.unique for k in others))
    return Keys(unique, tuple(f for f in first.foreign if f.parent in unique and all(f in k.foreign for k in others)))


def list_declared_foreign_keys(schema: TableSchema, tables: Mapping[str, TableSchema]) -> list[ForeignKey]:
    """Return the foreign keys of a table, derived from the declared references of its columns.

    A column that refers to a key column of a parent table forms a foreign key if the table also has the other columns
    of this key. Each of these other columns must have the same name as the corresponding column of the parent, and must
    refer to that parent column or to the column to which the parent column refers.
    """
    keys = set()
    for column in schema.columns:
        parent_name, _, referenced = (column.references or "").partition(".")
        parent = tables.get(parent_name)
        if parent is None or referenced not in parent.key or (parent is schema and parent.key == (column.name,)):
            continue
        own = {c.name: c.references for c in schema.columns}
        columns = tuple(column.name if k == referenced else k for k in parent.key)
        if all(k == referenced or own.get(k, "") in (parent[k].references, f"{parent_name}.{k}") for k in parent.key):
            keys.add(ForeignKey(schema.name, columns, parent_name, parent.key))
    return sorted(keys)


def _has_unique_key(tables: Tables, schema: TableSchema) -> bool:
    """Return whether the declared key of a table is unique and not null in all rows."""
    import polars as pl

    keys = _read_columns(tables, schema.name, schema.key)
    if any(keys.null_count().row(0)):
        return False
    column = keys.to_series()
    if keys.width == 1 and column.dtype == pl.Int64 and bool((column.diff() > 0).all()):
        return True
    return keys.n_unique() == keys.height


def _has_only_valid_references(tables: Tables, key: ForeignKey) -> bool:
    """Return whether all values of a foreign key exist in the parent table. Rows with nulls are ignored."""
    rows = _read_columns(tables, key.table, key.columns).drop_nulls().unique()
    if rows.is_empty():
        return True
    parents = _read_columns(tables, key.parent, key.key)
    rows = rows.cast(dict(zip(rows.columns, parents.dtypes, strict=True)))
    return rows.join(parents, left_on=rows.columns, right_on=parents.columns, how="anti").is_empty()


def _read_columns(tables: Tables, table: str, columns: Sequence[str]) -> pl.DataFrame:
    """Read the given columns of a table. Categorical columns are cast to strings."""
    import polars as pl

    return scan_table(tables, table).select(columns).with_columns(pl.col(pl.Categorical).cast(pl.String)).collect()
