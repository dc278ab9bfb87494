"""Find causes in what limits single kernels: computing in FP64, and too few warps on the multiprocessors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.core.diagnosis.causes.occupancy import FEW_BLOCKS, find_active_warps
from tracekit.core.diagnosis.cures import Cure
from tracekit.core.diagnosis.kinds import COMPUTE_CLASSES
from tracekit.core.diagnosis.measured import LIBRARY_CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.diagnosis.inspection import Inspection

_FP64_PRODUCTS = r"(?i)dgemm|d884|d1688|d16816|f64f64|gemm_f64|_ddd_|cijk_\w+_db_|dgemv"
_FP64_OTHERS = r"\bdouble\b"
_LIBRARIES = (
    r"(?i)at::native|at_cuda|cub::|cudnn|cublas|cutlass|nvjet|xmma|flash|fmha|thrust|nccl|eigen|tensorflow|gemv|cusparse"
    r"|cusolver|cufft|dot_kernel|splitk|triton_(poi|red|per)"
)
_LONG_NS = 10_000
_MIN_SHARE = 0.05
_FEW_WARPS, _VERY_FEW_WARPS = 0.125, 0.0625
"""Shares of the warps of a GPU up to which more warps may, and very likely do, make a kernel faster."""
_ENOUGH_WARPS = 0.25
"""Share of the warps of a GPU from which on more of them rarely make a kernel faster."""


def double_precision(inspection: Inspection) -> Iterator[Cure]:
    """Find matrix products in FP64, which are faster in FP32 or TF32."""
    model, ops, peak = inspection.model, inspection.model.operations, inspection.peaks
    is_free = inspection.claims.free_operations & (ops.duration > _LONG_NS)
    products = np.flatnonzero(model.match_names(_FP64_PRODUCTS) & is_free)
    if ops.duration[products].sum() <= _MIN_SHARE * model.duration_ns:
        return
    rate = 0.76 * peak.fp64
    shares = (0.25, 0.4, 0.6)
    low, likely, high = (min(1.0, rate / max(peak.fp32, share * peak.tf32)) for share in shares)
    cure = Cure("precision", inspection.find_main_label(ops.item[products], ops.duration[products]))
    cure.change = "double_precision"
    cure.example = inspection.show_operation(products)
    cure.operations = [inspection.claims.scale_operations(products, (low, likely, high), (8_000, 4_000, 2_500))]
    others = np.flatnonzero(model.match_names(_FP64_OTHERS) & is_free & inspection.claims.free_operations)
    duration = ops.duration[others]
    cure.shared = [(others, (duration, (0.6 * duration).astype(np.int64), duration // 2))]
    count = inspection.describe_count(len(products), "matrix product|matrix products", "computes|compute")
    time = inspection.describe_time(float(ops.duration[products].sum()))
    cure.evidence = f"{count} in FP64, for {time}"
    yield cure


def few_active_warps(inspection: Inspection) -> Iterator[Cure]:
    """Find long kernels of the program that keep few warps of the GPU active.

    Small grids of other kernels than reductions are left to ``low_occupancy``.
    """
    model, ops = inspection.model, inspection.model.operations
    share, reason = find_active_warps(inspection)
    is_own = model.find_class(*COMPUTE_CLASSES) & ~model.find_class(*LIBRARY_CLASSES) & ~model.match_names(_LIBRARIES)
    is_own &= inspection.claims.free_operations & (ops.duration > _LONG_NS) & (share <= _FEW_WARPS)
    is_own &= ~inspection.refutes("low_occupancy")
    is_own &= (reason != FEW_BLOCKS) | model.find_class("reduction")
    rows = np.flatnonzero(is_own)
    if ops.duration[rows].sum() <= _MIN_SHARE * model.duration_ns:
        return
    time = ops.duration[rows]
    cure = Cure("low_occupancy", inspection.find_main_label(ops.item[rows], time))
    rows = inspection.claims.take_operations(rows)
    active, duration = share[rows], ops.duration[rows]
    main = int(np.bincount(reason[rows], weights=duration).argmax())
    cure.change = "" if main == FEW_BLOCKS else "few_active_warps"
    cure.is_unsure = float(np.average(active, weights=duration)) > _VERY_FEW_WARPS
    likely = np.clip(active / _ENOUGH_WARPS, 0.1 if main == FEW_BLOCKS else 0.2, 1)
    low, high = 0.5 + likely / 2, likely / 3
    stays = [np.minimum(duration, (duration * s).astype(np.int64)) for s in (low, likely, high)]
    cure.operations = [(rows, (stays[0], stays[1], stays[2]))]
    cure.example = inspection.show_operation(rows)
    if cure.is_unsure:
        cure.missing = "the throughput of the memory (ncu --set full), which shows whether more warps help"
    reasons = ("the number of blocks", "the size of blocks", "registers", "shared memory")
    count = inspection.describe_count(len(rows), "kernel|kernels", "keeps|keep")
    cure.evidence = (
        f"{count} at most {float(np.median(active)):.1%} of the warps of the GPU active, limited by {reasons[main]}, "
        f"for {inspection.describe_time(float(duration.sum()))}"
    )
    yield cure
