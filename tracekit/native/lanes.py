"""Assign the overlapping slices of tracks to lanes, so that no viewer drops a slice.

Slices on the same lane never overlap, unless they may be nested. An *overlap group* is a maximal sequence of slices of
a track, ordered by start, in which each slice after the first starts while an earlier slice is open. A slice that
overlaps no other slice is on lane 0. An overlap group in which at most n slices are open at once uses the lanes 0 to
n - 1. A track therefore has as few lanes as possible. If slices on the same lane may be nested, only groups with slices
that overlap without being nested use several lanes.

The slices are read twice, in chunks, in the order of their starts: once to find the groups, and once to assign lanes,
because the number of lanes of a group is known only at its end. Besides a chunk, only the open slices are in memory.

Importing this module imports ``wasmtime``, which takes about 40 ms. It should be imported when it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.native.arrays import ArraySandbox
from tracekit.native.program import Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    Int64s = npt.NDArray[np.int64]
    Numbers = npt.NDArray[np.uint32]

_CHUNK_ROWS: Final = 1 << 16
_FREE, _GROUPS, _CROSSES = range(3)
_PER_ROW: dict[str, type[np.generic]] = {"starts": np.int64, "ends": np.int64, "tracks": np.uint32, "lanes": np.uint32}
_PER_TRACK: dict[str, type[np.generic]] = {
    "latest_ends": np.int64,
    **dict.fromkeys(("roots", "open", "peaks", "crosses", "first_rows", "lane_counts"), np.uint32),
}
_PER_NODE: dict[str, type[np.generic]] = {
    "node_ends": np.int64,
    **dict.fromkeys(("node_rows", "node_lanes", "children", "siblings"), np.uint32),
}
_ARRAYS: Final[dict[str, type[np.generic]]] = {
    **_PER_ROW,
    **_PER_TRACK,
    **_PER_NODE,
    **dict.fromkeys(("state", "group_rows", "group_lanes"), np.uint32),
}
_PARAMETERS = ("rows", "base", "track_count")
PROGRAM: Final = Program(
    "lanes",
    {"overlaps": (*_PARAMETERS, "nests", "is_last"), "lanes": _PARAMETERS},
    {"FREE": _FREE, "GROUPS": _GROUPS, "CROSSES": _CROSSES, "INVALID": -1},
    {"lanes": _ARRAYS},
)


class LaneSweep:
    """A sweep over the slices of tracks.

    Call ``find_overlaps`` for all slices, ``finish_overlaps``, and then ``assign_lanes`` for all slices. Both read the
    slices in the order of their starts. Of slices that start at the same time, the longest is first.

    Attributes:
        lane_counts: Number of lanes of each track, once ``finish_overlaps`` was called.
        has_crossings: Whether any slices of a track overlap without being nested.
    """

    def __init__(self, track_count: int, *, nests: bool) -> None:
        """Prepare a sweep.

        Args:
            track_count: Number of tracks.
            nests: Whether slices on the same lane may be nested.
        """
        self._sandbox = ArraySandbox(PROGRAM)
        self._track_count = track_count
        self._nests = nests
        self._node_count = 0
        self._group_parts: list[tuple[Numbers, Numbers]] = []
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._restart()

    def find_overlaps(self, starts: Int64s, ends: Int64s, tracks: Numbers) -> Numbers:
        """Return the number of open slices of the same track at the start of each slice.

        Args:
            starts: Start of each slice in ns.
            ends: End of each slice in ns. A slice without duration is treated as if it took 1 ns.
            tracks: Number of the track of each slice.
        """
        depths = np.empty(len(starts), np.uint32)
        for chunk in self._load_chunks(starts, ends, tracks):
            self._call("overlaps", chunk.stop - chunk.start, nests=self._nests)
            self._keep_groups()
            depths[chunk] = self._arrays["lanes"][: chunk.stop - chunk.start]
        return depths

    def finish_overlaps(self) -> None:
        """Determine the number of lanes of each track, and prepare to assign lanes."""
        self._call("overlaps", 0, nests=self._nests, is_last=1)
        self._keep_groups()
        self.lane_counts: Numbers = np.maximum(self._arrays["lane_counts"], 1)
        self.has_crossings = bool(self._arrays["state"][_CROSSES])
        rows, lanes = (np.concatenate(parts) for parts in zip(*self._group_parts, strict=True))
        order = np.argsort(rows, kind="stable")
        self._group_rows, self._group_lanes = rows[order], lanes[order]
        self._group_parts.clear()
        self._restart()

    def assign_lanes(self, starts: Int64s, ends: Int64s, tracks: Numbers) -> Numbers:
        """Return the lane of each slice. The arguments are those of ``find_overlaps``."""
        assigned = np.empty(len(starts), np.uint32)
        for chunk in self._load_chunks(starts, ends, tracks):
            lanes = self._arrays["lanes"][: chunk.stop - chunk.start]
            lanes[:] = 0
            first, stop = np.searchsorted(self._group_rows, [self._base, self._base + len(lanes)]).tolist()
            lanes[self._group_rows[first:stop] - np.uint32(self._base)] = self._group_lanes[first:stop]
            self._call("lanes", len(lanes))
            assigned[chunk] = lanes
        return assigned

    def _restart(self) -> None:
        """Close all slices."""
        self._base = 0
        self._reserve_nodes(1)
        for name in (*_PER_TRACK, "state"):
            self._arrays[name][:] = 0
        self._chain_nodes(1)

    def _load_chunks(self, starts: Int64s, ends: Int64s, tracks: Numbers) -> Iterator[slice]:
        """Copy slices into the sandbox chunk by chunk, and yield the chunks."""
        for first in range(0, len(starts), _CHUNK_ROWS):
            chunk = slice(first, min(first + _CHUNK_ROWS, len(starts)))
            self._reserve_nodes(int(self._arrays["open"].sum(dtype=np.int64)) + chunk.stop - first + 1)
            rows = slice(0, chunk.stop - first)
            self._arrays["starts"][rows] = starts[chunk]
            np.maximum(ends[chunk], starts[chunk] + 1, out=self._arrays["ends"][rows])
            self._arrays["tracks"][rows] = tracks[chunk]
            yield chunk

    def _call(self, function: str, rows: int, **parameters: int) -> None:
        """Call a function of the program for the slices in the sandbox."""
        code = self._sandbox.call(function, rows=rows, base=self._base, track_count=self._track_count, **parameters)
        if code:
            raise ValueError("a slice is on an unknown track")
        self._base += rows

    def _keep_groups(self) -> None:
        """Keep the overlap groups that ended during the last call."""
        count = int(self._arrays["state"][_GROUPS])
        self._group_parts.append(
            (self._arrays["group_rows"][:count].copy(), self._arrays["group_lanes"][:count].copy())
        )

    def _reserve_nodes(self, count: int) -> None:
        """Ensure that there are at least ``count`` nodes. Open slices are kept."""
        if count <= self._node_count:
            return
        before, known = {name: values.copy() for name, values in self._arrays.items()}, self._node_count
        self._node_count = max(2 * self._node_count, 2 * _CHUNK_ROWS, count)
        self._arrays = self._sandbox.allocate(
            "lanes",
            **dict.fromkeys(_PER_ROW, _CHUNK_ROWS),
            **dict.fromkeys(_PER_TRACK, self._track_count),
            **dict.fromkeys(_PER_NODE, self._node_count),
            state=3,
            group_rows=_CHUNK_ROWS + self._track_count,
            group_lanes=_CHUNK_ROWS + self._track_count,
        )
        for name, values in before.items():
            self._arrays[name][: len(values)] = values
        if known:
            self._chain_nodes(known)

    def _chain_nodes(self, first: int) -> None:
        """Add the nodes from number ``first`` to the free nodes."""
        siblings = self._arrays["siblings"]
        siblings[first:] = np.arange(first + 1, self._node_count + 1)
        siblings[-1] = self._arrays["state"][_FREE]
        self._arrays["state"][_FREE] = first
