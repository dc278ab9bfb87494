"""Tables with their declared Arrow schema, for the formats that keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.registry import View

BATCH_ROWS = 1 << 18


def table(view: View, name: str) -> pa.Table:
    """Return a table as declared: all its rows, and one dictionary a column, which holds only what the rows use."""
    return view.table(name).unify_dictionaries()
