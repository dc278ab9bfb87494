"""Sentences of the viewer about missing data and recorded warnings."""

from __future__ import annotations

import json
from pathlib import Path

import plotly.utils
import pytest
import tracekit as tk
from tests.cli.test_absence import made_report
from tests.view.support import captures_of, texts
from tracekit.view.pages import PAGES, Context, build_page
from tracekit.view.state import parse_url

FIXTURES = Path(__file__).parents[2] / "fixtures"
NO_GPU_WORK = (
    "This capture contains no GPU work, because no kernels, memcpys, memsets or graph_launches were recorded; "
)


def texts_of(path: Path, page: str, query: str = "") -> list[str]:
    """Return the texts of a page of one capture, in their order."""
    with tk.load(path) as trace:
        components = build_page(Context(captures_of(trace), parse_url(page, query, 1), dark=False))
        return texts(json.loads(json.dumps(components, cls=plotly.utils.PlotlyJSONEncoder)))


def test_the_overview_begins_with_warnings_of_the_profiler() -> None:
    shown = texts_of(FIXTURES / "train_amp.sqlite", "")
    assert shown[:3] == [
        "Overview",
        "Warning recorded by Nsight Systems: Not all NVTX events might have been collected.",
        "Warning recorded by Nsight Systems: Not all CUDA events might have been collected.",
    ]


@pytest.mark.parametrize(("name", "position"), [("empty.nsys-rep", 4), ("cpu_only.sqlite", 1)])
def test_the_overview_explains_missing_gpu_work(name: str, position: int) -> None:
    shown = texts_of(FIXTURES / name, "")
    assert shown[position].startswith(NO_GPU_WORK)
    assert shown[position].endswith("record them with nsys profile --trace=cuda.")
    assert any(text.startswith("Not analyzed by tracekit: no kernels") for text in shown)


@pytest.mark.many(5)
@pytest.mark.parametrize("page", [name for name, page in PAGES.items() if page.needs and not page.needs_ranks])
def test_a_page_without_data_states_why(page: str) -> None:
    message = texts_of(FIXTURES / "empty.sqlite", page)[1]
    assert message.startswith("this capture has no data for this page: ")
    assert message != "this capture has no data for this page: "
    of_another_format = texts_of(FIXTURES / "tensorflow" / "network.pb", page)[1]
    assert page == "graph" or "captures in the format graphdef contain no " in of_another_format


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
