"""Build the small source tables of a report, such as those of GPUs, contexts, streams, threads and metric names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tracekit.readers.common.protobuf.wire import Message
from tracekit.readers.nsys.launch import rank_variables
from tracekit.readers.nsys_rep import clocks
from tracekit.readers.nsys_rep.container import CLOCKS, OPTIONS
from tracekit.readers.nsys_rep.fields import field_path, fields_of, snake_case
from tracekit.readers.nsys_rep.metrics import SOURCE_MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tracekit.readers.nsys_rep.blocks import RawData
    from tracekit.readers.nsys_rep.container import Container
    from tracekit.readers.nsys_rep.counters import CounterField
    from tracekit.readers.nsys_rep.metrics import Metric

    Row = dict[str, Any]

CONTEXTS_SINCE = (2023, 4)
"""First nsys version whose exports list contexts. Exports of older versions list null streams instead."""

PUBLIC = (13, 205, 605, 611)
"""Ids of the properties of a machine that are never private."""

ENVIRONMENT, HOST = 610, 619
"""Ids of the properties that hold the environment of the profiler and the name of the machine, which are private."""

NETWORK_CARDS = 910
"""Id of the property of a machine that lists its network cards. Other properties are ignored."""


def _numbers_by_column(message: str, *columns: str) -> dict[str, int]:
    """Return the field number of each column by column name. Each field is named like its column, in snake case."""
    return {column: field_path(message, snake_case(column))[0] for column in columns}


_TRAILER, _DEVICES, _STREAM_HEADER = fields_of("Trailer"), fields_of("Devices"), fields_of("StreamHeader")
_GPU_NUMBERS = {
    **_numbers_by_column("Gpu", "id"),
    "deviceId": fields_of("Gpu").id,
    **_numbers_by_column("Gpu", "l2CacheSize", "totalMemory", "memoryBandwidth", "clockRate", "smCount", "cuDevice"),
    **_numbers_by_column("Gpu", "maxRegistersPerSm", "maxShmemPerSm", "threadsPerWarp", "maxWarpsPerSm"),
    **_numbers_by_column("Gpu", "computeMajor", "computeMinor"),
}
_GPU_STRINGS = _numbers_by_column("Gpu", "name", "busLocation", "uuid", "chipName")
_CUDA_GPU_NUMBERS = {
    **_numbers_by_column("CudaGpu", "deviceId", "globalMemoryBandwidth", "globalMemorySize", "l2CacheSize"),
    **_numbers_by_column(
        "CudaGpu", "numThreadsPerWarp", "coreClockRate", "numMultiprocessors", "maxWarpsPerMultiprocessor"
    ),
    **_numbers_by_column("CudaGpu", "computeCapabilityMajor", "computeCapabilityMinor"),
    **_numbers_by_column("CudaGpu", "maxSharedMemoryPerMultiprocessor", "maxRegistersPerMultiprocessor"),
}
_CUDA_GPU_STRINGS = _numbers_by_column("CudaGpu", "name", "pciBusId")
_NETWORK_CARD = _numbers_by_column("NetworkDevice", "nicId", "deviceId", "vendorId", "linkLayer")
_NETWORK_CARD |= {"GUID": fields_of("NetworkDevice").guid}
_NETWORK_CARD_STRINGS = _numbers_by_column("NetworkDevice", "name")
_CONTEXT = _numbers_by_column(
    "Context", "nullStreamId", "processId", "deviceId", "contextId", "parentContextId", "isGreenContext"
)
_STREAM = _numbers_by_column("Stream", "streamId", "processId", "contextId", "priority", "flag")
_NAMED_STREAM = _numbers_by_column("NamedStream", "processId", "contextId", "streamId")
_NAMED_STREAM_STRINGS = _numbers_by_column("NamedStream", "name")
_THREAD = _numbers_by_column("ThreadName", "nameId", "priority", "globalTid")
_COMPONENT = _numbers_by_column("Component", "componentId", "instance")
_COMPONENT_STRINGS = _numbers_by_column("Component", "name")
_PERFORMANCE_METRIC = _numbers_by_column("PerformanceMetric", "id")
_PERFORMANCE_METRIC_STRINGS = _numbers_by_column("PerformanceMetric", "name", "unit")
_GENERIC_SOURCE = {"sourceId": fields_of("GenericSource").source_id, "nameId": fields_of("GenericSource").name_id}
_GENERIC_TYPE = {"typeId": fields_of("GenericType").type_id, "nameId": fields_of("GenericType").name_id}


class MachineReport(Protocol):
    """The interface of a report from which the tables about the machine are built."""

    container: Container
    raw_data: RawData

    @property
    def gpu_metrics(self) -> Mapping[int, Sequence[Metric]]:
        """The GPU metrics in the samples of each event type."""
        ...

    @property
    def counter_fields(self) -> Mapping[int, Sequence[CounterField]]:
        """The fields of the counter samples of each event type."""
        ...


def product_rows(report: MachineReport) -> Iterable[Row]:
    """Yield one row with the name of nsys, and one row with its version if the version is known.

    Unlike an export, a report has no schema version.
    """
    yield {"name": "EXPORT_PRODUCT_NAME", "value": "NVIDIA Nsight Systems"}
    if report.container.build:
        yield {"name": "EXPORT_PRODUCT_VERSION", "value": report.container.build}


def property_rows(report: MachineReport) -> Iterable[Row]:
    """Yield one row per supported property of the machine, such as its CPU, driver, environment and host name.

    Of the environment, only the variables with which launchers number processes, such as ``RANK``, are included.
    """
    field = fields_of("Property")
    for message in _property_messages(report, *PUBLIC, ENVIRONMENT, HOST):
        number, value = message.int_value(field.id), message.text(field.value)
        if number == ENVIRONMENT:
            value = "\0".join(f"{name}={rank}" for name, rank in rank_variables(value or "").items())
        yield {"nameEnum": number, "value": value}


def launch_rows(report: MachineReport) -> Iterable[Row]:
    """Yield one row per environment variable with which a launcher numbered the profiled process."""
    options = Message(report.container.read_section(OPTIONS)).message(fields_of("AnalysisOptions").launch)
    field = fields_of("Variable")
    for variable in options.messages(fields_of("LaunchOptions").variables):
        text = f"{variable.text(field.name) or ''}={variable.text(field.value) or ''}"
        for name, rank in rank_variables(text).items():
            yield {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": f'{name}="{rank}"'}


def network_card_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per network card of the machine."""
    value, devices = fields_of("Property").value, fields_of("NetworkDevices").devices
    listed = (p.message(value) for p in _property_messages(report, NETWORK_CARDS))
    return (
        _build_row(m, _NETWORK_CARD, _NETWORK_CARD_STRINGS) for cards in listed for m in cards.iter_messages(devices)
    )


def session_start_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row with the UTC time in ns at event time 0, or no rows if the time is unknown."""
    origin = _time_extent(report).origin_utc_ns
    return [] if origin is None else [{"utcEpochNs": origin}]


def duration_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row with the duration of the capture in ns, or no rows if the duration is unknown."""
    duration = _time_extent(report).duration_ns
    return [] if duration is None else [{"duration": duration}]


def gpu_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per GPU of the machine."""
    return (_build_row(m, _GPU_NUMBERS, _GPU_STRINGS) for m in _device_messages(report, _DEVICES.gpus))


def cuda_gpu_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per GPU in the CUDA device list, which only reports up to 2021 have."""
    return (_build_row(m, _CUDA_GPU_NUMBERS, _CUDA_GPU_STRINGS) for m in _device_messages(report, _DEVICES.cuda_gpus))


def context_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per CUDA context."""
    return (_build_row(m, _CONTEXT) for m in report.raw_data.trailer.iter_messages(_TRAILER.contexts))


def stream_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per CUDA stream."""
    return (_build_row(m, _STREAM) for m in report.raw_data.trailer.iter_messages(_TRAILER.streams))


def named_stream_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per CUDA stream that has an NVTX name."""
    return (
        _build_row(m, _NAMED_STREAM, _NAMED_STREAM_STRINGS)
        for m in report.raw_data.trailer.iter_messages(_TRAILER.named_streams)
    )


def thread_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per named thread."""
    return (
        _build_row(m, _THREAD) for m in report.raw_data.thread_names.iter_messages(fields_of("ThreadNames").threads)
    )


def metric_name_rows(report: MachineReport) -> Iterable[Row]:
    """Yield one row per event type and GPU metric in its samples, with the name of the metric."""
    strings = report.raw_data.strings
    names: dict[int, str] = {}
    for number, listed in report.gpu_metrics.items():
        for i, metric in enumerate(listed):
            if metric.name not in names and 0 <= metric.name < len(strings):
                names[metric.name] = strings[metric.name].as_py().decode("utf-8", "replace")
            yield {"typeId": number, "metricId": i, "metricName": names.get(metric.name)}


def component_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per hardware component whose performance counters were recorded."""
    return (
        _build_row(m, _COMPONENT, _COMPONENT_STRINGS)
        for m in report.raw_data.trailer.iter_messages(_TRAILER.components)
    )


def performance_metric_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per performance metric that was recorded, with its name and unit."""
    listed = report.raw_data.trailer.iter_messages(_TRAILER.performance_metrics)
    return (_build_row(m, _PERFORMANCE_METRIC, _PERFORMANCE_METRIC_STRINGS) for m in listed)


def generic_source_rows(report: MachineReport) -> Iterable[Row]:
    """Return one row per source of generic events."""
    return (_build_row(m, _GENERIC_SOURCE) for m in report.raw_data.stream.messages(_STREAM_HEADER.generic_sources))


def generic_type_rows(report: MachineReport) -> Iterable[Row]:
    """Yield one row per event type of counter samples."""
    for m in report.raw_data.stream.messages(_STREAM_HEADER.generic_types):
        row = _build_row(m, _GENERIC_TYPE)
        if row["typeId"] in report.counter_fields:
            yield row | {"sourceId": int(row["typeId"]) & SOURCE_MASK}


def generic_field_rows(report: MachineReport) -> Iterable[Row]:
    """Yield one row per field of the counter samples of each event type."""
    for number, listed in report.counter_fields.items():
        for i, field in enumerate(listed):
            yield {"typeId": number, "fieldIdx": i, "fieldNameId": field.name}


TABLES: dict[str, tuple[tuple[str, ...], Callable[[MachineReport], Iterable[Row]]]] = {
    "META_DATA_EXPORT": (("name", "value"), product_rows),
    "META_DATA_CAPTURE": (("name", "value"), launch_rows),
    "TARGET_INFO_SYSTEM_ENV": (("nameEnum", "value"), property_rows),
    "TARGET_INFO_NIC_INFO": ((*_NETWORK_CARD, *_NETWORK_CARD_STRINGS), network_card_rows),
    "TARGET_INFO_SESSION_START_TIME": (("utcEpochNs",), session_start_rows),
    "ANALYSIS_DETAILS": (("duration",), duration_rows),
    "TARGET_INFO_GPU": ((*_GPU_NUMBERS, *_GPU_STRINGS), gpu_rows),
    "TARGET_INFO_CUDA_GPU": ((*_CUDA_GPU_NUMBERS, *_CUDA_GPU_STRINGS), cuda_gpu_rows),
    "TARGET_INFO_CUDA_CONTEXT_INFO": (tuple(_CONTEXT), context_rows),
    "TARGET_INFO_CUDA_NULL_STREAM": (tuple(_CONTEXT)[:4], context_rows),
    "TARGET_INFO_CUDA_STREAM": (tuple(_STREAM), stream_rows),
    "TARGET_INFO_NVTX_CUDA_STREAM": ((*_NAMED_STREAM, *_NAMED_STREAM_STRINGS), named_stream_rows),
    "ThreadNames": (tuple(_THREAD), thread_rows),
    "TARGET_INFO_GPU_METRICS": (("typeId", "metricId", "metricName"), metric_name_rows),
    "TARGET_INFO_COMPONENT": ((*_COMPONENT, *_COMPONENT_STRINGS), component_rows),
    "TARGET_INFO_PERF_METRIC": ((*_PERFORMANCE_METRIC, *_PERFORMANCE_METRIC_STRINGS), performance_metric_rows),
    "GENERIC_EVENT_SOURCES": (("sourceId", "nameId"), generic_source_rows),
    "GENERIC_EVENT_TYPES": (("typeId", "nameId", "sourceId"), generic_type_rows),
    "GENERIC_EVENT_TYPE_FIELDS": (("typeId", "fieldIdx", "fieldNameId"), generic_field_rows),
}


def table_names(nsys_version: tuple[int, ...]) -> list[str]:
    """Return the names of the small source tables that a version of nsys exports.

    Args:
        nsys_version: Year and minor version, or an empty tuple if the version is unknown.
    """
    excluded = "TARGET_INFO_CUDA_CONTEXT_INFO" if () < nsys_version < CONTEXTS_SINCE else "TARGET_INFO_CUDA_NULL_STREAM"
    return [name for name in TABLES if name != excluded]


def _time_extent(report: MachineReport) -> clocks.TimeExtent:
    return clocks.time_extent(report.raw_data.header, report.container.read_section(CLOCKS))


def _property_messages(report: MachineReport, *ids: int) -> Iterator[Message]:
    """Yield the properties with one of the given ids, for all target machines."""
    field = fields_of("Property").id
    for target in report.raw_data.header.messages(fields_of("CaptureHeader").targets):
        for properties in target.messages(fields_of("Target").properties):
            yield from (p for p in properties.messages(fields_of("Properties").properties) if p.int_value(field) in ids)


def _device_messages(report: MachineReport, field: int) -> Iterator[Message]:
    devices = fields_of("TargetDevices").devices
    targets = (
        m for machine in report.raw_data.trailer.iter_messages(_TRAILER.targets) for m in machine.iter_messages(devices)
    )
    return (m for target in targets for m in target.iter_messages(field))


def _build_row(message: Message, numbers: dict[str, int], strings: dict[str, int] | None = None) -> Row:
    row: Row = {name: message.int_value(n) for name, n in numbers.items()}
    return row | {name: message.text(n) for name, n in (strings or {}).items()}
