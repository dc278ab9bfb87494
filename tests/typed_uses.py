"""Right and wrong uses of the public interface, which mypy checks: each wrong use is an error that is expected.

mypy is strict and reports comments that ignore no error, so a wrong use that passes is an error, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import polars as pl
import tracekit as tk
from tracekit.text.names import ReportName, TableName


def right(trace: tk.Trace, traces: tk.TraceSet) -> None:
    """Use the public interface as documented."""
    assert_type(trace.frame("kernels", names="string"), pl.LazyFrame)
    assert_type(trace.stats("cuda_gpu_kern_sum", options={"base": True}), pl.DataFrame)
    assert_type(tk.stats("report.nsys-rep", "cuda_gpu_kern_sum:base"), pl.DataFrame)
    assert_type(tk.stats(Path("ranks"), "advise"), pl.DataFrame)
    assert_type(tk.analyze(trace, "gpu_gaps", options={"gap": 100, "rows": 5}), pl.DataFrame)
    assert_type(tk.analyze(traces, "gpu_gaps"), pl.DataFrame)
    assert_type(traces.recipe("iteration_spread"), dict[str, pl.DataFrame])
    assert_type(trace.tables, list[TableName])
    tk.load("report.nsys-rep", "nsys-rep")
    tk.load("report", "format-of-a-plug-in")
    for table in trace.tables:
        trace.frame(table).collect()
        trace.select(tables=[table])
    report: ReportName = "advise"
    trace.report(report)
    trace.report("gpu_gaps")
    traces.stats(report)
    traces.frame("ops", names="string")


def wrong(trace: tk.Trace, traces: tk.TraceSet) -> None:
    """Use names that do not exist."""
    trace.fraem("kernels")  # type: ignore[attr-defined]
    trace.counts  # type: ignore[attr-defined]  # noqa: B018
    traces.fraem("kernels")  # type: ignore[attr-defined]
    tk.laod("report.nsys-rep")  # type: ignore[attr-defined]
    trace.frame("kernals")  # type: ignore[arg-type]
    trace.frame("kernels", names="strings")  # type: ignore[arg-type]
    trace.table("kernel")  # type: ignore[arg-type]
    trace["kernel"]  # type: ignore[index]
    trace.count("kernel")  # type: ignore[arg-type]
    trace.schema("kernel")  # type: ignore[arg-type]
    trace.select(tables=["kernel"])  # type: ignore[list-item]
    trace.export("out", tables=["kernel"])  # type: ignore[list-item]
    trace.stats("cuda_gpu_kern_sun")  # type: ignore[arg-type]
    trace.stats("gpu_gaps")  # type: ignore[arg-type]
    trace.analyze("gaps")  # type: ignore[arg-type]
    trace.report("cuda_gpu_kern_sum:bare")  # type: ignore[arg-type]
    traces.frame("kernals")  # type: ignore[arg-type]
    traces.stats("cuda_gpu_kern_sun")  # type: ignore[arg-type]
    traces.recipe("iteration_spraed")  # type: ignore[arg-type]
    tk.stats(trace, "advice")  # type: ignore[arg-type]
    tk.stats(3, "advise")  # type: ignore[arg-type]
    tk.analyze("report.nsys-rep", "advise")  # type: ignore[arg-type]
