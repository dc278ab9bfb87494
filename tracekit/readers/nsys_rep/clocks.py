"""Determine the UTC time at which a capture starts, and the duration of the capture."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tracekit.readers.common.protobuf.wire import Message, convert_to_signed
from tracekit.readers.nsys_rep.fields import load_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSION, MACHINE, SYSTEM, UTC = 7, 1, 3, 9
SEGMENT_SESSION, SEGMENT_SYSTEM, SEGMENT_UTC = 15, 14, 11
_U64 = (1 << 64) - 1
_MS = 1_000_000


class TimeExtent(NamedTuple):
    """The start time and duration of a capture.

    Attributes:
        origin_utc_ns: UTC time in ns since 1970 at event time 0, or None if it is unknown.
        duration_ns: Duration of the capture in ns, or None if it is unknown.
    """

    origin_utc_ns: int | None
    duration_ns: int | None


class _SegmentStart(NamedTuple):
    """The start of a segment of the conversion between two clocks.

    Attributes:
        from_uuid: UUID of the source clock.
        to_uuid: UUID of the target clock.
        times_ns: Times of the source clock and the target clock in ns.
    """

    from_uuid: bytes
    to_uuid: bytes
    times_ns: tuple[int, int]


def compute_time_extent(header: Message, conversions_section: memoryview) -> TimeExtent:
    """Return the start time and duration of a capture.

    Args:
        header: Capture header. In reports of nsys up to 2025.6, it contains the offsets between clocks.
        conversions_section: Section of clock conversions, which reports of nsys 2025.6 and later contain. It is used
            only if the header has no offsets.
    """
    field = load_fields("CaptureHeader")
    start, stop = header.int_value(field.start_ns), header.int_value(field.stop_ns)
    if header.bytes_values(field.clock_offsets):
        return TimeExtent(
            _compute_origin_from_offsets(header.message(field.clock_offsets)), _compute_duration(start, stop)
        )
    origin, began = _compute_utc_and_system_origin(Message(conversions_section))
    if began is not None and began != start and stop is not None:
        start, stop = began, stop // _MS * _MS
    return TimeExtent(origin, _compute_duration(start, stop))


def _compute_duration(start: int | None, stop: int | None) -> int | None:
    return None if start is None or stop is None else convert_to_signed((stop - start) & _U64)


def _compute_origin_from_offsets(clock_offsets: Message) -> int | None:
    """Return the UTC time in ns at event time 0, computed from clock offsets, or None if an offset is missing."""
    field = load_fields("ClockOffset")
    offsets = {
        (m.int_value(field.from_clock), m.int_value(field.to_clock)): _parse_offset(m.text(field.offset_ns))
        for m in clock_offsets.messages(load_fields("ClockOffsets").offsets)
    }
    steps = ((SESSION, MACHINE), (MACHINE, SYSTEM), (SYSTEM, UTC))
    if any(s not in offsets for s in steps):
        return None
    return convert_to_signed(-sum(offsets[s] for s in steps) & _U64)


def _parse_offset(text: str | None) -> int:
    """Parse a decimal clock offset in ns, or return 0 if it is missing or invalid.

    A negative offset is written with a sign or as an unsigned 64-bit integer.
    """
    return convert_to_signed(int(text) & _U64) if text and re.fullmatch(r"-?[0-9]{1,20}", text) else 0


def _compute_utc_and_system_origin(conversions: Message) -> tuple[int | None, int | None]:
    """Return the UTC time and the system time in ns at event time 0, computed from the segments of clock conversions.

    Both times are None if one of them cannot be computed.
    """
    kinds = _map_clock_kinds_by_uuid(conversions)
    segments = {}
    for from_uuid, to_uuid, point in _iterate_last_segment_starts(conversions):
        segments[kinds.get(from_uuid, -1), kinds.get(to_uuid, -1)] = point
    origin_point = segments.get((SEGMENT_SESSION, SEGMENT_SYSTEM))
    masters = [source for source, target in segments if target == SEGMENT_SESSION]
    utc = next((segments[SEGMENT_UTC, m] for m in masters if (SEGMENT_UTC, m) in segments), None)
    if origin_point is None or utc is None:
        return None, None
    return convert_to_signed((utc[0] + origin_point[0] - utc[1]) & _U64), origin_point[0]


def _map_clock_kinds_by_uuid(conversions: Message) -> dict[bytes, int]:
    """Return a mapping from the UUID of each clock to its kind."""
    field = load_fields("Clock")
    clocks = conversions.message(load_fields("TimeConversions").clocks).messages(load_fields("Clocks").clocks)
    return {bytes(m.bytes_value(field.uuid)): m.int_value(field.kind) or 0 for m in clocks}


def _iterate_last_segment_starts(conversions: Message) -> Iterator[_SegmentStart]:
    """Yield the start of the last segment of each conversion between two clocks."""
    field, point = load_fields("Conversion"), load_fields("ConversionPoint")
    listed = conversions.message(load_fields("TimeConversions").conversions)
    for conversion in listed.messages(load_fields("Conversions").conversions):
        points = [s.message(load_fields("ConversionSegment").point) for s in conversion.messages(field.segments)]
        if points:
            times = points[-1].int_value(point.from_ns) or 0, points[-1].int_value(point.to_ns) or 0
            yield _SegmentStart(
                bytes(conversion.bytes_value(field.from_uuid)), bytes(conversion.bytes_value(field.to_uuid)), times
            )
