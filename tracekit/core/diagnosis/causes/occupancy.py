"""Compute from launch configurations how many warps kernels can keep active at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracekit.core.diagnosis.causes.kernels import find_sm_count

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.core.diagnosis.inspection import Inspection

    Floats = npt.NDArray[np.float64]
    Codes = npt.NDArray[np.int8]

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
