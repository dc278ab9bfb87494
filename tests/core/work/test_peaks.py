"""Peak rates of devices, compared with those that data sheets of their makers state."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit import schemas
from tracekit.core.work.peaks import (
    COLUMNS,
    find_peaks,
    find_recorded_peaks,
    find_sheet_peaks,
    get_default_peaks,
    measure_clocks,
    read_peaks,
    scale_to_clock,
)

T, G = 1e12, 1e9
H100: dict[str, Any] = {
    "device_id": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "compute_major": 9,
    "compute_minor": 0,
    "sm_count": 132,
    "threads_per_warp": 32,
}
MI300X = {**H100, "name": "AMD Instinct MI300X", "compute_minor": 4, "sm_count": 304, "threads_per_warp": 64}

# Name, compute capability, multiprocessors, clock in MHz, and peaks in TFLOP/s (or TOP/s) that data sheets state.
DATA_SHEETS = [
    ("GeForce GTX 980", (5, 2), 16, 1216, {"vector": {"fp32": 4.98, "fp64": 0.156}}),
    ("Tesla P100-SXM2-16GB", (6, 0), 56, 1480, {"vector": {"fp64": 5.3, "fp32": 10.6, "fp16": 21.2}}),
    ("Tesla P40", (6, 1), 30, 1531, {"vector": {"fp32": 11.76, "int8": 47}}),
    ("Tesla V100-SXM2-32GB", (7, 0), 80, 1530, {"vector": {"fp64": 7.8, "fp32": 15.7}, "matrix": {"fp16": 125}}),
    ("Tesla T4", (7, 5), 40, 1590, {"vector": {"fp32": 8.1}, "matrix": {"fp16": 65, "int8": 130}}),
    ("NVIDIA GeForce RTX 2080 Ti", (7, 5), 68, 1545, {"matrix": {"fp16_fp16": 107.6, "fp16": 53.8, "int8": 215.2}}),
    (
        *("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1410),
        {
            "vector": {"fp64": 9.7, "fp32": 19.5, "bf16": 39, "fp16": 78},
            "matrix": {"fp64": 19.5, "tf32": 156, "bf16": 312, "fp16": 312, "int8": 624},
        },
    ),
    (
        "NVIDIA A40",
        (8, 6),
        84,
        1740,
        {"vector": {"fp32": 37.4}, "matrix": {"tf32": 74.8, "bf16": 149.7, "int8": 299.3}},
    ),
    (
        *("NVIDIA GeForce RTX 3090", (8, 6), 82, 1695),
        {"vector": {"fp32": 35.6}, "matrix": {"tf32": 35.6, "bf16": 71, "fp16": 71, "fp16_fp16": 142, "int8": 284}},
    ),
    ("NVIDIA A10G", (8, 6), 80, 1710, {"vector": {"fp32": 35}, "matrix": {"tf32": 35, "fp16": 70, "int8": 280}}),
    (
        *("NVIDIA GeForce RTX 4090", (8, 9), 128, 2520),
        {
            "vector": {"fp64": 1.29, "fp32": 82.6},
            "matrix": {"tf32": 82.6, "bf16": 165.2, "fp16_fp16": 330.3, "fp8": 330.3, "int8": 660.6},
        },
    ),
    ("NVIDIA L40", (8, 9), 142, 2490, {"vector": {"fp32": 90.5}, "matrix": {"tf32": 90.5, "bf16": 181, "fp8": 362}}),
    ("NVIDIA L40S", (8, 9), 142, 2520, {"vector": {"fp32": 91.6}, "matrix": {"tf32": 183, "bf16": 366, "fp8": 733}}),
    ("NVIDIA L4", (8, 9), 58, 2040, {"vector": {"fp32": 30.3}, "matrix": {"tf32": 60, "bf16": 121, "fp8": 242.5}}),
    # The sheet of the H100 states matrix rates at 1,830 MHz, and the others at 1,980 MHz.
    ("NVIDIA H100 80GB HBM3", (9, 0), 132, 1980, {"vector": {"fp64": 33.5, "fp32": 66.9}, "matrix": {"fp64": 66.9}}),
    (
        *("NVIDIA H100 80GB HBM3", (9, 0), 132, 1830),
        {"matrix": {"tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9, "int8": 1978.9}},
    ),
    (
        *("NVIDIA B200", (10, 0), 148, 1855),
        {"matrix": {"tf32": 1125, "bf16": 2250, "fp8": 4500, "int8": 4500, "fp4": 9000}},
    ),
    ("NVIDIA B200", (10, 0), 148, 1965, {"vector": {"fp64": 37, "fp32": 74.5}, "matrix": {"fp64": 37}}),
    ("NVIDIA B300 SXM6 AC", (10, 3), 148, 1856, {"matrix": {"bf16": 2250, "fp8": 4500, "fp4": 13500}}),
    ("NVIDIA Thor", (11, 0), 20, 1575, {"vector": {"fp32": 8.06}, "matrix": {"fp8": 517, "fp4": 1035}}),
    (
        *("NVIDIA GeForce RTX 5090", (12, 0), 170, 2407),
        {
            "vector": {"fp64": 1.64, "fp32": 104.8},
            "matrix": {"tf32": 104.8, "bf16": 209.5, "fp16_fp16": 419, "fp8": 419, "int8": 838, "fp4": 1676},
        },
    ),
    ("NVIDIA RTX PRO 6000 Blackwell", (12, 0), 188, 2617, {"matrix": {"bf16": 503.8, "fp8": 1007.6, "fp4": 2015}}),
    ("AMD Instinct MI210", (9, 0), 104, 1700, {"vector": {"fp64": 22.6}, "matrix": {"fp64": 45.3, "bf16": 181}}),
    (
        *("AMD Instinct MI300X", (9, 4), 304, 2100),
        {
            "vector": {"fp64": 81.7, "fp32": 163.4},
            "matrix": {"tf32": 653.7, "bf16": 1307.4, "fp8": 2614.9, "int8": 2614.9},
        },
    ),
    ("AMD Instinct MI355X", (9, 5), 256, 2400, {"matrix": {"fp64": 78.6, "bf16": 2516.6, "fp8": 5033, "fp4": 10066}}),
]


@pytest.mark.parametrize(("name", "capability", "sm_count", "mhz", "stated"), DATA_SHEETS)
def test_peaks_of_data_sheets(
    name: str, capability: tuple[int, int], sm_count: int, mhz: int, stated: dict[str, dict[str, float]]
) -> None:
    major, minor = capability
    row = {"name": name, "compute_major": major, "compute_minor": minor, "sm_count": sm_count}
    peaks = find_peaks({**row, "clock_rate_hz": mhz * 1_000_000})
    assert peaks is not None
    for unit, rates in stated.items():
        own = getattr(peaks, unit)
        assert {t: own[t] / T for t in rates} == pytest.approx(rates, rel=0.015)
    assert peaks.clock_source == "recorded"
    assert peaks.fp32 <= peaks.tf32
    assert peaks.fp32 <= peaks.half


def test_recorded_clock_and_bandwidth() -> None:
    peaks = find_peaks({**H100, "clock_rate_hz": 1_980_000_000, "memory_bandwidth_bytes_per_s": 3_352_320_000_000})
    assert peaks is not None
    assert peaks.matrix["bf16"] == 132 * 1.98e9 * 4096  # 1,070 TFLOP/s
    assert peaks.half == peaks.get_rate("bf16", "matrix_product")
    assert (peaks.bandwidth, peaks.bandwidth_source) == (3_352_320_000_000, "recorded")
    sheet = find_sheet_peaks({**H100, "clock_rate_hz": 1_980_000_000})
    assert sheet is not None
    assert sheet.matrix["bf16"] == pytest.approx(989.4 * T)


def test_a_measured_clock() -> None:
    peaks = find_peaks({**H100, "clock_rate_hz": 1_980_000_000})
    assert peaks is not None
    slower = scale_to_clock(peaks, 1.5e9)
    assert (slower.matrix["bf16"], slower.clock_source) == (pytest.approx(132 * 1.5e9 * 4096), "measured")
    assert slower.vector["fp32"] == pytest.approx(132 * 1.5e9 * 256)
    assert slower.bandwidth == peaks.bandwidth


def test_the_data_sheet_if_clock_and_bandwidth_are_missing() -> None:
    peaks = find_peaks(H100)
    assert peaks is not None
    assert (peaks.clock_hz, peaks.clock_source) == (1.98e9, "data sheet")
    assert (peaks.bandwidth, peaks.bandwidth_source) == (3350 * G, "data sheet")
    assert peaks.matrix["bf16"] == pytest.approx(989.4 * T)
    assert peaks.matrix["fp64"] == pytest.approx(66.9 * T, rel=1e-3)
    assert peaks.half == peaks.matrix["bf16"]
    amd = find_peaks(MI300X)
    assert amd is not None
    assert (amd.architecture, amd.matrix["bf16"] / T) == ("gfx942", pytest.approx(1307.4, rel=1e-3))
    assert amd.resources.threads_per_warp == 64


@pytest.mark.parametrize(
    "row",
    [
        {**H100, "sm_count": 114},  # the name is that of another product
        {**H100, "compute_major": 8},
        {**H100, "name": "GPU"},
        {**H100, "name": None},
        {**H100, "sm_count": None},
        {**H100, "sm_count": 0},
        {**H100, "sm_count": 10**9},
        {**H100, "compute_major": 99},
        {**H100, "clock_rate_hz": 5, "name": "GPU"},
        {**MI300X, "compute_minor": 9},
        {**MI300X, "name": "AMD Radeon Graphics"},
        {**MI300X, "compute_minor": 0, "sm_count": 120},
        {"name": "NVIDIA H100 80GB HBM3"},
        {"name": "GPU", "sm_count": 132, "clock_rate_hz": 1_980_000_000},
        {"name": "NVIDIA H100 80GB HBM3", "sm_count": 78, "clock_rate_hz": 1_980_000_000},
        {},
    ],
)
def test_unknown_peaks(row: dict[str, Any]) -> None:
    assert find_peaks(row) is None


def test_a_name_without_capability_needs_the_number_of_multiprocessors() -> None:
    peaks = find_peaks({"name": "NVIDIA GeForce RTX 2070 SUPER", "sm_count": 40, "compute_major": 0})
    assert peaks is not None
    assert (peaks.architecture, peaks.clock_source) == ("7.5", "data sheet")


def test_clocks_in_khz() -> None:
    row = {"name": "NVIDIA GeForce RTX 3080", "compute_major": 8, "compute_minor": 6, "sm_count": 68}
    peaks = find_peaks({**row, "clock_rate_hz": 1_740_000, "memory_bandwidth_bytes_per_s": 760_080_000})
    assert peaks is not None
    assert (peaks.clock_hz, peaks.clock_source) == (1.74e9, "recorded")
    assert (peaks.bandwidth, peaks.bandwidth_source) == (760e9, "data sheet")
    laptop = find_peaks({**row, "name": "NVIDIA GeForce RTX 3060 Laptop GPU", "clock_rate_hz": 1_425_000_000})
    assert laptop is not None
    assert (laptop.bandwidth, laptop.bandwidth_source) == (None, None)


def test_capped_products() -> None:
    peaks = find_peaks({**H100, "name": "NVIDIA H20", "sm_count": 78})
    assert peaks is not None
    assert (peaks.matrix["bf16"], peaks.matrix["fp64"], peaks.vector["fp64"]) == (148 * T, T, T)


def test_rates_of_kinds() -> None:
    hopper, volta = (
        find_peaks(H100),
        find_peaks({**H100, "name": "Tesla V100-SXM2-32GB", "compute_major": 7, "sm_count": 80}),
    )
    assert hopper is not None
    assert volta is not None
    assert hopper.get_rate("fp32", "matrix_product") == hopper.vector["fp32"] == hopper.fp32
    assert hopper.get_rate("fp64", "attention") == hopper.matrix["fp64"]
    assert hopper.get_rate("bf16", "pointwise") == hopper.vector["fp32"]
    assert hopper.get_rate("fp64", "pointwise") == hopper.vector["fp64"]
    assert hopper.get_rate("fp4", "matrix_product") is None
    assert hopper.get_rate(None, "matrix_product") is None
    assert volta.get_rate("fp64", "matrix_product") == volta.vector["fp64"]
    assert (volta.tf32, volta.half) == (volta.fp32, volta.matrix["fp16"])


def test_recorded_peaks_of_a_tpu() -> None:
    row = {"name": "TPU v6 Lite", "peak_flop_per_s": 918 * 10**12, "memory_bandwidth_bytes_per_s": 1_637_993_152_512}
    found = find_recorded_peaks(row)
    assert found is not None
    assert (found.get_rate("bf16", "matrix_product"), found.bandwidth) == (918e12, 1_637_993_152_512.0)
    assert found.get_rate("fp32", "matrix_product") is None
    assert found.get_rate("bf16", "pointwise") is None
    assert find_recorded_peaks({**row, "peak_flop_per_s": None}) is None
    assert find_recorded_peaks({"peak_flop_per_s": 1}) is not None


def test_default_peaks_are_those_of_a_current_gpu() -> None:
    assert get_default_peaks() == find_peaks(H100)
    assert get_default_peaks().fp64 == pytest.approx(66.9 * T, rel=1e-3)


def test_declared_rates_are_consistent() -> None:
    declared = schemas.load_peak_rates()
    architectures = declared["architectures"]
    for sheet in declared["sheets"]:
        rates = architectures[sheet["architecture"]]
        if "bf16_tflops" in sheet:
            clock = sheet["bf16_tflops"] * T / (rates["matrix"]["bf16"] * sheet["sm_count"])
            assert 0.85 < clock / (sheet["clock_mhz"] * 1e6) < 1.001
    for rates in architectures.values():
        assert set(rates.get("halved", ())) <= set(rates.get("matrix", ()))


def test_devices_of_captures() -> None:
    trace = tk.load(FIXTURES / "gpu_metrics.nsys-rep")
    peaks = read_peaks(trace.frame)
    assert {d: (p.clock_source, p.bandwidth_source) for d, p in peaks.recorded.items()} == {
        0: ("recorded", "recorded"),
        1: ("recorded", "recorded"),
    }
    assert list(peaks.measured) == [0]
    assert list(peaks.sheets) == [1, 0]
    (clock,) = measure_clocks(trace.frame).values()
    assert 1.9e9 < clock < 1.99e9
    assert measure_clocks(tk.load(FIXTURES / "empty.nsys-rep").frame) == {}
    assert set(COLUMNS) <= set(trace.frame("devices").collect_schema())
    assert isinstance(trace.frame("devices"), pl.LazyFrame)
