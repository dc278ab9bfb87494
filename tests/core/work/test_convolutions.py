"""Work of convolutions: against counts of multiplications in plain loops, and of every spelling."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core.work.call import OpCall
from tracekit.core.work.formulas import compute_work

if TYPE_CHECKING:
    from collections.abc import Callable

    Shape = tuple[int, ...]

BF16 = "c10::BFloat16"


@st.composite
def convolutions(draw: Callable[[st.SearchStrategy[int]], int]) -> dict[str, object]:
    """Draw the shapes and parameters of a convolution whose result has at least one element."""
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    many = [
        [draw(st.integers(low, high)) for _ in range(rank)] for low, high in ((1, 3), (1, 2), (0, 1), (1, 2), (4, 6))
    ]
    filters, stride, padding, dilation, space = many
    inner, outer = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    return {
        "batch": draw(st.integers(1, 2)),
        "groups": groups,
        "inner": inner,
        "outer": outer,
        "filters": tuple(filters),
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "space": tuple(space),
    }


def list_positions(size: int, k: int, stride: int, padding: int, dilation: int) -> list[int]:
    """Return the positions at which a dilated filter lies inside the padded input."""
    return [i for i in range(-padding, size + padding, stride) if i + dilation * (k - 1) < size + padding]


@given(convolutions())
def test_convolutions_take_as_many_operations_as_plain_loops(drawn: dict[str, object]) -> None:
    batch, groups, inner, outer = (int(str(drawn[key])) for key in ("batch", "groups", "inner", "outer"))
    filters, space = drawn["filters"], drawn["space"]
    stride, padding, dilation = (drawn[key] for key in ("stride", "padding", "dilation"))
    places = [list_positions(*each) for each in zip(space, filters, stride, padding, dilation, strict=True)]  # type: ignore[call-overload]
    result = (batch, groups * outer, *(len(each) for each in places))
    operations = 0
    for _ in itertools.product(range(batch), range(groups), range(outer), *places):
        for _ in itertools.product(range(inner), *(range(k) for k in filters)):  # type: ignore[attr-defined]
            operations += 2
    image, weight = (batch, groups * inner, *space), (groups * outer, inner, *filters)  # type: ignore[misc]
    numbers = tuple(map(str, (stride, padding, dilation)))
    rank = len(space)  # type: ignore[arg-type]
    forward = OpCall(f"aten::conv{rank}d", (image, weight), values=("", "", "", *numbers, str(groups)))
    work = compute_work(forward)
    assert work is not None
    assert work.flop == operations
    values = ("", "", "", "", *numbers, "False", str([0] * rank), str(groups))
    for mask, factor in (("[True, True, True]", 2), ("[False, True, False]", 1), ("[False, False, True]", 0)):
        backward = compute_work(OpCall("aten::convolution_backward", (result, image, weight), values=(*values, mask)))
        assert backward is not None
        assert backward.flop == factor * operations
    swapped = (groups * outer, inner, *filters)  # type: ignore[misc]
    scattered = OpCall(
        f"aten::conv_transpose{rank}d",
        (result, swapped),
        values=("", "", "", *numbers[:2], "0", str(groups), numbers[2]),
    )
    transposed = compute_work(scattered)
    smallest = [
        (n - 1) * s - 2 * p + d * (k - 1) + 1
        for n, k, s, p, d in zip(result[2:], filters, stride, padding, dilation, strict=True)
    ]  # type: ignore[call-overload]
    assert (transposed and transposed.flop) == (operations if min(smallest) >= 0 else None)


PLAIN = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"]
IMAGE, WEIGHT, RESULT = (2, 4, 5, 5), (6, 4, 3, 3), (2, 6, 3, 3)
FLOP = 2 * 2 * 6 * 9 * 4 * 9


@pytest.mark.parametrize(
    ("name", "shapes", "values", "flop"),
    [
        ("aten::conv2d", [IMAGE, WEIGHT, (6,)], PLAIN, FLOP),
        ("aten::conv2d", [IMAGE[1:], WEIGHT, (6,)], PLAIN, FLOP // 2),
        ("aten::conv2d", [IMAGE, WEIGHT], ["", "", "", "1", "valid", "1", "1"], FLOP),
        ("aten::conv2d", [IMAGE, WEIGHT], ["", "", "", "1", "same", "1", "1"], FLOP * 25 // 9),
        ("aten::conv2d", [IMAGE, (6, 4, 2, 2)], ["", "", "", "1", "same", "1", "1"], FLOP * 25 * 4 // 81),
        ("aten::conv2d", [IMAGE, (6, 2, 3, 3)], [*PLAIN[:6], "2"], FLOP // 2),
        ("aten::convolution", [IMAGE, WEIGHT, (6,)] + [()] * 6, [*PLAIN[:6], "False", "[0]", "1"], FLOP),
        ("aten::convolution", [IMAGE, WEIGHT, ()], [*PLAIN[:6], "False", "[0]", "1"], FLOP + 2 * 6 * 9),
        ("aten::convolution", [RESULT, WEIGHT], [*PLAIN[:6], "True", "[0]", "1"], FLOP),
        ("aten::cudnn_convolution", [IMAGE, WEIGHT], ["", "", "[0, 0]", "[1, 1]", "[1, 1]", "1"], FLOP),
        ("aten::cudnn_convolution", [IMAGE, WEIGHT, (6,)], ["", "", "", "[0, 0]", "[1, 1]", "[1, 1]", "1"], FLOP),
        ("aten::cudnn_convolution_transpose", [RESULT, WEIGHT], ["", "", "0", "0", "1", "1", "1"], FLOP),
        ("aten::cudnn_convolution_relu", [IMAGE, WEIGHT, (6,)], PLAIN, FLOP + 2 * 6 * 9),
        (
            "aten::cudnn_convolution_add_relu",
            [IMAGE, WEIGHT, RESULT, (), (6,)],
            ["", "", "", "1", "", "1", "0", "1", "1"],
            FLOP + 2 * 2 * 6 * 9,
        ),
        ("aten::miopen_convolution", [IMAGE, WEIGHT, (6,)], ["", "", "", "0", "1", "1", "1"], FLOP),
        ("aten::miopen_convolution_transpose", [RESULT, WEIGHT], ["", "", "", "0", "0", "1", "1", "1"], FLOP),
        ("aten::_conv_depthwise2d", [IMAGE, (4, 1, 3, 3)], ["", "", "3", "", "1", "0", "1"], 2 * 2 * 4 * 9 * 9),
        ("aten::thnn_conv2d", [IMAGE, WEIGHT], ["", "", "3", "", "1", "0"], FLOP),
        ("aten::cudnn_convolution_backward", [IMAGE, RESULT, WEIGHT], [], 2 * FLOP),
        ("aten::cudnn_convolution_transpose_backward", [RESULT, IMAGE, WEIGHT], [], 2 * FLOP),
        ("aten::cudnn_convolution_backward_input", [(), RESULT, WEIGHT], [str(list(IMAGE))], FLOP),
        ("aten::cudnn_convolution_backward_weight", [(), RESULT, IMAGE], [str(list(WEIGHT))], FLOP),
        ("aten::convolution_backward", [RESULT, IMAGE, WEIGHT], [], 2 * FLOP),
        ("aten::convolution_backward", [IMAGE, RESULT, WEIGHT], [], 2 * FLOP),
    ],
)
def test_spellings(name: str, shapes: list[Shape], values: list[str], flop: int) -> None:
    work = compute_work(OpCall(name, tuple(shapes), (BF16,) * len(shapes), tuple(values)))
    assert work is not None
    assert (work.kind, work.flop, work.type) == ("convolution", flop, "bf16")


def test_bytes() -> None:
    image, weight, result = 200, 216, 108
    cases = [
        ("aten::conv2d", (IMAGE, WEIGHT), PLAIN, (image + weight, result)),
        ("aten::convolution", (IMAGE, WEIGHT, ()), [*PLAIN[:6], "False", "[0]", "1"], (image + weight + 6, result)),
        ("aten::convolution_backward", (RESULT, IMAGE, WEIGHT), [], (2 * result + image + weight, image + weight)),
    ]
    for name, shapes, values, elements in cases:
        work = compute_work(OpCall(name, shapes, ("float",) * 3, tuple(values)))
        assert work is not None
        assert (work.read_bytes, work.written_bytes) == tuple(4 * n for n in elements)
        untyped = compute_work(OpCall(name, shapes, (), tuple(values)))
        assert untyped is not None
        assert (untyped.flop, untyped.read_bytes, untyped.written_bytes) == (work.flop, None, None)
    twice = compute_work(OpCall("aten::conv2d", (IMAGE, WEIGHT), ("c10::complex<float>",) * 2, tuple(PLAIN)))
    assert twice is not None
    assert twice.flop == 4 * FLOP


@pytest.mark.parametrize(
    ("name", "shapes", "values"),
    [
        ("aten::conv2d", [IMAGE, WEIGHT], []),
        ("aten::conv2d", [IMAGE, WEIGHT], [*PLAIN[:3], "[1, 1, 1]", *PLAIN[4:]]),
        ("aten::conv2d", [IMAGE, WEIGHT], [*PLAIN[:3], "0", *PLAIN[4:]]),
        ("aten::conv2d", [IMAGE, WEIGHT], [*PLAIN[:3], "-1", *PLAIN[4:]]),
        ("aten::conv2d", [IMAGE, WEIGHT], [*PLAIN[:6], "0"]),
        ("aten::conv2d", [IMAGE, WEIGHT], [*PLAIN[:6], "3"]),
        ("aten::conv2d", [IMAGE, WEIGHT], ["", "", "", "2", "same", "1", "1"]),
        ("aten::conv2d", [(2, 4, 1, 1), WEIGHT], PLAIN),
        ("aten::conv2d", [IMAGE, (6, 4)], PLAIN),
        ("aten::conv2d", [(4, 5), WEIGHT], PLAIN),
        ("aten::conv2d", [IMAGE, (6, 4, 0, 0)], PLAIN),
        ("aten::convolution", [IMAGE, WEIGHT], PLAIN),
        ("aten::conv2d", [IMAGE, WEIGHT], ["result [2, 6, -1, 3]"]),
        ("aten::cudnn_convolution_backward_input", [(), RESULT, WEIGHT], []),
        ("aten::cudnn_convolution_backward_weight", [(), RESULT, IMAGE], ["[-1, 4, 3, 3]"]),
        ("aten::convolution_backward", [(3, 6, 3, 3), IMAGE, WEIGHT], []),
        ("aten::convolution_backward", [(2, 7, 3, 3), IMAGE, WEIGHT], []),
    ],
)
def test_contradictory_arguments_are_unknown(name: str, shapes: list[Shape], values: list[str]) -> None:
    assert compute_work(OpCall(name, tuple(shapes), (BF16,) * len(shapes), tuple(values))) is None
