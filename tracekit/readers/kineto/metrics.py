"""Build the table of the metrics that the PyTorch profiler collects with CUPTI, one event per profiled range.

The arguments of such an event are the metrics of the range, as in ``{"sm__inst_executed.sum": 1024}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.readers.common import columns as col
from tracekit.readers.kineto.event_tables import ARGUMENTS
from tracekit.readers.kineto.keys import Slot

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

TABLE = "profiler_metrics"
_MEMBER_PATTERN = r'"([^"\\]{1,500})"\s*:\s*([-+0-9.eE]{1,40}|[A-Za-z]{1,8}|"[^"\\]{0,40}")\s*[,}]'


def build_table(ranges: Mapping[str, pa.Array], origin_ns: int) -> pa.Table:
    """Return the table ``profiler_metrics`` with one row per metric of each range, in the order of the file.

    Args:
        ranges: The values collected from the events, by member.
        origin_ns: Time in the file, in ns, that corresponds to time 0 in the tables.
    """
    device = pl.coalesce(Slot.DEVICE.name, Slot.PID.name)
    names = (Slot.START.name, Slot.DURATION.name, Slot.DEVICE.name, Slot.PID.name)
    frame = pl.DataFrame({name: pl.Series(col.concatenate_chunks(ranges[name])) for name in names})
    texts = {"range_name": Slot.NAME.name, "member": ARGUMENTS}
    frame = frame.with_columns(pl.Series(name, ranges[member].cast("string")) for name, member in texts.items())
    member = pl.col("member").str.extract_groups(_MEMBER_PATTERN)
    value = member.struct[1].str.strip_chars('"').cast(pl.Float64, strict=False)
    rows = (
        frame.with_row_index("profiler_range_id", 1)
        .with_columns(pl.col("member").str.extract_all(_MEMBER_PATTERN))
        .explode("member")
        .drop_nulls("member")
        .select(
            pl.int_range(1, pl.len() + 1).alias("profiler_metric_id"),
            pl.col("profiler_range_id").cast(pl.Int64),
            start_ns=pl.col(Slot.START.name) - origin_ns,
            end_ns=pl.col(Slot.START.name) + pl.col(Slot.DURATION.name) - origin_ns,
            device_id=device.cast(pl.Int32, strict=False),
            range_name=pl.col("range_name").cast(pl.Categorical),
            metric=member.struct[0].cast(pl.Categorical),
            value=pl.when(value.is_finite()).then(value),
        )
    )
    return rows.to_arrow().select(schemas.table(TABLE).names)
