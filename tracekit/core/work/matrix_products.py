"""The work of matrix products.

A product of an M×K matrix and a K×N matrix takes 2·M·N·K operations. The addition of a bias or of another matrix takes
one more for each element of the result. Complex numbers take four times as many multiplications.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tracekit.core.work.call import (
    COMPLEX_FACTOR,
    OpCall,
    ScalarType,
    Shape,
    Tensor,
    UnknownWorkError,
    Work,
    add_bytes,
    broadcast,
    count_bytes,
    find_numbered_scalar_type,
    multiplied_type,
    multiply,
)

KIND = "matrix_product"
_MATRIX = 2
_NARROW = ("fp8", "fp4", "int8", "uint8", "qint8", "quint8")
_HALF = ScalarType("bf16", 2)
_INT32 = ScalarType("int32", 4)
_EINSUM = re.compile(r"^([A-Za-z]+),([A-Za-z]+)->([A-Za-z]*)$")


def _transpose(tensor: Tensor) -> Tensor:
    strides = tensor.strides and (*tensor.strides[:-2], tensor.strides[-1], tensor.strides[-2])
    return Tensor((*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2]), tensor.type, strides)


def _unpack(tensor: Tensor, axis: int) -> Shape:
    """Return the shape of a matrix in values, given the dimension along which values are packed into elements."""
    values = tensor.type.values if tensor.type else 1
    shape = list(tensor.shape)
    shape[axis] *= values
    return tuple(shape)


def compute_product(
    left: Tensor,
    right: Tensor,
    addend: Tensor | None = None,
    result_type: ScalarType | None = None,
    kind: str = KIND,
    *others: Tensor | None,
) -> Work:
    """Return the work of the product of two matrices, or of two batches of matrices.

    Args:
        left: Tensor of the shape (…, M, K).
        right: Tensor of the shape (…, K, N).
        addend: Tensor that is added to the product.
        result_type: Type of the result. By default, it is the type of ``left``.
        kind: Kind of the work.
        others: Further tensors that are read, such as scales.

    Raises:
        UnknownWorkError: The shapes do not fit.
    """
    if min(len(left.shape), len(right.shape)) < _MATRIX:
        raise UnknownWorkError
    a, b = _unpack(left, -1), _unpack(right, -2)
    if a[-1] != b[-2]:
        raise UnknownWorkError
    result = (*broadcast(a[:-2], b[:-2]), a[-2], b[-1])
    is_complex = any(t.type and t.type.is_complex for t in (left, right))
    flop = multiply((2, *result, a[-1])) * (COMPLEX_FACTOR if is_complex else 1)
    if addend is not None:
        if broadcast(addend.shape, result) != result:
            raise UnknownWorkError
        flop += multiply(result)
    result_type = result_type or left.type
    written = count_bytes(result, result_type)
    read = add_bytes(left, right, addend, *others)
    return Work(kind, flop, read, written, multiplied_type(left, right))


def _multiply_inputs(call: OpCall) -> Work:
    return compute_product(call.get_tensor(0), call.get_tensor(1))


def _multiply_batches(call: OpCall) -> Work:
    left, right = call.get_tensor(0), call.get_tensor(1)
    if not len(left.shape) == len(right.shape) == _MATRIX + 1 or left.shape[0] != right.shape[0]:
        raise UnknownWorkError
    return compute_product(left, right)


def _multiply_and_add(call: OpCall) -> Work:
    """Return the work of ``addmm`` and ``baddbmm``: ``beta * input + alpha * (left @ right)``."""
    addend = call.find_tensor(0) if call.get_value(3) not in ("0", "0.", "0.0") else None
    return compute_product(call.get_tensor(1), call.get_tensor(2), addend)


def _multiply_and_add_batches(call: OpCall) -> Work:
    """Return the work of ``addbmm``, which adds up the products of a batch."""
    left, right = call.get_tensor(1), call.get_tensor(2)
    if not len(left.shape) == len(right.shape) == _MATRIX + 1 or left.shape[0] != right.shape[0]:
        raise UnknownWorkError
    batch, rows, inner = left.shape
    flat = Tensor((rows, batch * inner), left.type), Tensor((batch * inner, right.shape[2]), right.type)
    if right.shape[1] != inner:
        raise UnknownWorkError
    return compute_product(*flat, call.find_tensor(0))


def _multiply_any(call: OpCall) -> Work:
    """Return the work of ``matmul``, whose inputs may be vectors, matrices or batches."""
    left, right = call.get_tensor(0), call.get_tensor(1)
    left = left if len(left.shape) > 1 else Tensor((1, *left.shape), left.type)
    right = right if len(right.shape) > 1 else Tensor((*right.shape, 1), right.type)
    return compute_product(left, right)


def _multiply_by_vector(call: OpCall) -> Work:
    return _multiply_matrix_by_vector(call.get_tensor(0), call.get_tensor(1), None)


def _multiply_by_vector_and_add(call: OpCall) -> Work:
    return _multiply_matrix_by_vector(call.get_tensor(1), call.get_tensor(2), call.find_tensor(0))


def _multiply_matrix_by_vector(matrix: Tensor, vector: Tensor, addend: Tensor | None) -> Work:
    if len(matrix.shape) != _MATRIX or len(vector.shape) != 1:
        raise UnknownWorkError
    column = Tensor((*vector.shape, 1), vector.type)
    return compute_product(matrix, column, addend and Tensor((*addend.shape, 1), addend.type))


def _multiply_vectors(call: OpCall) -> Work:
    """Return the work of ``dot`` and ``vdot``."""
    left, right = call.get_tensor(0), call.get_tensor(1)
    if not len(left.shape) == len(right.shape) == 1:
        raise UnknownWorkError
    return compute_product(Tensor((1, *left.shape), left.type), Tensor((*right.shape, 1), right.type))


def _multiply_outer(call: OpCall) -> Work:
    """Return the work of ``outer``, which multiplies each pair of elements of two vectors and adds nothing."""
    left, right = call.get_tensor(0), call.get_tensor(1)
    if not len(left.shape) == len(right.shape) == 1:
        raise UnknownWorkError
    flop = multiply((*left.shape, *right.shape))
    written = count_bytes((flop,), left.type)
    return Work(KIND, flop, add_bytes(left, right), written, multiplied_type(left, right))


def _apply_linear_layer(call: OpCall) -> Work:
    """Return the work of a linear layer, whose weight has the shape (N, K). The bias is the third argument, if any."""
    left, weight = call.get_tensor(0), call.get_tensor(1)
    if len(weight.shape) != _MATRIX:
        raise UnknownWorkError
    rows = left if len(left.shape) > 1 else Tensor((1, *left.shape), left.type)
    bias = call.find_tensor(2)
    bias = bias if bias is not None and bias.shape == weight.shape[:1] else None
    return compute_product(rows, _transpose(weight), bias)


def _multiply_scaled(call: OpCall) -> Work:
    """Return the work of ``_scaled_mm`` and similar ops, whose matrices have scales.

    The type of the result is the argument ``out_dtype``, and by default a type of two bytes.
    """
    left, right = call.get_tensor(0), call.get_tensor(1)
    return _scale(call, left, right, 2)


def _multiply_scaled_by_rows(call: OpCall) -> Work:
    """Return the work of a product with scales whose second matrix has the shape (N, K)."""
    left, right = call.get_tensor(0), call.get_tensor(1)
    return _scale(call, left, _transpose(_require_rank(right)), 2)


def _multiply_scaled_into(call: OpCall) -> Work:
    """Return the work of a product with scales whose first argument is the result."""
    return _scale(call, call.get_tensor(1), call.get_tensor(2), 3, call.get_tensor(0).type)


def _multiply_scaled_either_way(call: OpCall) -> Work:
    """Return the work of a product with scales whose second matrix has the shape (K, N) or (N, K)."""
    left, right = call.get_tensor(0), _require_rank(call.get_tensor(1))
    fits = _unpack(left, -1)[-1] == _unpack(right, -2)[-2]
    return _scale(call, left, right if fits else _transpose(right), 2)


def _require_rank(matrix: Tensor) -> Tensor:
    if len(matrix.shape) < _MATRIX:
        raise UnknownWorkError
    return matrix


def _scale(call: OpCall, left: Tensor, right: Tensor, first: int, result_type: ScalarType | None = None) -> Work:
    """Return the work of a product with scales, given the number of the first argument after the matrices."""
    rest = [call.find_tensor(i) for i in range(first, len(call.shapes))]
    halves = [t for t in rest if t is not None and t.type is not None and t.type.name in ("bf16", "fp16")]
    bias = next((t for t in halves if t.shape == right.shape[-1:]), None)
    if result_type is None:
        numbers = [call.find_integer(i) for i in range(first, len(call.values)) if call.find_flag(i) is None]
        types = [find_numbered_scalar_type(n) for n in numbers if n is not None]
        floats = [t for t in types if t is not None and t.name in ("bf16", "fp16", "fp32")]
        is_narrow = left.type is not None and left.type.name in _NARROW
        default = _HALF if is_narrow else left.type
        result_type = floats[0] if floats else default
    scales = [t for t in rest if t is not None and t is not bias and t.type is not None]
    return compute_product(left, right, bias, result_type, KIND, *scales)


def _multiply_integers(call: OpCall) -> Work:
    return compute_product(call.get_tensor(0), call.get_tensor(1), result_type=_INT32)


def _multiply_packed_int4(call: OpCall) -> Work:
    """Return the work of ``_weight_int4pack_mm``. The scales and zeros have the shape (groups, N, 2)."""
    left, packed, scales = call.get_tensor(0), call.get_tensor(1), call.get_tensor(3)
    if len(left.shape) != _MATRIX or len(scales.shape) != _MATRIX + 1:
        raise UnknownWorkError
    rows, inner = left.shape
    columns = scales.shape[1]
    if multiply(packed.shape) * 8 != inner * columns and multiply(packed.shape) * 2 != inner * columns:
        raise UnknownWorkError
    written = count_bytes((rows, columns), left.type)
    flop = multiply((2, rows, columns, inner))
    return Work(KIND, flop, add_bytes(left, packed, scales), written, multiplied_type(left))


def _multiply_int8_weights(call: OpCall) -> Work:
    """Return the work of ``_weight_int8pack_mm``, whose weight has the shape (N, K)."""
    left, weight, scales = call.get_tensor(0), call.get_tensor(1), call.find_tensor(2)
    return compute_product(left, _transpose(_require_rank(weight)), None, None, KIND, scales)


def _multiply_groups(call: OpCall) -> Work:
    """Return the work of ``_grouped_mm`` and ``_scaled_grouped_mm``.

    The groups divide the rows of the left matrix, the columns of the right one or the summed dimension. The offsets of
    the groups are values that are not recorded, so all rows are assumed to belong to a group.
    """
    left, right = call.get_tensor(0), call.get_tensor(1)
    ranks = len(left.shape), len(right.shape)
    if ranks == (_MATRIX + 1, _MATRIX + 1):
        return _multiply_batches(call)
    if not {*ranks} <= {_MATRIX, _MATRIX + 1}:
        raise UnknownWorkError
    a, b = _unpack(left, -1), _unpack(right, -2)
    if a[-1] != b[-2]:
        raise UnknownWorkError
    flop = multiply((2, a[-2], b[-1], a[-1]))
    groups = 1
    if ranks == (_MATRIX, _MATRIX):
        offsets = [call.find_tensor(i) for i in range(2, len(call.shapes))]
        sizes = [t.shape[0] for t in offsets if t and len(t.shape) == 1 and t.type and t.type.name == "int32"]
        groups = sizes[0] if sizes else 1
    narrow = left.type is not None and left.type.name in _NARROW
    result_type = _HALF if narrow else left.type
    written = count_bytes((groups, a[-2], b[-1]), result_type)
    return Work(KIND, flop, add_bytes(left, right), written, multiplied_type(left, right))


def _multiply_by_experts(call: OpCall) -> Work:
    """Return the work of the experts of a mixture: tokens, weights of both layers, and the experts of each token.

    The first weight has the shape (experts, N, K), the second one (experts, K, N/2) or (experts, K, N). The bytes are
    unknown, because only the weights of chosen experts are read.
    """
    tokens, first, second, chosen = (call.get_tensor(i) for i in (0, 1, 2, 4))
    ranks = len(tokens.shape), len(first.shape), len(second.shape), len(chosen.shape)
    if ranks != (_MATRIX, _MATRIX + 1, _MATRIX + 1, _MATRIX):
        raise UnknownWorkError
    (count, size), (experts, wide, inner), (others, result, narrow) = tokens.shape, first.shape, second.shape
    fits = experts == others and inner == size == result and wide in (narrow, 2 * narrow)
    if not fits or chosen.shape[0] != count:
        raise UnknownWorkError
    flop = multiply((2, count, chosen.shape[1], size, wide + narrow))
    return Work(KIND, flop, type=multiplied_type(tokens, first))


def _sum_products(call: OpCall) -> Work:
    """Return the work of ``einsum`` for two operands whose indices are all written out and occur once in an operand."""
    shapes = call.shapes[1] if len(call.shapes) > 1 else ()
    match = _EINSUM.match(call.get_value(0).replace(" ", ""))
    if match is None or len(shapes) != _MATRIX or not all(isinstance(s, tuple) for s in shapes):
        raise UnknownWorkError
    left, right, result = match.groups()
    sizes: dict[str, int] = {}
    for letters, shape in ((left, shapes[0]), (right, shapes[1])):
        if not isinstance(shape, tuple) or len(set(letters)) != len(letters) or len(letters) != len(shape):
            raise UnknownWorkError
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise UnknownWorkError
    if not set(result) <= set(sizes):
        raise UnknownWorkError
    is_summed = len(set(result)) < len(sizes)
    flop = multiply((2 if is_summed else 1, *sizes.values()))
    return Work(KIND, flop)


def _multiply_in_transformer_engine(call: OpCall) -> Work:
    """Return the work of ``tex_ts::te_gemm_ts``: matrices are arguments 0 and 5, their transpositions 4 and 9."""
    left, right = _require_rank(call.get_tensor(0)), _require_rank(call.get_tensor(5))
    rows, inner = (left.shape[0], left.shape[1]) if call.find_integer(4) == 1 else (left.shape[1], left.shape[0])
    other, columns = (right.shape[0], right.shape[1]) if call.find_integer(9) == 1 else (right.shape[1], right.shape[0])
    if inner != other:
        raise UnknownWorkError
    result = call.find_tensor(10)
    flop = multiply((2, rows, columns, inner))
    return Work(KIND, flop, add_bytes(left, right), add_bytes(result), multiplied_type(left, right))


Formula = Callable[[OpCall], Work]

FORMULAS: dict[str, Formula] = {
    "aten::mm": _multiply_inputs,
    "aten::bmm": _multiply_batches,
    "aten::addmm": _multiply_and_add,
    "aten::_addmm_activation": _multiply_and_add,
    "aten::baddbmm": _multiply_and_add,
    "aten::addbmm": _multiply_and_add_batches,
    "aten::matmul": _multiply_any,
    "aten::__matmul__": _multiply_any,
    "aten::linear": _apply_linear_layer,
    "aten::mv": _multiply_by_vector,
    "aten::addmv": _multiply_by_vector_and_add,
    "aten::dot": _multiply_vectors,
    "aten::vdot": _multiply_vectors,
    "aten::outer": _multiply_outer,
    "aten::ger": _multiply_outer,
    "aten::einsum": _sum_products,
    "aten::_scaled_mm": _multiply_scaled,
    "aten::_int_mm": _multiply_integers,
    "aten::_weight_int4pack_mm": _multiply_packed_int4,
    "aten::_weight_int8pack_mm": _multiply_int8_weights,
    "aten::_grouped_mm": _multiply_groups,
    "aten::_scaled_grouped_mm": _multiply_groups,
    **dict.fromkeys(
        (
            *("vllm::inplace_fused_experts", "vllm::outplace_fused_experts", "aiter::fused_moe_"),
            *("sglang::inplace_fused_experts", "sglang::outplace_fused_experts"),
        ),
        _multiply_by_experts,
    ),
    "aiter::gemm_a16w16": _apply_linear_layer,
    "aiter::gemm_a8w8": _multiply_scaled_by_rows,
    "aiter::gemm_a8w8_ck": _multiply_scaled_by_rows,
    "aiter::gemm_a8w8_bpreshuffle": _multiply_scaled_by_rows,
    "aiter::gemm_a8w8_blockscale": _multiply_scaled_by_rows,
    "aiter::gemm_a8w8_blockscale_bpreshuffle": _multiply_scaled_by_rows,
    "vllm::rocm_unquantized_gemm": _apply_linear_layer,
    "vllm::rocm_unquantized_gemm_impl": _apply_linear_layer,
    "vllm::w8a8_block_fp8_matmul": _multiply_scaled_by_rows,
    "vllm::w8a8_triton_block_scaled_mm": _multiply_scaled_by_rows,
    "_C::cutlass_scaled_mm": _multiply_scaled_into,
    "_C::cutlass_scaled_mm_azp": _multiply_scaled_into,
    "sgl_kernel::fp8_scaled_mm": _multiply_scaled,
    "sgl_kernel::int8_scaled_mm": _multiply_scaled,
    "sgl_kernel::fp8_blockwise_scaled_mm": _multiply_scaled,
    "trtllm::cublas_scaled_mm": _multiply_scaled,
    "trtllm::fp8_block_scaling_gemm": _multiply_scaled_by_rows,
    "bitsandbytes::int8_linear_matmul": _multiply_scaled_either_way,
    "tex_ts::te_gemm_ts": _multiply_in_transformer_engine,
}
"""Formula of each op, by its qualified name."""
