"""Some rows or some tables of other tables."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.plan.base import Tables, to_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import polars as pl
    import pyarrow as pa

    from tracekit.plan.plan import Selection
    from tracekit.schemas import TableSchema

NCU = "ncu_"
RESULTS = "ncu_launches"


class Filtered(Tables):
    """Tables with the schemas of other tables, and some of their rows."""

    def __init__(self, base: Tables) -> None:
        self._base = base

    def schema(self, name: str) -> TableSchema:
        """Return the schema of a table."""
        return self._base.schema(name)

    def prefetch(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Read columns of several tables."""
        self._base.prefetch(columns)

    def release(self) -> None:
        """Drop the cached results."""


class SelectedTables(Filtered):
    """Some of the tables; the others are empty."""

    def __init__(self, base: Tables, names: frozenset[str]) -> None:
        super().__init__(base)
        self._names = names

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return self.counts([name])[name]

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of rows of several tables."""
        for name in names:
            schemas.table(name)
        selected = self._base.counts([n for n in names if n in self._names])
        return {name: selected.get(name, 0) for name in names}

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a table, without rows if it is not selected."""
        return self._base.read(name, columns) if name in self._names else schemas.empty(self.schema(name), columns)

    def prefetch(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Read columns of the tables that are selected."""
        super().prefetch({name: names for name, names in columns.items() if name in self._names})


class SelectedRows(Filtered):
    """The rows that meet all of some conditions."""

    def __init__(self, base: Tables, selections: Iterable[Selection]) -> None:
        super().__init__(base)
        self._selections = tuple(selections)
        self._lock = threading.RLock()
        self._masks: dict[str, pa.ChunkedArray | None] = {}

    def count(self, name: str) -> int:
        """Return the number of selected rows."""
        import pyarrow.compute as pc

        mask = self._mask(name)
        return self._base.count(name) if mask is None else int(pc.sum(mask).as_py() or 0)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return some columns of the selected rows."""
        mask = self._mask(name)
        table = self._base.read(name, columns)
        return table if mask is None else _without_unused_values(table.filter(mask))

    def release(self) -> None:
        """Drop the cached masks."""
        with self._lock:
            self._masks.clear()

    def _mask(self, name: str) -> pa.ChunkedArray | None:
        """Return which rows of a table are selected; None if all of them are."""
        with self._lock:
            if name not in self._masks:
                self._masks[name] = self._computed_mask(name)
            return self._masks[name]

    def _computed_mask(self, name: str) -> pa.ChunkedArray | None:
        condition = self._condition(name)
        if condition is None:
            return None
        mask = to_frame(self._base, name).select(condition.alias("selected")).collect()["selected"]
        return mask.fill_null(value=False).to_arrow()

    def _condition(self, name: str) -> pl.Expr | None:
        """Return the condition for rows of a table; None if all are selected.

        Rows about Nsight Compute results are selected with their result.
        """
        from tracekit.core import select

        columns = self.schema(name).names
        conditions = [
            select.row_condition(
                columns, time=s.time, devices=s.devices, domains=s.domains, min_duration_ns=s.min_duration_ns
            )
            for s in self._selections
        ]
        condition = _all(c for c in conditions if c is not None)
        if not name.startswith(NCU) or name == RESULTS or (results := self._mask(RESULTS)) is None:
            return condition
        return select.launch_condition(
            self._base.read(RESULTS, [select.LAUNCH]).filter(results)[select.LAUNCH], condition
        )


def _all(conditions: Iterable[pl.Expr]) -> pl.Expr | None:
    import polars as pl

    listed = list(conditions)
    return pl.all_horizontal(listed) if listed else None


def _without_unused_values(table: pa.Table) -> pa.Table:
    """Remove the dictionary values that no row uses: n rows in, n rows out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def used(column: pa.ChunkedArray) -> pa.DictionaryArray:
        whole = column.unify_dictionaries().combine_chunks()
        codes = whole.indices.unique().drop_null()
        return pa.DictionaryArray.from_arrays(pc.index_in(whole.indices, codes), whole.dictionary.take(codes))

    columns = [used(c) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(columns, schema=table.schema)
