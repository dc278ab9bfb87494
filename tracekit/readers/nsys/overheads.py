"""Compute the kind of each profiler overhead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.common import columns as col

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.readers.nsys.lookups import Lookups, Resolver


def resolve_overhead_types(lookups: Lookups, table: str, source_rows: pa.Table) -> pa.Array:
    """Return the kind of each profiler overhead.

    Exports up to schema version 3.23 store the kind in the column ``returnValue``, and later exports in
    ``overheadType``.
    """
    numbers = col.coalesce(source_rows["overheadType"], source_rows["returnValue"])
    return lookups.look_up_strings(
        table, "overhead_type", numbers, lookups.read_enum_labels("ENUM_CUPTI_OVERHEAD_TYPE")
    )


RESOLVERS: dict[str, dict[str, Resolver]] = {
    "overheads": {"overhead_type": (("overheadType", "returnValue"), resolve_overhead_types)},
}
