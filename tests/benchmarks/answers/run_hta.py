"""Run the automatic analyses of HolisticTraceAnalysis on one trace: ``python run_hta.py TRACE OUT.json``.

It runs in an environment with ``HolisticTraceAnalysis==0.5.0`` and ``pandas<3``, without tracekit. An analysis that
fails is stored with its error.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from hta.trace_analysis import TraceAnalysis


def main(trace: str, out: str) -> int:
    """Write what HTA computes for a trace as JSON, and return the exit status."""
    from hta.trace_analysis import TraceAnalysis

    path = Path(trace).resolve()
    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
    results = {name: _try(function, analysis) for name, function in ANALYSES.items()}
    Path(out).write_text(json.dumps({"version": version("HolisticTraceAnalysis"), **results}, indent=1), "utf-8")
    return 0


def _try(function: Callable[[TraceAnalysis], Any], analysis: TraceAnalysis) -> Any:
    try:
        return function(analysis)
    except Exception as error:  # noqa: BLE001 - whatever fails is reported
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def _rows(frame: pd.DataFrame) -> Any:
    return json.loads(frame.to_json(orient="records"))


def _kernels(analysis: TraceAnalysis) -> Any:
    types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
    return {"types": _rows(types), "kernels": _rows(kernels.sort_values("sum (us)", ascending=False).head(5))}


def _critical_path(analysis: TraceAnalysis) -> Any:
    """Return the shares of the critical path of all steps, or None without steps."""
    steps = analysis.get_profiler_steps()
    span = (0, len(steps) - 1) if len(steps) > 1 else None
    result = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=span)
    if result is None:
        return None
    graph, is_valid = result
    summary = {str(name): float(share) for name, share in graph.summary().items()}
    return {"ok": bool(is_valid), "steps": len(steps), "summary": summary}


ANALYSES: dict[str, Callable[[TraceAnalysis], Any]] = {
    "temporal": lambda analysis: _rows(analysis.get_temporal_breakdown(visualize=False)),
    "idle": lambda analysis: _rows(analysis.get_idle_time_breakdown(visualize=False)[0]),
    "kernels": _kernels,
    "critical_path": _critical_path,
    "stragglers": lambda analysis: [int(rank) for rank in analysis.get_potential_stragglers()],
}

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
