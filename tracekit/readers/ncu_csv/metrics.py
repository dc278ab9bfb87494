"""Build the table ``ncu_metrics``. Each combination of section, name and unit is decoded only once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.readers.common import columns
from tracekit.readers.ncu.labels import find_metric_and_label, find_section_id
from tracekit.readers.ncu.units import find_base_unit_and_exponent
from tracekit.readers.ncu_csv.rows import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.ncu_csv.rows import RowCollector


class MetricKind(NamedTuple):
    """The description of a metric value: the printed section, name and unit, and the identifiers derived from them.

    Attributes:
        metric: Name of the metric, or None if its label is unknown.
        label: Label that is printed instead of the name of the metric, or None if the name is printed.
        section: Display name of the section, or None outside of sections.
        section_id: Identifier of the section, or None if it is unknown.
        unit: Base unit, or None for values without a unit.
        printed_unit: Unit as printed, or None if no unit is printed.
    """

    metric: str | None
    label: str | None
    section: str | None
    section_id: str | None
    unit: str | None
    printed_unit: str | None

    @classmethod
    def from_printed(cls, section: str | None, name: str, unit: str | None) -> MetricKind:
        """Create the description of a metric value from the section, name and unit that are printed with the value."""
        metric, label = find_metric_and_label(section or None, name)
        return cls(
            metric,
            label,
            section or None,
            find_section_id(section),
            find_base_unit_and_exponent(unit or "")[0],
            unit or None,
        )


class Metrics:
    """The metric values of a file in batches, and the launch id of each run.

    A run consists of consecutive rows of one launch.
    """

    def __init__(self, rows: RowCollector, launch_ids_by_run: pl.Series) -> None:
        self._batches = rows.metrics or [pl.DataFrame(schema=METRICS)]
        self._of_run = launch_ids_by_run
        self._kinds = [MetricKind.from_printed(*key) for key in rows.kinds]

    def select_metrics(self, is_selected: Callable[[str], bool]) -> pl.DataFrame:
        """Return the values of the metrics for whose name ``is_selected`` returns True.

        The columns are those of ``METRICS``, ``launch_id``, and ``metric`` with the name of the metric.
        """
        names = {n: k.metric for n, k in enumerate(self._kinds) if k.metric is not None and is_selected(k.metric)}
        matching = pl.col("kind").is_in(list(names))
        values = pl.concat([batch.select(METRICS.names()).filter(matching) for batch in self._batches])
        return values.with_columns(
            self._of_run.gather(values["run"]).alias("launch_id"),
            pl.col("kind").replace_strict(names, return_dtype=pl.String).alias("metric"),
        )

    def build_table(self) -> pa.Table:
        """Build the table ``ncu_metrics``. This releases all values, so the method can be called only once."""
        tables = []
        while self._batches:
            tables.append(self._convert_batch(self._batches.pop(0)))
        return pa.concat_tables(tables)

    def _convert_batch(self, batch: pl.DataFrame) -> pa.Table:
        kinds = batch["kind"].to_numpy()
        described = {
            c: _build_dictionary_column([getattr(k, c) for k in self._kinds], kinds) for c in MetricKind._fields
        }
        values = {c: batch[c].to_arrow() for c in batch.columns if c not in ("run", "kind")}
        missing = {c: pa.nulls(len(kinds), pa.float64()) for c in ("minimum", "maximum") if c not in values}
        launch = self._of_run.gather(batch["run"]).to_arrow()
        columns = {"launch_id": launch, **values, **missing, **described}
        return pa.table({c: columns[c] for c in schemas.table("ncu_metrics").names})


def _build_dictionary_column(values: list[str | None], value_indices: np.ndarray) -> pa.DictionaryArray:
    """Return a dictionary-encoded column whose element ``i`` is ``values[value_indices[i]]``."""
    unique: dict[str | None, int] = {v: i for i, v in enumerate(dict.fromkeys(v for v in values if v is not None))}
    codes = np.array([unique.get(v, -1) for v in values], np.int32)[value_indices]
    index_array = (
        columns.build_number_array(np.maximum(codes, 0), codes >= 0)
        if None in values
        else columns.build_number_array(codes)
    )
    return pa.DictionaryArray.from_arrays(index_array, pa.array(unique, pa.string()), safe=False)
