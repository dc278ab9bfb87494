"""The automatic answers of nsys-ai in the form of ``answers.schema.json``.

nsys-ai states findings, not causes. The tables below say which cause, or at least which class of causes, each kind of
finding means. They are generous: a finding that fits a cause counts as its name, also where the text leaves it open.
Findings with the severities "critical" and "warning" come before those with "info", which describe rather than blame,
and otherwise stay in the order of the tool. The estimate ``headroom_ms`` counts as a saving, as a share of the window
of its finding, and a kernel or copy that a finding points to counts as evidence.

The raw output is one folder with ``NAME.diagnose.json`` from ``nsys-ai diagnose NAME.sqlite --format json`` and
``NAME.rcm.json`` from ``nsys-ai skill run root_cause_matcher NAME.sqlite --format json``, each with what was printed to
standard error as ``.err``. ``NAME.sqlite`` is the export of ``NAME.nsys-rep`` by ``nsys export --type sqlite``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.answers import questions
from tests.benchmarks.answers.captures import LoadedCapture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.benchmarks.answers.questions import Question

VERSION = "0.3.0"
DATE = "2026-11-28"
MAPPING = "tests/benchmarks/answers/peer_nsys_ai.py"
NOTES = [
    "reports were exported to SQLite by nsys 2025.3.1, and read with duckdb 1.5.5",
    "of jobs with several ranks, each rank was analyzed alone, and all findings count",
    "the skill speedup_estimator needs figures that the user passes, so that it gives no automatic answer",
    "commands that ask a language model were not run",
]

_CLASS, _CAUSE = "class", "cause"
_ROWS: dict[str, tuple[str, str]] = {
    "kernel_hotspot": (_CLASS, "compute"),
    "top_kernel_dominates": (_CLASS, "compute"),
    "top_kernels_concentrated": (_CLASS, "compute"),
    "top_kernel_high_variability": (_CLASS, "compute"),
    "profile_kernel_hotspot": (_CLASS, "compute"),
    "tc_eligible_inactive": (_CAUSE, "precision"),
    "summary": (_CLASS, "host"),
    "profile_idle_dominant": (_CLASS, "host"),
    "small_kernel_overhead": (_CAUSE, "launch_overhead"),
    "long_nccl": (_CLASS, "communication"),
    "low_overlap": (_CAUSE, "communication_exposed"),
    "exposed_communication": (_CAUSE, "communication_exposed"),
    "communication_dominated": (_CAUSE, "communication_exposed"),
    "nccl_serialization": (_CAUSE, "communication_exposed"),
    "profile_comm_bound": (_CAUSE, "communication_exposed"),
    "allreduce_dominated": (_CLASS, "communication"),
    "high_variability": (_CAUSE, "late_rank"),
    "profile_sync_bound": (_CAUSE, "synchronization"),
}
"""What the kinds of rows of ``diagnose`` mean. Others, such as on the quality of the capture, mean no cause."""

_BOUNDS = {"cpu-bound": "host", "gpu-compute-bound": "compute", "comm-bound": "communication", "memcpy-bound": "copy"}
_GAPS = (
    (r"Synchronize", (_CAUSE, "synchronization")),
    (r"Malloc|Free|HostAlloc", (_CAUSE, "memory_allocation")),
    (r"Memcpy", (_CLASS, "copy")),
    (r"Launch", (_CAUSE, "launch_overhead")),
)
"""What the CPU does in a gap of ``gpu_idle_gaps`` means."""

_PATTERNS: dict[str, tuple[str, str]] = {
    "NCCL Serialization": (_CAUSE, "communication_exposed"),
    "Compute-Communication Imbalance": (_CAUSE, "communication_exposed"),
    "Layer NCCL Hotspot": (_CAUSE, "communication_exposed"),
    "Inefficient NCCL Communicator": (_CAUSE, "small_messages"),
    "Excessive H2D Transfers": (_CAUSE, "pageable_copy"),
    "Continuous H2D Transfers": (_CAUSE, "pageable_copy"),
    "H2D Transfer Spike": (_CLASS, "copy"),
    "Small Kernel Overhead": (_CAUSE, "launch_overhead"),
    "Kernel Hotspot": (_CLASS, "compute"),
    "Pipeline Imbalance": (_CAUSE, "imbalance"),
    "Layer Outlier": (_CLASS, "compute"),
    "Excessive Synchronization": (_CAUSE, "synchronization"),
    "Synchronous Memcpy": (_CAUSE, "pageable_copy"),
    "Pageable Memory in Async Memcpy": (_CAUSE, "pageable_copy"),
    "Synchronous Memset": (_CLASS, "host"),
}
"""What the patterns of ``root_cause_matcher`` mean."""

_BUBBLES = (
    (r"Over-Synchronization|Remove explicit cuda", (_CAUSE, "synchronization")),
    (r"DataLoader", (_CAUSE, "data_loading")),
    (r"blocking memory transfers", (_CAUSE, "pageable_copy")),
    (r"launch overhead", (_CAUSE, "launch_overhead")),
    (r"", (_CLASS, "host")),
)
"""What the recommendation of "GPU Bubbles (Pipeline Stalls)" means."""

_SEVERITIES = {"critical": 0, "warning": 0, "info": 1}
_HEALTHY = "No Known Anti-Patterns Detected"
_NO_KERNELS = "does not contain GPU kernel activity"


def map_diagnose(asked: Iterable[Question], folder: Path) -> dict[str, Any]:
    """Return the findings of ``nsys-ai diagnose`` as answers."""
    return _map(asked, folder, "diagnose", "nsys-ai diagnose FILE.sqlite --format json", _read_findings)


def map_root_causes(asked: Iterable[Question], folder: Path) -> dict[str, Any]:
    """Return the patterns of the skill ``root_cause_matcher`` as answers."""
    command = "nsys-ai skill run root_cause_matcher FILE.sqlite --format json"
    return _map(asked, folder, "rcm", command, _read_patterns)


def _map(
    asked: Iterable[Question], folder: Path, kind: str, command: str, read: Callable[[Any], Iterator[dict[str, Any]]]
) -> dict[str, Any]:
    rows = []
    for question in asked:
        paths = [
            folder / f"{Path(capture).name.removesuffix('.nsys-rep')}.{kind}.json" for capture in question.captures
        ]
        if question.form == "nsys" and all(path.exists() for path in paths):
            answer = _answer(paths, read, question.statuses)
            _add_evidence(answer, question)
            rows.append({"question": question.id, **answer})
    name = "nsys-ai diagnose" if kind == "diagnose" else "nsys-ai root_cause_matcher"
    return {
        "schema": questions.SCHEMA,
        "tool": {"name": name, "version": VERSION},
        "provenance": {"command": command, "date": DATE, "mapping": MAPPING, "notes": NOTES},
        "answers": rows,
    }


def _add_evidence(answer: dict[str, Any], question: Question) -> None:
    """Add the rows that have exactly the times to which a finding points."""
    paths, claims = question.find_captures(), answer.get("causes", ())
    if paths is None or not any("windows" in claim.get("place", ()) for claim in claims):
        return
    capture = LoadedCapture(paths)
    for claim in claims:
        windows = [(w["start_ns"], w["end_ns"]) for w in claim.get("place", {}).get("windows", ())]
        rows = capture.find_rows(windows) if windows else []
        if rows:
            claim["evidence"] = [{"table": table, "ids": ids} for table, ids in rows]


def _answer(
    paths: list[Path], read: Callable[[Any], Iterator[dict[str, Any]]], statuses: tuple[str, ...]
) -> dict[str, Any]:
    """Return the answer in the outputs for all ranks. Claims with the same cause become one.

    "This profile does not contain GPU kernel activity […]. It may have been captured without CUDA kernel tracing" means
    either that nothing can be explained, or that it was not recorded. The one that is right counts.
    """
    listed: list[tuple[int, dict[str, Any]]] = []
    for path in paths:
        text = path.read_text("utf-8").strip()
        if not text:
            reason = path.with_suffix(".err").read_text("utf-8").strip().splitlines()[-1]
            refusals = [s for s in ("not_recorded", "not_applicable") if s in statuses] or ["not_recorded"]
            return {"status": refusals[0] if _NO_KERNELS in reason else "unsure", "reason": reason}
        listed += [(claim.pop("rank_of_severity"), claim) for claim in read(json.loads(text))]
    merged: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    for _, claim in sorted(listed, key=lambda pair: pair[0]):
        first = merged.setdefault((claim.get("cause"), claim.get("class")), claim)
        if first is not claim:
            _merge(first, claim)
    claims = [_shorten(claim) for claim in merged.values()]
    return {"status": "answered", "causes": claims} if claims else {"status": "nothing_found"}


def _merge(first: dict[str, Any], other: dict[str, Any]) -> None:
    for name, values in other["place"].items():
        first["place"].setdefault(name, []).extend(v for v in values if v not in first["place"][name])
    first.setdefault("saving", other.get("saving"))


def _shorten(claim: dict[str, Any]) -> dict[str, Any]:
    place = {name: values[:5] for name, values in claim["place"].items() if values}
    rest = {name: value for name, value in claim.items() if value is not None and name != "place"}
    return rest | ({"place": place} if place else {})


def _read_findings(report: Any) -> Iterator[dict[str, Any]]:
    """Yield the claims in an ``EvidenceReport``."""
    for finding in report["findings"]:
        meaning = _interpret(finding)
        if meaning is None:
            continue
        kernel = next(
            (e["values"][key] for e in finding.get("evidence", ()) for key in ("kernel_name",) if key in e["values"]),
            None,
        )
        quoted = re.search(r"Kernel '(.+?)' ", finding["note"])
        name = kernel or (quoted[1] if quoted else None)
        start, end = finding["start_ns"], finding.get("end_ns")
        # A finding without an end has no time of its own.
        windows = [] if end is None or end <= start else [{"start_ns": start, "end_ns": end}]
        row = finding.get("provenance", {}).get("row_kind")
        is_local = row in ("per_gap", "kernel_hotspot", "long_nccl", None)
        yield {
            meaning[0]: meaning[1],
            "place": {"kernels": [name] if name else [], "windows": windows if is_local else []},
            "saving": _read_headroom(finding),
            "rank_of_severity": _SEVERITIES[finding["severity"]],
        }


def _interpret(finding: dict[str, Any]) -> tuple[str, str] | None:
    row = finding.get("provenance", {}).get("row_kind")
    if row == "bound_class":
        bound = next((kind for name, kind in _BOUNDS.items() if name in finding["label"]), None)
        return None if bound is None else (_CLASS, bound)
    if row == "per_gap":
        call = finding["note"].partition("CPU:")[2]
        return next((meaning for pattern, meaning in _GAPS if re.search(pattern, call)), (_CLASS, "host"))
    if row is None and "Transfer" in finding["label"]:
        return (_CLASS, "copy")
    return _ROWS.get(row or "")


def _read_headroom(finding: dict[str, Any]) -> dict[str, float] | None:
    headroom, end = finding.get("headroom_ms"), finding.get("end_ns")
    if headroom is None or end is None:
        return None
    return {"likely": round(min(1.0, headroom * 1e6 / (end - finding["start_ns"])), 4)}


def _read_patterns(patterns: Any) -> Iterator[dict[str, Any]]:
    """Yield the claims in the patterns that matched."""
    for pattern in patterns:
        name = pattern["pattern"]
        if name == "GPU Bubbles (Pipeline Stalls)":
            meaning = next(m for text, m in _BUBBLES if re.search(text, pattern["recommendation"]))
        elif name in _PATTERNS:
            meaning = _PATTERNS[name]
        elif name == _HEALTHY:
            continue
        else:
            raise ValueError(f"the pattern {name!r} has no meaning in peer_nsys_ai.py")
        kernel = re.match(r"'(.+?)' accounts for", pattern["evidence"])
        layer = re.match(r"'(.+?)' takes", pattern["evidence"])
        place = {"kernels": [kernel[1]] if kernel else [], "ranges": [layer[1]] if layer else []}
        yield {meaning[0]: meaning[1], "place": place, "rank_of_severity": _SEVERITIES[pattern["severity"]]}
