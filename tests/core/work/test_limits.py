"""How well grids fill the GPU, and how long the GPU is idle before late launches."""

from __future__ import annotations

import math
import random

import polars as pl
import pytest
from tests.builders.programs import US, Program
from tracekit.core.work.limits import KERNEL_COLUMNS, fill_columns, measure_late_launches
from tracekit.core.work.peaks import Peaks, find_peaks

H100 = {"name": "NVIDIA H100", "compute_major": 9, "compute_minor": 0, "sm_count": 132, "max_warps_per_sm": 64}
H100 |= {"max_registers_per_sm": 65536, "max_shared_memory_per_sm_bytes": 233472, "threads_per_warp": 32}


def peaks(**row: object) -> Peaks:
    found = find_peaks({**H100, **row})
    assert found is not None
    return found


def frame(*kernels: dict[str, int | None]) -> pl.DataFrame:
    default = {"device_id": 0, "start_ns": 0, "end_ns": 1, "grid_y": 1, "grid_z": 1, "block_y": 1, "block_z": 1}
    rows = [{**dict.fromkeys(KERNEL_COLUMNS), **default, **kernel} for kernel in kernels]
    return pl.DataFrame(rows, schema=dict.fromkeys(KERNEL_COLUMNS, pl.Int32))


def resident(threads: int, registers: int | None, shared: int) -> int:
    """Return the number of blocks that a multiprocessor of an H100 holds, as the occupancy calculator computes it."""
    warps = math.ceil(threads / 32)
    limits = [64 // warps, 32, 233472 // (shared + 1024)]
    if registers:
        of_warp = math.ceil(registers * 32 / 256) * 256
        limits.append(65536 // of_warp // 4 * 4 // warps)
    return max(1, min(limits))


def test_fill_of_random_kernels() -> None:
    choose = random.Random(0)
    kernels: list[dict[str, int | None]] = []
    expected = []
    for _ in range(500):
        blocks, threads = choose.choice([1, 50, 131, 132, 133, 264, 1000, 5000]), choose.choice([32, 96, 256, 1000])
        registers, shared = choose.choice([None, 16, 33, 128, 255]), choose.choice([0, 1000, 50_000, 200_000])
        kernels.append({"grid_x": blocks, "block_x": threads, "registers_per_thread": registers})
        kernels[-1] |= {"static_shared_memory_bytes": shared // 2, "dynamic_shared_memory_bytes": shared - shared // 2}
        capacity = 132 * resident(threads, registers, shared)
        if blocks <= capacity:  # the multiprocessor with the most blocks decides
            fill = blocks / 132 / math.ceil(blocks / 132)
        else:
            fill = blocks / capacity / math.ceil(blocks / capacity)
        expected.append((blocks / capacity, fill))
    rows = fill_columns(frame(*kernels), {0: peaks()})
    assert rows.rows() == [pytest.approx(pair) for pair in expected]


def test_unknown_fill() -> None:
    kernel = {"grid_x": 66, "block_x": 128}
    rows = frame(kernel, {**kernel, "device_id": 1}, {"grid_x": 66}, {**kernel, "grid_x": 0}, {**kernel, "block_x": 0})
    assert fill_columns(rows, {0: peaks()})["fill"].to_list() == [0.5, None, None, None, None]
    filled = fill_columns(frame(kernel, {**kernel, "grid_x": 132}), {0: peaks(max_warps_per_sm=None)})
    assert filled.rows() == [(None, 0.5), (None, None)]
    assert fill_columns(frame(kernel), {}).rows() == [(None, None)]


def test_late_launches() -> None:
    program = Program()
    launches = [(0, 5, 10, 20), (6, 9, 20, 30), (50, 55, 60, 70), (56, 58, 75, 80), (57, 59, 81, 90)]
    for start, end, *times in launches:
        call = program.call("cudaLaunchKernel", start * US, end * US)
        program.kernel(call, *(t * US for t in times))
    program.kernel(None, 100 * US, 110 * US)
    program.kernel(program.call("cudaLaunchKernel", 104 * US, 105 * US), 115 * US, 118 * US)
    program.kernel(program.call("cudaLaunchKernel", 140 * US, 141 * US), 141 * US, 142 * US, device_id=1)
    program.copy(None, 112 * US, 114 * US)
    kernels = program.frames("kernels").select(KERNEL_COLUMNS).collect()
    late = measure_late_launches(program.frames, kernels)
    # The third call returned after the GPU had become idle. The fourth and the fifth were launched while it worked.
    assert late.to_list() == [0, 0, 30 * US, 0, 0, None, 0, 0]


def test_late_launches_of_correlated_tables() -> None:
    times = {"device_id": [0, 0, 0], "start_ns": [10, 40, 80], "end_ns": [20, 50, 90], "api_end_ns": [5, 30, None]}
    tables = {"kernels": pl.DataFrame(times).lazy()}
    empty = pl.LazyFrame(schema=dict.fromkeys(("device_id", "start_ns", "end_ns"), pl.Int64))
    late = measure_late_launches(lambda name: tables.get(name, empty), tables["kernels"].collect())
    assert late.to_list() == [0, 20, None]


def test_waves_do_not_depend_on_the_shape_of_the_grid() -> None:
    kernels = [
        {"grid_x": x, "grid_y": y, "grid_z": 300 // x // y, "block_x": 64} for x, y in [(300, 1), (3, 100), (1, 5)]
    ]
    assert len(set(fill_columns(frame(*kernels), {0: peaks()}).rows())) == 1
