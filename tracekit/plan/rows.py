"""Views of the tables of a trace that contain only the selected tables or the selected rows."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.registry.tables import CachedTables, read_chunks, scan_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import polars as pl
    import pyarrow as pa

    from tracekit.core.select import RowCondition
    from tracekit.schemas import TableSchema

NCU_PREFIX = "ncu_"
RESULTS = "ncu_launches"


class FilteredTables(CachedTables):
    """Base class of views that return a subset of the rows of each underlying table. Schemas are unchanged."""

    def __init__(self, base: CachedTables) -> None:
        self._base = base

    def schema(self, name: str) -> TableSchema:
        """Return the schema of a table."""
        return self._base.schema(name)

    def prefetch(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Read and cache columns of several underlying tables together."""
        self._base.prefetch(columns)


class SelectedTables(FilteredTables):
    """A view of tables in which the tables that are not selected have no rows."""

    def __init__(self, base: CachedTables, names: frozenset[str]) -> None:
        super().__init__(base)
        self._names = names

    def count_many(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of rows of each table in ``names``. Tables that are not selected have 0 rows."""
        for name in names:
            schemas.table(name)
        selected = self._base.count_many([n for n in names if n in self._names])
        return {name: selected.get(name, 0) for name in names}

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
        """Return the requested columns. Tables that are not selected have no rows."""
        selected = self._base.read_many({name: names for name, names in columns.items() if name in self._names})
        return {
            n: selected[n] if n in selected else schemas.empty(self.schema(n), names) for n, names in columns.items()
        }

    def prefetch(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Read and cache columns of the selected tables together. Other tables are ignored."""
        super().prefetch({name: names for name, names in columns.items() if name in self._names})


class SelectedRows(FilteredTables):
    """A view of tables with only the rows that meet all conditions of a plan."""

    def __init__(self, base: CachedTables, conditions: Iterable[RowCondition]) -> None:
        super().__init__(base)
        self._conditions = tuple(conditions)
        self._lock = threading.RLock()
        self._masks: dict[str, pa.ChunkedArray | None] = {}

    def count_many(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of selected rows of each table in ``names``, by table name."""
        import pyarrow.compute as pc

        masks = {name: self._get_selection_mask(name) for name in names}
        whole = self._base.count_many([name for name, mask in masks.items() if mask is None])
        return {name: whole[name] if mask is None else int(pc.sum(mask).as_py() or 0) for name, mask in masks.items()}

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
        """Return the requested columns of several tables, with only the selected rows."""
        masks = {name: self._get_selection_mask(name) for name in columns}
        tables = self._base.read_many(columns)
        return {n: t if (mask := masks[n]) is None else _drop_unused_values(t.filter(mask)) for n, t in tables.items()}

    def release(self) -> None:
        """Free the cached selection masks."""
        super().release()
        with self._lock:
            self._masks.clear()

    def _get_selection_mask(self, name: str) -> pa.ChunkedArray | None:
        """Return a mask that is true for the selected rows of a table, or None if all rows are selected."""
        with self._lock:
            if name not in self._masks:
                self._masks[name] = self._compute_selection_mask(name)
            return self._masks[name]

    def _compute_selection_mask(self, name: str) -> pa.ChunkedArray | None:
        condition = self._build_selected_rows_expr(name)
        if condition is None:
            return None
        mask = scan_table(self._base, name).select(condition.alias("selected")).collect()["selected"]
        return mask.fill_null(value=False).to_arrow()

    def _build_selected_rows_expr(self, name: str) -> pl.Expr | None:
        """Return an expression that is true for the selected rows of a table, or None if all rows are selected.

        Metrics, rules and ranges of an Nsight Compute result are selected only if the result is selected.
        """
        from tracekit.core import select

        condition = select.row_condition_expr(self.schema(name).names, self._conditions)
        if not name.startswith(NCU_PREFIX) or name == RESULTS or (results := self._get_selection_mask(RESULTS)) is None:
            return condition
        return select.launch_condition_expr(
            read_chunks(self._base, RESULTS, [select.LAUNCH]).filter(results)[select.LAUNCH], condition
        )


def _drop_unused_values(table: pa.Table) -> pa.Table:
    """Return a table whose dictionaries contain only the values that occur in its rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def compact_dictionary(column: pa.ChunkedArray) -> pa.DictionaryArray:
        array = column.unify_dictionaries().combine_chunks()
        codes = array.indices.unique().drop_null()
        return pa.DictionaryArray.from_arrays(pc.index_in(array.indices, codes), array.dictionary.take(codes))

    columns = [compact_dictionary(c) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(columns, schema=table.schema)
