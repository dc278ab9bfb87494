"""The events of one process: steps, calls, GPU operations, labels, and the main thread."""

from __future__ import annotations

import polars as pl
import pytest
from tests.builders.programs import LAUNCH, MS, US, Program, steps
from tracekit.core.diagnosis import kinds
from tracekit.core.diagnosis.events import convert_to_label_expr, read_events


def loop(count: int = 4, *, thread: int | None = 1, process: int | None = 1) -> Program:
    """A loop of steps with two kernels each."""
    program = Program(process=process, thread=thread)

    def body(_: int) -> None:
        program.launch("gemm")
        program.launch("relu")
        program.pause(MS)

    return steps(program, count, body)


def test_steps_and_operations() -> None:
    events = loop().events()
    assert events.process_id == 1
    assert events.key_op == "step *"
    assert [s.name for s in events.steps] == ["step 0", "step 1", "step 2", "step 3"]
    assert [s.end_ns - s.start_ns for s in events.steps] == [MS + 10 * US] * 4
    assert not any(s.is_cold for s in events.steps)
    assert events.main_thread == 1
    assert events.calls["call_id"].to_list() == list(range(1, 9))
    assert events.calls["kind"].to_list() == [kinds.CALL_NUMBERS["launch"]] * 8
    assert events.operations["call"].to_list() == list(range(8))
    assert events.operations["blocks"].to_list() == [1000] * 8
    assert events.operations["threads"].to_list() == [256] * 8
    assert events.operations["id"].to_list() == list(range(8))
    assert events.lanes.select("device_id", "context_id", "stream_id", "lane").rows() == [(0, 1, 7, 0)]


def test_no_work_on_the_gpu() -> None:
    program = Program()
    assert list(read_events(program.rollup())) == []
    program.call("cudaMalloc", 0, 10)
    program.range("step 1", 0, 10)
    assert list(read_events(program.rollup())) == []
    program.kernel(None, 20, 10)
    assert list(read_events(program.rollup())) == []


def test_the_process_with_the_most_gpu_work_comes_first() -> None:
    program = loop()
    program.process = 2
    program.kernel(None, 0, 100 * MS)
    program.process = None
    program.kernel(None, 0, 10)
    assert [e.process_id for e in read_events(program.rollup())] == [2, 1, None]


def test_steps_of_another_process_apply() -> None:
    program = loop()
    program.process = 2
    program.kernel(None, 0, 10)
    own, other = read_events(program.rollup())
    assert (own.process_id, other.process_id) == (1, 2)
    assert [s.name for s in other.steps] == [s.name for s in own.steps]
    assert other.main_thread is None


def test_without_processes_and_threads() -> None:
    events = loop(process=None, thread=None).events()
    assert events.process_id is None
    assert events.main_thread is None
    assert events.calls.height == events.operations.height == 8
    assert events.operations["call"].null_count() == 8  # ids of an unknown process link nothing


def test_without_calls() -> None:
    program = Program()
    program.kernel(None, 10, 20)
    program.memset(None, 30, 40)
    events = program.events()
    assert events.key_op is None
    assert events.steps == (("whole capture", 10, 40, False, 0),)
    assert events.calls.is_empty()
    assert events.main_thread is None
    assert events.operations["call"].to_list() == [None, None]
    assert events.ranges.is_empty()
    assert events.labels.find(pl.Series([0, 15]).to_numpy()).tolist() == [0, 0]


def test_calls_without_names_are_named_after_what_they_launch() -> None:
    program = Program()
    work = (
        (program.kernel, "launch"),
        (program.copy, "copy"),
        (program.memset, "memset"),
        (program.graph, "graph_launch"),
    )
    for i, (run, _) in enumerate(work):
        run(program.call(None, 100 * i, 100 * i + 10), 100 * i + 20, 100 * i + 90)
    program.kernel(program.call("cudaGraphLaunch", 400, 410), 420, 490)
    program.call(None, 500, 510)
    expected = [*(kind for _, kind in work), "graph_launch", "other"]
    assert program.events().calls["kind"].to_list() == [kinds.CALL_NUMBERS[kind] for kind in expected]


def test_iterations_that_a_profiler_recorded_are_steps() -> None:
    program = Program()
    for i in range(4):
        program.kernel(program.call(LAUNCH, 100 * MS * i, 100 * MS * i + 10), 100 * MS * i + 20, 100 * MS * i + 90)
        times = {"start_ns": 100 * MS * i, "end_ns": 100 * MS * (i + 1)}
        program.add("iterations", iteration=i, key_op="backward", is_aggregated=i > 0, **times)
    events = program.events()
    assert events.key_op == "backward"
    assert [(s.name, s.start_ns // MS, s.end_ns // MS) for s in events.steps] == [
        (f"step {i}", 100 * i, 100 * i + 100) for i in range(4)
    ]


def test_whole_capture_extends_over_calls() -> None:
    program = Program()
    program.kernel(program.call(LAUNCH, 5, 8), 10, 20)
    program.call("cudaDeviceSynchronize", 21, 30)
    assert program.events().steps == (("whole capture", 5, 30, False, 0),)


def test_cold_steps() -> None:
    program = Program()

    def body(number: int) -> None:
        program.launch()
        program.pause(10 * MS if number == 0 else MS)

    events = steps(program, 5, body).events()
    assert [s.is_cold for s in events.steps] == [True, False, False, False, False]


def test_chosen_steps_are_not_cold() -> None:
    program = Program()

    def body(number: int) -> None:
        program.launch()
        program.pause(10 * MS if number == 0 else MS)

    steps(program, 5, body)
    chosen = next(read_events(program.rollup(span=(0, 2))))
    assert [(s.name, s.is_cold) for s in chosen.steps] == [("step 0", False), ("step 1", False), ("step 2", False)]


def test_kinds_of_operations() -> None:
    program = Program()
    program.kernel(None, 0, 5, "ampere_sgemm_128x64_nn", graph_node_id=3, graph_id=9)
    program.copy(None, 10, 15, "Host-to-Device", src_memory_kind="Pageable", bytes=7)
    program.copy(None, 20, 25, "Device-to-Host", dst_memory_kind="Pageable")
    program.copy(None, 30, 35, "Device-to-Device", src_memory_kind=None)
    program.copy(None, 40, 45, "Host-to-Host")
    program.copy(None, 50, 55, "HtoD")
    program.copy(None, 60, 65, "DtoH")
    program.copy(None, 70, 75, None)
    program.memset(None, 80, 85)
    program.graph(None, 90, 95, graph_exec_id=4)
    operations = program.events().operations
    assert [kinds.CLASS_NAMES[c] for c in operations["cls"]] == [
        *("matmul_fp32", "copy_h2d", "copy_d2h", "copy_d2d", "copy_d2d", "copy_h2d", "copy_d2h", "copy_d2d"),
        *("memset", "opaque_graph"),
    ]
    assert operations["pageable"].to_list() == [False, True, True] + [False] * 7
    assert operations["bytes"].to_list() == [None, 7] + [1000] * 7 + [None]
    assert operations["graph_node_id"][0] == 3
    assert operations["graph_id"].to_list() == [9] + [None] * 8 + [4]
    assert operations["table"].to_list() == ["kernels"] + ["memcpys"] * 7 + ["memsets", "graph_launches"]


def test_streams_have_numbers() -> None:
    program = Program()
    for number, (device, stream) in enumerate([(1, 7), (0, 9), (0, 7), (1, 7)]):
        program.kernel(None, number, number + 1, device_id=device, stream_id=stream)
    events = program.events()
    assert events.lanes.select("device_id", "stream_id", "lane").rows() == [(0, 7, 0), (0, 9, 1), (1, 7, 2)]
    assert events.operations["lane"].to_list() == [2, 1, 0, 2]


def test_the_main_thread_runs_the_steps() -> None:
    """Another thread launches the kernels."""
    program = loop(thread=2)
    for row in program.tables["nvtx_ranges"]:
        row["thread_id"] = 1
    assert program.events().main_thread == 1


def test_the_thread_with_most_launches_is_the_main_thread() -> None:
    program = Program()
    for thread, start in ((1, 0), (2, 10), (2, 20)):
        program.kernel(program.call(LAUNCH, start, start + 1, thread_id=thread), start + 5, start + 6)
    for start in range(30, 40):
        program.call("cudaGetDevice", start, start, thread_id=3)
    assert program.events().main_thread == 2
    program.tables["kernels"] = []
    program.kernel(None, 0, 1)
    assert program.events().main_thread == 3


def test_a_call_that_ends_before_it_starts_is_ignored() -> None:
    program = loop()
    program.call("cudaMalloc", 50, 40)
    assert program.events().calls.height == 8


def test_correlation_ids_are_those_of_the_process() -> None:
    program = loop()
    program.process = 2
    program.call(LAUNCH, 0, 1, correlation_id=1)
    program.kernel(1, 0, 1)
    own, other = read_events(program.rollup())
    assert own.operations["call"].to_list() == list(range(8))
    assert other.operations["call"].to_list() == [0]


LABELED = [
    ("step 0", 0, 100),
    ("forward", 10, 60),
    ("layer 3", 20, 40),
    ("aten::mm", 25, 35),
    ("Optimizer.step#Adam.step", 70, 80),
    ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 85, 90),
]


def labels_at(program: Program, *times: int) -> list[str]:
    labels = program.events().labels
    return [labels.names[n] for n in labels.find(pl.Series(times, dtype=pl.Int64).to_numpy())]


def test_labels() -> None:
    program = Program()
    for offset in (0, 100, 200):
        for name, start, end in LABELED:
            program.range(name.replace("step 0", f"step {offset}"), start + offset, end + offset)
        program.kernel(program.call(LAUNCH, offset + 5, offset + 6), offset + 7, offset + 8)
    at = labels_at(program, -5, 5, 15, 20, 26, 40, 59, 60, 75, 87, 95, 115, 1000)
    assert at == [
        *("", "", "forward", "layer", "layer", "forward", "forward", "", "optimizer", "data loader", "", "forward", ""),
    ]


def test_only_ranges_of_the_program_on_the_main_thread_have_labels() -> None:
    program = loop()
    program.range("elsewhere", 0, MS, thread_id=9)
    program.range("asynchronous", 0, MS, kind="start_end")
    program.range("open", 0, None)
    program.range(None, 0, MS)
    program.range("empty", 5, 5)
    program.range("collective", 0, MS, domain="NCCL")
    program.process = 2
    program.range("other process", 0, MS)
    assert program.events().labels.names == [""]


def test_only_names_of_frameworks() -> None:
    program = Program()
    for start in (0, 100, 200):
        program.range(f"ProfilerStep#{start}", start, start + 90)
        program.range("aten::linear", start + 10, start + 50)
        program.kernel(program.call(LAUNCH, start + 20, start + 22), start + 25, start + 30, "void at::native::k")
    events = program.events()
    assert events.labels.names == [""]
    assert events.framework == "pytorch"
    assert len(events.steps) == 3


@pytest.mark.parametrize(
    ("kernel", "name", "framework"),
    [
        ("void at::native::vectorized_elementwise_kernel<4>", "x", "pytorch"),
        ("triton_poi_fused_add_0", "x", "pytorch"),
        ("k", "Optimizer.step#SGD.step", "pytorch"),
        ("loop_add_fusion", "x", "jax"),
        ("k", "jit_step", "jax"),
        ("k", "XlaModule:#hlo_module=jit_f#", "jax"),
        ("void tensorflow::functor::FillPhiloxRandomKernelLaunch", "x", "tensorflow"),
        ("void Eigen::internal::EigenMetaKernel<float>", "x", "tensorflow"),
        ("saxpy", "x", "cuda"),
    ],
)
def test_frameworks(kernel: str, name: str, framework: str) -> None:
    program = Program()
    program.kernel(None, 0, 10, kernel)
    program.range(name, 0, 10)
    assert program.events().framework == framework


def test_many_labels_are_cut_and_numbers_removed() -> None:
    program = loop()
    for number, name in enumerate(["block_12", "block (3)", "x" * 500, "a[0]", "12"]):
        program.range(name, 10 * number, 10 * number + 8)
    assert labels_at(program, 1, 11, 21, 31, 41) == ["block", "block", "x" * 200, "a", ""]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("attention, seq = 12, sizes = [[2,3]]", "attention"),
        ("attention, op_id = 5", "attention"),
        ("attention_7, seq = 1, op_id = 2, sizes = [[], [3, 4]], input_op_ids = [(3,0),(4,1)]", "attention"),
        ("attention, sizes = [[2, 3], [4]]\nx", "attention"),
        ("attention [2, 3]", "attention"),
        ("attention((2, 3), (4,))", "attention"),
        ("attention", "attention"),
        ("seq = 3", "seq ="),
        ("aten::add, seq = 12, sizes = [[2,3]]", ""),
        ("MulBackward0, seq = 12, op_id = 7", ""),
        (
            "Thunk:#name=jit(step)/transpose(jvp(layer0))/mlp/dot_general,hlo_op=dot.3,hlo_module=jit_step#",
            "layer0/mlp",
        ),
        ("Thunk:#name=jit(step)/add,hlo_op=add.3,program_id=3#", ""),
        ("Thunk:#hlo_op=add.3,program_id=3#", ""),
        ("[0] GpuExecutable::ExecuteThunks", ""),
        ("train#step_num=12#", "train"),
    ],
)
def test_names_of_emit_nvtx_and_of_traces_have_one_label(name: str, label: str) -> None:
    assert pl.select(convert_to_label_expr(pl.lit(name))).item() == label
