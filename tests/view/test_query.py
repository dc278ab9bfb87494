"""Pages of rows: filters, order, sums, shares and exact integers; and the caches of captures."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.view.support import BIG, FIXTURES, NAMES, captures_of, frame_of, hostile_tables, table
from tracekit.errors import TracekitError
from tracekit.view import query as queries
from tracekit.view.captures import Cache, ViewedCaptures
from tracekit.view.datasets import DATASETS, find_dataset
from tracekit.view.query import Query
from tracekit.view.state import CaptureAggregation

AT = CaptureAggregation()
KERNELS = "table:kernels"


@pytest.fixture(scope="module")
def hostile() -> Iterator[ViewedCaptures]:
    captures = captures_of(tk.Trace.from_tables(hostile_tables()))
    yield captures
    captures.close()


@pytest.fixture(scope="module")
def amp() -> Iterator[ViewedCaptures]:
    captures = captures_of(tk.load(FIXTURES / "train_amp.sqlite"))
    yield captures
    captures.close()


def rows(captures: ViewedCaptures, name: str, start: int = 0, stop: int = 1000, **values: str) -> list[dict[str, Any]]:
    return queries.load_page(captures, Query(name, AT, **values), start, stop).rows


def order(*columns: str) -> str:
    return ",".join(f"{c.strip('-')}:{'desc' if c.startswith('-') else 'asc'}" for c in columns)


def test_pages_are_slices_of_the_rows(amp: ViewedCaptures) -> None:
    frame = frame_of(amp.all[0].trace, "kernels")
    page = queries.load_page(amp, Query(KERNELS, AT), 5, 25)
    assert (page.matching, page.total) == (frame.height, frame.height)
    assert [row["kernel_id"] for row in page.rows] == frame["kernel_id"][5:25].to_list()
    assert [row["_id"] for row in page.rows] == [str(i) for i in range(5, 25)]
    assert rows(amp, KERNELS, frame.height, frame.height + 10) == []
    assert rows(amp, KERNELS, 10**9, 10**9) == []


def test_a_page_is_filtered_searched_and_sorted_at_once(amp: ViewedCaptures) -> None:
    frame = frame_of(amp.all[0].trace, "kernels").with_row_index("_row")
    name = pl.col("short_name").cast(pl.String)
    wanted = frame.filter(
        (pl.col("stream_id") > 0) & name.str.to_lowercase().str.contains("e") & (pl.col("grid_x") < 500)
    )
    wanted = wanted.sort(-pl.col("grid_x"), name, "_row")
    values = {
        "filter": json.dumps(
            {
                "stream_id": {"type": "greaterThan", "filter": 0},
                "short_name": {"type": "contains", "filter": "E"},
            }
        ),
        "condition": "grid_x < 500",
        "sort": order("-grid_x", "short_name"),
    }  # fmt: skip
    page = queries.load_page(amp, Query(KERNELS, AT, **values), 0, 1000)
    assert [row["_id"] for row in page.rows] == [str(i) for i in wanted["_row"]][:1000]
    assert 0 < page.matching == wanted.height < page.total == frame.height
    search = queries.load_page(amp, Query(KERNELS, AT, search="GEMM"), 0, 1)
    text = [c for c, kind in frame.schema.items() if kind in (pl.String, pl.Categorical)]
    found = pl.any_horizontal(pl.col(c).cast(pl.String).str.contains("(?i)gemm") for c in text)
    assert search.matching == frame.filter(found).height > 0


@settings(max_examples=examples(160))
@given(st.lists(st.sampled_from([None, 0, 1, BIG, BIG + 1, -BIG]), max_size=8), st.booleans())
def test_orders_are_stable_and_nulls_are_last(values: list[int | None], descending: bool) -> None:
    frame = pl.DataFrame({"n": values}, schema={"n": pl.Int64})
    query = Query(KERNELS, AT, sort=order("-n" if descending else "n"))
    numbers = [i for i, v in enumerate(values) if v is not None]
    numbers.sort(key=lambda i: values[i] or 0, reverse=descending)
    if descending:  # equal values keep their order
        numbers.sort(key=lambda i: (-(values[i] or 0), i))
    assert queries._compute_matching_row_numbers(frame, query).to_list() == [
        *numbers,
        *(i for i, v in enumerate(values) if v is None),
    ]


def test_large_integers_are_exact(hostile: ViewedCaptures) -> None:
    shown = rows(hostile, KERNELS)
    assert [row["grid_id"] for row in shown] == [BIG + 2 * i for i in range(len(NAMES))]
    assert [row["start_ns"] for row in shown] == [1000 * i for i in range(len(NAMES))]
    assert [row["name"] for row in shown] == list(NAMES)
    exact = rows(hostile, KERNELS, condition=f"grid_id = {BIG + 2}")
    assert [row["kernel_id"] for row in exact] == [2]


def test_sums_and_shares_are_exact() -> None:
    sizes = [BIG, 1, 2**40, BIG]
    ops = [{"memcpy_id": i, "bytes": n, "start_ns": i, "end_ns": i + 1, "copy_kind": k} for i, (n, k) in
           enumerate(zip(sizes, "aabb", strict=True))]  # fmt: skip
    captures = captures_of(tk.Trace.from_tables({"memcpys": table("memcpys", ops)}))
    assert queries.load_page(captures, Query("memcpys", AT, sort="bytes:asc"), 0, 10).sums == []
    whole, share = queries.load_page(captures, Query("memcpys", AT, condition="TRUE"), 0, 10).sums
    assert (whole["bytes"], whole["duration_ns"]) == (sum(sizes), 4)
    assert (whole["_label"], share["_label"]) == ("Sum of 4 rows", "Share of all 4 rows")
    assert share["bytes"] == share["duration_ns"] == "100.0%"
    whole, share = queries.load_page(captures, Query("memcpys", AT, condition="copy_kind = 'a'"), 0, 10).sums
    assert (whole["bytes"], whole["duration_ns"], whole["_label"]) == (BIG + 1, 2, "Sum of 2 rows")
    assert (share["bytes"], share["duration_ns"]) == (f"{(BIG + 1) * 100 / sum(sizes):.1f}%", "50.0%")
    one = queries.load_page(captures, Query("memcpys", AT, condition="memcpy_id = 0"), 0, 10)
    assert one.sums[0]["_label"] == "Sum of 1 row"
    only = captures_of(tk.Trace.from_tables({"memcpys": table("memcpys", ops[:1])}))
    labels = [row["_label"] for row in queries.load_page(only, Query("memcpys", AT, condition="TRUE"), 0, 10).sums]
    assert labels == ["Sum of 1 row", "Share of 1 row"]
    only.close()
    none = queries.load_page(captures, Query("memcpys", AT, condition="FALSE"), 0, 10)
    assert (none.rows, none.matching, none.sums[0]["bytes"], none.sums[1]["bytes"]) == ([], 0, 0, "0.0%")
    captures.close()


def test_sums_of_short_integers_do_not_overflow() -> None:
    frame = pl.DataFrame(
        {"count": [2**31 - 1] * 3, "name": ["a", "b", "c"]}, schema={"count": pl.Int32, "name": pl.String}
    )
    assert queries.compute_summary_rows(frame, None)[0]["count"] == 3 * (2**31 - 1)
    assert queries.compute_summary_rows(frame.select("name"), None) == []
    long = pl.DataFrame({"bytes": [2**62, 2**62, -(2**62), 2**62]})
    matching = pl.Series([0, 1])
    assert [row["bytes"] for row in queries.compute_summary_rows(long, matching)] == [2**63, "100.0%"]
    for name in ("wall_time_ns", "in_stack_time_ns", "average_ns"):
        assert queries.compute_summary_rows(pl.DataFrame({name: [1]}), None) == []
    assert queries.compute_summary_rows(frame.clear(), None) == []
    zero = pl.DataFrame({"count": [0, 0]})
    assert queries.compute_summary_rows(zero, None)[1]["count"] == ""


def test_cells_of_every_type() -> None:
    frame = pl.DataFrame(
        {"b": [True, False, None], "x": [1.5, float("nan"), None], "l": [[1, 2], [], None], "s": [{"a": 1}] * 3,
         "c": pl.Series(["<b>", None, "x"], dtype=pl.Categorical()), "n": [BIG, None, 1]},
        schema_overrides={"l": pl.List(pl.Int64)},
    )  # fmt: skip
    shown = queries.to_cell_values(frame).to_dict(as_series=False)
    assert shown == {
        "b": ["yes", "no", None],
        "x": [1.5, None, None],
        "l": ["[1, 2]", "[]", None],
        "s": ['{"a": 1}'] * 3,
        "c": ["<b>", None, "x"],
        "n": [BIG, None, 1],
    }


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 1001)])
def test_pages_that_are_not_valid(hostile: ViewedCaptures, start: int, stop: int) -> None:
    with pytest.raises(TracekitError, match="at most 1000 rows"):
        queries.load_page(hostile, Query(KERNELS, AT), start, stop)


@pytest.mark.parametrize("text", ["[", "5", "[]", '"x"', "[" * 100_000, "9" * 5000])
def test_filters_that_are_not_json(hostile: ViewedCaptures, text: str) -> None:
    with pytest.raises(TracekitError, match="JSON"):
        queries.load_page(hostile, Query(KERNELS, AT, filter=text), 0, 1)


def test_tables_that_do_not_exist() -> None:
    for name in ("nope", "", "kernels2"):
        with pytest.raises(TracekitError, match=f"the viewer has no table {name!r}"):
            find_dataset(name)
    with pytest.raises(TracekitError, match="unknown report 'nope'"):
        find_dataset("report:nope")


def test_a_page_can_show_any_report(amp: ViewedCaptures) -> None:
    assert find_dataset("report:cuda_api_sum").title == "CUDA API calls by function"
    rows, same = (queries.load_rows(amp, Query(name, AT)) for name in ("report:cuda_api_sum", "api"))
    assert rows.frame.equals(same.frame)
    assert rows.descriptions["total_time_ns"] == "Sum of the durations."


@pytest.mark.slow
@pytest.mark.core
def test_every_table_computes_its_rows_or_says_why_not(amp: ViewedCaptures) -> None:
    """The rows that a page shows are those of all rows, for every table of every page."""
    with_rows = set()
    for name in DATASETS:
        try:
            page = queries.load_page(amp, Query(name, AT), 0, 3)
        except TracekitError:
            continue
        assert len(page.rows) == min(page.total, 3), name
        if page.rows:
            with_rows.add(name)
            json.dumps(page.rows)
    assert with_rows >= {
        "ops",
        "op_types",
        "groups",
        "iterations",
        "kernels",
        "launches",
        "api",
        "memcpys",
        "nvtx",
        "gpus",
    }


def test_arguments_select_rows(amp: ViewedCaptures) -> None:
    trace = amp.all[0].get_aggregated_trace(AT)
    op = frame_of(trace, "ops").sort("gpu_time_ns", descending=True)["op_id"][0]
    instances = frame_of(trace, "op_instances").filter(pl.col("op_id").cast(pl.String) == op)
    assert len(rows(amp, "op_instances", arguments=(("op_id", op),))) == instances.height > 0
    kernels = trace.stats("iteration").filter(pl.col("Iteration") == 1)
    assert len(rows(amp, "iteration_kernels", arguments=(("iteration", "1"),))) == kernels.height > 0
    first = rows(amp, "kernels")[0]
    launches = rows(amp, "launches", arguments=tuple((n, first[n]) for n in ("block", "grid", "name")))
    assert len(launches) == first["launches"]
    assert sum(each["duration_ns"] for each in launches) == first["total_time_ns"]
    for argument in ("x", "", "9" * 30, "²"):
        with pytest.raises(TracekitError, match="must be an integer of at most 18 digits"):
            rows(amp, "iteration_kernels", arguments=(("iteration", argument),))


def test_a_cache_computes_each_value_once_and_forgets_the_oldest() -> None:
    computed: list[int] = []
    cache: Cache[int, int] = Cache(3, size=lambda value: value, max_bytes=100)

    def get(key: int) -> int:
        return cache.get(key, lambda: computed.append(key) or key)

    threads = [threading.Thread(target=get, args=(1,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert computed == [1]
    for key in (2, 3, 1, 4, 1, 2):
        get(key)
    assert computed == [1, 2, 3, 4, 2]
    assert get(1000) == 1000  # the newest is kept even if it is too large
    computed.clear()
    assert (get(1000), get(2), computed) == (1000, 2, [2])


def test_a_value_that_cannot_be_computed_is_computed_again() -> None:
    cache: Cache[str, int] = Cache(3)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert cache.get("a", lambda: 5) == 5


def test_captures_know_what_they_have(hostile: ViewedCaptures) -> None:
    capture = hostile.all[0]
    assert capture.has_rows_in_any("memcpys", "kernels")
    assert not capture.has_rows_in_any("memcpys")
    assert not capture.has_rows_in_any("nope")


def test_values_that_cannot_be_searched_are_an_error() -> None:
    frame = pl.DataFrame({"list": [[1]]})
    with pytest.raises(TracekitError, match="the search text cannot be evaluated for the values of the table"):
        queries._compute_matching_row_numbers(frame, Query(KERNELS, AT, search="1"))
    query = Query(KERNELS, AT, search="1", filter='{"list": {"type": "contains", "filter": "1"}}', sort=order("list"))
    with pytest.raises(TracekitError, match="the filter of 'list' or the search text or the sort order cannot be"):
        queries._compute_matching_row_numbers(frame, query)
