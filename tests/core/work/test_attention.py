"""Work of attention: against counts of pairs in plain loops, and of every spelling."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core.work.call import OpCall
from tracekit.core.work.formulas import compute_work

Shape = tuple[int, ...]
BF16 = "c10::BFloat16"
sizes = st.integers(1, 5)


def count_operations(shape: tuple[int, int, int, int], size: int, mask: str) -> int:
    """Count the multiplications and additions of attention in plain loops over pairs that the mask keeps."""
    operations, (_, _, queries, keys) = 0, shape
    for _, _, q, k in itertools.product(*map(range, shape)):
        last = {"none": keys, "first": q, "last": q + keys - queries}[mask]
        operations += 2 * size if k <= last else 0
    return operations


@given(st.tuples(sizes, sizes, st.integers(1, 3), sizes, sizes, sizes, sizes))
def test_attention_takes_as_many_operations_as_plain_loops(drawn: tuple[int, int, int, int, int, int, int]) -> None:
    b, h, groups, q, k, d, d_v = drawn
    heads_first = ((b, h * groups, q, d), (b, h, k, d), (b, h, k, d_v))
    positions_first = ((b, q, h * groups, d), (b, k, h, d), (b, k, h, d_v))
    all_pairs = count_operations((b, h * groups, q, k), d + d_v, "none")
    for flag in (False, True):
        sdpa = compute_work(
            OpCall("aten::_scaled_dot_product_flash_attention", heads_first, (), ("",) * 4 + (str(flag),))
        )
        flash = compute_work(OpCall("flash_attn::_flash_attn_forward", positions_first, (), ("",) * 5 + (str(flag),)))
        assert sdpa is not None
        assert flash is not None
        if flag and q == k:
            assert sdpa.flop == flash.flop == all_pairs // 2
        else:
            assert sdpa.flop == count_operations((b, h * groups, q, k), d + d_v, "first" if flag else "none")
            assert flash.flop == count_operations((b, h * groups, q, k), d + d_v, "last" if flag else "none")


@given(sizes, sizes, sizes, sizes)
def test_the_backward_pass_takes_five_products_instead_of_two(b: int, h: int, n: int, d: int) -> None:
    shape, values = (b, h, n, d), ("",) * 11
    for flag in ("False", "True"):
        forward = compute_work(OpCall("aten::scaled_dot_product_attention", (shape,) * 3, (), ("",) * 5 + (flag,)))
        name = "aten::_scaled_dot_product_flash_attention_backward"
        backward = compute_work(OpCall(name, (shape,) * 6, (), (*values, flag)))
        assert forward is not None
        assert backward is not None
        assert backward.flop is not None
        assert forward.flop is not None
        assert 2 * backward.flop == 5 * forward.flop


Q, K = (2, 8, 16, 4), (2, 2, 16, 4)
FLOP = 2 * 2 * 8 * 16 * 16 * (4 + 4)
Q_P, K_P = (2, 16, 8, 4), (2, 16, 2, 4)
PACKED = [(32, 8, 4), (32, 2, 4), (32, 2, 4)]


def flags(place: int, flag: str, after: tuple[str, ...] = ()) -> tuple[str, ...]:
    return ("",) * place + (flag, *after)


@pytest.mark.parametrize(
    ("name", "shapes", "values", "flop"),
    [
        ("aten::scaled_dot_product_attention", [Q, K, K], flags(5, "True"), FLOP // 2),
        ("aten::_scaled_dot_product_efficient_attention", [Q, K, K], ("", "", "", "", "True", "0.", "False"), FLOP),
        ("aten::_scaled_dot_product_cudnn_attention", [Q, K, K], ("", "", "", "", "False", "0.", "True"), FLOP // 2),
        ("aten::_scaled_dot_product_cudnn_attention_backward", [Q, Q, K, K], flags(14, "True"), FLOP * 5 // 4),
        ("aten::_scaled_dot_product_efficient_attention_backward", [Q, Q, K, K], flags(11, "False"), FLOP * 5 // 2),
        ("aten::_flash_attention_forward", [Q_P, K_P, K_P], flags(8, "True"), FLOP // 2),
        ("aten::_flash_attention_backward", [Q_P, Q_P, K_P, K_P], flags(11, "False"), FLOP * 5 // 2),
        ("aten::_flash_attention_forward", [Q_P, K_P, K_P], flags(8, "True", ("False", "1", "-1", "0")), FLOP // 2),
        ("aten::_efficient_attention_forward", [Q_P, K_P, K_P], flags(9, "1"), FLOP // 2),
        ("aten::_efficient_attention_backward", [Q_P, Q_P, K_P, K_P], flags(14, "0"), FLOP * 5 // 2),
        ("FlashAttnFunc", [Q_P, K_P, K_P], flags(5, "False", ("-1", "-1")), FLOP),
        ("flash_attn::_flash_attn_backward", [Q_P, Q_P, K_P, K_P], flags(11, "True", ("-1", "0")), FLOP * 5 // 4),
        (
            "flash_attn::_flash_attn_varlen_forward",
            [*PACKED, (3,), (3,)],
            flags(5, "16", ("16", "0.", "", "True")),
            FLOP // 2,
        ),
    ],
)
def test_spellings(name: str, shapes: list[Shape], values: tuple[str, ...], flop: int) -> None:
    types = [BF16 if len(shape) > 1 else "int" for shape in shapes]
    work = compute_work(OpCall(name, tuple(shapes), tuple(types), values))
    assert work is not None
    assert (work.kind, work.flop, work.type) == ("attention", flop, "bf16")


def test_operations_of_a_model() -> None:
    """The utilization of a model counts all pairs, twice as many operations in the backward pass, and no mask."""
    name, back = "aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention_backward"
    for values in (flags(5, "True"), flags(5, "False"), ()):
        work = compute_work(OpCall(name, (Q, K, K), (BF16,) * 3, values))
        assert work is not None
        assert work.model_flop == FLOP
        assert work.flop == {"True": FLOP // 2, "False": FLOP}.get(values[5] if values else "")
    work = compute_work(OpCall("FlashAttnFunc", (Q_P, K_P, K_P), (BF16,) * 3))
    assert work is not None
    assert (work.flop, work.model_flop) == (None, FLOP)
    for values in (flags(11, "True"), ()):
        work = compute_work(OpCall(back, (Q, Q, K, K), (BF16,) * 4, values))
        assert work is not None
        assert work.model_flop == 2 * FLOP


def test_bytes() -> None:
    forward = compute_work(OpCall("aten::scaled_dot_product_attention", (Q, K, K), (BF16,) * 3, flags(5, "False")))
    assert forward is not None
    assert (forward.read_bytes, forward.written_bytes) == (2 * (1024 + 2 * 256), 2 * 1024)
    name = "aten::_flash_attention_backward"
    backward = compute_work(OpCall(name, (Q_P, Q_P, K_P, K_P), (BF16,) * 4, flags(11, "False")))
    assert backward is not None
    assert (backward.read_bytes, backward.written_bytes) == (2 * (3 * 1024 + 2 * 256), 2 * (1024 + 2 * 256))


@pytest.mark.parametrize(
    ("name", "shapes", "values"),
    [
        ("aten::scaled_dot_product_attention", [Q, K, K], flags(5, "maybe")),
        ("aten::scaled_dot_product_attention", [Q, K, (2, 2, 15, 4)], flags(5, "True")),
        ("aten::scaled_dot_product_attention", [Q, (2, 3, 16, 4), (2, 3, 16, 4)], flags(5, "True")),
        ("aten::scaled_dot_product_attention", [(8, 16, 4)] * 3, flags(5, "True")),
        ("aten::scaled_dot_product_attention", [Q, (2, 0, 16, 4), (2, 0, 16, 4)], flags(5, "True")),
        ("FlashAttnFunc", [Q_P, K_P, K_P], ("", "0.5")),
        ("FlashAttnFunc", [Q_P, K_P, K_P], flags(5, "True", ("128", "0"))),
        ("FlashAttnFunc", [Q_P, K_P, K_P], flags(5, "False", ("[-1, 64]",))),
        ("FlashAttnFunc", [Q_P, K_P, K_P, (2,)], flags(5, "True")),
        ("aten::_flash_attention_forward", [Q_P, K_P, K_P], flags(8, "True", ("False", "", "128", "0"))),
        ("aten::_flash_attention_forward", [Q_P, K_P, K_P], flags(8, "False", ("False", "", "", "64"))),
        ("aten::_flash_attention_backward", [Q_P, Q_P, K_P, K_P], flags(11, "True", ("", "", "", "128", "0"))),
        ("aten::_efficient_attention_forward", [Q_P, K_P, K_P], flags(9, "7")),
        ("flash_attn::_flash_attn_varlen_forward", [*PACKED, (3,), (3,)], flags(5, "17", ("17", "0.", "", "True"))),
        ("flash_attn::_flash_attn_varlen_forward", [*PACKED, (3,), (4,)], flags(5, "16", ("16", "0.", "", "True"))),
        ("flash_attn::_flash_attn_varlen_forward", PACKED, flags(5, "16", ("16", "0.", "", "True"))),
        ("flash_attn::_flash_attn_varlen_forward", [PACKED[0], Q, Q, (3,)], flags(5, "16", ("16", "0.", "", "True"))),
    ],
)
def test_contradictory_arguments_are_unknown(name: str, shapes: list[Shape], values: tuple[str, ...]) -> None:
    types = [BF16 if len(shape) > 1 else "int" for shape in shapes]
    assert compute_work(OpCall(name, tuple(shapes), tuple(types), values)) is None
