"""Compute the column ``is_scheduled_in`` of ``cpu_scheduling``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from tracekit.readers.nsys.lookups import Lookups, Resolver


def resolve_scheduled_in_flags(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return whether each context switch schedules a thread in (True) or out (False).

    nsys exports a nonzero number for a switch that schedules a thread in.
    """
    return pc.not_equal(source_rows["isSchedIn"], 0)


RESOLVERS: dict[str, dict[str, Resolver]] = {
    "cpu_scheduling": {"is_scheduled_in": (("isSchedIn",), resolve_scheduled_in_flags)},
}
