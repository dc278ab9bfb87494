"""Work of pointwise ops, copies, lookups, optimizers and collective operations."""

from __future__ import annotations

from typing import Any

import pytest
from tracekit.core.work.call import OpCall
from tracekit.core.work.formulas import compute_work

BF16, FLOAT, LONG = "c10::BFloat16", "float", "long int"
A, B = (4, 6), (6,)
LISTS = ((4, 6), (6,))


@pytest.mark.parametrize(
    ("name", "shapes", "types", "values", "work"),
    [
        ("aten::gelu", [A, ()], [BF16, ""], [], ("pointwise", 24, 48, 48)),
        ("aten::add", [A, B, ()], [BF16, BF16, "Scalar"], [], ("pointwise", 24, 60, 48)),
        ("aten::add", [B, A], [FLOAT, BF16], [], ("pointwise", 24, 72, 96)),
        ("aten::add_", [A, B], [BF16, FLOAT], [], ("pointwise", 24, 72, 48)),
        ("aten::add", [(), ()], [LONG, LONG], [], ("pointwise", 1, 16, 8)),
        ("aten::mul", [A, ()], [BF16, "double"], [], ("pointwise", 24, 56, 48)),
        ("aten::mul", [A, B, A], [LONG, BF16, FLOAT], [], ("pointwise", 24, 204, 96)),
        ("aten::mul", [A, B], [], [], ("pointwise", 24, None, None)),
        ("aten::eq", [A, B], [BF16, BF16], [], ("pointwise", 24, 60, 24)),
        ("aten::isnan", [A], [BF16], [], ("pointwise", 24, 48, 24)),
        ("aten::where", [A, A, ()], ["bool", BF16, FLOAT], [], ("pointwise", 24, 76, 48)),
        ("aten::lerp_", [A, A, ()], [FLOAT, FLOAT, "Scalar"], [], ("pointwise", 24, 192, 96)),
        ("aten::normal_", [A], [FLOAT], [], ("pointwise", None, 0, 96)),
        ("aten::native_dropout", [A], [BF16], [], ("pointwise", 24, 48, 72)),
        ("aten::copy_", [A, B], [FLOAT, BF16], [], ("copy", 0, 12, 96)),
        ("aten::fill_", [A], [FLOAT], [], ("copy", 0, 0, 96)),
        ("aten::clone", [A], [FLOAT], [], ("copy", 0, 96, 96)),
        ("aten::_to_copy", [A, ()], [FLOAT, "Scalar"], ["", "15"], ("copy", 0, 96, 48)),
        ("aten::_to_copy", [A, ()], [FLOAT, ""], [], ("copy", 0, 96, 96)),
        ("aten::cat", [LISTS, ()], [FLOAT, "Scalar"], [], ("copy", 0, 120, 120)),
        ("aten::cat", [LISTS, ()], ["TensorList", "Scalar"], [], ("copy", 0, None, None)),
        ("aten::gather", [A, (), (4, 2)], [FLOAT, "Scalar", LONG], [], ("copy", 0, 96, 32)),
        ("aten::index_select", [A, (), (2,)], [FLOAT, "Scalar", LONG], ["", "-1"], ("copy", 0, 48, 32)),
        ("aten::index", [A, ((3,),)], [FLOAT, ""], [], ("copy", 0, 96, 72)),
        ("aten::index_copy_", [A, (), (2,), (2, 6)], [FLOAT, "", LONG, FLOAT], [], ("copy", 0, 64, 48)),
        ("aten::scatter_add_", [A, (), (2, 6), (2, 6)], [FLOAT, "", LONG, FLOAT], [], ("copy", 12, 192, 48)),
        ("aten::arange", [(), (), (7,)], ["Scalar", "Scalar", LONG], [], ("copy", 0, 0, 56)),
        ("aten::embedding", [(100, 6), (2, 3)], [BF16, LONG], [], ("embedding", 0, 120, 72)),
        (
            "aten::embedding_dense_backward",
            [(2, 3, 6), (2, 3), ()],
            [BF16, LONG, "Scalar"],
            ["", "", "4"],
            ("embedding", 36, 120, 48),
        ),
        ("aten::_fused_adamw_", [LISTS] * 4 + [()], [FLOAT] * 4, [], ("optimizer", 14 * 30, 480, 360)),
        ("aten::_fused_adamw_", [A, B] * 4 + [(), ()], [], [], ("optimizer", 14 * 30, None, None)),
        ("aten::_foreach_zero_", [A, B], [FLOAT] * 2, [], ("copy", 0, 0, 120)),
        ("aten::cat", [A, A, ()], [FLOAT, FLOAT, ""], [], ("copy", 0, 192, 192)),
        ("aten::_fused_sgd_", [LISTS] * 2, [FLOAT] * 2, [], ("optimizer", 60, 240, 120)),
        ("aten::_foreach_add_", [LISTS, LISTS], [FLOAT] * 2, [], ("pointwise", 30, 240, 120)),
        ("aten::_foreach_copy_", [LISTS, LISTS], [FLOAT] * 2, [], ("copy", 0, 240, 120)),
        ("sgl_kernel::silu_and_mul", [(4, 3), A], [BF16] * 2, [], ("pointwise", 60, 48, 24)),
        ("_C::rotary_embedding", [(4,), A, (4, 2)], [LONG, BF16, BF16], [], ("pointwise", 96, 64, 64)),
        ("_C::rotary_embedding", [(4,), A, ()], [LONG, BF16, ""], [], ("pointwise", 72, 48, 48)),
        ("sglang::store_cache", [A, A, (9, 6)], [BF16, BF16, "c10::Float8_e5m2"], [], ("copy", 0, 96, 48)),
        ("_C::static_scaled_fp8_quant", [A, A], ["c10::Float8_e4m3fn", BF16], [], ("pointwise", 24, 48, 24)),
        ("triton_poi_fused_add_0", [A, B, A, ()], [BF16, BF16, FLOAT, "Scalar"], [], ("pointwise", None, 60, 96)),
        ("nccl:all_reduce", [A], [FLOAT], [], ("collective", None, 96, 96)),
        ("nccl:all_reduce", [LISTS], [FLOAT], [], ("collective", None, 120, 120)),
        ("record_param_comms", [()], [], ["allgather", "10", "80", "BFloat16"], ("collective", None, 20, 160)),
        ("record_param_comms", [()], [], ["allgather", "10", "80", "?"], ("collective", None, None, None)),
    ],
)
def test_work(
    name: str, shapes: list[Any], types: list[str], values: list[str], work: tuple[str, int | None, int, int]
) -> None:
    got = compute_work(OpCall(name, tuple(shapes), tuple(types), tuple(values)))
    assert got is not None
    assert (got.kind, got.flop, got.read_bytes, got.written_bytes) == work
    assert got.type is None


@pytest.mark.parametrize(
    ("name", "shapes", "values"),
    [
        ("aten::add", [()], []),
        ("aten::add", [(2, 3), (4,)], []),
        ("aten::copy_", [A], []),
        ("aten::clone", [()], []),
        ("aten::fill_", [()], []),
        ("aten::cat", [()], []),
        ("aten::index_select", [A, (), (2,)], ["", "2"]),
        ("aten::index", [A, ((3,), (3,))], []),
        ("aten::embedding_dense_backward", [(2, 6), (2,)], []),
        ("aten::_foreach_add_", [()], []),
        ("aten::_foreach_add_", [A, A], []),
        ("aten::_fused_adamw_", [A, B, A, B], []),
        ("sgl_kernel::silu_and_mul", [A, A], []),
        ("triton_poi_fused_add_0", [()], []),
        ("nccl:all_reduce", [()], []),
        ("record_param_comms", [()], ["allgather", "-10", "80", "BFloat16"]),
    ],
)
def test_contradictory_arguments_are_unknown(name: str, shapes: list[Any], values: list[str]) -> None:
    assert compute_work(OpCall(name, tuple(shapes), (), tuple(values))) is None
