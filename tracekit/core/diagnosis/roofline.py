"""Compare the rates of kernels with the peak rates of the GPU, as far as the shapes of operations were recorded.

The work of an operation follows from the shapes of its inputs: the multiplications and additions of a matrix product,
or the bytes that other operations read and write at least. PyTorch records shapes in its own traces
(``record_shapes=True``) and in the names of ranges (``emit_nvtx(record_shapes=True)``).

Peak rates of GPUs, from the public data sheets of their makers: dense rates, without sparsity.

Captures of PyTorch contain no peak rates, and those of Nsight Systems only the bandwidth of the memory.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core import intervals
from tracekit.core.diagnosis import ledger
from tracekit.core.diagnosis.answer import ColdSteps, LedgerPart, StepFigures
from tracekit.core.diagnosis.model import Model, build_model
from tracekit.core.series import decode_categories_expr
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tracekit.core.diagnosis.events import Events, Step
    from tracekit.core.diagnosis.ranks import RankPlan
    from tracekit.core.rollup import Rollup

    Mask = npt.NDArray[np.bool_]
    Floats = npt.NDArray[np.float64]
_PLACES = 3
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


class Peaks(NamedTuple):
    """Peak rates of a GPU.

    Attributes:
        fp32: Rate of FP32 without Tensor Cores, in TFLOP/s.
        tf32: Rate of FP32 inputs on Tensor Cores, in TFLOP/s. It equals ``fp32`` if there is no such mode.
        half: Rate of BF16, or of FP16 on GPUs without BF16, in TFLOP/s.
        bandwidth: Bandwidth of the memory, in GB/s.
        sm_count: Number of streaming multiprocessors.
        fp64: Rate of FP64 in TFLOP/s, on Tensor Cores if there is such a mode.
    """

    fp32: float
    tf32: float
    half: float
    bandwidth: float
    sm_count: int
    fp64: float


_PEAKS = (
    ("B200", Peaks(75, 1100, 2250, 8000, 148, 37)),
    ("GH200", Peaks(67, 494, 989, 4000, 132, 67)),
    ("H200", Peaks(67, 494, 989, 4800, 132, 67)),
    ("H100 PCIe", Peaks(51, 378, 756, 2000, 114, 51)),
    ("H100 NVL", Peaks(60, 417, 835, 3900, 132, 60)),
    ("H100", Peaks(67, 494, 989, 3350, 132, 67)),
    ("H800", Peaks(67, 494, 989, 3350, 132, 1)),
    ("A100", Peaks(19.5, 156, 312, 2039, 108, 19.5)),
    ("A800", Peaks(19.5, 156, 312, 2039, 108, 9.7)),
    ("A40", Peaks(37.4, 74.8, 149.7, 696, 84, 0.6)),
    ("A30", Peaks(10.3, 82, 165, 933, 56, 10.3)),
    ("A10", Peaks(31.2, 62.5, 125, 600, 72, 0.5)),
    ("L40", Peaks(90.5, 181, 362, 864, 142, 1.4)),
    ("L4", Peaks(30.3, 60, 121, 300, 58, 0.5)),
    ("RTX 6000 Ada", Peaks(91.1, 182, 364, 960, 142, 1.4)),
    ("RTX A6000", Peaks(38.7, 77.4, 154.8, 768, 84, 0.6)),
    ("RTX 5090", Peaks(104.8, 104.8, 209.5, 1792, 170, 1.6)),
    ("RTX 4090", Peaks(82.6, 82.6, 165.2, 1008, 128, 1.3)),
    ("RTX 3090", Peaks(35.6, 35.6, 71, 936, 82, 0.6)),
    ("V100", Peaks(15.7, 15.7, 125, 900, 80, 7.8)),
    ("T4", Peaks(8.1, 8.1, 65, 320, 40, 0.25)),
)
"""Peak rates by a part of the name of the device. The first part that matches decides."""

DEFAULT = Peaks(67, 494, 989, 2000, 132, 67)


def find_peaks(name: str | None) -> Peaks | None:
    """Return the peak rates of a device, given its name, or None if they are unknown."""
    text = (name or "").upper()
    return next((peaks for part, peaks in _PEAKS if re.search(rf"(?<![A-Z0-9]){part.upper()}(?![0-9])", text)), None)


class Basis(NamedTuple):
    """The steady steps of a process, and how their time is divided."""

    model: Model
    step: StepFigures
    parts: tuple[LedgerPart, ...]
    cold: ColdSteps | None


def select_steady_steps(events: Events) -> tuple[Step, ...]:
    """Return the steps of a process without the warm-up."""
    return tuple(s for s in events.steps if not s.is_cold) or events.steps


def measure_steps(events: Events, rollup: Rollup, plan: RankPlan | None = None) -> Basis:
    """Return the model of the steady steps of a process, and how their time is divided."""
    steady = select_steady_steps(events)
    complete = build_model(events, steady)
    rows = divide_steps(complete, plan)
    durations = np.diff(complete.bounds)
    step = StepFigures(
        name=events.key_op,
        count=len(steady),
        cold=len(events.steps) - len(steady),
        median_ns=int(np.sort(durations)[(len(durations) - 1) // 2]),
        mean_ns=int(durations.sum()) // len(durations),
        total_ns=int(durations.sum()),
        covered=rollup.step_summary.gpu_time_share,
    )
    cold = _describe_cold_steps(events, steady, step.median_ns, plan)
    return Basis(complete, step, build_ledger(rows, step.median_ns), cold)


def divide_steps(model: Model, plan: RankPlan | None) -> pl.DataFrame:
    """Return the parts of the steps of a model, with the waits for other ranks if they are known."""
    if plan is None:
        return ledger.divide_steps(model)
    return ledger.divide_steps(model, plan.find_late_times(model), plan.list_calls_on_cpu())


def build_ledger(rows: pl.DataFrame, step_ns: int) -> tuple[LedgerPart, ...]:
    """Return the parts of all steps, the largest first, given the rows of ``ledger.divide_steps``."""
    totals = rows.group_by("part").agg(pl.col("ns").sum()).sort("ns", "part", descending=[True, False])
    if totals.is_empty():
        return ()
    total = int(totals["ns"].sum())
    exact = [int(ns) * step_ns for ns in totals["ns"]]
    whole = [value // total for value in exact]
    missing = step_ns - sum(whole)
    by_rest = sorted(range(len(exact)), key=lambda i: (-(exact[i] % total), i))
    for i in by_rest[:missing]:
        whole[i] += 1
    places = rows.group_by("part", "label").agg(pl.col("ns").sum()).sort("ns", "label", descending=[True, False])
    listed: dict[str, list[tuple[str, int]]] = {}
    for part, label, ns in places.iter_rows():
        listed.setdefault(str(part), []).append((label, int(ns)))
    return tuple(
        LedgerPart(part, ledger.PARTS[part], ns, int(all_ns) / total, int(all_ns), tuple(listed[part][:_PLACES]))
        for (part, all_ns), ns in zip(totals.iter_rows(), whole, strict=True)
    )


def _describe_cold_steps(
    events: Events, steady: Sequence[Step], median_ns: int, plan: RankPlan | None
) -> ColdSteps | None:
    """Return the ledger of the warm-up, or None if there is none."""
    cold = tuple(s for s in events.steps if s.is_cold and s.start_ns < steady[0].start_ns)
    if not cold:
        return None
    model = build_model(events, cold)
    rows = divide_steps(model, plan)
    total = model.duration_ns
    excess = max(0, total - len(cold) * median_ns)
    return ColdSteps(len(cold), total, excess, build_ledger(rows, total), model.start_ns, model.end_ns)


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
    peak = np.where(is_half, peaks.half, np.where(model.find_class("matmul"), peaks.tf32, peaks.fp32)) * 1e12
    for own, work, rates in ((is_product, flop, peak), (model.find_class(*MOVING), moved, peaks.bandwidth * 1e9)):
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
