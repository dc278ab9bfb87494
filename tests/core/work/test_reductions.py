"""Work of reductions, normalizations, softmax, losses, pooling and sorting."""

from __future__ import annotations

from typing import Any

import pytest
from tracekit.core.work.call import OpCall
from tracekit.core.work.formulas import compute_work

BF16, FLOAT, LONG = "c10::BFloat16", "float", "long int"
A, IMAGE = (4, 6), (2, 3, 8, 8)


@pytest.mark.parametrize(
    ("name", "shapes", "types", "values", "work"),
    [
        ("aten::sum", [A, (), (), ()], [BF16, ""], [], ("reduction", 24, 48, 2)),
        ("aten::sum", [A, (), (), ()], [BF16, "ScalarList"], ["", "[]"], ("reduction", 24, 48, 2)),
        ("aten::mean", [A, ()], [BF16, "ScalarList"], ["", "[-1]"], ("reduction", 24, 48, 8)),
        ("aten::max", [A, ()], [BF16, "Scalar"], ["", "1"], ("reduction", 24, 48, 40)),
        ("aten::max", [()], [LONG], [], ("reduction", 1, 8, 8)),
        ("aten::argmax", [A, ()], [BF16, "Scalar"], ["", "1"], ("reduction", 24, 48, 32)),
        ("aten::any", [A], ["bool"], [], ("reduction", 24, 24, 1)),
        ("aten::linalg_vector_norm", [A, (), ()], [FLOAT], ["", "2", "[0]"], ("reduction", 24, 96, 24)),
        ("aten::_foreach_norm", [(A, A)], [FLOAT], [], ("reduction", 48, 192, 8)),
        ("aten::cumsum", [A], ["int"], [], ("reduction", 24, 96, 192)),
        ("aten::cumsum", [A], [BF16], [], ("reduction", 24, 48, 48)),
        ("aten::_softmax", [A, (), ()], [BF16], ["", "-1", "False"], ("softmax", 120, 48, 48)),
        ("aten::_log_softmax", [A, (), ()], [BF16], ["", "-1", "True"], ("softmax", 120, 48, 96)),
        ("aten::_softmax_backward_data", [A, A], [BF16, BF16], [], ("softmax", 96, 96, 48)),
        ("aten::cross_entropy_loss", [A, (4,)], [BF16, LONG], [], ("softmax", 124, 80, 2)),
        ("aten::nll_loss_forward", [A, (4,)], [BF16, LONG], [], ("reduction", 4, 40, 2)),
        ("aten::nll_loss_backward", [(), A, (4,)], [BF16, BF16, LONG], [], ("reduction", 4, 34, 8)),
        ("aten::mse_loss", [A, A, ()], [FLOAT, FLOAT], ["", "", "1"], ("reduction", 72, 192, 4)),
        ("aten::mse_loss", [A, A, ()], [FLOAT, FLOAT], ["", "", "0"], ("reduction", 72, 192, 96)),
        (
            "aten::native_batch_norm",
            [IMAGE, (3,), (3,), (3,), (3,), ()],
            [FLOAT] * 5,
            ["", "", "", "", "", "True"],
            ("normalization", 5 * 384 + 18, 4 * (384 + 12), 4 * 384),
        ),
        (
            "aten::batch_norm",
            [IMAGE, (3,), (3,), (3,), (3,), ()],
            [FLOAT] * 5,
            ["", "", "", "", "", "False"],
            ("normalization", 2 * 384 + 18, 4 * (384 + 12), 4 * 384),
        ),
        ("aten::group_norm", [IMAGE, (), (3,), (3,)], [FLOAT] * 4, [], ("normalization", 1938, 1560, 1536)),
        (
            "aten::layer_norm",
            [A, (), (6,), (6,)],
            [BF16] * 4,
            ["", "[6]"],
            ("normalization", 5 * 24 + 36, 72, 48),
        ),
        ("aten::native_layer_norm", [A, (), (6,)], [BF16] * 4, [], ("normalization", 5 * 24 + 36, 60, 48)),
        (
            "aten::native_layer_norm_backward",
            [A, A, (), (4, 1), (4, 1), (6,)],
            [BF16] * 6,
            [],
            ("normalization", 216, 124, 48),
        ),
        (
            "aten::native_batch_norm_backward",
            [IMAGE, IMAGE, (3,)],
            [FLOAT] * 3,
            ["", "", "", "", "", "", "", "False"],
            ("normalization", 6 * 384, 4 * (768 + 3), 4 * 384),
        ),
        ("aten::rms_norm", [A, (), (6,)], [BF16] * 3, [], ("normalization", 104, 60, 48)),
        ("aten::rms_norm", [A, (), ()], [BF16, "ScalarList", ""], ["", "[6]"], ("normalization", 104, 48, 48)),
        ("aten::_fused_rms_norm_backward", [A, A, (), (4, 1), (6,)], [BF16] * 5, [], ("normalization", 240, 116, 60)),
        (
            "aten::_fused_rms_norm_backward",
            [A, A, (), (4, 1), (6,)],
            [BF16] * 5,
            ["", "", "", "", "", "[True, False]"],
            ("normalization", 192, 116, 48),
        ),
        ("aiter::rmsnorm", [A, A, (6,)], [BF16] * 3, [], ("normalization", 104, 60, 48)),
        ("aiter::add_rmsnorm", [A, A, A, A, (6,)], [BF16] * 5, [], ("normalization", 128, 108, 96)),
        ("_C::fused_add_rms_norm", [A, A, (6,)], [BF16] * 3, [], ("normalization", 128, 108, 96)),
        (
            "aten::max_pool2d_with_indices",
            [IMAGE],
            [FLOAT],
            ["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"],
            ("pooling", 96 * 9, 1536, 96 * 12),
        ),
        ("aten::avg_pool2d", [IMAGE], [FLOAT], ["", "2", "[]", "0", "False"], ("pooling", 384, 1536, 384)),
        ("aten::avg_pool1d", [(3, 8)], [FLOAT], ["", "3", "2", "0", "True"], ("pooling", 36, 96, 48)),
        ("aten::_adaptive_avg_pool2d", [IMAGE], [FLOAT], ["", "[1, 1]"], ("pooling", 384, 1536, 24)),
        ("aten::avg_pool2d_backward", [(2, 3, 4, 4), IMAGE], [FLOAT] * 2, [], ("pooling", 96, 384, 1536)),
        (
            "aten::max_pool2d_with_indices_backward",
            [(2, 3, 4, 4), IMAGE, (), (), (), (), (), (2, 3, 4, 4)],
            [FLOAT, FLOAT, "", "", "", "", "", LONG],
            [],
            ("pooling", 96, 1152, 1536),
        ),
        ("aten::sort", [A], [FLOAT], [], ("sorting", None, 96, 288)),
        ("aten::topk", [A, (), ()], [FLOAT], ["", "2", "-1"], ("sorting", None, 96, 96)),
        ("aten::topk", [A, ()], [FLOAT], ["", "2"], ("sorting", None, 96, 96)),
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
        ("aten::sum", [()], []),
        ("aten::sum", [A], ["", "[2]"]),
        ("aten::_foreach_norm", [()], []),
        ("aten::_softmax_backward_data", [A, (4,)], []),
        ("aten::mse_loss", [A, (4,)], []),
        ("aten::group_norm", [(4,)], []),
        ("aten::layer_norm", [A], []),
        ("aten::layer_norm", [A, ()], ["", "[7]"]),
        ("aten::native_layer_norm_backward", [A, (4,)], []),
        ("aten::rms_norm", [A, (), (7,)], []),
        ("aiter::add_rmsnorm", [A, A, (2, 6), A, (6,)], []),
        ("aten::_fused_rms_norm_backward", [A, (6, 4)], []),
        ("aten::avg_pool2d", [(8, 8)], ["", "2"]),
        ("aten::avg_pool2d", [IMAGE], []),
        ("aten::avg_pool2d", [IMAGE], ["", "[2, 2, 2]"]),
        ("aten::avg_pool2d", [IMAGE], ["", "0"]),
        ("aten::avg_pool2d", [IMAGE], ["", "11", "1"]),
        ("aten::_adaptive_avg_pool2d", [IMAGE], ["", "[-1, 1]"]),
        ("aten::topk", [A], ["", "7"]),
    ],
)
def test_contradictory_arguments_are_unknown(name: str, shapes: list[Any], values: list[str]) -> None:
    assert compute_work(OpCall(name, tuple(shapes), (), tuple(values))) is None
