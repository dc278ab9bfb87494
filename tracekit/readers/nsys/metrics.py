"""Compute the metric names and device ids of GPU metric samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col

if TYPE_CHECKING:
    from tracekit.readers.nsys.lookups import Lookups, Resolver

GPU_MASK = 0xFF
METRICS = "TARGET_INFO_GPU_METRICS"


def resolve_device_ids(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the device id of each GPU metric sample: the lowest byte of the type id of the sample."""
    return pc.bit_wise_and(source_rows["typeId"], GPU_MASK)


def resolve_metric_names(lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the metric name of each GPU metric sample, given its type id and metric id."""
    names: dict[tuple[int | None, ...], str] = {}
    if METRICS in lookups.tables.columns:
        types, metrics, listed = (c.to_pylist() for c in lookups.fetch(METRICS, ["typeId", "metricId", "metricName"]))
        names = dict(zip(zip(types, metrics, strict=True), listed, strict=True))
    numbers, keys = col.encode_rows(source_rows["typeId"], source_rows["metricId"])
    return col.build_dictionary_array(numbers, pa.array([names.get(k) for k in keys], pa.string()))


RESOLVERS: dict[str, Resolver] = {
    "device_id": (("typeId",), resolve_device_ids),
    "metric": (("typeId", "metricId"), resolve_metric_names),
}
