"""Build the events of the allocator, and the memory in use after each of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections import Counter

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.pickled_stacks import PickledStacks
    from tracekit.readers.common.pickles import CellArray, Int64Array, ListEncoder, Mask, Values

_OPERATIONS = {
    "alloc": "allocate",
    "free_requested": "request free",
    "free_completed": "free",
    "segment_alloc": "allocate segment",
    "segment_free": "free segment",
    "segment_map": "map segment",
    "segment_unmap": "unmap segment",
    "oom": "out of memory",
}
"""Names of the operations in the table, by recorded name. Other names are not changed."""
_ALLOCATED = {"allocate": 1, "free": -1}
_RESERVED = {"allocate segment": 1, "map segment": 1, "free segment": -1, "unmap segment": -1}
"""Signs with which the sizes of events change the memory in use."""
_NUMBERS = {"addr": "address", "size": "bytes", "stream": "stream_id", "device_free": "free_bytes", "time_us": "time"}
_TEXTS = {"compile_context": "compile_context", "user_metadata": "metadata", "category": "category"}
_NO_TEXT = ("", "N/A")
_BATCH = 1 << 15
_ROW_BYTES = 120
NS_PER_US = 1000
MAX_US = (1 << 63) // NS_PER_US - 1


class InUse(NamedTuple):
    """Memory of a device at the end of the recording, in bytes. A value is None if the snapshot does not contain it."""

    allocated: int | None
    reserved: int | None


class _Numbers:
    """A column of integers that is filled batch by batch."""

    def __init__(self, rows: int) -> None:
        self.values = np.zeros(rows, np.int64)
        self._valid = np.zeros(rows, bool)

    def fill(self, rows: slice, values: Int64Array, valid: Mask) -> None:
        self.values[rows] = values
        self._valid[rows] = valid

    @property
    def valid(self) -> Mask:
        return self._valid

    def finish(self) -> pa.Array:
        return build_number_array(self.values, None if self._valid.all() else self._valid)


class AllocatorEvents:
    """The events of all devices.

    Attributes:
        count: Number of events.
        stacks: Code of the list of frames of each event.
    """

    def __init__(
        self, values: Values, traces: CellArray, budget: Budget, encoder: ListEncoder, unknown: Counter[str]
    ) -> None:
        """Read the events.

        Args:
            values: The values of the pickle.
            traces: Lists of events, one per device.
            budget: Memory budget for the table.
            encoder: Encoder of lists of frames.
            unknown: Counter of members with unknown names, to which those of the events are added.

        Raises:
            Damage: An event is invalid, or the events exceed the memory budget.
        """
        counts = []
        for trace in budget.reserve_each(traces.tolist(), "devices"):
            counts.append(values.count_items(trace))
            budget.reserve(counts[-1], _ROW_BYTES, "rows of allocator_events")
        self.count = sum(counts)
        self.devices = np.repeat(np.arange(len(traces), dtype=np.int32), counts)
        self._edges = [0, *np.cumsum(counts, dtype=np.int64).tolist()]
        self._numbers = {column: _Numbers(self.count) for column in _NUMBERS.values()}
        texts = {name: np.empty(self.count, np.int32) for name in ("action", *_TEXTS.values())}
        self.stacks = np.empty(self.count, np.int32)
        start = 0
        for cells in itertools.chain.from_iterable(map(values.iterate_items, traces.tolist())):
            for first in range(0, len(cells), _BATCH):
                batch = cells[first : first + _BATCH]
                rows = slice(start, start + len(batch))
                columns = values.columns(batch, ("action", "frames", *_NUMBERS, *_TEXTS), "events", unknown)
                for key, column in _NUMBERS.items():
                    self._numbers[column].fill(rows, *values.integers(columns[key], key))
                for key, column in {"action": "action", **_TEXTS}.items():
                    texts[column][rows] = values.find_strings(columns[key], key)
                self.stacks[rows] = encoder.encode(columns["frames"])
                start = rows.stop
        self._operations = _name_operations(values.encode(texts.pop("action")))
        self._texts = {name: values.encode(indices, _NO_TEXT) for name, indices in texts.items()}

    @property
    def times_us(self) -> Int64Array:
        """The recorded times in µs."""
        return self._numbers["time"].values[self._numbers["time"].valid]

    def build_table(self, origin_us: int, in_use: dict[int, InUse], stacks: PickledStacks) -> pa.Table:
        """Return the table ``allocator_events``. The columns of the events become those of the table.

        Args:
            origin_us: Time of the trace origin.
            in_use: Memory at the end of the recording, by device.
            stacks: The call stacks.
        """
        time = self._numbers.pop("time")
        time.values -= origin_us
        time.values *= NS_PER_US
        time.values[~time.valid] = 0
        allocated, reserved = (
            self._compute_usage(signs, {device: memory[n] for device, memory in in_use.items()})
            for n, signs in enumerate((_ALLOCATED, _RESERVED))
        )
        return pa.table(
            {
                "allocator_event_id": build_number_array(np.arange(1, self.count + 1)),
                "timestamp_ns": time.finish(),
                "device_id": build_number_array(self.devices),
                "operation": self._operations,
                **{name: column.finish() for name, column in self._numbers.items()},
                "allocated_bytes": allocated,
                "reserved_bytes": reserved,
                **stacks.get_ids(self.stacks)._asdict(),
                **self._texts,
            }
        )

    def _compute_usage(self, signs: dict[str, int], in_use: dict[int, int | None]) -> pa.Array:
        """Return the memory in use after each event: that at the end of the recording, less all later changes.

        It is null if the snapshot does not contain the memory at the end of the recording, or if it would be negative.
        """
        sign = np.array([signs.get(name, 0) for name in self._operations.dictionary.to_pylist()], np.int64)
        changes = sign[self._operations.indices.to_numpy()]
        changes *= self._numbers["bytes"].values
        valid = np.zeros(self.count, bool)
        for device, (start, stop) in enumerate(itertools.pairwise(self._edges)):
            usage, last = changes[start:stop], in_use.get(device, 0)
            np.cumsum(usage, out=usage)
            if start == stop or last is None:
                continue
            usage += last - usage[-1]
            valid[start:stop] = usage.min() >= 0
        changes[~valid] = 0
        return build_number_array(changes, None if valid.all() else valid)


def _name_operations(actions: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the operations of the table, from the recorded actions."""
    if actions.null_count:
        raise Damage(f"{actions.null_count:,} events of the snapshot have no action")
    names = pa.array([_OPERATIONS.get(name, name) for name in actions.dictionary.to_pylist()], pa.string())
    distinct = names.unique()
    if len(distinct) == len(names):
        return pa.DictionaryArray.from_arrays(actions.indices, names)
    return pa.DictionaryArray.from_arrays(pc.index_in(names, distinct).take(actions.indices), distinct)
