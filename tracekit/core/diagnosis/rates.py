"""Compare the rates of kernels with the peak rates of the GPU, as far as the shapes of operations were recorded.

The work of an operation follows from the shapes of its inputs: the multiplications and additions of a matrix product,
or the bytes that other operations read and write at least. PyTorch records shapes in its own traces
(``record_shapes=True``) and in the names of ranges (``emit_nvtx(record_shapes=True)``).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core import intervals
from tracekit.core.series import decode_categories_expr
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.core.diagnosis.model import Model
    from tracekit.core.work.peaks import Peaks

    Mask = npt.NDArray[np.bool_]
    Floats = npt.NDArray[np.float64]
AT_ROOFLINE = 0.6
"""Share of a peak rate from which on a kernel is at the roofline. Good libraries reach 60 % to 80 %."""
MISSING = "shapes (record_shapes=True in PyTorch's profiler or in emit_nvtx)"
PRODUCTS = ("matmul", "matmul_fp32")
MOVING = (
    *("pointwise", "cast_or_copy", "normalization", "reduction", "softmax", "embedding", "optimizer", "pooling"),
    *("matrix_vector", "layout_conversion"),
)
_OPERANDS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2)}
_SHAPES, _SIZES, _TYPES = r'"Input Dims": *(\[[^"]*\])', r", sizes = (\[[\[\]\d, ]*\])", r'"Input type": *\[([^\]]*)\]'
_BYTES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "double": 8, "int": 4, "long int": 8, "bool": 1}
_REDUCTIONS = r"^(sum|mean|norm|max|min|argmax|argmin|amax|amin|any|all|linalg_vector_norm|_foreach_norm)$"
_HALF = r"(?i)bf16|f16|half|bfloat16|s16816|hmma|_h_"
_MAX_SHAPE_CHARS = 1000
_SCHEMA = {"shapes": pl.String, "types": pl.String, "name": pl.String}


class Rates(NamedTuple):
    """Which operations of a model have known work, and which of them are at the roofline.

    Attributes:
        is_known: Whether the work of each operation is known.
        is_at_roofline: Whether each operation runs at 60 % of the peak rate or more.
    """

    is_known: Mask
    is_at_roofline: Mask


def compare_with_peaks(model: Model, peaks: Peaks | None) -> Rates:
    """Compare the rates of the kernels of a model with the peak rates of the GPU.

    The kernels that one range launches share its work. If the peak rates or the shapes are unknown, no work is known.
    """
    ops = model.operations
    known, at_roofline = np.zeros((2, len(ops.start)), np.bool_)
    ranges = _read_ranges_with_shapes(model)
    if peaks is None or ranges.is_empty():
        return Rates(known, at_roofline)
    range_row = _find_ranges(model, ranges)
    flop, moved = _compute_work(ranges)
    is_product, is_half = model.find_class(*PRODUCTS), model.match_names(_HALF)
    peak = np.where(is_half, peaks.half, np.where(model.find_class("matmul"), peaks.tf32, peaks.fp32))
    for own, work, rates in ((is_product, flop, peak), (model.find_class(*MOVING), moved, peaks.bandwidth or math.inf)):
        rows = np.flatnonzero(own & (range_row >= 0))
        rows = rows[work[range_row[rows]] > 0]
        spent = np.bincount(range_row[rows], weights=ops.duration[rows], minlength=len(work)) / 1e9
        rate = work[range_row[rows]] / np.maximum(spent[range_row[rows]], 1e-9)
        known[rows] = True
        at_roofline[rows] = rate >= AT_ROOFLINE * np.broadcast_to(rates, len(ops.start))[rows]
    return Rates(known, at_roofline)


def _read_ranges_with_shapes(model: Model) -> pl.DataFrame:
    """Return the ranges of operations: ``thread_id``, ``start_ns``, ``end_ns``, ``name``, ``shapes``, ``types``."""
    events = model.events
    text = decode_categories_expr(pl.col("name"))
    rows = events.frames("nvtx_ranges").filter(
        pl.col("process_id").eq_missing(pl.lit(events.process_id, pl.Int64)) & (pl.col("end_ns") > pl.col("start_ns"))
    )
    named = rows.select("thread_id", "start_ns", "end_ns", "payload_text", name=text).filter(
        pl.col("name").str.starts_with("aten::")
    )
    shapes = pl.coalesce(pl.col("payload_text").str.extract(_SHAPES), pl.col("name").str.extract(_SIZES))
    return (
        named.with_columns(
            shapes=pl.when(shapes.str.len_chars() <= _MAX_SHAPE_CHARS).then(shapes),
            types=pl.col("payload_text").str.extract(_TYPES),
            name=pl.col("name").str.extract(r"^aten::(\w+)"),
        )
        .drop("payload_text")
        .collect()
    )


def _find_ranges(model: Model, ranges: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Return the row of the innermost range in which each operation was launched, or -1."""
    events, ops = model.events, model.operations
    call = events.operations["call"].gather(create_series(ops.row))
    times = events.calls.select("thread_id", "start_ns").select(pl.all().gather(call))
    index = intervals.NestingIndex.from_intervals(ranges.select("thread_id", "start_ns", "end_ns"), by=["thread_id"])
    return index.find_innermost(times, "start_ns").cast(pl.Int64).fill_null(-1).to_numpy()


def _compute_work(ranges: pl.DataFrame) -> tuple[Floats, Floats]:
    """Return the floating-point operations and the bytes of each range, or 0 if they are unknown."""
    distinct = ranges.select(pl.col(c).fill_null("") for c in _SCHEMA).unique()
    work = [compute_work(*row) for row in distinct.select("name", "shapes", "types").iter_rows()]
    table = distinct.with_columns(flop=pl.Series([w[0] for w in work]), moved=pl.Series([w[1] for w in work]))
    keys = ranges.select(pl.col(c).fill_null("") for c in _SCHEMA)
    joined = keys.join(table, on=list(_SCHEMA), how="left", maintain_order="left")
    return joined["flop"].to_numpy(), joined["moved"].to_numpy()


def compute_work(name: str, shapes: str, types: str) -> tuple[float, float]:
    """Return the floating-point operations and the bytes of an operation, or 0 if they are unknown.

    Args:
        name: Name of the operation, such as ``mm``.
        shapes: Shapes of its inputs as JSON. Inputs that are no tensors have empty shapes.
        types: Types of its inputs as JSON strings that are separated by commas, or "".
    """
    dims = [[float(n) for n in re.findall(r"\d+", text)] for text in re.findall(r"\[([\d, ]*)\]", shapes)]
    if name in _OPERANDS:
        first, second = (dims[i] if i < len(dims) else [] for i in _OPERANDS[name])
        fits = len(first) == len(second) >= 2 and first[-1] == second[-2]  # noqa: PLR2004 - a matrix has two dimensions
        return (2 * math.prod(first) * second[-1] if fits else 0.0), 0.0
    sizes = [_BYTES.get(t.strip(' "'), 0) for t in types.split(",")] if types else []
    tensors = [math.prod(d) * size for d, size in zip(dims, sizes, strict=False) if d and size]
    if not tensors:
        return 0.0, 0.0
    written = 0.0 if re.match(_REDUCTIONS, name) else max(tensors)
    return 0.0, sum(tensors) + written
