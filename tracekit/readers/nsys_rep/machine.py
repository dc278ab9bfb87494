"""The small tables of a report, as an export of nsys calls them: facts, GPUs, contexts, streams, threads, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tracekit.readers.nsys_rep import clocks
from tracekit.readers.nsys_rep.container import CLOCKS
from tracekit.readers.nsys_rep.fields import field_path, fields_of, snake_case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tracekit.readers.common.protobuf.wire import Message
    from tracekit.readers.nsys_rep.blocks import RawData
    from tracekit.readers.nsys_rep.container import Container
    from tracekit.readers.nsys_rep.metrics import Metric

    Row = dict[str, Any]

CONTEXTS_SINCE = (2023, 4)
"""Release from which exports list contexts; before they listed null streams."""

PUBLIC = (13, 205, 605, 611)
"""Numbers of properties of the machine; others hold names of hosts and users, and environments."""


def _same_names(message: str, *columns: str) -> dict[str, int]:
    """Return the numbers of the fields that have the names of columns, in snake case."""
    return {column: field_path(message, snake_case(column))[0] for column in columns}


_TRAILER, _DEVICES = fields_of("Trailer"), fields_of("Devices")
_GPU_NUMBERS = {
    **_same_names("Gpu", "id"),
    "deviceId": fields_of("Gpu").id,
    **_same_names("Gpu", "l2CacheSize", "totalMemory", "memoryBandwidth", "clockRate", "smCount", "cuDevice"),
    **_same_names("Gpu", "maxRegistersPerSm", "maxShmemPerSm", "threadsPerWarp", "maxWarpsPerSm"),
    **_same_names("Gpu", "computeMajor", "computeMinor"),
}
_GPU_TEXTS = _same_names("Gpu", "name", "busLocation", "uuid", "chipName")
_CUDA_GPU_NUMBERS = {
    **_same_names("CudaGpu", "deviceId", "globalMemoryBandwidth", "globalMemorySize", "l2CacheSize"),
    **_same_names("CudaGpu", "numThreadsPerWarp", "coreClockRate", "numMultiprocessors", "maxWarpsPerMultiprocessor"),
    **_same_names("CudaGpu", "computeCapabilityMajor", "computeCapabilityMinor"),
    **_same_names("CudaGpu", "maxSharedMemoryPerMultiprocessor", "maxRegistersPerMultiprocessor"),
}
_CUDA_GPU_TEXTS = _same_names("CudaGpu", "name", "pciBusId")
_CONTEXT = _same_names(
    "Context", "nullStreamId", "processId", "deviceId", "contextId", "parentContextId", "isGreenContext"
)
_STREAM = _same_names("Stream", "streamId", "processId", "contextId", "priority", "flag")
_NAMED_STREAM = _same_names("NamedStream", "processId", "contextId", "streamId")
_NAMED_STREAM_TEXTS = _same_names("NamedStream", "name")
_THREAD = _same_names("ThreadName", "nameId", "priority", "globalTid")


class Described(Protocol):
    """A report, as far as it tells of the machine."""

    container: Container
    raw: RawData

    @property
    def metrics(self) -> Mapping[int, Sequence[Metric]]:
        """GPU metrics of each type of sample."""
        ...


def facts(report: Described) -> Iterable[Row]:
    """Tool and version. There is no schema version: that is the exporter's."""
    yield {"name": "EXPORT_PRODUCT_NAME", "value": "NVIDIA Nsight Systems"}
    if report.container.build:
        yield {"name": "EXPORT_PRODUCT_VERSION", "value": report.container.build}


def environment(report: Described) -> Iterable[Row]:
    """Properties of the machine that are public: CPU, driver, operating system, CUDA."""
    field = fields_of("Property")
    listed = (
        p
        for target in report.raw.header.messages(fields_of("CaptureHeader").targets)
        for properties in target.messages(fields_of("Target").properties)
        for p in properties.messages(fields_of("Properties").properties)
    )
    return (
        {"nameEnum": p.number(field.id), "value": p.text(field.value)} for p in listed if p.number(field.id) in PUBLIC
    )


def session(report: Described) -> Iterable[Row]:
    """UTC of event time 0."""
    origin = _extent(report).origin_utc_ns
    return [] if origin is None else [{"utcEpochNs": origin}]


def analysis(report: Described) -> Iterable[Row]:
    """How long the capture lasted."""
    duration = _extent(report).duration_ns
    return [] if duration is None else [{"duration": duration}]


def gpus(report: Described) -> Iterable[Row]:
    """The GPUs of the machine."""
    return (_row(m, _GPU_NUMBERS, _GPU_TEXTS) for m in _described(report, _DEVICES.gpus))


def cuda_gpus(report: Described) -> Iterable[Row]:
    """Properties of the GPUs, as reports up to 2021 keep them."""
    return (_row(m, _CUDA_GPU_NUMBERS, _CUDA_GPU_TEXTS) for m in _described(report, _DEVICES.cuda_gpus))


def contexts(report: Described) -> Iterable[Row]:
    """CUDA contexts."""
    return (_row(m, _CONTEXT) for m in report.raw.trailer.each(_TRAILER.contexts))


def streams(report: Described) -> Iterable[Row]:
    """CUDA streams."""
    return (_row(m, _STREAM) for m in report.raw.trailer.each(_TRAILER.streams))


def named_streams(report: Described) -> Iterable[Row]:
    """CUDA streams that NVTX gave a name."""
    return (_row(m, _NAMED_STREAM, _NAMED_STREAM_TEXTS) for m in report.raw.trailer.each(_TRAILER.named_streams))


def threads(report: Described) -> Iterable[Row]:
    """Names of threads."""
    return (_row(m, _THREAD) for m in report.raw.threads.each(fields_of("ThreadNames").threads))


def metric_names(report: Described) -> Iterable[Row]:
    """GPU metrics of each type of sample."""
    strings = report.raw.strings
    known: dict[int, str] = {}
    for number, listed in report.metrics.items():
        for i, metric in enumerate(listed):
            if metric.name not in known and 0 <= metric.name < len(strings):
                known[metric.name] = strings[metric.name].as_py().decode("utf-8", "replace")
            yield {"typeId": number, "metricId": i, "metricName": known.get(metric.name)}


TABLES: dict[str, tuple[tuple[str, ...], Callable[[Described], Iterable[Row]]]] = {
    "META_DATA_EXPORT": (("name", "value"), facts),
    "TARGET_INFO_SYSTEM_ENV": (("nameEnum", "value"), environment),
    "TARGET_INFO_SESSION_START_TIME": (("utcEpochNs",), session),
    "ANALYSIS_DETAILS": (("duration",), analysis),
    "TARGET_INFO_GPU": ((*_GPU_NUMBERS, *_GPU_TEXTS), gpus),
    "TARGET_INFO_CUDA_GPU": ((*_CUDA_GPU_NUMBERS, *_CUDA_GPU_TEXTS), cuda_gpus),
    "TARGET_INFO_CUDA_CONTEXT_INFO": (tuple(_CONTEXT), contexts),
    "TARGET_INFO_CUDA_NULL_STREAM": (tuple(_CONTEXT)[:4], contexts),
    "TARGET_INFO_CUDA_STREAM": (tuple(_STREAM), streams),
    "TARGET_INFO_NVTX_CUDA_STREAM": ((*_NAMED_STREAM, *_NAMED_STREAM_TEXTS), named_streams),
    "ThreadNames": (tuple(_THREAD), threads),
    "TARGET_INFO_GPU_METRICS": (("typeId", "metricId", "metricName"), metric_names),
}


def table_names(release: tuple[int, ...]) -> list[str]:
    """Return the small tables of a release: contexts stand in one of two."""
    left_out = "TARGET_INFO_CUDA_CONTEXT_INFO" if () < release < CONTEXTS_SINCE else "TARGET_INFO_CUDA_NULL_STREAM"
    return [name for name in TABLES if name != left_out]


def _extent(report: Described) -> clocks.Extent:
    return clocks.extent(report.raw.header, report.container.section(CLOCKS))


def _described(report: Described, field: int) -> Iterator[Message]:
    devices = fields_of("TargetDevices").devices
    targets = (m for machine in report.raw.trailer.each(_TRAILER.targets) for m in machine.each(devices))
    return (m for target in targets for m in target.each(field))


def _row(message: Message, numbers: dict[str, int], texts: dict[str, int] | None = None) -> Row:
    row: Row = {name: message.number(n) for name, n in numbers.items()}
    return row | {name: message.text(n) for name, n in (texts or {}).items()}
