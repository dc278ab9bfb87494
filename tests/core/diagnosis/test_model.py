"""Models: what the CPU does, what holds back operations, and for what calls wait."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from tests.builders.programs import LAUNCH, MS, US, Program, steps
from tests.builders.random_programs import captures, programs
from tests.core.diagnosis.test_replay import check_recorded_times
from tracekit.core.diagnosis.kinds import CALL_NUMBERS
from tracekit.core.diagnosis.model import Model, build_model
from tracekit.core.diagnosis.operations import NO_WAIT, PAUSE, WAIT_ALL, WAIT_LANE, WAIT_OPERATION

NEVER = np.iinfo(np.int64).min


def check_items(model: Model) -> None:
    """Check that the items of lane 0 cover the steps on the CPU without gaps, and that each operation has one item."""
    items, ops = model.items, model.operations
    main = np.flatnonzero(items.lane == 0)
    starts, ends = items.start[main].tolist(), items.end[main].tolist()
    assert starts[0] == model.steps[0].start_ns
    assert ends[-1] == model.steps[-1].end_ns
    assert ends[:-1] == starts[1:]
    assert (items.end >= items.start).all()
    assert (np.diff(items.start) >= 0).all()
    assert items.first.tolist() == (np.cumsum(items.launches) - items.launches).tolist()
    assert np.repeat(np.arange(len(items.start)), items.launches).tolist() == ops.item.tolist()
    assert sorted(ops.row.tolist()) == sorted(set(ops.row.tolist()))
    assert (items.call[items.kind == PAUSE] == -1).all()
    cuts = {s.start_ns for s in model.steps} | set(model.labels.times.tolist())
    for start, end, kind in zip(starts, ends, items.kind[main], strict=True):
        assert kind != PAUSE or not any(start < cut < end for cut in cuts)


@given(programs())
def test_items_of_programs(program: Program) -> None:
    check_items(program.model())


@given(captures())
def test_items_of_any_capture(program: Program) -> None:
    check_items(program.model())


def kinds_of(model: Model) -> list[int]:
    return [int(k) for k in model.items.kind]


def test_nested_calls_are_part_of_the_outer_one() -> None:
    program = Program()
    call = program.call(LAUNCH, 0, 10 * US)
    inner = program.call("cuLaunchKernel", 2 * US, 8 * US)
    program.kernel(inner, 12 * US, 20 * US)
    program.kernel(call, 20 * US, 30 * US)
    model = program.model()
    assert model.items.call.tolist() == [0, -1]
    assert model.items.launches.tolist() == [2, 0]
    check_recorded_times(model)


@pytest.mark.parametrize(("loading", "kind"), [(6 * US, "load"), (4 * US, "launch")])
def test_calls_that_load_code_for_most_of_their_time(loading: int, kind: str) -> None:
    program = Program()
    program.kernel(program.call(LAUNCH, 0, 10 * US), 12 * US, 20 * US)
    program.call("cuModuleLoadData", 1 * US, 1 * US + loading)
    assert kinds_of(program.model()) == [CALL_NUMBERS[kind], PAUSE]


def test_threads_that_take_turns_form_one_sequence() -> None:
    """The autograd thread of PyTorch launches while the main thread waits."""
    program = Program()
    program.launch("forward")
    program.thread = 2
    program.launch("backward")
    program.thread = 1
    program.launch("optimizer")
    program.launch("optimizer")
    model = program.model()
    assert model.items.lane.tolist() == [0] * 5
    assert model.items.call[:4].tolist() == [0, 1, 2, 3]


def test_threads_at_the_same_time_have_sequences_of_their_own() -> None:
    program = Program()
    for _ in range(4):
        program.launch("main")
        row = program.tables["api_calls"][-1]
        call = program.call(LAUNCH, row["start_ns"] + 1, row["end_ns"] - 1, thread_id=2)
        program.kernel(call, program.now, program.now + 10, stream_id=8)
        program.pause(MS)
    model = program.model()
    assert model.events.main_thread == 1
    (others,) = np.nonzero(model.items.lane == 1)
    assert len(others) == 4
    assert model.items.start[others[0]] == 0
    assert model.items.after[others[0]] == -1
    assert (model.items.start[others[1:]] == model.items.end[model.items.after[others[1:]]]).all()
    assert (model.items.duration[others] == 0).all()
    check_recorded_times(model)


def test_a_launch_of_another_thread_before_the_first_step() -> None:
    program = Program()
    program.kernel(program.call(LAUNCH, 0, 25 * US, thread_id=2), 20 * US, 30 * US, stream_id=8)
    program.now = 10 * US
    steps(program, 3, lambda _: [program.launch() for _ in range(3)])
    check_recorded_times(program.model())


def test_operations_without_calls() -> None:
    program = Program()
    steps(program, 3, lambda _: program.launch())
    program.kernel(None, 1000, 2000, stream_id=9)
    program.kernel(None, 4000, 4500, stream_id=9)
    model = program.model()
    first, second = np.flatnonzero(model.items.lane == 1)
    assert model.items.call[[first, second]].tolist() == [-1, -1]
    assert model.items.start[[first, second]].tolist() == [0, 5000]  # the ends that are nearest
    assert model.items.after[second] == 0
    check_recorded_times(model)


def two_kernels(launch: int, start: int, **row: object) -> Model:
    """A model of two kernels: one from 7 to 57 µs, and one with a time of launch and start in µs."""
    program = Program()
    program.kernel(program.call(LAUNCH, 0, 5 * US), 7 * US, 57 * US)
    program.kernel(program.call(LAUNCH, launch * US, launch * US + 1000), start * US, start * US + 1000, **row)
    model = program.model()
    check_recorded_times(model)
    return model


def bounds_of(model: Model, row: int = 1) -> tuple[int, int, int]:
    ops = model.operations
    return int(ops.delay[row]), int(ops.gap[row]), int(ops.dependency[row])


def test_a_queued_operation() -> None:
    """It starts 1 µs after the operation before it, and could start a usual delay after its launch."""
    assert bounds_of(two_kernels(10, 58)) == (7 * US, 1 * US, -1)


def test_an_operation_that_starts_when_it_was_launched() -> None:
    """It starts 20 µs after its launch, and long after the operation before it."""
    assert bounds_of(two_kernels(100, 120)) == (20 * US, 1 * US, -1)


def test_an_operation_with_a_long_gap_after_an_early_launch() -> None:
    """It starts 30 µs after the operation before it, although it was launched long before."""
    assert bounds_of(two_kernels(10, 87)) == (7 * US, 30 * US, -1)


def test_an_operation_with_a_long_delay() -> None:
    """Nothing shows why it starts 900 µs after its launch."""
    assert bounds_of(two_kernels(100, 1000)) == (900 * US, 1 * US, -1)


def test_the_first_operation_of_a_stream() -> None:
    assert bounds_of(two_kernels(10, 30, stream_id=8)) == (20 * US, 0, -1)
    assert bounds_of(two_kernels(10, 3000, stream_id=8)) == (2990 * US, 0, -1)


def test_an_operation_that_waits_for_another_stream() -> None:
    """The first operation of stream 8 starts 2 µs after the end of that of stream 7, long after its launch."""
    program = Program()
    program.kernel(program.call(LAUNCH, 0, 5 * US), 7 * US, 500 * US)
    program.kernel(program.call(LAUNCH, 10 * US, 15 * US), 502 * US, 600 * US, stream_id=8)
    model = program.model()
    assert bounds_of(model)[2] == 0
    assert model.operations.dependency_gap[1] == 2 * US
    check_recorded_times(model)


@pytest.mark.parametrize("id_of_wait", [3, 4])
def test_a_recorded_wait_for_an_event(id_of_wait: int) -> None:
    """Stream 8 waits for an event that was recorded on stream 7, if the ids are equal."""
    program = Program()
    program.kernel(program.call(LAUNCH, 0, 5 * US), 7 * US, 57 * US)
    program.kernel(program.call(LAUNCH, 6 * US, 7 * US), 8 * US, 9 * US, stream_id=8)
    program.event(program.call("cudaEventRecord_v3020", 10 * US, 11 * US), event_sync_id=3)
    wait = program.call("cudaStreamWaitEvent_v3020", 12 * US, 13 * US)
    program.sync(wait, 12 * US, 13 * US, stream_id=8, event_sync_id=id_of_wait)
    program.kernel(program.call(LAUNCH, 20 * US, 21 * US), 70 * US, 80 * US, stream_id=8)
    model = program.model()
    check_recorded_times(model)
    assert bounds_of(model, 2)[2] == (0 if id_of_wait == 3 else -1)
    assert model.operations.dependency_gap[2] == (13 * US if id_of_wait == 3 else 0)


def test_waits_for_events_without_effect() -> None:
    """Nothing was launched before the recording, nothing after the wait, or the operation did not wait."""
    program = Program()
    program.event(program.call("cudaEventRecord", 0, 1), event_sync_id=1)
    program.sync(program.call("cudaStreamWaitEvent", 2, 3), 2, 3, stream_id=8, event_sync_id=1)
    program.kernel(program.call(LAUNCH, 10, 20), 30, 200 * US)
    program.event(program.call("cudaEventRecord", 40, 41), event_sync_id=2)
    program.sync(program.call("cudaStreamWaitEvent", 42, 43), 42, 43, stream_id=8, event_sync_id=2)
    program.kernel(program.call(LAUNCH, 50, 60), 70, 80, stream_id=8)
    program.sync(program.call("cudaStreamWaitEvent", 90, 91), 90, 91, stream_id=9, event_sync_id=2)
    program.sync(program.call("cudaStreamWaitEvent", 92, 93), 92, 93, stream_id=8, event_sync_id=2)
    model = program.model()
    assert model.operations.dependency.tolist() == [-1, -1]
    check_recorded_times(model)


def wait_of(model: Model, name: str) -> tuple[int, int, int, int]:
    """Return the wait, target, residue and duration of the last call with a name."""
    items = model.items
    names = model.events.calls["name"].cast(str).to_list()
    row = max(i for i, call in enumerate(items.call.tolist()) if call >= 0 and names[call] == name)
    return int(items.wait[row]), int(items.target[row]), int(items.residue[row]), int(items.duration[row])


def waiting(name: str, start: int, end: int, *, memory: str = "Pinned", copy_end: int = 0) -> Model:
    """A model of kernels on two streams until 100 and 200 µs, and a call in µs that may wait for them."""
    program = Program()
    program.kernel(program.call(LAUNCH, 0, 5 * US), 7 * US, 100 * US)
    program.kernel(program.call(LAUNCH, 5 * US, 10 * US), 12 * US, 200 * US, stream_id=8)
    call = program.call(name, start * US, end * US)
    if copy_end:
        program.copy(call, (copy_end - 5) * US, copy_end * US, "Device-to-Host", dst_memory_kind=memory)
    elif "Synchronize" in name:
        program.sync(call, start * US, end * US)
    program.kernel(program.call(LAUNCH, 300 * US, 305 * US), 310 * US, 320 * US)
    model = program.model()
    check_recorded_times(model)
    return model


def test_a_synchronization_with_the_device() -> None:
    name = "cudaDeviceSynchronize_v3020"
    assert wait_of(waiting(name, 20, 203), name) == (WAIT_ALL, -1, 3 * US, 1500)
    assert wait_of(waiting(name, 210, 215), name) == (WAIT_ALL, -1, 0, 5 * US)
    assert wait_of(waiting(name, 20, 30), name) == (NO_WAIT, -1, 0, 10 * US)


def test_a_synchronization_with_a_stream() -> None:
    name = "cudaStreamSynchronize_v3020"
    assert wait_of(waiting(name, 20, 103), name) == (WAIT_LANE, 0, 3 * US, 1500)
    assert wait_of(waiting(name, 110, 115), name) == (WAIT_LANE, 0, 0, 5 * US)


def test_a_synchronization_with_an_event() -> None:
    """It waits for the operation that ended just before."""
    name = "cudaEventSynchronize_v3020"
    assert wait_of(waiting(name, 20, 103), name) == (WAIT_OPERATION, 0, 3 * US, 1500)
    assert wait_of(waiting(name, 20, 25), name) == (NO_WAIT, -1, 0, 5 * US)
    assert wait_of(waiting(name, 20, 190), name) == (NO_WAIT, -1, 0, 170 * US)


def test_a_synchronization_before_any_operation() -> None:
    program = Program()
    first = program.call("cudaDeviceSynchronize", 0, 100 * US)
    program.sync(first, 0, 100 * US)
    second = program.call("cudaStreamSynchronize", 100 * US, 200 * US)
    program.sync(second, 0, 100 * US)
    program.kernel(program.call(LAUNCH, 200 * US, 201 * US), 210 * US, 220 * US)
    model = program.model()
    assert model.items.wait.tolist() == [NO_WAIT] * 4
    check_recorded_times(model)


def test_a_synchronization_with_an_unknown_stream() -> None:
    """Nothing was recorded about it, so it waits for all streams."""
    program = Program()
    program.launch()
    program.wait("cudaStreamSynchronize")
    model = program.model()
    assert model.items.wait.tolist() == [NO_WAIT, WAIT_ALL]


def test_blocking_copies() -> None:
    name = "cudaMemcpyAsync_v3020"
    pageable = waiting(name, 20, 108, memory="Pageable", copy_end=106)
    assert wait_of(pageable, name) == (WAIT_OPERATION, 2, 2 * US, 3 * US)
    assert wait_of(waiting(name, 20, 25, copy_end=106), name) == (NO_WAIT, -1, 0, 5 * US)
    assert wait_of(waiting(name, 20, 25, memory="Pageable", copy_end=106), name)[0] == NO_WAIT
    assert wait_of(waiting("cudaMemcpy_v3020", 20, 108, copy_end=106), "cudaMemcpy_v3020")[0] == WAIT_OPERATION


def test_copies_of_calls_without_names() -> None:
    program = Program()
    program.kernel(program.call(LAUNCH, 0, 5 * US), 10 * US, 100 * US)
    program.copy(program.call(None, 20 * US, 108 * US), 101 * US, 106 * US, "Device-to-Host")
    model = program.model()
    assert model.items.wait[model.items.kind == CALL_NUMBERS["copy"]].tolist() == [WAIT_OPERATION]


def full_queue(outstanding: int, slow: int) -> Model:
    """A model of many launches that wait in the queue, the last of which takes some time."""
    program = Program()
    program.kernel(program.call(LAUNCH, 0, 1 * US), 2 * US, 10_000 * US, "first")
    now, free = 1 * US, 10_000 * US
    for _ in range(outstanding):
        program.kernel(program.call(LAUNCH, now, now + US), free + US, free + 3 * US)
        now, free = now + US, free + 3 * US
    begin = 10_000 * US + 5 * US - slow * US
    program.kernel(program.call(LAUNCH, begin, begin + slow * US), free + US, free + 3 * US)
    model = program.model()
    check_recorded_times(model)
    return model


def test_launches_into_a_full_queue() -> None:
    assert wait_of(full_queue(70, 300), LAUNCH)[0] == WAIT_OPERATION
    assert wait_of(full_queue(70, 20), LAUNCH)[0] == NO_WAIT
    assert wait_of(full_queue(10, 300), LAUNCH)[0] == NO_WAIT
    assert wait_of(full_queue(510, 20), LAUNCH)[0] == WAIT_OPERATION


def test_state_of_streams_before_the_first_step() -> None:
    program = Program()
    program.kernel(program.call(LAUNCH, 0, 5 * US), 7 * US, 700 * US, "before")
    program.now, program.free = 100 * US, {7: 700 * US}
    steps(program, 3, lambda _: program.launch())
    events = program.events()
    assert build_model(events, events.steps).lane_starts.tolist() == [701 * US]
    program.tables["kernels"][0]["end_ns"] = 100 * US
    events = program.events()
    assert build_model(events, events.steps).lane_starts.tolist() == [NEVER]


def test_steps_of_the_gpu_follow_one_another() -> None:
    """The CPU needs 10 µs for a step, and the GPU 100 µs."""
    program = Program()
    steps(program, 4, lambda _: [program.launch(), program.launch()])
    assert program.model().bounds.tolist() == [0, *(7 * US + 102 * US * n - US for n in (1, 2, 3, 4))]


def test_a_step_without_calls_and_duration() -> None:
    program = Program()
    program.range("step 0", 0, 0)
    program.range("step 1", 10, 10)
    program.kernel(program.call(LAUNCH, 20, 30), 40, 50)
    model = program.model()
    check_items(model)
    check_recorded_times(model)


def test_a_call_across_the_bound_of_steps() -> None:
    program = Program()
    program.kernel(program.call(LAUNCH, 50 * US, 150 * US, thread_id=2), 160 * US, 170 * US)
    program.range("step 0", 0, 100 * US)
    program.range("step 1", 100 * US, 200 * US)
    model = program.model()
    assert model.bounds.tolist() == [0, 170 * US, 200 * US]
    check_recorded_times(model)


def test_some_of_the_steps() -> None:
    program = Program()
    steps(program, 5, lambda _: [program.launch(), program.pause(MS)])
    events = program.events()
    model = build_model(events, events.steps[1:3])
    assert len(model.operations.start) == 2
    assert model.step_of_item.tolist() == [0, 0, 1, 1]
    assert model.duration_ns == 2 * (MS + 5 * US)
    check_recorded_times(model)


def test_selections() -> None:
    program = Program()
    program.range("forward", 0, 4 * US)
    program.launch("softmax_kernel")
    program.transfer(bytes=5)
    program.wait()
    program.pause(MS)
    program.launch()
    model = program.model()
    assert model.find_kind("synchronize", "copy").sum() == 2
    assert model.find_class("softmax", "copy_h2d").tolist() == [True, True, False]
    assert model.match_names("^soft").tolist() == [True, False, False]
    assert model.match_labels("for").tolist() == [False, True]
    assert model.bytes.tolist() == [0, 5, 0]
    assert model.blocks.tolist() == [1000, 0, 1000]
    assert model.long_pauses.sum() == 1
    assert model.pauses.sum() >= model.long_pauses.sum()
