"""Plans of traces: the source of a trace, and how it is layered, selected, correlated, joined and rolled up.

Each method that derives a trace adds steps to its plan. The order of different steps does not change the plan, because
these rules apply:

- Layers are computed from all rows of all tables.
- Rows are selected from the recorded rows, and from those that layers add. A roll-up and a join with a graph are
  computed from the selected rows. Correlation is computed from all rows, so that selected kernels keep API calls and
  ranges that are not selected.
- Tables that are not selected are empty. Correlation and the join with Nsight Compute results also treat them as empty.
  There are two exceptions: projections of ranges and roll-ups are computed from all tables.
- Selections are combined: a row has to match all of them, and a table has to be in each of them.
- A join with Nsight Compute results also correlates the trace. A join with a graph also rolls it up.

If a second roll-up, or a second join of the same kind, is added to a plan, it replaces the earlier step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from tracekit.core.select import RowCondition
    from tracekit.plan.recorded import RecordedTables


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Parameters of a roll-up: how ops are derived from ranges, and which iterations are aggregated.

    Attributes:
        key_op: Id or name of the op that delimits iterations. If None, the key op of the dialect is used or, if the
            dialect has none, an op that repeats.
        iterations: First and last iteration to aggregate, both inclusive. None stands for the first or the last
            iteration of the capture.
        include_warm_up: Whether the warm-up is aggregated if no iterations are chosen. If None, tables and reports
            aggregate it, and advice and pages do not.
        dialect: Name of the dialect of the ranges. If None, the first dialect that matches the capture is used.
        tensor_cores: ``extended`` detects all known Tensor Core kernels. ``dlprof`` computes everything as DLProf 1.8.0
            does.
    """

    key_op: str | None = None
    iterations: tuple[int | None, int | None] | None = None
    dialect: str | None = None
    tensor_cores: Literal["extended", "dlprof"] = "extended"
    include_warm_up: bool | None = None


@dataclass(frozen=True, slots=True)
class SelectTables:
    """A step of a plan that selects tables. Tables that are not selected become empty."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class SelectRows:
    """A step of a plan that selects the rows that meet all conditions."""

    conditions: frozenset[RowCondition]


@dataclass(frozen=True, slots=True)
class UseLayers:
    """A step of a plan that places the captured ranges of CUDA graphs inside the replays of the graphs.

    Attributes:
        recorded: Plan of a second capture of the same program, in which the ranges were recorded. If None, they are
            those of the capture itself.
    """

    recorded: Plan | None = None


@dataclass(frozen=True, slots=True)
class Correlate:
    """A step of a plan that adds the columns of ``Trace.correlate``, such as the API call of each kernel."""


@dataclass(frozen=True, slots=True)
class JoinNcu:
    """A step of a plan that adds Nsight Compute metrics to kernels.

    Attributes:
        results: Plan of the trace that contains the Nsight Compute results.
        metrics: Names of the metrics to add. If None, all metrics are added.
    """

    results: Plan
    metrics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class RollUp:
    """A step of a plan that adds the tables and columns of ``Trace.rollup``, such as the op of each kernel."""

    aggregation: Aggregation = Aggregation()


@dataclass(frozen=True, slots=True)
class JoinGraph:
    """A step of a plan that adds the nodes of a graph, with the statistics of their ops.

    Attributes:
        graph: Plan of the trace that contains the graph.
    """

    graph: Plan


PlanStep: TypeAlias = SelectTables | SelectRows | UseLayers | Correlate | JoinNcu | RollUp | JoinGraph


@dataclass(frozen=True, slots=True)
class Plan:
    """Description of how a trace is computed: its recorded tables, and the steps that are applied to them.

    The order in which steps of different kinds are added does not matter.

    Attributes:
        source: The recorded tables.
        tables: Names of the selected tables. If None, all tables are selected.
        rows: Conditions on rows. A row is selected if it meets all of them.
        layers: Where the ranges inside of the replays of CUDA graphs come from. None if there are none.
        correlated: Whether the columns of correlation are added.
        ncu: The join with Nsight Compute results. None if no results are joined.
        rollup: Parameters of the roll-up. None if the trace is not rolled up.
        graph: Plan of the graph that is joined with ops. None if no graph is joined.
    """

    source: RecordedTables
    tables: frozenset[str] | None = None
    rows: frozenset[RowCondition] = frozenset()
    layers: UseLayers | None = None
    correlated: bool = False
    ncu: JoinNcu | None = None
    rollup: Aggregation | None = None
    graph: Plan | None = None

    def add_steps(self, *steps: PlanStep) -> Plan:
        """Return a copy of this plan with additional steps.

        A step is combined with an earlier step of the same kind, or replaces it.
        """
        plan = self
        for step in steps:
            plan = _add_step(plan, step)
        return plan

    @property
    def sources(self) -> tuple[RecordedTables, ...]:
        """The recorded tables from which this plan and the plans of joined traces are computed."""
        layers, results = self.layers and self.layers.recorded, self.ncu and self.ncu.results
        joined = [plan for plan in (layers, results, self.graph) if isinstance(plan, Plan)]
        return (self.source, *(source for plan in joined for source in plan.sources))

    @property
    def window(self) -> tuple[int | None, int | None]:
        """The intersection ``[start, end)`` of the time windows of all filters, in ns.

        A bound that no filter sets is None.
        """
        times: list[Any] = [condition.value for condition in self.rows if condition.filter == "time"]
        lows = [low for low, _ in times if low is not None]
        highs = [high for _, high in times if high is not None]
        return max(lows, default=None), min(highs, default=None)

    def without(self, *filters: str) -> Plan:
        """Return a copy of this plan without the conditions of some filters, such as ``time``, or of all filters."""
        return replace(self, rows=frozenset(c for c in self.rows if filters and c.filter not in filters))

    def reopen(self) -> Plan:
        """Return a copy of this plan that opens its files again when they are first used.

        Captures that cannot be opened again are shared with this plan.
        """
        layers = self.layers and replace(self.layers, recorded=self.layers.recorded and self.layers.recorded.reopen())
        ncu = self.ncu and replace(self.ncu, results=self.ncu.results.reopen())
        graph = self.graph and self.graph.reopen()
        return replace(self, source=self.source.reopen(), layers=layers, ncu=ncu, graph=graph)


def _add_step(plan: Plan, step: PlanStep) -> Plan:
    """Return a plan with one additional step. The step is combined with an earlier one of its kind, or replaces it."""
    match step:
        case SelectTables(names):
            plan = replace(plan, tables=names if plan.tables is None else plan.tables & names)
        case SelectRows(conditions):
            plan = replace(plan, rows=plan.rows | conditions)
        case UseLayers():
            plan = replace(plan, layers=step)
        case Correlate():
            plan = replace(plan, correlated=True)
        case JoinNcu():
            plan = replace(plan, correlated=True, ncu=step)
        case RollUp(aggregation):
            plan = replace(plan, rollup=aggregation)
        case JoinGraph(graph):
            plan = replace(plan, rollup=plan.rollup or Aggregation(), graph=graph)
    return plan
