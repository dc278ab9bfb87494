"""Build the segments and their blocks."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.readers.common.columns import build_number_array, compact_dictionary
from tracekit.readers.common.damage import Damage
from tracekit.readers.memory_snapshot.events import InUse

if TYPE_CHECKING:
    from collections import Counter

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.pickled_stacks import PickledStacks
    from tracekit.readers.common.pickles import CellArray, Int64Array, ListEncoder, Values

_NUMBERS = {
    "device": "device_id",
    "stream": "stream_id",
    "address": "address",
    "total_size": "bytes",
    "allocated_size": "allocated_bytes",
    "active_size": "active_bytes",
    "requested_size": "requested_bytes",
    "is_expandable": "is_expandable",
}
_BLOCK_NUMBERS = {"address": "address", "size": "bytes", "requested_size": "requested_bytes"}
_STATES = {
    "active_allocated": "allocated",
    "active_pending_free": "awaiting free",
    "active_awaiting_free": "awaiting free",
}
"""Names of the states in the table, by recorded name. Other names are not changed."""
_IN_USE = ("allocated", "awaiting free")
_ROW_BYTES, _MAX_DEVICES = 128, 1 << 16


class MemorySegments:
    """The segments of a snapshot and their blocks."""

    def __init__(
        self, values: Values, segments: CellArray, budget: Budget, encoder: ListEncoder, unknown: Counter[str]
    ) -> None:
        """Read the segments.

        Args:
            values: The values of the pickle.
            segments: Cells of the segments.
            budget: Memory budget for the tables.
            encoder: Encoder of lists of frames.
            unknown: Counter of members with unknown names, to which those of the segments and blocks are added.

        Raises:
            Damage: A segment is invalid, or the blocks exceed the memory budget.
        """
        budget.reserve(len(segments), _ROW_BYTES, "rows of memory_segments")
        keys = (*_NUMBERS, "segment_type", "segment_pool_id", "frames", "blocks")
        cells = values.columns(segments, keys, "segments", unknown)
        numbers = {column: values.integers(cells[key], key) for key, column in _NUMBERS.items()}
        for column in ("device_id", "bytes"):
            if not numbers[column][1].all():
                raise Damage(f"segments of the snapshot have no {column}")
        devices = numbers["device_id"][0]
        if ((devices < 0) | (devices >= _MAX_DEVICES)).any():
            raise Damage("a segment of the snapshot has an invalid device")
        self.devices = devices.astype(np.int32)
        self._stacks = encoder.encode(cells["frames"])
        expandable, has_expandable = numbers.pop("is_expandable")
        self._columns = {
            name: build_number_array(n, None if valid.all() else valid) for name, (n, valid) in numbers.items()
        }
        self._columns |= {
            "segment_id": build_number_array(np.arange(1, len(segments) + 1)),
            "device_id": build_number_array(self.devices),
            "segment_type": values.encode(values.find_strings(cells["segment_type"], "segment_type")),
            "pool": _name_pools(values, cells["segment_pool_id"]),
            "is_expandable": pa.array(expandable > 0, mask=~has_expandable),
        }
        self._sizes = numbers["bytes"][0]
        self._addresses = numbers["address"][0]
        offsets, blocks = values.flatten(cells["blocks"], "blocks by segment")
        budget.reserve(len(blocks), _ROW_BYTES, "rows of memory_blocks")
        self._read_blocks(values, offsets, blocks, encoder, unknown)

    def _read_blocks(
        self, values: Values, offsets: Int64Array, blocks: CellArray, encoder: ListEncoder, unknown: Counter[str]
    ) -> None:
        keys = (*_BLOCK_NUMBERS, "state", "frames", "history")
        cells = values.columns(blocks, keys, "blocks", unknown)
        _move_history(values, cells)
        self._block_stacks = encoder.encode(cells["frames"])
        self._owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        numbers = {column: values.integers(cells[key], key) for key, column in _BLOCK_NUMBERS.items()}
        sizes, has_size = numbers["bytes"]
        if not has_size.all():
            raise Damage("blocks of the snapshot have no size")
        if not numbers["address"][1].any():  # PyTorch up to 2.0
            ends = np.cumsum(sizes)
            starts = ends - sizes
            first = np.append(starts, 0)[np.minimum(offsets[:-1], max(len(starts) - 1, 0))]
            numbers["address"] = self._addresses[self._owners] + starts - first[self._owners], has_size
        states = values.encode(values.find_strings(cells["state"], "state"))
        names = [_STATES.get(name, name) for name in states.dictionary.to_pylist()]
        state_codes = states.indices.fill_null(len(names)).to_numpy()
        self._in_use = np.array([*(name in _IN_USE for name in names), False])[state_codes]
        self._requested = numbers["requested_bytes"]
        self._block_columns = {
            "block_id": build_number_array(np.arange(1, len(blocks) + 1)),
            "segment_id": build_number_array(self._owners + 1),
            **{name: build_number_array(n, None if valid.all() else valid) for name, (n, valid) in numbers.items()},
            "state": compact_dictionary(pa.array(state_codes), pa.array([*names, None], pa.string())),
        }

    def sum_by_device(self) -> dict[int, InUse]:
        """Return the memory of each device at the end of the recording."""
        requested, has_requested = self._requested
        of_block = self.devices[self._owners]
        reserved, allocated = np.zeros((2, _MAX_DEVICES), np.int64)
        np.add.at(reserved, self.devices, self._sizes)
        np.add.at(allocated, of_block[self._in_use], requested[self._in_use])
        unknown = set(of_block[self._in_use & ~has_requested].tolist())
        return {
            device: InUse(None if device in unknown else int(allocated[device]), int(reserved[device]))
            for device in dict.fromkeys(self.devices.tolist())
        }

    def build_tables(self, stacks: PickledStacks) -> dict[str, pa.Table]:
        """Return the tables of the segments and blocks, with the ids of their call stacks."""
        ids = stacks.get_ids(self._block_stacks)._asdict()
        return {
            "memory_segments": pa.table({**self._columns, "stack_id": stacks.get_ids(self._stacks).stack_id}),
            "memory_blocks": pa.table(self._block_columns | ids),
        }


def _move_history(values: Values, cells: dict[str, CellArray]) -> None:
    """Take the requested size and frames of blocks from their history, where PyTorch up to 2.0 stores them."""
    offsets, entries = values.flatten(cells.pop("history"), "histories of blocks")
    rows = np.flatnonzero(np.diff(offsets))
    if len(rows):
        first = values.columns(entries[offsets[rows]], ("real_size", "frames"), "histories of blocks")
        for key, column in (("real_size", "requested_size"), ("frames", "frames")):
            missing = cells[column][rows] == 0
            cells[column][rows[missing]] = first[key][missing]


def _name_pools(values: Values, cells: CellArray) -> pa.DictionaryArray:
    """Return the names of private memory pools, whose ids are pairs of numbers. The common pool has no name."""
    offsets, parts = values.flatten(cells, "ids of memory pools")
    numbers, _ = values.integers(parts, "segment_pool_id")
    edges, ids = offsets.tolist(), numbers.tolist()
    pools = [ids[start:stop] for start, stop in itertools.pairwise(edges)]
    names = [".".join(map(str, pool)) if any(pool) else None for pool in pools]
    return pa.array(names, pa.string()).dictionary_encode()
