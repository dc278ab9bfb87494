"""The utilization of steps, with numbers that are computed by hand, and that of training programs."""

from __future__ import annotations

import json
import warnings

import polars as pl
import pytest
import tracekit as tk
from tests.builders.programs import MS, US, Program
from tests.conftest import FIXTURES, ROOT
from tests.core.work.test_roofline import PEAK, product, program
from tracekit.core.work.roofline import bound_ops
from tracekit.core.work.utilization import compute_step_utilization
from tracekit.errors import TracekitWarning

SICK = ROOT.parent / "shared" / "captures" / "sick"


def measure(added: Program, *steps: tuple[int, int, bool]) -> list[dict[str, object]]:
    """Return the utilization of steps, given their bounds, and whether they belong to the warm-up."""
    rows = [
        {"process_id": 1, "iteration": i, "name": f"step {i}", "start_ns": a, "end_ns": b, "is_warm_up": is_cold}
        for i, (a, b, is_cold) in enumerate(steps)
    ]
    frame = pl.DataFrame(rows).with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    return compute_step_utilization(added.frames, frame, bound_ops(added.frames)).to_dicts()


def test_utilization_of_steps() -> None:
    added = program()
    for _ in range(3):
        start = added.now
        product(added, 4096, MS)
        added.launch("my_kernel", 3 * MS)
        added.now = start + 10 * MS
    cold, first, second, total = measure(added, *((i * 10 * MS, (i + 1) * 10 * MS, i == 0) for i in range(3)))
    flop = 2 * 4096**3
    assert cold["is_warm_up"]
    for row, count in ((first, 1), (second, 1), (total, 2)):
        assert (row["flop"], row["bf16_flop"], row["fp32_flop"]) == (count * flop, count * flop, 0)
        assert (row["gpu_time_ns"], row["covered"]) == (4 * MS * count, 0.25)
        assert row["mfu"] == row["hfu"] == pytest.approx(flop / PEAK / 0.01)
        assert row["sheet_mfu"] == pytest.approx(flop / 989.4e12 / 0.01)
        assert row["measured_mfu"] is None
    assert (total["iteration"], total["duration_ns"]) == (None, 20 * MS)


def test_work_outside_of_steps_belongs_to_none() -> None:
    added = program()
    for _ in range(4):
        start = added.now
        product(added, 1024, MS)
        added.now = start + 5 * MS
    rows = measure(added, (5 * MS, 10 * MS, False), (10 * MS, 15 * MS, False))
    assert [row["flop"] for row in rows] == [2 * 1024**3, 2 * 1024**3, 4 * 1024**3]
    (row, _) = measure(added, (100 * MS, 110 * MS, False))
    assert (row["flop"], row["gpu_time_ns"], row["covered"], row["mfu"]) == (0, 0, None, 0)


def test_unknown_work_is_not_zero() -> None:
    added = program()
    added.launch("my_kernel", MS)
    row, total = measure(added, (0, 10 * MS, False))
    for each in (row, total):
        assert (each["gpu_time_ns"], each["covered"], each["flop"], each["mfu"], each["hfu"]) == (
            MS,
            0,
            None,
            None,
            None,
        )


def test_types_without_a_peak() -> None:
    added = program(compute_major=7, name="Tesla V100-SXM2-32GB", sm_count=80)
    product(added, 1024, MS, dtype="float", name="ampere_sgemm_tf32_s1688gemm_128x64")
    row, _ = measure(added, (0, 10 * MS, False))
    assert (row["tf32_flop"], row["without_peak_flop"], row["mfu"]) == (2 * 1024**3, 2 * 1024**3, 0)
    unknown = program(name="GPU", sm_count=None)
    product(unknown, 1024, MS)
    row, _ = measure(unknown, (0, 10 * MS, False))
    assert (row["flop"], row["mfu"], row["hfu"], row["sheet_mfu"]) == (2 * 1024**3, None, None, None)


def test_several_devices_of_a_process() -> None:
    added = program()
    added.tables["devices"].append({**added.tables["devices"][0], "device_id": 1})
    product(added, 1024, MS)
    product(added, 1024, MS, device_id=1)
    row, _ = measure(added, (0, 10 * MS, False))
    assert row["mfu"] == pytest.approx(2 * 2 * 1024**3 / PEAK / 0.02)


@pytest.mark.parametrize(("op", "count"), [("aten::linear", 4), ("aten::matmul", 6)])
def test_forward_passes_that_are_computed_again(op: str, count: int) -> None:
    """Backward passes of other programs call ``matmul``, too, so it does not show that anything is computed again."""
    added = program()
    start = added.now
    product(added, 1024, MS)  # the forward pass
    added.range(op, start - 1, added.now + 1)
    added.now += MS
    start = added.now
    product(added, 1024, MS)  # again, in the backward pass
    added.range(op, start - 1, added.now + 1)
    added.now += US
    product(added, 1024, MS)
    added.range("autograd::engine::evaluate_function: CheckpointFunctionBackward", start - US, added.now + US)
    row, _ = measure(added, (0, 20 * MS, False))
    assert (row["flop"], row["executed_flop"], row["recomputed_flop"]) == tuple(
        n * 1024**3 for n in (count, 6, 6 - count)
    )
    assert row["mfu"] == pytest.approx(count * 1024**3 / PEAK / 0.02)
    assert row["hfu"] == pytest.approx(6 * 1024**3 / PEAK / 0.02)


@pytest.mark.parametrize("values", [["", "", "", "", "0.", "True"], None])
def test_causal_attention_counts_in_full(values: list[str] | None) -> None:
    added = program()
    start, shape = added.now, [2, 8, 1024, 64]
    added.launch("flash_fwd_kernel", MS)
    recorded = {"Input type": ["c10::BFloat16"] * 3, "Input Dims": [shape] * 3}
    recorded |= {"Concrete Inputs": values} if values else {}
    added.range("aten::scaled_dot_product_attention", start, added.now, payload_text=json.dumps(recorded))
    row, total = measure(added, (0, 10 * MS, False))
    flop = 4 * 2 * 8 * 1024 * 1024 * 64
    for each in (row, total):
        assert (each["flop"], each["mfu"]) == (flop, pytest.approx(flop / PEAK / 0.01))
        if values:
            assert (each["executed_flop"], each["hfu"]) == (flop // 2, pytest.approx(flop / 2 / PEAK / 0.01))
        else:
            assert (each["executed_flop"], each["hfu"]) == (None, None)


def test_processes_without_ids() -> None:
    added = program()
    added.process = None
    product(added, 1024, MS)
    frame = pl.DataFrame({"iteration": [0], "name": ["s"], "start_ns": [0], "end_ns": [10 * MS], "is_warm_up": [False]})
    frame = frame.with_columns(process_id=pl.lit(None, pl.Int64), duration_ns=pl.lit(10 * MS))
    row, _ = compute_step_utilization(added.frames, frame, bound_ops(added.frames)).to_dicts()
    assert row["process_id"] is None


def test_mfu_of_a_training_step_of_a_gpt() -> None:
    """The program counted its 93,405,184 parameters itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)  # kernels that were launched before the recording began
        steps = tk.load(FIXTURES / "work" / "gpt_step.pt.trace.json.gz").report("step_mfu").frame()
    layers, width, length, batch = 6, 1024, 1024, 8
    flop = (6 * 93_405_184 + 12 * layers * width * length) * length * batch
    *rows, total = steps.to_dicts()
    assert [row["Name"] for row in rows] == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]
    for row, count in (*((row, 1) for row in rows), (total, 3)):
        assert row["FLOP"] == pytest.approx(count * flop, rel=0.02)
        peak = 132 * 1.98e9 * 4096
        assert row["MFU (%)"] == pytest.approx(100 * count * flop / peak / (row["Duration (ns)"] / 1e9), abs=3)


@pytest.mark.parametrize(
    ("name", "layers", "width", "outputs", "tokens"),
    [("app_lm", 8, 768, 1024, (16, 512)), ("attention", 6, 512, 0, (4, 2048))],
)
def test_mfu_of_a_small_gpt(name: str, layers: int, width: int, outputs: int, tokens: tuple[int, int]) -> None:
    """The work is (6·N + 12·layers·width·length)·tokens."""
    path = SICK / f"{name}.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is missing")
    batch, length = tokens
    rows = tk.load(path).report("step_mfu").frame()
    total = rows.row(-1, named=True)
    steps = rows.filter(~pl.col("Warm-Up"), pl.col("Step").is_not_null()).height
    parameters = 12 * layers * width**2 + width * outputs
    flop = (6 * parameters + 12 * layers * width * length) * length * batch * steps
    assert total["MFU (%)"] * flop / total["FLOP"] == pytest.approx(total["MFU (%)"], abs=3)
    assert total["FLOP"] == pytest.approx(flop, rel=0.01)
