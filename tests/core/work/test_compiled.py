"""The instructions of compiled programs to which ranges and kernels belong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared
from tests.conftest import FIXTURES
from tracekit.core.work import compiled
from tracekit.core.work.ops import OpWork, compute_op_work

if TYPE_CHECKING:
    from collections.abc import Callable

ADD = "= f32[8] add(f32[8] %a, f32[8] %b)"
GEMM = (
    '%custom-call.4 = f32[2,2] custom-call(f32[2,2] %a, f32[2,2] %b), custom_call_target="__cublas$gemm", '
    'backend_config={"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}'
)
PROGRAM = [
    ("entry", "add.1", f"%add.1 {ADD}"),
    ("entry", "add-2", f"%add-2 {ADD}"),
    ("entry", "add_2", f"%add_2 {ADD}"),
    ("entry", "sort.3", "%sort.3 = f32[8] sort(f32[8] %a)"),
    ("entry", "custom-call.4", GEMM),
]


def scene(launches: list[tuple[str, str]], program_id: int = 7) -> Callable[[str], pl.LazyFrame]:
    """Return a capture of one thread, in which each range (name) launches one kernel (name) in a range of XLA."""
    rows, calls, kernels = [], [], []
    for i, (name, kernel) in enumerate(launches, 1):
        rows += [(8 + 2 * i, 10 * i, 10 * i + 9, "TSL", name), (9 + 2 * i, 10 * i + 1, 10 * i + 8, "TraceMe", "run")]
        calls.append((i, 10 * i + 2, 10 * i + 3, 1, 1, i, "cuLaunchKernel"))
        kernels.append((100 + i, 10 * i + 4, 10 * i + 9, 1, 0, i, kernel))
    ranges = pl.DataFrame(rows, ["range_id", "start_ns", "end_ns", "domain", "name"], orient="row")
    call_columns = ["api_call_id", "start_ns", "end_ns", "process_id", "thread_id", "correlation_id", "name"]
    kernel_columns = ["kernel_id", "start_ns", "end_ns", "process_id", "device_id", "correlation_id", "name"]
    instructions = [
        (i, program_id, "jit_f", computation, True, name, "x", text)
        for i, (computation, name, text) in enumerate(PROGRAM)
    ]
    columns = ["instruction_id", "program_id", "program", "computation", "is_entry", "name", "opcode", "text"]
    return declared(
        nvtx_ranges=ranges.with_columns(kind=pl.lit("push_pop"), process_id=1, thread_id=1, domain_id=0),
        api_calls=pl.DataFrame(calls, call_columns, orient="row"),
        kernels=pl.DataFrame(kernels, kernel_columns, orient="row"),
        hlo_instructions=pl.DataFrame(instructions, columns, orient="row"),
    )


def thunk(operation: str, program: object = 7) -> str:
    return f"Thunk:#name=a,hlo_op={operation},hlo_module=jit_f,program_id={program}#"


def test_ranges_and_kernels_of_graphs_have_their_instructions() -> None:
    launches = [
        (thunk("add.1"), "anything"),
        (thunk("custom-call.4"), "sgemm"),
        (thunk("command_buffer_1"), "add_1.kd"),
        (thunk("command_buffer_1"), "add_2"),
        (thunk("command_buffer_1"), "library"),
        (thunk("sort.3"), "sort_3"),
        (thunk("add.1", 8), "add_1"),
        (thunk("add.1", "9" * 19), "add_1"),
        ("Thunk:#hlo_op=add.1#", "add_1"),
    ]
    work = compute_op_work(scene(launches))
    assert work.kernels["range_id"].to_list() == [10, 12, -1, *[None] * 6]
    assert work.ops.select("range_id", "name", "shapes", "types", "kind", "flop").rows() == [
        (10, "add", "[[8],[8]]", '["fp32","fp32"]', "pointwise", 8),
        (12, "__cublas$gemm", "[[2,2],[2,2]]", '["fp32","fp32"]', "matrix_product", 16),
        (-1, "add", "[[8],[8]]", '["fp32","fp32"]', "pointwise", 8),
    ]
    assert work.covered_share == pytest.approx(3 / 9)


def test_programs_with_very_many_instructions_are_parsed_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MAX_INSTRUCTIONS", 1)
    work = compute_op_work(scene([(thunk("add.1"), "a"), (thunk("custom-call.4"), "b")]))
    assert work.kernels["range_id"].to_list() == [10, None]


@pytest.mark.parametrize(("name", "stem"), [("gemm_fusion_dot.3.1", "gemm_fusion_dot"), ("12", "12")])
def test_names_without_numbers(name: str, stem: str) -> None:
    assert compiled.strip_number(name) == stem


def test_the_work_of_a_step_of_jax() -> None:
    """Six layers of 1024 × 1024 for a batch of 512: six products forward, five and six backward."""
    work: OpWork
    with tk.load(FIXTURES / "xplane" / "train.xplane.pb") as trace:
        work = compute_op_work(trace.frame)
        again = compute_op_work(trace.correlate().frame)
    assert work.covered_share == 1.0
    assert again.ops.equals(work.ops)
    products = work.ops.filter(pl.col("kind") == "matrix_product")
    of_layer = 2 * 512 * 1024 * 1024
    assert products.height == 5 * (6 + 5 + 6)
    assert products["flop"].sum() == pytest.approx(5 * 17 * of_layer, rel=0.002)
    assert products.filter(pl.col("flop") == of_layer).height == 5 * 11
