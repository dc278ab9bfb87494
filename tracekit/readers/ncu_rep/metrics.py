"""Metrics of all results, decoded with numpy some megabytes at a time.

A result holds hundreds or thousands of metrics, each a small message: number of its name, value, instance values. The
protobuf runtime only splits results into metrics; names and values of all metrics of a batch are decoded in step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from tracekit.readers.common.columns import compact, text
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Buffer, cut, decode
from tracekit.readers.ncu.units import unit_of
from tracekit.readers.ncu_rep.container import declared, limited, numbered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from tracekit.readers.common.protobuf.decoding import Field, Mask, Places
    from tracekit.readers.ncu_rep.container import Container

BATCH_BYTES = 8 << 20
MAX_METRICS = 1 << 18
NAME, VALUE = 1, 2
TEXT, SINGLE, REAL, SMALL, WHOLE = 1, 2, 3, 4, 5
CATEGORY_KEY, CATEGORY_BYTES = 0x20, 2
COLUMNS = pa.schema(
    [
        ("launch_id", pa.int64()),
        ("name", pa.int32()),
        ("value", pa.float64()),
        ("text", pa.string()),
        ("instances", pa.int32()),
    ]
)


@dataclass(slots=True)
class Batch:
    """Metrics of some results, not decoded.

    Attributes:
        results: Numbers of the results.
        counts: How many metrics each has.
        parts: The metrics.
        size: Their size in bytes.
    """

    results: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, number: int, parts: Sequence[bytes]) -> None:
        """Add a result."""
        self.results.append(number)
        self.counts.append(len(parts))
        before = len(self.parts)
        self.parts += parts
        self.size += sum(map(len, self.parts[before:]))


def read(report: Container) -> pa.Table:
    """Read the metrics of all results.

    Returns:
        One row a metric, in the order of the file: launch_id, name (its number), value, text, instances. Of a metric
        that a result holds twice, the last one counts.

    Raises:
        Damage: A message breaks the format, or has a name that the report does not hold.
    """
    numbers = report.names.indices.to_numpy()
    made = [decoded(batch, numbers) for batch in batches(report)]
    return pa.concat_tables([COLUMNS.empty_table(), *made])


def named(metrics: pa.Table, names: pa.Array) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Give n metrics their names and base units: n rows in, the columns of ``ncu_metrics`` that have values out."""
    units = [unit_of(name) for name in names.to_pylist()]
    known = sorted({u for u in units if u is not None})
    place = {u: i for i, u in enumerate(known)}
    codes = pa.array([None if u is None else place[u] for u in units], pa.int32())
    return {
        "launch_id": metrics["launch_id"],
        "metric": compact(metrics["name"], names),
        "value": metrics["value"],
        "text": metrics["text"],
        "unit": compact(_unless(metrics["text"], metrics["name"], codes), pa.array(known, pa.string())),
        "instances": metrics["instances"],
    }


def batches(report: Container) -> Iterator[Batch]:
    """Split results into metrics, some megabytes of them at a time."""
    batch = Batch()
    for number, result in numbered(report):
        batch.add(number, limited(result.metrics, MAX_METRICS, f"metrics of result {number}"))
        if batch.size >= BATCH_BYTES:
            yield batch
            batch = Batch()
    if batch.parts:
        yield batch


def decoded(batch: Batch, names: npt.NDArray[np.int32]) -> pa.Table:
    """Decode a batch.

    Args:
        batch: n metrics.
        names: Number of the distinct name that a name is.

    Returns:
        At most n rows, as ``read`` gives them.
    """
    buffer = Buffer(batch.size)
    buffer.octets[: batch.size] = np.frombuffer(b"".join(batch.parts), np.uint8)
    sizes = np.fromiter(map(len, batch.parts), np.int64, len(batch.parts))
    stops = np.cumsum(sizes)
    found = decode(buffer, stops - sizes, stops, (NAME, VALUE))
    codes = _codes(found.get(NAME), names)
    owners = np.repeat(np.arange(len(batch.results)), batch.counts)
    rows, real, texts = values(buffer, found.get(VALUE), len(sizes))
    tails = _tails(buffer, found.get(VALUE), stops)
    made = {
        "launch_id": pa.array(np.array(batch.results, np.int64)[owners]),
        "name": pa.array(codes),
        "value": pa.array(real, mask=~rows),
        "text": texts,
        "instances": pa.array(_instances(batch.parts, np.flatnonzero(tails))),
    }
    table = pa.table(made, schema=COLUMNS)
    kept = _last(owners * len(names) + codes)
    return table if kept is None else table.take(pa.array(kept))


def _codes(found: Field | None, names: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    if found is None or found.stops is not None or not (found.valid is None or found.valid.all()):
        raise Damage("a metric has no name")
    beyond = found.values[found.values >= np.uint64(len(names))]
    if len(beyond):
        raise Damage(f"a metric has the name {beyond[0]} of {len(names)}")
    return names[found.values.view(np.int64)]


def values(buffer: Buffer, found: Field | None, total: int) -> tuple[Mask, npt.NDArray[np.float64], pa.Array]:
    """Decode the values of n metrics: which are numbers, n numbers, n texts or nulls."""
    numbers, filled = np.zeros(total), np.zeros(total, np.bool_)
    if found is None:
        return filled, numbers, pa.nulls(total, pa.string())
    inner = decode(buffer, *found.spans(), (TEXT, SINGLE, REAL, SMALL, WHOLE))
    outer = np.arange(total) if found.valid is None else np.flatnonzero(found.valid)
    for number in (SINGLE, REAL, SMALL, WHOLE):
        if (part := inner.get(number)) is not None:
            rows, values = _numbers(part, number)
            numbers[outer[rows]] = values
            filled[outer[rows]] = True
    return filled, numbers, _texts(buffer, inner.get(TEXT), outer, total)


def _numbers(part: Field, number: int) -> tuple[Places, npt.NDArray[np.float64]]:
    """Return which values are numbers of one type, and these as doubles."""
    if part.stops is not None:
        raise Damage("a metric holds bytes instead of a number")
    rows = np.arange(len(part.values)) if part.valid is None else np.flatnonzero(part.valid)
    values = part.values[rows]
    if number == REAL:
        return rows, values.view(np.float64)
    return rows, (values.astype(np.uint32).view(np.float32) if number == SINGLE else values).astype(np.float64)


def _texts(buffer: Buffer, part: Field | None, outer: Places, total: int) -> pa.Array:
    if part is None:
        return pa.nulls(total, pa.string())
    rows = outer if part.valid is None else outer[part.valid]
    made, _ = text(cut(buffer.octets, np.stack(part.spans(), axis=1).reshape(-1)))
    places = np.full(total, -1)
    places[rows] = np.arange(len(rows))
    return made.take(pa.array(places, mask=places < 0))


def _tails(buffer: Buffer, value: Field | None, stops: Places) -> Mask:
    """Return which of n metrics may have instance values: those with more behind the value than their category."""
    if value is None or value.stops is None:
        return np.ones(len(stops), np.bool_)
    more = stops - value.stops
    plain = (more == 0) | ((more == CATEGORY_BYTES) & (buffer.octets[value.stops] == CATEGORY_KEY))
    known: Mask = plain if value.valid is None else plain & value.valid
    return ~known


def _instances(parts: Sequence[bytes], rows: Places) -> npt.NDArray[np.int32]:
    """Count the instance values of n metrics, of which only some may have any."""
    kind, counts = declared("Metric"), np.zeros(len(parts), np.int32)
    try:
        counts[rows] = [len(kind.FromString(parts[row]).instances) for row in rows.tolist()]
    except DecodeError as e:
        raise Damage("a metric is no message") from e
    return counts


def _last(keys: Places) -> Places | None:
    """Return the last row of each key, in order; None if no key comes twice."""
    if (np.diff(keys) > 0).all():
        return None
    _, first = np.unique(keys[::-1], return_index=True)
    return None if len(first) == len(keys) else np.sort(len(keys) - 1 - first)


def _unless(texts: pa.ChunkedArray, codes: pa.ChunkedArray, units: pa.Array) -> pa.ChunkedArray:
    """Return the unit of n metrics, null where they are texts."""
    return pc.if_else(texts.is_null(), units.take(codes), pa.scalar(None, pa.int32()))
