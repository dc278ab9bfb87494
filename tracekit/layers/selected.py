"""The layer on top: some rows of the layers below, chosen when they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.layers.stack import NCU, RESULTS, Layer, Over, to_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of a trace are wanted; None is all of them.

    Attributes:
        time: Rows that overlap ``[a, b)`` ns since the trace origin; either end may be None.
        devices: Rows of these devices, in tables that have devices.
        domains: NVTX ranges and marks of these domains; "" is the default domain.
        min_duration_ns: Rows that last at least so long, in tables that have durations.
    """

    time: tuple[int | None, int | None] | None = None
    devices: tuple[int, ...] | None = None
    domains: tuple[str, ...] | None = None
    min_duration_ns: int | None = None


class Selected(Over):
    """Some rows of another layer."""

    def __init__(self, base: Layer, selection: Selection) -> None:
        super().__init__(base)
        self._selection = selection
        self._masks: dict[str, pa.ChunkedArray | None] = {}

    def count(self, name: str) -> int:
        """Number of rows selected."""
        import pyarrow.compute as pc

        mask = self._mask(name)
        return self._base.count(name) if mask is None else int(pc.sum(mask).as_py() or 0)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of the selected rows."""
        mask = self._mask(name)
        table = self._base.read(name, columns)
        return table if mask is None else _used(table.filter(mask))

    def correlated(self) -> Layer:
        """The same rows, correlated with all that was there before the selection."""
        return Selected(self._base.correlated(), self._selection)

    def joined(self, ncu: Layer, metrics: Sequence[str] | None = None) -> Layer:
        """The same rows, joined with all that was there before the selection."""
        return Selected(self._base.joined(ncu, metrics), self._selection)

    def only(self, names: Sequence[str]) -> Layer:
        """The same rows of some tables."""
        return Selected(self._base.only(names), self._selection)

    def _mask(self, name: str) -> pa.ChunkedArray | None:
        if name not in self._masks:
            wanted = self._wanted(name)
            frame = None if wanted is None else to_frame(self._base, name).select(wanted.alias("keep")).collect()
            self._masks[name] = None if frame is None else frame["keep"].fill_null(False).to_arrow()  # noqa: FBT003
        return self._masks[name]

    def _wanted(self, name: str) -> pl.Expr | None:
        """The condition for rows of a table; what belongs to results of Nsight Compute is selected as they are."""
        from tracekit.core import select

        s = self._selection
        own = select.condition(
            self.schema(name).names,
            time=s.time,
            devices=s.devices,
            domains=s.domains,
            min_duration_ns=s.min_duration_ns,
        )
        if not name.startswith(NCU) or name == RESULTS or (kept := self._mask(RESULTS)) is None:
            return own
        return select.of_launches(self._base.read(RESULTS, [select.LAUNCH]).filter(kept)[select.LAUNCH], own)


def _used(table: pa.Table) -> pa.Table:
    """Leave in the dictionaries of a table only what its rows use: n rows in, n rows out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def used(column: pa.ChunkedArray) -> pa.DictionaryArray:
        whole = column.unify_dictionaries().combine_chunks()
        codes = whole.indices.unique().drop_null()
        return pa.DictionaryArray.from_arrays(pc.index_in(whole.indices, codes), whole.dictionary.take(codes))

    columns = [used(c) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(columns, schema=table.schema)
