"""Read the instance values of metrics: separate values per instruction, opcode or point in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from tracekit.readers.common.columns import compact_dictionary
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Buffer, decode
from tracekit.readers.ncu_rep.container import iterate_results, message_class, require_max_count
from tracekit.readers.ncu_rep.metrics import BATCH_BYTES, INT32, INT64, MAX_METRICS, decode_metric_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.readers.common.protobuf.decoding import Field
    from tracekit.readers.ncu_rep.container import ReportFile

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


class InstanceBatch(NamedTuple):
    """The encoded instance values of several metrics.

    Attributes:
        owners: Launch id, dictionary code and number of instance values of each metric.
        messages: The encoded instance values of all these metrics, in order.
    """

    owners: list[tuple[int, int, int]]
    messages: list[bytes]


def read_instances(report: ReportFile) -> pa.Table:
    """Read the instance values of all metrics of all results.

    Returns:
        One row per instance value, in file order, with the columns of ``ncu_metric_instances``. If a result contains a
        metric twice, the last one is used, as in ``ncu_metrics``.

    Raises:
        Damage: A message is invalid or refers to a missing name, or a result has more than ``MAX_INSTANCES`` values.
    """
    table = pa.concat_tables(
        [COLUMNS.empty_table(), *(_decode_instances(batch) for batch in _iterate_instance_batches(report))]
    )
    return table.set_column(1, "metric", compact_dictionary(table["metric"], report.names.dictionary))


def _iterate_instance_batches(report: ReportFile) -> Iterator[InstanceBatch]:
    """Yield the encoded instance values of all metrics in batches."""
    owners: list[tuple[int, int, int]] = []
    messages: list[bytes] = []
    size = 0
    for number, result in iterate_results(report):
        for name, instances in _collect_instances_by_metric(report, number, result).items():
            owners.append((number, name, len(instances)))
            messages += instances
            size += sum(map(len, instances))
            if size >= BATCH_BYTES:
                yield InstanceBatch(owners, messages)
                owners, messages, size = [], [], 0
    if messages:
        yield InstanceBatch(owners, messages)


def _collect_instances_by_metric(report: ReportFile, result_number: int, result: Any) -> dict[int, list[bytes]]:
    """Return the encoded instance values of each metric of one result, by the dictionary code of the metric."""
    metric_type, names = message_class("Metric"), report.names.indices
    instances: dict[int, list[bytes]] = {}
    try:
        for data in require_max_count(result.metrics, MAX_METRICS, f"metrics of result {result_number}"):
            metric = metric_type.FromString(data)
            if metric.name >= len(names):
                raise Damage(
                    f"a metric refers to the name with index {metric.name}, but the report has only {len(names)} names"
                )
            name = names[metric.name].as_py()
            instances.pop(name, None)
            if metric.instances:
                instances[name] = list(metric.instances)
    except DecodeError as e:
        raise Damage("a metric is not a valid protobuf message") from e
    if (total := sum(map(len, instances.values()))) > MAX_INSTANCES:
        raise Damage(
            f"result {result_number} has {total:,} instance values, but tracekit supports at most {MAX_INSTANCES:,}"
        )
    return instances


def _decode_instances(batch: InstanceBatch) -> pa.Table:
    """Decode a batch of encoded instance values into one row per instance value."""
    owners, messages = batch
    sizes = np.fromiter(map(len, messages), np.int64, len(messages))
    stops = np.cumsum(sizes)
    buffer = Buffer(int(stops[-1]))
    buffer.data[: stops[-1]] = np.frombuffer(b"".join(messages), np.uint8)
    fields = decode(buffer, stops - sizes, stops, (CORRELATION, VALUE))
    launches, names, counts = np.array(owners, np.int64).T
    first = np.repeat(np.cumsum(counts) - counts, counts)
    is_number, numbers, strings = decode_metric_values(buffer, fields.get(VALUE), len(messages))
    _, _, labels = decode_metric_values(buffer, fields.get(CORRELATION), len(messages))
    columns = {
        "launch_id": pa.array(np.repeat(launches, counts)),
        "metric": pa.array(np.repeat(names, counts).astype(np.int32)),
        "number": pa.array((np.arange(len(messages)) - first + 1).astype(np.int32)),
        "correlation_id": _decode_integers(buffer, fields.get(CORRELATION), len(messages)),
        "correlation": labels,
        "value": pa.array(numbers, mask=~is_number),
        "text": strings,
    }
    return pa.table(columns, schema=COLUMNS)


def _decode_integers(buffer: Buffer, field: Field | None, row_count: int) -> pa.Array:
    """Decode the integer values in a field without loss of precision. Values of other types become null."""
    numbers, missing = np.zeros(row_count, np.uint64), np.ones(row_count, np.bool_)
    if field is not None:
        inner = decode(buffer, *field.spans(), (INT32, INT64))
        outer = np.arange(row_count) if field.valid is None else np.flatnonzero(field.valid)
        for values in inner.values():
            if values.stops is not None:
                raise Damage("a metric contains bytes instead of a number")
            rows = np.arange(len(values.values)) if values.valid is None else np.flatnonzero(values.valid)
            numbers[outer[rows]] = values.values[rows]
            missing[outer[rows]] = False
    return pa.array(numbers.view(np.int64), mask=missing)
