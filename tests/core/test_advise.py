"""What is advised, on scenes in which it is known what is slow."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tests.core.scenes import declared
from tracekit.core.advise import advise, apply_rules
from tracekit.core.diagnosis import diagnose
from tracekit.core.reports import compute_report
from tracekit.core.rollup import Rollup
from tracekit.plan.tables import get_rollup
from tracekit.text import format_duration

if TYPE_CHECKING:
    from tracekit.core.tensor_cores import Mode

STEP = 1_000_000
GEMM = "ampere_sgemm_128x64_nn"


@dataclass
class Program:
    """A program with four steps of 1 ms, to which what is slow is added."""

    steps: int = 4
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    kernels: list[tuple[str, int, int, int, int, int | None]] = field(default_factory=list)
    copies: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    jit: list[tuple[str | None, str | None, int, int]] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)

    def step(self, number: int, length: int = STEP) -> int:
        """Add the range of a step, and return when it starts."""
        self.ranges.append((f"step {number}", number * STEP, number * STEP + length))
        return number * STEP

    def kernel(self, launch: int, start: int, end: int, name: str = "k", device: int = 0) -> None:
        """Add a kernel and its call."""
        self.kernels.append((name, start, end, device, len(self.calls), None))
        self.calls.append(("cudaLaunchKernel_v7000", launch, launch + 1000))

    def graph(self, launch: int, *nodes: tuple[int, int]) -> None:
        """Add the kernels of a CUDA graph, which one call launches."""
        self.kernels += [("k", s, e, 0, len(self.calls), 100 + n) for n, (s, e) in enumerate(nodes)]
        self.calls.append(("cudaGraphLaunch_v10000", launch, launch + 1000))

    def copy(self, kind: str, memory: str, start: int, end: int) -> None:
        """Add a copy and its call."""
        self.copies.append((kind, memory, start, end, len(self.calls)))
        self.calls.append(("cudaMemcpyAsync_v3020", start - 2000, start - 1000))

    def frames(self, name: str) -> pl.LazyFrame:
        """Give a declared table."""
        made = getattr(self, f"_{name}", list)()
        return declared(**{name: pl.DataFrame(made, infer_schema_length=None)})(name)

    def _nvtx_ranges(self) -> list[dict[str, object]]:
        place = {"kind": "push_pop", "process_id": 1, "thread_id": 1, "domain_id": 0}
        return [
            {"range_id": i, "name": n, "start_ns": s, "end_ns": e, **place} for i, (n, s, e) in enumerate(self.ranges)
        ]

    def _api_calls(self) -> list[dict[str, object]]:
        place = {"process_id": 1, "thread_id": 1}
        return [
            {"api_call_id": i, "correlation_id": i + 1, "name": n, "start_ns": s, "end_ns": e, **place}
            for i, (n, s, e) in enumerate(self.calls)
        ]

    def _jit_operations(self) -> list[dict[str, object]]:
        place = {"process_id": 1, "thread_id": 1, "device_id": 0}
        return [
            {"jit_operation_id": i, "operation_type": o, "name": n, "start_ns": s, "end_ns": e, **place}
            for i, (o, n, s, e) in enumerate(self.jit)
        ]

    def _kernels(self) -> list[dict[str, object]]:
        return [
            {
                "name": n,
                "short_name": n,
                "start_ns": s,
                "end_ns": e,
                "device_id": d,
                "correlation_id": i + 1,
                "process_id": 1,
                "graph_node_id": g,
            }
            for n, s, e, d, i, g in self.kernels
        ]

    def _memcpys(self) -> list[dict[str, object]]:
        place = {"process_id": 1, "device_id": 0, "dst_memory_kind": "Device"}
        sizes = self.sizes or [4096] * len(self.copies)
        return [
            {
                "bytes": b,
                "copy_kind": k,
                "src_memory_kind": m,
                "start_ns": s,
                "end_ns": e,
                "correlation_id": i + 1,
                **place,
            }
            for (k, m, s, e, i), b in zip(self.copies, sizes, strict=True)
        ]

    def found(self, *, tensor_cores: Mode = "extended") -> dict[str, dict[str, object]]:
        """Findings by rule."""
        return {
            f["rule"]: f for f in apply_rules(Rollup.from_frames(self.frames, tensor_cores=tensor_cores)).to_dicts()
        }


def busy(program: Program, *, begin: int = 0) -> Program:
    """Fill each step with kernels that are launched long before they run, from ``begin`` on."""
    for number in range(program.steps):
        start = program.step(number)
        for k in range(10):
            at = start + begin + k * (STEP - begin) // 10
            program.kernel(start + k * 2000 + begin, max(at, start + begin + 30_000), at + (STEP - begin) // 10)
    return program


def test_nothing_to_say() -> None:
    assert busy(Program()).found() == {}


def test_loading_data() -> None:
    program = Program()
    program.ranges += [("load batch", n * STEP, n * STEP + 300_000) for n in range(4)]
    found = busy(program, begin=300_000).found()
    loading = found["data_loading"]
    assert loading["time_ns"] == 4 * 300_000
    assert loading["count"] == 4
    assert (loading["start_ns"], loading["end_ns"]) == (0, 300_000)
    assert "loading data takes 300 µs per iteration of 1 ms, 300 µs of it with idle GPUs; 1,000 iterations/s" in str(
        loading["evidence"]
    )
    assert "num_workers" in str(loading["advice"])


@pytest.mark.many(4)
@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", True),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", True),
        ("get_batch", True),
        ("next batch", True),
        ("load", True),
        ("payload", False),
        ("loader_stats", False),
        ("forward", False),
    ],
)
def test_ranges_that_load_data_by_their_name(text: str, *, loads: bool) -> None:
    program = Program()
    program.ranges += [(text, n * STEP, n * STEP + 300_000) for n in range(4)]
    program = busy(program, begin=300_000)
    spent = Rollup.from_frames(program.frames).breakdown["dataloader"].sum()
    assert ("data_loading" in program.found()) == loads
    assert spent == (4 * 300_000 if loads else 0)
    assert Rollup.from_frames(program.frames, tensor_cores="dlprof").breakdown["dataloader"].sum() == 0


def test_loading_beside_work_is_no_loss() -> None:
    program = Program()
    program.ranges += [("load batch", n * STEP + 100_000, n * STEP + 400_000) for n in range(4)]
    assert "data_loading" not in busy(program).found()


def test_late_launches_and_idle_time() -> None:
    program = Program()
    for number in range(4):
        start = program.step(number)
        for k in range(10):
            program.kernel(start + k * 100_000, start + k * 100_000 + 5000, start + k * 100_000 + 45_000)
    found = program.found()
    assert found["late_launches"]["count"] == 39
    assert found["late_launches"]["time_ns"] == 39 * 60_000
    assert found["late_launches"]["start_ns"] == 45_000
    assert found["idle_by_cause"]["time_ns"] == 40 * 60_000
    assert "ops ran on the CPU" in str(found["idle_by_cause"]["evidence"])
    assert set(found) == {"late_launches", "idle_by_cause"}
    assert "CUDA graphs" in str(found["late_launches"]["advice"])
    assert "Reduce the number of launches" in str(found["idle_by_cause"]["advice"])


def test_an_idle_gpu_of_a_cpu_that_launches_little_is_not_the_launches_fault() -> None:
    program = Program()
    for number in range(4):
        start = program.step(number)
        program.kernel(start, start + 5000, start + 45_000)
    advice = str(program.found()["idle_by_cause"]["advice"])
    assert "Reduce the number of launches" not in advice
    assert "Find out what the ops do on the CPU" in advice


def test_gpus_that_work_most_of_the_time_are_not_idle() -> None:
    program = Program()
    for number in range(4):
        start = program.step(number)
        program.kernel(start, start + 5000, start + 850_000)
    assert "idle_by_cause" not in program.found()


def test_nodes_of_a_graph_are_one_launch() -> None:
    """Gaps between the nodes of one graph are not those of late launches, and more graphs are no advice."""
    program = Program()
    for number in range(4):
        start = program.step(number)
        nodes = [(start + 2000 + 10_000 * k, start + 6000 + 10_000 * k) for k in range(50)]
        program.graph(start, *nodes)
    found = program.found()
    assert "small_kernels" not in found
    assert found["late_launches"]["count"] == 3
    assert json.loads(str(found["idle_by_cause"]["figures"]))["launches"] == 4
    assert not [f for f in found.values() if "CUDA graphs" in str(f["advice"])]


def test_small_kernels_beside_a_graph() -> None:
    program = Program()
    for number in range(4):
        start = program.step(number)
        program.graph(start, *[(start + 2000 * k, start + 2000 * k + 1000) for k in range(9)])
        for k in range(50):
            program.kernel(start + 20_000 + k * 10_000, start + k * 10_000 + 21_000, start + k * 10_000 + 29_000)
    small = program.found()["small_kernels"]
    figures = json.loads(str(small["figures"]))
    assert (figures["small_kernels"], figures["launched_kernels"], figures["graph_kernels"]) == (200, 200, 36)
    assert "CUDA graphs" not in str(small["advice"])


def test_small_kernels_are_counted_by_op() -> None:
    program = Program()
    for number in range(4):
        start = program.step(number)
        program.ranges += [("many", start, start + 900_000), ("few", start + 900_000, start + STEP)]
        for k in range(100):
            program.kernel(start + k * 10_000, start + k * 10_000 + 1000, start + k * 10_000 + 9000)
    assert "step */many (90 %), step */few (10 %)" in str(program.found()["small_kernels"]["evidence"])


@pytest.mark.parametrize(("length", "count"), [(20_000, 100), (9000, 4)])
def test_large_or_few_kernels_are_none_to_fuse(length: int, count: int) -> None:
    program = Program()
    for number in range(4):
        start = program.step(number)
        for k in range(count):
            program.kernel(start + k * 100, start + k * length + 1000, start + (k + 1) * length)
    assert "small_kernels" not in program.found()


@pytest.mark.parametrize(("length", "speaks"), [(400_000, True), (1000, False)])
def test_loading_of_modules(length: int, *, speaks: bool) -> None:
    program = busy(Program())
    program.calls += [("cuLibraryLoadData", 100, 100 + length), ("cuModuleLoadDataEx", 200, 100 + length)]
    program.calls += [("cuLibraryGetKernel", 1000, 900_000)]
    found = program.found()
    assert ("module_loading" in found) == speaks
    if speaks:
        figures = json.loads(str(found["module_loading"]["figures"]))
        assert (figures["calls"], figures["call_ns"], figures["loading_ns"]) == (2, 2 * length - 100, length)
        assert "cuLibraryLoadData 400 µs, cuModuleLoadDataEx 400 µs" in str(found["module_loading"]["evidence"])


@pytest.mark.parametrize(("length", "speaks"), [(400_000, True), (1000, False)])
def test_code_that_the_driver_compiles(length: int, *, speaks: bool) -> None:
    """Operations before the first iteration do not count, and neither do two operations at the same time twice."""
    program = busy(Program())
    program.jit = [("Compile", "k", 100, 100 + length), ("Cache load", None, 100, 100 + length // 4)]
    program.jit += [(None, None, 100, 100 + length // 2), ("Compile", "early", -900_000, -100)]
    found = program.found()
    assert ("jit_compilation" in found) == speaks
    if speaks:
        finding = found["jit_compilation"]
        figures = json.loads(str(finding["figures"]))
        assert (figures["operations"], figures["operation_ns"]) == (3, length + length // 4 + length // 2)
        assert figures["compiling_ns"] == finding["time_ns"] == length
        assert (finding["count"], finding["start_ns"], finding["end_ns"]) == (3, 100, 100 + length)
        assert str(finding["evidence"]).startswith(
            "3 operations: 1 × Compile 400 µs, 1 × unknown operation 200 µs, 1 × Cache load 100 µs; the iterations"
        )


def test_a_gpu_that_waits_for_the_compiler_is_idle_because_of_it() -> None:
    program = Program()
    for number in range(4):
        start = program.step(number)
        program.kernel(start + 900_000, start + 910_000, start + 950_000)
        program.jit.append(("Compile", "k", start + 10_000, start + 890_000))
    evidence = str(program.found()["idle_by_cause"]["evidence"])
    assert "main cause: jit compilation (k), " in evidence


@pytest.mark.parametrize(("start", "speaks"), [(500_000, True), (0, False)])
def test_communication_beside_nothing(start: int, *, speaks: bool) -> None:
    """Kernels compute in the first half of each step, NCCL's take 400 µs of the second or of the first."""
    program = Program()
    for number in range(4):
        at = program.step(number)
        program.kernel(at, at + 5000, at + 500_000)
        program.kernel(at + 2000, at + 5000 + start, at + 405_000 + start, "ncclDevKernel_AllReduce_Sum_f32")
    found = program.found()
    assert ("communication" in found) == speaks
    if speaks:
        figures = json.loads(str(found["communication"]["figures"]))
        assert (figures["nccl_kernels"], figures["nccl_ns"], figures["overlapped_ns"]) == (4, 1_600_000, 0)
        assert "0 % of this time overlaps" in str(found["communication"]["evidence"])


def test_little_communication() -> None:
    program = busy(Program())
    program.kernel(100, 400_000, 420_000, "ncclDevKernel_AllReduce_Sum_f32")
    assert "communication" not in program.found()


def test_a_short_wait_in_the_step() -> None:
    program = busy(Program())
    program.calls += [("cudaStreamSynchronize_v3020", n * STEP + 500_000, n * STEP + 510_000) for n in range(4)]
    assert "synchronizations" not in program.found()


def test_devices_with_as_much_work() -> None:
    program = busy(Program())
    for number in range(4):
        start = number * STEP
        program.kernel(start + 30_000, start + 40_000, start + 950_000, device=1)
    assert "imbalance" not in program.found()


def test_nothing_is_found_outside_of_the_loop() -> None:
    """An evaluation after the last step waits, copies and leaves the GPU idle: it is none of the steps."""
    program = busy(Program())
    after = 4 * STEP + 50_000
    program.ranges.append(("evaluate", after, after + 9 * STEP))
    program.calls += [("cudaStreamSynchronize_v3020", after + 1000, after + 8 * STEP)]
    program.calls += [("cuLibraryLoadData", after + 1000, after + 8 * STEP)]
    program.copy("Host-to-Device", "Pageable", after + 8 * STEP + 100_000, after + 8 * STEP + 900_000)
    assert program.found() == {}
    assert set(program.found(tensor_cores="dlprof")) >= {"idle_by_cause", "synchronizations", "copies"}


def test_gaps_after_early_launches_are_not_the_launches_fault() -> None:
    program = Program()
    for number in range(4):
        start = program.step(number)
        for k in range(10):
            program.kernel(start + k * 1500, start + k * 100_000 + 20_000, start + k * 100_000 + 60_000)
    found = program.found()
    assert "late_launches" not in found
    assert "idle_by_cause" in found


def test_waiting_in_the_step() -> None:
    program = busy(Program())
    program.calls += [("cudaStreamSynchronize_v3020", n * STEP + 500_000, n * STEP + 900_000) for n in range(4)]
    waiting = program.found()["synchronizations"]
    assert (waiting["time_ns"], waiting["count"]) == (4 * 400_000, 4)
    assert "4 calls (cudaStreamSynchronize_v3020) in step * (100 %); 1 per iteration" in str(waiting["evidence"])


@pytest.mark.parametrize(
    ("kind", "memory", "length", "speaks"),
    [
        ("Host-to-Device", "Pinned", 50_000, True),
        ("Host-to-Device", "Pinned", 1000, False),
        ("Host-to-Device", "Pageable", 1000, True),
        ("Device-to-Host", "Device", 1000, True),
        ("Device-to-Device", "Device", 90_000, False),
    ],
)
def test_copies(kind: str, memory: str, length: int, *, speaks: bool) -> None:
    program = busy(Program())
    for n in range(4):
        program.copy(kind, memory, n * STEP + 500_000, n * STEP + 500_000 + length)
    found = program.found()
    assert ("copies" in found) == speaks
    if speaks:
        assert (found["copies"]["time_ns"], found["copies"]["count"]) == (4 * length, 4)
        assert "1 per iteration with 4,096 bytes" in str(found["copies"]["evidence"])


def test_small_kernels() -> None:
    program = Program()
    for number in range(4):
        start = program.step(number)
        for k in range(100):
            program.kernel(start + k * 10_000, start + k * 10_000 + 1000, start + k * 10_000 + 9000)
    small = program.found()["small_kernels"]
    assert small["count"] == 400
    assert "400 of 400 kernels take less than 10 µs, half of them less than 8 µs" in str(small["evidence"])


@pytest.mark.parametrize(
    ("name", "speaks"), [(GEMM, True), ("ampere_h16816gemm_128x64", False), ("gemm_fusion_dot_3", False)]
)
def test_precision(name: str, *, speaks: bool) -> None:
    program = Program()
    for number in range(4):
        start = program.step(number)
        program.ranges.append(("matmul", start, start + 10_000))
        program.kernel(start + 1000, start + 5000, start + 900_000, name)
        program.kernel(start + 3000, start + 900_000, start + STEP + 4000, "relu")
    found = program.found()
    assert ("precision" in found) == speaks
    if speaks:
        assert found["precision"]["count"] == 4
        assert GEMM in str(found["precision"]["evidence"])


def test_imbalance_between_devices() -> None:
    program = busy(Program())
    for number in range(4):
        start = number * STEP
        program.kernel(start + 30_000, start + 40_000, start + 540_000, device=1)
        program.kernel(start + 32_000, start + 540_000, start + 990_000, "ncclDevKernel_AllReduce", device=1)
    found = program.found()["imbalance"]
    assert "GPU 1 for 50 %" in str(found["problem"])
    assert found["count"] == 2
    assert json.loads(str(found["figures"]))["gpu_1_ns"] == 4 * 500_000


def test_steps_of_different_length() -> None:
    program = Program()
    bounds = [0, 1, 2, 3, 9]
    for number in range(5):
        program.ranges.append((f"step {number}", bounds[number] * STEP, (bounds[number] + 1) * STEP))
        for k in range(20):
            at = bounds[number] * STEP + k * 45_000
            program.kernel(at, at + 1000, at + 40_000)
    found = program.found()["variation"]
    assert (found["count"], found["time_ns"]) == (1, 5 * STEP)
    assert (found["start_ns"], found["end_ns"]) == (3 * STEP, 9 * STEP)
    assert "step 3 took 6 ms" in str(found["evidence"])


def test_a_short_step_is_no_slow_step() -> None:
    program = Program()
    bounds = [0, 10, 20, 30, 31, 32]
    program.ranges += [
        (f"step {n}", start * STEP // 10, end * STEP // 10) for n, (start, end) in enumerate(itertools.pairwise(bounds))
    ]
    for k in range(30):
        program.kernel(k * 100_000 + 1000, k * 100_000 + 5000, k * 100_000 + 100_000)
    lengths = (
        Rollup.from_frames(program.frames).iterations.frame.select(pl.col("end_ns") - pl.col("start_ns")).to_series()
    )
    assert lengths.std() > 0.25 * lengths.mean()
    assert "variation" not in program.found()


CAPTURES = [*sorted(FIXTURES.glob("*.nsys-rep")), *sorted((FIXTURES / "ops").glob("*.nsys-rep"))]


@pytest.mark.many(7)
@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.stem)
def test_findings_of_real_captures_lie_within_them(path: Path) -> None:
    with tk.load(path) as trace:
        rolled = trace.rollup()
        rows, causes = rolled.report("advise").data, rolled.why().causes
        iterations = rolled.frame("iterations").collect()
    assert {cause.cause for cause in causes if cause.saving.high > 0} <= set(rows["rule"])
    assert rows.is_empty() or path.stem not in {"cpu_only", "empty", "omp"}
    assert (rows["time_ns"] >= 0).all()
    assert rows["share"].is_between(0, 100.0001).all()
    assert rows["time_ns"].is_sorted(descending=True)
    assert (rows["start_ns"] < rows["end_ns"]).all()
    assert (rows["start_ns"] >= 0).all()
    assert rows.filter(pl.col("end_ns") > iterations["end_ns"].max()).height == 0
    assert all((rows[c].str.len_chars() > 0).all() for c in ("problem", "evidence", "advice"))


def test_the_report_rolls_up_by_itself() -> None:
    with tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
        assert compute_report(trace.frame, "advise").data.equals(trace.report("advise").data)


def test_the_iterations_that_were_asked_for() -> None:
    with tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
        every, some = (t.report("advise").frame() for t in (trace, trace.rollup(iterations=(2, 3))))
        second = trace.rollup().frame("iterations").collect()["start_ns"][2]
    assert every["Start (ns)"].min() < second <= some["Start (ns)"].min()
    assert "variation" not in some["Rule"]


@pytest.mark.parametrize("name", ["train_amp", "graph_node"])
def test_causes_are_those_of_the_diagnosis(name: str) -> None:
    with tk.load(FIXTURES / f"{name}.nsys-rep") as trace:
        answer, rows = trace.why(), trace.report("advise").data
    causes = {cause.cause: cause for cause in answer.causes if cause.saving.high > 0}
    assert causes
    assert set(rows["rule"]) - {"overrunning_kernels", "imbalance", "variation"} == set(causes)
    for row in rows.filter(pl.col("rule").is_in(list(causes))).iter_rows(named=True):
        cause, figures = causes[row["rule"]], json.loads(row["figures"])
        assert row["problem"].startswith(row["rule"].replace("_", " "))
        assert (row["evidence"], row["advice"], row["count"]) == (
            cause.evidence.text,
            cause.change,
            cause.evidence.count,
        )
        assert (figures["low"], figures["likely"], figures["high"]) == (
            cause.saving.low,
            cause.saving.likely,
            cause.saving.high,
        )
        assert row["share"] == pytest.approx(100 * cause.saving.likely)
        assert row["time_ns"] == round(cause.saving.likely * figures["length_ns"])


def test_other_problems_are_added_to_the_causes() -> None:
    program = Program()
    for number in range(4):
        start = program.step(number)
        program.kernel(start, start + 10_000, start + 900_000)
        program.kernel(start, start + 10_000, start + 300_000, device=1)
    rollup = Rollup.from_frames(program.frames)
    causes = {cause.cause for cause in diagnose(rollup.steady).causes if cause.saving.high > 0}
    assert set(advise(rollup)["rule"]) == {*causes, "imbalance"}


def test_dlprof_mode_and_databases_of_dlprof_keep_their_rules(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        as_dlprof = get_rollup(trace.rollup(tensor_cores="dlprof")._plan)
        assert advise(as_dlprof).equals(apply_rules(as_dlprof))
        path = trace.export(tmp_path / "dlprof.sqlite", format="dlprof-db")
    with tk.load(path) as trace:
        rows = trace.report("advise").data
        assert rows.equals(apply_rules(get_rollup(trace._plan)))
    assert "idle_by_cause" in rows["rule"]


@pytest.mark.parametrize(("time", "text"), [(3, "3 ns"), (1500, "1.5 µs"), (2_000_000, "2 ms"), (3.25e9, "3.25 s")])
def test_times_as_people_read_them(time: float, text: str) -> None:
    assert format_duration(time) == text


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (999, "999 ns"),
        (999.6, "1 µs"),
        (999_400, "999 µs"),
        (999_972_000, "1 s"),
        (999_499_999, "999 ms"),
        (1_234_567_890_000, "1,235 s"),
    ],
)
def test_durations_have_no_exponents(time_ns: float, text: str) -> None:
    assert format_duration(time_ns) == text


@pytest.mark.parametrize(
    ("sizes", "text"),
    [([None, None], "an unknown number of bytes"), ([6, None], "1.5 bytes in total (unknown for 1 copies)")],
)
def test_unknown_sizes_of_copies_are_not_zero(sizes: list[int | None], text: str) -> None:
    program = busy(Program(sizes=sizes))
    for n in range(len(sizes)):
        program.copy("Host-to-Device", "Pageable", n * STEP + 500_000, n * STEP + 900_000)
    assert text in str(program.found()["copies"]["evidence"])
