"""Figures of recipes: their data against the tables, names as text, and limits."""

from __future__ import annotations

import json

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tests.plots.test_plots import EVIL, convert
from tracekit.plots import ranks, recipes, theme

STATS = ["Count", "Mean", "Std", "Min", "Q1", "Median", "Q3", "Max", "Sum"]


def stats(names: list[str]) -> pl.DataFrame:
    rows = [(2, 3.0, 1.4, 2, 2.5, 3.0, 3.5, 4, 6 + n) for n in range(len(names))]
    return pl.DataFrame(rows, schema=STATS, orient="row").with_columns(Name=pl.Series(names))


@pytest.mark.many(6)
@pytest.mark.parametrize(
    ("recipe", "options", "names"),
    [
        ("cuda_api_sum", {}, ["spread"]),
        ("nvtx_sum", {}, ["spread"]),
        ("mpi_gpu_time_util_map", {}, ["map_0", "map_1", "map_2"]),
        ("cuda_gpu_kern_hist", {}, ["histogram"]),
        ("nvtx_pace", {"name": "compute"}, ["pace_over_time", "pace_start", "pace_duration", "pace_delta"]),
        ("gpu_time_sum", {}, ["gpu_time"]),
        ("comm_skew", {}, ["arrivals"]),
        ("iteration_spread", {}, ["iterations", "stragglers"]),
        ("nccl_gpu_overlap_trace", {}, ["overlap"]),
        ("cuda_api_sync", {}, []),
        ("nvtx_gpu_proj_trace", {}, []),
        ("network_sum", {}, []),
    ],
)
def test_figures_of_recipes(recipe: str, options: dict[str, str], names: list[str]) -> None:
    tables = tk.load_many(FIXTURES / "ranks").recipe(recipe, **options)  # type: ignore[arg-type]
    drawn = {name: convert(chart) for name, chart in recipes.draw_recipe_figures(tables, dark=True).items()}
    assert list(drawn) == names
    for figure in drawn.values():
        assert figure.layout.title.text
        assert figure.layout.template.layout.paper_bgcolor == theme.DARK.background
        written = json.dumps([{**t, "customdata": None} for t in json.loads(figure.to_json())["data"]])
        assert not [color for color in theme.DARK_COLORS if color in written]


def test_boxes_show_the_largest_sums() -> None:
    figure = convert(recipes.draw_spread(stats([f"name {n}" for n in range(30)])))
    box = figure.data[0]
    assert figure.layout.title.text == "Spread over all ranks (first 20 of 30 names)"
    assert figure.layout.yaxis.ticktext[-1] == "name 29"
    assert (box.q1[0], box.median[0], box.q3[0], box.lowerfence[0], box.upperfence[0]) == (2.5, 3.0, 3.5, 2, 4)
    assert figure.layout.xaxis.type == "log"
    zero = convert(recipes.draw_spread(stats(["a"]).with_columns(Min=0)))
    assert zero.layout.xaxis.type == "linear"


def test_paces_have_a_line_per_rank() -> None:
    figure = convert(recipes.draw_pace(pl.DataFrame({"0": [2_000_000, 4_000_000], "3": [1_000_000, None]}), "Start"))
    assert [(line.name, line.y) for line in figure.data] == [("rank 0", (2.0, 4.0)), ("rank 3", (1.0,))]
    assert figure.layout.yaxis.title.text == "Start (ms)"
    assert figure.data[1].customdata == ("rank 3, occurrence 0<br>1,000,000 ns (1.000 ms)",)
    many = convert(recipes.draw_pace(pl.DataFrame({str(n): range(600) for n in range(40)}), "Start"))
    assert many.layout.title.text == "Start (first 32 of 40 ranks)"
    low, high, line = many.data[0], many.data[1], many.data[-1]
    assert (len(many.data), len(line.x), line.name) == (96, 200, "rank 31")
    assert (low.y[1], line.y[1], high.y[1]) == (3, 4, 5)
    assert line.customdata[1] == "rank 31, occurrences 3 to 5<br>median 4 ns<br>from 3 ns<br>to 5 ns"


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
    figure = convert(recipes.draw_heat_map(bins, "Kernel"))
    assert figure.layout.yaxis.ticktext == ("rank 0, GPU 0", "rank 1, GPU 1")
    assert figure.layout.yaxis.autorange == "reversed"
    assert [list(row) for row in figure.data[0].z] == [[None, 50.0], [100.0, 0.0]]
    assert figure.data[0].customdata[0][0] == "rank 0, GPU 0<br>from 0 ns<br>not recorded"
    assert figure.data[0].customdata[1][0].endswith("100.0%")
    assert figure.data[0].x == (0, 10, 20)
    assert figure.layout.xaxis.title.text == "Time since the first capture (ns)"
    alone = convert(recipes.draw_heat_map(bins.head(2), "Kernel"))
    assert alone.layout.yaxis.ticktext == ("GPU 0",)
    assert alone.layout.xaxis.title.text == "Time since the start of the capture (ns)"
    assert convert(recipes.draw_heat_map(bins.head(2).drop("Device ID"), "Kernel")).layout.yaxis.ticktext == ("rank 0",)
    assert convert(recipes.draw_heat_map(bins.head(1), "Kernel")).data[0].x == (0, 1)
    many = pl.concat([bins.head(2).with_columns(Rank=pl.lit(n, pl.Int64)) for n in range(600)])
    assert len(convert(recipes.draw_heat_map(many, "Kernel")).data[0].z) == 512


def test_paces_over_time() -> None:
    starts = pl.DataFrame({"0": [0, 1_000_000], "1": [500_000, None]})
    figure = convert(recipes.draw_pace_over_time(starts, pl.DataFrame({"0": [2_000, 4_000], "1": [3_000, None]})))
    assert [(points.name, points.x, points.y) for points in figure.data] == [
        ("rank 0", (0.0, 1.0), (2.0, 4.0)),
        ("rank 1", (0.5,), (3.0,)),
    ]
    assert figure.data[1].customdata == ("rank 1, occurrence 0<br>3,000 ns (3.000 µs)<br>at 500,000 ns",)
    assert figure.layout.yaxis.type is None
    wide = convert(recipes.draw_pace_over_time(pl.DataFrame({"0": [0, 1, 2]}), pl.DataFrame({"0": [1, 1, 100]})))
    assert (wide.layout.yaxis.type, wide.layout.showlegend) == ("log", False)
    assert recipes.draw_recipe_figures({"pace_start": starts}).keys() == {"pace_start"}


def test_the_shortest_and_the_longest_of_many_occurrences_are_drawn() -> None:
    durations = [10] * 100_000
    durations[777], durations[99_999] = 1, 1000
    frame = pl.DataFrame({"0": durations})
    points = convert(recipes.draw_pace_over_time(pl.DataFrame({"0": range(100_000)}), frame)).data[0]
    assert len(points.x) <= 2000
    assert {(0.777, 0.001), (99.999, 1.0)} <= set(zip(points.x, points.y, strict=True))


def test_parts_of_the_time_of_each_gpu() -> None:
    rows = pl.DataFrame(
        {
            "rank": [0, 0, 2],
            "device_id": [0, 1, 0],
            "total_ns": [10, 10, 0],
            "compute_ns": [1, 0, 0],
            "hidden_ns": [2, 0, 0],
            "exposed_ns": [3, 0, 0],
            "memory_ns": [4, 0, 0],
            "idle_ns": [0, 10, 0],
        }
    )
    figure = convert(ranks.draw_gpu_time(rows))
    assert figure.layout.yaxis.ticktext == ("rank 0, GPU 0", "rank 0, GPU 1", "rank 2, GPU 0")
    assert [bars.x for bars in figure.data] == [(10, 0, 0), (20, 0, 0), (30, 0, 0), (40, 0, 0), (0, 100, 0)]
    assert figure.data[2].customdata[0] == "rank 0, GPU 0<br>Exposed communication: 3 ns, 30.00%"
    assert convert(ranks.draw_gpu_time(rows.head(2))).layout.yaxis.ticktext == ("GPU 0", "GPU 1")
    many = pl.concat([rows.head(1).with_columns(rank=pl.lit(n, pl.Int64)) for n in range(64)])
    drawn = convert(ranks.draw_gpu_time(many))
    assert (drawn.layout.yaxis.ticktext[1], len(drawn.layout.yaxis.ticktext)) == ("rank 2, GPU 0", 32)
    assert len(drawn.data[0].x) == 64


def test_waits_of_each_rank() -> None:
    rows = pl.DataFrame(
        {
            "rank": [1, 0, 1],
            "count": 1,
            "last_count": 0,
            "wait_ns": [1_000, 5_000, 2_000],
            "transfer_ns": [1_000, 0, 1_000],
        }
    )
    figure = convert(ranks.draw_arrivals(rows))
    assert figure.layout.yaxis.ticktext == ("rank 0", "rank 1")
    assert [(bars.name, bars.x) for bars in figure.data] == [("Waiting", (5.0, 3.0)), ("Transfer", (0.0, 2.0))]


def test_iterations_and_their_stragglers() -> None:
    rows = pl.DataFrame(
        {
            "iteration": [3, 4, 5],
            "min_ns": [1_000, 2_000, 1_000],
            "median_ns": [1_500.0, 2_000.5, 1_000.0],
            "max_ns": [2_000, 9_000, 4_000],
            "straggler": [None, 7, 1],
            "phase": [None, EVIL, "load"],
            "lost_ns": [None, 6_000, 3_000],
            "lost_on": [None, "CPU", "GPU"],
            "is_aggregated": [True, True, True],
        }
    )
    figure = convert(ranks.draw_iteration_spread(rows))
    assert [(line.name, line.x) for line in figure.data] == [
        ("Shortest", (3, 4, 5)),
        ("Longest", (3, 4, 5)),
        ("Median", (3, 4, 5)),
        ("Straggler: rank 1", (5,)),
        ("Straggler: rank 7", (4,)),
    ]
    assert (figure.data[1].y, figure.data[4].y, figure.layout.xaxis.dtick) == ((2.0, 9.0, 4.0), (9.0,), 1)
    assert figure.data[3].customdata == ("iteration 5<br>rank 1 lost 3,000 ns (3.000 µs)<br>in load on the GPU",)
    assert "<script" not in figure.to_json()
    warm = convert(ranks.draw_iteration_spread(rows.with_columns(is_aggregated=pl.Series([False, True, True]))))
    drawn = {line.name: (line.x, line.mode) for line in warm.data[:4]}
    assert drawn["Warm-up, not aggregated"] == ((3,), "markers")
    assert drawn["Median"][0] == (4, 5)
    long = convert(ranks.draw_iteration_spread(pl.concat([rows] * 9)))
    assert (long.layout.xaxis.dtick, long.data[0].mode) == (None, "lines")
    many = pl.concat([rows] * 1000).with_columns(iteration=pl.int_range(3000), lost_ns=pl.int_range(3000))
    merged = convert(ranks.draw_iteration_spread(many))
    assert len(merged.data[0].x) == 375
    assert (set(merged.data[0].y), set(merged.data[1].y)) == ({1.0}, {9.0})
    assert merged.data[0].customdata[0] == "iterations 0 to 7<br>shortest: 1,000 ns (1.000 µs)"
    assert sum(len(line.x) for line in merged.data[3:]) == 400
    assert merged.layout.title.text.endswith("(the 400 largest of 2,000 losses to stragglers)")


def test_the_warm_up_does_not_set_the_scale_of_iterations() -> None:
    schema = {"iteration": [0, 1, 2], "min_ns": 900, "median_ns": 950, "max_ns": [90_000, 1_000, 1_000]}
    rows = pl.DataFrame(schema).with_columns(
        is_aggregated=pl.Series([False, True, True]),
        **{c: pl.lit(None, pl.Int64) for c in ("straggler", "lost_ns")},
        **{c: pl.lit(None, pl.String) for c in ("phase", "lost_on")},
    )
    figure = convert(ranks.draw_iteration_spread(rows))
    assert figure.layout.yaxis.range == (0, 1.12)
    assert [note.text for note in figure.layout.annotations] == ["warm-up: 90 µs"]
    cut = figure.data[-1]
    assert (cut.name, cut.x) == ("Longer than the chart is high", (0,))
    assert figure.layout.yaxis.title.text == "Duration (µs)"


def test_time_that_stragglers_lost() -> None:
    columns = {"straggler": [1], "phase": [EVIL], "lost_on": ["CPU"], "lost_ns": [2_000], "iteration_count": [4]}
    figure = convert(ranks.draw_stragglers(pl.DataFrame(columns)))
    assert figure.data[0].x == (2.0,)
    assert figure.data[0].customdata[0].endswith("2,000 ns (2.000 µs)<br>in 4 iterations")
    assert "<script" not in figure.to_json()


def test_histograms_count_every_kernel() -> None:
    durations = pl.DataFrame({"Duration": [1, 10, 100, 1000, 0, 7], "Name": [*["long"] * 4, *["short"] * 2]})
    figure = convert(recipes.draw_histogram(durations))
    assert [(line.name, sum(line.y)) for line in figure.data] == [("long", 4), ("short", 2)]
    assert figure.data[0].y[0] == figure.data[0].y[-1] == 1
    assert figure.data[1].y[0] == 1
    equal = convert(recipes.draw_histogram(pl.DataFrame({"Duration": [5, 5], "Name": ["a", "a"]})))
    assert sum(equal.data[0].y) == 2


def test_overlaps() -> None:
    grouped = pl.DataFrame(
        {"Count": [3, 1], "Communication Overlap": [0.0, 60.0], "Compute Overlap": [0.0, 10.0], "Name": ["a", "b"]}
    )
    figure = convert(recipes.draw_overlap(grouped))
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
    drawn = {name: convert(chart) for name, chart in recipes.draw_recipe_figures(evil).items()}
    assert list(drawn) == ["spread", "overlap", "histogram"]
    for figure in drawn.values():
        assert "<script" not in figure.to_json()
        assert "<a " not in figure.to_json()
        assert "\\u001b" not in figure.to_json()
