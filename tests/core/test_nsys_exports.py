"""Reports and rules of nsys on events that no capture at hand contains, compared with the output of nsys.

The rows below were inserted into an export that nsys 2025.3.1 had made without ``--lazy``. The folder ``nsys_exports``
has what ``nsys stats`` and ``nsys analyze`` of the same version printed for this file as CSV.
"""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_sqlite import edited

Row = tuple[str, dict[str, int | str | None]]

PRINTED = sorted((Path(__file__).parent / "nsys_exports").glob("*.csv"))
NAMES = ("CreateHeap", "CreateCommittedResource", "ReadFromSubresource", "WriteToSubresource", "Map")
CALLS = [f"ID3D12{'Device' if 'Create' in name else 'Resource'}::{name}" for name in NAMES]
TEXTS = ["range a", 'b, "quoted"', "", *CALLS]
FIRST_TEXT, FIRST_CALL = 1000, 1003
MACHINE = 1 << 56
QUEUES = {"QUEUE": ("submitSequence", "submitSequence"), "DMA": ("uliSubmissionId", "uliCompletionId")}
ENGINES = {0: "Other", 1: "3D", 6: "Copy"}
CARDS = {4123: "ConnectX-6", 4129: "ConnectX-7"}


def debug_events() -> Iterator[Row]:
    for i in range(24):
        start = 100 * i % 700
        end = None if i % 5 == 4 else start + 7 * i % 40
        number = None if i % 7 == 6 else i % 3
        text = (None if number is None else FIRST_TEXT + number) if i % 3 else FIRST_TEXT + i % 2
        yield "KHR_DEBUG_EVENTS", {"eventClass": (62, 63, 53)[i % 3], "start": start, "end": end, "textId": text}


def wddm_events() -> Iterator[Row]:
    for context, engine, node in ((100, 1, 4), (0xABC, 6, 5), (102, 0, 6), (102, 0, 7)):
        values = {"context": context, "engineType": engine, "nodeOrdinal": node, "friendlyName": "Graphics_1"}
        yield "TARGET_INFO_WDDM_CONTEXTS", values
    for i in range(40):
        name, (start_key, stop_key) = list(QUEUES.items())[i % 2]
        shared = {
            "gpu": i % 4 // 3,
            "context": (100, 0xABC, 102, 103)[i % 4],
            "engineType": (1, 6, 0, 99)[i % 7 % 4],
            "globalTid": None if i == 13 else MACHINE | (7 + i % 3 // 2) << 24 | 9 + i % 4,
        }
        start = 997 * i % 3000
        stop = start + 40 * (i % 9) - 30
        yield f"WDDM_{name}_PACKET_START_EVENTS", {"start": start, "end": start + 1, start_key: i % 16, **shared}
        yield f"WDDM_{name}_PACKET_STOP_EVENTS", {"start": stop, "end": start + 900, stop_key: i % 16, **shared}


def network_samples() -> Iterator[Row]:
    for metrics_list in (1, 2):
        for index, name in enumerate(("IB: Bytes sent", "IB: Send waits")):
            values = {"metricsListId": metrics_list, "metricsIdx": index, "name": name}
            yield "TARGET_INFO_NETWORK_METRICS", {**values, "description": "", "unit": ""}
    for card, model, guid in ((3, 4123, 0xBEEF), (1, 4129, -5), (2, 1, 0x20)):
        values = {"nicId": card, "GUID": guid, "name": f"mlx5_{card}", "deviceId": model, "vendorId": 5555}
        yield "TARGET_INFO_NIC_INFO", {**values, "linkLayer": 2, "stateName": ""}
        yield "NIC_ID_MAP", {"nicId": card, "globalId": 10 * card}
    for i in range(40):
        start, device = 100 * (i % 6), (10, 20, 30, 40)[i % 4]
        metric = {"metricsListId": 1 + i % 5 // 3, "metricsIdx": i % 7 // 2 % 2, "value": 9_000 + 300 * (i % 8)}
        values = {"start": start, "end": start + 50 * (i % 3), "globalId": device, "portId": 1, **metric}
        yield f"NET_{('NIC', 'IB_SWITCH')[i % 3 // 2]}_METRIC", values


def memory_operations() -> Iterator[Row]:
    for i in range(1, 41):
        call = {"id": i, "start": 10 * i, "end": 10 * i + 50 * (i % 3), "eventClass": 41}
        yield "DX12_API", {**call, "nameId": FIRST_CALL + i % 5, "globalTid": MACHINE | 7 << 24 | 9 + i % 2}
        heap = {"heapType": i % 4, "heapFlags": (0, 0x1000, 1)[i % 3], "cpuPageProperty": i // 4 % 4}
        yield "DX12_MEMORY_OPERATION", {"traceEventId": i, "gpu": i % 2, **heap, "rangeStart": 0, "rangeEnd": 8}


def quoted(names: Iterable[str]) -> str:
    """Names of columns for a statement; ``end`` is a word of SQL."""
    return ", ".join(f'"{name}"' for name in names)


def made_export(folder: Path, *more: str) -> Path:
    """Return an export with all of the rows, after further SQL statements."""
    rows = [row for make in (debug_events, wddm_events, network_samples, memory_operations) for row in make()]
    columns: dict[str, dict[str, None]] = {}
    for table, values in rows:
        columns.setdefault(table, {}).update(dict.fromkeys(values))
    statements = [f"CREATE TABLE {table} ({quoted(names)})" for table, names in columns.items()]
    enums = {"ENUM_WDDM_ENGINE_TYPE": ENGINES, "ENUM_NET_DEVICE_ID": CARDS}
    statements += [f"CREATE TABLE {enum} (id, name, label)" for enum in enums]
    path = edited(folder, *statements, of="empty")
    connection = sqlite3.connect(path)
    with connection:
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(TEXTS, FIRST_TEXT))
        for enum, labels in enums.items():
            connection.executemany(f"INSERT INTO {enum} VALUES (?, '', ?)", labels.items())
        for table, values in rows:
            marks = ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO {table} ({quoted(values)}) VALUES ({marks})", tuple(values.values()))
        for statement in more:
            connection.execute(statement)
    connection.close()
    return path


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tk.Trace]:
    with tk.load(made_export(tmp_path_factory.mktemp("made"))) as trace:
        yield trace


def csv_of(trace: tk.Trace, name: str) -> bytes:
    sink = io.BytesIO()
    trace.report(name).csv(sink)
    return sink.getvalue()


@pytest.mark.parametrize("printed", PRINTED, ids=lambda path: path.stem)
def test_rows_are_those_of_nsys(printed: Path, capture: tk.Trace) -> None:
    assert csv_of(capture, printed.stem.replace(",", ":")) == printed.read_bytes()


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("DELETE FROM NIC_ID_MAP", "network_congestion"),
        ("DELETE FROM TARGET_INFO_NETWORK_METRICS", "network_congestion"),
        ('UPDATE KHR_DEBUG_EVENTS SET "end" = NULL', "opengl_khr_range_sum"),
        ("DELETE FROM DX12_API", "dx12_mem_ops"),
        ("DELETE FROM DX12_MEMORY_OPERATION", "dx12_mem_ops"),
    ],
)
def test_nothing_is_printed_where_nsys_prints_nothing(statement: str, name: str, tmp_path: Path) -> None:
    with tk.load(made_export(tmp_path, statement)) as trace:
        assert csv_of(trace, name) == b""


def test_switches_do_not_need_a_list_of_network_cards(tmp_path: Path) -> None:
    empty = [f"DELETE FROM {t}" for t in ("NET_NIC_METRIC", "NIC_ID_MAP", "TARGET_INFO_NIC_INFO")]
    with tk.load(made_export(tmp_path, *empty)) as trace:
        assert tk.stats(trace, "network_congestion")["GUID"].to_list() == ["a", "1e", "28"]


def test_queues_do_not_need_a_list_of_contexts(capture: tk.Trace, tmp_path: Path) -> None:
    """nsys prints rows without it as well, unless the export lacks the table."""
    with tk.load(made_export(tmp_path, "DELETE FROM TARGET_INFO_WDDM_CONTEXTS")) as trace:
        rows, named = tk.stats(trace, "wddm_queue_sum"), tk.stats(capture, "wddm_queue_sum")
    keys = ["Utilization (%)", "Instances", "Q Name", "PID", "GPU ID", "Context"]
    assert rows.select(keys).sort(keys).equals(named.select(keys).unique().sort(keys))
    assert set(rows["Node Ord"]) == {0}


def test_queues_without_time_have_no_utilization(tmp_path: Path) -> None:
    """The start and the stop of every packet are at the same time."""
    tables = [f"WDDM_{queue}_PACKET_{kind}_EVENTS" for queue in QUEUES for kind in ("START", "STOP")]
    with tk.load(made_export(tmp_path, *(f"UPDATE {t} SET start = 5" for t in tables))) as trace:
        rows = tk.stats(trace, "wddm_queue_sum")
    assert rows.height > 0
    assert rows["Utilization (%)"].null_count() == rows.height
    assert set(rows["Max (ns)"]) == {0}
