"""Read events that each stand for several events, which the profiler summed while it recorded.

Such an event has a number of occurrences instead of a start. Its duration is the sum of those of all events. If they
contained others, such as the ops in a loop, a value is the part of the duration in which none of these ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from tracekit.readers.common.columns import build_number_array
from tracekit.readers.xplane import cores, devices
from tracekit.readers.xplane.hosts import convert_to_frame
from tracekit.readers.xplane.values import EVENT_VALUES, EventValues

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.readers.xplane.space import Plane, TotalBatch

_SELF_DURATION, _MIN_DURATION = "self_duration_ps", "min_duration_ps"
_PS_PER_NS = 1000
_SCHEMA = {
    "device_id": pl.Int32(),
    "kind": pl.String(),
    "name": pl.String(),
    "count": pl.Int64(),
    "total_ps": pl.Int64(),
    "min_ps": pl.Int64(),
}


def build_totals(planes: Iterable[Plane], first_core: int) -> pl.DataFrame:
    """Return the totals of activities and scopes by device and name: columns of ``activity_totals``.

    Events on lines that the profiler derived from those of other lines are left out.

    Args:
        planes: The planes.
        first_core: Number of the device of the first TPU core.

    Raises:
        Damage: An event is invalid.
    """
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for plane in planes:
        parts += [_describe_batch(plane, batch, first_core) for batch in plane.iterate_totals()]
    total, rest = pl.col("total_ps") // _PS_PER_NS, pl.col("total_ps") % _PS_PER_NS
    grouped = pl.concat(parts).group_by("device_id", "kind", "name", maintain_order=True)
    return grouped.agg(
        count=pl.col("count").sum(),
        total_ns=total.sum() + rest.sum() // _PS_PER_NS,
        min_ns=pl.when(pl.col("min_ps").null_count() == 0).then(pl.col("min_ps").min() // _PS_PER_NS),
    ).with_columns(path="name", depth=pl.lit(0, pl.Int32))


def _describe_batch(plane: Plane, batch: TotalBatch, first_core: int) -> pl.DataFrame:
    values = EventValues.of_messages(plane, batch.encoded.starts, batch.encoded.stops, EVENT_VALUES)
    numbers = {"count": batch.counts, "duration_ps": batch.duration_ps, "line": batch.lines}
    columns = {
        **{name: build_number_array(column) for name, column in numbers.items()},
        "self_ps": build_number_array(*values.get_integers(_SELF_DURATION)),
        "shortest_ps": build_number_array(*values.get_integers(_MIN_DURATION)),
        "name": batch.names.cast(pa.string()),
        "index": batch.names.indices,
    }
    frame = convert_to_frame(pa.table(columns))
    device: int | None = None
    activity_lines: list[int] = []
    if devices.GPU.fullmatch(plane.name):
        device = devices.get_device(plane)
        derived = [i for i, line in enumerate(plane.lines) if devices.is_derived(plane, line.name)]
        frame = frame.filter(~pl.col("line").is_in(derived))
        activity_lines = [i for i in range(len(plane.lines)) if i not in derived]
    elif cores.CORE.fullmatch(plane.name):
        device = cores.get_device(plane) + first_core
        activity_lines = cores.list_lines_of_ops(plane)
        frame = frame.with_columns(name=cores.read_names_of_ops(plane).gather(frame["index"]))
    is_own = pl.col("self_ps").is_between(0, pl.col("duration_ps")).fill_null(value=False)
    is_valid = pl.col("shortest_ps").is_between(0, pl.col("duration_ps")).fill_null(value=False)
    return frame.select(
        device_id=pl.lit(device, pl.Int32),
        kind=pl.when(pl.col("line").is_in(activity_lines)).then(pl.lit("activity")).otherwise(pl.lit("scope")),
        name=pl.col("name").fill_null(""),
        count="count",
        total_ps=pl.when(is_own).then("self_ps").otherwise("duration_ps"),
        min_ps=pl.when(is_valid).then("shortest_ps").when(pl.col("count") == 1).then("duration_ps"),
    )
