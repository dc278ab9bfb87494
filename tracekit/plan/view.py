"""Tables, reports and models of a plan, as exporters and reports read them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.errors import UnknownFormatError
from tracekit.plan.base import to_frame
from tracekit.plan.tables import rollup_of, tables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import polars as pl
    import pyarrow as pa

    from tracekit.core.dlprof.reports import DlprofReport
    from tracekit.core.reports import ReportTable
    from tracekit.plan.plan import Plan


class TraceView:
    """A trace as exporters see it (``registry.View``).

    Attributes:
        plan: What the trace consists of.
        path: The file or folder, for messages; None for tables in memory.
    """

    def __init__(self, plan: Plan, path: Path | None = None) -> None:
        self.plan = plan
        self.path = path
        self._tables = tables_of(plan)

    @property
    def tables(self) -> list[str]:
        """Names of the tables."""
        return list(schemas.tables())

    @functools.cached_property
    def info(self) -> dict[str, str]:
        """Facts about the capture, by name."""
        rows = self._tables.read("capture_info", ["name", "value"]).to_pylist()
        return {r["name"]: r["value"] for r in rows if r["value"] is not None}

    def schema(self, name: str) -> schemas.TableSchema:
        """Return the schema of a table.

        Raises:
            SchemaError: There is no such table.
        """
        return self._tables.schema(name)

    def count(self, name: str) -> int:
        """Return the number of rows of a table.

        Raises:
            SchemaError: There is no such table.
        """
        self.schema(name)
        return self._tables.count(name)

    def counts(self) -> dict[str, int]:
        """Return the number of rows of every table."""
        return self._tables.counts(self.tables)

    def prefetch(self, columns: Mapping[str, Sequence[str] | None]) -> None:
        """Read columns of several tables together and cache them: one pass over the file where its format allows.

        Args:
            columns: Columns by table; None is all of them.

        Raises:
            SchemaError: There is no such table or column.
            CorruptTraceError: The file is damaged there.
        """
        self._tables.prefetch({name: self._names(name, names) for name, names in columns.items()})

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a table; each string column has one dictionary.

        Raises:
            SchemaError: There is no such table or column.
            CorruptTraceError: The file is damaged there.
        """
        return self.chunked_table(name, columns).unify_dictionaries()

    def chunked_table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a table; each chunk of a string column may have its own dictionary, which costs less.

        Raises:
            SchemaError: There is no such table or column.
            CorruptTraceError: The file is damaged there.
        """
        return self._tables.read(name, self._names(name, columns))

    def frame(self, name: str) -> pl.LazyFrame:
        """Return a table as a LazyFrame that reads the columns of its query when it is collected."""
        self.schema(name)
        return to_frame(self._tables, name)

    def report(self, name: str) -> ReportTable | DlprofReport:
        """Compute a report.

        Raises:
            UnknownFormatError: There is no such report, or it has no such option.
        """
        from tracekit.core import reports

        if name == reports.ADVISE:
            from tracekit.core.reports import advise

            return advise.advise_rollup(rollup_of(self.plan))
        if not reports.is_known(name):
            from tracekit.core.dlprof.reports import REPORTS, run

            if name not in REPORTS:
                raise reports.unknown_report_error(name, REPORTS)
            return run(rollup_of(self.plan), name)
        return reports.run(self.frame, name, self._prefetch_for)

    def model(self, name: str) -> Mapping[str, pl.DataFrame]:
        """Return the tables of another tool's data model.

        Args:
            name: ``dlprof``, the database of DLProf 1.8.0, whose row ids are the row numbers from 1; or ``graph``, the
                ops as a graph with their figures.

        Raises:
            UnknownFormatError: There is no such model.
        """
        if name not in ("dlprof", "graph"):
            raise UnknownFormatError(f"no model is called {name!r}", hint="models: dlprof, graph")
        from tracekit.core import dlprof, graph

        rollup = rollup_of(self.plan)
        return dlprof.tables(rollup) if name == "dlprof" else graph.tables(rollup)

    def _prefetch_for(self, compute: Callable[[Callable[[str], pl.LazyFrame]], object]) -> None:
        """Read in one pass what a computation will read."""
        from tracekit.core.reads import reads_of

        self.prefetch(reads_of(compute, lambda table: schemas.example(self.schema(table))))

    def _names(self, name: str, columns: Sequence[str] | None) -> list[str]:
        schema = self.schema(name)
        return schema.names if columns is None else [schema[c].name for c in columns]
