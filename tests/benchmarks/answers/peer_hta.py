"""The automatic answers of Holistic Trace Analysis (HTA) in the form of ``answers.schema.json``.

HTA measures, and names no causes: its functions return shares of times. The rule here is generous. The temporal
breakdown divides the time into computing, other GPU work and idle time. Each share of 10 % or more is a statement, the
largest one first: computing, that kernels take the time; other work, that copies or communication do, whatever takes
longer; idle time, that the GPU waits for the host, except for gaps between kernels that were already launched ("kernel
wait"). Where the breakdown fails, idle time is the statement. What bounds most of the critical path follows. A
straggler that HTA names is a late rank, and comes first. HTA predicts no savings and names no ranges.

``run_hta.py`` writes the raw output, a file ``NAME.json`` for each trace ``NAME.pt.trace.json.gz``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.answers import questions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.benchmarks.answers.questions import Question

DATE = "2026-11-28"
MAPPING = "tests/benchmarks/answers/peer_hta.py"
NOTES = [
    "run with pandas 2.3.3: with pandas 3, which its requirements allow, the critical path fails",
    "the critical path needs the annotations ProfilerStep, which most of these traces lack",
    "no trace of a job with several ranks is among the captures, so that the analysis of stragglers was not run",
]
SUFFIX = ".pt.trace.json.gz"
_BOUNDS = {
    "cpu_bound": "host",
    "gpu_kernel_launch_overhead": "host",
    "gpu_kernel_kernel_overhead": "host",
    "gpu_compute_bound": "compute",
    "gpu_communication_bound": "communication",
}
_KERNELS = 5
_MIN_PERCENT = 10.0
"""Share of the time, in percent, from which on it is a statement."""

_OTHERS = "others"
"""Name under which HTA sums all further kernels."""


def map_analyses(asked: Iterable[Question], folder: Path) -> dict[str, Any]:
    """Return the shares that HTA measures as answers."""
    rows, version = [], ""
    for question in asked:
        path = folder / f"{Path(question.captures[0]).name.removesuffix(SUFFIX)}.json"
        if question.form != "pytorch" or not path.exists():
            continue
        raw = json.loads(path.read_text("utf-8"))
        version = raw["version"]
        claims: dict[str, dict[str, Any]] = {}
        for claim in _read(raw):
            claims.setdefault(claim.get("cause") or claim["class"], claim)
        status = "answered" if claims else "unsure"
        rows.append({"question": question.id, "status": status, "causes": list(claims.values())})
    command = "TraceAnalysis: critical_path_analysis, get_temporal_breakdown, get_idle_time_breakdown, "
    return {
        "schema": questions.SCHEMA,
        "tool": {"name": "HTA", "version": version},
        "provenance": {
            "command": command + "get_gpu_kernel_breakdown, get_potential_stragglers",
            "date": DATE,
            "mapping": MAPPING,
            "notes": NOTES,
        },
        "answers": rows,
    }


def _read(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the statements of HTA, the most important one first."""
    yield from ({"cause": "late_rank", "place": {"rank": rank}} for rank in _records(raw["stragglers"])[:1])
    idle = {row["idle_category"]: row["idle_time"] for row in _records(raw["idle"]) if row["idle_time"]}
    times = _records(raw["temporal"])
    if times:
        shares = {name: times[0][f"{name}_time_pctg"] for name in ("idle", "compute", "non_compute")}
        large = [name for name in sorted(shares, key=lambda name: -shares[name]) if shares[name] >= _MIN_PERCENT]
        yield from (_state(_classify(name, raw, idle), raw) for name in large)
    elif idle:
        yield _state(_classify("idle", raw, idle), raw)
    path = raw["critical_path"]
    if path is not None and "error" not in path:
        bounds = dict.fromkeys(_BOUNDS.values(), 0.0)
        for name, share in path["summary"].items():
            if name in _BOUNDS:
                bounds[_BOUNDS[name]] += share
        yield _state(max(bounds, key=lambda kind: bounds[kind]), raw)


def _records(value: Any) -> list[Any]:
    """Return the rows of a table, or none if HTA failed."""
    return value if isinstance(value, list) else []


def _classify(name: str, raw: dict[str, Any], idle: dict[str, float]) -> str:
    """Return the class that the largest share of the temporal breakdown means."""
    if name == "compute":
        return "compute"
    if name == "idle":
        return "compute" if idle and max(idle, key=lambda kind: idle[kind]) == "kernel_wait" else "host"
    types = {row["kernel_type"]: row["sum"] for row in raw["kernels"]["types"]} if "types" in raw["kernels"] else {}
    return "communication" if types.get("COMMUNICATION", 0) > types.get("MEMORY", 0) else "copy"


def _state(kind: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Return a statement of a class; that on computing comes with the kernels that take most time."""
    kernels = raw["kernels"].get("kernels", []) if kind == "compute" else []
    names = [row["name"] for row in kernels if row["kernel_type"] == "COMPUTATION" and row["name"] != _OTHERS][
        :_KERNELS
    ]
    return {"class": kind} | ({"place": {"kernels": names}} if names else {})
