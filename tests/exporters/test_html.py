"""The page of a trace: its numbers against the reports, what it contains, what it may load, and a real browser."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from tests import chromium
from tests.builders.frames import declared, launches, nvtx
from tests.cli.test_absence import made_report
from tests.view.browser import axe
from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.exporters.html.sections import build_page, hide_host
from tracekit.pages.answer import TITLE_OF_KERNELS
from tracekit.pages.document import CHART_WIDTH
from tracekit.pages.values import format_value
from tracekit.plan.view import TraceView
from tracekit.plots.svg import draw_svg
from tracekit.registry.notices import explain_missing_advice
from tracekit.trace import get_trace_view

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURES = Path(__file__).parents[2] / "fixtures"
MOST_BYTES = 600_000
EVIL = "<script>document.title='evil'</script><img src=x onerror=alert(1)>"
FORMULA = '=HYPERLINK("http://example.org";"a&b")'
VOID = ("meta", "br", "img", "input", "link")


class Page(HTMLParser):
    """What stands in a page: its tables, its texts by element, its attributes, and its scripts.

    Numbers in cells are the exact ones, as in the data. The first row of a table has the names of the columns, as
    their explanations give them, or else their titles, which ``titles`` has, too.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.titles: dict[str, list[str]] = {}
        self.texts: list[tuple[str, str]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._open: list[tuple[str, str]] = []
        self._rows: list[list[str]] = []
        self._caption = ""
        self._titles: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        assert len(values) == len(attrs)
        self.attributes.extend((tag, name, value) for name, value in values.items())
        if tag in VOID:
            return
        self._open.append((tag, values.get("class", "")))
        if tag == "table":
            self._rows, self._caption, self._titles = [], "", []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("th", "td"):
            self._rows[-1].append("")
        elif tag == "data" and self._is_in("td", "th"):
            self._rows[-1][-1] += values["value"]
        elif tag == "script":
            self.scripts.append("")
        elif tag == "style":
            self.styles.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag
        if tag == "table":
            assert self._caption not in self.tables
            self.tables[self._caption] = self._rows
            self.titles[self._caption] = self._titles

    def _is_in(self, *tags: str) -> bool:
        return any(tag in tags for tag, _ in self._open)

    def handle_data(self, data: str) -> None:
        if not self._open or not data.strip():
            return
        if self._is_in("script"):
            self.scripts[-1] += data
        elif self._is_in("style"):
            self.styles[-1] += data
        elif ("span", "help") in self._open:
            if data.startswith("Column: "):
                self._rows[-1][-1] = data.removeprefix("Column: ")
        elif self._is_in("caption"):
            self._caption += data
        elif self._is_in("td", "th") and not self._is_in("summary", "data"):
            self._rows[-1][-1] += data
            if self._is_in("thead"):
                self._titles.append(data)
        self.texts.append((self._open[-1][0], data))

    def plain(self) -> str:
        """The text that a reader sees."""
        return "\n".join(data for tag, data in self.texts if tag not in ("script", "style", "title"))


def exported(trace: tk.Trace, folder: Path) -> Page:
    path = trace.export(folder / "page.html")
    assert path.stat().st_size < MOST_BYTES
    return Page(path.read_text("utf-8"))


def cells(frame: pl.DataFrame, columns: list[str]) -> list[list[str]]:
    """The cells of a frame as the page contains them."""
    rows = frame.head(50).select(columns).rows()
    return [["" if value is None else str(value) for value in row] for row in rows]


@pytest.fixture(scope="module")
def amp() -> Iterator[tk.Trace]:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        yield trace


@pytest.fixture(scope="module")
def page(amp: tk.Trace, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return exported(amp, tmp_path_factory.mktemp("html"))


@pytest.mark.slow
@pytest.mark.core
def test_tables_have_the_numbers_of_the_reports(amp: tk.Trace, page: Page) -> None:
    reports = {
        "Kernels": "cuda_gpu_kern_sum",
        "API calls": "cuda_api_sum",
        "Idle time by cause": "gpu_idle_causes",
        "NVTX ranges (first 50 of 1,513 rows)": "nvtx_sum",
    }
    for caption, name in reports.items():
        titles, *rows = page.tables[caption]
        assert rows == cells(amp.stats(name) if not name.startswith("gpu") else amp.analyze(name), titles), caption
    titles, *rows = page.tables["Ops with the longest time (first 50 of 60 rows)"]
    ops = (
        amp.rollup(include_warm_up=False).frame("ops").sort("gpu_time_ns", "op_id", descending=[True, False]).collect()
    )
    names = [
        "op_id",
        "op_name",
        "direction",
        "instance_count",
        "kernel_count",
        "gpu_time_ns",
        "cpu_time_ns",
        "gpu_idle_ns",
    ]
    assert rows == cells(ops, names)
    assert titles == names
    copies = page.tables["Memory copies and sets"]
    assert copies[:2] == [["name", "count", "bytes", "time_ns"], ["Host-to-Device", "8", "12591104", "264478"]]
    assert page.titles["Memory copies and sets"] == ["Name", "Count", "Bytes", "Time"]


@pytest.mark.slow
def test_a_page_of_some_iterations_says_what_it_counts(amp: tk.Trace, tmp_path: Path) -> None:
    note = "This section shows the whole capture, not only the aggregated iterations."
    some = Page(amp.rollup(iterations=(2, 3)).export(tmp_path / "some.html").read_text("utf-8"))
    kernels = [row[4] for row in some.tables["Iterations"][1:]]
    assert kernels == ["", "", "74", "74"]
    parts = [text for element, text in some.texts if element == "h2" or text == note]
    assert [title for title, following in itertools.pairwise(parts) if following == note] == WHOLE_CAPTURE
    every = Page(amp.rollup(include_warm_up=True).export(tmp_path / "all.html").read_text("utf-8"))
    assert "" not in [row[4] for row in every.tables["Iterations"]]
    parts = [text for element, text in every.texts if element == "h2" or text == note]
    assert [title for title, following in itertools.pairwise(parts) if following == note] == WHOLE_CAPTURE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "selection"),
    [
        ({}, "the first step is warm-up and left out"),
        ({"include_warm_up": True}, "the first step is warm-up and included"),
        ({"iterations": (2, 3)}, "Batch 2 to Batch 3 are aggregated"),
    ],
)
def test_sections_of_steps_say_which_they_show(
    amp: tk.Trace, tmp_path: Path, choice: dict[str, Any], selection: str
) -> None:
    rolled = amp.rollup(**choice)
    page = Page(rolled.export(tmp_path / "page.html").read_text("utf-8"))
    others = rolled.stats("advise").filter(~pl.col("Rule").is_in([cause.cause for cause in rolled.why().causes]))
    assert others.height == bool(choice.get("include_warm_up"))
    for row in others.rows(named=True):
        assert {row["Problem"], row["Evidence"], row["Advice"]} <= set(page.plain().splitlines())
        assert ("data", "value", str(row["Time (ns)"])) in page.attributes
    steps = "4 steps, delimited by the range 'Batch *'; 334 of 334 kernels and 100 % of the GPU time lie in steps"
    parts = [text for element, text in page.texts if element == "h2" or text == f"{steps}; {selection}."]
    titles = [title for title, following in itertools.pairwise(parts) if following.startswith(steps)]
    advice = ["Advice"] * others.height
    assert titles == ["Overview", *advice, "Iterations", "Time of the steps", "Groups and ops", "Idle time of the GPUs"]


@pytest.mark.slow
def test_sections_of_steps_warn_about_missing_work(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "um.sqlite") as trace:
        page = Page(trace.export(tmp_path / "page.html").read_text("utf-8"))
    steps = "Warning: 3 steps, delimited by the range 'round *'; 6 of 7 kernels and 58.6 % of the GPU time lie in steps"
    assert f"{steps}; the first step is warm-up and left out." in page.plain()


@pytest.mark.slow
def test_the_warm_up_is_left_out_and_the_page_says_so(page: Page) -> None:
    text = page.plain()
    steps = "4 steps, delimited by the range 'Batch *'; 334 of 334 kernels and 100 % of the GPU time lie in steps"
    assert f"{steps}; the first step is warm-up and left out." in text
    assert "3 of 4 (Batch 1 to Batch 3)" in text
    assert [row[1] for row in page.tables["Iterations"][1:]] == [f"Batch {n}" for n in range(4)]


WHOLE_CAPTURE = [
    *("Utilization over time", "Kernels", "Queues of the streams", "API calls", "Memory copies", "NVTX ranges"),
]


@pytest.mark.slow
def test_advice_and_overview_are_those_of_the_tables(amp: tk.Trace, page: Page) -> None:
    text = page.plain()
    for row in amp.stats("advise").rows(named=True):
        assert {row["Problem"], f" {row['Advice']}"} <= set(text.splitlines())
        assert all(part in text for part in row["Evidence"].split("; "))
    iterations = amp.rollup(include_warm_up=False).frame("iterations").filter("is_aggregated").collect()
    busy = iterations.select(pl.sum_horizontal("in_tensor_core_kernels_ns", "in_other_kernels_ns").sum()).item()
    time = iterations.select((pl.col("window_end_ns") - pl.col("window_start_ns")).sum()).item()
    assert f"{100 * busy / time:.2f}%" in text
    assert ("data", "title", "502,053,778 ns") in page.attributes
    assert {"502.054 ms", "580.159.04"} <= set(text.splitlines())
    mean = time // iterations.height
    assert ("data", "title", f"{mean:,} ns") in page.attributes
    assert f"{mean / 1e6:.3f} ms" in text


def test_the_page_begins_with_the_answer(amp: tk.Trace, page: Page) -> None:
    assert next(data for tag, data in page.texts if tag == "h2") == "Why a step takes this long"
    answer, lines = amp.why(), page.plain().splitlines()
    assert answer.sentence in lines
    names, *rows = page.tables["Occurrences of the causes"]
    assert names == ["Cause", "count", "total_ns", "start_ns", "end_ns"]
    for cause, row in zip(answer.causes, rows, strict=True):
        assert row[0].startswith(f"{cause.cause.replace('_', ' ')} in '")
        assert row[1:4] == [str(n) for n in (cause.evidence.count, cause.evidence.total_ns, cause.evidence.start_ns)]
        assert {f" {cause.change}", row[0]} <= set(lines)
        assert all(part in page.plain() for part in cause.evidence.text.split("; "))
    assert f"All together: {answer.together:.0%}" in lines
    assert answer.step is not None
    assert answer.cold is not None
    for caption, total in (("Time of a steady step", answer.step.median_ns), ("Time of the warm-up", None)):
        *times, all_parts = [int(row[2]) for row in page.tables[caption][1:]]
        assert sum(times) == all_parts == (total or answer.cold.total_ns)


@pytest.mark.slow
def test_an_error_of_the_answer_is_shown(amp: tk.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise TracekitError("no steps", hint="record again")

    monkeypatch.setattr(TraceView, "explanation", fail)
    section, following, *_ = build_page(get_trace_view(amp), lambda _d, _t: None).sections
    assert section.notes[:2] == ["The steps cannot be explained: no steps.", "record again"]
    assert following.title == "Overview"


def test_numbers_are_aligned_and_tables_have_headers(page: Page) -> None:
    scopes = [value for tag, name, value in page.attributes if name == "scope"]
    assert {"col", "row"} == set(scopes)
    assert ("th", "class", "number") in page.attributes
    assert ("html", "lang", "en") in page.attributes
    headings = [tag for tag, _ in page.texts if tag in ("h1", "h2", "h3")]
    assert headings[:2] == ["h1", "h2"]
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = [value for tag, name, value in page.attributes if name == "href"]
    assert links
    assert {f"#{i}" for i in ids} >= set(links)


def test_the_policy_allows_only_the_script_and_the_style_of_the_page(page: Page) -> None:
    policy = next(v for tag, n, v in page.attributes if n == "content" and v.startswith("default-src 'none'"))
    (script,), (style,) = page.scripts, page.styles
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )
    active = ("src", "srcset", "action", "style", "formaction", "data", "background", "poster")
    assert not [v for _, n, v in page.attributes if n in active or n.startswith("on")]
    assert not [v for _, n, v in page.attributes if n in ("href", "xlink:href") and not v.startswith("#")]
    assert not re.search(r"url\(|@import", style)
    assert not re.search(r"</?script|<!--|\beval\b|innerHTML|fetch|XMLHttp", script, re.IGNORECASE)


def test_figures_of_the_page_are_those_of_the_trace(
    amp: tk.Trace, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = [v.removeprefix("figure-") for tag, n, v in page.attributes if tag == "figure" and n == "id"]
    assert figures[:4] == ["gpu_utilization", "time_breakdown", "kernel_time", "iterations"]
    text = amp.export(tmp_path / "page.html").read_text("utf-8")
    for name in ("top_kernels", "copies", "api"):
        assert str(draw_svg(getattr(amp.plot, name)(), width=CHART_WIDTH)) in text
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    assert text == amp.export(tmp_path / "without_plotly.html").read_text("utf-8")


def test_the_page_names_its_file_only(amp: tk.Trace, page: Page) -> None:
    titles = [text for tag, text in page.texts if tag in ("title", "h1")]
    assert titles[:2] == ["train_amp.sqlite"] * 2
    assert str(FIXTURES) not in page.plain()
    assert hide_host("gpu-node7_1234.17000000.pt.trace.json.gz") == "…_1234.17000000.pt.trace.json.gz"
    assert hide_host("events.out.tfevents.1700000000.gpu-node7.12.0") == "events.out.tfevents.…"
    assert hide_host("<b>run_1.nsys-rep") == "<b>run_1.nsys-rep"


def test_columns_are_explained(page: Page) -> None:
    described = [v for tag, n, v in page.attributes if n == "aria-describedby"]
    ids = [v for _, n, v in page.attributes if n == "id"]
    assert len(described) > 50
    assert set(described) <= set(ids)
    assert {"Sum of the durations.", "Formula: total time ÷ number of occurrences"} <= set(page.plain().splitlines())


def evil_trace() -> tk.Trace:
    """A trace whose names look like markup and formulas."""
    frames = declared(
        nvtx_ranges=nvtx((EVIL, 1, 0, 100), (FORMULA, 1, 5, 90)), **launches((1, 20, 30, 0), (1, 40, 50, 0))
    )
    names = {"name": pl.Series([EVIL, FORMULA]), "short_name": pl.Series([EVIL, FORMULA])}
    tables = {n: frames(n).collect() for n in ("nvtx_ranges", "api_calls", "kernels")}
    tables["kernels"] = tables["kernels"].with_columns(**names)
    from tracekit import schemas

    filled = {}
    for name, frame in tables.items():
        schema = schemas.table(name)
        types = schemas.polars_schema(schema)
        required = [c.name for c in schema.columns if not c.nullable]
        zero = [pl.col(c).fill_null(0 if types[c].is_numeric() else "") for c in required if frame[c].null_count()]
        filled[name] = schemas.conform(frame.with_columns(zero).to_arrow(), schema)
    return tk.Trace.from_tables(filled)


@pytest.mark.slow
def test_names_are_text(tmp_path: Path) -> None:
    page = exported(evil_trace(), tmp_path)
    assert len(page.scripts) == len(page.styles) == 1
    assert "img" not in {tag for tag, _, _ in page.attributes}
    names = {row[0] for row in page.tables["Kernels"][1:]}
    assert names == {EVIL, FORMULA}


def test_an_empty_capture_says_what_is_missing(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "empty.sqlite") as trace:
        page = exported(trace, tmp_path)
    text = page.plain()
    assert "This capture contains nothing to draw" in text
    lines = text.splitlines()
    no_gpu_work = next(
        line for line in lines if line.startswith("This capture contains no GPU work, because no kernels,")
    )
    assert no_gpu_work.endswith("record them with nsys profile --trace=cuda.")
    cuda = lines.index("Warning recorded by Nsight Systems: No CUDA events collected. Does the process use CUDA?")
    assert cuda < lines.index(no_gpu_work) < lines.index("Overview", lines.index(no_gpu_work))
    assert "Not analyzed by tracekit: no kernels" in text
    assert "The capture has no API calls: no api_calls were recorded." in text
    assert "Record them with nsys profile --gpu-metrics-devices=all." in text
    assert [data for tag, data in page.texts if tag == "h2"] == ["Overview", "Advice"]
    assert ("details", "open", "") in page.attributes
    assert page.tables == {}


def test_warnings_of_the_profiler_come_first(page: Page) -> None:
    texts = [text for _, text in page.texts]
    warning = texts.index("Warning recorded by Nsight Systems: Not all CUDA events might have been collected.")
    assert warning < texts.index("Recorded with")
    assert "This capture contains no GPU work" not in page.plain()


def test_messages_are_text(tmp_path: Path) -> None:
    rows = [{"diagnostic_id": 0, "severity": "Error", "text": EVIL}]
    found = [{"finding_id": 0, "rule": EVIL, "problem": EVIL, "recommendation": FORMULA}]
    tables = {"diagnostics": rows, "findings": found}
    made = {n: pa.Table.from_pylist(r, schemas.arrow_schema(schemas.table(n))) for n, r in tables.items()}
    page = exported(tk.Trace.from_tables(made), tmp_path)
    assert f"Error recorded by Nsight Systems: {EVIL}" in page.plain()
    assert len(page.scripts) == 1
    assert "img" not in {tag for tag, _, _ in page.attributes}
    assert page.tables["Findings of DLProf"][1] == [EVIL, "Finding", EVIL, FORMULA, "1"]


def test_findings_of_the_source_tool_are_shown(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "ncu" / "ncu_basic.ncu-rep") as trace:
        page = exported(trace, tmp_path)
        rules = trace.frame("ncu_rules").filter(pl.col("type").cast(pl.String) != "INF").collect()
    titles, *rows = next(
        rows for caption, rows in page.tables.items() if caption.startswith("Findings of Nsight Compute")
    )
    assert titles == ["rule", "kind", "message", "count", "speedup_percent"]
    assert sum(int(row[3]) for row in rows) == rules.height
    assert {row[0] for row in rows} == set(rules["rule_id"].cast(pl.String))


ADVICE = [
    ("ncu/ncu_range.ncu-rep", "Not analyzed by tracekit: captures in the format ncu-rep contain no kernels"),
    ("cpu_only.sqlite", "Not analyzed by tracekit: no kernels"),
    ("tensorflow", "Not analyzed by tracekit: captures in the format"),
]


@pytest.mark.parametrize(("name", "sentence"), ADVICE)
def test_missing_advice_is_explained(name: str, sentence: str) -> None:
    with tk.load(FIXTURES / name) as trace:
        assert explain_missing_advice(get_trace_view(trace)).startswith(sentence)
        (section,) = [
            s for s in build_page(get_trace_view(trace), lambda _d, _t: None).sections if s.anchor == "advice"
        ]
    assert section.notes[0].startswith(sentence)


def test_events_that_are_not_decoded_are_no_missing_gpu_work(tmp_path: Path) -> None:
    path = made_report(tmp_path / "made.nsys-rep")
    with tk.load(path) as trace, warnings.catch_warnings():
        warnings.simplefilter("ignore", tk.errors.TracekitWarning)
        text = exported(trace, tmp_path).plain()
    reason = (
        "2 WDDM events and 1 Vulkan call are recorded, but tracekit does not decode them; export the report with nsys"
    )
    assert f"tracekit reads no GPU work from this capture, because {reason}" in text
    assert f"Not decoded: {reason}" in text


def test_advice_that_finds_nothing_is_no_missing_data(amp: tk.Trace) -> None:
    memsets = amp.frame("memsets").collect().to_arrow()
    sentence = explain_missing_advice(get_trace_view(tk.Trace.from_tables({"memsets": memsets})))
    assert sentence.startswith("No finding of tracekit: the profiler was recording, but no kernels")


@pytest.mark.thorough
def test_communication_is_that_of_the_reports(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "ddp2.sqlite") as trace:
        page = exported(trace, tmp_path)
        report = trace.stats("cuda_gpu_kern_sum").filter(pl.col("Name").cast(pl.String).str.contains("nccl"))
        (row,) = page.tables["NCCL kernels by name"][1:]
        assert row[2:4] == [str(report["Total Time (ns)"][0]), str(report["Instances"][0])]
        kernels = trace.frame("kernels").filter(pl.col("name").cast(pl.String).str.contains("nccl")).collect()
        durations = sorted(kernels["end_ns"] - kernels["start_ns"], reverse=True)
        caption = next(c for c in page.tables if c.startswith("Longest NCCL kernels"))
        assert [r[1] for r in page.tables[caption][1:]] == [str(d) for d in durations[:50]]
    (tmp_path / "mpi").mkdir()
    with tk.load(FIXTURES / "mpi_rank0.sqlite") as trace:
        page = exported(trace, tmp_path / "mpi")
        calls = trace.stats("mpi_event_sum")
        assert [r[2] for r in page.tables["MPI calls"][1:]] == [str(t) for t in calls["Total Time (ns)"]]


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("cpu_only.sqlite", "Overview, Advice, Iterations, Groups and ops, NVTX ranges"),
        ("ncu/ncu_roofline_raw.csv", f"{TITLE_OF_KERNELS}, Overview, Kernels, Roofline"),
        ("ncu/ncu_basic.ncu-rep", f"{TITLE_OF_KERNELS}, Overview, Recorded by the profiler, Kernels, Roofline"),
        ("memory/memory_pools.sqlite", "Memory in use"),
        ("gpu_metrics.sqlite", "GPU metrics"),
        ("tensorflow", "Overview, Advice"),
    ],
)
def test_sections_without_data_are_left_out(name: str, titles: str, tmp_path: Path) -> None:
    with tk.load(FIXTURES / name) as trace:
        page = exported(trace, tmp_path)
    sections = [data for tag, data in page.texts if tag == "h2"]
    assert set(titles.split(", ")) <= set(sections)
    assert titles.split(", ") == sections or "Overview" not in titles
    assert "This capture contains nothing to draw" not in page.plain() or name == "tensorflow"


@pytest.mark.thorough
def test_a_database_of_dlprof_and_a_trace_of_pytorch(amp: tk.Trace, tmp_path: Path) -> None:
    with tk.load(amp.export(tmp_path / "dlprof_dldb.sqlite", format="dlprof-db")) as trace:
        page = exported(trace, tmp_path)
        recorded = trace.frame("iterations").collect()
        assert [row[0] for row in page.tables["Iterations"][1:]] == [str(n) for n in recorded["iteration"]]
    with tk.load(FIXTURES / "kineto" / "train.pt.trace.json.gz") as trace:
        (tmp_path / "other").mkdir()
        ops = exported(trace, tmp_path / "other").tables
        assert next(rows[1][0] for caption, rows in ops.items() if caption.startswith("Ops"))


ORDER = "(table) => [...table.tBodies[0].rows].map((row) => row.cells[1].querySelector('data').value)"


@pytest.mark.slow
@pytest.mark.skipif(bool(chromium.missing()), reason=str(chromium.missing()))
def test_a_browser_sorts_searches_and_switches_units_without_requests(tmp_path: Path, browser: Any) -> None:
    """With storage blocked, as for pages of files in some browsers."""
    path, wrong, requests = evil_trace().export(tmp_path / "page.html"), [], []
    with browser.new_context(color_scheme="dark", viewport={"width": 390, "height": 844}) as context:
        shown: Any = context.new_page()
        shown.on("console", lambda m: wrong.append(m.text))
        shown.on("pageerror", lambda e: wrong.append(str(e)))
        shown.on("request", lambda r: requests.append(r.url))
        shown.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error(e.violatedDirective, e.sample));"
            "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('blocked'); }});"
        )
        shown.goto(path.as_uri())
        assert shown.title() == "GPU profile"
        assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 23)"
        assert shown.locator("figure svg").count() >= 4
        shown.get_by_role("button", name="Dark").click()
        assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(244, 245, 247)"
        assert shown.evaluate("document.documentElement.scrollWidth") == 390
    assert wrong == []
    assert requests == [path.as_uri()]


@pytest.mark.slow
@pytest.mark.skipif(bool(chromium.missing()), reason=str(chromium.missing()))
def test_a_page_in_a_browser(amp: tk.Trace, tmp_path: Path, browser: Any) -> None:
    path = amp.export(tmp_path / "page.html")
    kernels = amp.stats("cuda_gpu_kern_sum")
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        shown: Any = context.new_page()
        shown.goto(path.as_uri())
        part = shown.locator(".table").filter(has=shown.locator("caption", has_text=re.compile("^Kernels")))
        table = part.locator("table").element_handle()
        first = [str(n) for n in kernels["Time (%)"].head(50)]
        assert shown.evaluate(ORDER, table) == first
        button = part.get_by_role("button", name="Total time")
        button.hover()
        part.get_by_role("tooltip").first.wait_for()
        shown.keyboard.press("Escape")
        assert part.get_by_role("tooltip").count() == 0
        button.focus()
        assert part.get_by_role("tooltip").first.inner_text().startswith("Sum of the durations.")
        for order, rows in (("descending", first), ("ascending", first[::-1])):
            shown.keyboard.press("Enter")
            assert part.locator("th[aria-sort]").get_attribute("aria-sort") == order
            assert shown.evaluate(ORDER, table) == rows
        total = kernels["Total Time (ns)"][-1]
        assert part.locator("tbody tr").first.locator("data").nth(1).inner_text() == format_value(total, "ns")
        shown.get_by_role("button", name="Exact values").click()
        assert part.locator("tbody tr").first.locator("data").nth(1).inner_text() == f"{total:,} ns"
        shown.reload()
        assert shown.get_by_role("button", name="Exact values").get_attribute("aria-pressed") == "true"
        assert part.locator("tbody tr").nth(46).locator("data").nth(1).inner_text() == f"{total:,} ns"
        part.get_by_role("searchbox").fill("pool BACKWARD")
        assert part.get_by_role("status").inner_text() == "1 of 47 rows"
        assert part.locator("tbody tr:visible").count() == 1
        faults = [fault for theme in ("light", "dark") for fault in find_faults(shown, theme)]
        widths = []
        for width in (390, 1024):
            shown.set_viewport_size({"width": width, "height": 844})
            widths.append(shown.evaluate("document.documentElement.scrollWidth"))
        assert shown.pdf(format="A4").startswith(b"%PDF")
    assert faults == []
    assert widths == [390, 1024]


def find_faults(shown: Any, theme: str) -> list[str]:
    """Return the faults in accessibility that axe-core finds, or nothing if it is not installed."""
    source = axe()
    if source is None:
        return []
    shown.emulate_media(color_scheme=theme)
    shown.evaluate(source)
    found = shown.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [f"{fault['id']}: {node['html'][:200]}" for fault in found["violations"] for node in fault["nodes"][:3]]
