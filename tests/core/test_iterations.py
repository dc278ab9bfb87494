"""Where iterations begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared, nvtx
from tests.conftest import FIXTURES
from tracekit.core import iterations
from tracekit.core.ops import Ops
from tracekit.core.rollup import Rollup
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from tracekit.core.tensor_cores import Mode

BACKWARD = "{'mod': 'torch', 'op': 'backward', 'args': []}"


def ops(*processes: list[int]) -> Ops:
    """Ops of processes that each end a backward pass at some times."""
    made = [nvtx(*[(BACKWARD, 1, e - 5, e) for e in ends], process=p) for p, ends in enumerate(processes)]
    return Ops(declared(nvtx_ranges=pl.concat(made).with_columns(range_id=pl.int_range(pl.len()))), "pyprof")


def bounds(*processes: list[int]) -> list[tuple[int, int]]:
    return iterations.find_iterations(ops(*processes), mode="dlprof").frame.select("start_ns", "end_ns").rows()


def test_processes_with_equal_counts_end_together() -> None:
    assert bounds([10, 30, 50], [12, 28, 55]) == [(0, 12), (12, 30), (30, 55)]


def test_a_process_with_one_more_is_matched_to_the_others() -> None:
    assert bounds([10, 30, 50], [31, 51]) == [(0, 31), (31, 51)]


def test_each_end_counts_where_counts_differ() -> None:
    assert bounds([10, 30, 50], [11], [12, 13]) == [(0, 10), (10, 11), (11, 12), (12, 13), (13, 30), (30, 50)]


def test_a_key_op_that_ends_at_zero_makes_an_iteration_without_length() -> None:
    assert bounds([0, 30, 50]) == [(0, 0), (0, 30), (30, 50)]
    assert bounds([0]) == [(0, 0)]


@pytest.mark.parametrize("span", [(2, 1), (-1, None)])
def test_spans_that_hold_nothing(span: tuple[int, int | None]) -> None:
    with pytest.raises(
        TracekitError, match=r"invalid range of iterations .*: the range has a negative start or ends before it starts"
    ):
        iterations.find_iterations(ops([10, 30, 50]), span=span)


def test_other_iterations_of_the_same_ops() -> None:
    ranges = nvtx(*[(BACKWARD, 1, e - 5, e) for e in (10, 30, 50)])
    whole = Rollup.from_frames(declared(nvtx_ranges=ranges))
    again = whole.with_iterations(span=(1, 2))
    assert again.measures is whole.measures
    assert again.iterations.aggregated["end_ns"].to_list() == [30, 50]
    assert whole.iterations.aggregated["end_ns"].to_list() == [10, 30, 50]


def loop(*ranges: tuple[str, int, int], process: int = 1) -> pl.DataFrame:
    """Ranges (text, start, end) on one thread."""
    return nvtx(*[(text, 1, start, end) for text, start, end in ranges], process=process)


def steps(count: int, *, first: int = 100) -> list[tuple[str, int, int]]:
    return [(f"step {n}", first + 100 * n, first + 100 * n + 60) for n in range(count)]


def iteration_of(ranges: pl.DataFrame, **wanted: object) -> dict[str, list[int | None]]:
    """Iterations by name of the op."""
    ranges = ranges.with_columns(range_id=pl.int_range(pl.len()))
    rolled = Rollup.from_frames(declared(nvtx_ranges=ranges), **wanted)  # type: ignore[arg-type]
    instances = rolled.measures.instances.with_columns(iteration=rolled.iteration, op_name=pl.col("op_name").cast(str))
    return dict(instances.group_by("op_name", maintain_order=True).agg("iteration").rows())


@pytest.mark.parametrize("mode", ["extended", "dlprof"])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_range_that_each_process_runs_once_does_not_repeat(processes: int, mode: Mode) -> None:
    same = [("step", start, end) for _, start, end in steps(4)]
    made = [loop(("training", 50, 900), *same, process=p) for p in range(processes)]
    ranges = pl.concat(made).with_columns(range_id=pl.int_range(pl.len()))
    found = iterations.find_iterations(Ops(declared(nvtx_ranges=ranges), None), mode=mode)
    assert (found.key, found.frame.height) == ("training/step", 4)


def test_without_an_op_that_repeats_in_a_process_there_is_no_key_op() -> None:
    made = [loop(("training", 50, 900), ("step", 100, 200), process=p) for p in range(2)]
    ranges = pl.concat(made).with_columns(range_id=pl.int_range(pl.len()))
    found = iterations.find_iterations(Ops(declared(nvtx_ranges=ranges), None))
    assert (found.has_key_op, found.frame.height) == (False, 1)


def test_what_lies_outside_of_the_loop_has_no_iteration() -> None:
    found = iteration_of(
        loop(("load", 0, 50), ("inner", 10, 20), *steps(4), ("evaluate", 465, 900), ("save", 910, 999))
    )
    assert found == {"load": [None], "load/inner": [None], "step *": [0, 1, 2, 3], "evaluate": [None], "save": [None]}


def test_dlprof_leaves_nothing_out() -> None:
    ranges = loop(("load", 0, 50), *steps(4), ("evaluate", 465, 900))
    assert iteration_of(ranges, tensor_cores="dlprof") == {"load": [0], "step *": [0, 1, 2, 3], "evaluate": [3]}


def test_work_between_two_passes_that_is_not_part_of_the_loop() -> None:
    ranges = loop(
        *steps(2), ("evaluate", 265, 280), ("fetch", 282, 290), *[(t, s + 200, e + 200) for t, s, e in steps(2)]
    )
    found = iteration_of(ranges)
    assert found["evaluate"] == [None]
    assert found["step *"] == [0, 1, 2, 3]


def test_work_beside_most_keys_is_part_of_the_loop() -> None:
    fetches = [("fetch", s + 65, s + 90) for _, s, _ in steps(4)]
    found = iteration_of(loop(*steps(4), *fetches, ("evaluate", 495, 900)))
    assert found["fetch"] == [0, 1, 2, 3]
    assert found["evaluate"] == [None]


def test_time_without_work_between_two_passes_belongs_to_the_earlier_one() -> None:
    ranges = loop(*steps(3), ("evaluate", 400, 500))
    rolled = Rollup.from_frames(declared(nvtx_ranges=ranges))
    assert rolled.iterations.frame.select("start_ns", "end_ns").rows() == [(100, 200), (200, 300), (300, 360)]


def test_epochs_around_steps_do_not_cut_them() -> None:
    epochs = [("epoch 0", 90, 295), ("epoch 1", 296, 500)]
    found = iteration_of(loop(*epochs, *steps(4)), key_op="epoch */step *")
    assert found == {"epoch *": [1, None], "epoch */step *": [0, 1, 2, 3]}


def test_each_process_is_cut_by_its_own_ranges() -> None:
    late = [(text, start + 45, end + 45) for text, start, end in steps(4)]
    ranges = pl.concat([loop(*steps(4)), loop(*late, process=2)])
    assert iteration_of(ranges)["step *"] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_process_without_the_key_follows_the_others() -> None:
    ranges = pl.concat([loop(*steps(4)), loop(("worker", 220, 230), ("early", 1, 2), process=2)])
    found = iteration_of(ranges)
    assert found["worker"] == [1]
    assert found["early"] == [None]


def test_passes_that_end_with_their_key() -> None:
    """A backward pass ends a pass; the forward passes before it are part of it, what comes after the last is not."""
    linear = BACKWARD.replace("backward", "linear")
    relu = BACKWARD.replace("backward", "relu")
    made = [(t, n * 100 + s, n * 100 + e) for n in (1, 2, 3) for t, s, e in ((linear, 0, 20), (BACKWARD, 30, 60))]
    rolled = Rollup.from_frames(declared(nvtx_ranges=loop((relu, 1, 5), *made, (relu, 370, 380))))
    assert rolled.iterations.frame.select("start_ns", "end_ns").rows() == [(100, 160), (160, 260), (260, 360)]
    kinds = rolled.measures.instances["op_type"].cast(str)
    assert rolled.iteration.filter(kinds == "linear").to_list() == [0, 1, 2]
    assert rolled.iteration.filter(kinds == "relu").to_list() == [None, None]


@pytest.mark.parametrize(
    ("capture", "kernels"),
    [
        ("ddp2", {0: 90, 1: 94, 2: 94, 3: 94}),
        ("graph_node", {None: 2, 0: 10, 1: 10, 2: 10, 3: 10, 4: 10}),
        ("ops/jax_scopes", {None: 18, 0: 20, 1: 20, 2: 20, 3: 20}),
    ],
)
def test_kernels_by_iteration_of_captures(capture: str, kernels: dict[int | None, int]) -> None:
    with tk.load(FIXTURES / f"{capture}.nsys-rep") as trace:
        found = trace.rollup().frame("kernels").select("iteration").collect()["iteration"]
    assert dict(found.value_counts().rows()) == kernels


def test_kernels_of_two_processes_lie_in_the_range_that_launched_them() -> None:
    """The number of a range is that of the iteration: counted from the ranges alone."""
    with tk.load(FIXTURES / "ddp2.nsys-rep") as trace:
        rolled = trace.correlate().rollup()
        columns = ["range_path", "process_id", "api_start_ns", "iteration"]
        kernels = rolled.frame("kernels").select(columns).collect()
        ranges = trace.frame("nvtx_ranges").filter(pl.col("name").cast(str).str.contains(r"^iteration \d+$"))
        ranges = ranges.select(
            "process_id", "start_ns", "end_ns", number=pl.col("name").cast(str).str.extract(r"(\d+)$")
        )
        both = kernels.lazy().join(ranges, on="process_id")
        inside = both.filter(pl.col("api_start_ns").is_between("start_ns", "end_ns")).collect()
    assert inside.height == kernels.height == 372
    assert inside.select((pl.col("iteration") - pl.col("number").cast(int)).n_unique()).item() == 1


@pytest.mark.parametrize(
    ("span", "said"),
    [
        ((9, 12), "iterations 9:12 were requested, but the capture has only iterations 0 to 2"),
        ((3, 3), "iterations 3:3 were requested, but the capture has only iterations 0 to 2"),
        ((3, None), "iterations 3 and later were requested, but the capture has only iterations 0 to 2"),
    ],
)
def test_iterations_that_are_not_there(span: tuple[int, int | None], said: str) -> None:
    with pytest.raises(TracekitError) as error:
        iterations.find_iterations(ops([10, 30, 50]), span=span)
    assert error.value.message == said


def test_iterations_that_are_there_in_part() -> None:
    assert iterations.find_iterations(ops([10, 30, 50]), span=(1, 12)).aggregated["iteration"].to_list() == [1, 2]


def test_a_capture_without_a_loop_has_one_iteration() -> None:
    with pytest.raises(TracekitError, match="iterations 1:2 were requested, but the capture has only iteration 0"):
        iterations.find_iterations(Ops(declared(nvtx_ranges=loop(("a", 0, 9)))), span=(1, 2))


def test_dlprof_takes_the_last_iteration_for_those_beyond_it() -> None:
    found = iterations.find_iterations(ops([10, 30, 50]), span=(9, 12), mode="dlprof")
    assert found.aggregated["iteration"].to_list() == [2]


def test_an_op_that_is_not_there() -> None:
    made = Ops(declared(nvtx_ranges=loop(*steps(4))))
    with pytest.raises(TracekitError) as error:
        iterations.find_iterations(made, key_op="stepp *")
    assert (error.value.message, error.value.hint) == (
        "the capture has no op 'stepp *', which was requested as key op",
        "did you mean 'step *'? choose one of these ops: step *",
    )
    assert iterations.find_iterations(made, key_op="STEP_1").frame.height == 4
    assert iterations.find_iterations(made, key_op="foo", mode="dlprof").has_key_op is False


def test_concurrent_ranges_of_several_threads_are_no_iterations() -> None:
    workers = nvtx(*[(f"worker {t}", t, 10 * t, 900) for t in range(1, 5)])
    made = Rollup.from_frames(declared(nvtx_ranges=workers))
    assert (made.iterations.has_key_op, made.iterations.frame.height) == (False, 1)
    steps_of_one = pl.concat([workers, loop(*steps(4))]).with_columns(range_id=pl.int_range(pl.len()))
    assert Rollup.from_frames(declared(nvtx_ranges=steps_of_one)).iterations.key == "worker */step *"


def recorded(*flags: bool, key_op: str | None = "step", end: int = 10) -> Ops:
    """Ops of a capture without ranges that contains iterations, each with the flag whether it is aggregated."""
    rows = [
        {"iteration": i, "start_ns": 10 * i, "end_ns": 10 * i + end, "key_op": key_op, "is_aggregated": flag}
        for i, flag in reversed(list(enumerate(flags)))
    ]
    return Ops(declared(iterations=pl.DataFrame(rows)), None)


def test_iterations_that_a_profiler_recorded_are_used() -> None:
    found = iterations.find_iterations(recorded(False, True, True))
    assert (found.label, found.has_key_op, found.is_whole_capture) == ("step", True, False)
    assert found.frame.select("iteration", "start_ns", "end_ns", "aggregated").rows() == [
        (0, 0, 10, False),
        (1, 10, 20, True),
        (2, 20, 30, True),
    ]
    assert iterations.find_iterations(recorded(False, True, True), span=(0, 1)).aggregated["iteration"].to_list() == [
        0,
        1,
    ]
    assert iterations.find_iterations(recorded(False, False, key_op=None)).aggregated.height == 2


@pytest.mark.parametrize("ops_of_capture", [recorded(True), recorded(True, True, end=0)])
def test_one_recorded_iteration_is_the_whole_capture(ops_of_capture: Ops) -> None:
    assert iterations.find_iterations(ops_of_capture).is_whole_capture


@pytest.mark.parametrize(("recorded", "end"), [("70", 70), ("0", 1), (None, 40)])
def test_a_capture_without_ops_lasts_as_long_as_recorded_or_until_the_last_activity(
    recorded: str | None, end: int
) -> None:
    frames = declared(
        capture_info=pl.DataFrame(
            {"name": ["duration_ns"], "value": [recorded]}, schema_overrides={"value": pl.String}
        ),
        kernels=pl.DataFrame({"kernel_id": [1], "start_ns": [30], "end_ns": [40], "device_id": [0]}),
    )
    frame = iterations.find_iterations(Ops(frames, "plain")).frame
    assert frame.select("start_ns", "end_ns").rows() == [(0, end)]
