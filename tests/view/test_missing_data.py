"""Sentences of the viewer about missing data and recorded warnings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tracekit as tk
from tests.cli.test_absence import made_report
from tests.view.support import captures_of, texts
from tracekit.errors import CorruptTraceError, MissingTableError, TracekitError
from tracekit.pages.answer import TITLE
from tracekit.view import components
from tracekit.view.datasets import DATASETS
from tracekit.view.missing import explain_missing_rows
from tracekit.view.pages import PAGES, Context, build_page
from tracekit.view.state import parse_url
from tracekit.view.timeline import find_span

FIXTURES = Path(__file__).parents[2] / "fixtures"
NO_GPU_WORK = (
    "This capture contains no GPU work, because no kernels, memcpys, memsets or graph_launches were recorded; "
)


def texts_of(path: Path, page: str, query: str = "") -> list[str]:
    """Return the texts of a page of one capture, in their order."""
    with tk.load(path) as trace:
        return texts(build_page(Context(captures_of(trace), parse_url(page, query, 1))))


@pytest.mark.slow
def test_warnings_of_the_profiler_follow_the_answer() -> None:
    """They are shown once."""
    shown = texts_of(FIXTURES / "train_amp.sqlite", "")
    first = shown.index("Warning recorded by Nsight Systems: Not all NVTX events might have been collected.")
    assert shown[first + 1] == "Warning recorded by Nsight Systems: Not all CUDA events might have been collected."
    assert shown.index(TITLE) < first < shown.index("Time span")
    assert sum("events might have been collected" in text for text in shown) == 2


def test_a_figure_that_cannot_be_computed_states_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure without data is left out."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(components, "draw_figure", fail)
    error: TracekitError = CorruptTraceError("the table kernels is damaged")
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        assert "the table kernels is damaged" in str(components.build_figure(trace, "api", "Calls"))
        error = MissingTableError("the capture has no calls")
        assert components.build_figure(trace, "api", "Calls") is None


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("empty.nsys-rep", "The capture contains no GPU work that could be explained."),
        ("cpu_only.sqlite", "No GPU work was recorded, so there is nothing to explain: record with "),
    ],
)
def test_the_overview_explains_missing_gpu_work(name: str, answer: str) -> None:
    shown = texts_of(FIXTURES / name, "")
    (reason,) = (text for text in shown if text.startswith(NO_GPU_WORK))
    assert reason.endswith("record them with nsys profile --trace=cuda.")
    assert shown.index(TITLE) < shown.index(next(t for t in shown if answer in t)) < shown.index(reason)
    assert not any(text.startswith("Not analyzed by tracekit") for text in shown)


@pytest.mark.many(5)
@pytest.mark.parametrize("page", [name for name, page in PAGES.items() if page.needs and not page.needs_ranks])
def test_a_page_without_data_states_why(page: str) -> None:
    message = texts_of(FIXTURES / "empty.sqlite", page)[1]
    assert message.startswith("this capture has no data for this page: ")
    assert message != "this capture has no data for this page: "
    of_another_format = texts_of(FIXTURES / "tensorflow" / "network.pb", page)[1]
    assert page == "graph" or "captures in the format graphdef contain no " in of_another_format


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tracekit.TracekitWarning")
def test_tables_without_rows_state_why(tmp_path: Path) -> None:
    path = made_report(tmp_path / "made.nsys-rep")
    for name, sentence in {
        "wddm_packets": "No rows: 2 WDDM events are recorded, but tracekit does not decode them; export ",
        "mpi_calls": "No rows: no mpi_calls were recorded; record them with nsys profile --trace=mpi.",
        "ncu_launches": "No rows: captures in the format nsys-rep contain no ncu_launches.",
    }.items():
        shown = texts_of(path, "tables", f"table={name}")
        assert any(text.startswith(sentence) for text in shown), shown


@pytest.mark.slow
@pytest.mark.many(3)
@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("empty.sqlite", "recorded"),
        ("empty.nsys-rep", "recorded"),
        ("tensorflow/network.pb", "captures in the format graphdef contain no "),
        ("ncu/ncu_raw.csv", "captures in the format ncu-csv contain no "),
        ("kineto/train.pt.trace.json.gz", "captures in the format kineto contain no "),
        ("train_amp.sqlite", "captures in the format nsys-sqlite contain no "),
    ],
)
def test_every_table_without_rows_states_why(name: str, state: str) -> None:
    with tk.load(FIXTURES / name) as trace:
        sentences = {
            dataset: explain_missing_rows(trace, dataset, arguments)
            for dataset in DATASETS.keys() - {"comparison"}
            for arguments in [{"map": "cuda_gpu_time_util_map"} if dataset == "utilization" else {"kind": "nvtx_pace"}]
        }
    assert all(re.match("No rows: (no|nothing|captures|the selected|the profiler) ", s) for s in sentences.values())
    assert state in sentences["stack_frames" if name == "kineto/train.pt.trace.json.gz" else "ncu_metrics"] or (
        state == "recorded"
    )
    if state == "recorded":
        for dataset in ("ops", "kernels", "launches", "pace", "utilization", "iterations", "copies", "mpi"):
            assert " were recorded; record them with nsys profile --trace=" in sentences[dataset], dataset


def test_details_of_a_row_state_why_they_are_empty() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        selected = explain_missing_rows(trace, "op_kernels", {"op_id": "1"})
        assert selected == "No rows: the selected part of the capture contains no such data."
        frames = explain_missing_rows(trace, "stack_frames", {"stack_id": "1"})
        assert frames.startswith("No rows: no stacks were recorded; record them with nsys profile --sample=")
    with tk.load(FIXTURES / "ncu" / "ncu_raw.csv") as trace:
        rules = explain_missing_rows(trace, "ncu_rules", {"launch_id": "1"})
        assert rules == "No rows: no ncu_rules were recorded; record them with ncu --apply-rules yes --section NAME."


def test_details_on_a_page_state_why_they_are_empty() -> None:
    with tk.load(FIXTURES / "ncu" / "ncu_raw.csv") as trace:
        launch = trace.frame("ncu_launches").select("launch_id").first().collect().item()
    shown = texts_of(FIXTURES / "ncu" / "ncu_raw.csv", "roofline", f"ncu_launches.select={launch}")
    assert any(text.startswith("No rows: no ncu_rules were recorded; record them with ncu ") for text in shown), shown
    assert "No rows." not in shown


@pytest.mark.parametrize(("page", "start"), [("", "No data: captures in the format graphdef contain no kernels, ")])
def test_a_page_without_numbers_states_why(page: str, start: str) -> None:
    shown = texts_of(FIXTURES / "tensorflow" / "network.pb", page)
    assert any(text.startswith(start) for text in shown), shown


def test_the_timeline_without_events_states_why() -> None:
    with tk.Trace.from_tables({}) as trace, pytest.raises(TracekitError, match="the timeline has no events: no ") as e:
        find_span(captures := captures_of(trace), captures.all[0])
    assert (e.value.hint or "").startswith("record them with nsys profile --trace=cuda")
