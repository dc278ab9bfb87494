"""The work of reductions, normalizations, softmax, losses, pooling and sorting.

- A reduction takes one operation for each element of its input.
- A softmax takes five for each element: maximum, difference, exponential, sum and quotient; its gradient takes four.
- A normalization takes three for each element to compute mean and variance, two to scale and shift it, and six for each
  channel. With given statistics, the first three are not needed. Its gradient takes nine, or six with given statistics.
- A normalization by the root mean square takes four for each element and two for each row; its gradient takes eight,
  and two more if it computes the gradient of the weight.
- Pooling takes one for each element of the result and of the window.
- The operations of sorting are unknown.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from tracekit.core.work.call import (
    OpCall,
    ScalarType,
    Shape,
    Tensor,
    UnknownWorkError,
    Work,
    add_bytes,
    count_bytes,
    sum_sizes,
)

REDUCTION, NORMALIZATION, SOFTMAX, POOLING, SORTING = "reduction", "normalization", "softmax", "pooling", "sorting"
_BOOL, _FLOAT, _INT64 = ScalarType("bool", 1), ScalarType("fp32", 4), ScalarType("int64", 8)
_OF_SOFTMAX, _OF_SOFTMAX_BACKWARD = 5, 4
_STATISTICS, _SCALE, _PER_CHANNEL, _BACKWARD, _BACKWARD_OF_GIVEN = 3, 2, 6, 9, 6
_ROOT_MEAN_SQUARE, _PER_ROW, _RMS_BACKWARD, _WEIGHT_GRADIENT = 4, 2, 8, 2
_BATCH_AND_CHANNELS = 2
Formula = Callable[[OpCall], Work]


def _reduce(call: OpCall, result: ScalarType | None = None, *, pairs: bool = False) -> Work:
    """Return the work of a reduction over the dimensions in the second argument, or over all of them.

    Args:
        call: The call of the op.
        result: Type of the result. By default, it is that of the input.
        pairs: Whether the op returns values and indices if a dimension is given.
    """
    source = call.find_any_tensor(0)
    if source is None:
        raise UnknownWorkError
    axes = call.list_integers(1) if call.get_value(1) not in ("", "[]") else None
    remaining = source.shape
    if axes is None:
        remaining = ()
    elif any(not -len(remaining) <= axis < len(remaining) for axis in axes):
        raise UnknownWorkError
    else:
        gone = {axis % len(remaining) for axis in axes}
        remaining = tuple(n for axis, n in enumerate(remaining) if axis not in gone)
    written = count_bytes(remaining, result or source.type)
    if pairs and axes is not None:
        written = sum_sizes(written, count_bytes(remaining, _INT64))
    return Work(REDUCTION, source.element_count, add_bytes(source), written)


def _reduce_norm(call: OpCall) -> Work:
    """Return the work of a norm, whose dimensions are the third argument."""
    values = (*call.values[:1], call.get_value(2))
    return _reduce(call._replace(values=values))


def _reduce_lists(call: OpCall) -> Work:
    """Return the work of ``_foreach_norm``, which computes one number for each tensor of a list."""
    tensors = call.list_tensors(0)
    if not tensors:
        raise UnknownWorkError
    flop = sum(t.element_count for t in tensors)
    return Work(REDUCTION, flop, add_bytes(*tensors), count_bytes((len(tensors),), tensors[0].type))


def _scan(call: OpCall) -> Work:
    """Return the work of ``cumsum``. The sums of integers are 64-bit integers."""
    source = call.get_tensor(0)
    is_integer = source.type is not None and source.type.name.startswith(("int", "uint", "bool"))
    written = count_bytes(source.shape, _INT64 if is_integer else source.type)
    return Work(REDUCTION, source.element_count, add_bytes(source), written)


def _compute_softmax(call: OpCall) -> Work:
    source = call.get_tensor(0)
    result = _FLOAT if call.find_flag(2) else source.type
    return Work(SOFTMAX, _OF_SOFTMAX * source.element_count, add_bytes(source), count_bytes(source.shape, result))


def _compute_softmax_backward(call: OpCall) -> Work:
    gradient, result = call.get_tensor(0), call.get_tensor(1)
    if gradient.shape != result.shape:
        raise UnknownWorkError
    flop = _OF_SOFTMAX_BACKWARD * result.element_count
    return Work(SOFTMAX, flop, add_bytes(gradient, result), add_bytes(gradient))


def _compute_cross_entropy(call: OpCall) -> Work:
    """Return the work of ``cross_entropy_loss``: a softmax of the first argument, and one number for each row."""
    source, target = call.get_tensor(0), call.get_tensor(1)
    flop = _OF_SOFTMAX * source.element_count + target.element_count
    return Work(SOFTMAX, flop, add_bytes(source, target), count_bytes((), source.type))


def _pick(call: OpCall, first: int = 0) -> Work:
    """Return the work of ``nll_loss``, which reads or writes one number of each row, given by the target."""
    source, target = call.get_tensor(first), call.get_tensor(first + 1)
    picked = count_bytes(target.shape, source.type)
    one = count_bytes((), source.type)
    read, written = (one, picked) if first else (picked, one)
    return Work(REDUCTION, target.element_count, sum_sizes(add_bytes(target), read), written)


def _compute_squared_error(call: OpCall) -> Work:
    """Return the work of ``mse_loss``, whose third argument is 0 if the errors are not reduced."""
    source, target = call.get_tensor(0), call.get_tensor(1)
    if source.shape != target.shape:
        raise UnknownWorkError
    result = source.shape if call.find_integer(2) == 0 else ()
    return Work(REDUCTION, 3 * source.element_count, add_bytes(source, target), count_bytes(result, source.type))


def _normalize(call: OpCall, source: Tensor, channels: int, *, is_given: bool = False) -> Work:
    """Return the work of a normalization, whose inputs are all tensors of the call."""
    flop = (_SCALE if is_given else _STATISTICS + _SCALE) * source.element_count + _PER_CHANNEL * channels
    tensors = [t for t in map(call.find_tensor, range(len(call.shapes))) if t is not None]
    return Work(NORMALIZATION, flop, add_bytes(*tensors), add_bytes(source))


def _normalize_channels(call: OpCall, flag: int | None = 5) -> Work:
    """Return the work of batch, group or instance normalization, whose channels are the second dimension."""
    source = call.get_tensor(0)
    if len(source.shape) < _BATCH_AND_CHANNELS:
        raise UnknownWorkError
    is_given = flag is not None and call.find_flag(flag) is False
    return _normalize(call, source, source.shape[1], is_given=is_given)


def _normalize_layer(call: OpCall) -> Work:
    source, shape = call.get_tensor(0), call.list_integers(1)
    weight = call.find_tensor(2)
    if shape is None:
        shape = () if weight is None else weight.shape
    if not shape or source.shape[-len(shape) :] != shape:
        raise UnknownWorkError
    return _normalize(call, source, math.prod(shape))


def _normalize_backward(call: OpCall, flag: int | None = None, first: int = 0) -> Work:
    """Return the work of the gradient of a normalization.

    Args:
        call: The call of the op.
        flag: Number of an argument that tells whether the statistics are those of the batch.
        first: Number of the first of two tensors of the same shape: the input, and the gradient of the result.
    """
    source, gradient = call.get_tensor(first), call.get_tensor(first + 1)
    if source.shape != gradient.shape:
        raise UnknownWorkError
    is_given = flag is not None and call.find_flag(flag) is False
    flop = (_BACKWARD_OF_GIVEN if is_given else _BACKWARD) * source.element_count
    tensors = [t for t in map(call.find_tensor, range(len(call.shapes))) if t is not None]
    return Work(NORMALIZATION, flop, add_bytes(*tensors), add_bytes(source))


def _normalize_by_root(call: OpCall, source: int, weight: int, added: int | None = None) -> Work:
    """Return the work of a normalization by the root mean square.

    Args:
        call: The call of the op.
        source: Number of the input.
        weight: Number of the weight.
        added: Number of a tensor that is added to the input first. The sum is written, too.
    """
    tensor, scale = call.get_tensor(source), call.find_tensor(weight)
    other = None if added is None else call.get_tensor(added)
    size = math.prod(scale.shape) if scale else math.prod(call.list_integers(1) or ())
    elements = tensor.element_count
    if not size or elements % size or (other is not None and other.shape != tensor.shape):
        raise UnknownWorkError
    factor = _ROOT_MEAN_SQUARE + (other is not None)
    written = sum_sizes(add_bytes(tensor), add_bytes(other))
    flop = factor * elements + _PER_ROW * (elements // size)
    return Work(NORMALIZATION, flop, add_bytes(tensor, other, scale), written)


def _normalize_by_root_backward(call: OpCall) -> Work:
    gradient, source = call.get_tensor(0), call.get_tensor(1)
    if gradient.shape != source.shape:
        raise UnknownWorkError
    has_weight = call.get_value(5).replace(" ", "").lower() != "[true,false]"
    flop = (_RMS_BACKWARD + _WEIGHT_GRADIENT * has_weight) * source.element_count
    weight = call.find_tensor(4)
    return Work(
        NORMALIZATION,
        flop,
        add_bytes(gradient, source, call.find_tensor(3), weight),
        sum_sizes(add_bytes(source), add_bytes(weight if has_weight else None)),
    )


def _spread(numbers: tuple[int, ...] | None, rank: int) -> Shape:
    """Return one number for each dimension of a window.

    Raises:
        UnknownWorkError: The numbers are missing or do not fit.
    """
    if not numbers or len(numbers) not in (1, rank):
        raise UnknownWorkError
    return numbers * rank if len(numbers) == 1 else numbers


def _pool(call: OpCall, rank: int, *, dilation: int | None = None, ceil: int, index: bool = False) -> Work:
    """Return the work of pooling: input, window, stride and padding.

    Args:
        call: The call of the op.
        rank: Number of dimensions of the window.
        dilation: Number of the argument with the dilation.
        ceil: Number of the argument that tells whether an incomplete window counts.
        index: Whether the op also returns indices.
    """
    source = call.get_tensor(0)
    if len(source.shape) <= rank:
        raise UnknownWorkError
    window = _spread(call.list_integers(1), rank)
    stride = window if call.get_value(2) in ("", "[]") else _spread(call.list_integers(2), rank)
    padding = _spread(call.list_integers(3) or (0,), rank)
    apart = (1,) * rank if dilation is None else _spread(call.list_integers(dilation) or (1,), rank)
    more = [s - 1 if call.find_flag(ceil) else 0 for s in stride]
    if min(*window, *stride) < 1:
        raise UnknownWorkError
    rows = zip(source.shape[-rank:], window, stride, padding, apart, more, strict=True)
    sizes = tuple((n + 2 * p - d * (k - 1) - 1 + m) // s + 1 for n, k, s, p, d, m in rows)
    if min(sizes) < 0:
        raise UnknownWorkError
    result = (*source.shape[:-rank], *sizes)
    flop = math.prod(result) * math.prod(window)
    indices = count_bytes(result, _INT64) if index else 0
    return Work(POOLING, flop, add_bytes(source), sum_sizes(count_bytes(result, source.type), indices))


def _pool_adaptively(call: OpCall) -> Work:
    source, sizes = call.get_tensor(0), call.list_integers(1)
    if not sizes or len(sizes) > len(source.shape) or min(sizes) < 0:
        raise UnknownWorkError
    result = (*source.shape[: -len(sizes)], *sizes)
    return Work(POOLING, source.element_count, add_bytes(source), count_bytes(result, source.type))


def _pool_backward(call: OpCall, index: int | None = None) -> Work:
    """Return the work of the gradient of pooling, which may read indices."""
    gradient, source = call.get_tensor(0), call.get_tensor(1)
    indices = None if index is None else call.find_tensor(index)
    return Work(POOLING, gradient.element_count, add_bytes(gradient, indices), add_bytes(source))


def _sort(call: OpCall) -> Work:
    source = call.get_tensor(0)
    return Work(SORTING, None, add_bytes(source), sum_sizes(add_bytes(source), count_bytes(source.shape, _INT64)))


def _select_top(call: OpCall) -> Work:
    """Return the work of ``topk``: input, number and dimension."""
    source, count = call.get_tensor(0), call.find_integer(1)
    axis = call.find_integer(2)
    axis = -1 if axis is None else axis
    if count is None or not -len(source.shape) <= axis < len(source.shape) or not 0 <= count <= source.shape[axis]:
        raise UnknownWorkError
    shape = list(source.shape)
    shape[axis] = count
    remaining = tuple(shape)
    return Work(
        SORTING, None, add_bytes(source), sum_sizes(count_bytes(remaining, source.type), count_bytes(remaining, _INT64))
    )


_REDUCTIONS = ("sum", "mean", "amax", "amin", "prod", "std", "var", "logsumexp", "nansum", "norm_except_dim")
_LIBRARIES = ("native", "cudnn", "miopen")
_ADDING = ("aiter::add_rmsnorm", "aiter::rmsnorm2d_fwd_with_add_ck", "aiter::rmsnorm2d_fwd_with_add")

FORMULAS: dict[str, Formula] = {
    **{f"aten::{name}": _reduce for name in _REDUCTIONS},
    **{f"aten::{name}": functools.partial(_reduce, pairs=True) for name in ("max", "min", "median", "mode")},
    **{f"aten::{name}": functools.partial(_reduce, result=_INT64) for name in ("argmax", "argmin", "count_nonzero")},
    **{f"aten::{name}": functools.partial(_reduce, result=_BOOL) for name in ("any", "all")},
    **{f"aten::{name}": _reduce_norm for name in ("norm", "linalg_vector_norm")},
    "aten::_foreach_norm": _reduce_lists,
    **{f"aten::{name}": _scan for name in ("cumsum", "cumprod", "_cumsum")},
    **{f"aten::{name}": _compute_softmax for name in ("_softmax", "_log_softmax", "softmax", "log_softmax")},
    **{f"aten::{name}_backward_data": _compute_softmax_backward for name in ("_softmax", "_log_softmax")},
    "aten::cross_entropy_loss": _compute_cross_entropy,
    "aten::nll_loss_forward": _pick,
    "aten::nll_loss2d_forward": _pick,
    "aten::nll_loss_backward": functools.partial(_pick, first=1),
    "aten::mse_loss": _compute_squared_error,
    "aten::batch_norm": _normalize_channels,
    "aten::instance_norm": _normalize_channels,
    **{f"aten::{library}_batch_norm": _normalize_channels for library in _LIBRARIES},
    "aten::group_norm": functools.partial(_normalize_channels, flag=None),
    "aten::native_group_norm": functools.partial(_normalize_channels, flag=None),
    "aten::layer_norm": _normalize_layer,
    "aten::native_layer_norm": _normalize_layer,
    "aten::native_batch_norm_backward": functools.partial(_normalize_backward, flag=7),
    "aten::cudnn_batch_norm_backward": _normalize_backward,
    "aten::miopen_batch_norm_backward": _normalize_backward,
    "aten::native_layer_norm_backward": _normalize_backward,
    "aten::native_group_norm_backward": _normalize_backward,
    **{
        f"aten::{n}": functools.partial(_normalize_by_root, source=0, weight=2) for n in ("rms_norm", "_fused_rms_norm")
    },
    "aten::_fused_rms_norm_backward": _normalize_by_root_backward,
    "aiter::rms_norm": functools.partial(_normalize_by_root, source=0, weight=1),
    "aiter::rmsnorm2d_fwd": functools.partial(_normalize_by_root, source=0, weight=1),
    **{
        name: functools.partial(_normalize_by_root, source=1, weight=2)
        for name in ("aiter::rmsnorm", "_C::rms_norm", "sgl_kernel::rmsnorm")
    },
    **{name: functools.partial(_normalize_by_root, source=1, weight=4, added=2) for name in _ADDING},
    **{
        name: functools.partial(_normalize_by_root, source=0, weight=2, added=1)
        for name in ("_C::fused_add_rms_norm", "sgl_kernel::fused_add_rmsnorm")
    },
    **{f"aten::avg_pool{n}d": functools.partial(_pool, rank=n, ceil=4) for n in (1, 2, 3)},
    **{f"aten::max_pool{n}d": functools.partial(_pool, rank=n, dilation=4, ceil=5) for n in (1, 2, 3)},
    **{
        f"aten::max_pool{n}d_with_indices": functools.partial(_pool, rank=n, dilation=4, ceil=5, index=True)
        for n in (2, 3)
    },
    **{f"aten::{name}": _pool_adaptively for name in ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")},
    **{f"aten::max_pool{n}d_with_indices_backward": functools.partial(_pool_backward, index=7) for n in (2, 3)},
    **{f"aten::avg_pool{n}d_backward": _pool_backward for n in (2, 3)},
    "aten::_adaptive_avg_pool2d_backward": _pool_backward,
    "aten::sort": _sort,
    "aten::argsort": _sort,
    "aten::topk": _select_top,
}
"""Formula of each op, by its qualified name."""
