"""When the capture began, in UTC, and how long it lasted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.readers.common.protobuf.wire import Message, to_signed
from tracekit.readers.nsys_rep.fields import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    field = fields_of("CaptureHeader")
    start, stop = header.number(field.start_ns), header.number(field.stop_ns)
    if header.parts(field.clock_offsets):
        return Extent(_by_offsets(header.message(field.clock_offsets)), _between(start, stop))
    origin, began = _by_segments(Message(conversions))
    if began is not None and began != start and stop is not None:
        start, stop = began, stop // _MS * _MS
    return Extent(origin, _between(start, stop))


def _between(start: int | None, stop: int | None) -> int | None:
    return None if start is None or stop is None else to_signed((stop - start) & _U64)


def _by_offsets(listed: Message) -> int | None:
    """Follow the offsets from event times over the machine's clock to UTC."""
    field = fields_of("ClockOffset")
    offsets = {
        (m.number(field.from_clock), m.number(field.to_clock)): _decimal(m.text(field.offset_ns))
        for m in listed.messages(fields_of("ClockOffsets").offsets)
    }
    steps = ((SESSION, MACHINE), (MACHINE, SYSTEM), (SYSTEM, UTC))
    if any(s not in offsets for s in steps):
        return None
    return to_signed(-sum(offsets[s] for s in steps) & _U64)


def _decimal(text: str | None) -> int:
    """Read an offset: decimal text, of a negative number either signed or wrapped; no text is no offset."""
    return to_signed(int(text) & _U64) if text and re.fullmatch(r"-?[0-9]{1,20}", text) else 0


def _by_segments(conversions: Message) -> tuple[int | None, int | None]:
    """Follow the segments of the served clocks: UTC of event time 0, and the system's clock at that time."""
    kinds = _clock_kinds(conversions)
    segments = {}
    for from_uuid, to_uuid, point in _last_points(conversions):
        segments[kinds.get(from_uuid, -1), kinds.get(to_uuid, -1)] = point
    began = segments.get((SERVED_SESSION, SERVED_SYSTEM))
    masters = [source for source, target in segments if target == SERVED_SESSION]
    utc = next((segments[SERVED_UTC, m] for m in masters if (SERVED_UTC, m) in segments), None)
    if began is None or utc is None:
        return None, None
    return to_signed((utc[0] + began[0] - utc[1]) & _U64), began[0]


def _clock_kinds(conversions: Message) -> dict[bytes, int]:
    """Return the kind of each clock by its UUID."""
    field = fields_of("Clock")
    clocks = conversions.message(fields_of("TimeConversions").clocks).messages(fields_of("Clocks").clocks)
    return {bytes(m.part(field.uuid)): m.number(field.kind) or 0 for m in clocks}


def _last_points(conversions: Message) -> Iterator[tuple[bytes, bytes, tuple[int, int]]]:
    """Yield the UUIDs of two clocks, and the times on both at the start of the last segment of their conversion."""
    field, point = fields_of("Conversion"), fields_of("ConversionPoint")
    listed = conversions.message(fields_of("TimeConversions").conversions)
    for conversion in listed.messages(fields_of("Conversions").conversions):
        points = [s.message(fields_of("ConversionSegment").point) for s in conversion.messages(field.segments)]
        if points:
            times = points[-1].number(point.from_ns) or 0, points[-1].number(point.to_ns) or 0
            yield bytes(conversion.part(field.from_uuid)), bytes(conversion.part(field.to_uuid)), times
