"""Compute the work of the instructions of programs that XLA compiled, from their text (HLO).

An instruction states the shapes and types of its operands and of its result, so formulas need nothing else:

- ``dot`` and products of cuBLAS: 2 · elements of the result · size of the contracted dimensions
- ``convolution`` and convolutions of cuDNN, forward and backward: 2 · elements of the forward result · elements of the
  window · input features per group. Positions in the padding count, holes of a dilated input do not.
- attention of cuDNN and Transformer Engine: as in ``attention``
- elementwise instructions on floating-point numbers: 1 per element; reductions: 1 per element of the operand
- instructions that only move data: 0
- a fusion: the sum of the instructions in the computation that it calls. Its bytes are those of its operands and of its
  result. Of an operand that is only sliced or gathered from, only this part counts.

Other instructions, such as loops, sorts and unknown custom calls, have no known work.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.core.work.call import (
    MAX_NUMBER,
    MAX_RANK,
    OpCall,
    ScalarType,
    Tensor,
    UnknownWorkError,
    Work,
    find_scalar_type,
    multiplied_type,
    multiply,
)
from tracekit.core.work.formulas import compute_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Computation = Mapping[str, "Instruction"]
    Formula = Callable[["Instruction", Mapping[str, Computation], int], Work]

MAX_TEXT_LENGTH = 1 << 17
"""Length in characters above which the text of an instruction is ignored."""
MAX_CALLS = 8
"""Maximum number of nested calls of computations."""
_SPELLINGS = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "pred": "bool",
    "c64": "complex64",
    "c128": "complex128",
    "f4e2m1fn": "float4_e2m1fn_x2",
    "s4": "quint4x2",
    "u4": "quint4x2",
    **{f"{short}{bits}": f"{name}{bits}" for short, name in (("s", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("f8e5m2", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz", "f8e3m4", "f8e5m2fnuz", "f8e4m3fnuz"), "fp8"),
    "f8e8m0fnu": "fp8",
}
_FLOATS = ("fp64", "fp32", "bf16", "fp16", "fp8", "fp4", "complex64", "complex128")
_ARRAY = re.compile(r"\b(pred|token|opaque|bf16|[sufc]\d\w*)\[([\d,<=? ]*)\](?:\{[^{}]*\})?")
_HEAD = re.compile(r"(?:ROOT )?%?([^\s=%]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_BRACKET = re.compile(r'[(){}\[\],]|"(?:[^"\\]|\\.)*"')
_OPERAND = re.compile(r"%?([^\s%(){},\[\]]+)\s*$")
_DILATION = re.compile(r"(\w+)=([\dx_\-]+)")
_MLIR = re.compile(r"(\w+) = (-?\d{1,18})\b")

POINTWISE, REDUCTION, COPY, COLLECTIVE = "pointwise", "reduction", "copy", "collective"
_ELEMENTWISE = {
    *("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "power", "atan2", "abs", "negate"),
    *("sign", "floor", "ceil", "round-nearest-afz", "round-nearest-even", "exponential", "exponential-minus-one"),
    *("log", "log-plus-one", "logistic", "sqrt", "rsqrt", "cbrt", "tanh", "tan", "sine", "cosine", "erf", "clamp"),
    *("select", "compare"),
}
_WITHOUT_FLOP = {
    *("and", "or", "xor", "not", "shift-left", "shift-right-arithmetic", "shift-right-logical", "popcnt"),
    *("is-finite", "real", "imag", "complex", "reduce-precision", "stochastic-convert"),
}
_MOVES = {
    *("copy", "transpose", "reshape", "broadcast", "iota", "concatenate", "pad", "reverse", "convert", "slice"),
    *("bitcast-convert", "copy-start", "dynamic-slice", "gather", "dynamic-update-slice", "scatter"),
}
FREE_OPCODES = {
    *("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "partition-id", "replica-id"),
    "opt-barrier",
}
"""Operations that run no kernel and move no bytes."""
_WITHOUT_OPERANDS = ("parameter", "constant")
"""Operations whose parentheses contain a number or a value instead of operands."""
_PARTIAL_READS = ("slice", "dynamic-slice", "gather")
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_ADDING = ("all-reduce", "reduce-scatter")
_GEMM, _CONVOLUTION, _ATTENTION = "__cublas$", "__cudnn$conv", "__cudnn$fmha"
_TE_ATTENTION = ("te_fused_attn_forward_ffi", "te_fused_attn_backward_ffi")


class Operand(NamedTuple):
    """An operand of an instruction.

    Attributes:
        name: Name of the instruction whose result it is.
        arrays: Its arrays: one, unless it is a tuple. None if the text of the instruction does not state them.
    """

    name: str
    arrays: tuple[Tensor, ...] | None


class Instruction(NamedTuple):
    """An instruction.

    Attributes:
        name: Name of the instruction.
        opcode: Operation, such as ``dot``.
        results: The arrays of its result: one, unless it is a tuple.
        operands: Its operands.
        attributes: Its attributes, as text by name.
    """

    name: str
    opcode: str
    results: tuple[Tensor, ...]
    operands: tuple[Operand, ...]
    attributes: Mapping[str, str]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The arrays of all operands.

        Raises:
            UnknownWorkError: The arrays of an operand are unknown.
        """
        if any(operand.arrays is None for operand in self.operands):
            raise UnknownWorkError
        return tuple(array for operand in self.operands for array in operand.arrays or ())

    def get_input(self, index: int) -> Tensor:
        """Return the array of an operand.

        Raises:
            UnknownWorkError: There is no such operand, or it is not an array.
        """
        arrays = self.operands[index].arrays if index < len(self.operands) else None
        if arrays is None or len(arrays) != 1:
            raise UnknownWorkError
        return arrays[0]

    def get_result(self, index: int = 0) -> Tensor:
        """Return an array of the result.

        Raises:
            UnknownWorkError: The result has fewer arrays.
        """
        if index >= len(self.results):
            raise UnknownWorkError
        return self.results[index]

    def get_numbers(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a list of numbers, such as ``{0,2}``. An attribute that is missing is empty."""
        return tuple(int(n) for n in re.findall(r"-?\d{1,18}", self.attributes.get(name, "")))

    @property
    def config(self) -> dict[str, Any]:
        """The attribute ``backend_config`` as an object, which is empty if it is missing or not JSON."""
        try:
            value = json.loads(self.attributes.get("backend_config", ""))
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


def parse_instruction(text: str) -> Instruction | None:
    """Parse the text of an instruction.

    Examples:
        >>> parse_instruction("%dot.3 = f32[2,4]{1,0} dot(f32[2,3] %a, f32[3,4] %b), lhs_contracting_dims={1}").opcode
        'dot'
    """
    head = _HEAD.match(text) if len(text) <= MAX_TEXT_LENGTH else None
    if head is None:
        return None
    start = head.end()
    stop = _find_end(text, start) if text.startswith("(", start) else None
    array = _ARRAY.match(text, start)
    after = stop if stop is not None else array.end() if array else start
    opcode = _OPCODE.match(text, after)
    end = _find_end(text, opcode.end() - 1) if opcode else None
    if opcode is None or end is None:
        return None
    results = _parse_arrays(text[start:after])
    has_operands = opcode[1] not in _WITHOUT_OPERANDS
    operands = tuple(_parse_operand(part) for part in _split(text[opcode.end() : end - 1]) if has_operands)
    pairs = (part.partition("=") for part in _split(text[end:]))
    return Instruction(head[1], opcode[1], results or (), operands, {n.strip(): v for n, _, v in pairs if v})


def _find_end(text: str, start: int) -> int | None:
    """Return the offset after the bracket that closes the one at an offset, or None if there is none."""
    depth = 0
    for match in _BRACKET.finditer(text, start):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(match[0], 0)
        if not depth:
            return match.end()
    return None


def _split(text: str) -> list[str]:
    """Split a text at the commas outside of brackets and quotes, and drop empty parts."""
    depth, first, parts = 0, 0, []
    for match in _BRACKET.finditer(text):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(match[0], 0)
        if match[0] == "," and depth == 0:
            parts.append(text[first : match.start()])
            first = match.end()
    return [part.strip() for part in (*parts, text[first:]) if part.strip()]


def find_element_type(kind: str) -> ScalarType | None:
    """Return the type of elements that HLO spells in this way, such as ``bf16``, or None."""
    return find_scalar_type(_SPELLINGS.get(kind, ""))


def _parse_arrays(text: str) -> tuple[Tensor, ...] | None:
    """Return the arrays in the text of a shape, or None if there are none."""
    arrays = []
    for kind, sizes in _ARRAY.findall(text):
        if kind in ("token", "opaque"):
            continue
        shape = tuple(min(int(n), MAX_NUMBER) for n in re.findall(r"\d{1,40}", sizes))
        arrays.append(Tensor(shape[: MAX_RANK + 1], find_element_type(kind)))
    return tuple(arrays) or None


def _parse_operand(text: str) -> Operand:
    name = _OPERAND.search(text)
    return Operand(name[1] if name else "", _parse_arrays(text))


def parse_computation(texts: Iterable[str]) -> Computation:
    """Parse the instructions of a computation. Operands without shapes get those of the results that they refer to."""
    parsed = (parse_instruction(text) for text in texts)
    instructions = {i.name: i for i in parsed if i is not None}
    results = {name: i.results for name, i in instructions.items()}
    return {
        name: i._replace(
            operands=tuple(o if o.arrays is not None else o._replace(arrays=results.get(o.name)) for o in i.operands)
        )
        for name, i in instructions.items()
    }


def compute_instruction_work(instruction: Instruction, computations: Mapping[str, Computation]) -> Work | None:
    """Return the work of an instruction, or None if it is unknown.

    Args:
        instruction: The instruction.
        computations: The computations of its program by name, which fusions call.
    """
    try:
        work = _compute(instruction, computations, 0)
    except UnknownWorkError:
        return None
    numbers = (work.flop, work.read_bytes, work.written_bytes)
    return None if any(n is not None and n > MAX_NUMBER for n in numbers) else work


def _compute(i: Instruction, computations: Mapping[str, Computation], depth: int) -> Work:
    if i.opcode in FREE_OPCODES:
        return Work(COPY, 0, 0, 0)
    opcode = i.opcode.removesuffix("-start").removesuffix("-done")
    if any(len(array.shape) > MAX_RANK for array in (*i.results, *i.inputs)):
        raise UnknownWorkError
    if formula := _FORMULAS.get(i.opcode):
        return formula(i, computations, depth)
    if i.opcode in _ELEMENTWISE or i.opcode in _WITHOUT_FLOP:
        return Work(POINTWISE, _count_elementwise(i), _count_bytes(*i.inputs), _count_bytes(*i.results))
    if i.opcode in _MOVES:
        return Work(COPY, 0, *_count_moved_bytes(i))
    if opcode in _COLLECTIVES and not i.opcode.endswith("-done"):
        flop = sum(_count_floats(array) for array in i.inputs) if opcode in _ADDING else 0
        return Work(COLLECTIVE, flop, _count_bytes(*i.inputs), _count_bytes(*i.results[-len(i.inputs) :]))
    raise UnknownWorkError


def _count_elementwise(i: Instruction) -> int:
    if i.opcode in _WITHOUT_FLOP:
        return 0
    of_operand = i.opcode == "compare" and i.inputs
    return _count_floats(i.inputs[0]) if of_operand else sum(map(_count_floats, i.results))


def _count_floats(array: Tensor) -> int:
    """Return the number of elements of an array of floating-point numbers, or 0 for other arrays."""
    return array.element_count if array.type is None or array.type.name in _FLOATS else 0


def _count_bytes(*arrays: Tensor) -> int | None:
    """Return the bytes of arrays together, or None if the type of one is unknown. Packed types count as packed."""
    if any(array.type is None for array in arrays):
        return None
    known: list[tuple[int, ScalarType]] = [(a.element_count, a.type) for a in arrays if a.type is not None]
    return sum(-(-count * scalar.byte_count // scalar.values) for count, scalar in known)


def _count_moved_bytes(i: Instruction) -> tuple[int | None, int | None]:
    """Return the bytes that an instruction that only moves data reads and writes."""
    if i.opcode in _PARTIAL_READS:
        moved = _count_bytes(*i.results)
        indices = _count_bytes(*i.inputs[1:])
        return (None if moved is None or indices is None else moved + indices), moved
    if i.opcode == "dynamic-update-slice":
        return _count_bytes(*i.inputs[1:]), _count_bytes(i.get_input(1))
    if i.opcode == "scatter":
        return _count_bytes(*i.inputs[1:]), _count_bytes(i.get_input(len(i.operands) - 1))
    if i.opcode == "copy-start":
        return _count_bytes(*i.inputs), _count_bytes(i.get_result())
    return _count_bytes(*i.inputs), _count_bytes(*i.results)


def _take(array: Tensor, axes: Iterable[int]) -> int:
    """Return the product of the sizes of some dimensions.

    Raises:
        UnknownWorkError: The array does not have these dimensions.
    """
    places = list(axes)
    if any(not 0 <= axis < len(array.shape) for axis in places):
        raise UnknownWorkError
    return multiply(tuple(array.shape[axis] for axis in places))


def _multiply_matrices(i: Instruction, contracted: Iterable[int], result: Tensor) -> Work:
    lhs, rhs = i.get_input(0), i.get_input(1)
    flop = 2 * result.element_count * _take(lhs, contracted)
    return Work("matrix_product", flop, _count_bytes(*i.inputs), _count_bytes(result), multiplied_type(lhs, rhs))


def _compute_dot(i: Instruction, _computations: Mapping[str, Computation], _depth: int) -> Work:
    return _multiply_matrices(i, i.get_numbers("lhs_contracting_dims"), i.get_result())


def _compute_custom_call(i: Instruction, _computations: Mapping[str, Computation], _depth: int) -> Work:
    target = i.attributes.get("custom_call_target", "").strip('"')
    if target.startswith(_GEMM):
        numbers = _get(i.config, "gemm_backend_config", "dot_dimension_numbers")
        numbers = numbers or _get(i.config, "dot_dimension_numbers")
        contracted = numbers.get("lhs_contracting_dimensions") if isinstance(numbers, dict) else None
        if not isinstance(contracted, list) or not contracted:
            raise UnknownWorkError
        return _multiply_matrices(i, map(_parse_integer, contracted), i.get_result())
    if target.startswith(_CONVOLUTION):
        return _compute_cudnn_convolution(i, target)
    if target.startswith(_ATTENTION):
        return _compute_cudnn_attention(i, is_backward=target.endswith("Backward"))
    if target in _TE_ATTENTION:
        return _compute_te_attention(i, is_backward="backward" in target)
    raise UnknownWorkError


def _get(config: object, *names: str) -> object:
    """Return a member of nested objects, or None if there is none."""
    for name in names:
        config = config.get(name) if isinstance(config, dict) else None
    return config


def _parse_integer(value: object) -> int:
    """Return a number that may be text, as in JSON that protobuf writes.

    Raises:
        UnknownWorkError: The value is not a number from 0 to ``MAX_NUMBER``.
    """
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal() and len(text) < 20):  # noqa: PLR2004
        raise UnknownWorkError
    return min(int(text), MAX_NUMBER)


def _compute_cudnn_convolution(i: Instruction, target: str) -> Work:
    """Return the work of a convolution of cuDNN, whose window and labels are those of its forward pass."""
    if "BackwardInput" in target:
        forward, kernel = i.get_input(0), i.get_input(1)
    elif "BackwardFilter" in target:
        forward, kernel = i.get_input(1), i.get_result()
    else:
        forward, kernel = i.get_result(), i.get_input(1)
    flop = 2 * forward.element_count * _count_taps(i, kernel)
    kind = multiplied_type(i.get_input(0), i.get_input(1))
    return Work("convolution", flop, _count_bytes(*i.inputs), _count_bytes(i.get_result()), kind)


def _count_taps(i: Instruction, kernel: Tensor) -> int:
    """Return the number of products per element of the forward result of a convolution.

    Raises:
        UnknownWorkError: The labels do not fit the kernel.
    """
    _, _, labels = i.attributes.get("dim_labels", "").partition("->")[0].partition("_")
    if len(labels) != len(kernel.shape) or labels.count("o") != 1:
        raise UnknownWorkError
    return _take(kernel, (axis for axis, label in enumerate(labels) if label != "o"))


def _compute_convolution(i: Instruction, _computations: Mapping[str, Computation], _depth: int) -> Work:
    lhs, kernel, result = i.get_input(0), i.get_input(1), i.get_result()
    taps = _count_taps(i, kernel)
    dilations = dict(_DILATION.findall(i.attributes.get("window", ""))).get("lhs_dilate", "")
    pairs = 2 * result.element_count * taps
    if any(n != "1" for n in dilations.split("x") if n):
        labels = i.attributes["dim_labels"].partition("->")
        of_lhs, of_result = labels[0].partition("_")[0], labels[2]
        if len(of_lhs) != len(lhs.shape) or len(of_result) != len(result.shape):
            raise UnknownWorkError
        positions = {label: size for label, size in zip(of_lhs, lhs.shape, strict=True) if label.isdecimal()}
        others = [size for label, size in zip(of_result, result.shape, strict=True) if not label.isdecimal()]
        pairs = min(pairs, 2 * multiply((*positions.values(), *others)) * taps)
    kind = multiplied_type(lhs, kernel)
    return Work("convolution", pairs, _count_bytes(*i.inputs), _count_bytes(result), kind)


def _compute_cudnn_attention(i: Instruction, *, is_backward: bool) -> Work:
    """Return the work of attention of cuDNN, from the shape of the scores and the arrays of queries, keys, values."""
    config = _get(i.config, "cudnn_fmha_backend_config")
    sizes = _get(config, "intermediate_tensor_shape", "dimensions")
    if not isinstance(sizes, list) or len(sizes) != len(("batch", "heads", "queries", "keys")):
        raise UnknownWorkError
    b, h, q, k = (_parse_integer(size) for size in sizes)
    mask = _get(config, "mask_type")
    window = _get(config, "sliding_window_length")
    if mask not in ("NO_MASK", "CAUSAL") or (window is not None and _parse_integer(window)):
        raise UnknownWorkError
    arrays = i.results[:3] if is_backward else [i.get_input(index) for index in range(3)]
    if len(arrays) != len(("queries", "keys", "values")):
        raise UnknownWorkError
    size = _divide(arrays[0].element_count, b * h * q)
    groups = _divide(arrays[1].element_count, b * k * size)
    size_of_values = _divide(arrays[2].element_count, b * k * groups)
    shapes = ((b, h, q, size), (b, groups, k, size), (b, groups, k, size_of_values))
    return _attend(shapes, i.get_input(0), is_causal=mask == "CAUSAL", is_backward=is_backward)


def _divide(number: int, divisor: int) -> int:
    """Divide numbers without a remainder.

    Raises:
        UnknownWorkError: The number is not a positive multiple of the divisor.
    """
    if not divisor or not number or number % divisor:
        raise UnknownWorkError
    return number // divisor


_MASKS_OF_TE = {0: False, 2: True, 4: True}
"""Whether the masks of Transformer Engine without padding are causal, by number."""
_BOTTOM_RIGHT_OF_TE = 4


def _compute_te_attention(i: Instruction, *, is_backward: bool) -> Work:
    numbers = {name: int(number) for name, number in _MLIR.findall(i.attributes.get("backend_config", ""))}
    names = ("input_batch", "attn_heads", "num_gqa_groups", "q_max_seqlen", "kv_max_seqlen", "qk_head_dim")
    values = [numbers.get(name, 0) for name in (*names, "v_head_dim")]
    mask = numbers.get("mask_type", -1)
    b, h, groups, q, k, size, size_of_values = values
    if min(values) <= 0 or mask not in _MASKS_OF_TE or (mask == _BOTTOM_RIGHT_OF_TE and q != k):
        raise UnknownWorkError
    shapes = ((b, h, q, size), (b, groups, k, size), (b, groups, k, size_of_values))
    return _attend(shapes, i.get_input(0), is_causal=_MASKS_OF_TE[mask], is_backward=is_backward)


def _attend(shapes: tuple[tuple[int, ...], ...], queries: Tensor, *, is_causal: bool, is_backward: bool) -> Work:
    """Return the work of attention, with the formulas for PyTorch.

    Raises:
        UnknownWorkError: The shapes do not fit.
    """
    name, first, flag = "aten::scaled_dot_product_attention", 0, 5
    if is_backward:
        name, first, flag = "aten::_scaled_dot_product_flash_attention_backward", 1, 11
    kind = queries.type.name if queries.type else ""
    empty: list[tuple[int, ...]] = [()] * (flag + 1)
    sizes, types, values = empty, [""] * (flag + 1), [""] * (flag + 1)
    sizes[first : first + 3], types[first : first + 3] = list(shapes), [kind] * 3
    values[flag] = str(is_causal)
    work = compute_work(OpCall(name, tuple(sizes), tuple(types), tuple(values)))
    if work is None:
        raise UnknownWorkError
    return work


def _compute_reduce(i: Instruction, _computations: Mapping[str, Computation], _depth: int) -> Work:
    half = i.inputs[: (len(i.inputs) + 1) // 2]
    return Work(REDUCTION, sum(map(_count_floats, half)), _count_bytes(*i.inputs), _count_bytes(*i.results))


def _compute_reduce_window(i: Instruction, _computations: Mapping[str, Computation], _depth: int) -> Work:
    sizes = dict(_DILATION.findall(i.attributes.get("window", ""))).get("size", "")
    window = multiply(tuple(int(n[:20]) for n in sizes.split("x") if n.isdecimal()))
    flop = sum(map(_count_floats, i.results)) * window
    return Work(REDUCTION, flop, _count_bytes(*i.inputs), _count_bytes(*i.results))


def _compute_fusion(i: Instruction, computations: Mapping[str, Computation], depth: int) -> Work:
    name = i.attributes.get("calls", i.attributes.get("to_apply", "")).strip().removeprefix("%")
    inner = computations.get(name)
    if inner is None or depth == MAX_CALLS:
        raise UnknownWorkError
    works = [_compute(instruction, computations, depth + 1) for instruction in inner.values()]
    flop = sum(work.flop or 0 for work in works)
    kinds = [work.kind for work in works]
    ranks = ("attention", "convolution", "matrix_product", COLLECTIVE, REDUCTION)
    kind = next((k for k in ranks if k in kinds), POINTWISE if flop or POINTWISE in kinds else COPY)
    types = {work.type for work in works if work.kind == kind and work.type}
    read, written = _count_bytes_of_fusion(i, inner)
    return Work(kind, flop, read, written, types.pop() if len(types) == 1 else None)


def _count_bytes_of_fusion(i: Instruction, inner: Computation) -> tuple[int | None, int | None]:
    """Return the bytes that a fusion reads and writes.

    Of an operand that the computation only slices or gathers from, the parts count. An operand that it only updates in
    place is not read, and only the updates are written.
    """
    users: dict[str, list[Instruction]] = {}
    for instruction in inner.values():
        for operand in instruction.operands:
            users.setdefault(operand.name, []).append(instruction)
    read: list[Tensor] = []
    written = list(i.results)
    for name, parameter in inner.items():
        if parameter.opcode != "parameter":
            continue
        using = users.get(name, [])
        if using and all(u.opcode in _PARTIAL_READS and u.operands[0].name == name for u in using):
            read += [array for u in using for array in u.results]
        elif [u.opcode for u in using] == ["dynamic-update-slice"] and using[0].operands[0].name == name:
            update = using[0].get_input(1)
            written = [update if array.shape == using[0].get_result().shape else array for array in written]
        else:
            read += parameter.results
    return _count_bytes(*read), _count_bytes(*written)


_FORMULAS: dict[str, Formula] = {
    "dot": _compute_dot,
    "convolution": _compute_convolution,
    "custom-call": _compute_custom_call,
    "fusion": _compute_fusion,
    "call": _compute_fusion,
    "reduce": _compute_reduce,
    "reduce-window": _compute_reduce_window,
}
