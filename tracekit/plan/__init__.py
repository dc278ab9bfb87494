"""Plans of traces, and the tables that result from a plan.

A plan states where the tables of a trace come from, and how they are selected, correlated, joined and rolled up.
``get_tables`` returns the tables of a plan. A column is computed when it is first read.
"""

from tracekit.plan.plan import (
    Aggregation,
    Correlate,
    JoinGraph,
    JoinNcu,
    Plan,
    PlanStep,
    RollUp,
    SelectRows,
    SelectTables,
    UseLayers,
)
from tracekit.plan.recorded import RecordedTables
from tracekit.plan.sources import InMemory, LiveCapture, OpenedFile
from tracekit.plan.stages import ROLLED_UP
from tracekit.plan.tables import get_rollup, get_tables
from tracekit.plan.view import TraceView

__all__ = [
    "ROLLED_UP",
    "Aggregation",
    "Correlate",
    "InMemory",
    "JoinGraph",
    "JoinNcu",
    "LiveCapture",
    "OpenedFile",
    "Plan",
    "PlanStep",
    "RecordedTables",
    "RollUp",
    "SelectRows",
    "SelectTables",
    "TraceView",
    "UseLayers",
    "get_rollup",
    "get_tables",
]
