"""Convert the units that Nsight Compute prints into base units, and derive the base unit of a metric from its name.

Base units are ``ns``, ``byte``, ``hz``, ``%`` and counts, such as ``inst``, ``sector`` and ``cycle``. Rates are per
second (``byte/s``), cycle, block or thread.

Reports contain values in base units, but not the names of the units. CSV files contain values in base units or scaled
units, with the names of the units. Versions before 2023.2 print longer names of time units, such as ``usecond``.
"""

from __future__ import annotations

import functools
import re

_PREFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_PREFIXED_UNIT = re.compile(r"([KMGTPE])(byte|hz|cycle|inst|sector|warp|thread|request|block)")
_TIME_UNITS = {"ns": 0, "us": 3, "ms": 6, "s": 9, "nsecond": 0, "usecond": 3, "msecond": 6, "second": 9}


@functools.cache
def find_base_unit_and_exponent(unit: str) -> tuple[str | None, int]:
    """Return the base unit of a printed unit, and the exponent of the power of ten that converts values to it.

    Args:
        unit: The unit as printed, such as ``Kbyte`` or ``cycle/nsecond``.

    Returns:
        A tuple of the base unit, which is None for values without a unit, and the exponent of the power of ten by which
        values must be multiplied.
    """
    if unit in _TIME_UNITS:
        return "ns", _TIME_UNITS[unit]
    numerator, slash, denominator = unit.partition("/")
    numerator, power = _split_prefix(numerator)
    if denominator in _TIME_UNITS:
        return ("hz" if numerator == "cycle" else f"{numerator}/s"), power + 9 - _TIME_UNITS[denominator]
    denominator, denominator_power = _split_prefix(denominator)  # %/Kbyte: ncu divides the value too
    return (f"{numerator}{slash}{denominator}" or None), power + denominator_power


def _split_prefix(unit: str) -> tuple[str, int]:
    """Return a unit without its prefix, and the exponent of the power of ten for which the prefix stands."""
    match = _PREFIXED_UNIT.fullmatch(unit)
    return (match[2], _PREFIXES[match[1]]) if match else (unit, 0)


_SAMPLING_PREFIX = re.compile(r"^.*\.Triage\w+\.")
"""The prefix of the name of a sampled metric, such as ``SM.TriageA.`` or ``FE_B.TriageCompute.``."""
_UNIT_EXCEPTIONS = {
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
_UNITS_BY_NAME: tuple[tuple[str, str | None], ...] = (
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
_COUNTED_UNITS: tuple[tuple[str, str], ...] = (
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
def find_unit_of_metric(metric: str) -> str | None:
    """Return the base unit of a metric, or None if the metric has no unit.

    Args:
        metric: Name of the metric, such as ``dram__bytes.sum.per_second``.
    """
    name = _SAMPLING_PREFIX.sub("", metric).removeprefix("pmsampling:")
    if name in _UNIT_EXCEPTIONS:
        return _UNIT_EXCEPTIONS[name]
    for pattern, unit in _UNITS_BY_NAME:
        if re.search(pattern, name):
            return unit
    stem, _, suffix = name.partition(".")
    counted = next((unit for pattern, unit in _COUNTED_UNITS if re.search(pattern, stem)), None)
    if counted is None or not re.search(r"per_second|per_cycle|peak_sustained$", suffix):
        return counted
    if "per_second" in suffix:
        return "hz" if counted == "cycle" else f"{counted}/s"
    return {"warp": "warp", "cycle": None}.get(counted, f"{counted}/cycle")
