"""What Nsight Compute measured of kernels: alone, and joined to a timeline."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.frames import declared
from tests.builders.programs import GEMM, HALF_GEMM, MS, US, Program, find_cure, steps
from tests.conftest import FIXTURES
from tracekit.core.diagnosis import Why, causes
from tracekit.core.diagnosis.diagnose import diagnose
from tracekit.core.diagnosis.events import JoinedResults, read_events
from tracekit.core.diagnosis.inspection import Inspection
from tracekit.core.diagnosis.isolated import explain_isolated_kernels
from tracekit.core.diagnosis.measured import read_measurements
from tracekit.core.diagnosis.model import build_model
from tracekit.core.rollup import Rollup

if TYPE_CHECKING:
    from tracekit.core.diagnosis import CauseOfTime
    from tracekit.core.diagnosis.cures import Cure

ELAPSED, ACTIVE = ".avg.pct_of_peak_sustained_elapsed", ".avg.pct_of_peak_sustained_active"
DRAM, SM = f"gpu__dram_throughput{ELAPSED}", f"sm__throughput{ELAPSED}"
L1, L2, WARPS = f"l1tex__throughput{ACTIVE}", f"lts__throughput{ELAPSED}", f"sm__warps_active{ACTIVE}"
TENSOR, FMA = f"sm__pipe_tensor_cycles_active{ELAPSED}", f"sm__pipe_fma_cycles_active{ELAPSED}"
SECTORS, REQUESTS = (f"l1tex__t_{what}_pipe_lsu_mem_global_op_ld.sum" for what in ("sectors", "requests"))
HEALTHY = {DRAM: 60.0, SM: 40.0, WARPS: 80.0}
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, f>(int)"


@dataclass
class Report:
    """A report of Nsight Compute, to which results are added."""

    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(
        self, name: str | None, ns: float | None, metrics: dict[str, float], blocks: int | None = 1000, **row: object
    ) -> Report:
        """Add a result with a duration in ns, metrics and the number of blocks."""
        rows = self.tables.setdefault("ncu_launches", [])
        number = len(rows)
        sizes: dict[str, Any] = {f"{of}_{axis}": 1 for of in ("grid", "block") for axis in "xyz"}
        sizes |= {"grid_x": blocks, "block_x": 256}
        base = {"kind": "kernel", "invocations": 1, "range_depth": 0, "device_id": 0, "process_id": 1, "stream_id": 7}
        duration = None if ns is None else round(ns)
        rows.append({"launch_id": number, "name": name, "duration_ns": duration, **base, **sizes, **row})
        for metric, value in metrics.items():
            listed = self.tables.setdefault("ncu_metrics", [])
            listed.append({"launch_id": number, "metric": metric, "value": value})
        return self

    def rule(self, rule: str, percent: float, kind: str = "global") -> Report:
        """Add a message of a rule about the last result."""
        rows = self.tables.setdefault("ncu_rules", [])
        number = len(self.tables["ncu_launches"]) - 1
        row = {"message_id": len(rows), "launch_id": number, "rule_id": rule, "type": "OPT", "message": "text"}
        rows.append({**row, "speedup_percent": percent, "speedup_type": kind})
        return self

    def range(self, *names: str) -> Report:
        """Put the last result into ranges, outermost first."""
        number = len(self.tables["ncu_launches"]) - 1
        for depth, name in enumerate(names):
            row = {"launch_id": number, "depth": depth, "name": name, "kind": "push_pop"}
            self.tables.setdefault("ncu_nvtx_ranges", []).append(row)
        return self

    def device(self, name: str = "NVIDIA H100 80GB HBM3", sm_count: int | None = 132) -> Report:
        """Add the GPU."""
        self.tables["devices"] = [{"device_id": 0, "name": name, "sm_count": sm_count}]
        return self

    def frames(self, name: str) -> pl.LazyFrame:
        """Return a declared table."""
        rows = self.tables.get(name, [])
        return declared(**{name: pl.DataFrame(rows, infer_schema_length=None)})(name)

    def explain(self) -> Why:
        """Explain the report, and check that the figures of the answer fit together."""
        answer = diagnose(Rollup.from_frames(self.frames))
        assert answer == explain_isolated_kernels(self.frames)
        check(answer)
        return answer


def check(answer: Why) -> None:
    total = sum(part.ns for part in answer.ledger)
    assert (answer.step.total_ns if answer.step else 0) == total
    assert answer.scope == ("kernels" if answer.ledger else "steps")
    assert sum(part.share for part in answer.ledger) == pytest.approx(1 if total else 0)
    assert sum(c.after for c in answer.causes) == pytest.approx(answer.together)
    assert 0 <= answer.together <= 1 + 1e-9
    for cause in answer.causes:
        assert 0 <= cause.saving.low <= cause.saving.likely <= cause.saving.high <= 1
        assert cause.evidence.total_ns <= total
    json.dumps(answer.to_dict(), allow_nan=False)


def only(answer: Why) -> CauseOfTime:
    (cause,) = answer.causes
    return cause


def test_products_that_do_not_use_tensor_cores() -> None:
    report = Report().device().add(GEMM, MS, {**HEALTHY, TENSOR: 0, FMA: 76}).add("my_gemm", MS, HEALTHY)
    answer = report.explain()
    cause = only(answer)
    assert (answer.status, cause.cause, cause.status) == ("answered", "precision", "answered")
    assert cause.saving.likely == pytest.approx((1 - 0.76 * 66.908 / (0.62 * 989.4)) / 2, rel=1e-5)
    assert cause.saving.low == pytest.approx((1 - 0.76 * 66.908 / (0.5 * 494.7)) / 2, rel=1e-4)
    assert "Tensor Cores at 0%, FP32 at 76%" in cause.evidence.text
    assert answer.sentence == (
        "Nsight Compute measured 2 isolated kernels, which take 2 ms on the GPU: precision costs about 917 µs (46%)."
    )
    assert answer.notes[0].startswith("only isolated kernels were measured")
    assert cause.rows[0].ids == (0,)
    assert [part.part for part in answer.ledger] == ["matmul", "matmul_fp32"]


@pytest.mark.parametrize(
    ("name", "metrics", "is_cause"),
    [
        ("my_gemm", {TENSOR: 0, FMA: 50}, True),
        ("my_gemm", {TENSOR: 5, FMA: 50}, True),  # other work shares the pipe
        ("my_gemm", {TENSOR: 60, FMA: 50}, False),
        ("my_gemm", {TENSOR: 0, FMA: 5}, False),
        ("my_gemm", {FMA: 50}, False),
        ("other", {TENSOR: 0, FMA: 50}, False),
        (GEMM, {TENSOR: 60}, False),
        (GEMM, {}, True),
    ],
)
def test_what_shows_that_tensor_cores_are_idle(name: str, metrics: dict[str, float], is_cause: bool) -> None:
    answer = Report().device().add(name, MS, {**HEALTHY, **metrics}).explain()
    assert [c.cause for c in answer.causes if c.cause == "precision"] == ["precision"] * is_cause


def test_gpus_whose_tensor_cores_are_no_faster() -> None:
    assert not Report().device("Tesla V100-SXM2-32GB", 80).add(GEMM, MS, HEALTHY).explain().causes[1:]
    assert only(
        Report().device("Tesla V100-SXM2-32GB", 80).add(GEMM, MS, HEALTHY).explain()
    ).saving.low == pytest.approx(0)


@pytest.mark.parametrize(
    ("sectors", "likely"), [(32, 0.45), (24, 0.4), (16, None), (4, None), (math.nan, None), (-1, None)]
)
def test_sectors_per_request(sectors: float, likely: float | None) -> None:
    answer = Report().add("k", MS, {**HEALTHY, SECTORS: 100 * sectors, REQUESTS: 100}).explain()
    if likely is None:
        assert not answer.causes
        return
    cause = only(answer)
    assert (cause.cause, cause.saving.likely) == ("memory_layout", pytest.approx(likely))
    assert cause.change.startswith("let neighboring threads access neighboring addresses")


def test_rules_about_access() -> None:
    report = Report().add("k", MS, HEALTHY).rule("MemoryCacheAccessPattern", 20).rule("UncoalescedGlobalAccess", 50)
    cause = only(report.explain())
    saving = cause.saving
    assert (saving.low, saving.likely, saving.high) == pytest.approx((0.15, 0.3, 0.5))
    assert cause.evidence.text.endswith("; its rules estimate a speedup of up to 50%")
    slow = Report().add("k", MS, {DRAM: 10, SM: 80, WARPS: 80}).rule("UncoalescedGlobalAccess", 50)
    assert not slow.explain().causes  # memory does not limit it


def test_conversions_and_access_are_two_causes() -> None:
    answer = Report().add("nchwToNhwcKernel", MS, HEALTHY).add("k", MS, HEALTHY).rule("UncoalescedGlobalAccess", 50)
    assert [(c.cause, c.change[:5]) for c in answer.explain().causes] == [
        ("memory_layout", "store"),
        ("memory_layout", "let n"),
    ]


def test_small_grids() -> None:
    report = Report().device().add("k", MS, {WARPS: 10.0, SM: 1.0, DRAM: 1.0}, blocks=33)
    saving = only(report.explain()).saving
    assert (saving.low, saving.likely, saving.high) == pytest.approx((1 - 0.3 - 0.7 / 4, 0.85, 1 - 0.25 / 4))
    estimated = only(report.rule("LaunchConfiguration", 75).explain())
    assert (estimated.saving.likely, estimated.saving.high) == pytest.approx((0.75, 0.75))
    assert estimated.status == "answered"
    for name, ns, blocks in (("k", 8 * US, 33), ("k", MS, 66), (HALF_GEMM, MS, 33)):
        other = Report().device().add(name, ns, {WARPS: 80.0, SM: 80, DRAM: 1, TENSOR: 50}, blocks=blocks)
        assert not [c for c in other.explain().causes if c.cause == "low_occupancy"]


def test_the_number_of_multiprocessors() -> None:
    metrics = {WARPS: 80.0, SM: 1.0, DRAM: 1.0, "device__attribute_multiprocessor_count": 40.0}
    assert not Report().add("k", MS, metrics, blocks=33).explain().causes
    assert Report().add("k", MS, {**metrics, "device__attribute_multiprocessor_count": 0.5}, blocks=33).explain().causes


def test_blocks_that_do_not_fill_their_warps() -> None:
    cause = only(Report().add("k", MS, HEALTHY, block_x=1).explain())
    assert (cause.cause, cause.saving.high) == ("low_occupancy", pytest.approx(31 / 32))
    assert "multiple of 32" in cause.change
    assert not Report().add("k", MS, HEALTHY, block_x=48).explain().causes


def test_few_warps() -> None:
    waiting = {WARPS: 20.0, SM: 7.0, DRAM: 14.0}
    answer = Report().add("k", MS, waiting).explain()
    cause = only(answer)
    assert (answer.status, cause.status, cause.cause) == ("unsure", "unsure", "low_occupancy")
    assert (cause.saving.low, cause.saving.likely, cause.saving.high) == pytest.approx((0, 0.8 / 3, 0.8))
    assert cause.missing
    estimated = only(Report().add("k", MS, waiting).rule("AchievedOccupancy", 30, "local").explain())
    assert estimated.saving.high == pytest.approx(0.3)
    assert not Report().add("k", MS, {**waiting, WARPS: 60.0}).explain().causes


def test_kernels_at_the_roofline() -> None:
    answer = Report().add("k", 3 * MS, {DRAM: 90.0, SM: 10.0, WARPS: 80}).add("l", MS, HEALTHY).explain()
    cause = only(answer)
    assert (answer.status, cause.cause, cause.saving.high) == ("nothing_found", "memory_bound", 0)
    assert answer.roofline == cause.evidence.text
    assert cause.check == cause.change == ""
    math_bound = Report().add(HALF_GEMM, MS, {DRAM: 10.0, SM: 95.0, TENSOR: 90.0, WARPS: 10}).explain()
    assert only(math_bound).cause == "compute_bound"
    assert not Report().add("k", MS, HEALTHY).explain().causes


def test_chains_of_pointwise_kernels() -> None:
    report = Report()
    for _ in range(6):
        report.add(POINTWISE, 10 * US, HEALTHY)
    cause = only(report.explain())
    assert (cause.cause, cause.status) == ("unfused_pointwise", "unsure")
    assert cause.missing == "the timeline of the program: nsys profile --trace=cuda,nvtx"
    saving = cause.saving
    assert (saving.low, saving.likely, saving.high) == pytest.approx((1 - 2.5 / 6, 1 - 1.2 / 6, 5 / 6))
    for number in (2, 3):
        report.tables["ncu_launches"][number]["stream_id"] = 10 + number
    assert not report.explain().causes
    report.tables["ncu_launches"][3]["stream_id"] = 7
    report.tables["ncu_launches"][2] |= {"stream_id": 7, "grid_x": 100_000}
    short = only(report.explain())
    assert (short.saving.likely, short.saving.high) == pytest.approx((0, (3 - 1) / 6))
    report.tables["ncu_launches"][3]["name"] = "triton_poi_fused"
    assert not report.explain().causes


def test_places_are_ranges_of_the_program() -> None:
    report = Report().add(GEMM, 2 * MS, HEALTHY).range("step 3", "layer 1", "aten::mm").add(GEMM, MS, HEALTHY)
    answer = report.explain()
    assert only(answer).place.range == "layer"
    assert answer.ledger[0].places == (("layer", 2 * MS), ("", MS))
    assert answer.framework == "pytorch"


def test_results_without_durations() -> None:
    answer = Report().add("k", None, {SM: 1.0}).explain()
    assert answer.status == "not_recorded"
    assert answer.sentence.endswith("record them with ncu --set basic, or add gpu__time_duration.sum to --metrics.")
    some = Report().add("k", None, HEALTHY).add("k", MS, HEALTHY).explain()
    assert some.notes[1] == "1 of 2 results have no duration or repeat others"


def test_results_without_metrics() -> None:
    answer = Report().add("k", MS, {}).add("k", MS, {}, invocations=3).explain()
    assert answer.status == "unsure"
    assert answer.ledger[0].ns == 4 * MS
    assert answer.notes[-1].endswith("record the metrics of caches, pipes and access: ncu --set full")
    assert Report().add("my_gemm", MS, {SM: 95.0}).explain().status == "unsure"


def test_results_of_ranges_and_graphs() -> None:
    answer = Report().add("range", MS, HEALTHY, kind="range", blocks=None).add("graph", MS, {}, kind="graph").explain()
    assert (answer.status, [part.part for part in answer.ledger]) == ("unsure", ["opaque_graph"])
    assert answer.notes[1].startswith("100% of the time was measured of whole ranges or graphs: record single kernels")


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, "k", GEMM, HALF_GEMM, POINTWISE, "nchwToNhwcKernel", "\x1b[31m<b>=1"]),
            st.sampled_from([None, 0, 1, 5 * US, MS, 2**62]),
            st.dictionaries(
                st.sampled_from([DRAM, SM, L1, L2, WARPS, TENSOR, FMA, SECTORS, REQUESTS]),
                st.sampled_from([math.nan, math.inf, -1.0, 0.0, 1e-300, 50.0, 100.0, 1e300]),
            ),
            st.sampled_from([None, -5, 0, 1, 40, 2**31 - 1]),
            st.sampled_from([math.nan, -1.0, 0.0, 50.0, 1e9]),
        ),
        max_size=6,
    )
)
def test_invalid_values_have_no_effect(results: list[tuple[Any, ...]]) -> None:
    report = Report()
    for name, ns, metrics, blocks, percent in results:
        report.add(name, ns, metrics, blocks)
        for rule in ("LaunchConfiguration", "UncoalescedGlobalAccess", "Occupancy"):
            report.rule(rule, percent)
    check(diagnose(Rollup.from_frames(report.frames)))


@pytest.mark.parametrize(
    ("file", "status", "first"),
    [
        ("ncu_basic.ncu-rep", "answered", "low_occupancy"),
        ("ncu_details.csv", "answered", "low_occupancy"),
        ("ncu_raw.csv", "answered", "low_occupancy"),
        ("ncu_per_kernel.csv", "answered", "low_occupancy"),
        ("ncu_roofline_raw.csv", "answered", "precision"),
        ("ncu_per_nvtx.csv", "not_recorded", None),
        ("ncu_graph.ncu-rep", "unsure", "low_occupancy"),
        ("ncu_range.ncu-rep", "unsure", None),
    ],
)
def test_reports(file: str, status: str, first: str | None) -> None:
    with tk.load(FIXTURES / "ncu" / file) as trace:
        answer = trace.why()
    check(answer)
    assert (answer.status, next((c.cause for c in answer.causes), None)) == (status, first)


# Joined to a timeline.


def results_of(program: Program, report: Report) -> JoinedResults:
    """Join the n-th kernel of a program to the n-th result, as far as there are results."""

    def frames(name: str) -> pl.LazyFrame:
        if name != "kernels":
            return report.frames(name)
        count = len(report.tables["ncu_launches"])
        number = pl.int_range(pl.len(), dtype=pl.Int64)
        return program.frames(name).with_columns(ncu_launch_id=pl.when(number < count).then(number))

    return JoinedResults("join", frames)


def join(program: Program, report: Report) -> Inspection:
    """Return what rules examine if the results are joined to the kernels of the program."""
    events = next(read_events(program.rollup(), results_of(program, report)))
    return Inspection(build_model(events, tuple(s for s in events.steps if not s.is_cold)))


def find_joined(program: Program, report: Report, cause: str) -> list[Cure]:
    return [cure for cure in causes.find_cures(join(program, report)) if cure.cause == cause]


def loop(name: str, *, blocks: int = 1000) -> Program:
    program = Program()
    program.device()
    return steps(program, 4, lambda _: [program.launch(name, MS, grid_x=blocks), program.wait()])


def report_of(count: int, name: str, metrics: dict[str, float], **row: Any) -> Report:
    report = Report().device()
    for _ in range(count):
        report.add(name, MS, metrics, **row)
    return report


def get_stays(cure: Cure) -> list[float]:
    """Return the shares of the time of operations that stay."""
    rows = np.concatenate([durations[1] for _, durations in cure.operations])
    return sorted(rows / MS)


def test_metrics_show_precision_of_kernels_with_unknown_names() -> None:
    (cure,) = find_joined(loop("my_gemm"), report_of(4, "my_gemm", {TENSOR: 0, FMA: 50, **HEALTHY}), "precision")
    assert get_stays(cure) == pytest.approx([0.76 * 66.908 / (0.62 * 989.4)] * 4, abs=1e-3)
    assert "; Nsight Compute measured 4 of these 4 kernels: DRAM at 60% of its peak" in cure.evidence


def test_metrics_refute_what_names_suggest() -> None:
    assert find_cure(loop(GEMM), "precision")
    assert not find_joined(loop(GEMM), report_of(4, GEMM, {TENSOR: 90, **HEALTHY}), "precision")
    assert find_cure(loop("k", blocks=10), "low_occupancy")
    busy = report_of(4, "k", {WARPS: 90, DRAM: 90}, blocks=1000)
    assert not find_joined(loop("k", blocks=10), busy, "low_occupancy")


def test_small_grids_are_measured_or_not() -> None:
    report = report_of(2, "k", {WARPS: 10, SM: 1, DRAM: 1}, blocks=33)
    for row in range(2):
        report.tables.setdefault("ncu_rules", []).append(
            {
                "message_id": row,
                "launch_id": row,
                "rule_id": "LaunchConfiguration",
                "speedup_percent": 75.0,
                "speedup_type": "global",
            }
        )
    (cure,) = find_joined(loop("k", blocks=33), report, "low_occupancy")
    assert get_stays(cure) == pytest.approx([0.15, 0.15, 0.25, 0.25])
    assert "measured 2 of these 4 kernels" in cure.evidence


@pytest.mark.slow
def test_causes_that_only_metrics_show() -> None:
    strided = report_of(4, "k", {SECTORS: 3200.0, REQUESTS: 100.0, **HEALTHY})
    (cure,) = find_joined(loop("k"), strided, "memory_layout")
    assert (cure.change, get_stays(cure)) == ("strided_access", pytest.approx([0.55] * 4))
    (cure,) = find_joined(loop("k"), report_of(4, "k", HEALTHY, block_x=8), "low_occupancy")
    assert (cure.change, cure.is_unsure) == ("partial_warps", False)
    (cure,) = find_joined(loop("k"), report_of(4, "k", {WARPS: 20, SM: 7, DRAM: 14}), "low_occupancy")
    assert (cure.change, cure.is_unsure) == ("few_active_warps", True)


def test_chains_at_the_peak_of_the_memory() -> None:
    program = Program()
    steps(program, 4, lambda _: [*(program.launch("vectorized_elementwise_kernel") for _ in range(5)), program.wait()])
    recorded = find_cure(program, "unfused_pointwise").operations[0][1]
    report = report_of(20, "vectorized_elementwise_kernel", {DRAM: 90, SM: 10})
    (cure,) = find_joined(program, report, "unfused_pointwise")
    assert cure.operations[0][1][0].tolist() == [round(1.6 / 5 * 50 * US)] * 20
    assert cure.operations[0][1][2].tolist() == recorded[2].tolist()
    slow = report_of(20, "vectorized_elementwise_kernel", {DRAM: 30, SM: 10})
    assert find_joined(program, slow, "unfused_pointwise")[0].operations[0][1][0].tolist() == recorded[0].tolist()


@pytest.mark.slow
def test_healthy_work_is_measured() -> None:
    assert find_cure(loop(HALF_GEMM), "compute_bound").is_healthy
    (cure,) = find_joined(loop(HALF_GEMM), report_of(4, HALF_GEMM, {SM: 90, TENSOR: 90}), "compute_bound")
    assert "Tensor Cores at 90%" in cure.evidence
    assert not find_joined(loop(HALF_GEMM), report_of(4, HALF_GEMM, {SM: 20, TENSOR: 20}), "compute_bound")
    unmeasured = report_of(1, HALF_GEMM, {SM: 20, TENSOR: 20})
    assert find_joined(loop(HALF_GEMM), unmeasured, "compute_bound")
    assert find_joined(loop(HALF_GEMM), report_of(4, HALF_GEMM, {TENSOR: 20}), "compute_bound")


def test_without_results() -> None:
    inspection = loop(GEMM).inspection()
    assert inspection.measured is None
    assert not inspection.find_measured("precision").any()
    assert inspection.cite_measurements(np.array([0])) == ""
    rows, durations = inspection.claim_measured(np.array([0]))
    assert (rows.tolist(), [d.tolist() for d in durations]) == ([0], [[MS]] * 3)


def test_results_without_a_duration_are_not_joined() -> None:
    report = Report().add(GEMM, None, HEALTHY).add(GEMM, MS, HEALTHY)
    assert join(loop(GEMM), report).measured.measured_kernels.tolist() == [False, True, False, False]  # type: ignore[union-attr]
    assert read_measurements(report.frames).describe(np.zeros(0, np.int64)) == ""


@pytest.mark.parametrize("count", [0, 4])
def test_kernels_that_match_no_result(count: int) -> None:
    program, report = loop(GEMM), report_of(count, GEMM, HEALTHY)
    report.add("other", MS, HEALTHY)
    results = results_of(program, report)

    def frames(name: str) -> pl.LazyFrame:
        rows = results.frames(name)
        return rows if name != "kernels" or count else rows.with_columns(ncu_launch_id=pl.lit(None, pl.Int64))

    answer = diagnose(program.rollup(), joined=JoinedResults(count, frames))
    note = "no kernel of the steady steps matches a result of Nsight Compute"
    assert (note in answer.notes) == (not count)


@pytest.mark.slow
def test_a_join_of_captures() -> None:
    with tk.load(FIXTURES / "ncu" / "ncu_basic.ncu-rep") as results, tk.load(FIXTURES / "train_amp.sqlite") as trace:
        joined = trace.join_ncu(results)
        answer = joined.why()
        assert joined.why() is answer
        assert trace.why() is not answer
    (cause,) = [c for c in answer.causes if c.cause == "low_occupancy"]
    assert "Nsight Compute measured 3 of these 15 kernels: DRAM at 8% of its peak" in cause.evidence.text
