"""Read the metrics of all results in batches of a few megabytes, and decode each batch as columns.

A result has hundreds or thousands of metrics. Each metric is a small message with the index of its name, a value and
instance values. The protobuf runtime only splits results into encoded metrics, because parsing each of them would be
slow. The names and values of all metrics in a batch are decoded together instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from tracekit.readers.common.columns import compact_dictionary, convert_to_strings
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Buffer, decode, extract_strings
from tracekit.readers.ncu.units import find_unit_of_metric
from tracekit.readers.ncu_rep.container import iterate_results, message_class, require_max_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from tracekit.readers.common.protobuf.decoding import Field, Int64Array, Mask
    from tracekit.readers.ncu_rep.container import ReportFile

CORRELATION, INSTANCE_VALUE = 1, 2
MAX_INSTANCES = 1 << 24
INSTANCE_COLUMNS = pa.schema(
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
BATCH_BYTES = 8 << 20
MAX_METRICS = 1 << 18
NAME, VALUE = 1, 2
STRING, FLOAT, DOUBLE, INT32, INT64 = 1, 2, 3, 4, 5
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
        [INSTANCE_COLUMNS.empty_table(), *(_decode_instances(batch) for batch in _iterate_instance_batches(report))]
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
    fields = decode(buffer, stops - sizes, stops, (CORRELATION, INSTANCE_VALUE))
    launches, names, counts = np.array(owners, np.int64).T
    first = np.repeat(np.cumsum(counts) - counts, counts)
    is_number, numbers, strings = decode_metric_values(buffer, fields.get(INSTANCE_VALUE), len(messages))
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
    return pa.table(columns, schema=INSTANCE_COLUMNS)


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


@dataclass(slots=True)
class MetricBatch:
    """The encoded metrics of consecutive results.

    Attributes:
        results: Indices of the results, in file order.
        counts: Number of metrics of each result.
        messages: The encoded metrics of all results, in order.
        size: Size of all messages in bytes.
    """

    results: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    size: int = 0

    def add_result(self, result_number: int, messages: Sequence[bytes]) -> None:
        """Add the metrics of a result."""
        self.results.append(result_number)
        self.counts.append(len(messages))
        before = len(self.messages)
        self.messages += messages
        self.size += sum(map(len, self.messages[before:]))


def read_metrics(report: ReportFile) -> pa.Table:
    """Read the metrics of all results.

    Returns:
        One row per metric, in file order, with the columns ``launch_id``, ``name`` (a dictionary code), ``value``,
        ``text`` and ``instances``. If a result contains a metric twice, the last one is used.

    Raises:
        Damage: A message is invalid, or refers to a missing name.
    """
    numbers = report.names.indices.to_numpy()
    tables = [decode_metrics(batch, numbers) for batch in iterate_metric_batches(report)]
    return pa.concat_tables([COLUMNS.empty_table(), *tables])


def build_metric_columns(metrics: pa.Table, names: pa.Array) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Convert the table that ``read_metrics`` returns to columns of ``ncu_metrics``, with names and base units."""
    units = [find_unit_of_metric(name) for name in names.to_pylist()]
    distinct_units = sorted({u for u in units if u is not None})
    codes_by_unit = {u: i for i, u in enumerate(distinct_units)}
    codes = pa.array([None if u is None else codes_by_unit[u] for u in units], pa.int32())
    return {
        "launch_id": metrics["launch_id"],
        "metric": compact_dictionary(metrics["name"], names),
        "value": metrics["value"],
        "text": metrics["text"],
        "unit": compact_dictionary(
            _select_units_of_numbers(metrics["text"], metrics["name"], codes), pa.array(distinct_units, pa.string())
        ),
        "instances": metrics["instances"],
    }


def iterate_metric_batches(report: ReportFile) -> Iterator[MetricBatch]:
    """Yield the encoded metrics of all results in batches of a few megabytes."""
    batch = MetricBatch()
    for number, result in iterate_results(report):
        batch.add_result(number, require_max_count(result.metrics, MAX_METRICS, f"metrics of result {number}"))
        if batch.size >= BATCH_BYTES:
            yield batch
            batch = MetricBatch()
    if batch.messages:
        yield batch


def decode_metrics(batch: MetricBatch, name_codes: npt.NDArray[np.int32]) -> pa.Table:
    """Decode a batch of metrics into a table.

    Args:
        batch: The encoded metrics.
        name_codes: Dictionary code of each metric name of the report, by the index with which metrics refer to it.

    Returns:
        One row per metric with the columns of ``read_metrics``. If a result contains a metric twice, only the last one
        has a row.
    """
    buffer = Buffer(batch.size)
    buffer.data[: batch.size] = np.frombuffer(b"".join(batch.messages), np.uint8)
    sizes = np.fromiter(map(len, batch.messages), np.int64, len(batch.messages))
    stops = np.cumsum(sizes)
    fields = decode(buffer, stops - sizes, stops, (NAME, VALUE))
    codes = _decode_name_codes(fields.get(NAME), name_codes)
    owners = np.repeat(np.arange(len(batch.results)), batch.counts)
    is_number, numbers, strings = decode_metric_values(buffer, fields.get(VALUE), len(sizes))
    may_have_instances = _compute_possible_instances_mask(buffer, fields.get(VALUE), stops)
    columns = {
        "launch_id": pa.array(np.array(batch.results, np.int64)[owners]),
        "name": pa.array(codes),
        "value": pa.array(numbers, mask=~is_number),
        "text": strings,
        "instances": pa.array(_count_instances(batch.messages, np.flatnonzero(may_have_instances))),
    }
    table = pa.table(columns, schema=COLUMNS)
    rows = _find_last_row_number_of_each_key(owners * len(name_codes) + codes)
    return table if rows is None else table.take(pa.array(rows))


def _decode_name_codes(field: Field | None, codes_by_index: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    if field is None or field.stops is not None or not (field.valid is None or field.valid.all()):
        raise Damage("a metric has no name")
    invalid = field.values[field.values >= np.uint64(len(codes_by_index))]
    if len(invalid):
        raise Damage(
            f"a metric refers to the name with index {invalid[0]}, but the report has only {len(codes_by_index)} names"
        )
    return codes_by_index[field.values.view(np.int64)]


def decode_metric_values(
    buffer: Buffer, field: Field | None, row_count: int
) -> tuple[Mask, npt.NDArray[np.float64], pa.Array]:
    """Decode the values of metrics as numbers and strings.

    Args:
        buffer: The buffer that contains the encoded metrics.
        field: The field with the values, or None if no metric has a value.
        row_count: Number of metrics.

    Returns:
        Three arrays with one element per metric: whether the value is a number, the number (0 if the value is not a
        number), and the string (null if the value is not a string).
    """
    numbers, is_number = np.zeros(row_count), np.zeros(row_count, np.bool_)
    if field is None:
        return is_number, numbers, pa.nulls(row_count, pa.string())
    inner = decode(buffer, *field.spans(), (STRING, FLOAT, DOUBLE, INT32, INT64))
    outer = np.arange(row_count) if field.valid is None else np.flatnonzero(field.valid)
    for field_number in (FLOAT, DOUBLE, INT32, INT64):
        if (values_field := inner.get(field_number)) is not None:
            rows, values = _decode_numbers(values_field, field_number)
            numbers[outer[rows]] = values
            is_number[outer[rows]] = True
    return is_number, numbers, _decode_strings(buffer, inner.get(STRING), outer, row_count)


def _decode_numbers(field: Field, field_number: int) -> tuple[Int64Array, npt.NDArray[np.float64]]:
    """Return the row numbers of the messages that contain a field, and the values of the field as doubles."""
    if field.stops is not None:
        raise Damage("a metric contains bytes instead of a number")
    rows = np.arange(len(field.values)) if field.valid is None else np.flatnonzero(field.valid)
    values = field.values[rows]
    if field_number == DOUBLE:
        return rows, values.view(np.float64)
    return rows, (values.astype(np.uint32).view(np.float32) if field_number == FLOAT else values).astype(np.float64)


def _decode_strings(buffer: Buffer, field: Field | None, value_rows: Int64Array, row_count: int) -> pa.Array:
    if field is None:
        return pa.nulls(row_count, pa.string())
    rows = value_rows if field.valid is None else value_rows[field.valid]
    strings, _ = convert_to_strings(extract_strings(buffer.data, np.stack(field.spans(), axis=1).reshape(-1)))
    indices = np.full(row_count, -1)
    indices[rows] = np.arange(len(rows))
    return strings.take(pa.array(indices, mask=indices < 0))


def _compute_possible_instances_mask(buffer: Buffer, value: Field | None, stops: Int64Array) -> Mask:
    """Return a mask of the metrics that may have instance values.

    A metric has no instance values if its message ends after the value, or after a category that follows the value.
    """
    if value is None or value.stops is None:
        return np.ones(len(stops), np.bool_)
    tail_bytes = stops - value.stops
    has_no_instances = (tail_bytes == 0) | ((tail_bytes == CATEGORY_BYTES) & (buffer.data[value.stops] == CATEGORY_KEY))
    certain: Mask = has_no_instances if value.valid is None else has_no_instances & value.valid
    return ~certain


def _count_instances(messages: Sequence[bytes], rows: Int64Array) -> npt.NDArray[np.int32]:
    """Count the instance values of each metric in the given rows. The count of all other metrics is 0."""
    metric_type, counts = message_class("Metric"), np.zeros(len(messages), np.int32)
    try:
        counts[rows] = [len(metric_type.FromString(messages[row]).instances) for row in rows.tolist()]
    except DecodeError as e:
        raise Damage("a metric is not a valid protobuf message") from e
    return counts


def _find_last_row_number_of_each_key(keys: Int64Array) -> Int64Array | None:
    """Return the row numbers of the last occurrence of each key, in ascending order, or None if no key occurs twice."""
    if (np.diff(keys) > 0).all():
        return None
    _, first = np.unique(keys[::-1], return_index=True)
    return None if len(first) == len(keys) else np.sort(len(keys) - 1 - first)


def _select_units_of_numbers(texts: pa.ChunkedArray, name_codes: pa.ChunkedArray, units: pa.Array) -> pa.ChunkedArray:
    """Return the dictionary code of the unit of each metric, null for metrics whose value is a string.

    Args:
        texts: The string of each metric, null for other values.
        name_codes: Dictionary code of the name of each metric.
        units: Dictionary code of the unit of each name.
    """
    return pc.if_else(texts.is_null(), units.take(name_codes), pa.scalar(None, pa.int32()))
