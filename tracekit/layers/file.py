"""The layer at the bottom: the tables of one opened file, held against their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.errors import SchemaError, warn
from tracekit.layers.stack import Layer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracekit.registry import Capture
    from tracekit.schemas import TableSchema
    from tracekit.targets import Input


class File(Layer):
    """The tables of one opened file; a column is read once and kept."""

    def __init__(self, capture: Capture | Mapping[str, pa.Table], path: Path, inputs: tuple[Input, ...] = ()) -> None:
        self.path = path
        self._inputs = inputs
        self._capture = capture
        self._columns: dict[str, dict[str, pa.ChunkedArray]] = {}
        self._names = frozenset(capture if isinstance(capture, Mapping) else capture.names())
        self._counts: dict[str, int] = {}
        self._checked: set[str] = set()

    @property
    def undecoded(self) -> Mapping[str, int]:
        """What the reader counts of that which it does not decode."""
        return dict(getattr(self._capture, "undecoded", {}))

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The file or folder, unless the tables are in memory."""
        return self._inputs

    def count(self, name: str) -> int:
        """Number of rows, without reading them where the format can tell."""
        schema = schemas.table(name)
        if name not in self._names:
            return 0
        if kept := self._columns.get(name):
            return len(next(iter(kept.values())))
        if name not in self._counts:
            self._counts[name] = self._count(schema)
        return self._counts[name]

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """Number of rows of several tables, in as few passes over the file as its format allows."""
        unknown = [n for n in names if n in self._names and n not in self._counts and not self._columns.get(n)]
        count_many = getattr(self._capture, "count_many", None)
        if count_many is not None and unknown:
            self._counts |= count_many(unknown)
        return super().counts(names)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read what is not read yet; hold it against the declaration."""
        import pyarrow as pa

        missing = self._missing(name, columns)
        if missing:
            self._keep(name, missing, self._fetch(name, missing))
        kept, schema = self._columns.setdefault(name, {}), self.schema(name)
        return pa.table([kept[c] for c in columns], schema=schemas.arrow_schema(schema, columns))

    def prefetch(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Read what is not read yet of several tables."""
        known = {n: self._missing(n, columns) for n, columns in wanted.items() if n in self._names}
        missing = {name: columns for name, columns in known.items() if columns}
        read_many = getattr(self._capture, "read_many", None)
        if read_many is None:
            for name, columns in missing.items():
                self.read(name, columns)
        elif missing:
            for name, data in read_many(missing).items():
                self._keep(name, missing[name], data)

    def close(self) -> None:
        """Close the file, if its reader keeps it open."""
        getattr(self._capture, "close", lambda: None)()

    def _missing(self, name: str, columns: Sequence[str]) -> list[str]:
        kept = self._columns.get(name, {})
        return [c for c in dict.fromkeys(columns) if c not in kept]

    def _keep(self, name: str, columns: list[str], data: pa.Table) -> None:
        """Hold what was read against its declaration, and keep it."""
        kept = self._columns.setdefault(name, {})
        fresh = schemas.conform(data, self.schema(name), columns, path=self.path)
        if kept and fresh.num_rows != (rows := len(next(iter(kept.values())))):
            raise SchemaError(f"{name} had {rows} rows and now {fresh.num_rows}", path=self.path)
        kept.update(zip(columns, fresh.columns, strict=True))
        self._check_ends(name, kept)

    def _count(self, schema: TableSchema) -> int:
        if not isinstance(self._capture, Mapping):
            return self._capture.count(schema.name)
        key = schema.names[:1]
        return int(schemas.conform(self._capture[schema.name], schema, key, path=self.path).num_rows)

    def _fetch(self, name: str, columns: list[str]) -> pa.Table:
        if name not in self._names:
            return schemas.empty(schemas.table(name), columns)
        return self._capture[name] if isinstance(self._capture, Mapping) else self._capture.read(name, columns)

    def _check_ends(self, name: str, kept: dict[str, pa.ChunkedArray]) -> None:
        import pyarrow.compute as pc

        if name in self._checked or not {"start_ns", "end_ns"} <= kept.keys():
            return
        self._checked.add(name)
        backwards = pc.sum(pc.less(kept["end_ns"], kept["start_ns"])).as_py()
        if backwards:
            warn(f"{backwards} rows of {name} end before they start: kept as recorded", path=self.path)
