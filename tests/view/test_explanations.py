"""The panel that explains why a step takes as long as it does."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import pytest
import tracekit as tk
from tests.view.support import get, running, texts
from tracekit.errors import TracekitError
from tracekit.pages.answer import TITLE_OF_KERNELS
from tracekit.text import format_duration
from tracekit.text.explanations import CauseText, Explanation, LedgerRow, RowsOfCause
from tracekit.trace import get_trace_view
from tracekit.view import explanations, pages
from tracekit.view.captures import ViewedCapture
from tracekit.view.opening import open_captures
from tracekit.view.query import Query, read_matching_frame
from tracekit.view.state import CaptureAggregation, PageState, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.view.captures import ViewedCaptures
    from tracekit.view.server import Viewer

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parents[2] / "fixtures"
TRAIN = FIXTURES / "train_amp.sqlite"


@pytest.fixture(scope="module")
def train() -> Iterator[ViewedCaptures]:
    captures = open_captures([TRAIN])
    yield captures
    captures.close()


def create_context(captures: ViewedCaptures) -> pages.Context:
    """Return the context of the overview, whose panels are computed at once."""
    return pages.Context(captures, PageState())


def read_page(captures: ViewedCaptures, path: str, query: str = "") -> list[str]:
    """Return the texts of a page, in the order in which they are shown."""
    return texts(pages.build_page(pages.Context(captures, parse_url(path, query, len(captures)))))


@pytest.mark.parametrize(
    ("query", "choice"),
    [("", {}), ("iterations=2:3", {"iterations": (2, 3)}), ("warm_up=yes", {"include_warm_up": True})],
)
def test_the_overview_begins_with_the_answer(train: ViewedCaptures, query: str, choice: dict[str, object]) -> None:
    with tk.load(TRAIN) as trace:
        answer = trace.rollup(**choice).why()  # type: ignore[arg-type]
    shown = read_page(train, "/", query)
    assert [text for text in shown if text in (explanations.TITLE, answer.sentence, "GPU utilization")] == [
        *(explanations.TITLE, answer.sentence, "GPU utilization"),
    ]
    for cause in answer.causes:
        assert f" {cause.change}" in shown
        assert any(text.startswith(f"{cause.cause.replace('_', ' ')} in '") for text in shown)
    assert any(text.startswith("Warm-up: the first step takes") for text in shown) is (answer.cold is not None)
    assert (answer.cold is None) is bool(query)


def test_the_page_of_ranks_explains_the_job(serve: Callable[..., Viewer]) -> None:
    captures = serve(FIXTURES / "ranks")._captures
    shown = read_page(captures, "/ranks")
    with tk.load_many(FIXTURES / "ranks") as traces:
        answer = traces.why()
    assert [text for text in shown if text in (explanations.TITLE_OF_RANKS, answer.sentence)]
    assert shown[shown.index(" (slowest)") - 1] == f"rank {answer.rank}"
    for rank in answer.ranks:
        assert rank.step is not None
        assert format_duration(rank.step.median_ns) in shown
    for query in ("", "ranks=0,1", "capture=1"):
        first = read_page(captures, "/", query)
        assert [text for text in first if text in (explanations.TITLE_OF_RANKS, answer.sentence)]
        name = captures.all[int(query == "capture=1")].name
        assert first.index(answer.sentence) < first.index(name)
    assert captures.all[1].trace.why().sentence in read_page(captures, "/", "capture=1&ranks=1")


@pytest.mark.parametrize("name", ["cpu_only.sqlite", "ncu/ncu_roofline_raw.csv"])
def test_captures_without_steps_have_an_answer(name: str) -> None:
    captures = open_captures([FIXTURES / name])
    shown = read_page(captures, "/")
    assert captures.all[0].trace.why().sentence in shown
    assert {explanations.TITLE, TITLE_OF_KERNELS} & set(shown)
    assert ("What limits the longest kernels" in shown) is name.startswith("ncu")
    captures.close()


@pytest.mark.parametrize("name", ["train_amp.sqlite", "why/fp32.nsys-rep", "ncu/ncu_raw.csv"])
def test_links_of_causes_lead_to_their_rows(name: str) -> None:
    """Tables show at least the rows of a cause, and only rows with their names."""
    with running(FIXTURES / name) as viewer:
        captures = viewer._captures
        causes = get_trace_view(captures.all[0].get_aggregated_trace(CaptureAggregation())).explanation().causes
        links = re.findall(r'<a href="(/[^"]+)"', str(explanations.build_panel(create_context(captures))))
        urls = [urlsplit(html.unescape(link)) for link in links]
        filtered = [(url, dict(parse_qsl(url.query))) for url in urls if ".filter" in url.query]
        assert len(filtered) == sum(len(cause.rows) for cause in causes) > 0
        rows_of_causes = [rows for cause in causes for rows in cause.rows]
        for (url, parameters), rows in zip(filtered, rows_of_causes, strict=True):
            assert get(viewer, urlunsplit(url)).status_code == 200
            ((name_of_filter, model),) = ((k, v) for k, v in parameters.items() if k.endswith(".filter"))
            query = Query(name_of_filter.removesuffix(".filter"), CaptureAggregation(), filter=model)
            frame = read_matching_frame(captures, query)
            shown = frame["launches"].sum() if "launches" in frame.columns else frame.height
            assert shown >= rows.count or len(rows.names) < rows.name_count
            column = "copy_kind" if rows.table == "memcpys" else "name"
            assert set(frame[column].cast(str).unique()) <= set(rows.names)


def test_a_database_of_dlprof_is_explained(tmp_path: Path) -> None:
    with tk.load(TRAIN) as trace:
        path = trace.export(tmp_path / "dlprof.sqlite", format="dlprof-db")
    with tk.load(path) as trace:
        sentence = trace.why().sentence
    captures = open_captures([path])
    shown = read_page(captures, "/")
    captures.close()
    assert explanations.TITLE in shown
    assert sentence in shown


def test_an_error_is_shown_in_the_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TracekitError("the steps overlap", hint="record again")

    monkeypatch.setattr(ViewedCapture, "explain", fail)
    captures = open_captures([TRAIN])
    shown = read_page(captures, "/")
    assert explanations.TITLE in shown
    assert any("the steps overlap" in text for text in shown)
    assert "Kernel time" in shown
    captures.close()


def test_names_are_text_and_cannot_change_the_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "<b onclick=x>\u202eevil</b>"
    row = LedgerRow(name, "idle", name, 5, 1.0)
    rows = (RowsOfCause("kernels", 5, (name,), 1, 0, 1),)
    cause = CauseText("x", *[name] * 7, 1, 1, 0, 1, (0.1, 0.2, 0.3), 5, False, name, None, rows)
    hostile = Explanation(True, name, (row,), (cause,), name, name, (row,), (name,), (name,), scope=name, step_ns=5)
    monkeypatch.setattr(ViewedCapture, "explain", lambda *_: hostile)
    with running(TRAIN) as viewer:
        page = get(viewer, "/").text
        assert "evil" not in page
        token = re.findall(r"/fragment/later/(\d+)", page)[0]
        for url in (f"/fragment/later/{token}", "/"):
            answer = get(viewer, url).text
            assert answer.count("evil") > 10
            assert "\u202e" not in answer
            assert "<b onclick" not in answer
            assert "&lt;b onclick=x&gt;" in answer
