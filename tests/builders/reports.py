"""Compute reports and rules from tables, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.core import reports
from tracekit.registry.analyses import REPORT, RULE, list_analyses, list_names, parse_name

if TYPE_CHECKING:
    from tracekit.core.reports.report import Frames, Prefetch


REPORTS_OF_NSYS = [name for name, report in list_analyses(REPORT).items() if report.origin == "nsys"]
RULES_OF_NSYS = [name for name, rule in list_analyses(RULE).items() if rule.origin == "nsys"]
RULES = list_names(RULE)


def compute_report(frames: Frames, name: str, prefetch: Prefetch | None = None, **inputs: Any) -> reports.ReportTable:
    """Compute a report or apply a rule. ``inputs`` are further attributes of ``Request``."""
    analysis, values = parse_name(name)
    return reports.compute(analysis, reports.Request(frames, analysis.resolve_options(values), **inputs), prefetch)
