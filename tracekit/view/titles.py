"""Convert the titles of columns of reports to names, which URLs and SQL conditions contain."""

from __future__ import annotations

import re


def convert_title_to_name(title: str) -> str:
    """Convert a column title to a column name: ``Total GPU Time (ns)`` becomes ``total_gpu_time_ns``."""
    name = title.replace("%", "percent").replace("#", "number").lower()
    return re.sub(r"[^a-z0-9]+", "_", name).strip("_") or "column"
