"""The answer of why as part of a page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from hypothesis import given
from hypothesis import strategies as st
from tracekit.pages.answer import MAX_CAUSES, TITLE, TITLE_OF_KERNELS, TITLE_OF_RANKS, build_answer, build_waterfall
from tracekit.text.explanations import (
    KERNELS_TITLE,
    CauseText,
    Explanation,
    LedgerRow,
    RankRow,
    RowsOfCause,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

HOSTILE = "<script>alert(1)</script>\" onload='x' \u202e"
CAUSE = CauseText(
    cause="precision",
    title="precision in 'backward'",
    saving="saves 50% (40% to 60%)",
    evidence="5 matrix products run in FP32",
    functions="",
    change="change: use bf16",
    check="check: time a step",
    missing="",
    count=5,
    total_ns=500,
    start_ns=10,
    end_ns=20,
    interval=(0.4, 0.5, 0.6),
    saving_ns=500,
    is_unsure=False,
    event="kernels:7",
    rank=None,
    rows=(RowsOfCause("kernels", 5, ("gemm",), 1, 10, 90),),
)
EXPLANATION = Explanation(
    is_answered=True,
    sentence="Steady step 1 µs; precision costs about 500 ns (50%).",
    ledger=(LedgerRow("matmul", "compute", "forward", 700, 0.7), LedgerRow("3 more", "rest", "", 300, 0.3)),
    causes=(CAUSE,),
    together="",
    cold="",
    cold_ledger=(),
    ranks=(),
    notes=(),
    scope="4 steady steps delimited by 'step'",
    step_ns=1000,
)


class _Parser(HTMLParser):
    """Collects the elements of a page with their attributes, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def find(self, name: str, attribute: str) -> list[str]:
        """Return the values of an attribute of all elements with a name."""
        return [values[attribute] or "" for tag, values in self.elements if tag == name and attribute in values]


def make_url(page: str, rank: int | None, parameters: Mapping[str, str]) -> str:
    """Return a URL from which the arguments can be read."""
    return f"/{page}?{urlencode({**parameters, 'rank': str(rank)})}"


def parse(explanation: Explanation) -> _Parser:
    """Return the elements of the answer."""
    return _Parser(str(build_answer(explanation, make_url)))


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=14))
def test_bars_follow_one_another_and_add_up_to_the_total(times: list[int]) -> None:
    total = sum(times)
    rows = [LedgerRow(f"part {i}", "idle", "", ns, ns / max(1, total)) for i, ns in enumerate(times)]
    page = _Parser(str(build_waterfall(rows, total, "Time")))
    starts, lengths = (list(map(int, page.find("svg", name))) for name in ("data-start", "data-ns"))
    assert lengths == times
    assert starts == [sum(times[:i]) for i in range(len(times))]
    assert page.find("data", "value")[-1] == str(total)
    for rect in (values for name, values in page.elements if name == "rect" and "x" in values):
        x, width = (float(rect[name] or "") for name in ("x", "width"))
        assert 0 <= x <= x + width <= 1000.01


def test_the_answer_states_the_sentence_the_scope_and_the_causes() -> None:
    page = parse(EXPLANATION)
    text = "".join(page.texts)
    for part in (EXPLANATION.sentence, EXPLANATION.scope, "matmul in 'forward'", "3 more", "70.0%", "100.0%"):
        assert part in text
    assert text.index(EXPLANATION.sentence) < text.index("matmul") < text.index("precision in")
    assert "saves 500 ns, 50% (40% to 60%)" in text
    assert "Change: use bf16" in text


def test_links_select_the_event_and_filter_the_rows() -> None:
    several = RowsOfCause("api_calls", 2, ("cudaA", "cudaB"), 2, 1, 9)
    unnamed = RowsOfCause("graph_launches", 1, (), 0, 1, 9)
    unknown = RowsOfCause("no_such_table", 1, (), 0, 1, 9)
    cause = replace(CAUSE, rank=3, rows=(*CAUSE.rows, several, unnamed, unknown))
    links = parse(replace(EXPLANATION, causes=(cause,))).find("a", "href")
    names = [{"type": "equals", "filter": name} for name in ("cudaA", "cudaB")]
    times = {"start_ns": {"type": "inRange", "filter": 1, "filterTo": 9}}
    assert links == [
        make_url("timeline", 3, {"start": "10", "end": "20", "event": "kernels:7", "cause": "precision"}),
        make_url("kernels", 3, {"kernels.filter": json.dumps({"name": {"type": "equals", "filter": "gemm"}})}),
        make_url(
            "api", 3, {"api_calls.filter": json.dumps({"name": {"operator": "OR", "conditions": names}, **times})}
        ),
        make_url("tables", 3, {"table": "graph_launches", "table:graph_launches.filter": json.dumps(times)}),
    ]


def test_rows_are_selected_by_their_ids_or_the_link_says_by_what() -> None:
    """Names and times also select rows of other causes, so only ids give exactly the number that the link states."""
    few = RowsOfCause("memcpys", 2, ("Host-to-Device",), 1, 1, 9, (4, 7))
    many = RowsOfCause("api_calls", 99, ("cudaA",), 1, 1, 9, tuple(range(99)))
    unnamed = RowsOfCause("api_calls", 404, (), 0, 1, 9)
    page = parse(replace(EXPLANATION, causes=(replace(CAUSE, rows=(few, many, unnamed)),)))
    assert page.texts[page.texts.index("2 copies") :].count("99 API calls (by name and time)") == 1
    assert "404 API calls (by time)" in page.texts
    ids = {"memcpy_id": {"operator": "OR", "conditions": [{"type": "equals", "filter": i} for i in (4, 7)]}}
    assert make_url("memory", None, {"memcpys.filter": json.dumps(ids)}) in page.find("a", "href")


def test_names_of_rows_fit_into_the_url() -> None:
    names = tuple(f"{i}{'x' * 1500}" for i in range(9))
    page = parse(replace(EXPLANATION, causes=(replace(CAUSE, rows=(RowsOfCause("kernels", 90, names, 40, 1, 2),)),)))
    assert "90 kernels (2 of 40 names)" in page.texts
    assert len(page.find("a", "href")[1]) < 5000
    longest = (RowsOfCause("kernels", 1, ("x" * 9000,), 1, 1, 2),)
    assert make_url("kernels", None, {}) in parse(replace(EXPLANATION, causes=(replace(CAUSE, rows=longest),))).find(
        "a", "href"
    )


def test_without_pages_there_are_no_links() -> None:
    assert not re.search("<a |href", str(build_answer(EXPLANATION)))


def test_a_pause_has_no_event_but_a_time() -> None:
    cause = replace(CAUSE, event=None, rows=())
    (link,) = parse(replace(EXPLANATION, causes=(cause,))).find("a", "href")
    assert "event=" not in link
    assert "start=10&end=20" in link
    assert parse(replace(EXPLANATION, causes=(replace(cause, start_ns=None),))).find("a", "href") == []


def test_further_causes_are_collapsed() -> None:
    causes = tuple(replace(CAUSE, title=f"cause {i}") for i in range(MAX_CAUSES + 2))
    page = parse(replace(EXPLANATION, causes=causes, together="all together: 80%"))
    text = "".join(page.texts)
    assert "2 more causes" in text
    assert "All together: 80%" in text
    assert page.find("ol", "start") == [str(MAX_CAUSES + 1)]
    assert "1 more cause" in str(build_answer(replace(EXPLANATION, causes=causes[:-1])))


def test_unsure_and_healthy_causes() -> None:
    unsure = replace(CAUSE, is_unsure=True, saving="unsure: may save 0% to 53%", missing="to be sure, record: more")
    healthy = replace(CAUSE, interval=(0.0, 0.0, 0.0), saving="healthy", change="", check="")
    text = "".join(parse(replace(EXPLANATION, causes=(unsure, healthy), status="unsure")).texts)
    assert "unsure: may save 0% to 53%" in text
    assert "To be sure, record: more" in text
    assert "healthy" in text
    assert "Cannot tell" in text


def test_the_ranks_of_a_job() -> None:
    rows = (
        RankRow(0, 900, 0.5, 200, 0.2, False),
        RankRow(1, 1000, 0.7, 0, 0.0, True),
        RankRow(2, None, 0, 0, 0, False),
    )
    page = parse(replace(EXPLANATION, rank_rows=rows, skew="3 ranks: a step takes long"))
    text = "".join(page.texts)
    assert "3 ranks: a step takes long. Show only rank 0 · rank 1 · rank 2" in text
    assert "rank 1 (slowest)" in text
    assert "no GPU work" in text
    assert TITLE_OF_RANKS in text
    assert make_url("", 2, {}) in page.find("a", "href")
    assert "<a " not in str(build_answer(replace(EXPLANATION, causes=(), rank_rows=rows, skew="3 ranks")))


def test_the_warm_up_is_collapsed() -> None:
    cold = (LedgerRow("idle: code loading", "idle", "", 5000, 1.0),)
    warm = replace(EXPLANATION, cold="the first step takes 5 µs", cold_ledger=cold, cold_ns=5000, cold_span=(3, 9))
    page = parse(warm)
    assert "Warm-up: the first step takes 5 µs" in "".join(page.texts)
    assert make_url("timeline", None, {"start": "3", "end": "9"}) in page.find("a", "href")
    assert "Time of the warm-up" in str(build_answer(replace(warm, cold_span=None)))


def test_titles() -> None:
    assert TITLE in parse(EXPLANATION).texts
    assert TITLE_OF_KERNELS in parse(replace(EXPLANATION, ledger_title=KERNELS_TITLE)).texts


def test_an_answer_without_steps_is_a_sentence() -> None:
    empty = {"ledger": (), "causes": (), "scope": "", "step_ns": 0, "notes": ("a note",)}
    nothing = replace(EXPLANATION, is_answered=False, sentence="No GPU work.", status="not_recorded", **empty)
    texts = [text.strip() for text in parse(nothing).texts if text.strip()]
    assert texts == [TITLE, "Not recorded", "No GPU work.", "a note"]


def test_no_text_of_a_capture_becomes_markup() -> None:
    fields = ("title", "evidence", "functions", "change", "check", "missing", "cause", "saving")
    rows = (RowsOfCause("kernels", 2, (HOSTILE,), 1, 1, 2),)
    cause = replace(CAUSE, **dict.fromkeys(fields, HOSTILE), rows=rows, event=f"kernels:{HOSTILE}")
    row = LedgerRow(HOSTILE * 3, "idle", HOSTILE, 1000, 1.0)
    hostile = replace(
        EXPLANATION, sentence=HOSTILE, ledger=(row,), causes=(cause, cause), together=HOSTILE, cold=HOSTILE,
        cold_ledger=(row,), notes=(HOSTILE,), scope=HOSTILE, skew=HOSTILE, status="unsure",
        rank_rows=(RankRow(0, 5, 0.5, 1, 0.1, True),),
    )  # fmt: skip
    page = parse(hostile)
    assert not [name for name, values in page.elements if name == "script" or any(v.startswith("on") for v in values)]
    assert "\u202e" not in "".join(page.texts)
