"""The instructions of compiled programs to which ranges and kernels belong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared
from tests.conftest import FIXTURES
from tracekit.core.work import compiled, hlo
from tracekit.core.work.ops import OpWork, compute_op_work
from tracekit.readers.common.budget import Budget
from tracekit.readers.xplane import programs, space
from tracekit.readers.xplane.values import METADATA_VALUES, EventValues
from tracekit.registry.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS = FIXTURES.parents[1] / "shared" / "corpus"
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


def test_recorded_work_counts_where_the_text_does_not_tell_it() -> None:
    """The profile contains no bodies of fusions. The numbers are those of XLA for one execution."""
    with tk.load(FIXTURES / "xplane" / "tpu.xplane.pb") as trace:
        work = compute_op_work(trace.frame)
        steps = tk.stats(trace, "step_mfu")
    assert work.covered_share == 1.0
    products = work.ops.filter(pl.col("kind") == "matrix_product")
    assert products.select("flop", "type", "read_bytes").unique().rows() == [(2**37, "bf16", 96 << 20)]
    assert products.height == 2 * 2 * 4
    assert {*work.ops["kind"]} == {"matrix_product", "pointwise", "reduction", "copy", "collective"}
    assert steps["FLOP"].to_list() == [2**39] * 4 + [2**41]
    assert all(50 < mfu < 52 for mfu in steps["MFU (%)"][1:4])


@pytest.mark.parametrize(
    ("category", "path", "text", "expected"),
    [
        ("convolution fusion", "jit(f)/conv_general_dilated", "%a = (f32[2]{0}) fusion()", ("convolution", "fp32")),
        ("", "", "a", ("pointwise", None)),
        ("loop fusion", "jit(f)/mul", "%a = opaque[] fusion()", ("pointwise", None)),
    ],
)
def test_kinds_of_recorded_work(category: str, path: str, text: str, expected: tuple[str, str | None]) -> None:
    assert compiled._classify_recorded_work(category, path, text) == expected


@pytest.mark.corpus
def test_work_that_a_profile_states() -> None:
    """XLA states the operations and bytes of the ops of a TPU, with the same rules."""
    path = CORPUS / "makers" / "xplane" / "openxla__xprof" / "tpu_inference_2.xplane.pb"
    if not path.exists():
        pytest.skip("no public profiles")
    with Source(path).open() as file:
        planes = space.read_space(*space.read_content(file), Budget(file.size)).planes
    table = programs.build_instruction_table(programs.iterate_programs(planes), Budget(path.stat().st_size))
    instructions = pl.DataFrame(pl.from_arrow(table))
    computations = {
        str(name): hlo.parse_computation(part["text"])
        for (name,), part in instructions.partition_by("computation", as_dict=True).items()
    }
    plane, compared = planes[0], set()
    encoded = plane.event_names.metadata
    values = EventValues.of_messages(plane, encoded.starts, encoded.stops, METADATA_VALUES)
    flop, moved = values.get_integers("flops")[0], values.get_integers("bytes_accessed")[0]
    for i, text in enumerate(plane.event_names.texts.to_pylist()):
        instruction = hlo.parse_instruction(text)
        work = instruction and hlo.compute_instruction_work(instruction, computations)
        if instruction and work and instruction.opcode in ("fusion", "all-reduce"):
            assert (work.flop, (work.read_bytes or 0) + (work.written_bytes or 0)) == (flop[i], moved[i])
            compared.add(instruction.opcode)
    assert compared == {"fusion", "all-reduce"}


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "share", "flop"),
    [
        ("jax08_gemm", 0.98, {"__cublas$gemm": 3 * (2**31 + 2 * 2**37 + 2**39 + 2**36)}),
        ("jax08_attention", 0.97, {"__cublas$gemm": 3 * (4 * 2**34 + 2**35 + 2 * 2**36)}),
        ("jax_conv_minimal_legacy", 1.0, {"__cudnn$convForward": 5 * 2 * 5120 * 34 * 31 * 53 * 16 * 4}),
        (
            "test_data_jax_te_fused_attn_categorization",
            1.0,
            {
                "te_fused_attn_forward_ffi": 10 * 4 * 2 * 16 * 128 * 2048 * 2048 // 2,
                "te_fused_attn_backward_ffi": 10 * 10 * 2 * 16 * 128 * 2048 * 2048 // 2,
            },
        ),
    ],
)
def test_work_of_public_profiles(name: str, share: float, flop: dict[str, int]) -> None:
    paths = list((CORPUS / "makers" / "xplane").rglob(f"{name}/*.xplane.pb"))
    if not paths:
        pytest.skip("no public profiles")
    with tk.load(paths[0]) as trace:
        work = compute_op_work(trace.frame)
    sums = dict(work.ops.group_by("name").agg(pl.col("flop").sum()).iter_rows())
    assert {target: sums[target] for target in flop} == flop
    assert (work.covered_share or 0) >= share
