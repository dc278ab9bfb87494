"""Compute the data of figures and pages, reduced to a few thousand rows regardless of the size of the capture.

``overview`` summarizes a roll-up, ``totals`` adds up activities by name, ``timeline`` samples values over time,
``trees`` reduces trees of groups and of NVTX ranges to their largest nodes, ``stacks`` sums up call stacks, and
``messages`` collects what the profiler recorded.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.registry.tables import scan_table

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from tracekit.core.rollup import Rollup
    from tracekit.registry.interface import View

    Frames = Callable[[str], pl.LazyFrame]


@dataclass(frozen=True, slots=True)
class FigureInputs:
    """The input of the functions that compute the data of figures and pages.

    If a capture lacks the data, these functions raise ``MissingTableError`` with a message that states what is missing.
    The caller adds the reason.

    Attributes:
        view: The tables and reports of the trace.
        get_rollup: Function that returns the roll-up of the trace.
        correlated_frames: Function that returns the tables of the correlated trace.
        window: The time window ``[a, b)`` in ns to which the trace is limited. Either bound may be None.
    """

    view: View
    get_rollup: Callable[[], Rollup]
    correlated_frames: Frames
    window: tuple[int | None, int | None]

    @property
    def frames(self) -> Frames:
        """Function that returns the tables of the trace."""
        return functools.partial(scan_table, self.view.tables)
