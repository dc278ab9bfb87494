"""Convert the units that Nsight Compute prints into base units, and derive the base unit of a metric from its name.

Base units are ``ns``, ``byte``, ``hz``, ``%`` and counts, such as ``inst``, ``sector`` and ``cycle``. Rates are per
second (``byte/s``), cycle, block or thread.

Reports contain values in base units, but not the names of the units. CSV files contain values in base units or scaled
units, with the names of the units. Versions before 2023.2 print longer names of time units, such as ``usecond``.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from tracekit import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping

DURATION = "gpu__time_duration.sum"
COMMAND_LINE = "Command line profiler metrics"
_METRIC_NAME = re.compile(r"[\w.:]*[A-Za-z]__\w+[\w.:]*")
ATTRIBUTE_PREFIX = "device__attribute_"
_INTEGER_COLUMNS = {
    "compute_major": ("compute_capability_major", 1),
    "compute_minor": ("compute_capability_minor", 1),
    "sm_count": ("multiprocessor_count", 1),
    "clock_rate_hz": ("clock_rate", 1000),
    "memory_bytes": ("total_memory", 1),
    "l2_cache_bytes": ("l2_cache_size", 1),
    "threads_per_warp": ("warp_size", 1),
    "max_warps_per_sm": ("max_warps_per_multiprocessor", 1),
    "max_registers_per_sm": ("max_registers_per_multiprocessor", 1),
    "max_shared_memory_per_sm_bytes": ("max_shared_memory_per_multiprocessor", 1),
}
_PREFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_PREFIXED_UNIT = re.compile(r"([KMGTPE])(byte|hz|cycle|inst|sector|warp|thread|request|block)")
_TIME_UNITS = {"ns": 0, "us": 3, "ms": 6, "s": 9, "nsecond": 0, "usecond": 3, "msecond": 6, "second": 9}
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


def find_metric_and_label(section: str | None, printed_text: str) -> tuple[str | None, str | None]:
    """Return the name and the label of a metric, given what Nsight Compute prints for the metric.

    Nsight Compute prints either the name of a metric, such as ``gpu__time_duration.sum``, or the label, such as
    ``Duration``.

    Args:
        section: Display name of the section that contains the metric, or None outside of sections.
        printed_text: The printed name or label.

    Returns:
        A tuple of the name and the label of the metric. The name is None if the printed label is unknown. The label is
        None if the name is printed.
    """
    if section in (None, COMMAND_LINE) or _METRIC_NAME.fullmatch(printed_text):
        return printed_text, None
    return _load_metrics_by_label().get((section, printed_text)), printed_text


def find_section_id(display_name: str | None) -> str | None:
    """Return the identifier of the section with the given display name, or None if the name is unknown."""
    return next((id_ for id_, name in _load_section_ids_and_names() if name == display_name), None)


def find_section_name(identifier: str | None) -> str | None:
    """Return the name that recent versions of ncu display for a section, or None if the identifier is unknown."""
    return next((name for id_, name in _load_section_ids_and_names() if id_ == identifier), None)


@functools.cache
def _load_metrics_by_label() -> dict[tuple[str | None, str], str]:
    return {(section, label): metric for section, label, metric in _read_tsv("labels")}


@functools.cache
def _load_section_ids_and_names() -> tuple[tuple[str, str], ...]:
    return tuple((id_, name) for id_, name in _read_tsv("sections"))


def _read_tsv(name: str) -> list[list[str]]:
    lines = (schemas.FOLDER / "ncu" / f"{name}.tsv").read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines[1:]]


def compute_device_values(attributes: Mapping[str, float | str | None]) -> dict[str, int | str | None]:
    """Compute the values of a row of ``devices`` that are derived from the attributes of the device.

    Args:
        attributes: Numbers or strings in base units, by attribute name without the prefix ``device__attribute_``.

    Returns:
        Values by column name, without the device ids. ``name`` is None if the name is missing or not a string. Any
        other value is None if its attribute is missing, not an integer, or too large for the column.
    """
    name = attributes.get("display_name")
    row: dict[str, int | str | None] = {"name": name if isinstance(name, str) else None}
    for column, (key, factor) in _INTEGER_COLUMNS.items():
        bits = 63 if column.endswith(("_hz", "_bytes")) else 31
        row[column] = _scale_integer(attributes.get(key), factor, 1 << bits)
    return row


def _scale_integer(value: float | str | None, factor: int, limit: int) -> int | None:
    try:
        number = float("nan" if value is None else value)
    except ValueError:
        return None
    return int(number) * factor if number.is_integer() and abs(number) * factor < limit else None


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
