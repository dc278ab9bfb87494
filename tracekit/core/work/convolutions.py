"""The work of convolutions, forward and backward.

Each element of the result is the sum of one product per channel of its group and per element of the filter, so that a
convolution takes 2·(elements of the result)·(channels per group)·(elements of the filter) operations. Products with the
padding count. A transposed convolution takes the same number for each element of its input. The gradients of the input
and of the filter take as many operations as the convolution each.

PyTorch adds the bias in a kernel of its own, whose op has its own work. The bias therefore counts only for ops that
fuse it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from tracekit.core.work.call import (
    COMPLEX_FACTOR,
    OpCall,
    Shape,
    Tensor,
    UnknownWorkError,
    Work,
    add_bytes,
    count_bytes,
    multiplied_type,
    multiply,
    sum_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KIND = "convolution"
RESULT = "result "
"""Precedes the shape of the result in place of the values of a convolution."""
_CHANNELS = 2
_BIAS_ARGUMENTS = 3
_RANKS = (1, 2, 3)


class _Places(NamedTuple):
    """The numbers of the arguments of a convolution. A negative number means that there is no such argument."""

    stride: int
    padding: int
    dilation: int = -1
    groups: int = -1
    transposed: int = -1
    output_padding: int = -1


class _Sizes(NamedTuple):
    """The parameters of a convolution, with one number per dimension of space."""

    stride: Shape
    padding: Shape
    dilation: Shape
    output_padding: Shape
    groups: int


def _read_sizes(call: OpCall, places: _Places, space: Shape, filters: Shape) -> _Sizes:
    """Return the parameters of a convolution, given the spatial sizes of its input and of its filter."""

    def read(index: int, default: int) -> Shape:
        if index < 0:
            return (default,) * len(space)
        numbers = call.list_integers(index)
        if numbers is None or len(numbers) not in (1, len(space)) or min(numbers) < 0:
            raise UnknownWorkError
        return numbers * len(space) if len(numbers) == 1 else numbers

    stride, dilation = read(places.stride, 1), read(places.dilation, 1)
    name = call.get_value(places.padding)
    if name == "valid":
        padding = (0,) * len(space)
    elif name == "same":
        return _pad_to_same(filters, stride, dilation, _read_groups(call, places))
    else:
        padding = read(places.padding, 0)
    if 0 in stride or 0 in dilation:
        raise UnknownWorkError
    return _Sizes(stride, padding, dilation, read(places.output_padding, 0), _read_groups(call, places))


def _pad_to_same(filters: Shape, stride: Shape, dilation: Shape, groups: int) -> _Sizes:
    """Return the parameters of a convolution with ``padding="same"``, whose result has the sizes of its input.

    The padding may differ on both sides. The output padding makes up for the difference.
    """
    if set(stride) != {1}:
        raise UnknownWorkError
    both = tuple(d * (k - 1) for d, k in zip(dilation, filters, strict=True))
    return _Sizes(stride, tuple(n // 2 for n in both), dilation, tuple(n % 2 for n in both), groups)


def _read_groups(call: OpCall, places: _Places) -> int:
    groups = 1 if places.groups < 0 else call.find_integer(places.groups)
    if groups is None or groups < 1:
        raise UnknownWorkError
    return groups


def _is_transposed(call: OpCall, places: _Places) -> bool:
    flag = call.find_flag(places.transposed)
    if flag is None:
        raise UnknownWorkError
    return flag


def _add_batch(image: Tensor, weight: Tensor) -> Tensor:
    """Return the input of a convolution with a batch dimension.

    Raises:
        UnknownWorkError: The numbers of dimensions do not fit.
    """
    rank = len(weight.shape)
    if rank - _CHANNELS not in _RANKS or len(image.shape) not in (rank, rank - 1):
        raise UnknownWorkError
    return image if len(image.shape) == rank else Tensor((1, *image.shape), image.type)


def _compute_result_shape(image: Tensor, weight: Tensor, sizes: _Sizes, *, transposed: bool) -> Shape:
    batch, channels, *space = image.shape
    filters = weight.shape[_CHANNELS:]
    outer, inner = weight.shape[:_CHANNELS]
    of_input, of_result = (outer, inner * sizes.groups) if transposed else (inner * sizes.groups, outer)
    if channels != of_input or of_result % sizes.groups or of_input % sizes.groups:
        raise UnknownWorkError
    result = []
    for n, k, s, p, d, more in zip(
        space, filters, sizes.stride, sizes.padding, sizes.dilation, sizes.output_padding, strict=True
    ):
        reach = d * (k - 1) + 1
        size = (n - 1) * s - 2 * p + reach + more if transposed else (n + 2 * p + more - reach) // s + 1
        if size < 0 or k < 1:
            raise UnknownWorkError
        result.append(size)
    return (batch, of_result, *result)


def _count_operations(image: Shape, weight: Tensor, result: Shape, *, transposed: bool) -> int:
    elements = image if transposed else result
    is_complex = weight.type is not None and weight.type.is_complex
    return multiply((2, *elements, *weight.shape[1:])) * (COMPLEX_FACTOR if is_complex else 1)


def _convolve(
    call: OpCall, places: _Places, *, transposed: bool = False, bias: int | None = None, addend: int | None = None
) -> Work:
    """Return the work of a convolution of the first argument with the second one.

    Args:
        call: The call of the op.
        places: The numbers of its arguments.
        transposed: Whether the convolution is transposed, unless an argument tells.
        bias: Number of a bias that the op fuses.
        addend: Number of a tensor that the op adds to the result.
    """
    weight = call.get_tensor(1)
    image = _add_batch(call.get_tensor(0), weight)
    if places.transposed >= 0:
        transposed = _is_transposed(call, places)
    sizes = _read_sizes(call, places, image.shape[_CHANNELS:], weight.shape[_CHANNELS:])
    return _finish(call, image, weight, sizes, transposed=transposed, fused=(bias, addend))


def _finish(
    call: OpCall,
    image: Tensor,
    weight: Tensor,
    sizes: _Sizes,
    *,
    transposed: bool = False,
    fused: tuple[int | None, ...] = (),
) -> Work:
    result = _compute_result_shape(image, weight, sizes, transposed=transposed)
    flop = _count_operations(image.shape, weight, result, transposed=transposed)
    added = [call.find_tensor(i) for i in fused if i is not None]
    flop += sum(multiply(result) for tensor in added if tensor is not None)
    written = count_bytes(result, image.type)
    return Work(KIND, flop, add_bytes(image, weight, *added), written, multiplied_type(image, weight))


def find_result_shape(call: OpCall) -> tuple[tuple[Shape, Shape], Shape] | None:
    """Return the shapes of input and filter, and that of the result, if a call is the gradient of a convolution."""
    result, image, weight = (call.find_tensor(i) for i in range(3))
    if call.name != "aten::convolution_backward" or result is None or image is None or weight is None:
        return None
    return (image.shape, weight.shape), result.shape


def set_result_shape(call: OpCall, results: Mapping[tuple[Shape, Shape], set[Shape]]) -> OpCall:
    """Return a convolution whose values were not recorded with the shape of its result, if that is certain.

    Args:
        call: The call of any op.
        results: Shapes of the results of convolutions with given shapes of input and filter.
    """
    image, weight = call.find_tensor(0), call.find_tensor(1)
    is_convolution = call.name in FORMULAS and "backward" not in call.name and not call.values
    shapes = results.get((image.shape, weight.shape), set()) if is_convolution and image and weight else set()
    return call._replace(values=(RESULT + str(list(*shapes)),)) if len(shapes) == 1 else call


def compute_from_result(call: OpCall) -> Work:
    """Return the work of a convolution whose only known value is the shape of its result."""
    image, weight, result = call.get_tensor(0), call.get_tensor(1), call.list_integers(0, RESULT)
    if result is None or min(result) < 0:
        raise UnknownWorkError
    flop = _count_operations(image.shape, weight, result, transposed="transpose" in call.name)
    return Work(KIND, flop, add_bytes(image, weight), count_bytes(result, image.type), multiplied_type(image, weight))


def _convolve_any(call: OpCall) -> Work:
    """Return the work of ``convolution``, whose arguments tell whether it is transposed.

    A call with three arguments is that of an op that fuses the bias.
    """
    work = _convolve(call, _Places(3, 4, 5, 8, 6, 7))
    if len(call.shapes) != _BIAS_ARGUMENTS or work.flop is None:
        return work
    image, weight = call.get_tensor(0), call.get_tensor(1)
    sizes = _read_sizes(call, _Places(3, 4, 5, 8, 6, 7), image.shape[_CHANNELS:], weight.shape[_CHANNELS:])
    result = _compute_result_shape(image, weight, sizes, transposed=_is_transposed(call, _Places(3, 4, 5, 8, 6)))
    read = sum_sizes(work.read_bytes, count_bytes(result[1:2], image.type))
    return work._replace(flop=work.flop + multiply(result), read_bytes=read)


def _convolve_in_library(call: OpCall) -> Work:
    """Return the work of ``cudnn_convolution``, which had a bias as its third argument in old versions."""
    shift = 0 if call.list_integers(2) is not None else 1
    return _convolve(call, _Places(3 + shift, 2 + shift, 4 + shift, 5 + shift))


def _transpose_in_library(call: OpCall) -> Work:
    shift = 0 if call.list_integers(2) is not None else 1
    places = _Places(4 + shift, 2 + shift, 5 + shift, 6 + shift, output_padding=3 + shift)
    return _convolve(call, places, transposed=True)


def _convolve_each_channel(call: OpCall, places: _Places) -> Work:
    """Return the work of a convolution of which each channel is a group."""
    weight = call.get_tensor(1)
    image = _add_batch(call.get_tensor(0), weight)
    sizes = _read_sizes(call, places, image.shape[_CHANNELS:], weight.shape[_CHANNELS:])
    return _finish(call, image, weight, sizes._replace(groups=max(image.shape[1], 1)))


def _compute_gradients(
    result: Tensor, image: Tensor, weight: Tensor, masks: tuple[bool, bool], *, transposed: bool
) -> Work:
    """Return the work of the gradients of the input and of the filter, as far as they are computed.

    Each gradient reads the gradient of the result, and the filter or the input.
    """
    if not len(result.shape) == len(image.shape) == len(weight.shape) or result.shape[0] != image.shape[0]:
        raise UnknownWorkError
    first, second = (image, result) if transposed else (result, image)
    if first.shape[1] != weight.shape[0] or not weight.shape[1] or second.shape[1] % weight.shape[1]:
        raise UnknownWorkError
    flop = _count_operations(image.shape, weight, result.shape, transposed=transposed)
    passes = [(image, weight), (weight, image)]
    done = [each for each, is_needed in zip(passes, masks, strict=True) if is_needed]
    read = [add_bytes(result, other) for _, other in done]
    written = [add_bytes(target) for target, _ in done]
    kind = multiplied_type(result, weight, image)
    return Work(KIND, flop * len(done), sum_sizes(*read), sum_sizes(*written), kind)


def _read_masks(call: OpCall, index: int) -> tuple[bool, bool]:
    """Return which gradients are computed: that of the input, and that of the filter. By default, both are."""
    flags = call.get_value(index).strip("[]").replace(" ", "").lower().split(",")
    known = [flag in ("true", "1") for flag in flags if flag]
    return (known[0], known[1]) if len(known) >= len(("input", "filter")) else (True, True)


def _convolve_backward(call: OpCall) -> Work:
    """Return the work of ``convolution_backward``. The shapes suffice, as the gradient of the result is an argument."""
    weight = call.get_tensor(2)
    result, image = (_add_batch(call.get_tensor(i), weight) for i in (0, 1))
    is_transposed = call.find_flag(7)
    if is_transposed is None:
        channels = image.shape[1], result.shape[1]
        is_transposed = channels[1] != weight.shape[0] and channels[0] == weight.shape[0]
    return _compute_gradients(result, image, weight, _read_masks(call, 10), transposed=is_transposed)


def _convolve_backward_in_library(call: OpCall, *, transposed: bool = False) -> Work:
    """Return the work of ``cudnn_convolution_backward`` of old versions: input, gradient of the result, filter."""
    image, result, weight = (call.get_tensor(i) for i in range(3))
    return _compute_gradients(
        result, image, weight, _read_masks(call, max(len(call.values) - 1, 0)), transposed=transposed
    )


def _compute_input_gradient(call: OpCall, *, transposed: bool = False) -> Work:
    """Return the work of ``cudnn_convolution_backward_input``: size of the input, gradient of the result, filter."""
    size, result, weight = call.list_integers(0), call.get_tensor(1), call.get_tensor(2)
    if size is None or min(size) < 0:
        raise UnknownWorkError
    return _compute_gradients(result, Tensor(size, result.type), weight, (True, False), transposed=transposed)


def _compute_filter_gradient(call: OpCall, *, transposed: bool = False) -> Work:
    """Return the work of ``cudnn_convolution_backward_weight``: size of the filter, gradient of the result, input."""
    size, result, image = call.list_integers(0), call.get_tensor(1), call.get_tensor(2)
    if size is None or min(size) < 0:
        raise UnknownWorkError
    return _compute_gradients(result, image, Tensor(size, result.type), (False, True), transposed=transposed)


_PLAIN, _TRANSPOSED = _Places(3, 4, 5, 6), _Places(3, 4, 7, 6, output_padding=5)
_WITH_BIAS, _OF_DEPTH = _Places(4, 3, 5, 6), _Places(4, 5, 6)

FORMULAS: dict[str, Callable[[OpCall], Work]] = {
    **{f"aten::conv{n}d": functools.partial(_convolve, places=_PLAIN) for n in _RANKS},
    **{f"aten::conv_transpose{n}d": functools.partial(_convolve, places=_TRANSPOSED, transposed=True) for n in _RANKS},
    "aten::convolution": _convolve_any,
    "aten::_convolution": _convolve_any,
    "aten::convolution_overrideable": _convolve_any,
    "aten::cudnn_convolution": _convolve_in_library,
    "aten::cudnn_convolution_transpose": _transpose_in_library,
    "aten::cudnn_convolution_relu": functools.partial(_convolve, places=_PLAIN, bias=2),
    "aten::cudnn_convolution_add_relu": functools.partial(_convolve, places=_Places(5, 6, 7, 8), bias=4, addend=2),
    "aten::miopen_convolution": functools.partial(_convolve, places=_WITH_BIAS),
    "aten::miopen_depthwise_convolution": functools.partial(_convolve, places=_WITH_BIAS),
    "aten::miopen_convolution_transpose": functools.partial(
        _convolve, places=_Places(5, 3, 6, 7, output_padding=4), transposed=True
    ),
    "aten::mkldnn_convolution": functools.partial(_convolve, places=_WITH_BIAS, bias=2),
    "aten::_conv_depthwise2d": functools.partial(_convolve_each_channel, places=_OF_DEPTH),
    "aten::conv_depthwise3d": functools.partial(_convolve_each_channel, places=_OF_DEPTH),
    "aten::thnn_conv2d": functools.partial(_convolve, places=_Places(4, 5), bias=3),
    "aten::_slow_conv2d_forward": functools.partial(_convolve, places=_Places(4, 5), bias=3),
    "aten::slow_conv_dilated2d": functools.partial(_convolve, places=_OF_DEPTH, bias=3),
    "aten::slow_conv_dilated3d": functools.partial(_convolve, places=_OF_DEPTH, bias=3),
    "aten::convolution_backward": _convolve_backward,
    "aten::convolution_backward_overrideable": _convolve_backward,
    **{f"aten::{library}_convolution_backward": _convolve_backward_in_library for library in ("cudnn", "miopen")},
    **{
        f"aten::{library}_convolution_{kind}backward{part}": functools.partial(formula, transposed=bool(kind))
        for library in ("cudnn", "miopen")
        for kind in ("", "transpose_")
        for part, formula in (("_input", _compute_input_gradient), ("_weight", _compute_filter_gradient))
    },
    **{
        f"aten::{library}_convolution_transpose_backward": functools.partial(
            _convolve_backward_in_library, transposed=True
        )
        for library in ("cudnn", "miopen")
    },
}
"""Formula of each op, by its qualified name."""
