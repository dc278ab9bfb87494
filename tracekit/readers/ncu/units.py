"""Units of Nsight Compute: what a printed unit is worth in base units, and the base unit that a metric's name implies.

Base units are ``ns``, ``byte``, ``hz``, ``%`` and counted things: ``inst``, ``sector``, ``cycle``, … Rates are per
second (``byte/s``), cycle, block or thread. Reports keep values in base units and no units at all; a CSV prints either
base or scaled units, and before 2023.2 time in longer words (``usecond``).
"""

from __future__ import annotations

import functools
import re

_PREFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SCALED = re.compile(r"([KMGTPE])(byte|hz|cycle|inst|sector|warp|thread|request|block)")
_TIMES = {"ns": 0, "us": 3, "ms": 6, "s": 9, "nsecond": 0, "usecond": 3, "msecond": 6, "second": 9}


@functools.cache
def printed(unit: str) -> tuple[str | None, int]:
    """Return what a printed unit is in base units.

    Args:
        unit: As printed, ``Kbyte`` or ``cycle/nsecond``.

    Returns:
        The base unit, None for a plain number, and n: a value printed is to be multiplied by 10**n.
    """
    if unit in _TIMES:
        return "ns", _TIMES[unit]
    above, slash, below = unit.partition("/")
    above, power = _unscaled(above)
    if below in _TIMES:
        return ("hz" if above == "cycle" else f"{above}/s"), power + 9 - _TIMES[below]
    below, more = _unscaled(below)  # %/Kbyte: ncu divides the value too
    return (f"{above}{slash}{below}" or None), power + more


def _unscaled(unit: str) -> tuple[str, int]:
    scaled = _SCALED.fullmatch(unit)
    return (scaled[2], _PREFIXES[scaled[1]]) if scaled else (unit, 0)


_GROUP = re.compile(r"^.*\.Triage\w+\.")
"""What stands before a metric that was sampled: ``SM.TriageA.``, ``FE_B.TriageCompute.``."""
_EXACT = {
    "derived__avg_thread_executed": "thread",
    "derived__avg_thread_executed_true": "thread",
    "derived__avg_thread_unexecuted_true": "thread",
    "derived__derivative_avg_thread_executed_true": "thread",
    "derived__local_spilling_requests": None,
    "derived__memory_l2_theoretical_sectors_global_excessive": "byte",
    "derived__pct_occupancy_per_block_size": "%",
    "derived__pct_occupancy_per_register_count": "%/register",
    "derived__pct_occupancy_per_shared_mem_size": "%/byte",
    "gcc__xbar2gcc_sectors.sum": None,
    "launch__cluster_max_active": "cluster",
    "launch__cluster_max_potential_size": "block",
    "launch__occupancy_cluster_gpu_pct": "%",
    "launch__occupancy_cluster_pct": "%",
    "launch__persisting_l2_cache_size": "byte",
    "launch__registers_per_thread": "register/thread",
    "launch__registers_per_thread_allocated": "register/thread",
    "launch__shared_mem_config_size": "byte",
    "launch__sm_count": "SM",
    "launch__thread_count": "thread",
    "profiler__pmsampler_dropped_samples": "sample",
    "profiler__pmsampler_merged_samples": "sample",
    "sass__inst_executed_register_spilling_mem_local": "byte",
    "sass__inst_executed_register_spilling_mem_shared": "byte",
    "sm__maximum_warps_avg_per_active_cycle": "warp",
    "sm__maximum_warps_per_active_cycle_pct": "%",
    "smsp__maximum_warps_avg_per_active_cycle": "warp",
    "smsp__sass_inst_executed_memdesc_explicit_evict_type": None,
}
_WHOLE: tuple[tuple[str, str | None], ...] = (
    (r"^(device|nvlink|numa|c2clink)__|^group:|^sass__(thread_)?inst_executed(_true)?_per_opcode", None),
    (r"\.pct|_pct(\.|$)|\|pct\|", "%"),
    (r"^breakdown:", None),
    (r"^launch__(block_dim_[xyz]$|occupancy_limit_)", "block"),
    (r"^launch__shared_mem_per_block", "byte/block"),
    (r"^launch__", None),
    (r"^derived__.*_op_.*pred_on_x", "thread"),
    (r"^derived__l1tex__lsu_writeback_bytes", None),
    (r"^derived__lts__lts2xbar_bytes", "byte"),
    (r"threads_divergent|pcsamp_warps_issue_stalled_branch_resolving", "branches"),
    (r"pcsamp_warps_issue_stalled_no_instructions", "inst"),
    (r"passes", "pass"),
    (r"bytes_per_sector.*\.(ratio|max_rate)$", "byte/sector"),
    (r"per_issue_active.*\.(ratio|max_rate)$", "inst"),
    (r"(latency_per_inst|warps.*per_inst_executed).*\.(ratio|max_rate)$", "cycle"),
    (r"latency_issue_stalled.*\.(ratio|max_rate)$", "inst/warp"),
    (r"average_xbar2gpc_sectors|per_inst_executed\.ratio$|l1tex_+t_requests", None),
    (r"^memory_.*_(sectors|wavefronts|requests)", "sectors"),
)
_COUNTED: tuple[tuple[str, str], ...] = (
    (r"time_duration|interval_time$", "ns"),
    (r"_cycles(_|$)|writeback_active|(dcc|icc|imc)_requests", "cycle"),
    (r"_bytes(_|$)|mem_tensor_(reads|writes)", "byte"),
    (r"_sectors(_|$)", "sector"),
    (r"_warps(_|$)", "warp"),
    (r"(^|_)inst(_|$)", "inst"),
    (r"_requests(_|$)", "request"),
    (r"ctas_launched|_as_ctas", "block"),
    (r"_threads_launched(_|$)", "thread"),
)


@functools.cache
def unit_of(metric: str) -> str | None:
    """Return the base unit of a metric, None for a plain number, from its name ``dram__bytes.sum.per_second``."""
    name = _GROUP.sub("", metric).removeprefix("pmsampling:")
    if name in _EXACT:
        return _EXACT[name]
    for pattern, unit in _WHOLE:
        if re.search(pattern, name):
            return unit
    stem, _, suffix = name.partition(".")
    counted = next((unit for pattern, unit in _COUNTED if re.search(pattern, stem)), None)
    if counted is None or not re.search(r"per_second|per_cycle|peak_sustained$", suffix):
        return counted
    if "per_second" in suffix:
        return "hz" if counted == "cycle" else f"{counted}/s"
    return {"warp": "warp", "cycle": None}.get(counted, f"{counted}/cycle")
