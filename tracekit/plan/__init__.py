"""Plans of traces, and the tables that they describe.

A plan is data: where the tables come from and what is done to them. ``tables_of`` turns it into tables that are
computed by column, when they are asked for.
"""

from tracekit.plan.base import Tables, to_frame
from tracekit.plan.plan import (
    Aggregation,
    Correlate,
    JoinGraph,
    JoinNcu,
    Plan,
    RollUp,
    Selection,
    SelectRows,
    SelectTables,
    Step,
)
from tracekit.plan.recorded import RecordedTables
from tracekit.plan.sources import InMemory, LiveCapture, OpenedFile
from tracekit.plan.stages import ROLLED_UP
from tracekit.plan.tables import rollup_of, tables_of
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
    "RecordedTables",
    "RollUp",
    "SelectRows",
    "SelectTables",
    "Selection",
    "Step",
    "Tables",
    "TraceView",
    "rollup_of",
    "tables_of",
    "to_frame",
]
