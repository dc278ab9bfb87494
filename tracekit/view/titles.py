"""Convert between the names of columns and their titles in tables."""

from __future__ import annotations

import re


def convert_title_to_name(title: str) -> str:
    """Convert a column title to a column name: ``Total GPU Time (ns)`` becomes ``total_gpu_time_ns``."""
    name = title.replace("%", "percent").replace("#", "number").lower()
    return re.sub(r"[^a-z0-9]+", "_", name).strip("_") or "column"


def convert_name_to_title(name: str) -> str:
    """Convert a column name to a title: ``gpu_time_ns`` becomes ``GPU time (ns)``."""
    base, unit = name, ""
    for suffix, text in (("_ns", "ns"), ("_bytes", "bytes"), ("_percent", "%")):
        if name.endswith(suffix) and len(name) > len(suffix):
            base, unit = name.removesuffix(suffix), f" ({text})"
    words = [_ABBREVIATIONS.get(word, word) for word in base.split("_")]
    text = " ".join(words) + unit
    return text[0].upper() + text[1:]


_ABBREVIATIONS = {
    word.lower(): word
    for word in (
        "ID",
        "GPU",
        "CPU",
        "API",
        "SM",
        "NVTX",
        "UTC",
        "CUDA",
        "MPI",
        "DRAM",
        "L1",
        "L2",
        "UUID",
        "OSRT",
        "JIT",
    )
} | {"cpus": "CPUs", "id": "ID"}
