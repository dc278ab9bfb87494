"""Decode the executions of graph nodes on devices, which TensorFlow records as ``StepStats`` in ``RunMetadata``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Occurrences, decode, find_occurrences
from tracekit.readers.tensorflow.fields import build_dictionary_column

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Int64Array, Mask

    MaskedColumn: TypeAlias = tuple[Int64Array, Mask | None]
    """Numbers, and a mask of the numbers that are known. The mask is None if all numbers are known."""

_TAG, _METADATA = 1, 2
_STEP_STATS, _DEVICES = 1, 1
_DEVICE, _NODES = 1, 2
_NODE_NAME, _MEMORY, _OUTPUT, _LABEL, _THREAD, _MEMORY_STATS = 1, 6, 7, 8, 10, 12
_TIMES = {"start_ns": (2, 13), "op_start_ns": (3, 14), "op_end_ns": (4, 15), "end_ns": (5, 16), "scheduled_ns": (9, 17)}
"""Numbers of the fields that contain a time in µs and in ns, by column."""
_RELATIVE_TIMES = ("op_start_ns", "op_end_ns", "end_ns")
_LENGTH_DELIMITED_FIELDS = {_NODE_NAME, _MEMORY, _OUTPUT, _LABEL, _THREAD, _MEMORY_STATS}
_NODE_FIELDS = _LENGTH_DELIMITED_FIELDS | {field for numbers in _TIMES.values() for field in numbers}
_ALLOCATOR_FIELDS = {"requested_bytes": 2, "peak_bytes": 3, "live_bytes": 4}
_MEMORY_FIELDS = {"temp_bytes": 1, "persistent_bytes": 3}
_DESCRIPTION, _ALLOCATION_OF_TENSOR, _REQUESTED = 3, 4, 1
_MAX_MAGNITUDE = 1 << 62
_THOUSAND = 1000
EXECUTIONS_PER_BATCH = 1 << 17
"""Number of executions that are decoded together."""
TIMES = tuple(_TIMES)
FUNCTIONS = 4
GRAPH_FIELDS = {2: "cost graph", 3: "partition graph", FUNCTIONS: "function graph"}
"""Names of the fields of ``RunMetadata`` that contain graphs, by number."""


class TracedRuns(NamedTuple):
    """The run metadata messages of traced runs, and their locations in a buffer.

    Attributes:
        starts: Offset at which each message starts.
        stops: Offset at which each message ends.
        tags: Tag of each message.
        steps: Step of each message.
    """

    starts: Int64Array
    stops: Int64Array
    tags: pa.DictionaryArray
    steps: Int64Array


class Executions(NamedTuple):
    """A batch of executions of graph nodes.

    Attributes:
        columns: Columns of ``step_stats`` by name. Omitted columns are null. Times are in ns since 1970.
        rows: Number of executions.
    """

    columns: dict[str, pa.Array]
    rows: int


def find_traced_runs(buffer: Buffer, starts: Int64Array, stops: Int64Array, steps: Int64Array) -> TracedRuns:
    """Return the locations of the run metadata in tagged messages. Messages without run metadata are skipped.

    Args:
        buffer: The buffer that contains the tagged messages.
        starts: Offset at which each tagged message starts.
        stops: Offset at which each tagged message ends.
        steps: Step of each tagged message.

    Raises:
        Damage: A message is invalid.
    """
    fields = decode(buffer, starts, stops, {_TAG, _METADATA})
    tags = build_dictionary_column(buffer, fields.get(_TAG), len(starts))
    rows, metadata_starts, metadata_stops = _find_value_rows_and_spans(fields.get(_METADATA), np.arange(len(starts)))
    return TracedRuns(metadata_starts, metadata_stops, tags.take(pa.array(rows)), steps[rows])


def iterate_execution_batches(buffer: Buffer, traced_runs: TracedRuns) -> Iterator[Executions]:
    """Yield batches of the executions of graph nodes that are recorded in run metadata messages.

    Raises:
        Damage: A message is invalid, or a time or size is out of range.
    """
    run_rows, stats_starts, stats_stops = find_submessages(
        buffer, np.arange(len(traced_runs.starts)), traced_runs.starts, traced_runs.stops, _STEP_STATS
    )
    (devices,) = find_occurrences(buffer, stats_starts, stats_stops, (_DEVICES,))
    run_rows = run_rows[devices.rows]
    names = build_dictionary_column(
        buffer, decode(buffer, devices.starts, devices.stops, {_DEVICE}).get(_DEVICE), len(run_rows)
    )
    (executions,) = find_occurrences(buffer, devices.starts, devices.stops, (_NODES,))
    for first in range(0, len(executions), EXECUTIONS_PER_BATCH):
        nodes = Occurrences(
            *(
                column[first : first + EXECUTIONS_PER_BATCH]
                for column in (executions.rows, executions.starts, executions.stops)
            )
        )
        runs = run_rows[nodes.rows]
        columns = {
            "tag": traced_runs.tags.take(pa.array(runs)),
            "step": pa.array(traced_runs.steps[runs]),
            "device": names.take(pa.array(nodes.rows)),
            **_decode_node_columns(buffer, nodes),
        }
        yield Executions(columns, len(runs))


def count_fields(
    buffer: Buffer, starts: Int64Array, stops: Int64Array, field_names: Mapping[int, str] = GRAPH_FIELDS
) -> dict[str, int]:
    """Return how often each of the given fields occurs in all messages together, by field name.

    Fields that do not occur are omitted.

    Raises:
        Damage: A message is invalid.
    """
    occurrences_by_name = zip(
        field_names.values(), find_occurrences(buffer, starts, stops, tuple(field_names)), strict=True
    )
    return {name: len(occurrences) for name, occurrences in occurrences_by_name if len(occurrences)}


def find_submessages(
    buffer: Buffer, rows: Int64Array, starts: Int64Array, stops: Int64Array, field_number: int
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the row number, start offset and end offset of a submessage in each message.

    Messages without the submessage are skipped.

    Args:
        buffer: The buffer that contains the messages.
        rows: Row number of each message.
        starts: Offset at which each message starts.
        stops: Offset at which each message ends.
        field_number: Field number of the submessage.

    Raises:
        Damage: A message is invalid.
    """
    return _find_value_rows_and_spans(decode(buffer, starts, stops, {field_number}).get(field_number), rows)


def _find_value_rows_and_spans(field: Field | None, rows: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the row number, start offset and end offset of each value of a length-delimited field.

    Messages without the field are skipped.
    """
    if field is None or field.stops is None:
        empty = np.zeros(0, np.int64)
        return empty, empty, empty
    present = field.rows()
    return (rows if present is None else rows[present], *field.spans())


def _decode_node_columns(buffer: Buffer, nodes: Occurrences) -> dict[str, pa.Array]:
    n = len(nodes.rows)
    fields = decode(buffer, nodes.starts, nodes.stops, _NODE_FIELDS)
    columns: dict[str, pa.Array] = {
        "node_name": build_dictionary_column(buffer, fields.get(_NODE_NAME), n),
        "timeline_label": build_dictionary_column(buffer, fields.get(_LABEL), n),
        **_compute_time_columns(fields),
    }
    if (thread := _convert_to_signed_integers(fields.get(_THREAD))) is not None:
        columns["thread_id"] = _build_masked_array(*thread)
    columns |= _sum_allocator_columns(buffer, nodes) if _MEMORY in fields else {}
    columns |= (
        _sum_output_columns(buffer, nodes) if _OUTPUT in fields else {"output_count": pa.array(np.zeros(n, np.int64))}
    )
    if _MEMORY_STATS in fields:
        rows, memory_fields = _decode_memory_stats(buffer, fields[_MEMORY_STATS], n)
        for name, number in _MEMORY_FIELDS.items():
            if (column := _convert_to_signed_integers(memory_fields.get(number))) is not None:
                columns[name] = _build_masked_array(*_scatter_to_rows(column, rows, n))
    return columns


def _compute_time_columns(fields: Mapping[int, Field]) -> dict[str, pa.Array]:
    """Return the times of executions in ns by column name.

    Times that the file contains only in µs are converted to ns. The start time is added to relative times.
    """
    times = {name: _compute_times_in_ns(fields.get(us), fields.get(ns), name) for name, (us, ns) in _TIMES.items()}
    start = times["start_ns"]
    columns = {}
    for name, column in times.items():
        if column is not None and name not in _RELATIVE_TIMES:
            columns[name] = _build_masked_array(*column)
        elif column is not None and start is not None:
            columns[name] = _build_masked_array(column[0] + start[0], _combine_masks(column[1], start[1]))
    return columns


def _compute_times_in_ns(us_field: Field | None, ns_field: Field | None, name: str) -> MaskedColumn | None:
    microseconds, nanoseconds = _convert_to_signed_integers(us_field), _convert_to_signed_integers(ns_field)
    if microseconds is not None:
        _check_magnitude(microseconds, _MAX_MAGNITUDE // _THOUSAND, name, "µs")
        microseconds = (microseconds[0] * _THOUSAND, microseconds[1])
    if nanoseconds is None:
        return microseconds
    _check_magnitude(nanoseconds, _MAX_MAGNITUDE, name, "ns")
    if microseconds is None or nanoseconds[1] is None:
        return nanoseconds
    merged = np.where(nanoseconds[1], nanoseconds[0], microseconds[0])
    return merged, None if microseconds[1] is None else nanoseconds[1] | microseconds[1]


def _sum_allocator_columns(buffer: Buffer, nodes: Occurrences) -> dict[str, pa.Array]:
    """Return the requested, peak and live bytes of each execution by column name, summed over its allocators."""
    (allocators,) = find_occurrences(buffer, nodes.starts, nodes.stops, (_MEMORY,))
    allocator_fields = decode(buffer, allocators.starts, allocators.stops, _ALLOCATOR_FIELDS.values())
    return {
        name: _sum_by_row(_convert_to_signed_integers(allocator_fields.get(f)), allocators.rows, len(nodes.rows), name)
        for name, f in _ALLOCATOR_FIELDS.items()
    }


def _sum_output_columns(buffer: Buffer, nodes: Occurrences) -> dict[str, pa.Array]:
    """Return the number of outputs of each execution and their total size in bytes, by column name.

    The column of total sizes is omitted if the file contains no sizes.
    """
    n = len(nodes.rows)
    (outputs,) = find_occurrences(buffer, nodes.starts, nodes.stops, (_OUTPUT,))
    counts = pa.array(np.bincount(outputs.rows, minlength=n).astype(np.int64))
    description = decode(buffer, outputs.starts, outputs.stops, {_DESCRIPTION}).get(_DESCRIPTION)
    rows, starts, stops = find_submessages(
        buffer, *_find_value_rows_and_spans(description, outputs.rows), _ALLOCATION_OF_TENSOR
    )
    requested = _convert_to_signed_integers(decode(buffer, starts, stops, {_REQUESTED}).get(_REQUESTED))
    if requested is None:
        return {"output_count": counts}
    return {"output_count": counts, "output_bytes": _sum_by_row(requested, rows, n, "output_bytes")}


def _sum_by_row(column: MaskedColumn | None, rows: Int64Array, row_count: int, name: str) -> pa.Array:
    """Return the sum of the numbers of each row. The sum is null for rows without numbers.

    Args:
        column: The numbers, or None if all of them are missing and count as 0.
        rows: Row that each number belongs to.
        row_count: Number of rows of the result.
        name: Name of the column, for error messages.
    """
    total, has_values = np.zeros(row_count, np.int64), np.zeros(row_count, np.bool_)
    has_values[rows] = True
    if column is not None:
        _check_magnitude(column, _MAX_MAGNITUDE // max(1, len(rows)), name, "bytes")
        np.add.at(total, rows, column[0])
    return _build_masked_array(total, has_values)


def _decode_memory_stats(buffer: Buffer, field: Field, row_count: int) -> tuple[Int64Array, dict[int, Field]]:
    rows = field.rows()
    memory_fields = decode(buffer, *field.spans(), _MEMORY_FIELDS.values())
    return np.arange(row_count) if rows is None else rows, memory_fields


def _scatter_to_rows(column: MaskedColumn, rows: Int64Array, row_count: int) -> MaskedColumn:
    """Return a column of ``row_count`` rows with the given numbers in the given rows. All other rows are null."""
    numbers, mask = np.zeros(row_count, np.int64), np.zeros(row_count, np.bool_)
    numbers[rows] = column[0]
    mask[rows] = True if column[1] is None else column[1]
    return numbers, mask


def _convert_to_signed_integers(field: Field | None) -> MaskedColumn | None:
    return None if field is None or field.stops is not None else (field.values.view(np.int64), field.valid)


def _check_magnitude(column: MaskedColumn, limit: int, name: str, unit: str) -> None:
    largest = max(int(column[0].min()), int(column[0].max()), key=abs) if len(column[0]) else 0
    if abs(largest) >= limit:
        raise Damage(
            f"{name} of an execution is {largest} {unit}, but its absolute value must be less than {limit} {unit}"
        )


def _combine_masks(left: Mask | None, right: Mask | None) -> Mask | None:
    """Return a mask that is True where both masks are True. A mask that is None is True everywhere."""
    return right if left is None else left if right is None else left & right


def _build_masked_array(numbers: Int64Array, known: Mask | None) -> pa.Array:
    return pa.array(numbers, mask=None if known is None else ~known)
