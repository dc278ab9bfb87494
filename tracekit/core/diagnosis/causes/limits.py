"""Find causes in what limits single kernels: computing in FP64, and too few warps on the multiprocessors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracekit.core.diagnosis.causes.kernels import find_sm_count
from tracekit.core.diagnosis.cures import Cure
from tracekit.core.diagnosis.kinds import COMPUTE_CLASSES, NUMBERS
from tracekit.core.diagnosis.measured import LIBRARY_CLASSES

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.core.diagnosis.inspection import Inspection

    Floats = npt.NDArray[np.float64]
    Codes = npt.NDArray[np.int8]
    from collections.abc import Iterator

WARP_THREADS: Final = 32
MAX_BLOCKS_PER_SM: Final = 32
"""Blocks that a multiprocessor can hold. Some GPUs hold 16 or 24, which only matters for blocks of one or two warps."""
_REGISTERS_UNIT: Final = 256
"""Registers are allocated to warps in units of this size."""
_RESERVED_SHARED_BYTES: Final = 1024
"""Shared memory that the CUDA runtime reserves in each block from compute capability 8.0 on."""
_DEFAULTS: Final = {
    "max_warps_per_sm": 64,
    "max_registers_per_sm": 65_536,
    "max_shared_memory_per_sm_bytes": 228 * 1024,
}
"""Limits of data center GPUs, for captures that do not contain those of theirs."""

FEW_BLOCKS, BLOCK_SIZE, REGISTERS, SHARED_MEMORY = range(4)
"""What limits the number of active warps of a kernel: the blocks of its grid, or a resource of the multiprocessors."""
_MIN_MEASURED_SHARE = 0.01
_CONVERSION = NUMBERS["layout_conversion"]
_FP64_PRODUCTS = r"(?i)dgemm|d884|d1688|d16816|f64f64|gemm_f64|_ddd_|cijk_\w+_db_|dgemv"
_FP64_OTHERS = r"\bdouble\b"
_LIBRARIES = (
    r"(?i)at::native|at_cuda|cub::|cudnn|cublas|cutlass|nvjet|xmma|flash|fmha|thrust|nccl|cijk_|rocblas|hipblas|miopen|ck::|aiter|eigen|tensorflow|gemv|cusparse"
    r"|cusolver|cufft|dot_kernel|splitk|triton_(poi|red|per)"
)
_LONG_NS = 10_000
_MIN_SHARE = 0.05
_FEW_WARPS, _VERY_FEW_WARPS = 0.125, 0.0625
"""Shares of the warps of a GPU up to which more warps may, and very likely do, make a kernel faster."""
_ENOUGH_WARPS = 0.25
"""Share of the warps of a GPU from which on more of them rarely make a kernel faster."""


def find_active_warps(inspection: Inspection) -> tuple[Floats, Codes]:
    """Compute the share of all warps of the GPU that each kernel keeps active at most, and what limits it.

    Returns:
        The share of each operation, from 0 to 1, or NaN if its launch configuration was not recorded; and one of
        ``FEW_BLOCKS``, ``BLOCK_SIZE``, ``REGISTERS`` and ``SHARED_MEMORY``.
    """
    sizes, sms = inspection.model.sizes, find_sm_count(inspection)
    devices = inspection.model.events.frames("devices").select(list(_DEFAULTS)).collect()
    known = {name: devices[name].drop_nulls() for name in _DEFAULTS}
    limits = {name: int(values[0]) if len(values) and values[0] else _DEFAULTS[name] for name, values in known.items()}
    blocks, threads, registers, shared = (
        sizes[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
        for name in ("blocks", "threads", "registers", "shared_bytes")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        warps = np.ceil(threads / WARP_THREADS)
        of_warp = np.ceil(registers * WARP_THREADS / _REGISTERS_UNIT) * _REGISTERS_UNIT
        resident = np.stack(
            [
                np.minimum(limits["max_warps_per_sm"] // warps, MAX_BLOCKS_PER_SM),
                limits["max_registers_per_sm"] // (of_warp * warps),
                limits["max_shared_memory_per_sm_bytes"] // (shared + _RESERVED_SHARED_BYTES),
            ]
        )
        resident = np.where(np.isnan(resident), np.inf, resident)
        per_sm = np.maximum(resident.min(axis=0), 1)
        active = np.minimum(blocks, per_sm * sms) * warps / (sms * limits["max_warps_per_sm"])
        is_small = blocks < per_sm * sms
    reason = np.where(is_small, FEW_BLOCKS, 1 + resident.argmin(axis=0)).astype(np.int8)
    return np.where((blocks > 0) & (threads > 0), np.minimum(active, 1.0), np.nan), reason


def strided_access(inspection: Inspection) -> Iterator[Cure]:
    """Find kernels whose warps touch more memory than they need."""
    rows = inspection.find_measured("memory_layout") & (inspection.model.operations.cls != _CONVERSION)
    yield from _create_cure(
        inspection, rows, "memory_layout", "strided_access", "accesses memory with a stride|access memory with a stride"
    )


def few_warps(inspection: Inspection) -> Iterator[Cure]:
    """Find kernels that do not fill their warps, or wait with few warps."""
    if inspection.measured is None:
        return
    own = inspection.find_measured("low_occupancy")
    partial, certain = inspection.measured.partial_warps, inspection.measured.is_certain
    yield from _create_cure(
        inspection,
        own & certain & partial,
        "low_occupancy",
        "partial_warps",
        "does not fill its warps|do not fill their warps",
    )
    text = "waits with less than half of the possible warps|wait with less than half of the possible warps"
    for cure in _create_cure(inspection, own & ~certain, "low_occupancy", "few_active_warps", text):
        cure.is_unsure = True
        cure.missing = "the effect of more warps: measure the kernels with other block sizes by ncu --set full"
        yield cure


def _create_cure(
    inspection: Inspection, mask: np.typing.NDArray[np.bool_], cause: str, change: str, text: str
) -> Iterator[Cure]:
    """Yield the cure of measured operations that take at least 1 % of the time."""
    model, ops = inspection.model, inspection.model.operations
    rows = np.flatnonzero(mask)
    total = float(ops.duration[rows].sum())
    if not len(rows) or total < _MIN_MEASURED_SHARE * model.duration_ns:
        return
    cure = Cure(cause, inspection.find_main_label(ops.item[rows], ops.duration[rows]), change=change)
    cure.operations = [inspection.claim_measured(rows)]
    cure.example = inspection.show_operation(rows)
    cure.evidence = (
        f"{inspection.describe_count(len(rows), 'kernel|kernels', text)}, for {inspection.describe_time(total)}"
        f"{inspection.cite_measurements(rows)}"
    )
    yield cure


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
