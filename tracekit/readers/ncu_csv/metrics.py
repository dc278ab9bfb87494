"""Values of a CSV as the table ``ncu_metrics``: what is printed beside them is text once, and numbers in the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.readers.common import columns
from tracekit.readers.ncu.labels import metric_of, section_id
from tracekit.readers.ncu.units import printed
from tracekit.readers.ncu_csv.rows import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.ncu_csv.rows import Rows


class Kind(NamedTuple):
    """What is printed beside a value, and what it means."""

    metric: str | None
    label: str | None
    section: str | None
    section_id: str | None
    unit: str | None
    printed_unit: str | None

    @classmethod
    def of(cls, section: str | None, name: str, unit: str | None) -> Kind:
        """Understand what is printed."""
        metric, label = metric_of(section or None, name)
        return cls(metric, label, section or None, section_id(section), printed(unit or "")[0], unit or None)


class Metrics:
    """The values of a file, a frame a piece, and the launch of each run of rows."""

    def __init__(self, rows: Rows, of_run: pl.Series) -> None:
        self._parts = rows.metrics or [pl.DataFrame(schema=METRICS)]
        self._of_run = of_run
        self._kinds = [Kind.of(*beside) for beside in rows.kinds]

    def some(self, wanted: Callable[[str], bool]) -> pl.DataFrame:
        """Return the values of some metrics, with ``launch_id`` and ``metric``."""
        names = {n: k.metric for n, k in enumerate(self._kinds) if k.metric is not None and wanted(k.metric)}
        ours = pl.col("kind").is_in(list(names))
        found = pl.concat([part.select(METRICS.names()).filter(ours) for part in self._parts])
        return found.with_columns(
            self._of_run.gather(found["run"]).alias("launch_id"),
            pl.col("kind").replace_strict(names, return_dtype=pl.String).alias("metric"),
        )

    def table(self) -> pa.Table:
        """Return the table; the values are given away piece by piece."""
        made = []
        while self._parts:
            made.append(self._table(self._parts.pop(0)))
        return pa.concat_tables(made)

    def _table(self, part: pl.DataFrame) -> pa.Table:
        kinds = part["kind"].to_numpy()
        beside = {c: _dictionary([getattr(k, c) for k in self._kinds], kinds) for c in Kind._fields}
        own = {c: part[c].to_arrow() for c in part.columns if c not in ("run", "kind")}
        absent = {c: pa.nulls(len(kinds), pa.float64()) for c in ("minimum", "maximum") if c not in own}
        launch = self._of_run.gather(part["run"]).to_arrow()
        columns = {"launch_id": launch, **own, **absent, **beside}
        return pa.table({c: columns[c] for c in schemas.table("ncu_metrics").names})


def _dictionary(values: list[str | None], numbers: np.ndarray) -> pa.DictionaryArray:
    """Take values by number: n numbers in, n texts out as a dictionary."""
    unique: dict[str | None, int] = {v: i for i, v in enumerate(dict.fromkeys(v for v in values if v is not None))}
    codes = np.array([unique.get(v, -1) for v in values], np.int32)[numbers]
    indices = columns.numbers(np.maximum(codes, 0), codes >= 0) if None in values else columns.numbers(codes)
    return pa.DictionaryArray.from_arrays(indices, pa.array(unique, pa.string()), safe=False)
