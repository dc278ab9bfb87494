"""What rules examine."""

from __future__ import annotations

import numpy as np
import pytest
from tests.builders.programs import HALF_GEMM, MS, US, Program, find_cure, steps
from tracekit.core.diagnosis.cures import SCALES, SCALES_OF_EMIT_NVTX, SCALES_OF_PYTORCH
from tracekit.core.diagnosis.inspection import Inspection
from tracekit.core.work.peaks import get_default_peaks

NOTHING = np.zeros(0, np.int64)


def loop() -> Program:
    program = Program()
    return steps(program, 4, lambda _: [program.launch(HALF_GEMM), program.pause(MS)])


def test_without_rows() -> None:
    inspection = loop().inspection()
    assert inspection.show_operation(NOTHING) is None
    assert inspection.show_item(NOTHING) is None
    assert inspection.find_main_label(NOTHING, NOTHING) == ""
    assert inspection.list_functions(NOTHING) == []
    assert inspection.list_os_calls(NOTHING) == []
    assert inspection.measure_blocked_time(NOTHING) == 0


def test_examples() -> None:
    inspection = loop().inspection()
    items = inspection.model.items
    assert inspection.show_operation(np.array([1])) == ("kernels", 1, MS + 12 * US, MS + 62 * US)
    (call,) = np.flatnonzero(items.call == 2)
    assert inspection.show_item(np.array([call])) == ("api_calls", 3, 2 * MS + 10 * US, 2 * MS + 15 * US)
    assert inspection.show_item(np.flatnonzero(items.call < 0)) == ("api_calls", None, 5 * US, MS + 5 * US)


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (4, "1"), (6, "1.5"), (42, "10"), (4_000, "1,000")])
def test_numbers_per_step(count: int, text: str) -> None:
    assert loop().inspection().count_per_step(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (4, "1 copy per step blocks"),
        (8, "2 copies per step block"),
        (6, "1.5 copies per step block"),
        (1, "1 copy in 4 steps blocks"),
        (3, "3 copies in 4 steps block"),
        (0, "0 copies in 4 steps block"),
    ],
)
def test_nouns_and_verbs_agree_with_numbers(count: int, text: str) -> None:
    assert loop().inspection().describe_count(count, "copy|copies", "blocks|block") == text


def test_amounts_of_captures_without_steps() -> None:
    program = Program()
    program.launch()
    inspection = program.inspection()
    assert inspection.describe_count(1, "copy|copies") == "1 copy"
    assert inspection.describe_time(5 * MS) == "5 ms"
    assert [inspection.describe_bytes(b) for b in (7, 70_000, 2_147_483_648)] == ["7 bytes", "70 KB", "2.15 GB"]


def test_scales_of_profilers() -> None:
    program = loop()
    assert program.inspection().scales is SCALES
    program.range("aten::mm", 0, US)
    assert program.inspection().scales is SCALES_OF_EMIT_NVTX
    program.range("aten::mm", 0, US, domain="cpu_op")
    assert program.inspection().scales is SCALES_OF_PYTORCH


def test_the_device_that_works_most() -> None:
    program = loop()
    assert program.inspection().device_name is None
    assert program.inspection().peaks is get_default_peaks()
    program.device(device_id=1, name="NVIDIA A40")
    program.device(device_id=0, name="NVIDIA L4", sm_count=58)
    assert program.inspection().device_name == "NVIDIA L4"
    assert program.inspection().peaks.half == pytest.approx(121e12, rel=0.01)


def sampled(depth: int) -> Inspection:
    """Samples whose innermost frames belong to the interpreter."""
    program = loop()
    for number in range(depth):
        symbol = "tokenize" if number == 0 else "_PyEval_EvalFrameDefault"
        row = {"stack_id": number, "parent_id": number - 1 if number else None, "depth": number, "symbol": symbol}
        program.tables["stacks"].append(row)
    for number, call in enumerate(program.tables["api_calls"]):
        row = {"python_sample_id": number, "kind": "periodic", "thread_id": 1, "stack_id": depth - 1}
        program.add("python_samples", timestamp_ns=call["end_ns"] + 10, **row)
    return program.inspection()


@pytest.mark.parametrize(("depth", "names"), [(12, ["tokenize"]), (13, [])])
def test_frames_of_the_interpreter_are_skipped(depth: int, names: list[str]) -> None:
    model = sampled(depth).model
    assert Inspection(model).list_functions(np.flatnonzero(model.long_pauses)) == names


def streams(*, wait: bool = False, count: int = 4) -> Program:
    """Kernels of several streams, each of which starts when the one before it ends, although it was launched before."""
    program = Program()

    def body(_: int) -> None:
        for number in range(count):
            free = max(program.free.values(), default=0)
            program.free[number] = max(free, program.now + 5 * US)
            program.launch("my_kernel", MS, stream=number)
        if wait:
            program.do("cudaStreamWaitEvent_v3020")
        program.wait()

    return steps(program, 4, body)


def test_kernels_of_streams_that_wait_for_one_another() -> None:
    cure = find_cure(streams(), "serialized_streams")
    assert cure.is_unsure
    assert cure.missing == "whether the kernels of different streams depend on one another"
    assert len(cure.independent)
    assert "serialized_streams" not in streams(wait=True).causes()
    assert "serialized_streams" not in streams(count=3).causes()
