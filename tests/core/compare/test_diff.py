"""Differences between two sides: exact totals, what is significant, notes, and sides of several captures."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import polars as pl
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import training_runs
from tests.conftest import ALL, FIXTURES, examples
from tracekit.core import compare
from tracekit.core.compare import EVIDENCE, KINDS, SAMPLES, Summary
from tracekit.core.compare.summary import MAX_UNITS
from tracekit.errors import TracekitError, UnknownFormatError
from tracekit.sets.comparison import Summarizer

SLOW = "kernel_f<(int)4>"
KINDS_OF_SUMS = ("kernels", "ops", "api", "copies", "idle", "op_kernels", "categories")
SAMPLE = st.tuples(
    st.sampled_from(["a", "b", None]), st.one_of(st.none(), st.integers(0, 2)), st.integers(0, 3), st.integers(0, 2**58)
)


def summary_of(samples: list[tuple[str | None, int | None, int, int]], units: tuple[int, ...] = (1, 1, 1)) -> Summary:
    """A summary of kernels: name, unit, count and time."""
    unique = {(name, unit): ("kernels", name, unit, count, time, None, time) for name, unit, count, time in samples}
    return Summary(pl.DataFrame(list(unique.values()), schema=SAMPLES, orient="row"), units)


@settings(max_examples=examples(200))
@given(st.lists(SAMPLE, max_size=8), st.lists(SAMPLE, max_size=8))
def test_changes_add_up_to_the_difference_of_the_totals(a: list[Any], b: list[Any]) -> None:
    sides = [summary_of(side) for side in (a, b)]
    frame = compare.compare(*sides, ["kernels"]).frame("kernels")
    totals, counts = [], []
    for side in sides:
        totals.append(Counter[str | None]())
        counts.append(Counter[str | None]())
        for _, name, _, count, time, *_ in side.samples.iter_rows():
            totals[-1][name] += time
            counts[-1][name] += count
    names = {s[0] for s in (*a, *b)}
    assert set(frame["name"]) == names
    assert frame.height == len(names)
    for row in frame.iter_rows(named=True):
        name = row["name"]
        assert [row["time_a_ns"], row["time_b_ns"]] == [t[name] for t in totals]
        assert [row["count_a"], row["count_b"]] == [c[name] for c in counts]
        assert row["change_ns"] == totals[1][name] - totals[0][name]
        missing = [name not in set(side.samples["name"]) for side in sides]
        sign = "slower" if row["change_ns"] > 0 else "faster" if row["change_ns"] < 0 else "equal"
        assert row["status"] == ("new" if missing[0] else "gone" if missing[1] else sign)
        assert (row["change_percent"] is None) == (totals[0][name] == 0)
    assert frame["change_ns"].sum() == sum(totals[1].values()) - sum(totals[0].values())
    changes = frame["change_ns"].abs().to_list()
    assert changes == sorted(changes, reverse=True)
    if any(changes):
        assert frame["share_percent"].sum() == pytest.approx(100)
        assert frame["share_percent"][0] == pytest.approx(changes[0] * 100 / sum(changes))
    assert set(frame["evidence"]) <= {"untested"}  # three iterations are too few


def planted_diff(seed: int) -> compare.Diff:
    return tk.diff(training_runs.summary(2 * seed), training_runs.summary(2 * seed + 1, slow=((SLOW, 1.03),)))


@pytest.mark.slow
def test_a_planted_change_is_significant_and_nothing_else() -> None:
    seeds = range(100 if ALL else 3)
    finds, others = [], []
    for seed in seeds:
        significant = planted_diff(seed).significant().to_dicts()
        finds.append(
            ("kernels", "kernel_f<(int)*>", "slower") in {(r["kind"], r["name"], r["status"]) for r in significant}
        )
        others.append([r for r in significant if not training_runs.may_contain(r, SLOW)])
    assert sum(finds) >= 0.95 * len(seeds)
    assert sum(not rows for rows in others) >= 0.95 * len(seeds), others


@pytest.mark.slow
def test_two_runs_of_one_program_do_not_differ() -> None:
    for seed in range(100 if ALL else 2):
        diff = tk.diff(training_runs.summary(4 * seed), training_runs.summary(4 * seed + 2))
        assert diff.significant().is_empty()
        assert diff.notes == ()


@pytest.mark.slow
def test_a_diff_has_all_kinds_with_exact_sums() -> None:
    a, b = training_runs.run(1), training_runs.run(2, slow=((SLOW, 2.0),))
    diff = tk.diff(a, b, by=list(KINDS))
    assert diff.kinds == tuple(KINDS)
    for kind in KINDS_OF_SUMS:
        assert diff.frame(kind).height
    for side, trace in (("a", a), ("b", b)):
        for kind, table in (("kernels", "kernels"), ("api", "api_calls"), ("copies", "memcpys")):
            rows = trace.frame(table).collect()
            frame = diff.frame(kind)
            assert frame[f"time_{side}_ns"].sum() == (rows["end_ns"] - rows["start_ns"]).sum()
            assert frame[f"count_{side}"].sum() == rows.height
    copies = diff.frame("copies").row(0, named=True)
    assert (copies["name"], copies["bytes_a"], copies["bytes_b"]) == ("Device-to-Host", 4096 * 40, 4096 * 40)
    assert "bytes_a" not in diff.frame("kernels").columns
    assert set(diff.frame("nvtx")["name"]) == {"step *", *(f"step */{p}" for p in training_runs.PHASES)}
    assert set(diff.frame("api")["name"]) == {"cudaLaunchKernel", "cudaMemcpyAsync"}
    assert set(diff.frame("groups")["name"]) == {"(all ops)", "step *"}
    slow = diff.frame("kernels").row(0, named=True)
    assert (slow["name"], slow["status"], slow["evidence"]) == ("kernel_f<(int)*>", "slower", "significant")
    assert slow["change_percent"] == pytest.approx(100, abs=3)
    assert slow["iteration_a_ns"] == slow["time_a_ns"] / 40
    optimizer = diff.frame("nvtx_gpu").filter(name="step */optimizer").row(0, named=True)
    assert optimizer["is_significant"]
    assert diff.significant().filter(kind="kernels").height == 1
    as_values = diff.to_dict()
    assert as_values["a"]["iterations"] == 40
    assert as_values["kernels"][0] == slow
    assert diff.compute_totals("nvtx") is None
    assert diff.get_titles({"change_percent": "Change (%)"}) == {"change_percent": "Change (%)"}
    with pytest.raises(UnknownFormatError, match="no differences of kind 'nope', only of kernels, ops"):
        diff.frame("nope")


@pytest.mark.slow
def test_changes_are_per_iteration_if_the_numbers_of_iterations_differ() -> None:
    diff = tk.diff(training_runs.summary(1), training_runs.summary(2, iterations=20), by=["kernels", "iterations"])
    assert diff.is_per_iteration
    assert diff.notes == ("the numbers of iterations differ: 40 (A), 20 (B); A and B are compared per iteration",)
    frame = diff.frame("kernels")
    assert (frame["change_ns"] < 0).all()
    assert (frame["iteration_change_percent"].abs() < 5).all()
    assert (frame["change_percent"].abs() > 40).all()
    assert not frame["is_significant"].any()
    change = frame["iteration_b_ns"] - frame["iteration_a_ns"]
    assert frame["share_percent"].to_list() == pytest.approx((change.abs() * 100 / change.abs().sum()).to_list())
    assert [s for s in frame["status"] if s != "equal"] == ["slower" if c > 0 else "faster" for c in change if c]
    assert frame["iteration_change_ns"].to_list() == change.to_list()
    shown = diff.replace_times_by_base(frame)
    assert shown["change_ns"].to_list() == change.to_list()
    assert (shown["time_b_ns"] - shown["time_a_ns"]).to_list() == change.to_list()
    assert diff.get_titles({"name": "Name", "change_percent": "Change (%)"}) == {
        "name": "Name",
        "change_percent": "Change per iteration (%)",
    }


@settings(max_examples=examples(200))
@given(
    st.lists(SAMPLE, max_size=8),
    st.lists(SAMPLE, max_size=8),
    st.integers(0, 4),
    st.sampled_from([(1, 1, 1), (2, 2, 2)]),
)
def test_the_columns_of_a_row_do_not_contradict_each_other(
    a: list[Any], b: list[Any], shift: int, units: tuple[int, ...]
) -> None:
    sides = summary_of(a), summary_of([(n, u, c, t >> shift) for n, u, c, t in b], units)
    diff = compare.compare(*sides, ["kernels"])
    signs = {"slower": 1, "faster": -1, "equal": 0}
    for own, row in zip(
        diff.frame("kernels").iter_rows(named=True),
        diff.replace_times_by_base(diff.frame("kernels")).iter_rows(named=True),
        strict=True,
    ):
        for prefix in ("", "iteration_"):
            change, percent = own[f"{prefix}change_ns"], own[f"{prefix}change_percent"]
            assert percent is None or np.sign(percent) == np.sign(change)
        if row["status"] in signs:
            assert np.sign(row["change_ns"]) == signs[row["status"]]
            assert row["time_b_ns"] - row["time_a_ns"] == row["change_ns"]
            assert row["change_percent"] is None or np.sign(row["change_percent"]) == signs[row["status"]]
    assert diff.compute_totals("kernels") == tuple(
        round(sum(diff.replace_times_by_base(diff.frame("kernels"))[f"time_{side}_ns"])) for side in "ab"
    )


@pytest.mark.slow
def test_verdicts() -> None:
    a, slow = training_runs.summary(1), training_runs.summary(2, slow=((SLOW, 2.0),))
    kernels = tk.diff(a, slow, by=["kernels"])
    before, after = kernels.compute_totals("kernels") or (0, 0)
    measure = (
        f"the time in kernels changed by {(after - before) * 100 / before:+.2f} % ({before:,} ns in A, {after:,} ns"
    )
    assert kernels.verdict == f"B is slower than A: {measure} in B); significant rows: 1 slower"
    assert tk.diff(slow, a, by=["kernels"]).verdict.startswith("B is faster than A: the time in kernels changed by -")
    assert tk.diff(a, training_runs.summary(3), by=["kernels"]).verdict.startswith(
        "B does not differ significantly from A: the "
    )
    assert tk.diff(a, a, by=["kernels"]).verdict == (
        f"A and B are equal: the time in kernels did not change ({before:,} ns in A, {before:,} ns in B)"
    )
    assert tk.diff(a, slow, by=["nvtx_gpu"]).verdict == "B differs from A; significant rows: 2 slower"
    assert tk.diff(a, slow, by=["iterations", "kernels"]).verdict.startswith("B is slower than A: the duration of the ")
    some = tk.diff(
        training_runs.summary(0), training_runs.summary(1, slow=((SLOW, 1.03),)), by=["iterations", "kernels"]
    ).verdict
    assert some.startswith("B differs from A: the duration of the iterations changed by ")
    assert some.endswith("; significant rows: 1 slower")
    fewer = tk.diff(a, training_runs.summary(2, iterations=20), by=["iterations"]).verdict
    assert " ns in B per iteration)" in fewer
    few = compare.compare(summary_of([("k", 0, 1, 0)]), summary_of([("k", 0, 1, 5)]), ["kernels"])
    assert few.verdict == (
        "not tested whether B differs from A, because 3 (A) and 3 (B) iterations are too few; "
        "the time in kernels changed from 0 (0 ns in A, 5 ns in B)"
    )
    units = (1,) * 20
    outside = compare.compare(
        summary_of([("k", None, 1, 1)], units), summary_of([("k", None, 1, 5)], units), ["kernels"]
    )
    assert "because the rows of kernels are outside of all iterations; the time" in outside.verdict
    assert "nothing was compared" in compare.compare(summary_of([]), summary_of([]), ["kernels"]).verdict
    assert kernels.to_dict()["verdict"] == kernels.verdict


def test_new_and_missing_kernels_are_significant() -> None:
    a = training_runs.run(1)
    kernels = a.frame("kernels").collect()
    others = kernels.with_columns(
        name=pl.when(pl.col("name").cast(pl.String) == SLOW)
        .then(pl.lit("k2"))
        .otherwise(pl.col("name").cast(pl.String))
    )
    names = ("api_calls", "nvtx_ranges", "memcpys", "devices")
    renamed = tk.Trace.from_tables({**{n: a[n] for n in names}, "kernels": others.to_arrow().cast(a["kernels"].schema)})
    significant = tk.diff(a, renamed, by=["kernels"]).significant()
    assert sorted(significant.select("name", "status").rows()) == [("k2", "new"), ("kernel_f<(int)*>", "gone")]


def test_changes_outside_iterations_and_with_few_iterations_are_untested() -> None:
    samples = [("in", i, 1, 100 + i) for i in range(20)]
    a = summary_of([*samples, ("out", None, 1, 5)], (1,) * 20)
    b = summary_of([*samples, ("out", None, 1, 500)], (1,) * 20)
    rows = {r["name"]: r for r in compare.compare(a, b, ["kernels"]).frame("kernels").to_dicts()}
    assert (rows["out"]["evidence"], rows["out"]["is_significant"], rows["out"]["p_value"]) == ("untested", None, None)
    assert (rows["in"]["evidence"], rows["in"]["is_significant"], rows["in"]["status"]) == ("spread", False, "equal")
    few = tk.diff(training_runs.summary(1, iterations=3), training_runs.summary(2, iterations=3), by=["kernels"])
    assert few.notes == ("3 (A) and 3 (B) iterations are too few to test whether differences are significant",)
    assert set(few.frame("kernels")["evidence"]) == {"untested"}
    assert few.significant().is_empty()
    assert set(EVIDENCE) == set(few.frame("kernels")["evidence"].dtype.categories)  # type: ignore[attr-defined]


def test_small_changes_are_not_significant_unless_they_are_requested() -> None:
    a, b = (summary_of([("k", i, 1, t + i % 3) for i in range(30)], (1,) * 30) for t in (100_000, 100_900))
    row = compare.compare(a, b, ["kernels"]).frame("kernels").row(0, named=True)
    assert (row["evidence"], row["is_significant"]) == ("small", False)
    assert row["p_value"] < 0.001
    assert compare.compare(a, b, ["kernels"], min_percent=0.5).frame("kernels")["is_significant"].all()
    assert compare.compare(b, a, ["kernels"], min_percent=0.5).frame("kernels")["is_significant"].all()
    assert not compare.compare(a, b, ["kernels"], min_percent=0.5, alpha=1e-6).frame("kernels")["is_significant"].any()


def test_more_events_of_the_same_duration_are_significant() -> None:
    a, b = (summary_of([("k", i, n, n * 1000) for i in range(30)], (1,) * 30) for n in (10, 11))
    assert compare.compare(a, b, ["kernels"]).frame("kernels")["evidence"].to_list() == ["significant"]


def test_the_duration_of_iterations_may_vary_as_much_as_the_gpu_is_idle() -> None:
    def side(duration: int, busy: int) -> Summary:
        rows = [
            ("iterations", name, i, 1, time + i % 3, None, None)
            for i in range(30)
            for name, time in (("(duration)", duration), ("in other kernels", busy))
        ]
        return Summary(pl.DataFrame(rows, schema=SAMPLES, orient="row"), (1,) * 30)

    def evidence(a: Summary, b: Summary, min_percent: float | None = None) -> str:
        frame = compare.compare(a, b, ["iterations"], min_percent=min_percent).frame("iterations")
        return str(frame.filter(name="(duration)")["evidence"][0])

    assert evidence(side(100_000, 99_000), side(110_000, 109_000)) == "significant"
    assert evidence(side(100_000, 50_000), side(110_000, 50_000)) == "small"
    assert evidence(side(100_000, 50_000), side(110_000, 50_000), min_percent=5) == "significant"
    assert evidence(side(100_000, 50_000), side(400_000, 50_000)) == "significant"
    assert evidence(side(0, 0), side(0, 0)) == "spread"


def test_a_longer_longest_kernel_is_significant_if_the_mean_varies_too_much() -> None:
    """Launches of the shared generator last between 1.5 and 40 µs, with equal probability."""

    def side(seed: int, factor: float) -> Summary:
        times = np.random.default_rng(seed).integers(1_500, 40_000, (80, 20)) * factor
        rows = [("kernels", "k", i, 20, int(t.sum()), None, int(t.max())) for i, t in enumerate(times)]
        return Summary(pl.DataFrame(rows, schema=SAMPLES, orient="row"), (1,) * 80)

    def is_significant(a: Summary, b: Summary) -> bool:
        return bool(compare.compare(a, b, ["kernels"]).frame("kernels")["is_significant"][0])

    assert not is_significant(side(1, 1.0), side(2, 1.0))
    assert is_significant(side(1, 1.0), side(2, 1.05))
    mean_alone = [
        Summary(s.samples.with_columns(max_ns=pl.lit(None, pl.Int64)), s.units) for s in (side(1, 1.0), side(2, 1.05))
    ]
    assert not is_significant(*mean_alone)


@pytest.mark.thorough
def test_many_iterations_are_combined_into_units() -> None:
    summary = Summarizer(("kernels",)).summarize(training_runs.run(1, iterations=600))
    assert summary.iterations == 600
    assert summary.units == (4,) * 150
    whole = tk.diff(training_runs.run(1, iterations=600), training_runs.run(2, iterations=600), by=["kernels"])
    assert not whole.frame("kernels")["is_significant"].any()
    kernels = training_runs.run(1, iterations=600)["kernels"]
    assert summary.samples["count"].sum() == kernels.num_rows


@pytest.mark.thorough
def test_only_selected_iterations_count() -> None:
    trace = training_runs.run(1)
    diff = tk.diff(trace, trace, iterations=(10, 29))
    assert diff.a.iterations == 20
    assert diff.frame("iterations").filter(name="(duration)")["count_a"].to_list() == [20]
    assert diff.frame("nvtx").filter(name="step *")["count_a"].to_list() == [20]
    rolled = tk.diff(trace.rollup(iterations=(10, 29)), trace.rollup(iterations=(10, 29)))
    assert rolled.frame("kernels").equals(diff.frame("kernels"))
    assert tk.diff(trace, trace, key_op="step */forward").a.facts["key_op"] == "step */forward"


@pytest.mark.slow
def test_sides_of_several_ranks_are_added_up() -> None:
    one, two, short = (
        Summarizer(("kernels",)).summarize(training_runs.run(s, iterations=n)) for s, n in ((1, 40), (2, 40), (3, 30))
    )
    both = compare.combine_summaries([one, two])
    assert both.units == one.units
    assert both.samples["time_ns"].sum() == one.samples["time_ns"].sum() + two.samples["time_ns"].sum()
    sums = "All 2 ranks: 40 steps each, delimited by the range 'step *'; 2,400 of 2,400 kernels and 100 %"
    assert {**both.facts, "steps": ""} == {**one.facts, "steps": ""}
    assert both.facts["steps"] == f"{sums} of the GPU time lie in steps."
    assert one.facts["steps"] in compare.combine_summaries([one, short], [0, 7]).facts["steps"].replace("Rank 0: ", "")
    all_three = compare.combine_summaries([one, two, short])
    assert all_three.iterations == 30
    assert all_three.samples["count"].sum() == one.samples["count"].sum() * 11 // 4
    assert all_three.samples.filter(pl.col("unit").is_null())["count"].sum() == one.samples["count"].sum() // 2
    assert compare.combine_summaries([one]) is one


def summary_of_iterations(count: int) -> Summary:
    """A summary of a kernel that takes 1 ns times the iteration number, in units as ``summarize_trace`` forms them."""
    size = 1
    while count > MAX_UNITS * size:
        size *= 2
    batches = [range(i, min(i + size, count)) for i in range(0, count, size)]
    return summary_of([("k", u, len(b), sum(b)) for u, b in enumerate(batches)], tuple(map(len, batches)))


@pytest.mark.parametrize(
    ("counts", "size", "complete"),
    [
        ((256, 257), 2, 256),  # units of 1 and 2 iterations
        ((512, 513), 4, 512),  # units of 2 and 4 iterations
        ((600, 599), 4, 596),  # the last units have 4 and 3 iterations
        ((299, 300, 10), 2, 10),
        ((40, 30), 1, 30),
        ((40, 0), 1, 0),
        ((0, 0), 1, 0),
    ],
)
def test_ranks_with_units_of_different_sizes_are_added_up_by_iteration(
    counts: tuple[int, ...], size: int, complete: int
) -> None:
    both = compare.combine_summaries([summary_of_iterations(count) for count in counts])
    assert both.units == (size,) * (complete // size)
    inside = both.samples.drop_nulls("unit")
    for unit, count, time in inside.select("unit", "count", "time_ns").iter_rows():
        iterations = range(unit * size, (unit + 1) * size)
        assert (count, time) == (len(counts) * size, len(counts) * sum(iterations))
    assert inside.height == len(both.units)
    assert both.samples["count"].sum() == sum(counts)
    assert both.samples["time_ns"].sum() == sum(sum(range(count)) for count in counts)


@pytest.mark.slow
def test_units_of_different_sizes_are_merged_before_they_are_compared() -> None:
    """The longest of four events is longer than one event, although the sides come from the same distribution."""
    for seed in range(100 if ALL else 1):
        diff = tk.diff(
            training_runs.run(2 * seed, iterations=250),
            training_runs.run(2 * seed + 1, iterations=1000),
            by=["kernels"],
        )
        assert (len(diff.a.units), len(diff.b.units)) == (250, 250)
        assert diff.significant().is_empty()


def test_a_side_with_fewer_iterations_than_a_unit_of_the_other_is_not_tested() -> None:
    diff = compare.compare(summary_of_iterations(3), summary_of_iterations(100_000), ["kernels"])
    assert diff.frame("kernels")["evidence"].to_list() == ["untested"]
    assert diff.frame("kernels")["iteration_a_ns"].to_list() == [1]


@pytest.mark.slow
def test_notes_say_why_sides_are_not_comparable() -> None:
    diff = tk.diff(training_runs.summary(1), training_runs.summary(2, gpu="GPU Y", osrt=True), by=["kernels"])
    assert diff.notes == (
        "the GPUs differ: 1 × GPU X (A), 1 × GPU Y (B)",
        "B recorded OS runtime calls, but A did not, so the captures may have been recorded with different options",
    )
    exact = Summarizer(("kernels",), exact_names=True).summarize(training_runs.run(2))
    notes = compare.compare(training_runs.summary(1), exact, ["kernels"]).notes
    assert notes == ("names were normalized on one side only, so the same events may have different names",)
    other = Summarizer(("kernels",), key_op="step */forward").summarize(training_runs.run(2))
    notes = compare.compare(training_runs.summary(1), other, ["kernels"]).notes
    assert notes == ("the key ops, which delimit iterations, differ: step * (A), step */forward (B)",)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
@pytest.mark.parametrize("name", ["train_amp", "mpi_rank0", "jax_mlp"])
def test_a_report_and_its_export_do_not_differ(name: str) -> None:
    """An export states the version of the tool that exported it, which is no difference of the recordings."""
    diff = tk.diff(FIXTURES / f"{name}.nsys-rep", FIXTURES / f"{name}.sqlite", by=["kernels"])
    assert not [note for note in diff.notes if "version" in note or "differ:" in note]
    assert diff.frame("kernels")["change_ns"].to_list() == [0] * diff.frame("kernels").height


def test_a_note_asks_for_a_key_op_if_none_was_found() -> None:
    sides = [summary_of([("k", 0, 1, 5)], (1,))] * 2
    note = compare.compare(*sides, ["kernels"]).notes[-1]
    assert note.endswith("differences are significant; name the op that delimits iterations with --key-op or key_op=")


@pytest.mark.slow
def test_exact_names() -> None:
    trace = training_runs.run(1)
    diff = tk.diff(trace, trace, exact_names=True, by=["kernels", "nvtx"])
    assert set(diff.frame("kernels")["name"]) == set(training_runs.KERNELS)
    assert "step 7" in set(diff.frame("nvtx")["name"])


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("name", ["train_amp", "graph_node", "nvtx_features", "cpu_only", "empty", "ddp2"])
def test_a_capture_does_not_differ_from_itself(name: str) -> None:
    with tk.load(FIXTURES / f"{name}.sqlite") as trace:
        diff = tk.diff(trace, trace, by=list(KINDS))
        for kind in KINDS:
            frame = diff.frame(kind)
            assert set(frame["status"]) <= {"equal"}
            assert set(frame["change_ns"]) <= {0}
        kernels = trace.frame("kernels").collect()
        assert diff.frame("kernels")["count_a"].sum() >= kernels.height
        assert not diff.significant().height


def test_wrong_arguments() -> None:
    side = training_runs.summary(1, iterations=3)
    with pytest.raises(UnknownFormatError, match="'kernel' cannot be compared\nHint: did you mean 'kernels'"):
        tk.diff(side, side, by=["kernel"])
    for alpha in (0, 1, -1, math.nan):
        with pytest.raises(TracekitError, match="it must be between 0 and 1"):
            tk.diff(side, side, by=["kernels"], alpha=alpha)
    for percent in (-1, math.nan, math.inf):
        with pytest.raises(TracekitError, match="it must be 0 or more"):
            tk.diff(side, side, by=["kernels"], min_percent=percent)


def test_kinds_without_rows_state_why() -> None:
    """The reason is a fact of each side, which old baselines lack."""
    empty = compare.Summary(pl.DataFrame(schema=compare.SAMPLES), (), {"missing_api": "no api_calls were recorded"})
    old = compare.Summary(pl.DataFrame(schema=compare.SAMPLES))
    unknown = "the baseline does not contain the reason"
    for a, b, expected in (
        (empty, empty, "no rows in A and B, because no api_calls were recorded"),
        (empty, old, f"no rows in A, because no api_calls were recorded; no rows in B, because {unknown}"),
    ):
        assert compare.compare(a, b, ["api"]).explain_missing_rows("api") == expected
    call = {"kind": "api", "name": "f", "count": 1, "time_ns": 1}
    rows = pl.DataFrame([{column: call.get(column) for column in compare.SAMPLES}], schema=compare.SAMPLES)
    assert compare.compare(empty, compare.Summary(rows), ["api"]).explain_missing_rows("api") == ""
