"""Steps of several threads, and steps that start/end ranges delimit."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.frames import RANGE, declared
from tracekit.core.rollup import Rollup
from tracekit.errors import TracekitError

Row = tuple[str, str, int, int, int]
"""Kind, name, thread, start and end of a range."""
STEP = 1000
SPANS = [(n * STEP, n * STEP + 900) for n in range(4)]


def roll_up(ranges: list[Row], calls: list[tuple[int, int]], **chosen: object) -> Rollup:
    """Roll up ranges and launches (thread, time) of one process, each with a kernel of 10 ns."""
    rows = [(i, kind, 1, thread, start, end, 0, name) for i, (kind, name, thread, start, end) in enumerate(ranges)]
    times = ["start_ns", "end_ns", "process_id"]
    api = [(i, s, s + 2, 1, thread, i + 1, "cudaLaunchKernel") for i, (thread, s) in enumerate(calls)]
    ran = [(s + 5, s + 15, 1, 0, i + 1, "k", "k") for i, (_, s) in enumerate(calls)]
    tables = {
        "nvtx_ranges": pl.DataFrame(rows, RANGE, orient="row"),
        "api_calls": pl.DataFrame(api, ["api_call_id", *times, "thread_id", "correlation_id", "name"], orient="row"),
        "kernels": pl.DataFrame(ran, [*times, "device_id", "correlation_id", "short_name", "name"], orient="row"),
    }
    return Rollup.from_frames(declared(**tables), **chosen)  # type: ignore[arg-type]


def steps(thread: int = 1, offset: int = 0, end: int = 900, kind: str = "push_pop", name: str = "step {}") -> list[Row]:
    return [(kind, name.format(n), thread, n * STEP + offset, n * STEP + end) for n in range(4)]


def calls(thread: int, *offsets: int) -> list[tuple[int, int]]:
    return [(thread, n * STEP + offset) for n in range(4) for offset in offsets]


def bounds(rollup: Rollup) -> list[tuple[int, int]]:
    return rollup.iterations.frame.select("start_ns", "end_ns").rows()


def test_the_range_of_the_main_thread_also_runs_on_the_autograd_thread() -> None:
    """The main thread launches less itself, but its steps contain the launches of the other thread."""
    ranges = [*steps(1), *steps(2, 400, 700)]
    rollup = roll_up(ranges, [*calls(1, 100, 200), *calls(2, 450, 500, 550, 600)])
    assert bounds(rollup) == [(0, 1000), (1000, 2000), (2000, 3000), (3000, 3900)]
    assert rollup.step_summary.kernels_in_steps == 24


def test_the_range_of_a_thread_that_launches_nothing() -> None:
    """A thread that loads batches has steps of the same name, which last longer and begin earlier."""
    ranges = [*steps(2, 0, 950), *steps(1, 20, 940)]
    assert bounds(roll_up(ranges, calls(1, 100, 200)))[0] == (20, 1020)


def test_the_outermost_range_of_a_thread_that_launches_nearly_nothing() -> None:
    """The thread that loads batches copies them to the GPU. Its ranges are outermost, and the steps are nested."""
    ranges = [*steps(2, 0, 990, name="load batch {}"), ("push_pop", "train", 1, 0, 4 * STEP), *steps(1, 20, 940)]
    rollup = roll_up(ranges, [*calls(1, *range(100, 900, 20)), *calls(2, 50)])
    assert (rollup.iterations.label, len(bounds(rollup))) == ("step *", 4)


@pytest.mark.parametrize("name", ["step {}", "decode {}", "train_step", "work"])
def test_one_gpu_per_thread(name: str) -> None:
    """The steps of all threads contain about as many launches, so those of the thread that starts first delimit."""
    ranges = [row for thread in (3, 1, 2) for row in steps(thread, 10 * thread, 900 + thread, name=name)]
    rollup = roll_up(ranges, [call for thread in (1, 2, 3) for call in calls(thread, 50, 100, 150)])
    assert [start for start, _ in bounds(rollup)] == [10, 1010, 2010, 3010]
    summary = rollup.step_summary
    assert (summary.steps, summary.kernels_in_steps, summary.kernels) == (4, 36, 36)


def test_the_covered_share_of_one_thread_is_stated() -> None:
    """The second thread goes on after the steps of the first one."""
    other = [("push_pop", f"step {n}", 2, 500 + n * 1500, 500 + n * 1500 + 1400) for n in range(4)]
    late = [(2, 4200), (2, 5300)]
    summary = roll_up([*steps(1), *other], [*calls(1, 100, 200, 300), *late]).step_summary
    assert (summary.steps, summary.kernels_in_steps, summary.kernels) == (4, 12, 14)
    assert summary.misses_work


def test_threads_that_take_turns() -> None:
    """The threads of a pool run one step each. A step may begin shortly before the last one ends."""
    ranges = [("push_pop", f"step {n}", 1 + n % 3, n * STEP, n * STEP + 1005) for n in range(6)]
    rollup = roll_up(ranges, [(1 + n % 3, n * STEP + 100) for n in range(6)])
    assert [start for start, _ in bounds(rollup)] == [n * STEP for n in range(6)]
    assert rollup.iterations.frame["name"].to_list() == [f"step {n}" for n in range(6)]


def test_threads_without_gpu_work() -> None:
    ranges = [*steps(2, 100, 500), *steps(1, 0, 900)]
    assert bounds(roll_up(ranges, []))[0] == (0, 1000)


def test_a_named_range_of_several_threads() -> None:
    ranges = [*steps(1), *steps(2, 50, 800), ("push_pop", "step 9", 3, 100, 120)]
    assert bounds(roll_up(ranges, calls(1, 100), key_op="step"))[0] == (0, 1000)


@pytest.mark.parametrize("name", ["step {}", "ProfilerStep#{}", "decode {}", "train_step", "work", "frame_{}"])
def test_start_end_ranges(name: str) -> None:
    rollup = roll_up(steps(kind="start_end", name=name), calls(1, 100, 200))
    assert bounds(rollup) == [(0, 1000), (1000, 2000), (2000, 3000), (3000, 3900)]
    its, summary = rollup.iterations, rollup.step_summary
    assert (its.key, its.key_ops, summary.kernels_in_steps) == (its.label, (), 8)
    named = [name.format(n) if "{" in name else f"{name} [{n}]" for n in range(4)]
    assert its.frame["name"].to_list() == named


def test_start_end_ranges_around_push_pop_ranges_of_another_thread() -> None:
    """The main thread starts and ends steps. A thread of a pool launches their kernels inside ranges of its own."""
    inner = [row for n in range(2) for row in steps(2, 100 + 300 * n, 350 + 300 * n, name=f"part {n}")]
    rollup = roll_up([*steps(kind="start_end"), *inner], [*calls(2, 150, 450), *calls(3, 800)])
    assert (rollup.iterations.key, len(bounds(rollup))) == ("step *", 4)
    assert rollup.step_summary.kernels_in_steps == 12


def test_numbered_start_end_ranges_are_preferred_to_repeated_push_pop_ranges() -> None:
    rollup = roll_up([*steps(name="forward", offset=100, end=800), *steps(kind="start_end")], calls(1, 200))
    assert rollup.iterations.key == "step *"
    assert (
        roll_up([*steps(name="work"), *steps(10, kind="start_end", name="in")], calls(1, 200)).iterations.key == "work"
    )


@pytest.mark.parametrize(("end", "key"), [(980, "train_step"), (1400, "micro_batch *")])
def test_a_start_end_range_around_numbers_that_begin_again(end: int, key: str) -> None:
    """The numbers begin again in each step. Steps that overlap cannot contain them."""
    parts = [
        ("push_pop", f"micro_batch {k}", 1, n * STEP + 200 * k, n * STEP + 200 * k + 150)
        for n in range(4)
        for k in (1, 2)
    ]
    rollup = roll_up([*steps(kind="start_end", name="train_step", end=end), *parts], calls(1, 250, 450))
    assert rollup.iterations.key == key
    assert roll_up(steps(kind="start_end", name="copy", end=100), calls(1, 50)).iterations.key == "copy"


def test_start_end_ranges_beside_steps() -> None:
    rollup = roll_up([*steps(end=500), *steps(kind="start_end", name="request", offset=600)], calls(1, 100, 200, 700))
    assert rollup.iterations.key == "step *"


def test_start_end_ranges_that_overlap_are_no_steps() -> None:
    """Requests that are in flight at the same time."""
    requests = [("start_end", f"request {n}", 1, n * STEP, n * STEP + 2500) for n in range(4)]
    assert roll_up(requests, calls(1, 100, 200)).iterations.is_whole_capture
    late = [("start_end", f"request {n}", 1, n * STEP, n * STEP + 1050) for n in range(4)]
    assert len(bounds(roll_up(late, calls(1, 100, 200)))) == 4


def test_start_end_ranges_do_not_change_steps_of_push_pop_ranges() -> None:
    """A range between the last step and the end of the capture does not extend the step."""
    between = [("start_end", "copy", 1, n * STEP + 920, n * STEP + 980) for n in range(4)]
    assert bounds(roll_up([*steps(), *between], calls(1, 100))) == bounds(roll_up(steps(), calls(1, 100)))


@pytest.mark.parametrize("name", ["request", "request *", "request 2"])
def test_a_user_names_a_start_end_range(name: str) -> None:
    ranges = [*steps(), *steps(kind="start_end", name="request {}", offset=200)]
    rollup = roll_up(ranges, calls(1, 300), key_op=name)
    assert (rollup.iterations.key, rollup.iterations.label, bounds(rollup)[0]) == (name, "request *", (200, 1200))


def test_names_of_start_end_ranges_are_suggested() -> None:
    with pytest.raises(TracekitError) as error:
        roll_up(steps(kind="start_end", name="request"), calls(1, 300), key_op="reqest").iterations  # noqa: B018
    assert "request" in str(error.value.hint)


def test_a_start_end_range_without_an_end() -> None:
    """It ends with the capture, as the last step of a recording that was stopped."""
    rows = steps(kind="start_end")
    rollup = roll_up([*rows[:3], (*rows[3][:4], None)], calls(1, 100))  # type: ignore[list-item]
    assert bounds(rollup)[3] == (3000, 3102)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["push_pop", "start_end"]), st.integers(1, 3), st.integers(0, 900), st.integers(1, 500)
        ),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1500)), max_size=8),
)
def test_steps_of_a_process_never_overlap(
    ranges: list[tuple[str, int, int, int]], times: list[tuple[int, int]]
) -> None:
    rows = [
        (kind, f"step {n}", thread, start, start + length) for n, (kind, thread, start, length) in enumerate(ranges)
    ]
    its = roll_up(rows, times).iterations
    ends = its.by_process.sort("start_ns").select(pl.col("end_ns").shift(1) <= pl.col("start_ns")).to_series()
    assert ends.all()
