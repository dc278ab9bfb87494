"""Convert the timestamps of packets to the clock of the trace.

A packet states the clock of its timestamp. Clock snapshots contain the times of several clocks at the same moment. The
clocks from 64 to 127 belong to a packet sequence. A timestamp of an incremental clock is the time since the previous
timestamp of this clock.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask

Number = TypeVar("Number", int, "Int64Array")
REALTIME, BOOT_TIME = 1, 6
SEQUENCE_CLOCKS = range(64, 128)
_CLOCKS_PER_SEQUENCE = 128
_MAX_CLOCK = 1 << 40
MAX_TIME = 1 << 62


class ClockReading(NamedTuple):
    """The time of a clock in a snapshot."""

    clock: int
    time: int
    is_incremental: bool
    multiplier: int


class Clocks:
    """The clocks of a trace.

    A clock is identified by a number: its id in the file, or, if it belongs to a sequence, a number below 0.

    Attributes:
        trace_clock: The clock of all converted times.
    """

    def __init__(self) -> None:
        self.trace_clock = BOOT_TIME
        self._has_trace_clock = False
        self._pairs: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        """Times of two clocks at the same moments, by the numbers of the clocks."""
        self._neighbors: dict[int, dict[int, None]] = defaultdict(dict)
        self._incremental: dict[int, int] = {}
        """Last time of each incremental clock."""
        self._multipliers: dict[int, int] = {}
        self._snapshots: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Position and time of the snapshots of the clocks of sequences in the current batch."""

    def add_snapshot(self, position: int, sequence: int, readings: list[ClockReading]) -> None:
        """Add a snapshot.

        Args:
            position: Position of the packet with the snapshot in the current batch.
            sequence: Number of its sequence.
            readings: The times of the clocks.

        Raises:
            Damage: A time is out of range.
        """
        times: dict[int, int] = {}
        for reading in readings:
            clock = reading.clock
            if clock in SEQUENCE_CLOCKS:
                clock = get_sequence_clock(sequence, clock)
                self._multipliers[clock] = reading.multiplier
            time = reading.time * (reading.multiplier if clock < 0 else 1)
            if not 0 <= time <= MAX_TIME:
                raise Damage(f"a clock snapshot contains the time {time:,}, which is out of range")
            times[clock] = time
            if clock < 0:
                self._snapshots[clock].append((position, time))
                if reading.is_incremental:
                    self._incremental.setdefault(clock, time)
        for clock, time in times.items():
            for other, other_time in times.items():
                if clock != other and not (clock < 0 and other < 0):
                    self._pairs[clock, other].append((time, other_time))
                    self._neighbors[clock][other] = None

    def set_trace_clock(self, clock: int) -> None:
        """Set the clock of all converted times, which the first snapshot that states it determines."""
        if not self._has_trace_clock:
            self._has_trace_clock = True
            self.trace_clock = clock

    def convert_packets(self, positions: Int64Array, clocks: Int64Array, times: Int64Array) -> tuple[Int64Array, Mask]:
        """Convert the times of the packets of the current batch, and return a mask of those that can be converted.

        Args:
            positions: Position of each packet in the batch.
            clocks: Number of the clock of each packet.
            times: Time of each packet.

        Raises:
            Damage: A time is out of range.
        """
        result, valid = times.copy(), np.ones(len(times), np.bool_)
        used = np.unique(clocks).tolist()
        order = np.argsort(clocks, kind="stable")
        bounds = np.searchsorted(clocks[order], [*used, _MAX_CLOCK + 1]).tolist()
        for nth, clock in enumerate(used):
            rows = order[bounds[nth] : bounds[nth + 1]]
            if clock >= 0:
                result[rows], valid[rows] = self._convert_to_trace_clock(clock, times[rows])
                continue
            snapshots = self._snapshots.pop(clock, [])
            places = np.searchsorted(positions[rows], [position for position, _ in snapshots]).tolist()
            own = self._multiply(times[rows], self._multipliers.get(clock, 1))
            if clock in self._incremental:
                own = self._accumulate(clock, own, places, snapshots)
            for later, (first, stop) in enumerate(itertools.pairwise((0, *places, len(rows)))):
                part = rows[first:stop]
                unknown = len(snapshots) - later
                result[part], valid[part] = self._convert_to_trace_clock(clock, own[first:stop], unknown)
        for clock, remaining in self._snapshots.items():
            if clock in self._incremental:
                self._incremental[clock] = remaining[-1][1]
        self._snapshots.clear()
        return result, valid

    def find_utc_offset(self) -> int | None:
        """Return the UTC time minus the trace clock in ns at the first snapshot with both clocks, None without one."""
        pairs = self._pairs.get((self.trace_clock, REALTIME))
        return pairs[0][1] - pairs[0][0] if pairs else None

    @staticmethod
    def _multiply(times: Int64Array, multiplier: int) -> Int64Array:
        if multiplier < 1 or multiplier * int(times.max(initial=0)) > MAX_TIME:
            raise Damage(f"a clock with the unit of {multiplier:,} ns has a time that is out of range")
        return times * multiplier

    def _accumulate(
        self, clock: int, deltas: Int64Array, places: list[int], snapshots: list[tuple[int, int]]
    ) -> Int64Array:
        """Return the times of an incremental clock, and store the last one.

        Args:
            clock: The clock.
            deltas: Time of each packet since the previous one.
            places: Number of packets before each snapshot of the clock in the batch.
            snapshots: Position and time of each of these snapshots.
        """
        if float(deltas.astype(np.float64).sum()) > MAX_TIME:
            raise Damage("the timestamps of an incremental clock exceed 2^62 ns")
        sums = np.append(0, np.cumsum(deltas))
        bases = np.array([self._incremental[clock], *(time for _, time in snapshots)], np.int64)
        bases[1:] -= sums[places]
        last = np.searchsorted(places, np.arange(len(deltas)), side="right")
        times: Int64Array = sums[1:] + bases[last]
        self._incremental[clock] = int(sums[-1] + bases[-1])
        return times

    def _convert_to_trace_clock(self, clock: int, times: Int64Array, unknown: int = 0) -> tuple[Int64Array, bool]:
        """Convert the times of one clock, and return whether this is possible.

        Args:
            clock: The clock.
            times: The times.
            unknown: Number of the last snapshots of the clock that follow the packets.
        """
        path = self._find_path(clock)
        if path is None:
            return times, False
        for source, target in itertools.pairwise(path):
            pairs = self._pairs[source, target]
            known = np.array(sorted(pairs[: len(pairs) - unknown] if source == clock else pairs), np.int64)
            if not len(known):
                return times, False
            nearest = np.maximum(np.searchsorted(known[:, 0], times, side="right") - 1, 0)
            times = times - known[nearest, 0] + known[nearest, 1]
        return times, True

    def _find_path(self, clock: int) -> list[int] | None:
        """Return the shortest way over snapshots from a clock to the clock of the trace, or None if there is none."""
        paths = {clock: [clock]}
        for each in (queue := [clock]):
            if each == self.trace_clock:
                return paths[each]
            for other in self._neighbors[each]:
                if other not in paths and (other >= 0 or other == self.trace_clock):
                    paths[other] = [*paths[each], other]
                    queue.append(other)
        return None


def get_sequence_clock(sequence: Number, clock: Number) -> Number:
    """Return the number of a clock that belongs to a sequence, or the numbers of several clocks."""
    return -(sequence * _CLOCKS_PER_SEQUENCE + clock)
