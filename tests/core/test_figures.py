"""The frames of charts, against brute force, hand-made captures and the tables of real ones."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.frames import declared, launches, nvtx
from tracekit.core import trees as name_trees
from tracekit.core.figures import overview, stacks, timeline, totals, trees
from tracekit.core.rollup import Rollup
from tracekit.plan import get_rollup

FIXTURES = Path(__file__).parents[2] / "fixtures"
activities = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-20, 20), st.integers(0, 9)).map(lambda a: (a[0], a[1], a[1] + a[2])),
    max_size=12,
)
TIMES = {"device_id": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}


def rollup(name: str) -> Rollup:
    return get_rollup(tk.load(FIXTURES / name)._plan)


@given(activities, st.integers(1, 50))
def test_busy_times_are_those_of_every_nanosecond(rows: list[tuple[int, int, int]], bins: int) -> None:
    found = timeline.compute_busy_times(pl.DataFrame(rows, TIMES, orient="row"), bins)
    busy = {(d, t) for d, start, end in rows for t in range(start, end)}
    times = sorted(t for _, t in busy)
    if not busy:
        assert found.is_empty()
        return
    expected = min(bins, times[-1] + 1 - times[0])
    for device in {d for d, _ in busy}:
        cells = found.filter(device_id=device).drop("device_id").rows()
        assert len(cells) == expected
        assert cells[0][0] == times[0]
        assert cells[-1][1] == times[-1] + 1
        assert [end for _, end, _ in cells[:-1]] == [start for start, _, _ in cells[1:]]
        assert max(b - a for a, b, _ in cells) - min(b - a for a, b, _ in cells) <= 1
        assert [n for _, _, n in cells] == [sum((device, t) in busy for t in range(a, b)) for a, b, _ in cells]


def test_busy_times_of_far_times_are_exact() -> None:
    far = 1 << 61
    rows = timeline.compute_busy_times(
        pl.DataFrame([(0, -far, -far + 7), (0, far - 3, far)], TIMES, orient="row"), 1000
    )
    assert rows["busy_ns"].sum() == 10
    assert rows.height == 1000


def test_activities_of_one_gpu() -> None:
    with tk.load(FIXTURES / "ddp2.sqlite") as trace:
        every, second = (timeline.read_gpu_activities(trace.frame, d) for d in (None, 1))
        assert every.height == sum(trace.count(t) for t in ("kernels", "memcpys", "memsets", "graph_launches"))
        assert second.height == every.filter(device_id=1).height > 0


@given(activities, st.integers(1, 9))
def test_the_utilization_of_the_parts_of_bins(rows: list[tuple[int, int, int]], bins: int) -> None:
    found = timeline.compute_utilization_in_bins(pl.DataFrame(rows, TIMES, orient="row"), bins)
    busy = {(d, t) for d, start, end in rows for t in range(start, end)}
    assert found.drop("min_percent", "max_percent").equals(
        timeline.compute_busy_times(pl.DataFrame(rows, TIMES, orient="row"), bins)
    )
    for device, start, end, busy_ns, low, high in found.iter_rows():
        moments = [(device, t) in busy for t in range(start, end)]
        if max(found["end_ns"] - found["start_ns"]) <= 16:  # parts of one nanosecond, or of two
            assert low <= 100 * busy_ns / (end - start) <= high
            assert (low > 0) <= any(moments)
            assert (high > 0) == any(moments)


def test_one_short_kernel_is_a_peak() -> None:
    rows = pl.DataFrame([(0, 0, 1), (0, 500_000, 501_000), (0, 999_999, 1_000_000)], TIMES, orient="row")
    bins = timeline.compute_utilization_in_bins(rows, 10)
    assert bins["max_percent"].round(1).to_list()[5] == 16.0
    assert bins["busy_ns"].to_list()[5] == 1000


samples_of_series = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 99), st.one_of(st.none(), st.integers(-5, 5))), max_size=60
)


@given(samples_of_series, st.integers(1, 20), st.sampled_from(["median", "last"]))
def test_every_sample_lies_in_the_band_of_its_bin(
    drawn: list[tuple[int, int, int | None]], limit: int, summary: str
) -> None:
    schema = {"s": pl.Int64, "timestamp_ns": pl.Int64, "v": pl.Int64}
    samples = pl.DataFrame(sorted(drawn, key=lambda r: r[1]), schema, orient="row")
    rows = timeline.reduce_samples(samples, by=["s"], value_column="v", summary=summary, rows=limit)  # type: ignore[arg-type]
    assert rows["timestamp_ns"].is_sorted()
    if samples.height <= limit:
        assert rows.select("s", "timestamp_ns", "v").equals(samples.select("s", "timestamp_ns", "v"))
        assert rows["minimum"].equals(samples["v"], check_names=False)
        return
    bins = max(1, limit // samples["s"].n_unique())
    assert rows.height <= bins * samples["s"].n_unique()
    times = samples["timestamp_ns"]
    width = (times.max() - times.min()) // bins + 1  # type: ignore[operator]
    expected = {}
    for series in (0, 1):
        for nth in range(bins):
            inside = [
                (t, v)
                for s, t, v in samples.rows()
                if (s, (t - times.min()) // width) == (series, nth) and v is not None  # type: ignore[operator]
            ]
            if inside:
                values = np.array([v for _, v in inside])
                middle = int(np.sort(values)[(len(values) - 1) // 2]) if summary == "median" else int(values[-1])
                first = inside[int(values.argmax())][0]
                extremes = int(values.min()), int(values.max()), first, len(values)
                expected[series, inside[0][0]] = (middle, *extremes)
    assert {(r["s"], r["timestamp_ns"]): (*r.values(),)[2:] for r in rows.iter_rows(named=True)} == expected


def test_one_sample_in_a_million_is_visible() -> None:
    values = np.zeros(1_000_000, np.int64)
    values[777_777] = 9
    samples = pl.select(
        timestamp_ns=pl.int_range(1_000_000, dtype=pl.Int64), s=pl.lit(0), v=pl.lit(pl.Series(values.tolist()))
    )
    rows = timeline.reduce_samples(samples, by=["s"], value_column="v", summary="median", rows=500)
    assert rows.filter(maximum=9)["maximum_ns"].to_list() == [777_777]
    assert (rows["v"].max(), rows["sample_count"].sum(), rows.height) == (0, 1_000_000, 500)


def test_memory_changes_are_those_of_the_report() -> None:
    with tk.load(FIXTURES / "memory" / "memory_pools.sqlite") as trace:
        report = trace.stats("gpu_memory_usage")
        rows = timeline.read_memory_changes(trace.frame, 10_000)
        assert rows["used_bytes"].to_list() == report["Used (bytes)"].to_list()
        few = timeline.read_memory_changes(trace.frame, 12)
        assert few.height < rows.height
        assert few["max_bytes"].max() == rows["used_bytes"].max()
    assert timeline.read_memory_changes(declared(), 5).is_empty()


def test_memory_of_a_selected_time_begins_with_what_was_allocated_before() -> None:
    with tk.load(FIXTURES / "memory" / "memory_pools.sqlite") as trace:
        times = trace.frame("memory_events").select("timestamp_ns").collect()["timestamp_ns"].sort()
        low, high = times[times.len() // 2] + 1, times[-2]
        part = trace.select(time=(low, high))
        report = part.stats("gpu_memory_usage")
        rows = timeline.read_memory_changes(trace.frame, 10_000, (low, high))
        before = report["Used (bytes)"][0] - report["Change (bytes)"][0]
        assert rows["used_bytes"].to_list() == [before, *report["Used (bytes)"]]
        assert rows["timestamp_ns"].to_list() == [low, *report["Time (ns)"]]
        assert before > 0
        lines = [d for d in part.plot.memory_usage().data if d.mode == "lines"]
        used = [[int(text.split("<br>")[1].split(" ")[0].replace(",", "")) for text in d.customdata] for d in lines]
        extended = [values for values in used if len(values) > 1 and values[-1] == values[-2]]
        assert len({d.x[-1] for d in lines}) == 1  # all lines end where the last one changes
        for values in extended:
            del values[-1]
        assert sorted(value for values in used for value in values) == sorted(rows["used_bytes"])
        whole = timeline.read_memory_changes(trace.frame, 10_000, (None, high))
        assert whole["timestamp_ns"].max() < high


def test_metrics_in_percent_come_first() -> None:
    with tk.load(FIXTURES / "gpu_metrics.sqlite") as trace:
        names = timeline.list_metric_names(trace.frame)
        assert len(names) == 30
        assert timeline.find_names_of_highest_metrics(trace.frame, 2) == [
            "GR Active [Throughput %]",
            "SMs Active [Throughput %]",
        ]
        rows = timeline.read_metric_samples(trace.frame, names[:2], 100_000)
        assert rows.height == 672
        assert timeline.read_metric_samples(trace.frame, names[:2], 60)["max_value"].max() == rows["value"].max()
    clocks = pl.DataFrame({"timestamp_ns": [1], "device_id": [0], "metric": ["Clock [MHz]"], "value": [5]})
    assert timeline.find_names_of_highest_metrics(declared(gpu_metrics=clocks), 2) == ["Clock [MHz]"]


def test_overview_is_that_of_the_tables() -> None:
    with tk.load(FIXTURES / "ddp2.sqlite") as trace:
        rolled, table = get_rollup(trace._plan), trace.rollup().frame("iterations").collect()
        parts = overview.compute_time_breakdown(rolled)
        assert parts["part"].to_list() == list(overview.PART_COLUMNS)
        assert parts["time_ns"].to_list() == [table[c].sum() for c in overview.PART_COLUMNS.values()]
        assert parts["percent"].sum() == pytest.approx(100)
        devices = overview.compute_device_utilization(rolled)
        total = sum((table["window_end_ns"] - table["window_start_ns"]).to_list())
        assert devices["total_ns"].to_list() == [total, total]
        devices = overview.compute_device_utilization(rolled.for_dlprof)
        recorded = trace._view.model("dlprof")["device_gpu_utilizations"]["gpu_utilization"]
        assert devices["percent"].to_list() == pytest.approx(recorded.to_list(), abs=1e-6)
        kinds = dict(overview.sum_activity_times_by_kind(rolled).select("kind", "time_ns").iter_rows())
        assert kinds["tensor_core"] == table["tensor_core_kernel_time_ns"].sum()
        assert kinds["tensor_core"] + kinds["other_kernel"] == table["kernel_time_ns"].sum()
        assert (kinds["graph"], overview.has_ops_or_gpu_activities(rolled)) == (0, True)


def test_graphs_without_kernels_have_their_own_kind() -> None:
    kinds = overview.sum_activity_times_by_kind(rollup("jax_mlp.sqlite"))
    assert kinds.filter(kind="graph")["time_ns"].item() > 0
    assert kinds.filter(kind="other_kernel")["count"].item() == 0


def test_a_capture_without_anything_has_no_utilization() -> None:
    rolled = Rollup.from_frames(declared())
    assert not overview.has_ops_or_gpu_activities(rolled)
    assert overview.compute_device_utilization(rolled).select("name", "busy_ns", "percent").rows() == [(None, 0, 0.0)]


def test_many_iterations_become_bins_of_means() -> None:
    columns = {column: [1, 3, 5, 7, 9] for column in overview.PART_COLUMNS.values()}
    times = {"window_start_ns": [0, 10, 20, 30, 40], "window_end_ns": [4, 16, 28, 40, 52]}
    flags = {
        "iteration": [0, 1, 2, 3, 4],
        "is_aggregated": [False, True, True, True, True],
        "is_warm_up": [True, False, False, False, False],
    }
    table = pl.DataFrame({**flags, **times, **columns, "name": ["a", "b", "c", "d", None]})
    rows = overview.merge_iterations_into_bins(table, 3)
    assert rows.select("first", "last", "duration_ns", "is_aggregated", "is_warm_up", "in_cpu_ns").rows() == [
        (0, 0, 4, False, True, 1), (1, 1, 6, True, False, 3), (2, 3, 9, True, False, 6), (4, 4, 12, True, False, 9),
    ]  # fmt: skip
    longest = [(0, 4, "a"), (1, 6, "b"), (3, 10, "d"), (4, 12, None)]
    assert rows.select("longest", "longest_ns", "longest_name").rows() == longest
    shortest = [(0, 4, "a"), (1, 6, "b"), (2, 8, "c"), (4, 12, None)]
    assert rows.select("shortest", "shortest_ns", "shortest_name").rows() == shortest
    exact = overview.merge_iterations_into_bins(table, 5)
    assert exact["first"].to_list() == exact["last"].to_list() == [0, 1, 2, 3, 4]
    assert overview.merge_iterations_into_bins(table.clear(), 5).is_empty()


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.integers(0, 3), st.integers(1, 40))
def test_outliers_are_far_from_the_median(durations: list[int], warm_up: int, limit: int) -> None:
    count = len(durations)
    table = pl.DataFrame(
        {
            "iteration": range(count),
            "is_aggregated": [True] * count,
            "is_warm_up": [n < warm_up for n in range(count)],
            "window_start_ns": [0] * count,
            "window_end_ns": durations,
            "name": [f"step {n}" for n in range(count)],
            **dict.fromkeys(overview.PART_COLUMNS.values(), [0] * count),
        },
        schema_overrides=dict.fromkeys(("iteration", "window_start_ns", "window_end_ns"), pl.Int64),
    )
    rows = overview.merge_iterations_into_bins(table, limit)
    steady = np.array(durations[warm_up:])
    outliers: set[int] = set()
    if len(steady) >= 3:
        middle = (len(steady) - 1) // 2
        median = np.sort(steady)[middle]
        distance = np.abs(steady - median)
        far = distance > max(3 * 1.4826 * np.sort(distance)[middle], 0.05 * median)
        outliers = {int(n) + warm_up for n in np.flatnonzero(far)}
    assert rows["outlier_count"].sum() == len(outliers)
    for row in rows.iter_rows(named=True):
        inside = durations[row["first"] : row["last"] + 1]
        assert (row["shortest_ns"], row["longest_ns"]) == (min(inside), max(inside))
        assert row["outlier_count"] == sum(row["first"] <= n <= row["last"] for n in outliers)
        for kind in ("longest", "shortest"):
            assert durations[row[kind]] == row[f"{kind}_ns"]
            assert row[f"{kind}_is_outlier"] == (row[kind] in outliers)
            assert row[f"{kind}_name"] == f"step {row[kind]}"


def test_bins_do_not_mix_the_warm_up_with_other_iterations_outside() -> None:
    """Iteration 0 is warm-up, and only iterations 3 to 5 were chosen."""
    columns = dict.fromkeys(overview.PART_COLUMNS.values(), [1] * 6)
    flags = {"is_aggregated": [False] * 3 + [True] * 3, "is_warm_up": [True] + [False] * 5}
    times = {"window_start_ns": [0] * 6, "window_end_ns": [9, 1, 1, 1, 1, 1]}
    table = pl.DataFrame({"iteration": list(range(6)), **flags, **times, **columns, "name": [None] * 6})
    rows = overview.merge_iterations_into_bins(table, 2)
    assert rows.select("first", "last", "duration_ns", "is_warm_up").rows() == [
        (0, 0, 9, True), (1, 2, 1, False), (3, 5, 1, False),
    ]  # fmt: skip


def test_totals_are_those_of_the_reports() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        rows, report = totals.summarize_kernels(trace.frame), trace.stats("cuda_gpu_kern_sum")
        assert sorted(rows.rows()) == sorted(report.select("Name", "Total Time (ns)", "Instances").rows())
        assert rows["time_ns"].is_sorted(descending=True)
        memory = totals.summarize_memory_operations(trace.frame)
        assert memory["time_ns"].sum() == trace.stats("cuda_gpu_mem_time_sum")["Total Time (ns)"].sum()
        assert memory["bytes"].sum() == sum(trace.frame(t).collect()["bytes"].sum() for t in ("memcpys", "memsets"))
        assert memory["name"].to_list() == ["Host-to-Device", "Memset", "Device-to-Host", "Device-to-Device"]


def test_kernels_of_nsight_compute() -> None:
    with tk.load(FIXTURES / "ncu" / "ncu_basic.ncu-rep") as trace:
        rows = totals.summarize_kernels(trace.frame)
        assert rows["time_ns"].sum() == trace.frame("ncu_launches").collect()["duration_ns"].sum()


def test_the_group_tree_has_the_values_of_the_tables() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        rolled, tables = get_rollup(trace._plan), trace.rollup()
        nodes = trees.build_group_tree(rolled, "gpu_time_ns", None, 1000)
        groups = tables.frame("group_nodes").filter(pl.col("gpu_time_ns") > 0).collect()
        ops = tables.frame("ops").filter(pl.col("gpu_time_ns") > 0).collect()
        assert sorted(nodes.filter(pl.col("op_id").is_null()).select("path", "value").rows()) == sorted(
            groups.select("path", "gpu_time_ns").rows()
        )
        leaves = nodes.filter(pl.col("op_id").is_not_null())
        assert dict(leaves.select("op_id", "value").iter_rows()) == dict(ops.select("op_id", "gpu_time_ns").iter_rows())
        above = nodes.select(parent="node", upper="path", side="direction")
        placed = leaves.join(above, on="parent")
        assert placed.height == leaves.height
        assert placed.filter(pl.col("upper") + pl.col("name") != pl.col("path")).is_empty()
        assert placed.filter(pl.col("side").ne_missing(pl.col("direction"))).is_empty()
        assert widths_of(nodes)[0] == nodes["width"][0]
        forward = trees.build_group_tree(rolled, "gpu_time_ns", "fprop", 1000)
        assert set(forward["direction"]) == {None, "fprop"}
        assert forward["value"][0] == groups.filter(level=1, direction="fprop")["gpu_time_ns"].sum()


def widths_of(nodes: pl.DataFrame) -> dict[int, int]:
    """Widths of nodes by adding up what they own, from the bottom."""
    widths = dict(nodes.select("node", "own").iter_rows())
    for node, parent in reversed(nodes.select("node", "parent").rows()):
        if parent is not None:
            widths[parent] += widths[node]
    return widths


forests = st.lists(st.tuples(st.integers(0, 30), st.integers(-2, 20)), min_size=1, max_size=25)


@given(forests, st.integers(1, 30))
def test_the_largest_nodes_keep_their_ancestors(drawn: list[tuple[int, int]], limit: int) -> None:
    parents = [None, *(up % n for n, (up, _) in enumerate(drawn[1:], 1))]
    nodes = pl.DataFrame(
        {"node": range(len(drawn)), "parent": parents, "value": [v for _, v in drawn]},
        schema={"node": pl.Int64, "parent": pl.Int64, "value": pl.Int64},
    )
    expected = dict.fromkeys(range(len(drawn)), 0)
    for node in reversed(range(len(drawn))):
        below = sum(expected[n] for n, p in enumerate(parents) if p == node)
        expected[node] = max(drawn[node][1], below, 0)
    found = trees.select_largest_nodes(nodes, limit)
    assert found.height == min(limit, sum(w > 0 for w in expected.values()))
    assert dict(found.select("node", "width").iter_rows()).items() <= expected.items()
    assert widths_of(found) == dict(found.select("node", "width").iter_rows())
    assert found["width"].to_list() == sorted((w for w in expected.values() if w), reverse=True)[:limit]
    assert set(found["parent"].drop_nulls()) <= set(found["node"])


def test_range_paths_have_the_gpu_time_of_the_correlated_ranges() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        ranges = trace.correlate().frame("nvtx_ranges")
        nodes = trees.build_tree_of_largest_ranges(ranges, 10_000)
        rows = ranges.select("range_id", "parent_id", pl.col("name").cast(pl.String), "gpu_time_ns").collect().rows()
        paths: dict[int | None, str] = {None: ""}
        expected: Counter[str] = Counter()
        for number, parent, name, time in sorted(rows, key=lambda r: r[0]):
            paths[number] = f"{paths[parent]}/{name.partition(', seq = ')[0].partition(', op_id = ')[0]}"
            expected[paths[number][1:]] += time
        assert set(nodes["metric"]) == {"gpu_time_ns"}
        found = dict(nodes.filter(pl.col("path") != "").select("path", "value").iter_rows())
        assert found == {path: time for path, time in expected.items() if time}
        root = nodes.row(0, named=True)
        top = ranges.filter(pl.col("parent_id").is_null()).collect()["gpu_time_ns"].sum()
        assert (root["path"], root["value"]) == ("", top)
        assert trees.build_tree_of_largest_ranges(ranges, 20).height == 20


def test_very_deep_ranges_are_part_of_those_around_them() -> None:
    names = [f"r{depth}" for depth in range(1, trees.MAX_DEPTH + 3)]
    rows = pl.DataFrame({"range_id": range(len(names)), "name": pl.Series(names, dtype=pl.Categorical)}).select(
        "range_id",
        "name",
        parent_id=pl.col("range_id").shift(1),
        depth=pl.col("range_id").cast(pl.Int32) + 1,
        gpu_time_ns=pl.lit(5, pl.Int64),
        start_ns=pl.lit(0, pl.Int64),
        end_ns=pl.lit(9, pl.Int64),
    )
    nodes = trees.build_tree_of_largest_ranges(rows.lazy(), 1000)
    assert nodes.height == trees.MAX_DEPTH + 1
    assert nodes["own"].to_list() == [0] * trees.MAX_DEPTH + [5]
    assert nodes["path"][-1].startswith("r1/r2/r3/")


def test_ranges_without_activities_have_durations() -> None:
    with tk.load(FIXTURES / "cpu_only.sqlite") as trace:
        nodes = trees.build_tree_of_largest_ranges(trace.correlate().frame("nvtx_ranges"), 10)
        assert nodes.select("metric", "value").rows() == [("duration_ns", 10095341)] * 2
    with tk.load(FIXTURES / "empty.sqlite") as trace:
        assert trees.build_tree_of_largest_ranges(trace.correlate().frame("nvtx_ranges"), 10).is_empty()


def test_names_with_slashes_are_whole_names_of_groups() -> None:
    ranges = nvtx(("a/b", 1, 0, 100), ("c", 1, 10, 90), ("c", 1, 110, 190))
    rolled = Rollup.from_frames(declared(nvtx_ranges=ranges, **launches((1, 20, 30, 0))), dialect="plain")
    nodes = trees.build_group_tree(rolled, "gpu_time_ns", None, 10)
    assert "a/b" in nodes["name"].to_list()


def test_groups_with_shortened_paths_have_names_and_parents() -> None:
    names = [f"{letter} {'x' * 40}" for letter in "abcde"]
    ranges = nvtx(*((name, 1, n, 100 - n) for n, name in enumerate(names)))
    with mock.patch.object(name_trees, "MAX_PATH_CHARS", 100):
        rolled = Rollup.from_frames(declared(nvtx_ranges=ranges, **launches((1, 20, 30, 0))), dialect="plain")
        nodes = trees.build_group_tree(rolled, "gpu_time_ns", None, 10)
    groups = nodes.filter(pl.col("op_id").is_null())
    parents = dict(groups.select("node", "parent").rows())
    depth = lambda node: 0 if parents[node] is None else 1 + depth(parents[node])  # noqa: E731
    labels = [name for _, name in sorted((depth(node), name) for node, name in groups.select("node", "name").rows())]
    assert labels[:3] == ["", *names[:2]]
    assert [re.sub("^.*…[0-9a-f]{12}/?", "…", name) for name in labels[3:]] == [
        "……" + name[-36:] for name in names[2:4]
    ]
    leaf = nodes.filter(pl.col("op_id").is_not_null()).row(0, named=True)
    assert depth(leaf["parent"]) == 4
    assert nodes["path"].n_unique() == nodes.height


@given(st.lists(st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), st.integers(1, 9)), max_size=8))
def test_weights_of_calls_are_those_of_the_stacks(weighted: list[tuple[list[str], int]]) -> None:
    paths = sorted({tuple(s[:n]) for s, _ in weighted for n in range(len(s) + 1)} | {()}, key=lambda p: (len(p), p))
    number = {path: n for n, path in enumerate(paths)}
    own = [sum(w for s, w in weighted if tuple(s) == path) for path in paths]
    arrays = (
        [number[path[:-1]] for path in paths],
        [len(path) for path in paths],
        ["abc".index(path[-1]) if path else 0 for path in paths],
        own,
    )
    functions = pl.DataFrame({"name": list("abc"), "module": ["m", None, "m"]})
    calls = stacks.CallTree(*(np.array(a, np.int64) for a in arrays), functions)
    totals = {name: (own, total) for name, _, own, total in stacks.compute_function_totals(calls).iter_rows()}
    used = {name for s, _ in weighted for name in s}
    assert totals == {
        name: (sum(w for s, w in weighted if s[-1] == name), sum(w for s, w in weighted if name in s)) for name in used
    }
    tree = stacks.select_heaviest_calls(calls, 1000)
    assert tree.select("node", "value", "count").sort("node").rows() == [
        (number[p], sum(w for s, w in weighted if tuple(s[: len(p)]) == p), own[number[p]]) for p in paths if weighted
    ]
    assert list(tree["name"]) == [paths[n][-1] if n else None for n in tree["node"]]
    assert tree["own"].sum() == sum(w for _, w in weighted)
