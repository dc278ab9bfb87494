"""Work of matrix products: against counts of multiplications in plain loops, and of every spelling."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core.work.call import OpCall
from tracekit.core.work.formulas import compute_work

BF16, HALF, FLOAT, FP8 = "c10::BFloat16", "c10::Half", "float", "c10::Float8_e4m3fn"
sizes = st.integers(1, 5)


def count_operations(batch: int, rows: int, columns: int, inner: int) -> int:
    """Count the multiplications and additions of a batch of products in plain loops, from sums that begin at zero."""
    return sum(2 for _ in itertools.product(range(batch), range(rows), range(columns), range(inner)))


@given(sizes, sizes, sizes, sizes)
def test_products_take_as_many_operations_as_plain_loops(b: int, m: int, n: int, k: int) -> None:
    batch, one = count_operations(b, m, n, k), count_operations(1, m, n, k)
    calls = {
        "aten::mm": ([m, k], [k, n]),
        "aten::bmm": ([b, m, k], [b, k, n]),
        "aten::matmul": ([b, 1, m, k], [1, k, n]),
        "aten::linear": ([b, m, k], [n, k]),
        "aten::addbmm": ([], [b, m, k], [b, k, n]),
        "aten::_grouped_mm": ([m, k], [b, k, n]),
        "aten::einsum": ([], ((b, m, k), (n, b, k))),
    }
    work = {}
    for name, shapes in calls.items():
        values = ("bmk,nbk->bmn",) if name == "aten::einsum" else ()
        work[name] = compute_work(OpCall(name, tuple(map(tuple, shapes)), values=values))
    counted = {name: w and w.flop for name, w in work.items()}
    assert counted == dict.fromkeys(calls, batch) | {"aten::mm": one, "aten::_grouped_mm": one}


@pytest.mark.parametrize(
    ("name", "shapes", "types", "values", "work"),
    [
        ("aten::mm", [(8944, 2816), (2816, 1024)], [BF16] * 2, [], (51581550592, 56139776, 18317312, "bf16")),
        ("aten::mm", [(2, 3), (3, 4)], [], [], (48, None, None, None)),
        ("aten::mm", [(2, 3), (3, 4)], ["c10::complex<float>"] * 2, [], (192, 144, 64, "fp32")),
        ("aten::mm", [(2, 3), (3, 4)], ["bool", "bool"], [], (48, 18, 8, None)),
        ("aten::mm", [(0, 3), (3, 4)], [FLOAT] * 2, [], (0, 48, 0, "fp32")),
        ("aten::addmm", [(4,), (2, 3), (3, 4), (), ()], [HALF] * 3, [], (56, 44, 16, "fp16")),
        ("aten::addmm", [(4,), (2, 3), (3, 4), (), ()], [HALF] * 3, ["", "", "", "0", "1"], (48, 36, 16, "fp16")),
        ("aten::addmm_", [(2, 4), (2, 3), (3, 4)], [FLOAT] * 3, [], (56, 104, 32, "fp32")),
        ("aten::_addmm_activation", [(4,), (2, 3), (3, 4)], [FLOAT] * 3, [], (56, 88, 32, "fp32")),
        ("aten::baddbmm", [(5, 2, 4), (5, 2, 3), (5, 3, 4)], ["double"] * 3, [], (280, 1040, 320, "fp64")),
        ("aten::addbmm", [(2, 4), (5, 2, 3), (5, 3, 4)], [FLOAT] * 3, [], (248, 392, 32, "fp32")),
        ("aten::matmul", [(3,), (3, 4)], [FLOAT] * 2, [], (24, 60, 16, "fp32")),
        ("aten::matmul", [(7, 2, 3), (3,)], [FLOAT] * 2, [], (84, 180, 56, "fp32")),
        ("aten::linear", [(7, 2, 3), (4, 3), (4,)], [BF16] * 3, [], (392, 116, 112, "bf16")),
        ("aten::linear", [(3,), (4, 3)], [BF16] * 2, [], (24, 30, 8, "bf16")),
        ("aten::mv", [(4, 3), (3,)], [FLOAT] * 2, [], (24, 60, 16, "fp32")),
        ("aten::addmv", [(4,), (4, 3), (3,)], [FLOAT] * 3, [], (28, 76, 16, "fp32")),
        ("aten::dot", [(3,), (3,)], [FLOAT] * 2, [], (6, 24, 4, "fp32")),
        ("aten::outer", [(3,), (4,)], [FLOAT] * 2, [], (12, 28, 48, "fp32")),
        ("aten::ger", [(3,), (4,)], [], [], (12, None, None, None)),
        ("aten::einsum", [(), ((3,), (4,))], [], ["i, j -> ij"], (12, None, None, None)),
        ("aten::_int_mm", [(2, 3), (3, 4)], ["signed char"] * 2, [], (48, 18, 32, "int8")),
        (
            "aten::_scaled_mm",
            [(16, 32), (32, 8), (1,), (1,), (8,), (), (), ()],
            [FP8, FP8, FLOAT, FLOAT, BF16, "", "Scalar", "Scalar"],
            ["", "", "", "", "", "", "15", "True"],
            (8320, 792, 256, "fp8"),
        ),
        ("aten::_scaled_mm", [(16, 32), (32, 8)], [FP8] * 2, ["", "", "6"], (8192, 768, 512, "fp8")),
        ("aten::_scaled_mm", [(16, 32), (32, 8)], [BF16] * 2, [], (8192, 1536, 256, "bf16")),
        ("aten::_scaled_mm", [(16, 16), (16, 8)], ["c10::Float4_e2m1fn_x2"] * 2, [], (8192, 384, 256, "fp4")),
        ("aten::_scaled_mm", [(16, 32), (32, 8)], [], [], (8192, None, None, None)),
        ("aiter::gemm_a8w8", [(16, 32), (8, 32), (16, 1)], [FP8, FP8, FLOAT], [], (8192, 832, 256, "fp8")),
        ("_C::cutlass_scaled_mm", [(16, 8), (16, 32), (32, 8)], [HALF, FP8, FP8], [], (8192, 768, 256, "fp8")),
        ("bitsandbytes::int8_linear_matmul", [(2, 3), (4, 3)], ["signed char"] * 2, [], (48, 18, 16, "int8")),
        ("bitsandbytes::int8_linear_matmul", [(2, 3), (3, 4)], ["signed char"] * 2, [], (48, 18, 16, "int8")),
        (
            "aten::_weight_int4pack_mm",
            [(2, 64), (3, 1, 32, 4), (), (2, 8, 2)],
            [BF16, "int", "", BF16],
            ["", "", "32"],
            None,
        ),
        (
            "aten::_weight_int4pack_mm",
            [(2, 64), (1, 2, 32, 1), (), (2, 8, 2)],
            [BF16, "int", "", BF16],
            [],
            (2048, 576, 32, "bf16"),
        ),
        ("aten::_weight_int8pack_mm", [(2, 3), (4, 3), (4,)], [BF16, "char", BF16], [], (48, 32, 16, "bf16")),
        ("aten::_grouped_mm", [(6, 2, 3), (6, 3, 4)], [BF16] * 2, [], (288, 216, 96, "bf16")),
        ("aten::_grouped_mm", [(6, 2, 3), (3, 4)], [BF16] * 2, [], (48, 96, 16, "bf16")),
        ("aten::_grouped_mm", [(2, 3), (3, 4), (6,)], [BF16, BF16, "int"], [], (48, 36, 96, "bf16")),
        ("aten::_scaled_grouped_mm", [(2, 3), (6, 3, 4)], [FP8] * 2, [], (48, 78, 16, "fp8")),
        (
            "vllm::outplace_fused_experts",
            [(5, 4), (8, 6, 4), (8, 4, 3), (5, 2), (5, 2)],
            [BF16, BF16, BF16, FLOAT, "int"],
            [],
            (2 * 5 * 2 * (4 * 6 + 4 * 3), None, None, "bf16"),
        ),
        (
            "tex_ts::te_gemm_ts",
            [(3, 2), (), (), (), (), (4, 3), (), (), (), (), (4, 2)],
            [BF16] * 11,
            ["", "", "", "", "0", "", "", "", "", "0"],
            (48, 36, 16, "bf16"),
        ),
        (
            "tex_ts::te_gemm_ts",
            [(2, 3), (), (), (), (), (3, 4), (), (), (), (), (4, 2)],
            [BF16] * 11,
            ["", "", "", "", "1", "", "", "", "", "1"],
            (48, 36, 16, "bf16"),
        ),
    ],
)
def test_spellings(
    name: str,
    shapes: list[tuple[int, ...]],
    types: list[str],
    values: list[str],
    work: tuple[int | None, int | None, int | None, str | None] | None,
) -> None:
    got = compute_work(OpCall(name, tuple(shapes), tuple(types), tuple(values)))
    assert (got and (got.flop, got.read_bytes, got.written_bytes, got.type)) == work
    assert got is None or got.kind == "matrix_product"


def test_expanded_dimensions_are_read_once() -> None:
    call = OpCall("aten::bmm", ((4, 2, 3), (4, 3, 5)), (FLOAT, FLOAT), strides=((0, 3, 1), (15, 5, 1)))
    work = compute_work(call)
    assert work is not None
    assert (work.flop, work.read_bytes, work.written_bytes) == (240, 24 + 240, 160)


@pytest.mark.parametrize(
    ("name", "shapes", "values"),
    [
        ("aten::mm", [(2, 3), (4, 5)], []),
        ("aten::mm", [(2, 3)], []),
        ("aten::mm", [(3,), (3,)], []),
        ("aten::mm", [(2, -3), (-3, 4)], []),
        ("aten::mm", [(10**30, 3), (3, 4)], []),
        ("aten::mm", [(10**9, 10**9), (10**9, 10**9)], []),
        ("aten::mm", [(4_000_000_000, 1), (1, 2_000_000_000)], []),
        ("aten::mm", [(1,) * 65, (1,) * 65], []),
        ("aten::mm", [((2, 3), (3, 4))], []),
        ("aten::bmm", [(2, 3), (3, 4)], []),
        ("aten::bmm", [(2, 2, 3), (3, 3, 4)], []),
        ("aten::addmm", [(7,), (2, 3), (3, 4)], []),
        ("aten::addmm", [(5, 2, 4), (2, 3), (3, 4)], []),
        ("aten::addbmm", [(), (2, 3), (3, 4)], []),
        ("aten::addbmm", [(), (2, 2, 3), (2, 4, 4)], []),
        ("aten::matmul", [(2, 2, 3), (3, 3, 4)], []),
        ("aten::linear", [(2, 3), (3,)], []),
        ("aten::mv", [(2, 3), (3, 1)], []),
        ("aten::dot", [(3, 1), (3,)], []),
        ("aten::outer", [(3, 1), (3,)], []),
        ("aten::einsum", [(), ((3, 4), (4, 5))], []),
        ("aten::einsum", [(), ((3, 4), (4, 5))], ["ij,jk,kl->il"]),
        ("aten::einsum", [(), ((3, 4), (4, 5))], ["ii,jk->k"]),
        ("aten::einsum", [(), ((3, 4), (5, 6))], ["ij,jk->ik"]),
        ("aten::einsum", [(), ((3, 4), (4, 5))], ["ij,jk->iz"]),
        ("aten::einsum", [(), (3, 4)], ["ij,jk->ik"]),
        ("aiter::gemm_a8w8", [(2, 3), (3,)], []),
        ("aten::_grouped_mm", [(2, 3), (4, 5)], []),
        ("aten::_grouped_mm", [(3,), (3, 5)], []),
        ("aten::_weight_int4pack_mm", [(2, 3), (4, 5), (), (6,)], []),
        ("tex_ts::te_gemm_ts", [(2, 3), (), (), (), (), (7, 4)], []),
        ("aiter::fused_moe_", [(5, 4), (8, 6, 4), (8, 4), (5, 2), (5, 2)], []),
        ("aiter::fused_moe_", [(5, 4), (8, 6, 2), (8, 4, 3), (5, 2), (5, 2)], []),
        ("aten::unheard_of", [(2, 3), (3, 4)], []),
    ],
)
def test_contradictory_arguments_are_unknown(name: str, shapes: list[tuple[int, ...]], values: list[str]) -> None:
    assert compute_work(OpCall(name, tuple(shapes), (FLOAT,) * len(shapes), tuple(values))) is None
