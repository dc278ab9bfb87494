"""Layers that lie over one another and hand on to each other: some tables, correlated, joined with results, rolled up.

What another layer must answer goes down to it: to correlate a roll-up is to roll up what is correlated.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tracekit import schemas
from tracekit.errors import SchemaError
from tracekit.forks import check_polars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl
    import pyarrow as pa

    from tracekit.core.correlate import Correlation
    from tracekit.core.rollup import Rollup
    from tracekit.schemas import TableSchema
    from tracekit.targets import Input


DERIVED = "nvtx_projections"
KERNELS = "kernels"
NCU = "ncu_"
RESULTS = "ncu_launches"
DOC = "Metric of Nsight Compute, in base units."
GRAPH_NODES = "graph_nodes"
GRAPH = (GRAPH_NODES, "graph_edges")
ROLLED_UP = ("ops", "op_instances", "iterations", "group_nodes")


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How a roll-up tells ops, and which iterations it counts.

    Attributes:
        key_op: Id or name of the op that delimits iterations; None takes the dialect's own.
        iterations: First and last iteration to count, both included; None is the very first or last.
        dialect: How the ranges are written; None takes the first dialect that recognises them.
        tensor_cores: Which kernels are taken to use Tensor Cores: those known to, or all is as DLProf 1.8.0 did it.
    """

    key_op: str | None = None
    iterations: tuple[int | None, int | None] | None = None
    dialect: str | None = None
    tensor_cores: Literal["extended", "dlprof"] = "extended"


class Layer:
    """Tables by name; each is read by column, and every declared table exists."""

    @property
    def aggregation(self) -> Aggregation:
        """How this layer is rolled up, if it is."""
        return Aggregation()

    @property
    def undecoded(self) -> Mapping[str, int]:
        """What the file holds beside the tables: number of events by name, as far as its reader tells."""
        return {}

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Files and folders that are read, which no output may replace."""
        return ()

    def schema(self, name: str) -> TableSchema:
        """Declared schema of a table."""
        return schemas.table(name)

    def count(self, name: str) -> int:
        """Number of rows of a table."""
        raise NotImplementedError

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """Number of rows of several tables."""
        return {name: self.count(name) for name in names}

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table: all rows, in the order of the file."""
        raise NotImplementedError

    def prefetch(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Read columns of several tables now, in as few passes over the file as its format allows."""
        raise NotImplementedError

    def correlated(self) -> Layer:
        """This layer with the columns that correlation adds."""
        return Correlated(self)

    def joined(self, ncu: Layer, metrics: Sequence[str] | None = None) -> Layer:
        """This layer, correlated, with results of Nsight Compute beside its kernels."""
        return NcuJoined(self.correlated(), ncu, metrics)

    def graph_joined(self, graph: Layer) -> Layer:
        """This layer, rolled up, with a graph whose nodes say what they took."""
        return GraphJoined(self.rolled_up(self.aggregation), graph)

    def rolled_up(self, aggregation: Aggregation) -> Layer:
        """This layer with the tables that a roll-up makes."""
        return RolledUp(self, aggregation)

    def rollup(self) -> Rollup:
        """The roll-up of this layer."""
        return RolledUp(self, self.aggregation).rollup()

    def only(self, names: Sequence[str]) -> Layer:
        """This layer with some tables; the others are empty, also for correlation."""
        return Only(self, frozenset(names))

    def close(self) -> None:
        """Let go of the file."""


class Over(Layer):
    """A layer over another one, and alike where it does not say otherwise."""

    def __init__(self, base: Layer) -> None:
        self._base = base

    @property
    def aggregation(self) -> Aggregation:
        """How the layer below is rolled up."""
        return self._base.aggregation

    @property
    def undecoded(self) -> Mapping[str, int]:
        """What the file holds beside the tables."""
        return self._base.undecoded

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Files and folders that are read."""
        return self._base.inputs

    def schema(self, name: str) -> TableSchema:
        """Declared schema."""
        return self._base.schema(name)

    def count(self, name: str) -> int:
        """Number of rows."""
        return self._base.count(name)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table."""
        return self._base.read(name, columns)

    def prefetch(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Read columns of several tables."""
        self._base.prefetch(wanted)

    def close(self) -> None:
        """Close the file."""
        self._base.close()


class Only(Over):
    """Some tables of another layer; the others are empty."""

    def __init__(self, base: Layer, names: frozenset[str]) -> None:
        super().__init__(base)
        self._names = names

    def count(self, name: str) -> int:
        """Number of rows."""
        return self._base.count(name) if name in self._names else 0

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table that is kept."""
        return self._base.read(name, columns) if name in self._names else schemas.empty(self.schema(name), columns)

    def prefetch(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Read columns of the tables that are kept."""
        self._base.prefetch({name: columns for name, columns in wanted.items() if name in self._names})


class Correlated(Over):
    """The tables of another layer, with the columns that correlation adds; each is computed when first asked for."""

    def __init__(self, base: Layer) -> None:
        super().__init__(base)
        self._added: dict[tuple[str, str], pa.ChunkedArray] = {}

    def schema(self, name: str) -> TableSchema:
        """Declared schema, with the added columns."""
        return schemas.correlated(name)

    def count(self, name: str) -> int:
        """Number of rows; correlation makes those of one table and leaves the others."""
        return self._projections.num_rows if name == DERIVED else self._base.count(name)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read columns of the file and added ones side by side."""
        import pyarrow as pa

        if name == DERIVED:
            return self._projections.select(list(columns))
        own = set(schemas.table(name).names)
        self._add(name, columns, [c for c in columns if c not in own and (name, c) not in self._added])
        read = self._base.read(name, [c for c in columns if c in own])
        arrays = [read[c] if c in own else self._added[name, c] for c in columns]
        return pa.table(arrays, schema=schemas.arrow_schema(self.schema(name), columns))

    def prefetch(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Read columns of the file, also those that added columns will be computed from."""
        needed: dict[str, set[str]] = {}
        for name, columns in wanted.items():
            for table, names in self._needs(name, columns).items():
                needed.setdefault(table, set()).update(names)
        self._base.prefetch({n: [c for c in schemas.table(n).names if c in names] for n, names in needed.items()})

    def correlated(self) -> Layer:
        """This layer."""
        return self

    def only(self, names: Sequence[str]) -> Layer:
        """Some tables, correlated with one another alone; projections are made of all of them."""
        return Only(self, frozenset(names)) if DERIVED in names else Correlated(self._base.only(names))

    @functools.cached_property
    def _correlation(self) -> Correlation:
        from tracekit.core.correlate import Correlation

        return Correlation(lambda name: to_frame(self._base, name))

    @functools.cached_property
    def _projections(self) -> pa.Table:
        if not self._base.count("nvtx_ranges"):
            return schemas.empty(self.schema(DERIVED))
        return schemas.conform(self._correlation.projections().to_arrow(), self.schema(DERIVED))

    def _add(self, name: str, columns: Sequence[str], added: list[str]) -> None:
        if added:
            linked = self._base.count(name) and (name == "nvtx_ranges" or self._base.count("api_calls"))
            fresh = self._made(name, columns, added) if linked else self._unlinked(name, added)
            self._added.update({(name, c): fresh[c] for c in added})

    def _unlinked(self, name: str, added: list[str]) -> pa.Table:
        """Give added columns where there is nothing to correlate with."""
        import pyarrow as pa

        schema, rows = schemas.arrow_schema(self.schema(name), added), self._base.count(name)
        zero = {f.name: pa.array([0], f.type) for f in schema if not f.nullable}
        first = pa.nulls(rows, pa.int32()).fill_null(0)
        arrays = [zero[f.name].take(first) if f.name in zero else pa.nulls(rows, f.type) for f in schema]
        return pa.table(arrays, schema=schema)

    def _needs(self, name: str, columns: Sequence[str]) -> dict[str, list[str]]:
        """Say which columns of which tables of the file go into some columns of a table."""
        if name == DERIVED:
            described = ["process_id", "domain", "name"]
            needed = self._correlation.needs("nvtx_ranges", ["gpu_op_count", "depth"])
            return needed | {"nvtx_ranges": [*needed["nvtx_ranges"], *described]}
        own = set(schemas.table(name).names)
        needed = self._correlation.needs(name, [c for c in columns if c not in own])
        return needed | {name: [*needed.get(name, ()), *(c for c in columns if c in own)]}

    def _made(self, name: str, columns: Sequence[str], added: list[str]) -> pa.Table:
        """Compute added columns, after all that they need is read, each table in one pass."""
        check_polars()
        self.prefetch({name: [*columns, *added]})
        return schemas.conform(self._correlation.columns(name, added).to_arrow(), self.schema(name), added)


class NcuJoined(Over):
    """The tables of a correlated layer, its kernels with metrics of Nsight Compute, and the tables of these."""

    def __init__(
        self, base: Layer, ncu: Layer, metrics: Sequence[str] | None = None, hidden: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(base)
        self._ncu = ncu
        self._wanted = metrics
        self._hidden = hidden

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Files and folders that are read, those of Nsight Compute too."""
        return (*self._base.inputs, *self._ncu.inputs)

    def schema(self, name: str) -> TableSchema:
        """Declared schema, of kernels with the added columns."""
        return self._kernels if name == KERNELS else self._of(name).schema(name)

    def count(self, name: str) -> int:
        """Number of rows."""
        return 0 if name in self._hidden else self._of(name).count(name)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read columns of a table; of kernels those of the file and joined ones side by side."""
        import pyarrow as pa

        if name in self._hidden:
            return schemas.empty(self.schema(name), columns)
        if name != KERNELS:
            return self._of(name).read(name, columns)
        own = set(self._base.schema(KERNELS).names)
        read = self._base.read(KERNELS, [c for c in columns if c in own])
        added = self._added([c for c in dict.fromkeys(columns) if c not in own])
        arrays = [read[c] if c in own else added[c] for c in columns]
        return pa.table(arrays, schema=schemas.arrow_schema(self._kernels, columns))

    def prefetch(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Read columns of the file, also those of kernels by which results are found."""
        from tracekit.core.ncu import join

        wanted = {name: columns for name, columns in wanted.items() if name not in self._hidden}
        self._ncu.prefetch({name: columns for name, columns in wanted.items() if name.startswith(NCU)})
        needed = {name: columns for name, columns in wanted.items() if not name.startswith(NCU)}
        if KERNELS in needed:
            own = self._base.schema(KERNELS).names
            asked = [c for c in needed[KERNELS] if c in own]
            needed[KERNELS] = [
                *dict.fromkeys([*asked, *(join.KERNEL_COLUMNS if len(asked) < len(needed[KERNELS]) else ())])
            ]
        self._base.prefetch(needed)

    def correlated(self) -> Layer:
        """This layer."""
        return self

    def joined(self, ncu: Layer, metrics: Sequence[str] | None = None) -> Layer:
        """The kernels with other results."""
        return self._base.joined(ncu, metrics)

    def only(self, names: Sequence[str]) -> Layer:
        """Some tables; kernels keep what was joined."""
        hidden = self._hidden | {t for t in schemas.tables() if t.startswith(NCU) and t not in names}
        return NcuJoined(self._base.only(names), self._ncu, self._wanted, hidden)

    @functools.cached_property
    def _matches(self) -> pl.DataFrame:
        """Which result belongs to each kernel, and how it was found."""
        from tracekit.core.ncu import join

        return join.join(to_frame(self._base, KERNELS), to_frame(self._ncu, RESULTS))

    @functools.cached_property
    def _metrics(self) -> pl.DataFrame:
        """A row a result, a column a metric."""
        from tracekit.core.ncu import wide

        launches = to_frame(self._ncu, RESULTS).select("launch_id")
        found = wide(launches, to_frame(self._ncu, "ncu_metrics"))
        names = [c for c in found.columns if c not in self._base.schema(KERNELS).names]
        if missing := [c for c in self._wanted or () if c not in names]:
            hint = "tracekit rows FILE ncu_metrics lists those of a file"
            raise SchemaError(f"no such metrics: {', '.join(missing)}", hint=hint)
        return found.select(names if self._wanted is None else ["launch_id", *self._wanted])

    @functools.cached_property
    def _kernels(self) -> TableSchema:
        import polars as pl

        known = to_frame(self._ncu, "ncu_metrics").select(pl.col("metric", "unit").cast(pl.String)).unique().collect()
        units = dict(known.drop_nulls().iter_rows())
        metrics = (
            schemas.Column(name, "float64" if kind == pl.Float64 else "string", DOC, units.get(name), nullable=True)
            for name, kind in self._metrics.drop("launch_id").schema.items()
        )
        return schemas.joined(self._base.schema(KERNELS), metrics)

    def _of(self, name: str) -> Layer:
        return self._ncu if name.startswith(NCU) else self._base

    def _added(self, columns: list[str]) -> pa.Table:
        """Give kernels some of the joined columns."""
        import polars as pl

        check_polars()
        values = self._metrics.select("launch_id", *(c for c in columns if c in self._metrics.columns))
        beside = self._matches.join(
            values, left_on="ncu_launch_id", right_on="launch_id", how="left", maintain_order="left"
        )
        made = beside.with_columns(pl.col("ncu_match").cast(pl.Categorical)).select(columns).to_arrow()
        return schemas.conform(made, self._kernels, columns)


class RolledUp(Over):
    """The tables of another layer, and those that a roll-up of them makes."""

    def __init__(self, base: Layer, aggregation: Aggregation, rollup: Rollup | None = None) -> None:
        super().__init__(base)
        self._aggregation = aggregation
        self._rollup = rollup
        self._made: dict[str, pa.Table] = {}

    @property
    def aggregation(self) -> Aggregation:
        """How it is rolled up."""
        return self._aggregation

    def schema(self, name: str) -> TableSchema:
        """Declared schema, of activities of GPUs with the columns of their op."""
        return schemas.rolled_up(self._base.schema(name))

    def count(self, name: str) -> int:
        """Number of rows."""
        return int(self._table(name).num_rows) if name in ROLLED_UP else self._base.count(name)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read columns of the file, or what the roll-up makes: a table, or columns beside those of the file."""
        import pyarrow as pa

        if name in ROLLED_UP:
            return self._table(name).select(list(columns))
        own = set(self._base.schema(name).names)
        if own.issuperset(columns):
            return self._base.read(name, columns)
        read, made = self._base.read(name, [c for c in columns if c in own]), self._table(name)
        arrays = [read[c] if c in own else made[c] for c in columns]
        return pa.table(arrays, schema=schemas.arrow_schema(self.schema(name), columns))

    def prefetch(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Read columns of the file, also those that the roll-up needs."""
        from tracekit.core.rollup import tables

        needed, rolls = {}, False
        for name, columns in wanted.items():
            own = () if name in ROLLED_UP else self._base.schema(name).names
            needed[name] = {c for c in columns if c in own}
            rolls = rolls or len(needed[name]) < len(set(columns))
        for name, columns in tables.NEEDS.items() if rolls else ():
            needed.setdefault(name, set()).update(columns)
        self._base.prefetch({n: [c for c in self.schema(n).names if c in names] for n, names in needed.items()})

    def correlated(self) -> Layer:
        """The same, with the columns that correlation adds."""
        return RolledUp(self._base.correlated(), self._aggregation, self._rollup)

    def rolled_up(self, aggregation: Aggregation) -> Layer:
        """Other iterations of the same layer: nothing is read again, and ops are kept if they are told alike."""
        old, new = self._aggregation, aggregation
        if (old.dialect, old.tensor_cores) != (new.dialect, new.tensor_cores):
            return RolledUp(self._base, new)
        return RolledUp(self._base, new, self.rollup().again(key_op=new.key_op, span=new.iterations))

    def rollup(self) -> Rollup:
        """The roll-up, made once."""
        from tracekit.core.rollup import Rollup, tables

        check_polars()

        if self._rollup is None:
            self._base.prefetch({name: list(columns) for name, columns in tables.NEEDS.items()})
            a = self._aggregation
            self._rollup = Rollup.of(
                lambda name: to_frame(self._base, name),
                key_op=a.key_op,
                span=a.iterations,
                dialect=a.dialect,
                tensor_cores=a.tensor_cores,
            )
        return self._rollup

    def _table(self, name: str) -> pa.Table:
        """A table that the roll-up makes; of others the columns that it adds."""
        from tracekit.core.rollup import tables

        if name not in self._made:
            of_ops = tables.TABLES.get(name)
            made = of_ops(self.rollup()) if of_ops else tables.of_activities(self.rollup(), name)
            own = () if of_ops else self._base.schema(name).names
            columns = [c for c in self.schema(name).names if c not in own]
            self._made[name] = schemas.conform(made.to_arrow(), self.schema(name), columns)
        return self._made[name]


class GraphJoined(Over):
    """The tables of a layer that is rolled up, and those of a graph, its nodes with what they took."""

    def __init__(self, base: Layer, graph: Layer) -> None:
        super().__init__(base)
        self._graph = graph

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Files and folders that are read, that of the graph too."""
        return (*self._base.inputs, *self._graph.inputs)

    def schema(self, name: str) -> TableSchema:
        """Declared schema, of nodes with the added columns."""
        if name == GRAPH_NODES:
            return schemas.graph_joined(self._graph.schema(name))
        return self._of(name).schema(name)

    def count(self, name: str) -> int:
        """Number of rows."""
        return self._of(name).count(name)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read columns of a table; of nodes those of the graph and joined ones side by side."""
        import pyarrow as pa

        own = set(self._of(name).schema(name).names)
        read = self._of(name).read(name, [c for c in columns if c in own])
        if own.issuperset(columns):
            return read
        arrays = [read[c] if c in own else self._added[c] for c in columns]
        return pa.table(arrays, schema=schemas.arrow_schema(self.schema(name), columns))

    def prefetch(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Read columns of the file and of the graph; joined ones are computed when asked for."""
        for layer, own in ((self._graph, True), (self._base, False)):
            of = {name: columns for name, columns in wanted.items() if (name in GRAPH) == own}
            known = {name: layer.schema(name).names for name in of}
            layer.prefetch({name: [c for c in columns if c in known[name]] for name, columns in of.items()})

    def rollup(self) -> Rollup:
        """The roll-up of the layer below."""
        return self._base.rollup()

    def correlated(self) -> Layer:
        """The same, with the columns that correlation adds."""
        return GraphJoined(self._base.correlated(), self._graph)

    def joined(self, ncu: Layer, metrics: Sequence[str] | None = None) -> Layer:
        """The same, with results of Nsight Compute beside its kernels."""
        return GraphJoined(self._base.joined(ncu, metrics), self._graph)

    def graph_joined(self, graph: Layer) -> Layer:
        """The same with another graph."""
        return GraphJoined(self._base, graph)

    def rolled_up(self, aggregation: Aggregation) -> Layer:
        """The same over other iterations."""
        return GraphJoined(self._base.rolled_up(aggregation), self._graph)

    @functools.cached_property
    def _added(self) -> pa.Table:
        """What is added to nodes."""
        from tracekit.core.graph import join

        ops = to_frame(self._base, "ops").select(join.OP_COLUMNS).collect()
        made = join.columns(ops, to_frame(self._graph, GRAPH_NODES).select(join.NODE_COLUMNS).collect())
        return schemas.conform(made.to_arrow(), self.schema(GRAPH_NODES), made.columns)

    def _of(self, name: str) -> Layer:
        return self._graph if name in GRAPH else self._base


def to_frame(layer: Layer, name: str) -> pl.LazyFrame:
    """Return a table as a LazyFrame that reads the columns its query uses, when it is collected."""
    import polars as pl
    from polars.io.plugins import register_io_source

    check_polars()
    schema = schemas.polars_schema(layer.schema(name))

    def read(columns: list[str] | None, where: pl.Expr | None, rows: int | None, _: int | None):  # type: ignore[no-untyped-def]
        check_polars()
        table = layer.read(name, list(schema) if columns is None else columns or list(schema)[:1])
        frame = pl.DataFrame(table if rows is None else table.slice(0, rows))
        yield frame if where is None else frame.filter(where)

    return register_io_source(read, schema=schema)
