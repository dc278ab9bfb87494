"""Tables that no capture at hand contains: databases made by the schema that nsys documents."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.builders.nsys_sqlite import edited
from tracekit import schemas
from tracekit.readers.nsys.capture import find_enum_name
from tracekit.readers.nsys.mapping import SOURCES

CALL = "start end eventClass globalTid correlationId endCorrelationId nameId"
OPENGL = f"{CALL} endGlobalTid endNameId returnValue frameId contextId gpu display"
DX12 = f"{CALL} shortContextId frameId color textId commandListType objectNameId longContextId"
PIX = "start end globalTid correlationId endCorrelationId nameId shortContextId frameId color textId"
ACC = "start end nameId globalTid eventKind DeviceType lineNo cuDeviceId cuContextId cuStreamId srcFile funcName"
TRANSFER = "start end globalTid textId bufferAddr packedSize peerWorkerUid tag"
METRIC = "start end globalId portId metricsListId metricsIdx value"
PACKET = "start end globalTid gpu context packetType engineType"
PAGING = "start end globalTid gpu pagingQueue pagingQueuePacket sequenceId"
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_OPENACC_DATA": f"{ACC} bytes varName",
    "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH": f"{ACC} numGangs numWorkers vectorLength kernelName",
    "CUPTI_ACTIVITY_KIND_OPENACC_OTHER": ACC,
    "OPENGL_API": OPENGL,
    "OPENGL_WORKLOAD": OPENGL,
    "KHR_DEBUG_EVENTS": "eventClass start end textId globalTid source khrdType id severity correlationId context",
    "VULKAN_API": f"id {CALL} contextId",
    "VULKAN_WORKLOAD": f"{CALL} gpu contextId color textId",
    "VULKAN_DEBUG_API": f"{CALL} contextId color textId",
    "DX12_API": f"id {DX12}",
    "DX12_WORKLOAD": f"{DX12} gpu",
    "D3D11_PIX_DEBUG_API": PIX,
    "D3D12_PIX_DEBUG_API": f"{PIX} commandListType objectNameId longContextId",
    "NVVIDEO_ENCODER_API": "start end eventClass globalTid nameId",
    "NVVIDEO_DECODER_API": "start end eventClass globalTid nameId",
    "NVVIDEO_JPEG_API": "start end eventClass globalTid nameId",
    "UCP_SUBMIT_EVENTS": TRANSFER,
    "UCP_PROGRESS_EVENTS": TRANSFER,
    "UCP_EVENTS": "start end globalTid textId",
    "NET_NIC_METRIC": METRIC,
    "NET_IB_SWITCH_METRIC": METRIC,
    "TARGET_INFO_NETWORK_METRICS": "metricsListId metricsIdx name description unit",
    "TARGET_INFO_NIC_INFO": "GUID stateName nicId name deviceId vendorId linkLayer",
    "NIC_ID_MAP": "nicId globalId",
    "DX12_MEMORY_OPERATION": (
        "gpu rangeStart rangeEnd subresourceId heapType heapFlags cpuPageProperty nvApiFlags traceEventId"
    ),
    "WDDM_QUEUE_PACKET_START_EVENTS": (
        f"{PACKET} dmaBufferSize dmaBuffer queuePacket progressFenceValue submitSequence allocationListSize "
        "patchLocationListSize present syncObject"
    ),
    "WDDM_QUEUE_PACKET_STOP_EVENTS": f"{PACKET} queuePacket submitSequence preempted timeouted",
    "WDDM_QUEUE_PACKET_INFO_EVENTS": f"{PACKET} submitSequence",
    "WDDM_DMA_PACKET_START_EVENTS": (
        f"{PACKET} queuePacketContext uliSubmissionId dmaBuffer ulQueueSubmitSequence quantumStatus"
    ),
    "WDDM_DMA_PACKET_STOP_EVENTS": f"{PACKET} uliCompletionId ulQueueSubmitSequence preempted",
    "WDDM_DMA_PACKET_INFO_EVENTS": (
        f"{PACKET} uliCompletionId faultedVirtualAddress faultedProcessHandle ulQueueSubmitSequence interruptType "
        "quantumStatus pageFaultFlags"
    ),
    "WDDM_PAGING_QUEUE_PACKET_START_EVENTS": f"{PAGING} dxgDevice dxgAdapter alloc vidMmOpType pagingQueueType",
    "WDDM_PAGING_QUEUE_PACKET_STOP_EVENTS": PAGING,
    "WDDM_PAGING_QUEUE_PACKET_INFO_EVENTS": PAGING,
    "WDDM_HW_QUEUE_EVENTS": "start end globalTid gpu context hwQueue parentDxgHwQueue",
    "WDDM_EVICT_ALLOCATION_EVENTS": "start end globalTid gpu allocationHandle",
    "GPU_VIDEO_ENGINE_WORKLOAD": (
        "start end globalEngineId engineType engineId vmId contextId globalPid apiId codecId"
    ),
    "NET_IB_SWITCH_CONGESTION_EVENT": (
        "start globalId congestionType packetSLID packetDLID packetSL packetOpCode packetSourceQP packetDestinationQP "
        "switchIngressPort switchEgressPort"
    ),
    "TARGET_INFO_WDDM_CONTEXTS": "context engineType nodeOrdinal friendlyName",
}
BY_SCHEMA = (
    *("openacc_events", "graphics_calls", "graphics_workloads", "khr_debug_events", "ucx_calls", "network_metrics"),
    *("network_metric_names", "network_cards", "network_card_devices", "dx12_memory_operations"),
    *("video_engine_workloads", "network_congestion_events"),
    *("wddm_packets", "wddm_paging_packets", "wddm_queue_events", "wddm_contexts"),
)
TEXTS = ("name", "description", "unit", "friendlyName")
THREAD = 1 << 56 | 7 << 24 | 9
ROWS = 2


def value(source: str, column: str, row: int) -> int | str:
    """A value that no other column of any of these tables has."""
    if column in ("globalTid", "globalPid"):
        return THREAD + row
    number = 100_000 * (list(COLUMNS).index(source) + 1) + 100 * COLUMNS[source].split().index(column) + row
    return f"{column} {number}" if column in TEXTS and source.startswith("TARGET") else number


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    statements = []
    for source, columns in COLUMNS.items():
        names = columns.split()
        statements.append(f"CREATE TABLE {source} ({', '.join(names)})")
        for row in range(ROWS):
            values = [value(source, column, row) for column in names]
            statements.append(f"INSERT INTO {source} VALUES ({', '.join(map(repr, values))})")
            statements += [f"INSERT INTO StringIds VALUES ({v}, 'text {v}')" for v in values if isinstance(v, int)]
    for enum in ("OPENACC_EVENT_KIND", "OPENACC_DEVICE", "OPENGL_DEBUG_SOURCE", "OPENGL_DEBUG_TYPE"):
        statements.append(f"CREATE TABLE ENUM_{enum} (id, name, label)")
    statements.append("INSERT INTO ENUM_OPENACC_DEVICE VALUES (100500, 'nvidia', 'NVIDIA')")
    texts = [s for s in statements if "INTO StringIds" in s]
    return edited(tmp_path_factory.mktemp("made"), *dict.fromkeys([*statements, *texts]), of="empty")


def expected(name: str, column: str, source: str, row: int) -> object:
    schema = schemas.table(name)
    of = SOURCES[name].find_column(source, column)
    if of == "*":
        return SOURCES[name].labels[source]
    if of is None or of not in COLUMNS[source].split():
        return None
    number = value(source, of, row)
    if of in ("globalTid", "globalPid"):
        return 7 if column == "process_id" else 9 + row
    if schema[column].type == "dictionary":
        known = number == 100_500 and column == "device_type"
        return "NVIDIA" if known else None if find_enum_name(source, of) else f"text {number}"
    return number


@pytest.mark.parametrize("name", BY_SCHEMA)
def test_every_column_is_read(name: str, capture: Path) -> None:
    schema = schemas.table(name)
    pairs = [(source, row) for source in SOURCES[name].labels for row in range(ROWS)]
    with tk.load(capture) as trace:
        frame = trace.frame(name).with_columns(pl.col(pl.Categorical).cast(pl.String)).collect()
        assert trace.count(name) == frame.height == len(pairs)
        assert not SOURCES[name].labels.keys() & trace.undecoded.keys()
    for column in schema.names:
        if SOURCES[name].columns[column] == "rowid":
            assert frame[column].to_list() == list(range(1, len(pairs) + 1))
        else:
            assert frame[column].to_list() == [expected(name, column, *pair) for pair in pairs], column


@pytest.mark.parametrize("name", BY_SCHEMA)
def test_every_source_column_is_documented(name: str) -> None:
    sources = SOURCES[name]
    for column in schemas.table(name).columns:
        found = [sources.find_column(source, column.name) for source in sources.labels]
        have = [c in ("*", "rowid", *COLUMNS[s].split()) for s, c in zip(sources.labels, found, strict=True) if c]
        assert any(have), column.name
        assert column.nullable or all(have), column.name


def test_reports_print_these_tables(capture: Path) -> None:
    with tk.load(capture) as trace:
        assert tk.stats(trace, "openacc_sum").height == 6
        assert tk.stats(trace, "nvvideo_api_sum").height == 6
        assert tk.stats(trace, "vulkan_api_trace")["CorrID"].null_count() == 0
