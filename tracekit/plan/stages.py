"""Stages of a plan, which add computed columns and tables to underlying tables: correlation, joins and the roll-up."""

from __future__ import annotations

import functools
import threading
from abc import abstractmethod
from collections import defaultdict
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.errors import SchemaError
from tracekit.plan.rows import NCU_PREFIX, RESULTS
from tracekit.registry.tables import CachedTables, count_rows, scan_table
from tracekit.system import memory
from tracekit.system.forks import check_polars_can_run
from tracekit.system.threads import unlocked_property

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl
    import pyarrow as pa

    from tracekit.core.correlate import Correlation
    from tracekit.core.layered import LayeredCapture
    from tracekit.core.rollup import Rollup
    from tracekit.plan.plan import Aggregation
    from tracekit.schemas import TableSchema

PROJECTIONS = "nvtx_projections"
RANGES = "nvtx_ranges"
KERNELS = "kernels"
"""Tables whose correlated columns are null in a trace without API calls."""
METRIC_DOC = "Metric of Nsight Compute, in base units."
GRAPH_NODES = "graph_nodes"
GRAPH = (GRAPH_NODES, "graph_edges")
_NUMBER_BYTES = 8
ROLLED_UP = ("ops", "op_instances", "iterations", "group_nodes")


class Stage(CachedTables):
    """Base class of stages that add computed columns to underlying tables.

    A subclass defines the added columns (``schema``), computes them (``compute``), and states which columns it reads to
    compute them (``list_required_columns``). Computed columns are cached.

    Attributes:
        computed: Names of the tables whose rows are all computed by the stage.
    """

    computed: tuple[str, ...] = ()

    def __init__(self, base: CachedTables) -> None:
        self._base = base
        self._lock = threading.RLock()
        self._columns: dict[str, dict[str, pa.ChunkedArray]] = {}

    @abstractmethod
    def compute(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Compute columns that this stage adds to a table, and return them as a table.

        Args:
            name: Name of the table.
            columns: Names of the requested added columns. The result may contain more added columns.
        """

    def group_columns(self, name: str, columns: Sequence[str]) -> Sequence[Sequence[str]]:
        """Return groups of added columns. Each group is computed and, if it is large, stored before the next one."""
        return [columns]

    @abstractmethod
    def list_required_columns(self, name: str, columns: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return which columns of which tables must be read to compute added columns: column names by table name.

        Args:
            name: Name of the table with the added columns.
            columns: Names of the added columns.
        """

    def find_underlying_tables(self, name: str) -> CachedTables:
        """Return the underlying ``CachedTables`` object that provides the rows of a table."""
        return self._base

    def schema(self, name: str) -> TableSchema:
        """Return the schema of a table, including the added columns."""
        return self.find_underlying_tables(name).schema(name)

    def count_many(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of rows of each table in ``names``, by table name.

        The rows of tables that this stage does not compute are counted together.
        """
        counts: dict[str, int] = {}
        for base, below in self._group_by_underlying_tables([n for n in names if n not in self.computed]):
            counts |= base.count_many(below)
        for name in (n for n in names if n in self.computed):
            counts[name] = self._read(name, self.schema(name).names[:1]).num_rows
        return {name: counts[name] for name in names}

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
        """Return the requested columns. Columns that this stage adds are computed, and all others are read."""
        if len(columns) > 1:
            self.prefetch(columns)
        return {name: self._read(name, names) for name, names in columns.items()}

    def _read(self, name: str, columns: Sequence[str]) -> pa.Table:
        import pyarrow as pa

        added = self._select_added_columns(name, columns)
        with self._lock:
            cached = self._columns.setdefault(name, {})
            if missing := [c for c in added if c not in cached]:
                check_polars_can_run()
                self.prefetch({name: columns})
                for group in self.group_columns(name, missing):
                    cached.update(self._check_computed_columns(name, self.compute(name, group)))
                    memory.release_pages()
            arrays = {c: cached[c] for c in added}
        if len(arrays) < len(set(columns)):
            others = [c for c in dict.fromkeys(columns) if c not in arrays]
            below = self.find_underlying_tables(name).read_many({name: others})[name]
            arrays |= dict(zip(below.column_names, below.columns, strict=True))
        return pa.table([arrays[c] for c in columns], schema=schemas.arrow_schema(self.schema(name), columns))

    def prefetch(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Read and cache the underlying columns that are needed to return or compute the requested columns."""
        needed: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for name, names in columns.items():
            added = self._select_added_columns(name, names)
            needed[name].update(dict.fromkeys(c for c in names if c not in added))
            if any(c not in self._columns.get(name, {}) for c in added):
                for table, below in self.list_required_columns(name, added).items():
                    needed[table].update(dict.fromkeys(below))
        for base, names in self._group_by_underlying_tables([n for n, below in needed.items() if below]):
            base.prefetch({name: list(needed[name]) for name in names})

    def release(self) -> None:
        """Free the computed columns."""
        super().release()
        with self._lock:
            self._columns.clear()

    def _select_added_columns(self, name: str, columns: Sequence[str]) -> list[str]:
        """Return the names of the requested columns of a table that this stage computes."""
        if name in self.computed:
            return list(dict.fromkeys(columns))
        below = set(self.find_underlying_tables(name).schema(name).names)
        return [c for c in dict.fromkeys(columns) if c not in below]

    def _check_computed_columns(self, name: str, computed: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Check computed columns against the schema, and return them by name."""
        conformed = schemas.conform(computed, self.schema(name), computed.column_names)
        if memory.is_large(conformed.nbytes):
            conformed = memory.spill_to_temporary_file(conformed)
        return dict(zip(conformed.column_names, map(memory.compact_if_all_null, conformed.columns), strict=True))

    def _group_by_underlying_tables(self, names: Sequence[str]) -> list[tuple[CachedTables, list[str]]]:
        """Group table names by the underlying ``CachedTables`` object that provides their rows."""
        grouped: dict[int, tuple[CachedTables, list[str]]] = {}
        for name in names:
            base = self.find_underlying_tables(name)
            grouped.setdefault(id(base), (base, []))[1].append(name)
        return list(grouped.values())


class Layered(Stage):
    """Stage that adds the ranges in which CUDA graphs were captured to the replays of the graphs.

    The ranges are added as rows of ``nvtx_ranges``, and activities of replays have the time of their launch in them.
    """

    computed = (RANGES,)

    def __init__(
        self, base: CachedTables, recorded: CachedTables | None = None, recorded_path: Path | None = None
    ) -> None:
        super().__init__(base)
        self._recorded, self._recorded_path = recorded, recorded_path

    def schema(self, name: str) -> TableSchema:
        """Return the schema of a table, including the columns that layers add."""
        return schemas.add_layer_columns_to_schema(self._base.schema(name))

    def compute(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Compute the columns of ``nvtx_ranges`` with the added rows, or columns that layers add to activities."""
        import polars as pl

        if name != RANGES:
            return self._layers.compute_activity_columns(name, columns).select(columns).to_arrow()
        recorded = [c for c in columns if c in self._base.schema(name).names]
        rows = scan_table(self._base, name).select("kind", *(c for c in recorded if c != "kind")).collect()
        return pl.concat([rows, self._layers.compute_copied_ranges(columns)], how="diagonal").select(columns).to_arrow()

    def list_required_columns(self, name: str, columns: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the columns from which layers are computed, and the recorded columns of ``nvtx_ranges``."""
        needed = dict(list_columns_for_correlation("kernels", schemas.LAYER_COLUMNS))
        if name == RANGES:
            recorded = [c for c in columns if c in self._base.schema(name).names]
            needed[RANGES] = [*dict.fromkeys((*needed[RANGES], *recorded))]
        return needed

    def release(self) -> None:
        """Free the computed columns and the layout of the layers."""
        with self._lock:
            super().release()
            self.free_working_data()

    def free_working_data(self) -> None:
        """Free the layout of the layers. The computed columns stay in memory."""
        with self._lock:
            self.__dict__.pop("_layers", None)

    @unlocked_property
    def _layers(self) -> LayeredCapture:
        from tracekit.core.compiled_programs import present_programs
        from tracekit.core.layered import LayeredCapture

        recorded = self._recorded

        def frames(name: str) -> pl.LazyFrame:
            return scan_table(self._base, name)

        if recorded is None:
            return LayeredCapture(frames, present_programs(frames))
        return LayeredCapture(frames, lambda name: scan_table(recorded, name), self._recorded_path)


class Correlated(Stage):
    """Stage that adds API calls and NVTX ranges to activities, and parents, depths and projections to NVTX ranges.

    It also adds call stacks as strings (to events with call stacks), the time of the next switch of the thread (to
    scheduling events), the memory in use (to memory events), and the call that sent the message (to MPI calls that
    receive a message or wait for one).
    """

    computed = (PROJECTIONS,)

    def schema(self, name: str) -> TableSchema:
        """Return the schema of a table, including the columns that correlation adds."""
        return schemas.add_correlation_columns_to_schema(self._base.schema(name))

    def compute(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Compute the table ``nvtx_projections``, or the columns that correlation adds to another table."""
        if name == PROJECTIONS:
            has_ranges = count_rows(self._base, "nvtx_ranges") > 0
            return (
                self._correlation.compute_projections().to_arrow() if has_ranges else schemas.empty(self.schema(name))
            )
        has_calls = name in (*schemas.list_tables("activity"), *schemas.list_tables("synchronization"))
        if count_rows(self._base, name) and (not has_calls or count_rows(self._base, "api_calls")):
            return self._correlation.compute_columns(name, columns).to_arrow()
        return self._compute_uncorrelated_columns(name, columns)

    def group_columns(self, name: str, columns: Sequence[str]) -> Sequence[Sequence[str]]:
        """Return the columns of large tables of activities and ranges one by one, but those of captures together."""
        is_divisible = name == RANGES or name in schemas.list_tables("activity")
        if not is_divisible or not memory.is_large(count_rows(self._base, name) * _NUMBER_BYTES):
            return [columns]
        captured = [c for c in columns if c in schemas.LAYER_COLUMNS]
        return [*([c] for c in columns if c not in captured), *([captured] if captured else [])]

    def list_required_columns(self, name: str, columns: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return which columns correlation reads to compute added columns of a table: column names by table name."""
        return list_columns_for_correlation(name, () if name == PROJECTIONS else tuple(columns))

    def release(self) -> None:
        """Free the computed columns and the cached correlation."""
        with self._lock:
            super().release()
            self.free_working_data()

    def free_working_data(self) -> None:
        """Free the cached correlation. The computed columns stay in memory."""
        with self._lock:
            self.__dict__.pop("_correlation", None)

    @unlocked_property
    def _correlation(self) -> Correlation:
        from tracekit.core.correlate import Correlation

        return Correlation(lambda name: scan_table(self._base, name))

    def _compute_uncorrelated_columns(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the added columns of a table that is empty, or that cannot be correlated for lack of API calls.

        The values are null, or 0 in columns that are not nullable.
        """
        import pyarrow as pa

        schema, rows = schemas.arrow_schema(self.schema(name), columns), count_rows(self._base, name)
        zero = {f.name: pa.array([0], f.type) for f in schema if not f.nullable}
        first = pa.nulls(rows, pa.int32()).fill_null(0)
        arrays = [zero[f.name].take(first) if f.name in zero else pa.nulls(rows, f.type) for f in schema]
        return pa.table(arrays, schema=schema)


@functools.cache
def list_columns_for_correlation(name: str, columns: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    """Return which columns correlation reads to compute added columns of a table: column names by table name.

    Args:
        name: Name of the table with the added columns.
        columns: Names of the added columns. Empty for the table ``nvtx_projections``, all columns of which are
            computed.
    """
    reads = schemas.list_columns_read_by_correlation()[name]
    needed: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for column in columns or (schemas.ALL_COLUMNS,):
        for table, names in reads[column].items():
            needed[table].update(dict.fromkeys(names))
    return {table: list(names) for table, names in needed.items()}


class NcuJoined(Stage):
    """Stage that adds Nsight Compute metrics to kernels, and the tables of the Nsight Compute results."""

    def __init__(self, base: CachedTables, results: CachedTables, metrics: Sequence[str] | None = None) -> None:
        super().__init__(base)
        self._results = results
        self._metric_names = metrics

    def find_underlying_tables(self, name: str) -> CachedTables:
        """Return the Nsight Compute results for their own tables, and the underlying tables for all other tables."""
        return self._results if name.startswith(NCU_PREFIX) else self._base

    def schema(self, name: str) -> TableSchema:
        """Return the schema of a table. Kernels have additional columns for the matched result and for each metric."""
        return self._kernels_schema if name == KERNELS else super().schema(name)

    def compute(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Compute added columns of kernels: id of the matched Nsight Compute result, kind of match, and metrics."""
        import polars as pl

        values = self._wide_metrics.select("launch_id", *(c for c in columns if c in self._wide_metrics.columns))
        joined = self._ncu_matches.join(
            values, left_on="ncu_launch_id", right_on="launch_id", how="left", maintain_order="left"
        )
        return joined.with_columns(pl.col("ncu_match").cast(pl.Categorical)).select(columns).to_arrow()

    def list_required_columns(self, name: str, columns: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the columns of the table ``kernels`` that are needed to match kernels with Nsight Compute results."""
        from tracekit.core.ncu import join

        return {KERNELS: join.KERNEL_COLUMNS}

    @unlocked_property
    def _ncu_matches(self) -> pl.DataFrame:
        """One row per kernel, with the id of the matched Nsight Compute result and the kind of match."""
        from tracekit.core.ncu import join

        return join.match_kernels(scan_table(self._base, KERNELS), scan_table(self._results, RESULTS))

    @unlocked_property
    def _wide_metrics(self) -> pl.DataFrame:
        """The metrics of the Nsight Compute results, with one row per result and one column per metric."""
        from tracekit.core.ncu import add_metric_columns

        launches = scan_table(self._results, RESULTS).select("launch_id")
        if self._metric_names == ():
            return launches.collect()
        metrics = add_metric_columns(launches, scan_table(self._results, "ncu_metrics"))
        names = [c for c in metrics.columns if c not in self._base.schema(KERNELS).names]
        if missing := [c for c in self._metric_names or () if c not in names]:
            hint = "list the metrics of a file with: tracekit rows FILE ncu_metrics"
            raise SchemaError(f"the Nsight Compute results lack these metrics: {', '.join(missing)}", hint=hint)
        return metrics.select(names if self._metric_names is None else ["launch_id", *self._metric_names])

    @unlocked_property
    def _kernels_schema(self) -> TableSchema:
        import polars as pl

        metric_units = (
            scan_table(self._results, "ncu_metrics").select(pl.col("metric", "unit").cast(pl.String)).unique()
        )
        units = dict(metric_units.collect().drop_nulls().iter_rows())
        columns = (
            schemas.Column(
                name, "float64" if dtype == pl.Float64 else "string", METRIC_DOC, units.get(name), nullable=True
            )
            for name, dtype in self._wide_metrics.drop("launch_id").schema.items()
        )
        return schemas.add_ncu_columns_to_schema(self._base.schema(KERNELS), columns)


class SharedRollup:
    """A roll-up that is computed once, and shared by all plans with the same row filters and parameters.

    Attributes:
        aggregation: Parameters of the roll-up.
    """

    def __init__(self, events: CachedTables, aggregation: Aggregation, same_ops: SharedRollup | None = None) -> None:
        """Create a roll-up without computing it.

        Args:
            events: Tables with the events that are rolled up.
            aggregation: Parameters of the roll-up.
            same_ops: Another roll-up of the same events, whose ops are reused. Only its key op and its iterations may
                differ. If None, the ops are computed.
        """
        self.aggregation = aggregation
        self._events = events
        self._same_ops = same_ops
        self._lock = threading.RLock()
        self._rollup: Rollup | None = None

    def rollup(self) -> Rollup:
        """Return the roll-up, which is computed on the first call."""
        check_polars_can_run()
        with self._lock:
            if self._rollup is None:
                self._rollup = self._compute_rollup()
            return self._rollup

    def free_working_data(self) -> None:
        """Free the large data from which results were computed. The roll-up and the results stay in memory."""
        with self._lock:
            if self._rollup is not None:
                self._rollup.free_working_data()

    def release(self) -> None:
        """Free the roll-up."""
        with self._lock:
            self._rollup = self._same_ops = None

    def _compute_rollup(self) -> Rollup:
        from tracekit.core.rollup import Rollup, tables

        a = self.aggregation
        if self._same_ops is not None:
            rollup = self._same_ops.rollup()
            return rollup.with_iterations(key_op=a.key_op, span=a.iterations, include_warm_up=a.include_warm_up)
        self._events.prefetch({name: list(columns) for name, columns in tables.READ_COLUMNS.items()})
        return Rollup.from_frames(
            lambda name: scan_table(self._events, name),
            key_op=a.key_op,
            span=a.iterations,
            include_warm_up=a.include_warm_up,
            dialect=a.dialect,
            tensor_cores=a.tensor_cores,
        )


class RolledUp(Stage):
    """Stage that adds the tables of a roll-up, and columns with the op of each GPU activity."""

    computed = ROLLED_UP

    def __init__(self, base: CachedTables, shared: SharedRollup) -> None:
        super().__init__(base)
        self._shared = shared

    def schema(self, name: str) -> TableSchema:
        """Return the schema of a table. Tables of GPU activities have additional columns for the op."""
        return schemas.add_rollup_columns_to_schema(self._base.schema(name))

    def compute(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Compute a table of the roll-up, such as ``ops``, or the columns with the op of each GPU activity."""
        from tracekit.core.rollup import tables

        rollup, compute_table = self._shared.rollup(), tables.TABLES.get(name)
        table = compute_table(rollup) if compute_table else tables.find_activity_ops(rollup, name)
        return table.select(self._select_added_columns(name, self.schema(name).names)).to_arrow()

    def list_required_columns(self, name: str, columns: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the columns that a roll-up reads, by table name. They are the same for all added columns."""
        from tracekit.core.rollup import tables

        return tables.READ_COLUMNS


class GraphJoined(Stage):
    """Stage that adds the nodes and edges of a graph, and statistics of the matching ops to the nodes."""

    def __init__(self, base: CachedTables, graph: CachedTables, ops: CachedTables) -> None:
        super().__init__(base)
        self._graph = graph
        self._ops = ops

    def find_underlying_tables(self, name: str) -> CachedTables:
        """Return the graph for the tables of its nodes and edges, and the underlying tables for all other tables."""
        return self._graph if name in GRAPH else self._base

    def schema(self, name: str) -> TableSchema:
        """Return the schema of a table. The nodes of the graph have additional columns for their ops."""
        schema = super().schema(name)
        return schemas.add_graph_columns_to_schema(schema) if name == GRAPH_NODES else schema

    def compute(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Compute statistics for each node of the graph, summed over the ops that match the node."""
        from tracekit.core.graph import join

        ops = scan_table(self._ops, "ops").select(join.OP_COLUMNS).collect()
        return join.compute_node_columns(
            ops, scan_table(self._graph, GRAPH_NODES).select(join.NODE_COLUMNS).collect()
        ).to_arrow()

    def list_required_columns(self, name: str, columns: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the columns that are needed to match ops with graph nodes and to sum up statistics, by table name."""
        from tracekit.core.graph import join

        return {"ops": join.OP_COLUMNS, GRAPH_NODES: join.NODE_COLUMNS}
