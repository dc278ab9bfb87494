"""The call of an op with its recorded arguments, and the work that it did."""

from __future__ import annotations

import math
from typing import NamedTuple

Shape = tuple[int, ...]

MAX_NUMBER = (1 << 63) - 1
"""Largest number of elements, bytes or operations that is believed."""
MAX_RANK = 64
"""Largest number of dimensions of a tensor that is believed."""
COMPLEX_FACTOR = 4
"""Operations on real numbers per operation of a sum of products of complex numbers."""


class UnknownWorkError(Exception):
    """The arguments of a call do not determine its work. It never leaves this package."""


class ScalarType(NamedTuple):
    """The type of the elements of a tensor.

    Attributes:
        name: Short name, such as ``bf16``.
        byte_count: Size of one stored element.
        values: Number of values in one stored element. It is 2 for packed 4-bit types.
        is_complex: Whether the values are complex numbers.
    """

    name: str
    byte_count: int
    values: int = 1
    is_complex: bool = False


_FP8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "fp8", "float8")
_SPELLINGS: tuple[tuple[ScalarType, tuple[str, ...]], ...] = (
    (ScalarType("fp64", 8), ("double", "float64", "fp64")),
    (ScalarType("fp32", 4), ("float", "float32", "fp32")),
    (ScalarType("tf32", 4), ("tf32",)),
    (ScalarType("bf16", 2), ("bfloat16", "bf16")),
    (ScalarType("fp16", 2), ("half", "float16", "fp16")),
    (ScalarType("fp8", 1), _FP8),
    (ScalarType("fp4", 1, 2), ("float4_e2m1fn_x2",)),
    (ScalarType("int64", 8), ("long int", "long", "int64", "long long", "int64_t")),
    (ScalarType("int32", 4), ("int", "int32", "int32_t")),
    (ScalarType("int16", 2), ("short int", "short", "int16", "int16_t")),
    (ScalarType("int8", 1), ("signed char", "char", "int8", "int8_t")),
    (ScalarType("uint8", 1), ("unsigned char", "byte", "uint8", "uint8_t")),
    (ScalarType("uint16", 2), ("unsigned short", "short unsigned int", "uint16", "uint16_t")),
    (ScalarType("uint32", 4), ("unsigned int", "unsigned", "uint32", "uint32_t")),
    (ScalarType("uint64", 8), ("unsigned long", "long unsigned int", "uint64", "uint64_t")),
    (ScalarType("bool", 1), ("bool",)),
    (ScalarType("complex32", 4, is_complex=True), ("complex<half>", "complexhalf", "complex32")),
    (ScalarType("complex64", 8, is_complex=True), ("complex<float>", "complexfloat", "complex64")),
    (ScalarType("complex128", 16, is_complex=True), ("complex<double>", "complexdouble", "complex128")),
    (ScalarType("qint8", 1), ("qint8",)),
    (ScalarType("quint8", 1), ("quint8",)),
    (ScalarType("qint32", 4), ("qint32",)),
    (ScalarType("quint4", 1, 2), ("quint4x2",)),
    (ScalarType("quint2", 1, 4), ("quint2x4",)),
    (ScalarType("bits8", 1), ("bits8", "bits1x8", "bits2x4", "bits4x2")),
    (ScalarType("bits16", 2), ("bits16",)),
)
SCALAR_TYPES = {spelling: scalar for scalar, spellings in _SPELLINGS for spelling in spellings}
"""Maps each spelling of a scalar type, in lower case and without namespaces, to the type."""
_ENUM = (
    *("uint8", "int8", "int16", "int32", "int64", "fp16", "fp32", "fp64", "complex32", "complex64", "complex128"),
    *("bool", "qint8", "quint8", "qint32", "bf16", "quint4", "quint2", "bits8", "bits8", "bits8", "bits8", "bits16"),
    *("fp8", "fp8", "fp8", "fp8", "uint16", "uint32", "uint64"),
)
"""Short names of the values of ``c10::ScalarType``, in order."""
_BY_NAME = {scalar.name: scalar for scalar, _ in _SPELLINGS}


def find_scalar_type(text: str) -> ScalarType | None:
    """Return the scalar type with a given spelling, such as ``c10::BFloat16`` or ``torch.float16``, or None."""
    spelling = text.strip().lower()
    for prefix in ("c10::", "at::", "torch.", "std::"):
        spelling = spelling.replace(prefix, "")
    return SCALAR_TYPES.get(spelling)


def find_numbered_scalar_type(number: int) -> ScalarType | None:
    """Return the scalar type with a given number in ``c10::ScalarType``, as PyTorch records a ``dtype``."""
    return _BY_NAME[_ENUM[number]] if 0 <= number < len(_ENUM) else None


def multiply(sizes: Shape) -> int:
    """Return the product of sizes.

    Raises:
        UnknownWorkError: The product is too large to be believed.
    """
    product = math.prod(sizes)
    if product > MAX_NUMBER:
        raise UnknownWorkError
    return product


class Tensor(NamedTuple):
    """A tensor among the inputs of an op.

    Attributes:
        shape: Sizes of its dimensions.
        type: Type of its elements, or None if it was not recorded.
        strides: Strides of its dimensions in elements, or None if they were not recorded.
    """

    shape: Shape
    type: ScalarType | None = None
    strides: Shape | None = None

    @property
    def element_count(self) -> int:
        """Number of elements."""
        return multiply(self.shape)

    @property
    def byte_count(self) -> int | None:
        """Bytes of the distinct elements: an expanded dimension, whose stride is 0, is read once. None if unknown."""
        if self.type is None:
            return None
        strides = self.strides or ()
        if len(strides) != len(self.shape):
            return self.element_count * self.type.byte_count
        sizes = tuple(n if stride or not n else 1 for n, stride in zip(self.shape, strides, strict=True))
        return multiply(sizes) * self.type.byte_count


class OpCall(NamedTuple):
    """The call of an op.

    Shapes, types, values and strides have one item per argument, in the order of the schema of the op. They are empty
    if they were not recorded.

    Attributes:
        name: Name of the op, such as ``aten::mm``.
        shapes: Shape of each argument. It is empty for an argument that is no tensor, and a tuple of shapes for a list
            of tensors.
        types: Type of the elements of each argument, as it was recorded. It is empty for an argument that is missing,
            and ``Scalar`` for a number.
        values: Value of each argument that is no tensor, as text, such as ``[1, 1]``, ``True`` or ``0.5``.
        strides: Strides of each argument, in the form of ``shapes``.
    """

    name: str
    shapes: tuple[Shape | tuple[Shape, ...], ...] = ()
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    strides: tuple[Shape | tuple[Shape, ...], ...] = ()

    def set_types(self, scalar_type: str) -> OpCall:
        """Return the call with one type for all tensors or, if types were recorded, for all lists of tensors."""
        known = self.types or ("List",) * len(self.shapes)
        return self._replace(types=tuple(scalar_type if t.endswith("List") else t for t in known))

    def find_tensor(self, index: int) -> Tensor | None:
        """Return an argument that is a tensor of at least one dimension, or None."""
        shape = self.shapes[index] if index < len(self.shapes) else ()
        if not shape or isinstance(shape[0], tuple):
            return None
        strides = self.strides[index] if index < len(self.strides) else ()
        known = strides if len(strides) == len(shape) and not isinstance(strides[0], tuple) else None
        text = self.types[index] if index < len(self.types) else ""
        return Tensor(shape, find_scalar_type(text), known)

    def find_any_tensor(self, index: int) -> Tensor | None:
        """Return an argument that is a tensor of any number of dimensions, or None.

        A tensor without dimensions is recognized by its type.
        """
        tensor = self.find_tensor(index)
        if tensor is not None or index >= len(self.shapes) or self.shapes[index]:
            return tensor
        kind = find_scalar_type(self.types[index]) if index < len(self.types) else None
        return None if kind is None else Tensor((), kind)

    def list_tensors(self, index: int) -> list[Tensor]:
        """Return the tensors of an argument that is a list of tensors, or an empty list."""
        shapes = self.shapes[index] if index < len(self.shapes) else ()
        kind = find_scalar_type(self.types[index]) if index < len(self.types) else None
        return [Tensor(shape, kind) for shape in shapes if isinstance(shape, tuple)]

    def get_tensor(self, index: int) -> Tensor:
        """Return an argument that is a tensor of at least one dimension.

        Raises:
            UnknownWorkError: The argument is not a tensor.
        """
        tensor = self.find_tensor(index)
        if tensor is None:
            raise UnknownWorkError
        return tensor

    def get_value(self, index: int) -> str:
        """Return the recorded value of an argument, or "" if there is none."""
        return self.values[index].strip() if index < len(self.values) else ""

    def list_integers(self, index: int, prefix: str = "") -> tuple[int, ...] | None:
        """Return the integers of an argument such as ``[1, 1]`` or ``2``, or None if it is nothing of the kind."""
        text = self.get_value(index).removeprefix(prefix).strip("[]() ")
        try:
            return tuple(int(part) for part in text.split(",")) if text else None
        except ValueError:
            return None

    def find_integer(self, index: int) -> int | None:
        """Return an argument that is one integer, or None."""
        numbers = self.list_integers(index)
        return numbers[0] if numbers and len(numbers) == 1 else None

    def find_flag(self, index: int) -> bool | None:
        """Return an argument that is a Boolean, or None."""
        return {"true": True, "false": False}.get(self.get_value(index).lower())


class Work(NamedTuple):
    """The work of one call of an op.

    Attributes:
        kind: Kind of the op, such as ``matrix_product``.
        flop: Number of floating-point operations. It is 0 for an op that only moves data, and None if it is unknown.
        read_bytes: Bytes that the op reads at least, or None if they are unknown.
        written_bytes: Bytes that the op writes at least, or None if they are unknown.
        type: Type in which the op multiplies, such as ``bf16``, or None if it is unknown.
        model_flop: Number of operations that count for the utilization of a model, if it is not ``flop``: attention
            counts without the pairs that a causal mask saves, and without the scores that the backward pass computes
            again.
    """

    kind: str
    flop: int | None
    read_bytes: int | None = None
    written_bytes: int | None = None
    type: str | None = None
    model_flop: int | None = None


def broadcast(left: Shape, right: Shape) -> Shape:
    """Return the shape to which two shapes are broadcast.

    Raises:
        UnknownWorkError: The shapes do not fit.
    """
    rank = max(len(left), len(right))
    pairs = zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True)
    sizes = []
    for a, b in pairs:
        if a != b and 1 not in (a, b):
            raise UnknownWorkError
        sizes.append(b if a == 1 else a)
    return tuple(sizes)


def count_bytes(shape: Shape, scalar_type: ScalarType | None) -> int | None:
    """Return the bytes of a tensor, or None if its type is unknown."""
    return None if scalar_type is None else multiply(shape) * scalar_type.byte_count


def sum_sizes(*sizes: int | None) -> int | None:
    """Return the sum of numbers of bytes, or None if one of them is unknown."""
    known = [n for n in sizes if n is not None]
    return sum(known) if len(known) == len(sizes) else None


def add_bytes(*tensors: Tensor | None) -> int | None:
    """Return the bytes of tensors together, or None if those of one are unknown. None is no tensor."""
    return sum_sizes(*(tensor.byte_count for tensor in tensors if tensor is not None))


def multiplied_type(*tensors: Tensor | None) -> str | None:
    """Return the type in which an op multiplies the elements of tensors, or None if it is unknown.

    If a tensor of weights has a narrow type and the other one does not, the weights are converted first.
    """
    names = [t.type.name for t in tensors if t is not None and t.type is not None]
    if not names or len(names) < len([t for t in tensors if t is not None]):
        return None
    types = [_MULTIPLIED.get(name) for name in names]
    if None in types:
        return None
    return max(types, key=lambda name: _WIDTHS[str(name)])


_MULTIPLIED = {name: name for name in ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8", "int32", "int64")}
_MULTIPLIED |= {"uint8": "int8", "qint8": "int8", "quint8": "int8"}
_MULTIPLIED |= {"complex32": "fp16", "complex64": "fp32", "complex128": "fp64"}
_WIDTHS = {"fp4": 0, "int8": 1, "int32": 2, "int64": 3, "fp8": 4, "fp16": 5, "bf16": 6, "tf32": 7, "fp32": 8, "fp64": 9}
