"""Compute the reports and apply the rules of traces, sets of traces, or captures at a path."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeAlias

from tracekit.sets.trace_set import open_captures

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    import polars as pl

    from tracekit.sets import TraceSet
    from tracekit.text.names import ReportName, RuleName
    from tracekit.trace import Trace

    Captures: TypeAlias = Trace | TraceSet | str | os.PathLike[str]


def stats(trace: Captures, report: ReportName, *, options: Mapping[str, bool | int] | None = None) -> pl.DataFrame:
    """Return the rows of a report, with the columns, order and numbers of the tool that defined it.

    Args:
        trace: A trace, a set of traces, the path of a capture, a folder of captures, or a pattern. For DLProf reports,
            a trace may be rolled up with a key op or iterations. For several captures, the first column is ``rank``.
        report: Name of a report of nsys (``cuda_gpu_kern_sum``), of DLProf (``detailed``) or of tracekit (``advise``).
            Former names of nsys reports, such as ``gpukernsum``, are accepted.
        options: Values of options of the report, by option name, such as ``{"base": True}``. Options can also follow
            the name after colons, as in ``cuda_gpu_kern_sum:base``.

    Returns:
        One row per line of the report. The frame has no rows if the capture has no data for the report.

    Raises:
        UnknownFormatError: The report or one of its options does not exist.
        TracekitError: A file cannot be read.

    Examples:
        >>> import tracekit as tk
        >>> report = tk.stats("fixtures/graph_node.sqlite", "cuda_gpu_kern_sum")
        >>> report.columns[:3], report.height
        (['Time (%)', 'Total Time (ns)', 'Instances'], 5)
    """
    with _open(trace) as opened:
        return opened.stats(report, options=options)


def analyze(trace: Captures, rule: RuleName, *, options: Mapping[str, bool | int] | None = None) -> pl.DataFrame:
    """Return the rows that a rule finds, with the columns, order and numbers of ``nsys analyze``.

    Args:
        trace: A trace, a set of traces, the path of a capture, a folder of captures, or a pattern. For several
            captures, the first column is ``rank``.
        rule: Name of the rule.
        options: Values of options of the rule, by option name, such as ``{"gap": 10}``. Options can also follow the
            name after colons, as in ``gpu_gaps:gap=10:rows=5``.

    Returns:
        One row per finding, the most important ones first. The frame has no rows if the rule finds nothing.

    Raises:
        UnknownFormatError: The rule or one of its options does not exist, or the value of an option is not allowed.
        TracekitError: A file cannot be read.

    Examples:
        >>> import tracekit as tk
        >>> gaps = tk.analyze("fixtures/train_amp.sqlite", "gpu_gaps", options={"gap": 40})
        >>> gaps.columns[:3], gaps.height
        (['Row#', 'Duration (ns)', 'Start (ns)'], 2)
    """
    with _open(trace) as opened:
        return opened.analyze(rule, options=options)


def _open(trace: Captures) -> AbstractContextManager[Trace | TraceSet]:
    """Open the captures at a path, which are closed at the end of a ``with`` statement. A trace is left open."""
    return open_captures(trace) if isinstance(trace, str | os.PathLike) else nullcontext(trace)
