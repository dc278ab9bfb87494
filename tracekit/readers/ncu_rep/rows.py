"""Rows made one by one, put into columns some thousands at a time."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from tracekit import schemas
from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row: TypeAlias = dict[str, Any]

SLICE = 4096


def table(name: str, rows: Iterable[Row], columns: Sequence[str] | None = None) -> pa.Table:
    """Put rows into a declared table: n rows in, n out; what a row lacks is null.

    Raises:
        Damage: A number does not fit its column.
    """
    declared = schemas.arrow_schema(schemas.table(name), columns)
    source = iter(rows)
    slices = iter(lambda: list(itertools.islice(source, SLICE)), [])
    return pa.concat_tables([declared.empty_table(), *(_columns(part, declared, name) for part in slices)])


def _columns(rows: list[Row], schema: pa.Schema, name: str) -> pa.Table:
    try:
        return pa.table([_column([r.get(f.name) for r in rows], f.type) for f in schema], schema=schema)
    except (pa.ArrowInvalid, OverflowError) as e:
        raise Damage(f"a number is too large for {name}") from e


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Make a column; of names that repeat, which many rows may share, each once."""
    if not pa.types.is_dictionary(kind):
        return pa.array(values, kind)
    numbers: dict[Any, int] = {}
    codes = [None if v is None else numbers.setdefault(v, len(numbers)) for v in values]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(list(numbers), pa.string()))
