"""The comparison of two traces against a brute force."""

from __future__ import annotations

import polars as pl
import pytest
import tracekit as tk
from tests.view.support import FIXTURES, captures_of, frame_of, running, show, table
from tracekit.core.compare import KINDS
from tracekit.errors import TracekitError
from tracekit.view import comparison
from tracekit.view.datasets import find_dataset
from tracekit.view.sources import TableInputs
from tracekit.view.state import CaptureAggregation, PageState


def trace_of(events: list[tuple[str | None, int]]) -> tk.Trace:
    rows = [{"kernel_id": i, "name": n, "start_ns": 5, "end_ns": 5 + d} for i, (n, d) in enumerate(events)]
    return tk.Trace.from_tables({"kernels": table("kernels", rows)})


@pytest.mark.thorough
def test_every_kind_of_comparison_is_that_of_diff() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as one, tk.load(FIXTURES / "ddp2.sqlite") as two:
        captures = captures_of(one, two)
        a, b = (captures.all[n].get_aggregated_trace(CaptureAggregation(n)) for n in (0, 1))
        for kind in KINDS:
            found = comparison.compare(captures, a, b, kind)
            assert comparison.compare(captures, a, b, kind) is found
            frame, wanted = (
                comparison.build_diff_table_rows(found, kind).frame,
                tk.diff(one, two, by=[kind]).frame(kind),
            )
            assert frame.sort("name").equals(wanted.select(frame.columns).sort("name"))
            assert set(wanted.columns) <= set(comparison.TITLES)
            same = comparison.compare(None, a, a, kind).frame(kind)
            assert set(same["status"]) <= {"equal"}
        kernels = frame_of(one, "kernels")
        found = comparison.compare(captures, a, a, "kernels")
        time = (kernels["end_ns"] - kernels["start_ns"]).sum()
        assert found.compute_totals("kernels") == (time, time)
        assert comparison.compare(captures, a, b, "nvtx").compute_totals("nvtx") is None
        groups = comparison.compare(captures, a, b, "groups").compute_totals("groups")
        root = a.frame("group_nodes").filter(pl.col("parent_id").is_null()).collect()["gpu_time_ns"][0]
        assert groups is not None
        assert groups[0] == root
        part = one.correlate().rollup(iterations=(1, 1))
        some = comparison.compare(None, a, part, "kernels").frame("kernels")
        assert some["count_b"].sum() == kernels.filter(kernels["iteration"] == 1).height > 0


@pytest.mark.slow
def test_the_other_side_is_the_next_capture() -> None:
    captures = captures_of(trace_of([("a", 1)]), trace_of([("b", 2)]))
    assert comparison.parse_compared_aggregation(
        captures, PageState("compare", CaptureAggregation(0))
    ) == CaptureAggregation(1)
    assert comparison.parse_compared_aggregation(
        captures, PageState("compare", CaptureAggregation(1))
    ) == CaptureAggregation(0)
    chosen = PageState(
        "compare", CaptureAggregation(0), {"other_capture": "0", "other_iterations": "1:2", "other_key_op": "x"}
    )
    assert comparison.parse_compared_aggregation(captures, chosen) == CaptureAggregation(0, 1, 2, "x")
    trace = captures.all[0].get_aggregated_trace(CaptureAggregation())
    rows = find_dataset("comparison").read_rows(TableInputs(trace, {"by": "kernels", "other_capture": "1"}, captures))
    assert dict(rows.frame.select("name", "status").rows()) == {"a": "gone", "b": "new"}
    for arguments in ({}, {"by": "nope"}, {"by": "kernels", "other_capture": "7"}):
        with pytest.raises(TracekitError):
            find_dataset("comparison").read_rows(TableInputs(trace, arguments, captures))
    captures.close()


@pytest.mark.many(1)
@pytest.mark.parametrize("last", [1, 3])
def test_each_column_has_one_base(last: int) -> None:
    """If the numbers of iterations differ, the columns per iteration come first, and the others are totals."""
    with tk.load(FIXTURES / "train_amp.sqlite") as one:
        part = one.correlate().rollup(iterations=(1, last))
        every = one.correlate().rollup(include_warm_up=True)
        differences = comparison.compare(None, every, part, "kernels")
        rows = comparison.build_diff_table_rows(differences, "kernels")
        titles = list(rows.titles.values())
        assert titles.index("Relative change per iteration") < titles.index("Relative change, total")
        assert rows.descriptions["status"].startswith("The status compares times per iteration, because")
        for row in rows.frame.iter_rows(named=True):
            for prefix in ("", "iteration_"):
                percent = row[f"{prefix}change_percent"]
                assert percent is None or (percent > 0) == (row[f"{prefix}change_ns"] > 0)
            if row["status"] in ("slower", "faster"):
                assert (row["iteration_change_ns"] > 0) == (row["status"] == "slower")
        same = comparison.build_diff_table_rows(comparison.compare(None, part, part, "kernels"), "kernels")
        assert same.descriptions["status"] == "The status compares total times."
        assert same.titles["change_percent"] == "Relative change"


@pytest.mark.slow
def test_the_page_says_that_there_is_nothing_to_compare() -> None:
    """An empty capture shows neither totals of 0 nor notes about its iterations."""
    with running(FIXTURES / "empty.sqlite") as viewer:
        shown = [show(viewer, "/compare", f"?by={by}&other_capture=0") for by in KINDS.keys() - {"iterations"}]
    for each in shown:
        explained = [text for text in each if text.startswith("No rows in A and B, because no ")]
        assert len(explained) == 1
        assert " were recorded; record them with nsys profile " in explained[0]
    assert not any({"Notes", "0 ns"} & set(each) for each in shown)


def test_durations_of_iterations_include_the_gpu() -> None:
    """The CPU runs ahead, so that most kernels of an iteration run after it has ended on the CPU."""
    with tk.load(FIXTURES / "steps" / "nested.sqlite") as trace:
        rows = find_dataset("iterations").read_rows(TableInputs(trace.rollup(), {})).frame
    assert rows["duration_ns"].to_list() == (rows["window_end_ns"] - rows["window_start_ns"]).to_list()
    assert rows["kernel_time_percent"].is_between(0, 100).all()
