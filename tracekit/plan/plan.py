"""What a trace consists of, as data: its source, and what is selected, joined and computed.

The verbs of a trace are steps. Steps in any order lead to one canonical plan, by these rules:

- Rows are selected among what was recorded. Whatever is rolled up or joined with a graph is computed from the selected
  rows. Correlation is not: the kernels of a selection keep the API calls and ranges that lie outside of it.
- Tables that are not selected are empty, also for correlation and for joining Nsight Compute results; except that
  projections of ranges are computed from all tables. A roll-up is computed from all tables.
- Selections add up: rows have to meet all of them, and tables have to be in each of them.
- Joining Nsight Compute results correlates, and joining a graph rolls up.
- A later roll-up or join replaces an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from tracekit.plan.recorded import RecordedTables


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions that rows have to meet; None selects all of them.

    Attributes:
        time: Rows that overlap ``[a, b)`` ns since the trace origin; either end may be None.
        devices: Rows of these devices, in tables that have devices.
        domains: NVTX ranges and marks of these domains; "" is the default domain.
        min_duration_ns: Rows with at least this duration, in tables that have durations.
    """

    time: tuple[int | None, int | None] | None = None
    devices: tuple[int, ...] | None = None
    domains: tuple[str, ...] | None = None
    min_duration_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Parameters of a roll-up: how ops are recognised, and which iterations count.

    Attributes:
        key_op: Id or name of the op that delimits iterations; None uses that of the dialect.
        iterations: First and last iteration that count, both inclusive; None is the very first or last.
        dialect: Conventions by which the ranges are named; None uses the first dialect that recognises them.
        tensor_cores: Rules for Tensor Core kernels: all that are known, or everything as in DLProf 1.8.0.
    """

    key_op: str | None = None
    iterations: tuple[int | None, int | None] | None = None
    dialect: str | None = None
    tensor_cores: Literal["extended", "dlprof"] = "extended"


@dataclass(frozen=True, slots=True)
class SelectTables:
    """Keep the rows of some tables; the others are empty."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class SelectRows:
    """Keep rows that meet some conditions."""

    selection: Selection


@dataclass(frozen=True, slots=True)
class Correlate:
    """Add the columns of correlation."""


@dataclass(frozen=True, slots=True)
class JoinNcu:
    """Add metrics of Nsight Compute to kernels.

    Attributes:
        results: Plan of the trace with the results.
        metrics: Names of the metrics; None is all of them.
    """

    results: Plan
    metrics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class RollUp:
    """Add the tables and columns of a roll-up."""

    aggregation: Aggregation = Aggregation()


@dataclass(frozen=True, slots=True)
class JoinGraph:
    """Add the nodes of a graph, with the figures of their ops.

    Attributes:
        graph: Plan of the trace with the graph.
    """

    graph: Plan


Step: TypeAlias = SelectTables | SelectRows | Correlate | JoinNcu | RollUp | JoinGraph


@dataclass(frozen=True, slots=True)
class Plan:
    """The canonical form of what a trace consists of.

    Attributes:
        source: The tables as recorded.
        tables: Names of the selected tables; None is all of them.
        rows: Conditions that all selected rows meet.
        correlated: Whether the columns of correlation are added.
        ncu: Results of Nsight Compute that are joined with kernels.
        rollup: Parameters of the roll-up, if there is one.
        graph: Plan of the graph that is joined with ops.
    """

    source: RecordedTables
    tables: frozenset[str] | None = None
    rows: frozenset[Selection] = frozenset()
    correlated: bool = False
    ncu: JoinNcu | None = None
    rollup: Aggregation | None = None
    graph: Plan | None = None

    def then(self, *steps: Step) -> Plan:
        """Return the canonical plan with more steps."""
        plan = self
        for step in steps:
            plan = _after(plan, step)
        return plan

    @property
    def sources(self) -> tuple[RecordedTables, ...]:
        """The sources of this plan and of the plans that are joined with it."""
        joined = [*([] if self.ncu is None else [self.ncu.results]), *([] if self.graph is None else [self.graph])]
        return (self.source, *(source for plan in joined for source in plan.sources))

    def reopened(self) -> Plan:
        """Return the same plan with sources of its own, which are opened when they are first used."""
        ncu = self.ncu and replace(self.ncu, results=self.ncu.results.reopened())
        graph = self.graph and self.graph.reopened()
        return replace(self, source=self.source.reopened(), ncu=ncu, graph=graph)


def _after(plan: Plan, step: Step) -> Plan:
    """Return the canonical plan with one more step."""
    match step:
        case SelectTables(names):
            return replace(plan, tables=names if plan.tables is None else plan.tables & names)
        case SelectRows(selection):
            return replace(plan, rows=plan.rows | ({selection} - {Selection()}))
        case Correlate():
            return replace(plan, correlated=True)
        case JoinNcu():
            return replace(plan, correlated=True, ncu=step)
        case RollUp(aggregation):
            return replace(plan, rollup=aggregation)
        case JoinGraph(graph):
            return replace(plan, rollup=plan.rollup or Aggregation(), graph=graph)
