"""The work of scaled dot-product attention, forward and backward.

For each head and each pair of a query and a key, the forward pass computes a product over the size of the head, and
another one with the value: 2·pairs·(d of keys + d of values) operations. The softmax does not count.

The backward pass takes five such products instead of two, because it computes the scores of the forward pass again:
2.5 times as many operations as the forward pass.

A causal mask halves the pairs if there are as many queries as keys. Otherwise, the pairs that it keeps are counted. It
is aligned at the last query and the last key, as in FlashAttention, or at the first ones, as in PyTorch.

Each key and value belongs to a group of heads of the queries (grouped-query attention). All heads of the queries count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from tracekit.core.work.call import (
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

KIND = "attention"
_TOP_LEFT, _BOTTOM_RIGHT = 1, 2
_RANK, _PACKED_RANK = 4, 3
Formula = Callable[[OpCall], Work]
Inputs = tuple[Tensor, Tensor, Tensor]


def count_pairs(queries: int, keys: int, mask: int = 0) -> int:
    """Return twice the number of pairs of a query and a key that a mask keeps.

    Args:
        queries: Number of queries.
        keys: Number of keys.
        mask: 0 for no mask, 1 for a causal mask that is aligned at the first query and key, 2 for one that is aligned
            at the last ones. If there are as many queries as keys, a causal mask keeps exactly half of the pairs.
    """
    if not mask:
        return 2 * queries * keys
    if queries == keys:
        return queries * keys
    short = min(queries, keys)
    triangle = short * (short + 1)
    if mask == _TOP_LEFT:
        return triangle + 2 * keys * max(queries - keys, 0)
    return triangle + 2 * queries * max(keys - queries, 0)


def _attend(inputs: Inputs, axes: Shape, mask: int | None, *, backward: bool) -> Work:
    """Return the work of attention. Without a known mask, the number of operations is unknown.

    Args:
        inputs: Queries, keys and values with four dimensions.
        axes: The dimensions of batch, head and position. The last dimension is the size of the head.
        mask: The mask, as for ``count_pairs``, or None if it was not recorded.
        backward: Whether the call is the backward pass.
    """
    queries, keys, values = inputs
    if not len(queries.shape) == len(keys.shape) == len(values.shape) == _RANK:
        raise UnknownWorkError
    (b, h, q), (b_k, h_k, k), (b_v, h_v, k_v) = (tuple(t.shape[axis] for axis in axes) for t in (queries, keys, values))
    size, size_of_values = queries.shape[-1], values.shape[-1]
    fits = b == b_k == b_v and h_k == h_v and k == k_v and size == keys.shape[-1]
    if not fits or not h_k or h % h_k:
        raise UnknownWorkError
    complete = multiply((b, h, count_pairs(q, k), size + size_of_values))
    read, result = add_bytes(queries, keys, values), count_bytes((b, h, q, size_of_values), queries.type)
    kind = multiplied_type(queries, keys)
    flop = None
    if mask is not None:
        pairs = count_pairs(q, k, mask)
        flop = multiply((b, h, pairs, size + size_of_values))
        flop = multiply((2, flop)) + multiply((b, h, pairs, size)) if backward else flop
    if not backward:
        return Work(KIND, flop, read, result, kind, complete)
    return Work(KIND, flop, sum_sizes(read, result, result), read, kind, multiply((2, complete)))


def set_mask(call: OpCall, *, is_causal: bool) -> OpCall:
    """Return a call of attention with a known mask, if a flag tells it and its values were not recorded."""
    formula = FORMULAS.get(call.name)
    place = formula.keywords.get("causal", 0) if isinstance(formula, functools.partial) else 0
    return call if call.values else call._replace(values=("",) * place + (str(is_causal),))


_HEADS_FIRST, _POSITIONS_FIRST = (0, 1, 2), (0, 2, 1)


def _attend_with_flag(call: OpCall, causal: int, first: int = 0, *, backward: bool = False) -> Work:
    """Return the work of an op of PyTorch with the layout (batch, heads, positions, size), and a flag for the mask."""
    flag = call.find_flag(causal)
    if flag is None and call.values:
        raise UnknownWorkError
    mask = None if flag is None else _TOP_LEFT * flag
    return _attend(_get_inputs(call, first), _HEADS_FIRST, mask, backward=backward)


def _attend_flash(call: OpCall, first: int = 0, window: int = 1, *, backward: bool = False) -> Work:
    """Return the work of an op of FlashAttention, whose first Boolean argument tells whether the mask is causal.

    The layout is (batch, positions, heads, size), or (positions, heads, size) for sequences of different lengths.

    Args:
        call: The call.
        first: Index of the queries.
        window: Number of arguments from the mask to the size of the sliding window on the left, before that on the
            right. Both may be one argument.
        backward: Whether the call is the backward pass.
    """
    place = next((i for i in range(len(call.values)) if call.find_flag(i) is not None), None)
    if place is None:
        if call.values:
            raise UnknownWorkError
        return _attend_positions_first(call, first, None, backward=backward)
    is_causal = bool(call.find_flag(place))
    sizes = call.list_integers(place + window) or (-1,)
    sizes = sizes if len(sizes) > 1 else (*sizes, *(call.list_integers(place + window + 1) or ()))
    limits = sizes[:1] if is_causal else sizes  # a causal mask has no keys on the right
    if any(size >= 0 for size in limits):
        raise UnknownWorkError  # the window slides: each query attends to as many keys as the window has
    return _attend_positions_first(call, first, _BOTTOM_RIGHT * is_causal, backward=backward)


def _attend_with_mask_type(call: OpCall, mask: int, first: int = 0, *, backward: bool = False) -> Work:
    """Return the work of memory-efficient attention, one argument of which is the number of the mask."""
    number = call.find_integer(mask)
    if number not in (0, _TOP_LEFT, _BOTTOM_RIGHT) and call.values:
        raise UnknownWorkError
    return _attend_positions_first(call, first, number, backward=backward)


def _attend_positions_first(call: OpCall, first: int, mask: int | None, *, backward: bool) -> Work:
    inputs = _get_inputs(call, first)
    if len(inputs[0].shape) == _PACKED_RANK:
        inputs = _unpack_sequences(call, first, inputs)
    elif _list_vectors(call, first):
        raise UnknownWorkError  # the lengths of the sequences are values, which are not recorded
    return _attend(inputs, _POSITIONS_FIRST, mask, backward=backward)


def _get_inputs(call: OpCall, first: int) -> Inputs:
    return call.get_tensor(first), call.get_tensor(first + 1), call.get_tensor(first + 2)


def _list_vectors(call: OpCall, first: int) -> list[int]:
    """Return the lengths of the tensors of 32-bit integers after queries, keys and values, such as offsets."""
    tensors = [call.find_tensor(i) for i in range(first + 3, len(call.shapes))]
    return [t.element_count for t in tensors if t is not None and t.type is not None and t.type.name == "int32"]


def _unpack_sequences(call: OpCall, first: int, inputs: Inputs) -> Inputs:
    """Return packed queries, keys and values with a dimension for the sequences, if these have equal lengths.

    The offsets of the sequences are vectors of 32-bit integers. Their values are not recorded, but the greatest length
    is: if it is the average length, then all sequences have this length.

    Raises:
        UnknownWorkError: The sequences may have different lengths.
    """
    vectors = _list_vectors(call, first)
    count = vectors[0] - 1 if vectors and len({*vectors}) == 1 else 0
    lengths = {call.find_integer(index) for index in range(first + 3, len(call.values))}
    if count < 1 or any(len(t.shape) != _PACKED_RANK for t in inputs):
        raise UnknownWorkError
    unpacked = []
    for tensor in inputs:
        total, heads, size = tensor.shape
        if total % count or total // count not in lengths:
            raise UnknownWorkError
        unpacked.append(Tensor((count, total // count, heads, size), tensor.type))
    return unpacked[0], unpacked[1], unpacked[2]


_FLASH, _FLASH_BACKWARD = _attend_flash, functools.partial(_attend_flash, first=1, backward=True)

FORMULAS: dict[str, Formula] = {
    "aten::scaled_dot_product_attention": functools.partial(_attend_with_flag, causal=5),
    "aten::_scaled_dot_product_attention_math": functools.partial(_attend_with_flag, causal=5),
    "aten::_scaled_dot_product_flash_attention": functools.partial(_attend_with_flag, causal=4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": functools.partial(_attend_with_flag, causal=4),
    "aten::_scaled_dot_product_efficient_attention": functools.partial(_attend_with_flag, causal=6),
    "aten::_scaled_dot_product_cudnn_attention": functools.partial(_attend_with_flag, causal=6),
    "aten::_cudnn_attention_forward": functools.partial(_attend_with_flag, causal=10),
    "aten::_cudnn_attention_backward": functools.partial(_attend_with_flag, causal=14, first=1, backward=True),
    "aten::_scaled_dot_product_fused_attention_overrideable": functools.partial(_attend_with_flag, causal=5),
    "aten::_scaled_dot_product_flash_attention_backward": functools.partial(
        _attend_with_flag, causal=11, first=1, backward=True
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": functools.partial(
        _attend_with_flag, causal=11, first=1, backward=True
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": functools.partial(
        _attend_with_flag, causal=14, first=1, backward=True
    ),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": functools.partial(
        _attend_with_flag, causal=13, first=1, backward=True
    ),
    "aten::_flash_attention_forward": functools.partial(_attend_flash, window=3),
    "aten::_flash_attention_backward": functools.partial(_attend_flash, first=1, window=4, backward=True),
    "aten::_efficient_attention_forward": functools.partial(_attend_with_mask_type, mask=9),
    "aten::_efficient_attention_backward": functools.partial(_attend_with_mask_type, mask=14, first=1, backward=True),
    "xformers::efficient_attention_forward_cutlass": functools.partial(_attend_with_mask_type, mask=9),
    **dict.fromkeys(
        (
            *("flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_varlen_forward", "FlashAttnFunc"),
            *("FlashAttnVarlenFunc", "flash_attn_3::fwd", "flash_attn_3::_flash_attn_forward"),
            *("xformers_flash::flash_fwd", "xformers_flash3::flash_fwd"),
            *("aiter::_flash_attn_forward", "aiter::_flash_attn_varlen_forward", "aiter::mha_fwd"),
            *("aiter::fmha_v3_fwd", "aiter::wrapper_fmha_v3_fwd", "aiter::fmha_v3_varlen_fwd"),
        ),
        _FLASH,
    ),
    **dict.fromkeys(
        (
            *("flash_attn::_flash_attn_backward", "flash_attn::_flash_attn_varlen_backward"),
            *("flash_attn_3::bwd", "flash_attn_3::_flash_attn_backward"),
            *("xformers_flash::flash_bwd", "xformers_flash3::flash_bwd"),
            *("aiter::_flash_attn_backward", "aiter::_flash_attn_varlen_backward", "aiter::mha_bwd"),
            *("aiter::fmha_v3_bwd", "aiter::wrapper_fmha_v3_bwd"),
        ),
        _FLASH_BACKWARD,
    ),
}
"""Formula of each op, by its qualified name."""
