"""Convert the timestamps of packets to the clock of the trace.

A packet states the clock of its timestamp. Clock snapshots contain the times of several clocks at the same moment. The
clocks from 64 to 127 belong to a packet sequence. A timestamp of an incremental clock is the time since the previous
timestamp of this clock.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask

Number = TypeVar("Number", int, "Int64Array")
REALTIME, MONOTONIC, BOOT_TIME = 1, 3, 6
SEQUENCE_CLOCKS = range(64, 128)
_CLOCKS_PER_SEQUENCE = 128
_MAX_CLOCK = 1 << 40
MAX_TIME = 1 << 62
_NONE = np.zeros(0, np.int64)
MAX_GROUPS = 1 << 12
"""Maximum number of different combinations of clocks in the snapshots of a trace."""


class ClockReading(NamedTuple):
    """The time of a clock in a snapshot."""

    clock: int
    time: int
    is_incremental: bool
    multiplier: int


class _Readings:
    """All times of one clock, in the order of the file.

    Attributes:
        snapshots: Number of the snapshot with each time.
        times: The times.
    """

    def __init__(self) -> None:
        self.snapshots, self.times = array("q"), array("q")


class _ClockPairs(NamedTuple):
    """The times of two clocks in the snapshots that contain both, in the order of the file.

    Attributes:
        positions: Position of each snapshot in the file.
        times: Times of the first clock.
        others: Times of the second clock.
        is_ordered: Whether the times of the first clock never go back.
    """

    positions: Int64Array
    times: Int64Array
    others: Int64Array
    is_ordered: bool


class Clocks:
    """The clocks of a trace.

    A clock is identified by a number: its id in the file, or, if it belongs to a sequence, a number below 0.

    Attributes:
        trace_clock: The clock of all converted times.
    """

    def __init__(self) -> None:
        self.trace_clock = BOOT_TIME
        self._has_trace_clock = False
        self._packets = 0
        """Number of packets before the current batch."""
        self._positions = array("q")
        """Position of each snapshot in the file."""
        self._readings: dict[int, _Readings] = defaultdict(_Readings)
        self._groups: dict[frozenset[int], dict[int, None]] = {}
        """The clocks of sequences in the snapshots with the same other clocks, by these other clocks."""
        self._groups_of_clocks: dict[int, list[frozenset[int]]] = defaultdict(list)
        self._next_clocks: dict[int, int] | None = None
        """The clock to which the times of each clock are converted first, or None if it has to be found anew."""
        self._incremental: dict[int, int] = {}
        """Last time of each incremental clock."""
        self._multipliers: dict[int, int] = {}
        self._snapshots: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Position and time of the snapshots of the clocks of sequences in the current batch."""

    def begin_batch(self, packets: int) -> None:
        """Begin a batch of packets.

        Args:
            packets: Number of packets before the batch.
        """
        self._packets = packets

    def add_snapshot(self, position: int, sequence: int, readings: list[ClockReading]) -> None:
        """Add a snapshot.

        Args:
            position: Position of the packet with the snapshot in the current batch.
            sequence: Number of its sequence.
            readings: The times of the clocks.

        Raises:
            Damage: A time is out of range, or the snapshots contain too many different combinations of clocks.
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
            self._readings[clock].snapshots.append(len(self._positions))
            self._readings[clock].times.append(time)
        self._positions.append(self._packets + position)
        self._add_group(frozenset(clock for clock in times if clock >= 0), [clock for clock in times if clock < 0])

    def _add_group(self, group: frozenset[int], of_sequence: list[int]) -> None:
        if group not in self._groups:
            if len(self._groups) >= MAX_GROUPS:
                raise Damage(f"clock snapshots contain more than {MAX_GROUPS:,} different combinations of clocks")
            self._groups[group] = {}
            self._next_clocks = None
            for clock in group:
                self._groups_of_clocks[clock].append(group)
        members = self._groups[group]
        if any(clock not in members for clock in of_sequence):
            self._next_clocks = None
            members.update(dict.fromkeys(of_sequence))

    def set_trace_clock(self, clock: int) -> None:
        """Set the clock of all converted times, which the first snapshot that states it determines."""
        if not self._has_trace_clock:
            self._has_trace_clock = True
            self.trace_clock = clock
            self._next_clocks = None

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
            own = times[rows]
            if clock < 0:
                snapshots = self._snapshots.pop(clock, [])
                places = np.searchsorted(positions[rows], [position for position, _ in snapshots]).tolist()
                own = self._multiply(own, self._multipliers.get(clock, 1))
                if clock in self._incremental:
                    own = self._accumulate(clock, own, places, snapshots)
            result[rows], valid[rows] = self.convert_to_trace_clock(clock, own, positions[rows])
        for clock, remaining in self._snapshots.items():
            if clock in self._incremental:
                self._incremental[clock] = remaining[-1][1]
        self._snapshots.clear()
        return result, valid

    def find_utc_offset(self) -> int | None:
        """Return the UTC time minus the trace clock in ns at the first snapshot with both clocks, None without one."""
        if self.trace_clock == REALTIME:
            return 0
        pairs = self._find_pairs(self.trace_clock, REALTIME)
        return int(pairs.others[0] - pairs.times[0]) if len(pairs.times) else None

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
        if times.max(initial=0) > MAX_TIME:
            raise Damage("the timestamps of an incremental clock exceed 2^62 ns")
        self._incremental[clock] = int(sums[-1] + bases[-1])
        return times

    def convert_to_trace_clock(self, clock: int, times: Int64Array, positions: Int64Array) -> tuple[Int64Array, Mask]:
        """Convert the times of one clock, and return a mask of those that can be converted.

        A snapshot is used for the packets that follow it. The first one is also used for the packets before it, unless
        the clock belongs to a sequence. If the times of a clock never go back, the latest snapshot before the time is
        used, and otherwise the latest one before the packet.

        Args:
            clock: The clock.
            times: The times.
            positions: Position in the current batch of the packet with each time.

        Raises:
            Damage: A converted time is out of range.
        """
        valid = np.ones(len(times), np.bool_)
        source, next_clocks = clock, self._find_next_clocks()
        while source != self.trace_clock:
            target = next_clocks.get(source)
            if target is None:
                return times, ~valid
            known = self._find_pairs(source, target)
            places = np.searchsorted(known.positions, positions + self._packets, side="right") - 1
            if source < 0:
                valid &= places >= 0
            if known.is_ordered:
                places = np.minimum(places, np.searchsorted(known.times, times, side="right") - 1)
            places = np.maximum(places, 0)
            since = times - known.times[places]
            if (since.astype(np.float64) + known.others[places]).max(initial=0) > MAX_TIME:
                raise Damage("a time that clock snapshots convert is out of range")
            times, source = since + known.others[places], target
        return times, valid

    def _find_pairs(self, source: int, target: int) -> _ClockPairs:
        """Return the times of two clocks in the snapshots that contain both."""
        own, other = self._readings[source], self._readings[target]
        snapshots, numbers = np.array(own.snapshots, np.int64), np.array(other.snapshots, np.int64)
        if not len(snapshots) or not len(numbers):
            return _ClockPairs(_NONE, _NONE, _NONE, is_ordered=True)
        places = np.minimum(np.searchsorted(numbers, snapshots), len(numbers) - 1)
        has_both = numbers[places] == snapshots
        times = np.array(own.times, np.int64)[has_both]
        return _ClockPairs(
            np.array(self._positions, np.int64)[snapshots[has_both]],
            times,
            np.array(other.times, np.int64)[places[has_both]],
            is_ordered=bool((times[1:] >= times[:-1]).all()),
        )

    def _find_next_clocks(self) -> dict[int, int]:
        """Return the next clock on the shortest way over snapshots from each clock to the clock of the trace."""
        if self._next_clocks is None:
            self._next_clocks = {self.trace_clock: self.trace_clock}
            seen: set[frozenset[int]] = set()
            for each in (queue := [self.trace_clock]):
                for group in self._groups_of_clocks.get(each, ()):
                    if group in seen:
                        continue
                    seen.add(group)
                    for other in group:
                        if other not in self._next_clocks:
                            self._next_clocks[other] = each
                            queue.append(other)
                    for other in self._groups[group]:
                        self._next_clocks.setdefault(other, each)
        return self._next_clocks


def get_sequence_clock(sequence: Number, clock: Number) -> Number:
    """Return the number of a clock that belongs to a sequence, or the numbers of several clocks."""
    return -(sequence * _CLOCKS_PER_SEQUENCE + clock)
