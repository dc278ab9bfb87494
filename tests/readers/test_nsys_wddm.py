"""WDDM events of reports, and columns of reports that are compared with what nsys exported of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.builders.nsys_exported import digest_columns, read_digests
from tests.builders.nsys_rep import CAPTURES, SHARED, Parts, event, message
from tests.helpers import count_undecoded
from tracekit.errors import CorruptTraceError, TracekitWarning
from tracekit.readers.nsys_rep import layout

CORPUS = SHARED / "corpus"
PUBLIC = {
    "gpu_metrics_2022": CORPUS / "nsys_rep_only" / "als244__ResourceEstimation" / "reports" / "report3.nsys-rep",
    "openacc": CAPTURES / "openacc" / "report.nsys-rep",
    "wddm": CORPUS / "makers" / "nsys_new" / "robodo2020__GPU_final" / "Report 1.nsys-rep",
}
WDDM = 31
THREAD = 1 << 56 | 7 << 24 | 9
ADDRESS = (1 << 64) - 4096
EXPECTED: dict[str, tuple[int, dict[int, int], dict[str, Any]]] = {
    "queue_start": (
        4,
        {1: ADDRESS, 2: 4096, 3: 5, 4: ADDRESS, 5: 11, 6: 0, 7: 12, 8: 13, 9: 14, 10: 1, 11: 1, 12: 15},
        {"context_id": -4096, "dma_buffer_bytes": 4096, "dma_buffer": 5, "queue_packet": -4096, "fence_value": 11}
        | {"packet_type": "Render", "submit_sequence": 12, "allocations": 13, "patch_locations": 14, "is_present": 1}
        | {"engine_type": "3D", "engine_type_id": 1, "sync_object": 15},
    ),
    "queue_stop": (
        5,
        {1: ADDRESS, 2: ADDRESS, 3: 5, 4: 12, 5: 1, 6: 2, 7: 6},
        {"context_id": -4096, "queue_packet": -4096, "packet_type": "Signal", "submit_sequence": 12}
        | {"is_preempted": 1, "is_timed_out": 2, "engine_type": "Copy", "engine_type_id": 6},
    ),
    "queue_info": (
        6,
        {1: ADDRESS, 2: 7, 3: 12, 4: 2},
        {"context_id": -4096, "packet_type": "Software", "submit_sequence": 12}
        | {"engine_type": "Video decode", "engine_type_id": 2},
    ),
    "dma_start": (
        1,
        {1: ADDRESS, 2: 21, 3: 22, 4: ADDRESS, 5: 1, 6: 23, 7: 3, 8: 8},
        {"context_id": -4096, "queue_packet_context_id": 21, "submission_id": 22, "dma_buffer": -4096}
        | {"packet_type": "Deferred", "queue_submit_sequence": 23, "quantum_status": 3}
        | {"engine_type": "Crypto", "engine_type_id": 8},
    ),
    "dma_stop": (
        2,
        {1: ADDRESS, 2: 22, 3: 2, 4: 23, 5: 1, 6: 0},
        {"context_id": -4096, "completion_id": 22, "packet_type": "System", "queue_submit_sequence": 23}
        | {"is_preempted": 1, "engine_type": "Other", "engine_type_id": 0},
    ),
    "dma_info": (
        3,
        {1: ADDRESS, 2: 22, 3: ADDRESS, 4: 31, 5: 3, 6: 23, 7: 9, 8: 32, 9: 33, 10: 7},
        {"context_id": -4096, "completion_id": 22, "fault_address": -4096, "fault_process_handle": 31}
        | {"packet_type": "MemMap IO Flip", "queue_submit_sequence": 23, "interrupt_type": "DMA page faulted"}
        | {"quantum_status": 32, "fault_flags": 33, "engine_type": "Overlay", "engine_type_id": 7},
    ),
}
"""The message of each kind, its fields by number, and the columns that result from them."""


def create_event(start: int, details: bytes) -> bytes:
    return event(109, layout.API, (1, start), (2, start + 1), (6, 70), (13, THREAD), (21, 255), (WDDM, details))


def write_report(path: Path, *blocks: bytes) -> Path:
    path.write_bytes(Parts([b"".join(blocks)]).pack())
    return path


def test_each_field_is_a_column(tmp_path: Path) -> None:
    details = [message((number, message(*fields.items()))) for number, fields, _ in EXPECTED.values()]
    path = write_report(tmp_path / "a.nsys-rep", *(create_event(10 * n, d) for n, d in enumerate(details, 1)))
    with tk.load(path) as trace:
        assert trace.undecoded == {}
        rows = trace.frame("wddm_packets").with_columns(pl.col(pl.Categorical).cast(str)).collect().to_dicts()
    common = {"process_id": 7, "thread_id": 9, "gpu": 255}
    for nth, (row, (kind, (_, _, columns))) in enumerate(zip(rows, EXPECTED.items(), strict=True), 1):
        times = {"wddm_packet_id": nth, "start_ns": 10 * nth, "end_ns": 10 * nth + 1, "kind": kind}
        assert {name: value for name, value in row.items() if value is not None} == times | common | columns


def test_events_without_a_known_packet_are_counted(tmp_path: Path) -> None:
    path = write_report(tmp_path / "a.nsys-rep", create_event(10, b""), create_event(20, message((9, b"\x08\x01"))))
    with tk.load(path) as trace:
        assert count_undecoded(trace.undecoded) == {"WDDM event": 2}
        with pytest.warns(TracekitWarning, match="wddm_packets has no rows, because 2 WDDM events are recorded"):
            assert trace.count("wddm_packets") == trace.frame("wddm_packets").collect().height == 0


def test_a_packet_of_another_type_is_damage(tmp_path: Path) -> None:
    path = write_report(tmp_path / "a.nsys-rep", create_event(10, message((4, message((1, b"text"))))))
    with tk.load(path) as trace, pytest.raises(CorruptTraceError):
        trace.frame("wddm_packets").collect()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_column_is_what_nsys_exported(name: str) -> None:
    if not PUBLIC[name].is_file():
        pytest.skip("no public captures beside the checkout")
    for table, digests in read_digests(name).items():
        assert digest_columns(PUBLIC[name], table) == digests


def test_queues_are_added_up_as_nsys_adds_them_up() -> None:
    """The numbers are those that nsys stats of version 2023.4.4 prints for an export of the report with all tables."""
    if not PUBLIC["wddm"].is_file():
        pytest.skip("no public captures beside the checkout")
    with tk.load(PUBLIC["wddm"]) as trace:
        rows = tk.stats(trace, "wddm_queue_sum").drop("Context")
    assert rows.rows() == [
        (26.1, 111, 9726614.4, 14851300.0, 233700, 18871200, 7261017.4, "3D", 0, "queue", 716, 255, 1, 0),
        (25.1, 45, 9011666.7, 14012200.0, 39800, 15840500, 7077732.8, "3D", 1, "dma", 716, 255, 1, 0),
        (18.0, 28, 11982821.4, 15055750.0, 258600, 15846700, 6168206.3, "3D", 0, "queue", 2672, 255, 1, 0),
    ]
