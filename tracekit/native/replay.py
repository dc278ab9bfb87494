"""Replay an event model: compute when each item of the CPU and each op of the GPUs starts and ends.

An *item* is work of one thread of the CPU between two points at which it may depend on something else. An *op* is an
activity of a GPU. The items of all threads are listed in one order, in which each item follows the items that it waits
for. The ops are listed in the order in which the items launch them. All times are in ns.

- An item starts at the end of the previous item of its lane (for the first item: ``cpu_lane_start``), at the end of the
  item ``item_after``, or at ``item_earliest``, whichever is latest.
- An op starts ``op_delay`` after the start of the item that launches it, ``op_gap`` after the end of all previous ops
  of its lane (for the first op: at ``gpu_lane_start``), or ``op_dependency_gap`` after the end of the op
  ``op_dependency``, whichever is latest. It ends ``op_duration`` later.
- An item ends ``item_duration`` after its start. If it waits, it ends no earlier than ``item_wait_residue`` after the
  end (``WAIT_FOR_END``) or start (``WAIT_FOR_START``) of the op ``item_wait_target``, which this item or an earlier one
  launches.

Importing this module imports ``wasmtime``, which takes about 40 ms. It should be imported when it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.native.program import MAX_PARAMETERS, PARAMETERS, Program
from tracekit.native.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Mapping

Int64s: TypeAlias = npt.NDArray[np.int64]
Array: TypeAlias = npt.NDArray[np.generic]

NO_WAIT: Final = 0
WAIT_FOR_END: Final = 1
WAIT_FOR_START: Final = 2
NONE: Final = -1
"""Value of ``item_after``, ``item_wait_target`` and ``op_dependency`` for items and ops that depend on nothing."""
ANY_TIME: Final = -(2**63)
"""Value of ``item_earliest`` and ``gpu_lane_start`` for items and lanes that may start at any time."""


class _Array(NamedTuple):
    """What an array has one value for, its data type, and the value of arrays of the model that are omitted."""

    dimension: str
    dtype: type[np.generic]
    default: int | None = None


_INPUTS: Final = {
    "cpu_lane_start": _Array("cpu_lanes", np.int64),
    "gpu_lane_start": _Array("gpu_lanes", np.int64),
    "item_lane": _Array("items", np.int32),
    "item_duration": _Array("items", np.int64),
    "item_op_count": _Array("items", np.int32),
    "item_wait_kind": _Array("items", np.uint8, NO_WAIT),
    "item_wait_target": _Array("items", np.int32, NONE),
    "item_wait_residue": _Array("items", np.int64, 0),
    "item_after": _Array("items", np.int32, NONE),
    "item_earliest": _Array("items", np.int64, ANY_TIME),
    "op_lane": _Array("ops", np.int32),
    "op_duration": _Array("ops", np.int64),
    "op_delay": _Array("ops", np.int64, 0),
    "op_gap": _Array("ops", np.int64, 0),
    "op_dependency": _Array("ops", np.int32, NONE),
    "op_dependency_gap": _Array("ops", np.int64, 0),
}
_OUTPUTS: Final = {
    "item_start": _Array("items", np.int64),
    "item_end": _Array("items", np.int64),
    "op_start": _Array("ops", np.int64),
    "op_end": _Array("ops", np.int64),
}
_LAST_OF_LANES: Final = {"cpu_lane_last": _Array("cpu_lanes", np.int32), "gpu_lane_last": _Array("gpu_lanes", np.int32)}
"""Arrays that only the program uses."""
_ARRAYS: Final = {**_INPUTS, **_OUTPUTS, **_LAST_OF_LANES}
"""All arrays, in the order in which the program reads their offsets."""
_DIMENSIONS: Final = {
    "cpu_lanes": "cpu_lane_start",
    "gpu_lanes": "gpu_lane_start",
    "items": "item_lane",
    "ops": "op_lane",
}
"""The array that determines the size of each dimension."""
_RULES: Final = {
    1: ("item_lane", "must be the index of a lane in cpu_lane_start"),
    2: ("item_after", "must be the index of an earlier item, or -1"),
    3: ("item_op_count", "must be at least 0, and the sum of all counts must be the number of ops"),
    4: ("item_wait_kind", "must be 0, 1 or 2"),
    5: ("item_wait_target", "must be the index of an op that this item or an earlier item launches"),
    7: ("op_lane", "must be the index of a lane in gpu_lane_start"),
    8: ("op_dependency", "must be the index of an earlier op, or -1"),
}
"""For each result of the program: the array with an invalid value, and the rule for its values."""
_OVERFLOWS: Final = {6: "item", 9: "op"}
PROGRAM: Final = Program(
    "replay",
    {"replay": (*_DIMENSIONS, "arrays", "position")},
    {
        "DONE": 0,
        **{name.upper(): result for result, (name, _) in _RULES.items()},
        **{f"{kind}_time".upper(): result for result, kind in _OVERFLOWS.items()},
        "NO_WAIT": NO_WAIT,
        "WAIT_FOR_END": WAIT_FOR_END,
        "WAIT_FOR_START": WAIT_FOR_START,
    },
)
_TABLE: Final = PARAMETERS + 4 * MAX_PARAMETERS
"""Offset in memory of the offsets of the arrays."""
_MAX_BYTES: Final = (1 << 32) - (1 << 16)


class ReplayResult(NamedTuple):
    """The start and end of each item and op in ns."""

    item_start: Int64s
    item_end: Int64s
    op_start: Int64s
    op_end: Int64s


class Replay:
    """An event model in the memory of a sandbox. Only one thread at a time may use it.

    The memory contains space for each array of the model twice: for the array itself, which never changes, and for the
    array that replaces it in a run. Space that is never used takes up only address space.
    """

    def __init__(self, **arrays: Array) -> None:
        """Copy a model into a sandbox.

        Args:
            **arrays: The arrays of the model by name, as described in the documentation of this module. The data types
                are those of ``_INPUTS``, or smaller ones. ``cpu_lane_start``, ``gpu_lane_start``, ``item_lane``,
                ``item_duration``, ``item_op_count``, ``op_lane`` and ``op_duration`` are required. By default, items
                and ops depend on nothing else, and delays and gaps are 0.

        Raises:
            TypeError: An array is missing or unknown, or its data type has values that are too large.
            ValueError: An array has the wrong length.
            MemoryError: The memory cannot be allocated, or would exceed 4 GiB.
        """
        missing = [name for name, (_, _, default) in _INPUTS.items() if default is None and name not in arrays]
        if missing:
            raise TypeError(f"the model has no {', '.join(missing)}")
        self._sizes = {dimension: len(arrays[name]) for dimension, name in _DIMENSIONS.items()}
        self._check_arrays(arrays)
        end = _TABLE + 4 * len(_ARRAYS)
        offsets = []
        for dimension, dtype, _ in (*_ARRAYS.values(), *_INPUTS.values()):
            offsets.append(-(-end // 8) * 8)
            end = offsets[-1] + self._sizes[dimension] * np.dtype(dtype).itemsize
        if end > _MAX_BYTES:
            raise MemoryError(f"the model needs {end} bytes, and at most {_MAX_BYTES} are possible")
        self._offsets = dict(zip(_ARRAYS, offsets, strict=False))
        self._edit_offsets = dict(zip(_INPUTS, offsets[len(_ARRAYS) :], strict=True))
        self._sandbox = Sandbox(PROGRAM, end, lambda: MemoryError("the replay left its memory"))
        for name, (_, _, default) in _INPUTS.items():
            self._view(name, self._offsets)[:] = arrays.get(name, default)

    def run(self, **edits: Array) -> ReplayResult:
        """Compute all starts and ends.

        Args:
            **edits: Arrays that replace arrays of the model in this run, by name. They have the same lengths.

        Raises:
            TypeError: An array is unknown, or its data type has values that are too large.
            ValueError: An array has the wrong length, or contains an invalid value.
            OverflowError: A time exceeds the range of 64-bit integers.
        """
        self._check_arrays(edits)
        offsets = self._offsets | {name: self._edit_offsets[name] for name in edits}
        for name, values in edits.items():
            self._view(name, offsets)[:] = values
        self._sandbox.array(_TABLE, len(_ARRAYS), np.uint32)[:] = list(offsets.values())
        result = self._sandbox.call("replay", **self._sizes, arrays=_TABLE)
        if result:
            self._raise_error(result, offsets)
        return ReplayResult(*(self._view(name, offsets).copy() for name in _OUTPUTS))

    def _view(self, name: str, offsets: Mapping[str, int]) -> npt.NDArray[Any]:
        dimension, dtype, _ = _ARRAYS[name]
        return self._sandbox.array(offsets[name], self._sizes[dimension], dtype)

    def _check_arrays(self, arrays: Mapping[str, Array]) -> None:
        for name, values in arrays.items():
            if name not in _INPUTS:
                raise TypeError(f"the model has no array {name}, only {', '.join(_INPUTS)}")
            dimension, dtype, _ = _INPUTS[name]
            if not np.can_cast(values.dtype, dtype, "safe"):
                raise TypeError(f"{name} has the data type {values.dtype}, which cannot be stored as {np.dtype(dtype)}")
            if values.shape != (self._sizes[dimension],):
                raise ValueError(
                    f"{name} has the shape {values.shape}, but the model has {self._sizes[dimension]} {dimension}"
                )

    def _raise_error(self, result: int, offsets: Mapping[str, int]) -> NoReturn:
        position = self._sandbox.parameter("replay", "position")
        if result in _OVERFLOWS:
            raise OverflowError(f"a time of {_OVERFLOWS[result]} {position} exceeds the range of 64-bit integers")
        name, rule = _RULES[result]
        values = self._view(name, offsets)
        if position == len(values):
            raise ValueError(f"the sum of {name} is {values.sum()}, but the model has {self._sizes['ops']} ops")
        raise ValueError(f"{name}[{position}] is {values[position]}, but it {rule}")
