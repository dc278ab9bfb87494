"""What a computation reads is derived, and is all that it reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import tracekit as tk
from schemas.generate import correlation_reads
from tests.builders.reports import REPORTS_OF_NSYS
from tracekit import schemas
from tracekit.plan.stages import list_columns_for_correlation
from tracekit.readers.nsys.capture import NsysCapture
from tracekit.registry.analyses import REPORT, list_analyses

FIXTURES = Path(__file__).parents[2] / "fixtures"
MACHINE = {"devices", "threads", "capture_info"}
ASKED = [
    *REPORTS_OF_NSYS,
    *(f"{n}:{o.name}" for n in REPORTS_OF_NSYS for o in list_analyses(REPORT)[n].options if o.type == "flag"),
    "cuda_gpu_kern_sum:nvtx-name:base",
]


@pytest.mark.many(24)
@pytest.mark.parametrize("name", ["train_amp.nsys-rep", "nvtx_features.nsys-rep", "osrt_libs.nsys-rep"])
@pytest.mark.parametrize("report", ASKED)
def test_tables_are_read_together(name: str, report: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[list[str]] = []
    read = NsysCapture.read_many

    def noted(capture: NsysCapture, columns: dict[str, list[str]]) -> object:
        passes.append([f"{table}: {', '.join(names)}" for table, names in columns.items() if table not in MACHINE])
        return read(capture, columns)

    monkeypatch.setattr(NsysCapture, "read_many", noted)
    with tk.load(FIXTURES / name) as trace:
        trace.report(report)
    assert passes
    assert len([tables for tables in passes if tables]) <= 1


@pytest.mark.parametrize("table", ["kernels", "nvtx_ranges", "nvtx_projections"])
def test_correlation_reads_each_table_once(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What correlation reads is derived from a run on tables of one row; nothing else is read on a real capture."""
    passes: list[set[str]] = []
    read = NsysCapture.read_many

    def noted(capture: NsysCapture, wanted: dict[str, list[str]]) -> object:
        passes.append(set(wanted))
        return read(capture, wanted)

    monkeypatch.setattr(NsysCapture, "read_many", noted)
    with tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
        assert trace.correlate().table(table).num_rows
    assert len(passes) == 1
    assert {"api_calls", "nvtx_ranges", "kernels"} <= passes[0]


@pytest.mark.slow
def test_the_stored_reads_of_correlation_are_up_to_date() -> None:
    assert correlation_reads.FILE.read_text("utf-8") == correlation_reads.text()


@pytest.mark.parametrize("table", [name for name in schemas.table_names() if correlation_reads.added_columns(name)])
def test_columns_together_read_what_each_of_them_reads(table: str) -> None:
    columns = correlation_reads.added_columns(table)
    together = correlation_reads.reads_of(table, columns)
    stored = list_columns_for_correlation(table, columns)
    assert {name: set(read) for name, read in stored.items()} == {name: set(read) for name, read in together.items()}
