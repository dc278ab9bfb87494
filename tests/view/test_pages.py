"""Pages that lead from a result to the rows behind it: iterations, findings, memory, communication and comparisons."""

from __future__ import annotations

from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
import tracekit as tk
from tests.view.markup import TableMarkup, parse
from tests.view.support import FIXTURES, get, running, show
from tracekit.core.compare import KINDS
from tracekit.view import pages
from tracekit.view.pages.memory import OWNERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.view.server import Viewer

RANKS = [FIXTURES / "why" / f"ddp_straggler_rank{rank}.nsys-rep" for rank in (0, 1)]


@pytest.fixture
def amp(serve: Callable[..., Viewer]) -> Viewer:
    return serve(FIXTURES / "train_amp.sqlite")


def open_page(viewer: Viewer, url: str) -> str:
    """Return the HTML of a page with all its panels."""
    answer = get(viewer, f"{url}{'&' if '?' in url else '?'}scripts=no")
    assert answer.status_code == 200
    return answer.text


@pytest.mark.parametrize("page", pages.MOVED)
def test_former_pages_lead_to_the_same_rows(amp: Viewer, page: str) -> None:
    table = {"kernels_by_iteration": "kernel_iterations", "kernels_by_op": "op_iterations"}[page]
    answer = get(amp, f"/{page}?warm_up=yes&{table}.select=1&iteration_ops.sort=op_id:asc")
    assert answer.status_code == 302
    moved = urlsplit(answer.headers["Location"])
    assert moved.path == "/iterations"
    assert parse_qs(moved.query) == {
        "warm_up": ["yes"], "iterations.select": ["1"], "iteration_ops.sort": ["op_id:asc"]
    }  # fmt: skip
    assert get(amp, answer.headers["Location"]).status_code == 200


def test_an_iteration_leads_to_its_parts_ops_and_kernels(amp: Viewer) -> None:
    html = open_page(amp, "/iterations?iterations.select=2")
    op = TableMarkup(html, "iteration_ops").rows()[0]["op_id"]
    html = open_page(amp, f"/iterations?iterations.select=2&iteration_ops.select={op}")
    step = next(row for row in TableMarkup(html, "step_parts").rows() if row["step"] == "2")
    parts = [int(row["time_ns"]) for row in TableMarkup(html, "iteration_ledger").rows()]
    assert sum(parts) == int(step["duration_ns"])
    kernels, of_op = (TableMarkup(html, name).rows() for name in ("iteration_kernels", "iteration_op_kernels"))
    ops = TableMarkup(html, "iteration_ops").rows()
    assert sum(int(row["gpu_time_ns"]) for row in ops) == sum(int(row["gpu_duration_ns"]) for row in kernels)
    assert len(of_op) == int(next(row for row in ops if row["op_id"] == op)["kernel_count"]) > 0
    assert not {"idle_unknown_ns", "opaque_ns", "graphs_ns"} & set(step)


@pytest.mark.parametrize("name", ["train_amp.sqlite", "ncu/ncu_basic.ncu-rep"])
def test_a_finding_leads_to_its_rows(name: str) -> None:
    with running(FIXTURES / name) as viewer:
        html = open_page(viewer, "/findings?findings.select=1")
        finding = TableMarkup(html, "findings").rows()[1]
        below = TableMarkup(html, "finding_rows")
        urls = [a.attributes["href"] for a in TableMarkup(html, "findings").section.all("a") if a.text == "Show"]
        elsewhere = TableMarkup(open_page(viewer, unescape(str(urls[1]))))
        assert elsewhere.status().startswith(below.status())
        assert int(finding["count"]) == len(below.rows())
        if "ncu" in name:
            links = [a for a in parse(open_page(viewer, "/")).all("a") if a.text == "Show rows"]
            assert "/findings?findings.select=1" in [a.attributes["href"] for a in links]
            assert {row["rule_id"] for row in below.rows()} == {finding["rule"]}
            assert all(row["kernel"] for row in below.rows())


def test_findings_of_dlprof_lead_to_its_tables(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("dlprof") / "dlprof_dldb.sqlite"
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        trace.export(path)
        expected = trace.stats("expert-systems").height
    with running(path) as viewer:
        findings = TableMarkup(open_page(viewer, "/findings"), "findings")
        assert len(findings.rows()) == expected > 0
        for number in range(expected):
            assert get(viewer, f"/findings?findings.select={number}").status_code == 200
        url = "/fragment/table/finding_rows?page=findings&arguments=table%3Dkernels%26column%3Dnone%26value%3D1"
        assert "has no column" in get(viewer, url).text


def test_advice_leads_to_its_evidence(amp: Viewer) -> None:
    advice = [a for a in parse(open_page(amp, "/?warm_up=yes")).all("a") if a.text == "Evidence"]
    html = open_page(amp, unescape(str(advice[0].attributes["href"])))
    durations = [int(row["duration_ns"]) for row in TableMarkup(html, "iterations").rows()]
    assert durations == sorted(durations, reverse=True)


def test_rules_of_nsys_lead_to_their_rows(amp: Viewer) -> None:
    sections = parse(open_page(amp, "/findings")).all("section")
    (panel,) = [each for each in sections if [h.text for h in each.all("h2")] == ["Rules of nsys analyze"]]
    rows = {row.children[0].text: row for row in panel.all("tr") if not isinstance(row.children[0], str)}  # type: ignore[union-attr]
    (count,) = [data.attributes["value"] for data in rows["cuda_api_sync"].all("data")]
    (link,) = rows["cuda_api_sync"].all("a")
    rule = TableMarkup(open_page(amp, str(link.attributes["href"])), "report:cuda_api_sync")
    assert len(rule.rows()) == int(str(count)) > 0
    with running(FIXTURES / "empty.sqlite") as viewer:
        assert "Rules of nsys analyze" not in get(viewer, "/findings").text


@pytest.mark.parametrize("by", [*OWNERS, "nothing"])
def test_owners_add_up_to_the_peaks(by: str) -> None:
    with running(FIXTURES / "memory" / "memory_pools.sqlite") as viewer:
        html = open_page(viewer, f"/memory?by={by}")
    rows = TableMarkup(html, "memory_owners").rows()
    for kind in {row["kind"] for row in rows}:
        own = [row for row in rows if row["kind"] == kind]
        assert sum(int(row["size_bytes"]) for row in own) == int(own[0]["peak_bytes"])
    cards = [data.attributes["value"] for dl in parse(html).all("dl") for dd in dl.all("dd") for data in dd.all("data")]
    assert sorted(set(cards)) == sorted({row["peak_bytes"] for row in rows})
    assert ("67108864 bytes" in [row["owner"] for row in rows]) is (by == "size")


def test_overlap_of_one_capture_and_of_ranks(serve: Callable[..., Viewer]) -> None:
    viewer = serve(*RANKS)
    for url, location in (("/?ranks=1", "/?capture=1&ranks=1"), ("/?capture=1&ranks=0", "/?ranks=0")):
        assert get(viewer, url).headers["Location"] == location  # the first page shows the only chosen rank
    of_ranks = TableMarkup(open_page(viewer, "/communication"), "overlap").rows()
    assert {row["rank"] for row in of_ranks} == {"0", "1"}
    waits = {rank: sum(int(r["waiting_for_ranks_ns"]) for r in of_ranks if r["rank"] == rank) for rank in "01"}
    assert waits["0"] > 100 * waits["1"]
    one = TableMarkup(open_page(viewer, "/communication?ranks=1"), "overlap").rows()
    assert "waiting_for_ranks_ns" not in one[0]
    assert [row["communication_ns"] for row in one] == [
        row["communication_ns"] for row in of_ranks if row["rank"] == "1"
    ]
    html = open_page(viewer, "/ranks")
    steps = TableMarkup(html, "ranks_step_parts").rows()
    assert sum(int(row["waiting_for_ranks_ns"]) for row in steps) == sum(waits.values())
    assert "Time of the steady steps of each rank by part" in html
    rows = TableMarkup(open_page(serve(FIXTURES / "ddp2.sqlite"), "/communication"), "overlap").rows()
    assert all(int(r["overlapped_ns"]) + int(r["exposed_ns"]) == int(r["communication_ns"]) for r in rows)
    assert any(int(row["waiting_for_ranks_ns"]) for row in rows)


def test_comparisons_with_rows_are_offered_by_name(amp: Viewer, serve: Callable[..., Viewer]) -> None:
    html = open_page(amp, "/compare")
    offers = [a for ul in parse(html).all("ul", class_="offers") for a in ul.all("a")]
    assert [a.text for a in offers] == [
        "The steady steps with the warm-up",
        "The steady steps with the longest one, Batch 1",
        "The first half of the steady steps with the second half",
    ]
    for offer in offers:
        shown = open_page(amp, unescape(str(offer.attributes["href"])))
        assert "Verdict: " in shown
        assert shown.index("Verdict: ") < shown.index("What changed in a step") < shown.index("data-table")
    with running(*RANKS, FIXTURES / "ncu" / "ncu_raw.csv") as viewer:
        shown = show(viewer, "/compare")
        assert any(text.startswith("Not offered: ncu_raw.csv. They have no kernels") for text in shown)
        other = show(viewer, "/compare", "?other_capture=2")
    titles = {kind.title for kind in KINDS.values()}
    assert any(text.startswith("Not compared: ") and "(no such rows in B)" in text for text in other)
    assert len(titles & set(other)) == 1
    assert "This capture with rank 1 (ddp_straggler_rank1.nsys-rep)" in show(serve(*RANKS), "/compare")


def test_the_memory_of_a_snapshot_and_its_owners(serve: Callable[..., Viewer]) -> None:
    viewer = serve(FIXTURES / "memory_snapshot" / "oom.pickle")
    html = open_page(viewer, "/memory")
    owners = TableMarkup(html, "allocator_owners").rows()
    assert owners[0]["owner"] == "snap.py:21 <module>"
    assert int(owners[0]["size_bytes"]) == 4 << 30
    assert [row["failed_bytes"] for row in TableMarkup(html, "allocator_failures").rows()] == [str(1 << 42)]
    assert TableMarkup(html, "allocator_segments").rows()
