"""Resolve the columns of CPU scheduling that do not follow from their declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from tracekit.readers.nsys.lookups import Lookups, Resolver


def scheduled_in(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """Return whether each switch starts a thread, for which nsys exports a number other than 0."""
    return pc.not_equal(raw["isSchedIn"], 0)


RESOLVERS: dict[str, dict[str, Resolver]] = {
    "cpu_scheduling": {"is_scheduled_in": (("isSchedIn",), scheduled_in)},
}
