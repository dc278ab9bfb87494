"""Windows of steps, the warm-up, and how much of the work lies in steps."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.frames import declared, nvtx
from tests.builders.reports import compute_report
from tests.conftest import FIXTURES
from tracekit.core import steps
from tracekit.core.advise import advise
from tracekit.core.reports.steps import list_notes
from tracekit.core.rollup import Rollup
from tracekit.core.rollup.measures import PARTS

Kernel = tuple[int, int, int, int]
"""Process, time of the launch, start, end."""


def capture(ranges: list[tuple[str, int, int, int]], kernels: list[Kernel], **chosen: object) -> Rollup:
    """Roll up ranges (name, process, start, end), each on thread 1, and kernels."""
    rows = pl.concat([nvtx((text, 1, start, end), process=p) for text, p, start, end in ranges])
    api = [(i, s, s + 1, p, 1, i + 1, "cudaLaunchKernel") for i, (p, s, _, _) in enumerate(kernels)]
    ran = [(start, end, p, p, i + 1, "k", "k") for i, (p, _, start, end) in enumerate(kernels)]
    times = ["start_ns", "end_ns", "process_id"]
    tables = {
        "nvtx_ranges": rows.with_columns(range_id=pl.int_range(pl.len())),
        "api_calls": pl.DataFrame(api, ["api_call_id", *times, "thread_id", "correlation_id", "name"], orient="row"),
        "kernels": pl.DataFrame(ran, [*times, "device_id", "correlation_id", "short_name", "name"], orient="row"),
    }
    return Rollup.from_frames(declared(**tables), **chosen)  # type: ignore[arg-type]


def windows(rollup: Rollup) -> list[tuple[int, int]]:
    return rollup.iterations.frame.select("window_start_ns", "window_end_ns").rows()


AHEAD = [(f"step {n}", 1, 100 * n, 100 * n + 90) for n in range(4)]


@pytest.mark.slow
def test_the_gpu_is_behind() -> None:
    """The CPU needs 100 ns for a step, the GPU 300 ns."""
    kernels = [(1, 100 * n + 10 * k, 20 + 300 * n + 30 * k, 50 + 300 * n + 30 * k) for n in range(4) for k in range(9)]
    rollup = capture(AHEAD, kernels)
    assert windows(rollup) == [(0, 290), (290, 590), (590, 890), (890, 1190)]
    assert rollup.kernels_by_iteration["kernel_count"].to_list() == [9] * 4
    parts = rollup.breakdown.select(pl.sum_horizontal(PARTS)).to_series().to_list()
    assert parts == [end - start for start, end in windows(rollup)]
    assert rollup.breakdown["other_kernel"].to_list() == [270, 270, 270, 270]


def test_all_kernels_of_a_loop_that_runs_ahead_are_examined() -> None:
    """Of the 7,990 kernels of a rank, 2,947 run after their step has ended on the CPU."""
    with tk.load(FIXTURES / "steps" / "nested.sqlite") as trace:
        rollup = trace.rollup(include_warm_up=True)
        rows = rollup.frame("kernels").drop_nulls("iteration").select("iteration", "start_ns", "end_ns").collect()
        iterations = rollup.frame("iterations").collect()
    late = rows.join(iterations.select("iteration", stop="end_ns"), on="iteration").filter(
        pl.col("start_ns") > pl.col("stop")
    )
    assert (rows.height, late.height) == (1144, 984)
    assert iterations["kernel_count"].sum() == 1144
    inside = rows.join(iterations, on="iteration").filter(
        pl.col("start_ns") >= pl.col("window_start_ns"), pl.col("end_ns") <= pl.col("window_end_ns")
    )
    assert inside.height == 1144
    busy = pl.col("in_tensor_core_kernels_ns") + pl.col("in_other_kernels_ns")
    assert iterations.select(busy.sum()).item() == rows.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()


def test_processes_have_windows_of_their_own() -> None:
    """The second process is late: a window extends over those of both."""
    ranges = [(f"step {n}", p, 100 * n + 10 * p, 100 * n + 10 * p + 80) for p in (1, 2) for n in range(3)]
    kernels = [(p, 100 * n + 10 * p + 5, 100 * n + 20 * p, 100 * n + 60 * p) for p in (1, 2) for n in range(3)]
    assert windows(capture(ranges, kernels)) == [(10, 120), (110, 220), (210, 320)]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 200), st.integers(1, 80)), min_size=2, max_size=12))
def test_windows_tile_the_time_of_a_stream(sizes: list[tuple[int, int, int]]) -> None:
    """Each step has a length on the CPU, and a kernel with a delay and a length. Kernels run one after another."""
    ranges, kernels, now, free = [], [], 0, 0
    for number, (length, delay, duration) in enumerate(sizes):
        ranges.append((f"step {number}", 1, now, now + length))
        free = max(free, now + delay) + duration
        kernels.append((1, now, free - duration, free))
        now += length
    made = windows(capture(ranges, kernels))
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(made) if start < end)
    assert all(a <= s and e <= b for (a, b), (_, _, s, e) in zip(made, kernels, strict=True))
    assert made[-1][1] == max(now, free)


def warm_up(*lengths: int, loading: int = 0) -> list[bool]:
    """Mark the warm-up of steps with these lengths. The first one loads a module for some time."""
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    ranges = [(f"step {n}", 1, s, s + w - 1) for n, (s, w) in enumerate(zip(starts, lengths, strict=True))]
    rollup = capture(ranges, [(1, s + 1, s + 2, s + 3) for s in starts])
    loads = pl.DataFrame({"process_id": [1], "start_ns": [1], "end_ns": [1 + loading], "name": ["cuLibraryLoadData"]})
    its = rollup.iterations._replace(frame=rollup.iterations.frame.with_columns(is_warm_up=pl.lit(value=False)))
    marked = steps.mark_warm_up(its, declared(api_calls=loads))
    return marked.frame["is_warm_up"].to_list()


@pytest.mark.slow
def test_warm_up() -> None:
    assert warm_up(900, 100, 100, 100) == [True, False, False, False]
    assert warm_up(900, 700, 100, 100, 100) == [True, True, False, False, False]
    assert warm_up(150, 100, 100, 100) == [False] * 4
    assert warm_up(100, 100, 900, 100) == [False] * 4
    assert warm_up(900, 100) == [False] * 2
    assert warm_up(900, 900, 900, 100, 100) == [False] * 5


@pytest.mark.parametrize(("loading", "marked"), [(20, True), (10, False), (0, False)])
def test_loading_of_modules_is_warm_up(loading: int, *, marked: bool) -> None:
    """The first step takes 40 ns longer than the others."""
    assert warm_up(140, 100, 100, 100, loading=loading) == [marked, False, False, False]


COLD = [("step 0", 1, 0, 900), *((f"step {n}", 1, 900 + 100 * n, 990 + 100 * n) for n in range(1, 5))]
COLD_KERNELS = [(1, start + 5, start + 10, start + 60) for _, _, start, _ in COLD]


def test_the_warm_up_is_left_out_where_nothing_else_is_chosen() -> None:
    whole = capture(COLD, COLD_KERNELS)
    assert whole.iterations.aggregated["iteration"].to_list() == [0, 1, 2, 3, 4]
    assert whole.steady.iterations.aggregated["iteration"].to_list() == [1, 2, 3, 4]
    assert whole.steady.steady is whole.steady
    assert whole.steady.complete.iterations.aggregated.height == 5
    for chosen in ({"include_warm_up": True}, {"span": (0, 2)}):
        rollup = capture(COLD, COLD_KERNELS, **chosen)
        assert rollup.steady.iterations.aggregated["iteration"].to_list()[0] == 0
    assert capture(COLD, COLD_KERNELS, include_warm_up=False).iterations.aggregated.height == 4
    assert whole.for_dlprof.steady.iterations.aggregated.height == 5
    assert whole.for_dlprof.for_advice.iterations.aggregated.height == 4
    assert advise(whole).equals(advise(whole.for_dlprof))


@pytest.mark.slow
def test_activities_of_the_warm_up_keep_their_number() -> None:
    with tk.load(FIXTURES / "ddp2.nsys-rep") as trace:
        whole, steady = (trace.rollup(include_warm_up=i) for i in (None, False))
        numbers = [t.frame("kernels").select("iteration").collect()["iteration"] for t in (whole, steady)]
        counts = [t.frame("iterations").select("kernel_count").collect().to_series().to_list() for t in (whole, steady)]
        used = steady.frame("iterations").filter("is_aggregated").select("iteration", "name").collect().rows()
        ops = [t.frame("ops").select(pl.col("kernel_count").sum()).collect().item() for t in (whole, steady)]
    assert numbers[0].equals(numbers[1])
    assert counts == [[90, 94, 94, 94]] * 2
    assert used == [(2, "iteration 2"), (3, "iteration 3")]
    assert ops == [372, 188]


def test_what_lies_in_steps() -> None:
    outside = [(1, 2000 + 10 * n, 2000 + 10 * n, 2010 + 10 * n) for n in range(4)]
    rollup = capture([*COLD, ("other", 1, 1990, 2100)], [*COLD_KERNELS, *outside])
    summary = rollup.steady.step_summary
    assert (summary.kernels, summary.kernels_in_steps) == (9, 5)
    assert (summary.gpu_time_ns, summary.gpu_time_in_steps_ns) == (290, 250)
    assert summary.misses_work
    assert summary.describe() == (
        "5 steps, delimited by the range 'step *'; 5 of 9 kernels and 86.2 % of the GPU time lie in steps; "
        "the first step is warm-up and left out."
    )
    assert not capture(COLD, COLD_KERNELS).step_summary.misses_work


def test_the_report() -> None:
    rollup = capture(COLD, COLD_KERNELS)
    frames = rollup.measures.ops.frames
    (row,) = compute_report(frames, "steps").frame().rows(named=True)
    assert (row["Range"], row["Steps"], row["Aggregated"], row["Warm-Up Steps"]) == ("step *", 5, 4, 1)
    assert row["Summary"] == rollup.steady.step_summary.describe()
    (report,) = list_notes(compute_report(frames, "steps").frame())
    assert report == row["Summary"] == rollup.steady.step_summary.note


def test_a_share_that_is_printed_as_90_per_cent_is_warned_about() -> None:
    """The note is not computed from the rounded share."""
    report = compute_report(capture(COLD, COLD_KERNELS).measures.ops.frames, "steps").frame()
    times = {"GPU Time (ns)": 10_000, "GPU Time In Steps (ns)": 8_996, "GPU Time In Steps (%)": 90.0}
    (note,) = list_notes(report.with_columns(pl.lit(value).alias(title) for title, value in times.items()))
    assert note.startswith("Warning: 5 steps, ")


def test_ranks_whose_steps_agree_have_one_note() -> None:
    """Numbers of kernels and times may differ between ranks. The note contains their sums."""
    one = capture(COLD, COLD_KERNELS).steady.step_summary
    two = capture(COLD, COLD_KERNELS[1:]).steady.step_summary
    rest = "the first step is warm-up and left out."
    assert steps.list_notes_by_rank({3: one}) == [one.describe()]
    (note,) = steps.list_notes_by_rank({0: one, 3: two})
    assert note == (
        "All 2 ranks: 5 steps each, delimited by the range 'step *'; 9 of 9 kernels and 100 % of the GPU time lie in "
        f"steps; {rest}"
    )


def test_ranks_whose_steps_differ_are_named() -> None:
    cold = capture(COLD, COLD_KERNELS)
    missing = capture(COLD, [*COLD_KERNELS, (1, 2000, 2000, 3000)]).steady.step_summary
    whole = capture([("setup", 1, 0, 50)], [(1, 10, 20, 30)]).step_summary
    notes = steps.list_notes_by_rank({0: cold.steady.step_summary, 1: missing, 4: whole, 5: whole})
    assert [note.partition(";")[0] for note in notes] == [
        "Rank 0: 5 steps, delimited by the range 'step *'",
        "Warning: rank 1: 5 steps, delimited by the range 'step *'",
        "Ranks 4, 5: No range delimits steps, so the whole capture is one step",
    ]
    many = steps.list_notes_by_rank({n: whole if n else missing for n in range(12)})
    assert many[1].startswith("Ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more: No range")
    assert "2 of 2 kernels" in notes[2]


def test_summaries_of_ranks_are_read_from_rows() -> None:
    rows = compute_report(capture(COLD, COLD_KERNELS).measures.ops.frames, "steps").data
    summary = capture(COLD, COLD_KERNELS).steady.step_summary
    assert steps.read_summaries(rows) == {0: summary}
    ranked = pl.concat([rows.with_columns(rank=pl.lit(r)) for r in (2, 5)])
    assert steps.read_summaries(ranked) == {2: summary, 5: summary}
    assert steps.list_notes_by_rank({}) == list_notes(compute_report(declared(), "steps").frame().clear()) == []


def test_chosen_steps_are_named() -> None:
    text = capture(COLD, COLD_KERNELS, span=(2, 3)).step_summary.describe()
    assert text.endswith("100 % of the GPU time lie in steps; step 2 to step 3 are aggregated.")


def test_long_names_are_shortened_in_sentences() -> None:
    name = f"first {'n' * 100_000} last"
    times = [100 * n for n in range(3)]
    rollup = capture([(name, 1, t, t + 90) for t in times], [(1, t + 10, t + 20, t + 80) for t in times])
    text = rollup.step_summary.describe()
    assert re.search(r"^3 steps, delimited by the range 'first n{47}…n{21} last';", text)


def test_a_capture_without_steps() -> None:
    rollup = capture([("setup", 1, 0, 50)], [(1, 10, 20, 30)])
    assert rollup.step_summary.describe() == (
        "No range delimits steps, so the whole capture is one step; 1 of 1 kernels and 100 % of the GPU time lie in "
        "steps."
    )
    assert windows(rollup) == [(0, 50)]


def test_a_capture_without_gpu_work() -> None:
    summary = capture([("setup", 1, 5, 50)], []).step_summary
    assert (summary.kernel_share, summary.gpu_time_share, summary.misses_work) == (None, None, False)
    assert summary.describe() == "No range delimits steps, so the whole capture is one step; no GPU work was recorded."


@pytest.mark.slow
def test_steps_that_dlprof_recorded(tmp_path: Path) -> None:
    """The iterations of DLProf include all of the capture."""
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        trace.rollup(iterations=(1, 2)).export(tmp_path / "dlprof_dldb.sqlite")
        duration = pl.col("end_ns") - pl.col("start_ns")
        times = [trace.frame(t).select(duration.sum()).collect().item() for t in ("kernels", "memcpys", "memsets")]
    with tk.load(tmp_path / "dlprof_dldb.sqlite") as recorded:
        (row,) = recorded.stats("steps").rows(named=True)
    assert (row["Steps"], row["Aggregated"], row["First"], row["Last"]) == (4, 2, "step 1", "step 2")
    assert (row["Kernels"], row["Kernels In Steps"]) == (334, 334)
    assert row["GPU Time (ns)"] == row["GPU Time In Steps (ns)"] == sum(times)
    assert row["Summary"] == (
        "4 steps, delimited by the range 'Batch *'; 334 of 334 kernels and 100 % of the GPU time lie in steps; "
        "step 1 to step 2 are aggregated."
    )


def test_shares_are_not_rounded_up() -> None:
    assert [steps.format_share(s) for s in (1, 0.99999, 0.5)] == ["100 %", "99.9 %", "50.0 %"]
