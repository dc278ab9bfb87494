"""Traced runs of TensorFlow (RunMetadata): the executions of nodes on devices, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.common.protobuf.occurrences import Occurrences, occurrences
from tracekit.readers.tfevents import texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Mask, Places

    Column: TypeAlias = tuple[Places, Mask | None]
    """n numbers, and where they are known; None if everywhere."""

_TAG, _METADATA = 1, 2
_STEP_STATS, _DEVICES = 1, 1
_DEVICE, _NODES = 1, 2
_NODE_NAME, _MEMORY, _OUTPUT, _LABEL, _THREAD, _MEMORY_STATS = 1, 6, 7, 8, 10, 12
_TIMES = {"start_ns": (2, 13), "op_start_ns": (3, 14), "op_end_ns": (4, 15), "end_ns": (5, 16), "scheduled_ns": (9, 17)}
"""Fields that hold a time in us and in ns."""
_AFTER_START = ("op_start_ns", "op_end_ns", "end_ns")
_TEXTS_AND_PARTS = {_NODE_NAME, _MEMORY, _OUTPUT, _LABEL, _THREAD, _MEMORY_STATS}
_NODE_FIELDS = _TEXTS_AND_PARTS | {field for both in _TIMES.values() for field in both}
_OF_ALLOCATORS = {"requested_bytes": 2, "peak_bytes": 3, "live_bytes": 4}
_OF_MEMORY = {"temp_bytes": 1, "persistent_bytes": 3}
_DESCRIPTION, _ALLOCATION_OF_TENSOR, _REQUESTED = 3, 4, 1
_LARGEST = 1 << 62
_THOUSAND = 1000
EXECUTIONS = 1 << 17
"""Executions taken apart at a time."""
TIMES = tuple(_TIMES)
FUNCTIONS = 4
OTHERS = {2: "cost graph", 3: "partition graph", FUNCTIONS: "function graph"}
"""What run metadata hold beside step stats."""


class Runs(NamedTuple):
    """Run metadata in a buffer.

    Attributes:
        starts: n places where they begin.
        stops: n places where they end.
        tags: n tags.
        steps: n steps.
    """

    starts: Places
    stops: Places
    tags: pa.DictionaryArray
    steps: Places


class Executions(NamedTuple):
    """Executions of nodes.

    Attributes:
        columns: Columns of ``step_stats`` by name; those that are not there are null. Times are absolute.
        rows: Their number.
    """

    columns: dict[str, pa.Array]
    rows: int


def tagged(buffer: Buffer, starts: Places, stops: Places, steps: Places) -> Runs:
    """Find run metadata in tagged ones: n places where these begin and end and n steps in; m runs out, n at most.

    Raises:
        Damage: One is no message.
    """
    fields = decode(buffer, starts, stops, {_TAG, _METADATA})
    tags = texts.named(buffer, fields.get(_TAG), len(starts))
    rows, begins, ends = _spans(fields.get(_METADATA), np.arange(len(starts)))
    return Runs(begins, ends, tags.take(pa.array(rows)), steps[rows])


def read(buffer: Buffer, traced: Runs) -> Iterator[Executions]:
    """Read traced runs, some thousands of executions at a time.

    Raises:
        Damage: One is no message, or a time or size is beyond all there are.
    """
    of_run, begins, ends = deeper(buffer, np.arange(len(traced.starts)), traced.starts, traced.stops, _STEP_STATS)
    (devices,) = occurrences(buffer, begins, ends, (_DEVICES,))
    of_run = of_run[devices.rows]
    names = texts.named(buffer, decode(buffer, devices.starts, devices.stops, {_DEVICE}).get(_DEVICE), len(of_run))
    (found,) = occurrences(buffer, devices.starts, devices.stops, (_NODES,))
    for first in range(0, len(found), EXECUTIONS):
        nodes = Occurrences(*(column[first : first + EXECUTIONS] for column in (found.rows, found.starts, found.stops)))
        runs = of_run[nodes.rows]
        columns = {
            "tag": traced.tags.take(pa.array(runs)),
            "step": pa.array(traced.steps[runs]),
            "device": names.take(pa.array(nodes.rows)),
            **_nodes(buffer, nodes),
        }
        yield Executions(columns, len(runs))


def others(buffer: Buffer, starts: Places, stops: Places, names: Mapping[int, str] = OTHERS) -> dict[str, int]:
    """Count parts of messages: n places where these begin and end in, and names of fields; counts by name out.

    Raises:
        Damage: One is no message.
    """
    counted = zip(names.values(), occurrences(buffer, starts, stops, tuple(names)), strict=True)
    return {name: len(parts) for name, parts in counted if len(parts)}


def deeper(buffer: Buffer, rows: Places, starts: Places, stops: Places, number: int) -> tuple[Places, Places, Places]:
    """Go one message deeper: rows of n messages and their places in, those of a field that they hold once out.

    Raises:
        Damage: One is no message.
    """
    return _spans(decode(buffer, starts, stops, {number}).get(number), rows)


def _spans(field: Field | None, rows: Places) -> tuple[Places, Places, Places]:
    """Return the rows that have a field of bytes, and where these begin and end."""
    if field is None or field.stops is None:
        none = np.zeros(0, np.int64)
        return none, none, none
    kept = field.rows()
    return (rows if kept is None else rows[kept], *field.spans())


def _nodes(buffer: Buffer, nodes: Occurrences) -> dict[str, pa.Array]:
    n = len(nodes.rows)
    fields = decode(buffer, nodes.starts, nodes.stops, _NODE_FIELDS)
    columns: dict[str, pa.Array] = {
        "node_name": texts.named(buffer, fields.get(_NODE_NAME), n),
        "timeline_label": texts.named(buffer, fields.get(_LABEL), n),
        **_times(fields),
    }
    if (thread := _number(fields.get(_THREAD))) is not None:
        columns["thread_id"] = _array(*thread)
    columns |= _allocators(buffer, nodes) if _MEMORY in fields else {}
    columns |= _outputs(buffer, nodes) if _OUTPUT in fields else {"output_count": pa.array(np.zeros(n, np.int64))}
    if _MEMORY_STATS in fields:
        rows, found = _message(buffer, fields[_MEMORY_STATS], n)
        for name, number in _OF_MEMORY.items():
            if (column := _number(found.get(number))) is not None:
                columns[name] = _array(*_spread(column, rows, n))
    return columns


def _times(fields: Mapping[int, Field]) -> dict[str, pa.Array]:
    """Make times of their parts: ns where the file has them, else us."""
    made = {name: _in_ns(fields.get(us), fields.get(ns), name) for name, (us, ns) in _TIMES.items()}
    start = made["start_ns"]
    columns = {}
    for name, column in made.items():
        if column is not None and name not in _AFTER_START:
            columns[name] = _array(*column)
        elif column is not None and start is not None:
            columns[name] = _array(column[0] + start[0], _both(column[1], start[1]))
    return columns


def _in_ns(us: Field | None, ns: Field | None, name: str) -> Column | None:
    coarse, fine = _number(us), _number(ns)
    if coarse is not None:
        _check(coarse, _LARGEST // _THOUSAND, name)
        coarse = (coarse[0] * _THOUSAND, coarse[1])
    if fine is None:
        return coarse
    _check(fine, _LARGEST, name)
    if coarse is None or fine[1] is None:
        return fine
    both = np.where(fine[1], fine[0], coarse[0])
    return both, None if coarse[1] is None else fine[1] | coarse[1]


def _allocators(buffer: Buffer, nodes: Occurrences) -> dict[str, pa.Array]:
    """Sum over the allocators of each execution."""
    (parts,) = occurrences(buffer, nodes.starts, nodes.stops, (_MEMORY,))
    found = decode(buffer, parts.starts, parts.stops, _OF_ALLOCATORS.values())
    return {name: _sums(_number(found.get(f)), parts.rows, len(nodes.rows), name) for name, f in _OF_ALLOCATORS.items()}


def _outputs(buffer: Buffer, nodes: Occurrences) -> dict[str, pa.Array]:
    """Count the outputs of each execution, and sum their sizes."""
    n = len(nodes.rows)
    (parts,) = occurrences(buffer, nodes.starts, nodes.stops, (_OUTPUT,))
    counts = pa.array(np.bincount(parts.rows, minlength=n).astype(np.int64))
    described = decode(buffer, parts.starts, parts.stops, {_DESCRIPTION}).get(_DESCRIPTION)
    rows, starts, stops = deeper(buffer, *_spans(described, parts.rows), _ALLOCATION_OF_TENSOR)
    found = _number(decode(buffer, starts, stops, {_REQUESTED}).get(_REQUESTED))
    if found is None:
        return {"output_count": counts}
    return {"output_count": counts, "output_bytes": _sums(found, rows, n, "output_bytes")}


def _sums(column: Column | None, rows: Places, n: int, name: str) -> pa.Array:
    """Add up m numbers by row; a row without any is null."""
    total, some = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    some[rows] = True
    if column is not None:
        _check(column, _LARGEST // max(1, len(rows)), name)
        np.add.at(total, rows, column[0])
    return _array(total, some)


def _message(buffer: Buffer, field: Field, n: int) -> tuple[Places, dict[int, Field]]:
    rows = field.rows()
    found = decode(buffer, *field.spans(), _OF_MEMORY.values())
    return np.arange(n) if rows is None else rows, found


def _spread(column: Column, rows: Places, n: int) -> Column:
    """Put m numbers into n rows."""
    numbers, known = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    numbers[rows] = column[0]
    known[rows] = True if column[1] is None else column[1]
    return numbers, known


def _number(field: Field | None) -> Column | None:
    return None if field is None or field.stops is not None else (field.values.view(np.int64), field.valid)


def _check(column: Column, most: int, name: str) -> None:
    if len(column[0]) and max(int(column[0].max()), -int(column[0].min())) >= most:
        raise Damage(f"{name} of an execution is beyond all numbers")


def _both(one: Mask | None, other: Mask | None) -> Mask | None:
    return other if one is None else one if other is None else one & other


def _array(numbers: Places, known: Mask | None) -> pa.Array:
    return pa.array(numbers, mask=None if known is None else ~known)
