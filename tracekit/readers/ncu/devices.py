"""Compute values of the table ``devices`` from the attributes that Nsight Compute records for each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
