"""The comparison of two traces against a brute force."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.view.support import FIXTURES, captures_of, frame_of, table
from tracekit.errors import TracekitError
from tracekit.view import comparison
from tracekit.view.datasets import dataset
from tracekit.view.sources import Scope
from tracekit.view.state import Aggregated, State

EVENTS = st.lists(st.tuples(st.sampled_from(["a", "b", "<b>", None]), st.integers(0, 2**54)), max_size=6)


def trace_of(events: list[tuple[str | None, int]]) -> tk.Trace:
    rows = [{"kernel_id": i, "name": n, "start_ns": 5, "end_ns": 5 + d} for i, (n, d) in enumerate(events)]
    return tk.Trace.from_tables({"kernels": table("kernels", rows)})


def expected(a: list[tuple[str | None, int]], b: list[tuple[str | None, int]]) -> dict[str | None, tuple[Any, ...]]:
    counts, times = [], []
    for side in (a, b):
        counts.append(Counter(name for name, _ in side))
        time: Counter[str | None] = Counter()
        for name, duration in side:
            time[name] += duration
        times.append(time)
    names = {name for name, _ in (*a, *b)}
    total = sum(abs(times[1][n] - times[0][n]) for n in names)
    rows = {}
    for n in names:
        change = times[1][n] - times[0][n]
        status = "new" if not counts[0][n] else "gone" if not counts[1][n] else "in both"
        percent = change * 100 / times[0][n] if times[0][n] else None
        share = abs(change) * 100 / total if total else None
        rows[n] = (status, counts[0][n], counts[1][n], times[0][n], times[1][n], change, percent, share)
    return rows


@settings(max_examples=examples(240))
@given(EVENTS, EVENTS)
def test_kernels_are_compared_by_name(a: list[tuple[str | None, int]], b: list[tuple[str | None, int]]) -> None:
    frame = comparison.compare(trace_of(a), trace_of(b), "kernels").frame
    wanted = expected(a, b)
    rows = {name: tuple(values) for name, *values in frame.iter_rows()}
    assert rows.keys() == wanted.keys()
    assert frame.height == len(wanted)
    for name, values in rows.items():
        assert values[:6] == wanted[name][:6]
        for got, percent in zip(values[6:], wanted[name][6:], strict=True):
            assert got is percent is None or got == pytest.approx(percent, rel=1e-9)
    changes = frame["change_ns"].abs().to_list()
    assert changes == sorted(changes, reverse=True)


def test_every_kind_of_comparison_adds_up() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as one, tk.load(FIXTURES / "ddp2.sqlite") as two:
        a, b = one.correlate().rollup(), two.correlate().rollup()
        for kind in comparison.KINDS:
            frame = comparison.compare(a, b, kind).frame
            assert int(frame["change_ns"].sum()) == int(frame["time_b_ns"].sum()) - int(frame["time_a_ns"].sum())
            assert set(frame["status"]) <= {"new", "gone", "in both"}
            same = comparison.compare(a, a, kind).frame
            assert set(same["status"]) == {"in both"}
            assert set(same["change_ns"]) == {0}
        kernels = frame_of(one, "kernels")
        whole = comparison.compare(a, a, "kernels").frame
        assert whole["time_a_ns"].sum() == (kernels["end_ns"] - kernels["start_ns"]).sum()
        part = one.correlate().rollup(iterations=(1, 1))
        some = comparison.compare(a, part, "kernels").frame
        assert some["count_b"].sum() == kernels.filter(kernels["iteration"] == 1).height > 0


def test_the_other_side_is_the_next_capture() -> None:
    captures = captures_of(trace_of([("a", 1)]), trace_of([("b", 2)]))
    assert comparison.other_of(captures, State("compare", Aggregated(0))) == Aggregated(1)
    assert comparison.other_of(captures, State("compare", Aggregated(1))) == Aggregated(0)
    chosen = State("compare", Aggregated(0), {"other_capture": "0", "other_iterations": "1:2", "other_key_op": "x"})
    assert comparison.other_of(captures, chosen) == Aggregated(0, 1, 2, "x")
    trace = captures.all[0].at(Aggregated())
    rows = dataset("comparison").rows(Scope(trace, {"by": "kernels", "other_capture": "1"}, captures))
    assert dict(rows.frame.select("name", "status").rows()) == {"a": "gone", "b": "new"}
    for arguments in ({}, {"by": "nope"}, {"by": "kernels", "other_capture": "7"}):
        with pytest.raises(TracekitError):
            dataset("comparison").rows(Scope(trace, arguments, captures))
    captures.close()
