"""Build the small source tables of a report, such as the tables of GPUs, contexts, streams and threads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tracekit.readers.common.protobuf.decoding import Message, convert_to_signed
from tracekit.readers.nsys.machine import parse_rank_variables
from tracekit.readers.nsys_rep.container import CLOCKS, OPTIONS
from tracekit.readers.nsys_rep.layout import convert_to_snake_case, find_field_path, load_fields
from tracekit.readers.nsys_rep.metrics import SOURCE_MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tracekit.readers.nsys_rep.container import Container, RawData
    from tracekit.readers.nsys_rep.counters import CounterField
    from tracekit.readers.nsys_rep.metrics import MetricLocation

    Row = dict[str, Any]

SESSION, MACHINE, SYSTEM, UTC = 7, 1, 3, 9
SEGMENT_SESSION, SEGMENT_SYSTEM, SEGMENT_UTC = 15, 14, 11
_U64 = (1 << 64) - 1
_MS = 1_000_000
CONTEXTS_SINCE = (2023, 4)
"""First nsys version whose exports list contexts. Exports of older versions list null streams instead."""
PUBLIC = (13, 205, 605, 611)
"""Ids of the properties of a machine that are never private."""
ENVIRONMENT, HOST = 610, 619
"""Ids of the properties that hold the environment of the profiler and the name of the machine, which are private."""
NETWORK_CARDS = 910
"""Id of the property of a machine that lists its network cards. Other properties are ignored."""
_TRAILER, _DEVICES, _STREAM_HEADER = load_fields("Trailer"), load_fields("Devices"), load_fields("StreamHeader")
_GENERIC_SOURCE = {"sourceId": load_fields("GenericSource").source_id, "nameId": load_fields("GenericSource").name_id}
_GENERIC_TYPE = {"typeId": load_fields("GenericType").type_id, "nameId": load_fields("GenericType").name_id}


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


def _map_field_numbers_by_column(message_name: str, *columns: str) -> dict[str, int]:
    """Return the field number of each column by column name. Field names are the column names in snake case."""
    return {column: find_field_path(message_name, convert_to_snake_case(column))[0] for column in columns}


_GPU_NUMBERS = {
    **_map_field_numbers_by_column("Gpu", "id"),
    "deviceId": load_fields("Gpu").id,
    **_map_field_numbers_by_column(
        "Gpu", "l2CacheSize", "totalMemory", "memoryBandwidth", "clockRate", "smCount", "cuDevice"
    ),
    **_map_field_numbers_by_column("Gpu", "maxRegistersPerSm", "maxShmemPerSm", "threadsPerWarp", "maxWarpsPerSm"),
    **_map_field_numbers_by_column("Gpu", "computeMajor", "computeMinor"),
}
_GPU_STRINGS = _map_field_numbers_by_column("Gpu", "name", "busLocation", "uuid", "chipName")
_CUDA_GPU_NUMBERS = {
    **_map_field_numbers_by_column("CudaGpu", "deviceId", "globalMemoryBandwidth", "globalMemorySize", "l2CacheSize"),
    **_map_field_numbers_by_column(
        "CudaGpu", "numThreadsPerWarp", "coreClockRate", "numMultiprocessors", "maxWarpsPerMultiprocessor"
    ),
    **_map_field_numbers_by_column("CudaGpu", "computeCapabilityMajor", "computeCapabilityMinor"),
    **_map_field_numbers_by_column("CudaGpu", "maxSharedMemoryPerMultiprocessor", "maxRegistersPerMultiprocessor"),
}
_CUDA_GPU_STRINGS = _map_field_numbers_by_column("CudaGpu", "name", "pciBusId")
_NETWORK_CARD = _map_field_numbers_by_column("NetworkDevice", "nicId", "deviceId", "vendorId", "linkLayer")
_NETWORK_CARD |= {"GUID": load_fields("NetworkDevice").guid}
_NETWORK_CARD_STRINGS = _map_field_numbers_by_column("NetworkDevice", "name")
_CONTEXT = _map_field_numbers_by_column(
    "Context", "nullStreamId", "processId", "deviceId", "contextId", "parentContextId", "isGreenContext"
)
_STREAM = _map_field_numbers_by_column("Stream", "streamId", "processId", "contextId", "priority", "flag")
_NAMED_STREAM = _map_field_numbers_by_column("NamedStream", "processId", "contextId", "streamId")
_NAMED_STREAM_STRINGS = _map_field_numbers_by_column("NamedStream", "name")
_THREAD = _map_field_numbers_by_column("ThreadName", "nameId", "priority", "globalTid")
_COMPONENT = _map_field_numbers_by_column("Component", "componentId", "instance")
_COMPONENT_STRINGS = _map_field_numbers_by_column("Component", "name")
_PERFORMANCE_METRIC = _map_field_numbers_by_column("PerformanceMetric", "id")
_PERFORMANCE_METRIC_STRINGS = _map_field_numbers_by_column("PerformanceMetric", "name", "unit")


class MachineReport(Protocol):
    """The interface of a report that the small source tables are built from."""

    container: Container
    raw_data: RawData

    @property
    def gpu_metrics_by_type(self) -> Mapping[int, Sequence[MetricLocation]]:
        """The GPU metrics in each sample, by event type."""
        ...

    @property
    def counter_fields_by_type(self) -> Mapping[int, Sequence[CounterField]]:
        """The fields of each counter sample, by event type."""
        ...


def read_product_rows(report: MachineReport) -> Iterable[Row]:
    """Yield one row with the product name of nsys, and one row with its version if the version is known.

    Unlike an export, a report has no schema version.
    """
    yield {"name": "EXPORT_PRODUCT_NAME", "value": "NVIDIA Nsight Systems"}
    if report.container.build:
        yield {"name": "EXPORT_PRODUCT_VERSION", "value": report.container.build}


def read_property_rows(report: MachineReport) -> Iterable[Row]:
    """Yield one row per supported property of the machine, such as its CPU, driver, environment and host name.

    The environment contains only the variables that launchers use to number processes, such as ``RANK``.
    """
    field = load_fields("Property")
    for message in _read_property_messages(report, *PUBLIC, ENVIRONMENT, HOST):
        number, value = message.int_value(field.id), message.text(field.value)
        if number == ENVIRONMENT:
            value = "\0".join(f"{name}={rank}" for name, rank in parse_rank_variables(value or "").items())
        yield {"nameEnum": number, "value": value}


def read_launcher_variable_rows(report: MachineReport) -> Iterable[Row]:
    """Yield one row per environment variable that a launcher used to number the profiled process."""
    options = Message(report.container.read_section(OPTIONS)).message(load_fields("AnalysisOptions").launch)
    field = load_fields("Variable")
    for variable in options.messages(load_fields("LaunchOptions").variables):
        text = f"{variable.text(field.name) or ''}={variable.text(field.value) or ''}"
        for name, rank in parse_rank_variables(text).items():
            yield {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": f'{name}="{rank}"'}


def read_network_card_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per network card of the machine."""
    value, devices = load_fields("Property").value, load_fields("NetworkDevices").devices
    listed = (p.message(value) for p in _read_property_messages(report, NETWORK_CARDS))
    return (
        _build_row(m, _NETWORK_CARD, _NETWORK_CARD_STRINGS) for cards in listed for m in cards.iterate_messages(devices)
    )


def read_session_start_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row with the UTC time in ns at event time 0, or no rows if the time is unknown."""
    origin = _compute_time_extent(report).origin_utc_ns
    return [] if origin is None else [{"utcEpochNs": origin}]


def read_duration_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row with the duration of the capture in ns, or no rows if the duration is unknown."""
    duration = _compute_time_extent(report).duration_ns
    return [] if duration is None else [{"duration": duration}]


def read_gpu_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per GPU of the machine."""
    return (_build_row(m, _GPU_NUMBERS, _GPU_STRINGS) for m in _read_device_messages(report, _DEVICES.gpus))


def read_cuda_gpu_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per GPU in the CUDA device list, which only reports of nsys up to 2021 contain."""
    return (
        _build_row(m, _CUDA_GPU_NUMBERS, _CUDA_GPU_STRINGS) for m in _read_device_messages(report, _DEVICES.cuda_gpus)
    )


def read_context_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per CUDA context."""
    return (_build_row(m, _CONTEXT) for m in report.raw_data.trailer.iterate_messages(_TRAILER.contexts))


def read_stream_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per CUDA stream."""
    return (_build_row(m, _STREAM) for m in report.raw_data.trailer.iterate_messages(_TRAILER.streams))


def read_named_stream_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per CUDA stream that has an NVTX name."""
    return (
        _build_row(m, _NAMED_STREAM, _NAMED_STREAM_STRINGS)
        for m in report.raw_data.trailer.iterate_messages(_TRAILER.named_streams)
    )


def read_thread_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per named thread."""
    return (
        _build_row(m, _THREAD)
        for m in report.raw_data.thread_names_message.iterate_messages(load_fields("ThreadNames").threads)
    )


def read_metric_name_rows(report: MachineReport) -> Iterable[Row]:
    """Yield one row per event type and GPU metric, with the name of the metric."""
    strings = report.raw_data.strings
    names: dict[int, str] = {}
    for number, listed in report.gpu_metrics_by_type.items():
        for i, metric in enumerate(listed):
            if metric.name_id not in names and 0 <= metric.name_id < len(strings):
                names[metric.name_id] = strings[metric.name_id].as_py().decode("utf-8", "replace")
            yield {"typeId": number, "metricId": i, "metricName": names.get(metric.name_id)}


def read_component_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per hardware component whose performance counters were recorded."""
    return (
        _build_row(m, _COMPONENT, _COMPONENT_STRINGS)
        for m in report.raw_data.trailer.iterate_messages(_TRAILER.components)
    )


def read_performance_metric_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per performance metric that was recorded, with its name and unit."""
    listed = report.raw_data.trailer.iterate_messages(_TRAILER.performance_metrics)
    return (_build_row(m, _PERFORMANCE_METRIC, _PERFORMANCE_METRIC_STRINGS) for m in listed)


def read_generic_source_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per source of generic events."""
    return (_build_row(m, _GENERIC_SOURCE) for m in report.raw_data.stream.messages(_STREAM_HEADER.generic_sources))


def read_generic_type_rows(report: MachineReport) -> Iterable[Row]:
    """Yield one row per event type of counter samples."""
    for m in report.raw_data.stream.messages(_STREAM_HEADER.generic_types):
        row = _build_row(m, _GENERIC_TYPE)
        if row["typeId"] in report.counter_fields_by_type:
            yield row | {"sourceId": int(row["typeId"]) & SOURCE_MASK}


def read_generic_field_rows(report: MachineReport) -> Iterable[Row]:
    """Yield one row per field of the counter samples of each event type."""
    for number, listed in report.counter_fields_by_type.items():
        for i, field in enumerate(listed):
            yield {"typeId": number, "fieldIdx": i, "fieldNameId": field.name_id}


TABLES: dict[str, tuple[tuple[str, ...], Callable[[MachineReport], Iterable[Row]]]] = {
    "META_DATA_EXPORT": (("name", "value"), read_product_rows),
    "META_DATA_CAPTURE": (("name", "value"), read_launcher_variable_rows),
    "TARGET_INFO_SYSTEM_ENV": (("nameEnum", "value"), read_property_rows),
    "TARGET_INFO_NIC_INFO": ((*_NETWORK_CARD, *_NETWORK_CARD_STRINGS), read_network_card_rows),
    "TARGET_INFO_SESSION_START_TIME": (("utcEpochNs",), read_session_start_rows),
    "ANALYSIS_DETAILS": (("duration",), read_duration_rows),
    "TARGET_INFO_GPU": ((*_GPU_NUMBERS, *_GPU_STRINGS), read_gpu_rows),
    "TARGET_INFO_CUDA_GPU": ((*_CUDA_GPU_NUMBERS, *_CUDA_GPU_STRINGS), read_cuda_gpu_rows),
    "TARGET_INFO_CUDA_CONTEXT_INFO": (tuple(_CONTEXT), read_context_rows),
    "TARGET_INFO_CUDA_NULL_STREAM": (tuple(_CONTEXT)[:4], read_context_rows),
    "TARGET_INFO_CUDA_STREAM": (tuple(_STREAM), read_stream_rows),
    "TARGET_INFO_NVTX_CUDA_STREAM": ((*_NAMED_STREAM, *_NAMED_STREAM_STRINGS), read_named_stream_rows),
    "ThreadNames": (tuple(_THREAD), read_thread_rows),
    "TARGET_INFO_GPU_METRICS": (("typeId", "metricId", "metricName"), read_metric_name_rows),
    "TARGET_INFO_COMPONENT": ((*_COMPONENT, *_COMPONENT_STRINGS), read_component_rows),
    "TARGET_INFO_PERF_METRIC": ((*_PERFORMANCE_METRIC, *_PERFORMANCE_METRIC_STRINGS), read_performance_metric_rows),
    "GENERIC_EVENT_SOURCES": (("sourceId", "nameId"), read_generic_source_rows),
    "GENERIC_EVENT_TYPES": (("typeId", "nameId", "sourceId"), read_generic_type_rows),
    "GENERIC_EVENT_TYPE_FIELDS": (("typeId", "fieldIdx", "fieldNameId"), read_generic_field_rows),
}


def list_table_names(nsys_version: tuple[int, ...]) -> list[str]:
    """Return the names of the small source tables that a version of nsys exports.

    Args:
        nsys_version: Year and minor version, or an empty tuple if the version is unknown.
    """
    excluded = "TARGET_INFO_CUDA_CONTEXT_INFO" if () < nsys_version < CONTEXTS_SINCE else "TARGET_INFO_CUDA_NULL_STREAM"
    return [name for name in TABLES if name != excluded]


def _compute_time_extent(report: MachineReport) -> TimeExtent:
    return compute_time_extent(report.raw_data.header, report.container.read_section(CLOCKS))


def _read_property_messages(report: MachineReport, *property_ids: int) -> Iterator[Message]:
    """Yield the messages of the properties with one of the given ids, for all target machines."""
    field = load_fields("Property").id
    for target in report.raw_data.header.messages(load_fields("CaptureHeader").targets):
        for properties in target.messages(load_fields("Target").properties):
            yield from (
                p
                for p in properties.messages(load_fields("Properties").properties)
                if p.int_value(field) in property_ids
            )


def _read_device_messages(report: MachineReport, field_number: int) -> Iterator[Message]:
    devices = load_fields("TargetDevices").devices
    targets = (
        m
        for machine in report.raw_data.trailer.iterate_messages(_TRAILER.targets)
        for m in machine.iterate_messages(devices)
    )
    return (m for target in targets for m in target.iterate_messages(field_number))


def _build_row(message: Message, number_fields: dict[str, int], string_fields: dict[str, int] | None = None) -> Row:
    row: Row = {name: message.int_value(n) for name, n in number_fields.items()}
    return row | {name: message.text(n) for name, n in (string_fields or {}).items()}
