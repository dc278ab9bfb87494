"""Derive the data formats and result shapes of ops whose arguments were recorded.

A format names the dimensions of each tensor, such as ``N,C,H,W;K,C,R,S`` for the image and the filter of a convolution.
The shape of a result is derived from the shapes of the operands and, for a convolution, from stride, padding and
dilation. Stride, padding and dilation are the first, second and third parameters.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit.core.ops.emit_nvtx import to_json
from tracekit.core.series import decode_categories_expr

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Shape = list[int]

_ARGUMENTS = ("op_type", "input_shapes", "parameters")


class Formats(NamedTuple):
    """The names of the dimensions of the operands, the result and the parameters of an op. Unknown names are empty."""

    operands: str = ""
    result: str = ""
    parameters: str = ""


_CONVOLUTIONS = {
    "conv1d": Formats("N,C,W;K,C,S", "N,K,Q", "SW;PW;DW;G"),
    "conv2d": Formats("N,C,H,W;K,C,R,S", "N,K,P,Q", "SH,SW;PH,PW;DH,DW;G"),
    "conv3d": Formats("N,C,D,H,W;K,C,T,R,S", "N,K,V,P,Q", "SD,SH,SW;PD,PH,PW;DD,DH,DW;G"),
}
_PRODUCTS: dict[str, tuple[Formats, tuple[tuple[int, int], ...]]] = {
    "mm": (Formats("N,M;M,P", "N,P"), ((0, 0), (1, 1))),
    "bmm": (Formats("B,N,M;B,M,P", "B,N,P"), ((0, 0), (0, 1), (1, 2))),
    "addmm": (Formats("N,P;N,M;M,P", "N,P"), ((1, 0), (2, 1))),
    "addbmm": (Formats("N,P;N,M;M,P", "N,P"), ((1, 0), (2, 1))),
    "baddbmm": (Formats("B,N,P;B,N,M;B,M,P", "B,N,P"), ((1, 0), (1, 1), (2, 2))),
}
"""Maps each type of matrix product to its formats and the shape of its result.

Each dimension of the result is given by the number of an operand and the number of a dimension of this operand.
"""


def infer_formats_and_output_shapes(instances: pl.DataFrame) -> pl.DataFrame:
    """Infer the data formats and the result shape of each op instance.

    Args:
        instances: The columns ``op_type``, ``input_shapes`` and ``parameters`` (Categorical).

    Returns:
        One row per instance, in the same order: the three columns of ``instances``, and ``data_format``,
        ``output_format``, ``parameters_format`` ("" if unknown) and ``output_shapes`` (JSON, null if it cannot be
        inferred).
    """
    arguments = instances.select(_ARGUMENTS)
    distinct = arguments.unique(maintain_order=True)
    results = [
        _infer_formats_and_json_shapes(*row) for row in distinct.select(decode_categories_expr(pl.all())).iter_rows()
    ]
    schema = {c: pl.Categorical() for c in ("data_format", "output_format", "parameters_format", "output_shapes")}
    lookup = distinct.hstack(pl.DataFrame(results, schema=schema, orient="row"))
    return arguments.join(lookup, on=_ARGUMENTS, how="left", maintain_order="left", nulls_equal=True)


def _infer_formats_and_json_shapes(
    op_type: str, shapes: str | None, parameters: str | None
) -> tuple[str, str, str, str | None]:
    """Infer the data formats of operands, result and parameters of an op, and the result shapes as JSON."""
    operands = [s if isinstance(s, list) else [] for s in _parse_json_list(shapes)]
    formats, result = infer_formats_and_output_shape(op_type, operands, _parse_json_list(parameters))
    return (*formats, to_json([result]) if result else None)


def _parse_json_list(text: str | None) -> list[Any]:
    """Parse a JSON list. Return an empty list if the string is missing, invalid or not a list."""
    try:
        value = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def infer_formats_and_output_shape(
    op_type: str, operands: list[Shape], parameters: Sequence[Any]
) -> tuple[Formats, Shape | None]:
    """Infer the data formats and the result shape of an op. The shape is None if it cannot be inferred.

    Args:
        op_type: Type of the op, such as ``conv2d``.
        operands: Shapes of the operands, in order.
        parameters: The remaining arguments. Each is an object with ``data_type`` ("" if not recorded) and ``value``.
    """
    try:
        if op_type in _CONVOLUTIONS:
            return _CONVOLUTIONS[op_type], _infer_convolution_shape(
                operands, int(op_type[4]), _list_parameter_values(parameters)
            )
        if op_type in _PRODUCTS:
            formats, dimensions = _PRODUCTS[op_type]
            enough = len(operands) > dimensions[-1][0]
            return formats, [operands[i][j] for i, j in dimensions] if enough else None
        product = _PRODUCTS_OF_ANY_RANK.get(op_type)
        return product(operands) if product else (Formats(), None)
    except (IndexError, TypeError):
        return Formats(), None


def _list_parameter_values(parameters: Sequence[Any]) -> list[list[Any]]:
    """Return the list of values of each parameter, in order.

    The list is empty if the parameter has no recorded data type, because its value is then not a number.
    """
    objects = [p if isinstance(p, dict) else {} for p in parameters]
    return [p["value"] if p.get("data_type") and isinstance(p.get("value"), list) else [] for p in objects]


def _infer_convolution_shape(operands: list[Shape], rank: int, parameters: list[list[Any]]) -> Shape | None:
    """Return the shape of the result of a convolution. Missing dimensions count as 1."""
    if len(operands) < 2:  # noqa: PLR2004 - image and filter
        return None
    image, kernel = ((s + [1] * (rank + 2))[: rank + 2] for s in operands[:2])

    def get_parameter_value(index: int, dimension: int, default: int) -> int:
        values = parameters[index] if index < len(parameters) else []
        value = values[dimension] if dimension < len(values) else default
        return value if isinstance(value, int) else default

    def compute_result_size(dimension: int) -> int:
        stride, padding, dilation = (
            get_parameter_value(0, dimension, 1),
            get_parameter_value(1, dimension, 0),
            get_parameter_value(2, dimension, 1),
        )
        return (image[2 + dimension] + 2 * padding - dilation * (kernel[2 + dimension] - 1) - 1) // max(stride, 1) + 1

    return [image[0], kernel[0], *(compute_result_size(d) for d in range(rank))]


def _infer_linear_formats_and_shape(operands: list[Shape]) -> tuple[Formats, Shape | None]:
    """Return the formats and the shape of the result of a linear layer."""
    more = "*," if operands and len(operands[0]) > 2 else ""  # noqa: PLR2004 - a matrix
    formats = Formats(f"N,{more}K;M,K", f"N,{more}M")
    if len(operands) < 2:  # noqa: PLR2004 - input and weight
        return formats, None
    return formats, [*operands[0][: max(1, len(operands[0]) - 1)], operands[1][0]]


def _infer_matmul_formats_and_shape(operands: list[Shape]) -> tuple[Formats, Shape | None]:
    """Return the formats and the shape of the result of a matrix product with broadcasting."""
    left, right = [*operands, [0, 0], [0, 0]][:2]
    rank = max(len(left), len(right))

    def format_batch_dimensions(rank: int) -> str:
        return "*," * (rank - 2)

    names = "N" if len(left) == 1 else "N,M", "P" if len(right) == 1 else "M,P"
    result = "P" if rank == 1 else format_batch_dimensions(rank) + "N,P"
    formats = Formats(
        f"{format_batch_dimensions(len(left))}{names[0]};{format_batch_dimensions(len(right))}{names[1]}", result
    )
    if len(operands) < 2:  # noqa: PLR2004 - both factors
        return formats, None
    if rank == 1:
        return formats, [1]
    outer = left if len(left) >= len(right) else right
    return formats, [*outer[: max(rank - 2, 0)], left[-2] if len(left) > 1 else left[0], right[-1]]


_PRODUCTS_OF_ANY_RANK: dict[str, Callable[[list[Shape]], tuple[Formats, Shape | None]]] = {
    "linear": _infer_linear_formats_and_shape,
    "matmul": _infer_matmul_formats_and_shape,
    "__matmul__": _infer_matmul_formats_and_shape,
}
