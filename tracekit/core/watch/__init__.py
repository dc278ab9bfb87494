"""Compare the ranks of a job window by window, without reading any capture twice.

``summary`` reduces a capture to a small summary, and merges summaries. ``windows`` decides which captures of different
ranks belong together. ``comparison`` finds the ranks that are late and the phases in which they lose time, and
``alarms`` describes them.
"""

from tracekit.core.watch.alarms import (
    ALARM_KINDS,
    SCHEMA,
    Alarm,
    AlarmCause,
    AlarmWindow,
    create_alarm_window,
    describe_broken_capture,
    describe_findings,
    describe_missing_ranks,
    identify,
)
from tracekit.core.watch.comparison import Limits, compare_ranks
from tracekit.core.watch.summary import (
    SCHEMA_VERSION,
    CaptureSummary,
    map_processes_to_ranks,
    merge_summaries,
    summarize_capture,
)
from tracekit.core.watch.windows import RULES, CapturePlace, MatchRule, WatchWindow, choose_window

__all__ = [
    "ALARM_KINDS",
    "RULES",
    "SCHEMA",
    "SCHEMA_VERSION",
    "Alarm",
    "AlarmCause",
    "AlarmWindow",
    "CapturePlace",
    "CaptureSummary",
    "Limits",
    "MatchRule",
    "WatchWindow",
    "choose_window",
    "compare_ranks",
    "create_alarm_window",
    "describe_broken_capture",
    "describe_findings",
    "describe_missing_ranks",
    "identify",
    "map_processes_to_ranks",
    "merge_summaries",
    "summarize_capture",
]
