"""The small tables of a report, as an export of nsys calls them: facts, GPUs, contexts, streams, threads, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tracekit.readers.nsys_rep import clocks
from tracekit.readers.nsys_rep.container import CLOCKS

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

_GPU_NUMBERS = {
    "id": 1,
    "deviceId": 1,
    "l2CacheSize": 10,
    "totalMemory": 11,
    "memoryBandwidth": 12,
    "clockRate": 13,
    "smCount": 14,
    "cuDevice": 15,
    "maxRegistersPerSm": 29,
    "maxShmemPerSm": 28,
    "threadsPerWarp": 30,
    "maxWarpsPerSm": 32,
    "computeMajor": 41,
    "computeMinor": 42,
}
_GPU_TEXTS = {"name": 2, "busLocation": 3, "uuid": 5, "chipName": 7}
_CUDA_GPU_NUMBERS = {
    "deviceId": 24,
    "globalMemoryBandwidth": 2,
    "globalMemorySize": 3,
    "l2CacheSize": 5,
    "numThreadsPerWarp": 6,
    "coreClockRate": 7,
    "numMultiprocessors": 9,
    "maxWarpsPerMultiprocessor": 11,
    "computeCapabilityMajor": 22,
    "computeCapabilityMinor": 23,
    "maxSharedMemoryPerMultiprocessor": 27,
    "maxRegistersPerMultiprocessor": 28,
}
_CUDA_GPU_TEXTS = {"name": 1, "pciBusId": 26}
_CONTEXT = {"nullStreamId": 1, "processId": 4, "deviceId": 5, "contextId": 6, "parentContextId": 7, "isGreenContext": 8}
_STREAM = {"streamId": 1, "processId": 4, "contextId": 5, "priority": 6, "flag": 7}
_NAMED_STREAM = {"processId": 4, "contextId": 6, "streamId": 7}
_THREAD = {"nameId": 2, "priority": 3, "globalTid": 4}


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
    listed = (
        p
        for target in report.raw.header.messages(1)
        for properties in target.messages(2)
        for p in properties.messages(1)
    )
    return ({"nameEnum": p.number(1), "value": p.text(2)} for p in listed if p.number(1) in PUBLIC)


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
    return (_row(m, _GPU_NUMBERS, _GPU_TEXTS) for m in _described(report, 7))


def cuda_gpus(report: Described) -> Iterable[Row]:
    """Properties of the GPUs, as reports up to 2021 keep them."""
    return (_row(m, _CUDA_GPU_NUMBERS, _CUDA_GPU_TEXTS) for m in _described(report, 1))


def contexts(report: Described) -> Iterable[Row]:
    """CUDA contexts."""
    return (_row(m, _CONTEXT) for m in report.raw.trailer.each(14))


def streams(report: Described) -> Iterable[Row]:
    """CUDA streams."""
    return (_row(m, _STREAM) for m in report.raw.trailer.each(15))


def named_streams(report: Described) -> Iterable[Row]:
    """CUDA streams that NVTX gave a name."""
    return (_row(m, _NAMED_STREAM, {"name": 1}) for m in report.raw.trailer.each(13))


def threads(report: Described) -> Iterable[Row]:
    """Names of threads."""
    return (_row(m, _THREAD) for m in report.raw.threads.each(1))


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
    "TARGET_INFO_NVTX_CUDA_STREAM": ((*_NAMED_STREAM, "name"), named_streams),
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
    targets = (m for machine in report.raw.trailer.each(1) for m in machine.each(2))
    return (m for target in targets for m in target.each(field))


def _row(message: Message, numbers: dict[str, int], texts: dict[str, int] | None = None) -> Row:
    row: Row = {name: message.number(n) for name, n in numbers.items()}
    return row | {name: message.text(n) for name, n in (texts or {}).items()}
