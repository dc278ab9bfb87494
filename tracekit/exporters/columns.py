"""Tables as the formats with a file a table write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit import schemas

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.registry import View


def table(view: View, name: str) -> pa.Table:
    """Return a table with its declared Arrow schema; each dictionary is one for all rows and holds only what they use."""
    schema = view.schema(name)
    return schemas.conform(view.frame(name).collect().to_arrow(), schema).unify_dictionaries()
