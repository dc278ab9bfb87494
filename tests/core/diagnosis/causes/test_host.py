"""Causes on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.builders.programs import HALF_GEMM, MS, US, Program, find_cure, steps

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def run(body: Callable[[Program, int], object], count: int = 5) -> Program:
    program = Program()
    return steps(program, count, lambda number: body(program, number))


def work(program: Program, label: str | None, ns: int = 3 * MS) -> None:
    """Work on the CPU, in a range if there is a label."""
    start = program.now
    program.pause(ns)
    if label:
        program.range(label, start, program.now)


@pytest.mark.parametrize(
    ("label", "cause"),
    [
        ("load batch", "data_loading"),
        ("next_batch", "data_loading"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data_loading"),
        ("save checkpoint", "blocking_io"),
        ("logging", "blocking_io"),
        ("augment", "cpu_work"),
        ("tokenize 12", "cpu_work"),
        ("forward", "cpu_work"),
        (None, "cpu_work"),
    ],
)
def test_work_on_the_cpu_in_a_range(label: str | None, cause: str) -> None:
    program = run(lambda p, _: [p.launch(HALF_GEMM), p.launch(HALF_GEMM), work(p, label), p.launch(HALF_GEMM)])
    cure = find_cure(program, cause)
    place = {None: "", "tokenize 12": "tokenize"}.get(label, "data loader" if label and "Data" in label else label)
    assert cure.place == place
    assert cure.evidence == "the CPU works without API calls for 3 ms per step, in 1 pause per step"


def test_distributed_data_parallel_loads_no_data() -> None:
    program = run(lambda p, _: [p.launch(HALF_GEMM), work(p, "DistributedDataParallel.prepare"), p.launch(HALF_GEMM)])
    assert find_cure(program, "cpu_work").place == "DistributedDataParallel.prepare"


def before_a_copy() -> Program:
    """Work of 3 ms before a large copy to the GPU, and of 5 ms before a kernel."""

    def body(program: Program, _: int) -> None:
        program.launch(HALF_GEMM)
        program.pause(3 * MS)
        program.transfer(bytes=10**6)
        program.launch(ADD)
        program.pause(5 * MS)
        program.launch(HALF_GEMM)

    return run(body)


def pauses(program: Program) -> list[tuple[int, int]]:
    """The times between the first two calls of each step."""
    calls = program.tables["api_calls"]
    return [(a["end_ns"], b["start_ns"]) for a, b in zip(calls[::4], calls[1::4], strict=True)]


def add_stack(program: Program, *frames: tuple[int, int | None, str]) -> None:
    for number, parent, symbol in frames:
        program.tables["stacks"].append({"stack_id": number, "parent_id": parent, "depth": 1, "symbol": symbol})


def test_work_before_a_copy_to_the_gpu() -> None:
    """Nothing shows that it loads data."""
    program = before_a_copy()
    assert [c.evidence.split(",")[0] for c in program.cures() if c.cause == "cpu_work"] == [
        "the CPU works without API calls for 3 ms per step",
        "the CPU works without API calls for 5 ms per step",
    ]


@pytest.mark.parametrize("name", ["read", "poll", "pthread_cond_wait"])
def test_reading_and_waiting_before_a_copy_loads_data(name: str) -> None:
    program = before_a_copy()
    for number, (start, end) in enumerate(pauses(program)):
        row = {"osrt_call_id": number, "event_class": 1, "name_id": 0, "return_value": 0, "name": name}
        program.add("osrt_calls", start_ns=start, end_ns=end, thread_id=1, **row)
    assert "for 3 ms per step" in find_cure(program, "data_loading").evidence
    assert "for 5 ms per step" in find_cure(program, "cpu_work").evidence


def test_a_thread_that_does_not_run_before_a_copy_loads_data() -> None:
    program = before_a_copy()
    for number, (start, end) in enumerate(pauses(program)):
        for k, (time, is_in) in enumerate([(start, False), (end, True)]):
            row = {"timestamp_ns": time, "is_scheduled_in": is_in, "thread_id": 1}
            program.add("cpu_scheduling", cpu_scheduling_id=2 * number + k, **row)
    assert "for 3 ms per step" in find_cure(program, "data_loading").evidence


def test_decoding_before_a_copy_loads_data() -> None:
    program = before_a_copy()
    add_stack(program, (1, None, "main"), (2, 1, "ImagingJpegDecode"))
    for number, (start, _) in enumerate(pauses(program)):
        sample = {"cpu_sample_id": number, "cpu_cycles": 1, "stack_id": 2}
        program.add("cpu_samples", timestamp_ns=start + MS, thread_id=1, **sample)
    assert find_cure(program, "data_loading").functions == ["ImagingJpegDecode"]


def test_work_in_some_steps() -> None:
    """Short work that occurs in every fifth step is no cause, long work is."""

    def create_body(ns: int) -> Callable[[Program, int], object]:
        return lambda p, number: [
            p.launch(HALF_GEMM),
            p.pause(ns if number % 5 == 4 else 10 * US),
            p.launch(ADD),
        ]

    assert "cpu_work" not in run(create_body(2 * MS), 15).causes()
    assert "cpu_work" in run(create_body(30 * MS), 15).causes()


@pytest.mark.slow
def test_periodic_work_at_changing_places() -> None:
    """Work of 11 ms in every fourth step follows another kernel each time."""

    def body(program: Program, number: int) -> None:
        program.launch(f"kernel_{number}")
        program.pause(11 * MS if number % 4 == 3 else 10 * US)
        program.launch(HALF_GEMM)

    assert find_cure(run(body, 13), "cpu_work").evidence.endswith("for 2.54 ms per step, in 3 pauses in 13 steps")
    assert len(find_cure(run(body, 13), "cpu_work").items[0][0]) == 3


def test_work_in_a_single_step() -> None:
    program = Program()
    program.launch(HALF_GEMM)
    program.pause(3 * MS)
    program.launch(HALF_GEMM)
    assert find_cure(program, "cpu_work").evidence.startswith("the CPU works without API calls for 3 ms, in 1 pause")
    program.launch(HALF_GEMM, 100 * MS)
    program.wait()
    assert "cpu_work" not in program.causes()


def test_work_of_neighboring_ranges() -> None:
    """Each of two ranges that follow one another owns its own work."""

    def body(program: Program, _: int) -> None:
        for label in ("augment", "tokenize"):
            start = program.now
            program.pause(3 * MS)
            program.range(label, start, program.now)
        program.launch(HALF_GEMM)

    cures = {cure.place: cure for cure in run(body).cures() if cure.cause == "cpu_work"}
    owned = {place: int((run(body).model().items.duration[cure.item_rows]).sum()) for place, cure in cures.items()}
    assert owned == {"augment": 15 * MS, "tokenize": 15 * MS}


def test_short_pauses_belong_to_launching() -> None:
    program = run(lambda p, _: [p.launch(HALF_GEMM), p.pause(150 * US), p.launch(ADD)])
    assert program.causes() == []


def os_calls(name: str, ns: int = 3 * MS) -> Program:
    """Work during which the main thread makes an operating system call, and another thread one, too."""
    program = run(lambda p, _: [p.launch(HALF_GEMM), work(p, None), p.launch(HALF_GEMM)])
    rows = [(r["start_ns"], r["end_ns"]) for r in program.tables["api_calls"][::2]]
    for number, (_, start) in enumerate(rows):
        row = {"osrt_call_id": number, "event_class": 1, "name_id": 0, "return_value": 0, "name": name}
        program.add("osrt_calls", start_ns=start - 10, end_ns=start + ns, thread_id=1, **row)
        program.add("osrt_calls", start_ns=start, end_ns=start + 3 * MS, thread_id=9, **{**row, "name": "fsync"})
    return program


def test_operating_system_calls_name_the_work() -> None:
    assert find_cure(os_calls("write"), "blocking_io").evidence.endswith(", mostly in write")
    assert find_cure(os_calls("nanosleep"), "cpu_work").evidence.endswith(", mostly in nanosleep")
    assert find_cure(os_calls("write", 10 * US), "cpu_work").evidence.endswith("1 pause per step")


def test_samples_name_the_work() -> None:
    program = run(lambda p, _: [p.launch(HALF_GEMM), work(p, None), p.launch(HALF_GEMM)])
    add_stack(
        program, (1, None, "main"), (2, 1, "tokenize"), (3, 2, "PyObject_Call"), (4, 1, "read"), (5, None, "_start")
    )
    for number, row in enumerate(program.tables["api_calls"][::2]):
        for k, stack in enumerate([3, 2, 4, 5] if number else [2]):
            sample = {"cpu_sample_id": 10 * number + k, "cpu_cycles": 1, "stack_id": stack}
            program.add("cpu_samples", timestamp_ns=row["end_ns"] + 5 + k, thread_id=1, **sample)
        program.add("cpu_samples", cpu_sample_id=0, timestamp_ns=row["start_ns"], thread_id=1, stack_id=5, cpu_cycles=1)
    assert find_cure(program, "cpu_work").functions == ["tokenize", "read"]
    for row in program.tables["cpu_samples"]:
        row["stack_id"] = 5
    assert find_cure(program, "cpu_work").functions == []


def test_round_trip_in_a_range() -> None:
    def body(program: Program, _: int) -> None:
        program.launch(HALF_GEMM)
        start = program.now
        program.transfer("Device-to-Host", blocks=True, bytes=4_000_000, dst_memory_kind="Pageable")
        program.pause(3 * MS)
        program.transfer(blocks=True, bytes=4_000_000, src_memory_kind="Pageable")
        program.range("filter on the CPU", start, program.now)
        program.launch(HALF_GEMM)

    cure = find_cure(run(body), "host_round_trip")
    assert cure.place == "filter on the CPU"
    assert cure.evidence.startswith("the CPU copies 4 MB per step from the GPU and works on it and copies results back")
    assert len(cure.operation_rows) == 10
    assert len(cure.waits) == 10


def test_data_that_stays_on_the_host() -> None:
    def body(program: Program, _: int) -> None:
        program.launch(HALF_GEMM)
        start = program.now
        program.transfer("Device-to-Host", blocks=True, bytes=4_000_000, dst_memory_kind="Pageable")
        program.pause(3 * MS)
        program.range("export", start, program.now)
        program.launch(HALF_GEMM)

    cure = find_cure(run(body), "blocking_io")
    assert cure.evidence.startswith("the CPU copies 4 MB per step from the GPU and uses it there")


@pytest.mark.slow
@pytest.mark.parametrize(("back", "cause"), [(True, "host_round_trip"), (False, "blocking_io")])
def test_round_trip_without_a_range(back: bool, cause: str) -> None:
    def body(program: Program, _: int) -> None:
        program.launch(HALF_GEMM)
        program.transfer("Device-to-Host", blocks=True, bytes=4_000_000, dst_memory_kind="Pageable")
        program.pause(3 * MS)
        if back:
            program.transfer(blocks=True, bytes=4_000_000, src_memory_kind="Pageable")
        program.launch(HALF_GEMM)

    assert find_cure(run(body), cause).place == ""


def test_small_results_are_no_round_trip() -> None:
    def body(program: Program, _: int) -> None:
        program.launch(HALF_GEMM)
        program.transfer("Device-to-Host", blocks=True, bytes=4, dst_memory_kind="Pageable")
        work(program, "metrics")
        program.launch(HALF_GEMM)

    assert "host_round_trip" not in run(body).causes()
    assert "blocking_io" not in run(body).causes()


def test_synchronizations() -> None:
    """The last synchronization of the capture does not count, as it is not in the loop."""

    def body(program: Program, _: int) -> None:
        program.launch(HALF_GEMM, MS)
        program.wait()
        program.pause(20 * US)
        program.launch(HALF_GEMM, MS)
        program.transfer("Device-to-Host", US, blocks=True, bytes=4, dst_memory_kind="Pageable")
        program.pause(20 * US)

    cure = find_cure(run(body), "synchronization")
    assert cure.evidence.startswith(
        "the CPU waits for the GPU 1 time per step, and reads small values 1 time per step, for 2.01 ms per step"
    )
    assert len(cure.waits) == 10
    assert len(cure.operation_rows) == 5


def test_without_small_values() -> None:
    program = run(lambda p, _: [p.launch(HALF_GEMM, MS), p.wait(), p.pause(20 * US)])
    assert "reads small values" not in find_cure(program, "synchronization").evidence


def test_a_synchronization_at_the_end_is_none_in_the_loop() -> None:
    program = Program()
    program.launch(HALF_GEMM, MS)
    program.wait()
    assert "synchronization" not in program.causes()


@pytest.mark.parametrize(("count", "is_cause"), [(21, True), (20, False)])
def test_launch_overhead(count: int, is_cause: bool) -> None:
    def body(program: Program, _: int) -> None:
        for _ in range(count):
            program.launch("my_kernel", 2 * US)
            program.pause(20 * US)

    program = run(body)
    assert ("launch_overhead" in program.causes()) == is_cause
    if is_cause:
        cure = find_cure(program, "launch_overhead")
        assert cure.evidence == ("21 launches per step cost the CPU 525 µs per step; the median kernel takes 2 µs")
        assert cure.max_gap_ns == 300
        assert [stays for _, stays in cure.items] == [(0.1, 0.03, 0.01)]


@pytest.mark.parametrize(
    ("name", "label"), [("my_kernel", "backward"), ("multi_tensor_apply_kernel", ""), ("softmax_backward", "")]
)
@pytest.mark.parametrize("has_others", [False, True])
def test_launch_overhead_of_training(name: str, label: str, *, has_others: bool) -> None:
    def body(program: Program, _: int) -> None:
        start = program.now
        if has_others:
            program.launch("cutlass_80_simt_sgemm_128x256_8x4_nt_align1", MS)
        for _ in range(30):
            program.launch(name, 4 * US)
            program.pause(20 * US)
        if label:
            program.range(label, start, program.now)

    cure = find_cure(run(body), "launch_overhead")
    assert [stays for _, stays in cure.items] == [(0.95, 0.8, 0.1) if has_others else (0.85, 0.15, 0.03)]
    assert cure.max_gap_ns is None


def test_code_between_launches_that_recurs() -> None:
    """Pauses of 0.3 ms between the same kernels of all steps belong to launching."""

    def body(program: Program, _: int) -> None:
        for number in range(30):
            program.launch(f"kernel_{number}", 2 * US)
            program.pause(300 * US)

    cure = find_cure(run(body), "launch_overhead")
    assert "cost the CPU 9.09 ms per step" in cure.evidence


def test_a_launch_of_a_graph() -> None:
    def body(program: Program, _: int) -> None:
        for _ in range(25):
            call = program.do("cudaGraphLaunch_v10000")
            for node in range(3):
                start = program.now + (10 * node + 2) * US
                program.kernel(call, start, start + 8 * US, graph_node_id=node)
            program.pause(40 * US)

    cure = find_cure(run(body), "launch_overhead")
    assert cure.max_gap_ns is None


def test_loading_of_code_in_one_step() -> None:
    def body(program: Program, number: int) -> None:
        program.launch(HALF_GEMM, MS)
        if number == 2:
            program.do("cuModuleLoadData", MS)
        program.launch(ADD)

    cure = find_cure(run(body), "first_call")
    assert cure.evidence == (
        "code is compiled, loaded or unloaded 1 time in 5 steps, before it can be reused, for 200 µs per step"
    )


def test_short_loading_is_no_cause() -> None:
    program = run(lambda p, _: [p.launch(HALF_GEMM, 10 * MS), p.wait(), p.do("cuModuleGetFunction", US)])
    assert "first_call" not in program.causes()


def test_recompilation() -> None:
    """Code is compiled for 2 ms and loaded in every step."""

    def body(program: Program, number: int) -> None:
        program.launch(HALF_GEMM, 100 * US)
        program.wait()
        program.pause(2 * MS)
        program.do("cuModuleLoadData", 100 * US)
        program.launch(f"triton_poi_fused_{number}")

    cure = find_cure(run(body), "recompilation")
    what = "code is compiled, loaded or unloaded 1 time per step, in 100% of the steps"
    assert cure.evidence == f"{what}, for 2.1 ms per step"


def first_calls(*, rare: bool = False, name: str = "aten::linear") -> Program:
    """Steps with an operation that takes 5 ms when it meets a shape for the first time, and then 0.1 ms."""

    def body(program: Program, number: int) -> None:
        program.launch(HALF_GEMM, 100 * US)
        for call in range(2):
            start = program.now
            is_first = call == 0 and (not rare or number == 4)
            program.pause(5 * MS if is_first else 100 * US)
            program.launch(ADD)
            shape = number if not rare or number == 4 else 0
            text = f'{{"Input Dims": [[{shape}, 4]]}}'
            program.range(name, start, program.now, payload_text=text.replace("[[", "[").replace("]]", "]"))

    return run(body)


def test_first_calls_of_shapes() -> None:
    cure = find_cure(first_calls(), "first_call")
    assert cure.evidence == (
        "5 first calls, mostly of aten::linear, take 24.5 ms longer than later calls of the same shapes"
    )


def test_a_single_first_call() -> None:
    program = Program()
    for number in range(3):
        start = program.now
        program.pause(20 * MS if number == 0 else 100 * US)
        program.launch(ADD)
        program.range("aten::linear", start, program.now)
    assert find_cure(program, "first_call").evidence.startswith("the first call of aten::linear takes 19.9 ms longer")


def test_each_first_call_is_counted_once() -> None:
    """Loading of code within a first call belongs to one of two cures."""
    program = Program()
    for number in range(3):
        start = program.now
        if number == 0:
            program.do("cuModuleLoadData", 20 * MS)
        program.launch(ADD)
        program.range("aten::linear", start, program.now)
    assert find_cure(program, "first_call").evidence.startswith("code is compiled, loaded or unloaded 1 time, before")


@pytest.mark.parametrize(("ns", "is_cause"), [(200 * MS, True), (9 * MS, False)])
def test_the_call_that_creates_the_context_is_a_first_call(ns: int, is_cause: bool) -> None:
    """It is no allocation in the loop."""
    program = Program()
    program.do("cudaMalloc_v3020", ns)
    for _ in range(3):
        program.do("cudaMalloc_v3020", 10 * US)
        program.launch(ADD)
        program.wait()
    assert ("first_call" in program.causes()) == is_cause


def test_unloading_of_modules_is_no_launch_overhead() -> None:
    program = Program()
    for _ in range(100):
        program.do("cuModuleUnload", 40 * US)
        program.launch(ADD)
    cure = find_cure(program, "first_call")
    assert "unloaded 100 times, before" in cure.evidence


def test_first_calls_in_few_steps_and_of_operations_that_wait() -> None:
    assert "first_call" not in first_calls(rare=True).causes()
    assert "first_call" not in first_calls(name="aten::item").causes()


@pytest.mark.parametrize(("share", "is_cause"), [(0.6, True), (0.4, False)])
def test_ranges_of_compilers(share: float, is_cause: bool) -> None:
    """Pauses in which a compiler works for most of the time are recompilation."""

    def body(program: Program, _: int) -> None:
        program.launch(HALF_GEMM, 100 * US)
        start = program.now
        program.pause(3 * MS)
        program.range("XlaCompile", start, start + int(share * 3 * MS), thread_id=9)
        program.launch(ADD)

    assert ("recompilation" in run(body).causes()) == is_cause


@pytest.mark.parametrize(("pauses", "is_cause"), [(1, False), (2, False), (4, True), (12, True)])
def test_pauses_in_a_capture_without_steps_recur_at_their_place(pauses: int, is_cause: bool) -> None:
    """A single long pause between operations that usually follow each other at once is a stall."""
    program = Program()
    for number in range(12):
        program.launch("first", 50 * US)
        program.pause(5 * MS if number < pauses else 10 * US)
        program.launch("second", 50 * US)
    assert ("cpu_work" in program.causes()) == is_cause


def test_unique_places_of_pauses() -> None:
    program = Program()
    for name in ("first", "second", "third"):
        program.launch(name, 50 * US)
        program.pause(5 * MS)
    inspection = program.inspection()
    rows = np.flatnonzero(inspection.model.long_pauses)
    assert inspection.measure_recurrence(rows, MS).tolist() == [1.0] * len(rows)


def test_waits_for_locks_are_named() -> None:
    for name in ("pthread_mutex_lock", "pthread_cond_wait", "sem_wait"):
        evidence = find_cure(os_calls(name), "cpu_work").evidence
        assert evidence.endswith(f", mostly in {name}, waiting for a lock or another thread")
    assert find_cure(os_calls("\x1b[31m=1+1"), "cpu_work").evidence.endswith(", mostly in \x1b[31m=1+1")


@pytest.mark.parametrize(("depth", "text"), [(0, "100% of the samples wait for the GIL"), (5, "100%"), (6, None)])
def test_waits_for_the_gil_are_named(depth: int, text: str | None) -> None:
    program = os_calls("poll")
    symbols = [*["pthread_cond_timedwait"] * depth, "take_gil", "_PyEval_EvalFrameDefault"]
    for number, symbol in enumerate(symbols):
        parent = number + 1 if number + 1 < len(symbols) else None
        program.tables["stacks"].append(
            {"stack_id": number, "parent_id": parent, "depth": len(symbols) - number, "symbol": symbol}
        )
    for number, call in enumerate(program.tables["osrt_calls"][::2]):
        row = {"cpu_sample_id": number, "thread_id": 1, "stack_id": 0}
        program.add("cpu_samples", timestamp_ns=call["start_ns"] + MS, **row)
    evidence = find_cure(program, "cpu_work").evidence
    assert text in evidence if text else "GIL" not in evidence


def test_what_to_record_if_nothing_names_the_work() -> None:
    assert find_cure(os_calls("poll"), "cpu_work").missing == ""
    program = run(lambda p, _: [p.launch(HALF_GEMM), work(p, None), p.launch(HALF_GEMM)])
    assert find_cure(program, "cpu_work").missing.endswith("nsys profile --sample=process-tree --trace=cuda,nvtx,osrt")
    program.range("aten::mm", 0, US, domain="cpu_op")
    assert find_cure(program, "cpu_work").missing.endswith(": profile(with_stack=True)")


CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc"


@pytest.mark.parametrize(("count", "is_cause"), [(3, True), (2, False)])
def test_plans_of_convolutions(count: int, is_cause: bool) -> None:
    """Long pauses before several convolutions of a step build plans. Before one, the program may work."""

    def body(program: Program, _: int) -> None:
        for _ in range(count):
            program.pause(3 * MS)
            program.launch(CONVOLUTION, 50 * US)

    causes = run(body).causes()
    assert ("first_call" in causes) == is_cause
    assert ("cpu_work" in causes) == (not is_cause)


FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>"


@pytest.mark.parametrize(
    ("count", "steps", "events", "cause"),
    [(10, 5, True, "recompilation"), (10, 1, True, "first_call"), (7, 5, True, None), (10, 5, False, None)],
)
def test_autotuning(count: int, steps: int, events: bool, cause: str | None) -> None:
    """A kernel that is measured again and again, each time after memory is cleared, is being tuned."""

    def body(program: Program, number: int) -> None:
        for _ in range(count if number >= 5 - steps else 1):
            program.launch(FILL, 50 * US)
            if events:
                program.call("cudaEventRecord_v3020", program.now, program.now + US)
                program.now += 2 * US
            program.launch("gelu", 50 * US)
        program.wait()

    causes = {"recompilation", "first_call"} & set(run(body).causes())
    assert causes == ({cause} if cause else set())


@pytest.mark.parametrize(
    ("name", "function", "cause"),
    [
        ("poll", None, "host_round_trip"),
        ("write", None, "blocking_io"),
        (None, "add_up", "host_round_trip"),
        (None, "write_checkpoint", "blocking_io"),
        (None, None, "blocking_io"),
    ],
)
def test_results_that_the_program_needs(name: str | None, function: str | None, cause: str) -> None:
    """Data that is used on the host in every step is a result, if it is known that no files are written."""

    def body(program: Program, _: int) -> None:
        program.launch(HALF_GEMM, MS)
        program.transfer("Device-to-Host", 200 * US, blocks=True, bytes=2 * 10**6)
        start = program.now
        program.pause(5 * MS)
        if name:
            program.add("osrt_calls", thread_id=1, name=name, start_ns=start + MS, end_ns=start + 2 * MS)
        if function:
            program.add("cpu_samples", thread_id=1, timestamp_ns=start + MS, stack_id=1)

    program = run(body)
    if function:
        program.add("stacks", stack_id=1, parent_id=None, symbol=function)
    causes = program.causes()
    assert cause in causes
    assert len({"host_round_trip", "blocking_io"} & set(causes)) == 1


@pytest.mark.parametrize(("label", "every"), [("save", 1), (None, 2)])
def test_files_are_written_under_a_name_that_says_so_or_in_some_steps(label: str | None, every: int) -> None:
    def body(program: Program, number: int) -> None:
        program.launch(HALF_GEMM, MS)
        if number % every == 0:
            start = program.now
            program.transfer("Device-to-Host", 200 * US, blocks=True, bytes=2 * 10**6)
            program.add("osrt_calls", thread_id=1, name="poll", start_ns=program.now, end_ns=program.now + MS)
            program.pause(5 * MS)
            if label:
                program.range(label, start, program.now)

    assert "blocking_io" in run(body, 6).causes()
