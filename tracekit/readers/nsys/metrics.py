"""GPU metrics of an export: samples, with the metric named and the GPU unpacked from the type id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.nsys.machine import rows

if TYPE_CHECKING:
    from tracekit.readers.nsys.lookups import Lookups, Resolver

GPU_MASK = 0xFF


def device_id(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """The GPU: the lowest byte of the type id."""
    return pc.bit_wise_and(raw["typeId"], GPU_MASK)


def metric(capture: Lookups, _: str, raw: pa.Table) -> pa.Array:
    """Name of the metric, by type and metric id."""
    listed = rows(capture, "TARGET_INFO_GPU_METRICS", "typeId", "metricId", "metricName")
    names: dict[tuple[int | None, ...], str] = {(r["typeId"], r["metricId"]): r["metricName"] for r in listed}
    numbers, keys = col.number_rows(raw["typeId"], raw["metricId"])
    return col.named(numbers, pa.array([names.get(k) for k in keys], pa.string()))


RESOLVERS: dict[str, Resolver] = {"device_id": (("typeId",), device_id), "metric": (("typeId", "metricId"), metric)}
