"""Build the table of devices from the agents of HSA, which are the processors and GPUs of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GPU_TYPE = 2
"""Type of the agents that are GPUs in the records of rocprofiler-sdk."""
_MAX_INT32, _MAX_INT64 = (1 << 31) - 1, (1 << 63) - 1
_BYTES_PER_KIB, _HERTZ_PER_MHZ = 1024, 1_000_000
_MAJOR, _MINOR = 10_000, 100
"""Factors of the parts of a version of a graphics target, such as 90402 for gfx942."""
_SCHEMA = {
    "device_id": pl.Int64,
    "name": pl.String,
    "chip": pl.String,
    "compute_major": pl.Int64,
    "compute_minor": pl.Int64,
    "sm_count": pl.Int64,
    "clock_rate_hz": pl.Int64,
    "memory_bytes": pl.Int64,
    "threads_per_warp": pl.Int64,
    "max_warps_per_sm": pl.Int64,
    "max_shared_memory_per_sm_bytes": pl.Int64,
    "bus_location": pl.String,
}


def build_devices(agents: Iterable[tuple[int, Mapping[str, Any]]]) -> pl.DataFrame:
    """Return one row of ``devices`` per GPU.

    Args:
        agents: The number of each GPU, and the values of its agent by their names in ``rocprofiler_agent_t``. Values
            that are missing or no valid number become null.
    """
    rows: dict[int, dict[str, Any]] = {}
    for device, agent in agents:
        rows.setdefault(device, {"device_id": device, **_describe_agent(agent)})
    return pl.DataFrame([rows[device] for device in sorted(rows)], _SCHEMA)


def _describe_agent(agent: Mapping[str, Any]) -> dict[str, Any]:
    version = _get_number(agent, "gfx_target_version")
    chip = _get_text(agent, "name")
    lds, clock = _get_number(agent, "lds_size_in_kb"), _get_number(agent, "max_engine_clk_fcompute")
    return {
        "name": _get_text(agent, "product_name") or chip,
        "chip": chip,
        "compute_major": None if version is None else version // _MAJOR,
        "compute_minor": None if version is None else version % _MAJOR // _MINOR,
        "sm_count": _get_number(agent, "cu_count"),
        "clock_rate_hz": clock and clock * _HERTZ_PER_MHZ,
        "memory_bytes": _sum_sizes(agent.get("mem_banks"), "size_in_bytes") or _get_number(agent, "local_mem_size"),
        "threads_per_warp": _get_number(agent, "wave_front_size"),
        "max_warps_per_sm": _get_number(agent, "max_waves_per_cu"),
        "max_shared_memory_per_sm_bytes": lds and lds * _BYTES_PER_KIB,
        "bus_location": _format_bus_location(agent),
    }


def _get_text(agent: Mapping[str, Any], key: str) -> str | None:
    value = agent.get(key)
    return value if isinstance(value, str) and value else None


def _get_number(agent: Mapping[str, Any], key: str, largest: int = _MAX_INT32) -> int | None:
    """Return a positive number of an agent. The drivers write 0 for what they do not know."""
    value = agent.get(key)
    return value if isinstance(value, int) and 0 < value <= largest else None


def _sum_sizes(parts: Any, key: str) -> int | None:
    if not isinstance(parts, list):
        return None
    sizes = [_get_number(part, key, _MAX_INT64) for part in parts if isinstance(part, dict)]
    total = sum(size for size in sizes if size is not None)
    return total if 0 < total <= _MAX_INT64 else None


def _format_bus_location(agent: Mapping[str, Any]) -> str | None:
    """Return the PCI address, which is stored as bus (8 bits), device (5 bits) and function (3 bits)."""
    location, domain = _get_number(agent, "location_id"), agent.get("domain")
    if location is None or not isinstance(domain, int) or not 0 <= domain <= _MAX_INT32:
        return None
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
