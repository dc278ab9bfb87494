"""The work of ops on single elements, of copies and lookups, of optimizers and of collective operations.

A pointwise op takes one operation for each element of its result, whatever the function is. An op that only moves data
takes none. The bytes are those of the inputs and of the result, each of which is read or written once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from tracekit.core.work.call import (
    OpCall,
    ScalarType,
    Tensor,
    UnknownWorkError,
    Work,
    add_bytes,
    broadcast,
    count_bytes,
    find_numbered_scalar_type,
    find_scalar_type,
    multiply,
    sum_sizes,
)

POINTWISE, COPY, EMBEDDING, OPTIMIZER, COLLECTIVE = "pointwise", "copy", "embedding", "optimizer", "collective"
_BOOL, _INT64 = ScalarType("bool", 1), ScalarType("int64", 8)
_FLOATS = ("fp64", "fp32", "bf16", "fp16", "fp8", "complex32", "complex64", "complex128")
_ADAM, _ADAMW, _SGD, _ADAGRAD = 13, 14, 2, 6
_SILU_AND_MUL, _ROTATION = 5, 3
_LISTS_OF_OPTIMIZERS = {"aten::_fused_adam": 4, "aten::_fused_adamw": 4}
"""Number of lists of tensors with dimensions in the arguments of an optimizer, unless it has optional ones."""
_PAIR = 2
Formula = Callable[[OpCall], Work]


def _promote(tensors: list[Tensor]) -> ScalarType | None:
    """Return the type of the result of an op on tensors, or None if it is unknown.

    Tensors without dimensions do not widen the type of others. Floating-point types win over integers.
    """
    ranked = [t for t in tensors if t.shape] or tensors
    types = [t.type for t in ranked]
    if not types or None in types:
        return None
    known = [t for t in types if t is not None]
    floats = [t for t in known if t.name in _FLOATS]
    return max(floats or known, key=lambda t: t.byte_count)


def _compute_pointwise(
    call: OpCall, count: int, *, kind: str = POINTWISE, is_bool: bool = False, factor: int = 1
) -> Work:
    """Return the work of a pointwise op.

    Args:
        call: The call of the op.
        count: Number of its operands. A further tensor is the one into which the result is written.
        kind: Kind of the work.
        is_bool: Whether the result is Boolean.
        factor: Number of operations for each element.
    """
    tensors = [t for t in map(call.find_any_tensor, range(len(call.shapes))) if t is not None]
    if not tensors:
        raise UnknownWorkError
    operands, targets = tensors[:count], tensors[count : count + 1]
    result = functools.reduce(broadcast, (t.shape for t in operands))
    scalar_type = _BOOL if is_bool else _promote(operands)
    if call.name.endswith("_"):
        scalar_type = operands[0].type
    elif targets and targets[0].shape == result:
        scalar_type = targets[0].type
    elements = multiply(result)
    return Work(kind, factor * elements, add_bytes(*operands), count_bytes(result, scalar_type))


def _update_lists(
    call: OpCall, lists: int, *, factor: int, written: tuple[int, ...] = (0,), reads: bool = True
) -> Work:
    """Return the work of an op on lists of tensors, such as ``_foreach_add_``.

    Args:
        call: The call of the op.
        lists: Number of arguments that may be lists of tensors of the same shapes.
        factor: Number of operations for each element of the first list.
        written: Numbers of the lists that are written.
        reads: Whether the lists are read.
    """
    tensors = [call.list_tensors(index) for index in range(lists)]
    if not tensors[0]:
        tensors = _split_lists(call, lists)
    flop = factor * sum(t.element_count for t in tensors[0])
    read = sum_sizes(*(add_bytes(*each) for each in tensors)) if reads else 0
    kind = OPTIMIZER if factor > 1 else POINTWISE if factor else COPY
    return Work(kind, flop, read, sum_sizes(*(add_bytes(*tensors[index]) for index in written if index < lists)))


def _split_lists(call: OpCall, lists: int) -> list[list[Tensor]]:
    """Return the tensors of an op whose lists were recorded one after another, as ``emit_nvtx`` does.

    Raises:
        UnknownWorkError: It is not certain where the lists begin: they have different shapes, or a list may be missing.
    """
    tensors = [t for t in map(call.find_tensor, range(len(call.shapes))) if t is not None]
    count = _LISTS_OF_OPTIMIZERS.get(call.name.removesuffix("_"), lists)
    size = len(tensors) // count
    parts = [tensors[i * size : (i + 1) * size] for i in range(count)]
    is_certain = count == 1 or count > _PAIR
    if not size or size * count != len(tensors) or not is_certain or any(part != parts[0] for part in parts):
        raise UnknownWorkError
    return parts + [[] for _ in range(lists - count)]


def _copy_into(call: OpCall) -> Work:
    """Return the work of ``copy_``: the first argument is the target, the second one the source."""
    target, source = call.find_any_tensor(0), call.find_any_tensor(1)
    if target is None or source is None:
        raise UnknownWorkError
    return Work(COPY, 0, add_bytes(source), add_bytes(target))


def _copy(call: OpCall, dtype: int = -1) -> Work:
    """Return the work of an op that copies its first argument, possibly to another type."""
    source = call.find_any_tensor(0)
    if source is None:
        raise UnknownWorkError
    number = call.find_integer(dtype) if dtype >= 0 else None
    scalar_type = source.type if number is None else find_numbered_scalar_type(number)
    return Work(COPY, 0, add_bytes(source), count_bytes(source.shape, scalar_type))


def _fill(call: OpCall) -> Work:
    """Return the work of an op that overwrites its first tensor."""
    target = next((t for t in map(call.find_any_tensor, range(len(call.shapes))) if t is not None), None)
    if target is None:
        raise UnknownWorkError
    return Work(COPY, 0, 0, add_bytes(target))


def _draw(call: OpCall) -> Work:
    """Return the work of an op that fills its first argument with random numbers, which takes unknown operations."""
    return _fill(call)._replace(kind=POINTWISE, flop=None)


def _concatenate(call: OpCall) -> Work:
    """Return the work of ``cat`` and ``stack``."""
    parts = call.list_tensors(0) or [t for t in map(call.find_tensor, range(len(call.shapes))) if t is not None]
    if not parts:
        raise UnknownWorkError
    moved = add_bytes(*parts)
    return Work(COPY, 0, moved, moved)


def _gather(call: OpCall) -> Work:
    """Return the work of ``gather``, whose result has the shape of the index: the third argument."""
    source, index = call.get_tensor(0), call.get_tensor(2)
    moved = count_bytes(index.shape, source.type)
    return Work(COPY, 0, sum_sizes(moved, add_bytes(index)), moved)


def _select_rows(call: OpCall) -> Work:
    """Return the work of ``index_select``: source, dimension, index."""
    source, axis, index = call.get_tensor(0), call.find_integer(1), call.get_tensor(2)
    if axis is None or not -len(source.shape) <= axis < len(source.shape) or len(index.shape) != 1:
        raise UnknownWorkError
    shape = list(source.shape)
    shape[axis] = index.shape[0]
    moved = count_bytes(tuple(shape), source.type)
    return Work(COPY, 0, sum_sizes(moved, add_bytes(index)), moved)


def _scatter(call: OpCall, *, adds: bool = False) -> Work:
    """Return the work of an op that writes or adds a source to places in a target: target, dimension, index, source."""
    index, source = call.get_tensor(2), call.get_tensor(3)
    moved = add_bytes(source)
    flop = source.element_count if adds else 0
    return Work(COPY, flop, sum_sizes(moved, add_bytes(index), moved if adds else 0), moved)


def _select_by_tensors(call: OpCall) -> Work:
    """Return the work of ``index`` with one list of indices into the first dimension."""
    source, indices = call.get_tensor(0), call.list_tensors(1)
    if len(indices) != 1 or not indices[0].shape:
        raise UnknownWorkError
    moved = count_bytes((*indices[0].shape, *source.shape[1:]), source.type)
    return Work(COPY, 0, sum_sizes(moved, count_bytes(indices[0].shape, _INT64)), moved)


def _look_up(call: OpCall) -> Work:
    """Return the work of ``embedding``, which copies one row of the table for each index."""
    table, index = call.get_tensor(0), call.get_tensor(1)
    moved = count_bytes((*index.shape, *table.shape[1:]), table.type)
    return Work(EMBEDDING, 0, sum_sizes(moved, add_bytes(index)), moved)


def _look_up_backward(call: OpCall) -> Work:
    """Return the work of ``embedding_dense_backward``, which adds one row to the gradient for each index."""
    gradient, index, rows = call.get_tensor(0), call.get_tensor(1), call.find_integer(2)
    if rows is None or rows < 1 or gradient.shape[:-1] != index.shape:
        raise UnknownWorkError
    touched = min(rows, index.element_count), gradient.shape[-1]
    flop = gradient.element_count
    return Work(EMBEDDING, flop, add_bytes(gradient, index), count_bytes(touched, gradient.type))


def _drop(call: OpCall) -> Work:
    """Return the work of ``native_dropout``, which returns the result and a mask."""
    source = call.get_tensor(0)
    written = sum_sizes(add_bytes(source), source.element_count)
    return Work(POINTWISE, source.element_count, add_bytes(source), written)


def _gate(call: OpCall) -> Work:
    """Return the work of ``silu_and_mul``: the result, and an input that is twice as wide."""
    result, source = call.get_tensor(0), call.get_tensor(1)
    if source.shape != (*result.shape[:-1], 2 * result.shape[-1]):
        raise UnknownWorkError
    return Work(POINTWISE, _SILU_AND_MUL * result.element_count, add_bytes(source), add_bytes(result))


def _rotate(call: OpCall) -> Work:
    """Return the work of ``rotary_embedding``, which rotates queries and keys in place."""
    queries, keys = call.get_tensor(1), call.find_tensor(2)
    elements = queries.element_count + (keys.element_count if keys else 0)
    moved = add_bytes(queries, keys)
    return Work(POINTWISE, _ROTATION * elements, moved, moved)


def _store_keys_and_values(call: OpCall) -> Work:
    """Return the work of an op that copies new keys and values into a cache, whose type is that of the third input."""
    keys, values, cache = call.get_tensor(0), call.get_tensor(1), call.get_tensor(2)
    written = count_bytes((keys.element_count + values.element_count,), cache.type)
    return Work(COPY, 0, add_bytes(keys, values), written)


def _quantize(call: OpCall) -> Work:
    """Return the work of an op that converts its second argument to a narrow type, into the first one."""
    result, source = call.get_tensor(0), call.get_tensor(1)
    return Work(POINTWISE, source.element_count, add_bytes(source), add_bytes(result))


def compute_fused_kernel(call: OpCall) -> Work:
    """Return the work of a kernel that Inductor generated in Triton, whose last tensor is the result.

    The operations of such a kernel are unknown. It reads or writes each tensor at least once.
    """
    tensors = [t for t in map(call.find_tensor, range(len(call.shapes))) if t is not None]
    if not tensors:
        raise UnknownWorkError
    return Work(POINTWISE, None, add_bytes(*tensors[:-1]), add_bytes(tensors[-1]))


def _communicate(call: OpCall) -> Work:
    """Return the work of a collective operation: the bytes of the buffers of one rank.

    ``record_param_comms`` has the values of Kineto's metadata: name, sent elements, received elements and type.
    """
    sent, received = call.find_integer(1), call.find_integer(2)
    if sent is not None and received is not None and min(sent, received) >= 0:
        scalar_type = find_scalar_type(call.get_value(3))
        return Work(COLLECTIVE, None, count_bytes((sent,), scalar_type), count_bytes((received,), scalar_type))
    tensors = call.list_tensors(0) or [t for t in [call.find_tensor(0)] if t]
    if not tensors:
        raise UnknownWorkError
    moved = add_bytes(*tensors)
    return Work(COLLECTIVE, None, moved, moved)


_UNARY = (
    *("abs", "neg", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "square"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid"),
    *("relu", "relu6", "gelu", "silu", "mish", "elu", "selu", "celu", "leaky_relu", "hardtanh", "hardswish"),
    *("hardsigmoid", "softplus", "log_sigmoid", "erf", "erfc", "erfinv", "floor", "ceil", "round", "trunc", "frac"),
    *("sign", "sgn", "clamp", "clamp_min", "clamp_max", "threshold", "bitwise_not", "nan_to_num", "angle", "logit"),
)
_BINARY = (
    *("add", "sub", "rsub", "mul", "div", "true_divide", "floor_divide", "remainder", "fmod", "maximum", "minimum"),
    *("fmax", "fmin", "atan2", "pow", "xlogy", "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__"),
    *("tanh_backward", "sigmoid_backward", "threshold_backward", "gelu_backward", "silu_backward", "elu_backward"),
    *("hardtanh_backward", "leaky_relu_backward", "softplus_backward", "hardswish_backward", "hardsigmoid_backward"),
    *("masked_fill", "native_dropout_backward", "log_sigmoid_backward", "mish_backward", "hypot"),
)
_BOOLEAN = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")
_TERNARY = ("addcmul", "addcdiv", "lerp", "where", "mse_loss_backward", "smooth_l1_loss_backward")
_FILLS = ("fill", "zero", "zeros_like", "ones_like", "full_like", "eye", "arange")
_DRAWS = ("normal", "uniform", "bernoulli", "random", "exponential", "log_normal", "cauchy", "geometric")
_COPIES = ("clone", "contiguous", "tril", "triu", "flip", "roll", "repeat_interleave", "alias_copy", "view_copy")
_OF_ONE_LIST = ("neg", "sqrt", "exp", "reciprocal", "abs", "clamp_min", "clamp_max", "sigmoid", "tanh")
_OF_TWO_LISTS = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
_OF_THREE_LISTS = ("addcmul", "addcdiv", "lerp")
_COLLECTIVES = ("all_reduce", "broadcast", "send", "recv", "reduce", "all_to_all")

_OPTIMIZERS: dict[str, Formula] = {
    **{
        f"aten::_fused_{n}": functools.partial(_update_lists, lists=5, factor=f, written=(0, 2, 3, 4))
        for n, f in (("adam", _ADAM), ("adamw", _ADAMW))
    },
    "aten::_fused_sgd": functools.partial(_update_lists, lists=3, factor=_SGD, written=(0, 2)),
    "aten::_fused_adagrad": functools.partial(_update_lists, lists=3, factor=_ADAGRAD, written=(0, 2)),
}


def _fused(*names: str, formula: Formula) -> dict[str, Formula]:
    return dict.fromkeys(names, formula)


FORMULAS: dict[str, Formula] = {
    **{f"aten::{name}": functools.partial(_compute_pointwise, count=1) for name in _UNARY},
    **{f"aten::{name}": functools.partial(_compute_pointwise, count=2) for name in _BINARY},
    **{f"aten::{name}": functools.partial(_compute_pointwise, count=2, is_bool=True) for name in _BOOLEAN},
    **{
        f"aten::{n}": functools.partial(_compute_pointwise, count=1, is_bool=True)
        for n in ("logical_not", "isnan", "isinf")
    },
    **{f"aten::{name}": functools.partial(_compute_pointwise, count=3) for name in _TERNARY},
    **{f"aten::{name}": _fill for name in _FILLS},
    **{f"aten::{name}": _draw for name in _DRAWS},
    **{f"aten::{name}": _copy for name in _COPIES},
    "aten::_to_copy": functools.partial(_copy, dtype=1),
    "aten::copy": _copy_into,
    "aten::cat": _concatenate,
    "aten::stack": _concatenate,
    "aten::gather": _gather,
    "aten::index_select": _select_rows,
    "aten::index": _select_by_tensors,
    **{f"aten::{name}": _scatter for name in ("index_copy", "scatter")},
    **{f"aten::{name}": functools.partial(_scatter, adds=True) for name in ("index_add", "scatter_add")},
    "aten::embedding": _look_up,
    "aten::embedding_dense_backward": _look_up_backward,
    "aten::native_dropout": _drop,
    "aten::_fused_dropout": _drop,
    **{f"aten::_foreach_{n}": functools.partial(_update_lists, lists=1, factor=1) for n in _OF_ONE_LIST},
    **{f"aten::_foreach_{n}": functools.partial(_update_lists, lists=2, factor=1) for n in _OF_TWO_LISTS},
    **{f"aten::_foreach_{n}": functools.partial(_update_lists, lists=3, factor=1) for n in _OF_THREE_LISTS},
    **_OPTIMIZERS,
    "aten::_foreach_zero": functools.partial(_update_lists, lists=1, factor=0, reads=False),
    "aten::_foreach_copy": functools.partial(_update_lists, lists=2, factor=0),
    **_fused(
        "_C::silu_and_mul", "_C::gelu_and_mul", "_C::gelu_tanh_and_mul", "sgl_kernel::silu_and_mul", formula=_gate
    ),
    **_fused("sgl_kernel::gelu_and_mul", "sgl_kernel::gelu_tanh_and_mul", "aiter::silu_and_mul", formula=_gate),
    **_fused("_C::rotary_embedding", "sgl_kernel::rotary_embedding", formula=_rotate),
    **_fused(
        *("_C_cache_ops::reshape_and_cache_flash", "_C_cache_ops::reshape_and_cache", "sglang::store_cache"),
        formula=_store_keys_and_values,
    ),
    **_fused("_C::static_scaled_fp8_quant", "_C::dynamic_scaled_fp8_quant", formula=_quantize),
    **_fused("record_param_comms", *(f"nccl:{name}" for name in _COLLECTIVES), formula=_communicate),
}
"""Formula of each op, by its qualified name, without the ``_`` at the end of an op in place."""
