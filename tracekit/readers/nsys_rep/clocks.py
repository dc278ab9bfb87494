"""When the capture began, in UTC, and how long it lasted."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracekit.readers.common.protobuf.wire import Message, signed

SESSION, MACHINE, SYSTEM, UTC = 7, 1, 3, 9
SERVED_SESSION, SERVED_SYSTEM, SERVED_UTC = 15, 14, 11
_U64 = (1 << 64) - 1
_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Extent:
    """Of a capture: UTC of event time 0, and the time from start to stop, both in ns; None where it is not known."""

    origin_utc_ns: int | None
    duration_ns: int | None


def extent(header: Message, conversions: memoryview) -> Extent:
    """Work out the extent of a capture.

    Args:
        header: The capture header; up to 2025 it lists offsets between clocks.
        conversions: Section of clock conversions, from 2025.6 on; used if the header lists none.
    """
    start, stop = header.number(17), header.number(18)
    if header.parts(16):
        return Extent(_by_offsets(header.message(16)), _between(start, stop))
    origin, began = _by_segments(Message(conversions))
    if began is not None and began != start and stop is not None:
        start, stop = began, stop // _MS * _MS
    return Extent(origin, _between(start, stop))


def _between(start: int | None, stop: int | None) -> int | None:
    return None if start is None or stop is None else signed((stop - start) & _U64)


def _by_offsets(listed: Message) -> int | None:
    """Follow the offsets from event times over the machine's clock to UTC."""
    offsets = {(m.number(1), m.number(2)): _decimal(m.text(5)) for m in listed.messages(1)}
    steps = ((SESSION, MACHINE), (MACHINE, SYSTEM), (SYSTEM, UTC))
    if any(s not in offsets for s in steps):
        return None
    return signed(-sum(offsets[s] for s in steps) & _U64)


def _decimal(text: str | None) -> int:
    """Read an offset: decimal text, of a negative number either signed or wrapped; no text is no offset."""
    return signed(int(text) & _U64) if text and re.fullmatch(r"-?[0-9]{1,20}", text) else 0


def _by_segments(conversions: Message) -> tuple[int | None, int | None]:
    """Follow the segments of the served clocks: UTC of event time 0, and the system's clock at that time."""
    kinds = {bytes(m.part(1)): m.number(2) or 0 for m in conversions.message(1).messages(1)}
    segments: dict[tuple[int, int], tuple[int, int]] = {}
    for listed in conversions.message(2).messages(1):
        ends = tuple(kinds.get(bytes(listed.part(f)), -1) for f in (1, 2))
        points = [s.message(1) for s in listed.messages(3)]
        if points:
            segments[ends[0], ends[1]] = (points[-1].number(1) or 0, points[-1].number(2) or 0)
    began = segments.get((SERVED_SESSION, SERVED_SYSTEM))
    masters = [source for source, target in segments if target == SERVED_SESSION]
    utc = next((segments[SERVED_UTC, m] for m in masters if (SERVED_UTC, m) in segments), None)
    if began is None or utc is None:
        return None, None
    return signed((utc[0] + began[0] - utc[1]) & _U64), began[0]
