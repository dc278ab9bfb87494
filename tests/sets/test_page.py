"""The page and the figures of a set: what they show, and what they leave out."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tracekit as tk
from tests.builders.ranks import kernel, write_capture
from tests.conftest import FIXTURES
from tests.exporters.test_html import Page
from tracekit.errors import ExportError, MissingTableError, TracekitWarning
from tracekit.exporters.html.sections import WHOLE_CAPTURE
from tracekit.sets import recipes

RANKS = FIXTURES / "ranks"
SECTIONS = ["Why", "Ranks", "Iterations", "Communication", "Utilization over time", "Pace"]


def sections(text: str) -> list[str]:
    return re.findall(r'<li><a href="#[\w-]+">([^<]*)</a>', text)


def figures(text: str) -> list[str]:
    return re.findall(r'<figure id="figure-([^"]+)">.*?<svg ', text)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the ranks of a job."""
    return tk.load_many(RANKS).export(tmp_path_factory.mktemp("ranks") / "page.html")


@pytest.mark.slow
def test_the_page_of_ranks(page: Path) -> None:
    ranks = tk.load_many(RANKS)
    text = page.read_text("utf-8")
    assert "<title>GPU profiles of 2 ranks</title>" in text
    assert sections(text) == SECTIONS
    expected = ["gpu_time", "iterations", "arrivals", "cuda_gpu_time_util_map_map_0"]
    expected += [f"mpi_gpu_time_util_map_map_{n}" for n in range(3)]
    expected += ["pace_over_time", "pace_start", "pace_duration", "pace_delta"]
    assert figures(text) == expected
    rows = ranks.recipe("gpu_time_sum")["gpu_time"]
    titles, *cells = Page(text).tables["GPUs of all ranks"]
    assert cells == [[str(value) for value in row] for row in rows.select(titles).rows()]
    for member in ranks.members:
        assert member.host
        assert not re.search(rf"\b{member.host}\b", text)
        assert str(member.path) not in text
    with pytest.raises(ExportError, match="exists"):
        ranks.export(page)


@pytest.mark.slow
def test_the_page_says_which_steps_and_scopes_it_shows(page: Path, tmp_path: Path) -> None:
    ranks = tk.load_many(RANKS)
    text = html.unescape(page.read_text("utf-8"))
    (note,) = ranks.communication().step_notes
    assert note.startswith("Warning: all 2 ranks: 5 steps each, delimited by the range 'step *'; ")
    assert note.endswith("; the first step is warm-up and left out.")
    parts = re.split(r'<section id="', text)[1:]
    scopes = {part.partition('"')[0]: [s for s in (WHOLE_CAPTURE, note) if f">{s}</p>" in part] for part in parts}
    whole = {"ranks", "communication", "maps", "pace"}
    assert scopes == {"iterations": [note], **{name: [WHOLE_CAPTURE] for name in whole}}
    with pytest.warns(tk.TracekitWarning, match="the chosen iterations have no effect"):
        ranks.rollup(iterations=(1, 2), include_warm_up=True).export(tmp_path / "other.html")
    other = html.unescape((tmp_path / "other.html").read_text("utf-8"))
    assert note.replace("left out", "included") in other
    assert "stragglers" in figures(other)


@pytest.mark.thorough
def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    """Captures without UTC times are not aligned."""
    paths = [write_capture(tmp_path / f"rank{n}", kernels=[kernel(0, 10 + n)]) for n in range(2)]
    with pytest.warns(TracekitWarning, match="rank 1: the clock cannot be aligned") as warned:
        text = tk.load_many(paths).export(tmp_path / "page.html").read_text("utf-8")
    assert len(warned) == 1
    assert set(sections(text)) >= {"Ranks", "Utilization over time", "Pace"}
    assert "Communication" not in sections(text)
    empty = [write_capture(tmp_path / f"none{n}", kernels=[]) for n in range(2)]
    with pytest.warns(TracekitWarning, match="cannot be aligned"):
        text = tk.load_many(empty).export(tmp_path / "none.html").read_text("utf-8")
    assert sections(text) == []


def plain(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "\n", re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:rank .*clock:tracekit.TracekitWarning")
@pytest.mark.parametrize(
    ("kinds", "notices", "missing"),
    [
        (
            ["cpu_only", "cpu_only", "train_amp"],
            [
                "2 of 3 ranks: This capture contains no GPU work, because no kernels, memcpys, memsets",
                "1 of 3 ranks: Warning recorded by Nsight Systems: Not all CUDA events might have been collected.",
            ],
            ["Communication"],
        ),
        (
            ["cpu_only", "cpu_only"],
            ["2 of 2 ranks: This capture contains no GPU work, because no kernels, memcpys, memsets"],
            SECTIONS[1:],
        ),
    ],
    ids=["some", "all"],
)
def test_a_page_states_what_ranks_lack(
    tmp_path: Path, kinds: list[str], notices: list[str], missing: list[str]
) -> None:
    paths = [
        Path(shutil.copy(FIXTURES / f"{kind}.sqlite", tmp_path / f"rank{n}.sqlite")) for n, kind in enumerate(kinds)
    ]
    lines = plain(tk.load_many(paths).export(tmp_path / "page.html").read_text("utf-8")).splitlines()
    for notice in notices:
        assert any(line.startswith(notice) for line in lines), lines
    omitted = [line for line in lines if " is omitted. " in line]
    assert [line.split(" is omitted. ")[0] for line in omitted] == [f"The section {title}" for title in missing]
    assert all(" were recorded" in line or " was recorded" in line for line in omitted)
    assert any("The captures contain nothing to draw" in line for line in lines) is ("train_amp" not in kinds)


@pytest.mark.slow
def test_several_recipes_open_each_capture_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = tk.load_many(RANKS)
    names = ("gpu_time_sum", "mpi_sum", "mpi_gpu_time_util_map", "iteration_spread")
    alone = {name: ranks.recipe(name) for name in names}
    opened: list[int] = []
    outcomes = tk.TraceSet.outcomes

    def counted(self: tk.TraceSet, function: Any) -> Any:
        opened.append(len(self))
        return outcomes(self, function)

    monkeypatch.setattr(tk.TraceSet, "outcomes", counted)
    together = recipes.run_recipes(ranks, {name: {} for name in names})
    assert opened == [2]
    for name, tables in alone.items():
        assert list(together[name]) == list(tables)
        assert all(together[name][table].equals(rows) for table, rows in tables.items())


@pytest.mark.thorough
def test_figures_of_a_set() -> None:
    plot = tk.load_many(RANKS).plot
    titles = ["Time of the GPUs of each rank", "Collectives and messages of each rank", "Iterations over all ranks"]
    drawn = [plot.gpu_time(), plot.arrivals(), plot.iterations(), plot.stragglers(dark=True, include_warm_up=True)]
    assert [figure.layout.title.text for figure in drawn] == [*titles, "Time that stragglers lost"]
    assert list(plot.utilization(bins=7)["map_0"].data[0].x)[:1] == [0]
    assert len(plot.utilization(bins=7, align="no")["map_0"].data[0].x) == 8
    assert plot.pace("no such kernel") == {}


def test_figures_without_data() -> None:
    plot = tk.load_many(FIXTURES / "ncu" / "ncu_roofline_raw.csv", ranks={"ncu_roofline_raw.csv": 0}).plot
    with pytest.raises(MissingTableError, match="the ranks have no GPU activities"):
        plot.gpu_time()
    with pytest.raises(MissingTableError, match="no stragglers"):
        plot.stragglers()
