"""Events that are in no table, as numbers by class."""

from __future__ import annotations

from collections.abc import Mapping

import tracekit as tk


def counted(undecoded: Mapping[str, tk.Undecoded]) -> dict[str, int]:
    """The number of the events of each class."""
    return {name: size.count for name, size in undecoded.items()}
