"""Convert rows of Nsight Compute reports to declared tables, in batches."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from tracekit import schemas
from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row: TypeAlias = dict[str, Any]

BATCH_ROWS = 4096


def build_table(name: str, rows: Iterable[Row], columns: Sequence[str] | None = None) -> pa.Table:
    """Convert rows to a declared table. Columns that a row lacks are null.

    Raises:
        Damage: A number does not fit the type of its column.
    """
    schema = schemas.arrow_schema(schemas.table(name), columns)
    source = iter(rows)
    batches = iter(lambda: list(itertools.islice(source, BATCH_ROWS)), [])
    return pa.concat_tables([schema.empty_table(), *(_build_batch(batch, schema) for batch in batches)])


def _build_batch(rows: list[Row], schema: pa.Schema) -> pa.Table:
    return pa.table([_build_field_column(rows, field) for field in schema], schema=schema)


def _build_field_column(rows: list[Row], field: pa.Field) -> pa.Array:
    values = [row.get(field.name) for row in rows]
    try:
        return _build_column(values, field.type)
    except (pa.ArrowInvalid, OverflowError) as e:
        raise Damage(f"a number does not fit into the column {field.name} ({field.type})") from e


def _build_column(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """Convert values to an Arrow array. If the type is a dictionary type, the values are dictionary-encoded strings."""
    if not pa.types.is_dictionary(arrow_type):
        return pa.array(values, arrow_type)
    numbers: dict[Any, int] = {}
    codes = [None if v is None else numbers.setdefault(v, len(numbers)) for v in values]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(list(numbers), pa.string()))
