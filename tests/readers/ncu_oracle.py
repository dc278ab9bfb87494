"""Compare what is read of a report with NVIDIA's ``ncu_report``: ``python -m tests.readers.ncu_oracle FILE``.

It prints counts as JSON: ``=metrics`` and the like are equal, the others differ. Texts are private and not printed.
Which unit ``ncu_report`` gives a derived metric depends on what it was asked before, also of other reports. So there is
one report a process, and units are asked for first, in its own order of the metrics.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ncu_report
import tracekit as tk
from tracekit.readers.ncu_rep.rows import replace_links

KINDS = {0: "kernel", 1: "range", 2: "cmdlist", 3: "graph"}
DEFAULT = "<default domain>"
PAYLOADS = {None: 0, "uint64": 1, "int64": 2, "double": 3, "uint32": 4, "int32": 5, "float": 6, "json": 7}
SPEEDUPS = {0: None, 1: "local", 2: "global"}
TYPES = {"NONE": "INF", "OK": "INF", "OPTIMIZATION": "OPT", "WARNING": "WRN", "ERROR": "ERR"}
Rows = dict[int, list[dict[str, Any]]]


def actions(path: Path) -> list[Any]:
    """The results of a report; with the report, which owns them."""
    opened = ncu_report.load_report(str(path))
    ranges = [opened.range_by_idx(i) for i in range(opened.num_ranges())]
    return [opened, *(r.action_by_idx(i) for r in ranges for i in range(r.num_actions()))]


def by_launch(trace: tk.Trace, table: str) -> Rows:
    found: Rows = defaultdict(list)
    for row in trace[table].to_pylist():
        found[row["launch_id"]].append(row)
    return found


def differences(path: Path) -> Counter[str]:
    """Count what is equal, ``=metrics``, and what is not."""
    found: Counter[str] = Counter()
    _, *theirs = actions(path)
    units = [{n: a.metric_by_name(n).unit() or None for n in a.metric_names()} for a in theirs]
    with tk.load(path) as trace:
        ours = trace["ncu_launches"].to_pylist()
        metrics, ranges, rules = (by_launch(trace, t) for t in ("ncu_metrics", "ncu_nvtx_ranges", "ncu_rules"))
        instances = by_launch(trace, "ncu_metric_instances")
    found["launches"] += len(ours) != len(theirs)
    for row, action in zip(ours, theirs, strict=True):
        number = row["launch_id"]
        found.update(_launch(row, action))
        found.update(_metrics(metrics[number], action, units[number]))
        found.update(_instances(instances[number], action))
        found.update(_ranges(ranges[number], action.nvtx_state()))
        spoken = (r.has_rule_message() for r in action.rule_results())
        found.update(_rules(rules[number], itertools.compress(action.rule_results_as_dicts(), spoken)))
    return +found


def _launch(row: dict[str, Any], action: Any) -> Counter[str]:
    names = [action.name(b) for b in (action.NameBase_DEMANGLED, action.NameBase_FUNCTION, action.NameBase_MANGLED)]
    kind = KINDS[action.workload_type()]
    ours = [row["name"], row["short_name"], row["mangled_name"]]
    same = ours == names if kind == "kernel" else ours == [names[0], None, None]
    return Counter({"=launches" if same and row["kind"] == kind else "launch": 1})


def _metrics(rows: list[dict[str, Any]], action: Any, units: dict[str, str | None]) -> Counter[str]:
    found = Counter({"metric names": len({r["metric"] for r in rows} ^ units.keys())})
    for row in rows:
        metric = action.metric_by_name(row["metric"])
        same = [
            _same_value(row, metric.value()),
            row["unit"] == units[row["metric"]] or row["text"] is not None,
            row["instances"] == metric.num_instances(),
        ]
        wrong = [name for name, fits in zip(("value", "unit", "instances"), same, strict=True) if not fits]
        found.update(wrong or ["=metrics"])
    return found


def _instances(rows: list[dict[str, Any]], action: Any) -> Counter[str]:
    """Values of all instances of a result, and what they are of; ``ncu_report`` gives 0 for what has no value."""
    ours: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        ours[row["metric"]].append(row)
    found: Counter[str] = Counter()
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        of = metric.correlation_ids() if metric.num_instances() and metric.has_correlation_ids() else None
        for i, row in enumerate(ours.pop(name, [])):
            same = _same_value(row, metric.value(i))
            if of is not None:
                label, theirs = row["correlation"], of.value(i)
                whole = row["correlation_id"]
                same = same and (label == theirs if label is not None else (whole or 0) % (1 << 64) == theirs)
            found.update(["=instances" if same else "instances"])
    return found + Counter({"instances of no metric": sum(map(len, ours.values()))})


def _same_value(row: dict[str, Any], theirs: Any) -> bool:
    """Whether a value is the same; for a metric without value ``ncu_report`` gives None, or 0 if it has instances."""
    value, text = row["value"], row["text"]
    if isinstance(theirs, str):
        return value is None and (text or "") == theirs
    if value is None:
        return text is None and theirs in {None, 0}
    return value == theirs or (math.isnan(value) and math.isnan(theirs))


def _ranges(rows: list[dict[str, Any]], state: Any) -> Counter[str]:
    theirs: dict[str, list[tuple[Any, ...]]] = {"push_pop": [], "start_end": []}
    for domain in () if state is None else map(state.domain_by_id, state.domains()):
        for i in range(len(domain.push_pop_ranges())):
            theirs["push_pop"].append((domain.name(), *_range(domain.push_pop_range(i))))
        for i in range(len(domain.start_end_ranges())):
            theirs["start_end"].append((domain.name(), *_range(domain.start_end_range(i))))
    found: Counter[str] = Counter()
    for kind, expected in theirs.items():
        ours = [_as_theirs(r) for r in rows if r["kind"] == kind]
        found.update({"=ranges" if ours == expected else "ranges": max(len(ours), len(expected))})
    return found


def _range(found: Any) -> tuple[Any, ...]:
    if not found.has_attributes():
        return found.name(), 0, 0, 0, 0, 0.0, ""
    given = found.payload_as_uint64(), found.payload_as_double()
    return found.name(), found.category(), found.color(), found.payload_type(), *given, found.payload_as_string()


def _as_theirs(row: dict[str, Any]) -> tuple[Any, ...]:
    whole, real = row["payload_int"], row["payload_float"]
    unsigned = 0 if whole is None else whole % (1 << 64)
    as_double = unsigned if row["payload_type"] == "uint64" else whole
    return (
        row["domain"] or DEFAULT, row["name"], row["category_id"] or 0, row["color"] or 0,
        PAYLOADS[row["payload_type"]], unsigned, float(as_double or 0) if real is None else real,
        row["payload_text"] or "",
    )  # fmt: skip


def _rules(rows: list[dict[str, Any]], results: Iterable[dict[str, Any]]) -> Counter[str]:
    theirs = []
    for given in results:
        message, speedup = given["rule_message"], given.get("speedup_estimation", {})
        kind = SPEEDUPS[int(speedup.get("type", 0))]
        theirs.append((
            given["rule_identifier"], given["name"], given["section_identifier"], message["title"] or None,
            replace_links(message["message"]),
            TYPES[ncu_report.MsgType(message["type"]).name], kind, speedup.get("speedup"),
        ))  # fmt: skip
    columns = ("rule_id", "rule", "section_id", "title", "message", "type", "speedup_type", "speedup_percent")
    ours = [tuple(r[c] for c in columns) for r in rows]
    return Counter({"=messages" if ours == theirs else "messages": max(len(ours), len(theirs))})


if __name__ == "__main__":
    print(json.dumps(differences(Path(sys.argv[1]))))
