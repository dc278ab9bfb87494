"""Build the tables that result from the steps of a plan: layers, selection, correlation, joins and the roll-up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit.plan.plan import Aggregation, Plan
from tracekit.plan.rows import SelectedRows, SelectedTables
from tracekit.plan.stages import PROJECTIONS, Correlated, GraphJoined, Layered, NcuJoined, RolledUp, SharedRollup

if TYPE_CHECKING:
    from weakref import WeakValueDictionary

    from tracekit.core.rollup import Rollup
    from tracekit.registry.tables import CachedTables


def get_tables(plan: Plan) -> CachedTables:
    """Return the tables of a plan. Equal plans with the same source share their tables and the computed results."""
    stages = plan.source.stages
    tables = stages.get(plan)
    if tables is None:
        tables = _build_tables(plan)
        if tables is not plan.source:
            stages[plan] = tables
    return tables


def get_rollup(plan: Plan) -> Rollup:
    """Return the roll-up of a plan or, if the plan has none, a roll-up with the default parameters."""
    return get_shared_rollup(plan).rollup()


def _build_tables(plan: Plan) -> CachedTables:
    """Return the tables of a plan, computed by applying its last step to the tables of the plan without this step."""
    if plan.graph is not None:
        ops = get_tables(Plan(plan.source, rows=plan.rows, layers=plan.layers, rollup=plan.rollup))
        return _select_tables(plan, GraphJoined(get_tables(replace(plan, graph=None)), get_tables(plan.graph), ops))
    if plan.rollup is not None:
        return _select_tables(plan, RolledUp(get_tables(replace(plan, rollup=None)), get_shared_rollup(plan)))
    return _build_tables_without_rollup(plan)


def _build_tables_without_rollup(plan: Plan) -> CachedTables:
    """Return the tables of a plan that has neither a roll-up nor a graph."""
    if plan.rows:
        return SelectedRows(get_tables(replace(plan, rows=frozenset())), plan.rows)
    if plan.ncu is not None:
        results = get_tables(plan.ncu.results)
        return _select_tables(plan, NcuJoined(get_tables(replace(plan, ncu=None)), results, plan.ncu.metrics))
    if plan.correlated and (plan.tables is None or PROJECTIONS not in plan.tables):
        return Correlated(get_tables(replace(plan, correlated=False)))
    if plan.tables is not None:
        return SelectedTables(get_tables(replace(plan, tables=None)), plan.tables)
    if plan.layers is None:
        return plan.source
    recorded = plan.layers.recorded
    return Layered(plan.source, *(() if recorded is None else (get_tables(recorded), recorded.source.path)))


def _select_tables(plan: Plan, tables: CachedTables) -> CachedTables:
    """Return a view in which tables that the plan does not select are empty, or ``tables`` if it selects all tables."""
    return tables if plan.tables is None else SelectedTables(tables, plan.tables)


def get_shared_rollup(plan: Plan) -> SharedRollup:
    """Return the roll-up of a plan. Plans with equal layers, row filters and parameters share one roll-up.

    The roll-up is computed from the selected rows of all tables.
    """
    aggregation = plan.rollup or Aggregation()
    shared: WeakValueDictionary[tuple[Plan, Aggregation], SharedRollup] = plan.source.rollups
    selected = Plan(plan.source, rows=plan.rows, layers=plan.layers)
    rollup = shared.get((selected, aggregation))
    if rollup is None:
        known = [
            r for (plan, other), r in list(shared.items()) if plan == selected and _have_same_ops(other, aggregation)
        ]
        same_ops = known[0] if known else None
        rollup = shared[selected, aggregation] = SharedRollup(get_tables(selected), aggregation, same_ops)
    return rollup


def _have_same_ops(first: Aggregation, second: Aggregation) -> bool:
    """Return whether roll-ups of the same events with these parameters have the same ops."""
    return (first.dialect, first.tensor_cores) == (second.dialect, second.tensor_cores)
