"""Compute the columns of CPU scheduling that are not copied from their source columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from tracekit.readers.nsys.lookups import Lookups, Resolver


def is_scheduled_in(_capture: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return whether each context switch schedules a thread in rather than out.

    nsys exports a nonzero number for a switch that schedules a thread in.
    """
    return pc.not_equal(source_rows["isSchedIn"], 0)


RESOLVERS: dict[str, dict[str, Resolver]] = {
    "cpu_scheduling": {"is_scheduled_in": (("isSchedIn",), is_scheduled_in)},
}
