"""GPU metrics of an export: samples, with the metric named and the GPU unpacked from the type id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.nsys_sqlite import columns as col

if TYPE_CHECKING:
    from tracekit.readers.nsys_sqlite.capture import NsysCapture
    from tracekit.readers.nsys_sqlite.nvtx import Resolver

GPU_MASK = 0xFF
METRIC_BITS = 16


def device_id(_: NsysCapture, __: str, raw: pa.Table) -> pa.Array:
    """The GPU: the lowest byte of the type id."""
    return pc.bit_wise_and(raw["typeId"], GPU_MASK)


def metric(capture: NsysCapture, table: str, raw: pa.Table) -> pa.Array:
    """Name of the metric, by type and metric id."""
    from tracekit.readers.nsys_sqlite.machine import rows

    listed = rows(capture, "TARGET_INFO_GPU_METRICS")
    types = sorted({r["typeId"] for r in listed})
    names = {types.index(r["typeId"]) << METRIC_BITS | r["metricId"]: r["metricName"] for r in listed}
    number = pc.index_in(raw["typeId"], pa.array(types, pa.int64())).cast(pa.int64())
    ids = pc.bit_wise_or(pc.shift_left(number, METRIC_BITS), raw["metricId"])
    return capture.look_up(table, "metric", ids, col.Strings.of(names))


RESOLVERS: dict[str, Resolver] = {"device_id": (("typeId",), device_id), "metric": (("typeId", "metricId"), metric)}
