"""Bounds of ops and what limits them, with numbers that are computed by hand."""

from __future__ import annotations

import json

import polars as pl
import pytest
import tracekit as tk
from tests.builders.programs import GEMM, HALF_GEMM, MS, US, Program
from tests.conftest import ROOT
from tracekit.core.work.roofline import bound_ops, summarize_ops
from tracekit.registry.analyses import REPORT, get_analysis

SICK = ROOT.parent / "shared" / "captures" / "sick"
PEAK, BANDWIDTH = 132 * 1.98e9 * 4096, 3.35e12
"""The rate of BF16 and the bandwidth of an H100 at the clock that Nsight Systems records."""


def program(**device: object) -> Program:
    """Return a program for an H100 whose capability, clock and bandwidth were recorded."""
    added = Program()
    recorded = {"compute_major": 9, "compute_minor": 0, "clock_rate_hz": 1_980_000_000, "max_warps_per_sm": 64}
    added.device(**{**recorded, "memory_bandwidth_bytes_per_s": 3_350_000_000_000, **device})
    return added


def payload(types: list[str], shapes: list[list[int]]) -> str:
    return json.dumps({"Input type": types, "Input Dims": shapes})


def product(
    added: Program, n: int, ns: int, *, dtype: str = "c10::BFloat16", name: str = HALF_GEMM, **row: object
) -> None:
    """Launch the product of two square matrices with n rows."""
    start = added.now
    added.launch(name, ns, **row)
    added.range("aten::mm", start, added.now, payload_text=payload([dtype] * 2, [[n, n], [n, n]]))


def summarize(added: Program) -> pl.DataFrame:
    return summarize_ops(bound_ops(added.frames))


def test_a_product_at_its_peak() -> None:
    n = 8192
    bound = 2 * n**3 / PEAK * 1e9
    added = program()
    for _ in range(3):
        product(added, n, int(bound / 0.7), grid_x=1320)
    (row,) = summarize(added).to_dicts()
    assert (row["name"], row["kind"], row["type"]) == ("aten::mm", "matrix_product", "bf16")
    assert (row["instances"], row["kernel_count"]) == (3, 3)
    assert (row["flop"], row["bytes"]) == (3 * 2 * n**3, 3 * 3 * 2 * n**2)
    assert row["bound_ns"] == pytest.approx(3 * bound)
    assert row["share"] == pytest.approx(0.7, rel=1e-4)
    assert row["intensity"] == pytest.approx(n / 3)
    assert row["flop_per_s"] == pytest.approx(0.7 * PEAK, rel=1e-4)
    assert row["limited_by"] == "compute"
    assert row["savable_ns"] == pytest.approx(3 * (bound / 0.7 - bound), rel=1e-3)
    assert row["savable_high_ns"] == pytest.approx(3 * (bound / 0.7 - bound / 0.8), rel=1e-3)
    assert row["savable_low_ns"] == 0
    assert row["measured_share"] is None


def test_an_op_at_the_bandwidth() -> None:
    added = program()
    n, start = 32768, added.now
    added.launch(HALF_GEMM, MS)
    added.range("aten::mm", start, added.now, payload_text=payload(["c10::BFloat16"] * 2, [[1, n], [n, n]]))
    (row,) = summarize(added).to_dicts()
    size = 2 * (n * n + 2 * n)
    assert row["bytes"] == size
    assert row["bound_ns"] == pytest.approx(size / BANDWIDTH * 1e9)
    assert (row["limited_by"], row["bytes_per_s"]) == ("memory", pytest.approx(size / 1e-3))


def test_collective_operations_have_bytes_but_no_roofline() -> None:
    added = program()
    for _ in range(2):
        start = added.now
        added.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 10 * MS, grid_x=24)
        added.range("nccl:all_reduce", start, added.now, payload_text=payload(["float"], [[1 << 20]]))
    (row,) = summarize(added).to_dicts()
    assert (row["kind"], row["gpu_time_ns"], row["bytes"]) == ("collective", 20 * MS, 2 * 2 * 4 << 20)
    assert row["bytes_per_s"] == pytest.approx((16 << 20) / 20e-3)
    empty = ("bound_ns", "share", "measured_share", "limited_by", "savable_ns", "savable_low_ns", "savable_high_ns")
    assert [row[name] for name in (*empty, "rate", "bandwidth")] == [None] * 9


@pytest.mark.parametrize(
    ("n", "ns", "row", "limit"),
    [
        (8192, 8 * MS, {"grid_x": 1320}, None),  # 15 % of the peak, for a reason that the capture does not show
        (8192, 8 * MS, {"grid_x": 60}, "latency"),  # fewer blocks than multiprocessors
        (8192, 8 * MS, {"grid_x": 133}, "latency"),  # one multiprocessor has two blocks
        (64, 4 * US, {"grid_x": 1320}, "latency"),  # short
        (8192, 8 * MS, {"grid_x": 60, "device_id": 1}, None),  # an unknown GPU
    ],
)
def test_what_limits_a_slow_product(n: int, ns: int, row: dict[str, int], limit: str | None) -> None:
    added = program()
    for _ in range(4):
        added.free[7] = added.now + 100 * US  # other work keeps the GPU busy
        product(added, n, ns, block_x=1024, **row)
    assert summarize(added)["limited_by"].to_list() == [limit]


def test_late_launches_limit_an_op() -> None:
    added = program()
    for _ in range(3):
        added.pause(1000 * US)
        product(added, 64, 10 * US)
    (row,) = summarize(added).to_dicts()
    assert row["limited_by"] == "launch"
    assert row["late_ns"] > 1900 * US


def test_kernels_without_known_work_are_listed() -> None:
    added = program()
    product(added, 1024, MS)
    added.launch("my_kernel", 3 * MS)
    rows = summarize(added)
    assert rows["name"].to_list() == ["aten::mm", None]
    assert rows["gpu_time_ns"].to_list() == [MS, 3 * MS]
    assert rows.row(1, named=True)["flop"] is None


def test_types_and_their_peaks() -> None:
    added = program()
    product(added, 4096, MS, dtype="float", name=GEMM)
    product(added, 4096, MS, dtype="float", name="ampere_sgemm_tf32_s1688gemm_128x64")
    product(added, 4096, MS, dtype="double", name="ampere_dgemm")
    rates = dict(summarize(added).select("type", pl.col("rate") / 132 / 1.98e9).iter_rows())
    assert rates == pytest.approx({"fp32": 256, "tf32": 2048, "fp64": 256})


def test_without_shapes_or_peaks() -> None:
    added = program(name="GPU", sm_count=None)
    product(added, 1024, MS)
    (row,) = summarize(added).to_dicts()
    assert row["flop"] == 2 * 1024**3
    assert (row["rate"], row["bound_ns"], row["share"], row["savable_ns"], row["limited_by"]) == (None,) * 5
    assert summarize(Program()).is_empty()


def test_a_measured_clock() -> None:
    added = program()
    product(added, 8192, 2 * MS)
    kernel = added.tables["kernels"][0]
    for time in range(kernel["start_ns"], kernel["end_ns"], 100 * US):
        values = {"timestamp_ns": time, "device_id": 0, "metric_id": 1, "value": 1_320_000_000}
        added.add("gpu_metrics", **values, metric="GPC Clock Frequency [MHz]")
    (row,) = summarize(added).to_dicts()
    assert row["measured_share"] == pytest.approx(row["share"] * 1980 / 1320)


def test_sums_that_exceed_64_bits_are_unknown() -> None:
    added = program()
    for _ in range(3):
        product(added, 1_600_000, MS)
    (row,) = summarize(added).to_dicts()
    assert (row["flop"], row["flop_per_s"]) == (None, None)
    assert row["bound_ns"] > 0


def test_the_report_of_a_training_program() -> None:
    path = SICK / "fp32.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is missing")
    rows = tk.load(path).report("op_roofline").frame()
    assert rows.columns == [c.name for c in get_analysis("op_roofline", REPORT).columns]
    top = rows.row(0, named=True)
    assert (top["Peak GB/s"], top["Limited By"]) == (3350, "compute")
    assert (
        rows["GPU Time (ns)"].sum()
        == tk.load(path).frame("kernels").select((pl.col("end_ns") - pl.col("start_ns")).sum()).collect().item()
    )
