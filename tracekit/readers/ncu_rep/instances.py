"""Instance values of metrics: what a metric is made of, by instruction, opcode or time. Read only when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from tracekit.readers.common.columns import compact
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Buffer, decode
from tracekit.readers.ncu_rep.container import declared, limited, numbered
from tracekit.readers.ncu_rep.metrics import BATCH_BYTES, MAX_METRICS, SMALL, WHOLE, values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.readers.common.protobuf.decoding import Field
    from tracekit.readers.ncu_rep.container import Container

CORRELATION, VALUE = 1, 2
MAX_INSTANCES = 1 << 24
COLUMNS = pa.schema(
    [
        ("launch_id", pa.int64()),
        ("metric", pa.int32()),
        ("number", pa.int32()),
        ("correlation_id", pa.int64()),
        ("correlation", pa.string()),
        ("value", pa.float64()),
        ("text", pa.string()),
    ]
)


def read(report: Container) -> pa.Table:
    """Read the instance values of all metrics of all results.

    Returns:
        The columns of ``ncu_metric_instances``, in the order of the file. Of a metric that a result holds twice, the
        last one counts, as in ``ncu_metrics``.

    Raises:
        Damage: A message breaks the format, has a name that the report does not hold, or a result has too many.
    """
    made = pa.concat_tables([COLUMNS.empty_table(), *(_decoded(*batch) for batch in _batches(report))])
    return made.set_column(1, "metric", compact(made["metric"], report.names.dictionary))


def _batches(report: Container) -> Iterator[tuple[list[tuple[int, int, int]], list[bytes]]]:
    """Collect instance values, some megabytes at a time: launch, name and count of each metric; their messages."""
    owners: list[tuple[int, int, int]] = []
    parts: list[bytes] = []
    size = 0
    for number, result in numbered(report):
        for name, found in _of(report, number, result).items():
            owners.append((number, name, len(found)))
            parts += found
            size += sum(map(len, found))
            if size >= BATCH_BYTES:
                yield owners, parts
                owners, parts, size = [], [], 0
    if parts:
        yield owners, parts


def _of(report: Container, number: int, result: Any) -> dict[int, list[bytes]]:
    """The instance values of one result by metric."""
    kind, names = declared("Metric"), report.names.indices
    found: dict[int, list[bytes]] = {}
    try:
        for data in limited(result.metrics, MAX_METRICS, f"metrics of result {number}"):
            metric = kind.FromString(data)
            if metric.name >= len(names):
                raise Damage(f"a metric has the name {metric.name} of {len(names)}")
            name = names[metric.name].as_py()
            found.pop(name, None)
            if metric.instances:
                found[name] = list(metric.instances)
    except DecodeError as e:
        raise Damage("a metric is no message") from e
    if (total := sum(map(len, found.values()))) > MAX_INSTANCES:
        raise Damage(f"{total:,} instance values of result {number}; at most {MAX_INSTANCES:,} are read")
    return found


def _decoded(owners: list[tuple[int, int, int]], parts: list[bytes]) -> pa.Table:
    """Decode n messages: n rows."""
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    stops = np.cumsum(sizes)
    buffer = Buffer(int(stops[-1]))
    buffer.octets[: stops[-1]] = np.frombuffer(b"".join(parts), np.uint8)
    found = decode(buffer, stops - sizes, stops, (CORRELATION, VALUE))
    launches, names, counts = np.array(owners, np.int64).T
    first = np.repeat(np.cumsum(counts) - counts, counts)
    filled, numbers, texts = values(buffer, found.get(VALUE), len(parts))
    _, _, labels = values(buffer, found.get(CORRELATION), len(parts))
    made = {
        "launch_id": pa.array(np.repeat(launches, counts)),
        "metric": pa.array(np.repeat(names, counts).astype(np.int32)),
        "number": pa.array((np.arange(len(parts)) - first + 1).astype(np.int32)),
        "correlation_id": _whole(buffer, found.get(CORRELATION), len(parts)),
        "correlation": labels,
        "value": pa.array(numbers, mask=~filled),
        "text": texts,
    }
    return pa.table(made, schema=COLUMNS)


def _whole(buffer: Buffer, found: Field | None, total: int) -> pa.Array:
    """Decode values that are integers, all their bits; null where they are not."""
    numbers, missing = np.zeros(total, np.uint64), np.ones(total, np.bool_)
    if found is not None:
        inner = decode(buffer, *found.spans(), (SMALL, WHOLE))
        outer = np.arange(total) if found.valid is None else np.flatnonzero(found.valid)
        for part in inner.values():
            if part.stops is not None:
                raise Damage("a metric holds bytes instead of a number")
            rows = np.arange(len(part.values)) if part.valid is None else np.flatnonzero(part.valid)
            numbers[outer[rows]] = part.values[rows]
            missing[outer[rows]] = False
    return pa.array(numbers.view(np.int64), mask=missing)
