"""Tell the makers of GPUs from their names, and name GPUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

VENDORS = "device_vendors"
"""Name of the entry of ``capture_info`` with the makers of the GPUs, as the profiler names them."""
ACTIVITY = "profiler_activity"
"""Name of the entry of ``capture_info`` with the name in ``ProfilerActivity`` of devices that are not CUDA devices."""
NVIDIA = "NVIDIA"
MAKERS = {
    "AMD": r"\bAMD\b|Instinct|Radeon|\bgfx[0-9]|\bMI[0-9]{2,3}[AX]?\b",
    "Google": r"\bTPU\b|Google",
    "Huawei": r"Ascend|Huawei",
    "Intel": r"Intel|Gaudi|\bHL-[0-9]|Data Center GPU Max",
    "Meta": r"\bMTIA\b|\bMeta\b",
    "Moore Threads": r"\bMTT\b|Moore Threads",
    NVIDIA: r"(?i:NVIDIA)|Tesla|GeForce|Quadro|TITAN|\bRTX\b|\bG?[ABH][0-9]{2,3}S?\b|\b[VLPT][0-9]{1,3}S?\b",
}
"""Regular expression for the product names and chips of the GPUs of each maker, and for its own name."""


def list_makers(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the makers of GPUs with the given names. It is empty if none of the names is known."""
    text = "\n".join(texts)
    return tuple(maker for maker, pattern in MAKERS.items() if re.search(pattern, text))


def list_makers_of_capture(info: Mapping[str, str], gpus: Iterable[Mapping[str, str | None]]) -> tuple[str, ...]:
    """Return the makers of the GPUs of a capture. It is empty if they are unknown.

    Args:
        info: The entries of ``capture_info``.
        gpus: The ``name`` and the ``chip`` of each GPU.
    """
    named = (gpu[column] for gpu in gpus for column in ("name", "chip"))
    return list_makers(text for text in (info.get(VENDORS), *named) if text)


def is_without_cuda(makers: Collection[str]) -> bool:
    """Return whether GPUs of these makers run no CUDA. Unknown makers may run CUDA."""
    return bool(makers) and NVIDIA not in makers


def name_gpu(name: str | None, chip: str | None, makers: Iterable[str]) -> str:
    """Return the name of a GPU, or its chip, or its maker if it has no name, such as ``unknown AMD GPU``.

    Args:
        name: Name of the GPU.
        chip: Name of its chip.
        makers: The makers of all GPUs of the capture.
    """
    known = list(makers)
    return name or chip or (f"unknown {known[0]} GPU" if len(known) == 1 else "unknown GPU")
