"""Correlation against brute force, and its traps one by one."""

from __future__ import annotations

import re
from collections import defaultdict
from unittest import mock

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.frames import declared, launches, nvtx
from tracekit import schemas
from tracekit.core import correlate, trees
from tracekit.core.correlate import MAX_PATH_LEVELS, Correlation, build_range_paths
from tracekit.core.relations import ACTIVITIES, find_first_row_numbers, find_only_row_numbers
from tracekit.plan.stages import list_columns_for_correlation
from tracekit.system import memory, sorting

ADDED = [
    c
    for c in schemas.correlated_schema("kernels").names
    if c not in schemas.table("kernels").names and not c.startswith("capture_")  # see layers/test_nodes.py
]
ADDED_TO_RANGES = [
    c for c in schemas.correlated_schema("nvtx_ranges").names if c not in schemas.table("nvtx_ranges").names
]

small = st.integers(0, 12)
processes = st.sampled_from([1, 2])
threads = st.sampled_from([10, 11])


@st.composite
def captures(draw: st.DrawFn) -> dict[str, pl.DataFrame]:
    """A small capture: ids reused by both processes, calls with no or many activities, every kind of range."""
    calls = draw(st.lists(st.tuples(processes, threads, st.integers(1, 5), small, st.integers(0, 3)), max_size=8))
    kernels = draw(st.lists(st.tuples(st.sampled_from([1, 2, None]), st.integers(1, 6), small, small), max_size=8))
    ranges = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["push_pop", "push_pop", "start_end"]),
                processes,
                threads,
                st.integers(0, 1),
                small,
                st.one_of(st.none(), small),
                st.sampled_from(["a", "b", None]),
            ),
            max_size=8,
        )
    )
    return {
        "api_calls": pl.DataFrame(
            [(i + 1, s, s + d, p, t, c) for i, (p, t, c, s, d) in enumerate(calls)],
            schema=["api_call_id", "start_ns", "end_ns", "process_id", "thread_id", "correlation_id"],
            orient="row",
        ).cast(pl.Int64),
        "kernels": pl.DataFrame(
            [(p, c, s, s + d) for p, c, s, d in kernels],
            schema=["process_id", "correlation_id", "start_ns", "end_ns"],
            orient="row",
        ).cast(pl.Int64),
        "nvtx_ranges": pl.DataFrame(
            [(i + 101, *r) for i, r in enumerate(ranges)],
            schema={
                "range_id": pl.Int64,
                "kind": pl.Categorical,
                "process_id": pl.Int64,
                "thread_id": pl.Int64,
                "domain_id": pl.Int64,
                "start_ns": pl.Int64,
                "end_ns": pl.Int64,
                "name": pl.Categorical,
            },
            orient="row",
        ),
    }


def correlation(tables: dict[str, pl.DataFrame]) -> Correlation:
    empty = {n: pl.DataFrame(schema=schemas.polars_schema(schemas.table(n))) for n in ACTIVITIES}
    same = {"process_id": pl.Int64, "thread_id": pl.Int64}
    frames = {n: f.cast({c: t for c, t in same.items() if c in f.columns}) for n, f in (empty | tables).items()}
    return Correlation(lambda name: frames[name].lazy())


def call_of(kernel: dict, calls: list[dict]) -> dict | None:
    key = ("process_id", "correlation_id")
    return next((c for c in calls if kernel["process_id"] and all(c[k] == kernel[k] for k in key)), None)


def open_ranges(call: dict, ranges: list[dict], kind: str, same: tuple[str, ...]) -> list[dict]:
    return [
        r
        for r in ranges
        if r["kind"] == kind
        and all(r[c] == call[c] for c in same)
        and r["start_ns"] <= call["start_ns"]
        and (r["end_ns"] is None or call["start_ns"] < r["end_ns"])
    ]


def nested(ranges: list[dict]) -> list[dict]:
    """Ranges from the outermost inwards: by start, the longer first, then by number."""
    return sorted(
        ranges, key=lambda r: (r["start_ns"], -(10**18 if r["end_ns"] is None else r["end_ns"]), r["range_id"])
    )


def last(ranges: list[dict]) -> int | None:
    return max(((r["start_ns"], r["range_id"]) for r in ranges), default=(None, None))[1]


@given(captures())
def test_kernels_get_their_call_and_the_ranges_around_it(tables) -> None:
    linked = correlation(tables).compute_columns("kernels", ADDED).to_dicts()
    calls, ranges = tables["api_calls"].to_dicts(), tables["nvtx_ranges"].to_dicts()
    assert len(linked) == tables["kernels"].height
    for kernel, link in zip(tables["kernels"].to_dicts(), linked, strict=True):
        call = call_of(kernel, calls)
        if call is None:
            assert {v for k, v in link.items() if k != "range_depth"} == {None}
            assert link["range_depth"] == 0
            continue
        assert link["api_call_id"] == call["api_call_id"]
        assert (link["api_start_ns"], link["api_end_ns"]) == (call["start_ns"], call["end_ns"])
        assert link["thread_id"] == call["thread_id"]
        around = nested(open_ranges(call, ranges, "push_pop", ("process_id", "thread_id")))
        assert link["range_id"] == (around[-1]["range_id"] if around else None)
        assert link["range_depth"] == len(around)
        assert link["range_path"] == ("/".join(r["name"] or "" for r in around) if around else None)
        assert link["start_end_range_id"] == last(open_ranges(call, ranges, "start_end", ("process_id",)))
        named = next((r["name"] for r in ranges if r["range_id"] == link["range_id"]), None)
        assert link["range_name"] == named
        assert (link["range_depth"] == 0) == (link["range_id"] is None) == (link["range_path"] is None)


@given(captures())
def test_ranges_are_projected_on_what_was_launched_inside_them(tables) -> None:
    rows = correlation(tables).compute_columns("nvtx_ranges", ADDED_TO_RANGES).to_dicts()
    calls = tables["api_calls"].to_dicts()
    launched = [(k, call) for k in tables["kernels"].to_dicts() if (call := call_of(k, calls))]
    for r, row in zip(tables["nvtx_ranges"].to_dicts(), rows, strict=True):
        same = ("process_id", "thread_id") if r["kind"] == "push_pop" else ("process_id",)
        inside = [k for k, call in launched if open_ranges(call, [r], r["kind"], same)]
        assert row["gpu_op_count"] == len(inside)
        assert row["gpu_time_ns"] == sum(k["end_ns"] - k["start_ns"] for k in inside)
        assert row["gpu_start_ns"] == min((k["start_ns"] for k in inside), default=None)
        assert row["gpu_end_ns"] == max((k["end_ns"] for k in inside), default=None)
        assert (row["path"] is None) == (row["depth"] is None) == (r["kind"] == "start_end")


@st.composite
def crossings(draw: st.DrawFn) -> dict[str, pl.DataFrame]:
    """Launches on two streams within ranges of two threads, most of which cross."""
    thread = st.integers(1, 2)
    ranges = draw(st.lists(st.tuples(st.sampled_from("abc"), thread, small, st.integers(0, 12)), max_size=12))
    called = draw(st.lists(st.tuples(thread, st.integers(0, 20), st.integers(1, 3), st.just(0)), max_size=12))
    tables = launches(*((t, at, at + size, device) for t, at, size, device in called))
    numbers = {"context_id": 1, "stream_id": pl.int_range(pl.len()) % 2}
    return {
        "nvtx_ranges": nvtx(*((name, t, start, start + size) for name, t, start, size in ranges)),
        "api_calls": tables["api_calls"],
        "kernels": tables["kernels"].with_columns(**numbers) if called else tables["kernels"],
    }


def ranges_around(tables: dict[str, pl.DataFrame]) -> list[list[dict]]:
    """The push/pop ranges around each launch of ``crossings``, from the outermost inwards."""
    ranges, calls = tables["nvtx_ranges"].to_dicts(), tables["api_calls"].to_dicts()
    return [nested(open_ranges(c, ranges, "push_pop", ("process_id", "thread_id"))) for c in calls]


@given(crossings(), st.sampled_from([1, 2, 3, MAX_PATH_LEVELS]), st.sampled_from([2, 1 << 20]))
def test_projections_on_streams_count_what_was_launched_inside_the_outermost_ranges(tables, levels, rows) -> None:
    with mock.patch.object(correlate, "MAX_PATH_LEVELS", levels), mock.patch.object(sorting, "BLOCK_ROWS", rows):
        projected = Correlation(declared(**tables)).compute_projections()
    inside = defaultdict(list)
    for kernel, around in zip(tables["kernels"].to_dicts(), ranges_around(tables), strict=True):
        for r in around[:levels]:
            inside[r["range_id"], kernel["stream_id"]].append((kernel["start_ns"], kernel["end_ns"]))
    columns = ["range_id", "stream_id", "start_ns", "end_ns", "gpu_op_count", "gpu_time_ns"]
    assert projected.select(columns).rows() == [
        (*key, min(ran)[0], max(end for _, end in ran), len(ran), sum(end - start for start, end in ran))
        for key, ran in sorted(inside.items())
    ]


def test_each_of_two_crossing_ranges_is_projected_on_a_launch_in_both() -> None:
    kernels = launches((1, 7, 8, 0))
    kernels["kernels"] = kernels["kernels"].with_columns(context_id=1, stream_id=7)
    found = Correlation(declared(nvtx_ranges=nvtx(("a", 1, 0, 10), ("b", 1, 5, 15)), **kernels)).compute_projections()
    assert found.select("name", "gpu_op_count").cast({"name": pl.String}).rows() == [("a", 1), ("b", 1)]


def test_the_next_open_range_of_two_crossing_ones_is_no_parent() -> None:
    ranges = correlate.Ranges(declared(nvtx_ranges=nvtx(("a", 1, 0, 10), ("b", 1, 5, 15), ("c", 1, 6, 8))))
    threads = ranges.push_pop_ranges.select("process_id", "thread_id")
    points = threads.with_columns(api_start_ns=7, range_row=pl.int_range(pl.len(), dtype=pl.UInt32))
    assert ranges.find_outer_rows(points).to_list() == [None, 0, 1]
    assert ranges.parent.to_list() == [None, None, 1]


@pytest.mark.parametrize("stream", [7, None])
def test_start_end_ranges_are_projected_on_the_launches_of_all_threads_during_them(stream: int | None) -> None:
    kernels = launches((1, 7, 8, 0), (2, 20, 21, 0), (1, 40, 41, 0))
    ids = {name: pl.lit(stream, pl.Int64) for name in ("context_id", "stream_id")}
    kernels["kernels"] = kernels["kernels"].with_columns(**ids)
    ranges = nvtx(("a", 1, 0, 30), ("b", 1, 10, 15)).with_columns(kind=pl.lit("start_end"))
    found = Correlation(declared(nvtx_ranges=ranges, **kernels)).compute_projections()
    columns = ["name", "start_ns", "end_ns", "gpu_op_count", "gpu_time_ns", "context_id", "stream_id"]
    assert found.select(columns).cast({"name": pl.String}).rows() == [("a", 8, 22, 2, 2, stream, stream)]


@given(captures())
def test_columns_in_temporary_files_are_those_in_memory(tables) -> None:
    added = {"kernels": ADDED, "nvtx_ranges": ADDED_TO_RANGES}
    kept = {name: correlation(tables).compute_columns(name, columns) for name, columns in added.items()}
    with memory.limit_memory(0), mock.patch.object(correlate, "_PROJECTED_ROWS", 2):
        linked = correlation(tables)
        for name, columns in added.items():
            assert linked.compute_columns(name, columns).equals(kept[name])


def test_the_calls_of_a_table_are_found_once() -> None:
    linked = Correlation(declared(nvtx_ranges=nvtx(("a", 1, 0, 10)), **launches((1, 7, 8, 0))))
    with mock.patch.object(correlate, "find_first_row_numbers", wraps=correlate.find_first_row_numbers) as found:
        linked.compute_projections()
        linked.compute_columns("nvtx_ranges", ["gpu_op_count"])
        linked.compute_columns("kernels", ["range_path"])
    assert found.call_count == len(ACTIVITIES)


@given(captures())
def test_a_path_is_that_of_the_parent_and_one_more_text(tables) -> None:
    rows = correlation(tables).compute_columns("nvtx_ranges", ADDED_TO_RANGES).to_dicts()
    named = tables["nvtx_ranges"].to_dicts()
    by_id = {r["range_id"]: row for r, row in zip(named, rows, strict=True)}
    for r, row in zip(named, rows, strict=True):
        if r["kind"] == "start_end":
            assert row["parent_id"] is None
            continue
        parent = by_id.get(row["parent_id"])
        assert row["path"] == (f"{parent['path']}/" if parent else "") + (r["name"] or "")
        assert row["depth"] == (parent["depth"] if parent else 0) + 1


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, None]), st.one_of(st.none(), st.integers(-3, 6)))),
    st.lists(st.tuples(st.sampled_from([1, 2, 3, None]), st.one_of(st.none(), st.integers(-5, 8)))),
    st.sampled_from([1, 10**15]),
)
def test_first_rows_finds_the_first_row_of_a_key(table, wanted, spread) -> None:
    schema = {"process_id": pl.Int32, "correlation_id": pl.Int64}
    table = [(p, None if c is None else c * spread) for p, c in table]
    wanted = [(p, None if c is None else c * spread) for p, c in wanted]
    frames = [pl.DataFrame(rows, schema, orient="row") for rows in (table, wanted)]
    first, only = find_first_row_numbers(*frames), find_only_row_numbers(*frames)
    assert first.to_list() == [table.index(k) if None not in k and k[1] != 0 and k in table else None for k in wanted]
    keys = [k for k in table if None not in k]
    assert (only is None) == (len(set(keys)) < len(keys) and bool(wanted))
    if only is not None:
        assert only.to_list() == [table.index(k) if None not in k and k in table else None for k in wanted]


extreme = st.one_of(st.none(), st.sampled_from([-(2**63), -(2**62), -1, 0, 1, 2**62 + 5, 2**63 - 2, 2**63 - 1]))


@given(*[st.lists(st.tuples(st.sampled_from([1, 2]), extreme), max_size=6)] * 2)
def test_correlation_ids_may_be_any_int64(table, wanted) -> None:
    schema = {"process_id": pl.Int64, "correlation_id": pl.Int64}
    found = find_first_row_numbers(
        pl.DataFrame(table, schema, orient="row"), pl.DataFrame(wanted, schema, orient="row")
    )
    assert found.to_list() == [table.index(k) if None not in k and k[1] != 0 and k in table else None for k in wanted]


def test_paths_below_the_deepest_level_end_in_an_ellipsis() -> None:
    n = MAX_PATH_LEVELS + 5
    parent = pl.Series([None, *range(n - 1)], dtype=pl.Int64)
    made = build_range_paths(parent, pl.Series(range(1, n + 1)), pl.Series(["x"] * n, dtype=pl.Categorical)).to_list()
    assert made[MAX_PATH_LEVELS - 1] == "/".join("x" * MAX_PATH_LEVELS)
    assert set(made[MAX_PATH_LEVELS:]) == {made[MAX_PATH_LEVELS - 1] + "/…"}


def test_every_row_keeps_its_place(capture) -> None:
    with tk.load(capture) as trace:
        linked = trace.correlate()
        for name in (*ACTIVITIES, "nvtx_ranges"):
            assert linked[name].select(trace[name].column_names).equals(trace[name])
            assert linked[name].schema.equals(schemas.arrow_schema(schemas.correlated_schema(name)))


@pytest.mark.parametrize("name", ACTIVITIES)
def test_every_activity_of_the_captures_finds_its_call(capture, name: str) -> None:
    with tk.load(capture) as trace:
        rows = trace.correlate().frame(name)
        if name == "memcpys":  # migrations of unified memory have no call
            rows = rows.filter(pl.col("virtual_address").is_null())
        assert rows.select(pl.col("api_call_id").null_count()).collect().item() == 0


def test_kernels_of_a_graph_launch_share_its_range() -> None:
    with tk.load("fixtures/graph_node.sqlite") as trace:
        kernels = trace.correlate().frame("kernels").collect()
    nodes = kernels.filter(pl.col("graph_node_id").is_not_null())
    assert nodes.height == 25
    assert nodes.group_by("range_name").len().sort("range_name").rows() == [(f"replay {i}", 5) for i in range(5)]


def test_both_processes_of_a_capture_keep_their_own_kernels() -> None:
    with tk.load("fixtures/ddp2.sqlite") as trace:
        kernels = trace.correlate().frame("kernels").collect()
        owners = trace.frame("api_calls").select("api_call_id", owner="process_id").collect()
    joined = kernels.join(owners, on="api_call_id")
    assert joined.height == kernels.height
    assert (joined["process_id"] == joined["owner"]).all()


def test_each_column_needs_only_the_tables_that_it_is_made_of() -> None:
    assert set(list_columns_for_correlation("nvtx_ranges", ("depth",))) == {"nvtx_ranges"}
    assert set(list_columns_for_correlation("kernels", ("api_start_ns",))) == {"kernels", "api_calls"}
    assert set(list_columns_for_correlation("kernels", ("range_path",))) == {"kernels", "api_calls", "nvtx_ranges"}
    assert set(list_columns_for_correlation("nvtx_ranges", ("gpu_time_ns",))) == {
        *ACTIVITIES,
        "api_calls",
        "nvtx_ranges",
    }
    with tk.load("fixtures/graph_node.sqlite") as trace:
        linked = trace.correlate()
        assert linked.table("nvtx_ranges", ["depth"])["depth"].to_pylist() == [1] * 11
        assert linked.table("kernels", ["api_start_ns"])["api_start_ns"].null_count == 0


@given(crossings(), st.sampled_from([1, 2, 3, MAX_PATH_LEVELS]), st.sampled_from([32, trees.MAX_PATH_CHARS]))
def test_paths_of_crossing_ranges_have_the_limits_of_nested_ones(tables, levels: int, size: int) -> None:
    ranges = tables["nvtx_ranges"].with_columns(name=pl.col("name").cast(pl.String).replace("c", "c" * 20))
    tables = {**tables, "nvtx_ranges": ranges}
    with (
        mock.patch.multiple(trees, MAX_LEVELS=levels, MAX_PATH_CHARS=size),
        mock.patch.object(correlate, "MAX_PATH_LEVELS", levels),
    ):
        made = Correlation(declared(**tables)).compute_columns("kernels", ["range_path", "range_depth"])
        expected = []
        for around in ranges_around(tables):
            depth = pl.Series(range(1, len(around) + 1), dtype=pl.Int32)
            names = pl.Series([r["name"] for r in around], dtype=pl.Categorical)
            paths = build_range_paths(depth.cast(pl.Int64).shift() - 1, depth, names)
            expected.append((paths[-1] if around else None, len(around)))
    assert made.cast({"range_path": pl.String}).rows() == expected


@pytest.mark.slow
def test_deep_paths_of_crossing_ranges_end_in_an_ellipsis() -> None:
    ranges = nvtx(*(("x", 1, i, 1000 + i) for i in range(300)))
    found = Correlation(declared(nvtx_ranges=ranges, **launches((1, 900, 901, 0), (1, 950, 951, 0))))
    made = found.compute_columns("kernels", ["range_path", "range_depth"]).cast({"range_path": pl.String})
    assert made.rows() == [("/".join([*["x"] * MAX_PATH_LEVELS, "…"]), 300)] * 2


def test_long_paths_of_crossing_ranges_are_shortened_in_the_middle() -> None:
    ranges = nvtx(*((f"{i:03}{'y' * 996}", 1, i, 1000 + i) for i in range(40)))
    found = Correlation(declared(nvtx_ranges=ranges, **launches((1, 900, 901, 0), (1, 950, 951, 0))))
    made = found.compute_columns("kernels", ["range_path", "range_depth"]).cast({"range_path": pl.String})
    assert made["range_path"].n_unique() == 1
    path = made["range_path"][0]
    assert path[: trees.MAX_PATH_CHARS // 2] == "/".join(ranges["name"])[: trees.MAX_PATH_CHARS // 2]
    assert re.fullmatch(f"…[0-9a-f]{{12}}/039{'y' * 996}", path[trees.MAX_PATH_CHARS // 2 :])


def test_the_path_of_crossing_ranges_holds_all_that_are_open() -> None:
    ranges = nvtx(("a", 1, 0, 100), ("b", 1, 10, 60), ("c", 1, 50, 90))
    found = Correlation(declared(nvtx_ranges=ranges, **launches(*((1, t, t + 1, 0) for t in (5, 20, 55, 70)))))
    made = found.compute_columns("kernels", ["range_path", "range_depth"]).cast({"range_path": pl.String})
    assert made.rows() == [("a", 1), ("a/b", 2), ("a/b/c", 3), ("a/c", 2)]
