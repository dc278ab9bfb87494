"""Figures of recipes: their data against the tables, names as text, and limits."""

from __future__ import annotations

import json

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tests.plots.test_plots import EVIL
from tracekit.plots import recipes, theme

STATS = ["Count", "Mean", "Std", "Min", "Q1", "Median", "Q3", "Max", "Sum"]


def stats(names: list[str]) -> pl.DataFrame:
    rows = [(2, 3.0, 1.4, 2, 2.5, 3.0, 3.5, 4, 6 + n) for n in range(len(names))]
    return pl.DataFrame(rows, schema=STATS, orient="row").with_columns(Name=pl.Series(names))


@pytest.mark.parametrize(
    ("recipe", "options", "names"),
    [
        ("cuda_api_sum", {}, ["spread"]),
        ("nvtx_sum", {}, ["spread"]),
        ("mpi_gpu_time_util_map", {}, ["map_0", "map_1", "map_2"]),
        ("cuda_gpu_kern_hist", {}, ["histogram"]),
        ("nvtx_pace", {"name": "compute"}, ["pace_start", "pace_duration", "pace_delta"]),
        ("nccl_gpu_overlap_trace", {}, ["overlap"]),
        ("cuda_api_sync", {}, []),
        ("nvtx_gpu_proj_trace", {}, []),
        ("network_sum", {}, []),
    ],
)
def test_figures_of_recipes(recipe: str, options: dict[str, str], names: list[str]) -> None:
    tables = tk.load_many(FIXTURES / "ranks").recipe(recipe, **options)  # type: ignore[arg-type]
    drawn = recipes.figures(tables, dark=True)
    assert list(drawn) == names
    for figure in drawn.values():
        assert figure.layout.title.text
        assert figure.layout.template.layout.paper_bgcolor == theme.DARK.background
        written = json.dumps([{**t, "customdata": None} for t in json.loads(figure.to_json())["data"]])
        assert not [colour for colour in theme.DARK_COLOURS if colour in written]


def test_boxes_show_the_largest_sums() -> None:
    figure = recipes.spread(stats([f"name {n}" for n in range(30)]))
    box = figure.data[0]
    assert figure.layout.title.text == "Spread over all ranks (first 20 of 30 names)"
    assert figure.layout.yaxis.ticktext[-1] == "name 29"
    assert (box.q1[0], box.median[0], box.q3[0], box.lowerfence[0], box.upperfence[0]) == (2.5, 3.0, 3.5, 2, 4)
    assert figure.layout.xaxis.type == "log"
    zero = recipes.spread(stats(["a"]).with_columns(Min=0))
    assert zero.layout.xaxis.type == "linear"


def test_paces_have_a_line_per_rank() -> None:
    figure = recipes.pace(pl.DataFrame({"0": [2_000_000, 4_000_000], "3": [1_000_000, None]}), "Start")
    assert [(line.name, line.y) for line in figure.data] == [("rank 0", (2.0, 4.0)), ("rank 3", (1.0, None))]
    assert figure.layout.yaxis.title.text == "Start (ms)"
    assert figure.data[1].customdata == ("rank 3, occurrence 0<br>1,000,000 ns (1.000 ms)", "")
    many = recipes.pace(pl.DataFrame({str(n): range(600) for n in range(40)}), "Start")
    assert many.layout.title.text == "Start (first 32 of 40 ranks) (first 500 of 600 occurrences)"
    assert (len(many.data), len(many.data[0].x)) == (32, 500)


def test_heat_maps_have_a_row_per_rank_and_device() -> None:
    bins = pl.DataFrame(
        {
            "Duration": [0, 10] * 2,
            "Kernel": [None, 50.0, 100.0, 0.0],
            "PID": [1, 1, 2, 2],
            "Device ID": [0, 0, 1, 1],
            "Rank": [0, 0, 1, 1],
        }
    )
    figure = recipes.heat_map(bins, "Kernel")
    assert figure.layout.yaxis.ticktext == ("rank 0, GPU 0", "rank 1, GPU 1")
    assert figure.layout.yaxis.autorange == "reversed"
    assert [list(row) for row in figure.data[0].z] == [[None, 50.0], [100.0, 0.0]]
    assert figure.data[0].customdata[0][0] == "rank 0, GPU 0<br>from 0 ns<br>not recorded"
    assert figure.data[0].customdata[1][0].endswith("100.0%")
    many = pl.concat([bins.head(2).with_columns(Rank=pl.lit(n, pl.Int64)) for n in range(600)])
    assert len(recipes.heat_map(many, "Kernel").data[0].z) == 512


def test_histograms_count_every_kernel() -> None:
    durations = pl.DataFrame({"Duration": [1, 10, 100, 1000, 0, 7], "Name": [*["long"] * 4, *["short"] * 2]})
    figure = recipes.histogram(durations)
    assert [(line.name, sum(line.y)) for line in figure.data] == [("long", 4), ("short", 2)]
    assert figure.data[0].y[0] == figure.data[0].y[-1] == 1
    assert figure.data[1].y[0] == 1
    equal = recipes.histogram(pl.DataFrame({"Duration": [5, 5], "Name": ["a", "a"]}))
    assert sum(equal.data[0].y) == 2


def test_overlaps() -> None:
    grouped = pl.DataFrame(
        {"Count": [3, 1], "Communication Overlap": [0.0, 60.0], "Compute Overlap": [0.0, 10.0], "Name": ["a", "b"]}
    )
    figure = recipes.overlap(grouped)
    assert figure.layout.yaxis.ticktext == ("a", "b")
    assert [bars.x for bars in figure.data] == [(0.0, 60.0), (0.0, 10.0)]


def test_names_are_text() -> None:
    evil = {
        "all_stats": stats([EVIL]),
        "analysis": pl.DataFrame({"Duration": [1], "Name": [EVIL]}),
        "grouped_trace": pl.DataFrame(
            {"Count": [1], "Communication Overlap": [1.0], "Compute Overlap": [1.0], "Name": [EVIL]}
        ),
    }
    drawn = recipes.figures(evil)
    assert list(drawn) == ["spread", "overlap", "histogram"]
    for figure in drawn.values():
        assert "<script" not in figure.to_json()
        assert "<a " not in figure.to_json()
        assert "\\u001b" not in figure.to_json()
