"""The figures behind each finding are what a query over the tables gives: here one in plain Python."""

from __future__ import annotations

import functools
import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit.core import tensor_cores
from tracekit.core.advise import RULES, apply_rules
from tracekit.core.advise.kernels import GENERATED_PATTERN, PRODUCT_PATTERN
from tracekit.core.idle import CAUSES
from tracekit.core.overruns import STREAM
from tracekit.core.rollup.breakdown import LOADER_NAME_PATTERN
from tracekit.plan.tables import get_rollup

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Interval = tuple[int, int]
Row = dict[str, Any]
CAPTURES = [*sorted(FIXTURES.glob("*.nsys-rep")), *sorted((FIXTURES / "ops").glob("*.nsys-rep"))]
ON_GPU = ("kernels", "memcpys", "memsets", "graph_launches")


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Join intervals that meet or touch."""
    made: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[0] < i[1]):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(end, made[-1][1]))
        else:
            made.append((start, end))
    return made


def both(left: Iterable[Interval], right: Iterable[Interval]) -> list[Interval]:
    """Intersect every interval with every other."""
    cut = [(max(a, c), min(b, d)) for a, b in left for c, d in right]
    return [i for i in cut if i[0] < i[1]]


def total(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)


@functools.cache
def tables_of(path: Path) -> Tables:
    """Return the tables of a capture, which are read once."""
    return Tables(path)


class Tables:
    """The tables of a capture, rolled up and correlated, as rows."""

    def __init__(self, path: Path) -> None:
        with tk.load(path) as trace:
            made = trace.correlate().rollup(include_warm_up=False)
            names = (*ON_GPU, "api_calls", "iterations", "op_instances", "ops")
            self.rows = {n: made.frame(n).collect().to_dicts() for n in names}
            self.findings = apply_rules(get_rollup(made._plan)).to_dicts()
            kernels = made.frame("kernels").select(pl.col("name").cast(pl.String)).collect()
        uses = kernels.select(tensor_cores.uses_tensor_cores_expr(pl.col("name"))).to_series().to_list()
        for row, used in zip(self.rows["kernels"], uses, strict=True):
            row["uses"] = used
        chosen = [i for i in self.rows["iterations"] if i["is_aggregated"]]
        self.numbers = {i["iteration"] for i in chosen}
        self.bounds = [(i["start_ns"], i["end_ns"]) for i in chosen]
        self.whole = chosen[0]["name"] is None
        inside = [i["start_ns"] for i in self.rows["op_instances"] if i["iteration"] in self.numbers]
        windows = union((i["window_start_ns"], i["window_end_ns"]) for i in chosen)
        self.windows = both(windows, [(min(inside, default=0), 1 << 62)])
        self.length = total(self.windows)
        self.iterations = len(chosen)

    def begins_inside(self, row: Row) -> bool:
        """Whether something begins within an iteration."""
        return self.whole or any(start <= row["start_ns"] < end for start, end in self.bounds)

    def gpu(self, *tables: str) -> list[tuple[Interval, Row]]:
        """What the iterations launched on GPUs, in order."""
        rows = [{**r, "table": t} for t in tables for r in self.rows[t] if r["op_id"] is not None]
        rows = [r for r in rows if r["iteration"] in self.numbers and r["start_ns"] < r["end_ns"]]
        return sorted([((r["start_ns"], r["end_ns"]), r) for r in rows], key=lambda pair: pair[0])

    def idle(self, device: int | None = None) -> list[Interval]:
        """When a device, or none at all, does anything."""
        rows = [r for t in ON_GPU for r in self.rows[t] if r["op_id"] is not None]
        busy = union((r["start_ns"], r["end_ns"]) for r in rows if device in (None, r["device_id"]))
        edges = [0, *(t for i in busy for t in i), 1 << 62]
        return both(zip(edges[::2], edges[1::2], strict=True), self.windows)

    def calls_of_ops(self, pattern: str) -> list[Interval]:
        """Calls of a name that lie in an instance of their process."""
        held = self.rows["op_instances"]
        calls = [c for c in self.rows["api_calls"] if re.search(pattern, c["name"] or "")]
        inside = [
            c
            for c in calls
            if any(
                i["process_id"] == c["process_id"] and i["start_ns"] <= c["start_ns"] and c["end_ns"] <= i["end_ns"]
                for i in held
            )
        ]
        return [(c["start_ns"], c["end_ns"]) for c in inside if self.begins_inside(c) and c["start_ns"] < c["end_ns"]]


def data_loading(t: Tables, figures: Row) -> Row:
    loads = [i for i in t.rows["op_instances"] if re.search(LOADER_NAME_PATTERN, i["op_name"].rsplit("/", 1)[-1])]
    merged = union((i["start_ns"], i["end_ns"]) for i in loads if i["iteration"] in t.numbers)
    return {"loading_ns": total(merged), "idle_loading_ns": total(both(merged, t.idle())), "iterations": t.iterations}


def idle_by_cause(t: Tables, figures: Row) -> Row:
    device = figures["device_id"]
    idle = t.idle(device)
    launched = [r for _, r in t.gpu("kernels", "graph_launches") if r["device_id"] == device]
    instances = union((i["start_ns"], i["end_ns"]) for i in t.rows["op_instances"])
    parts = [figures[f"{c}_ns"] for c in ("dataloader", "io", "cpu", "other")]
    assert sum(parts) == total(idle)
    causes = [figures.pop(f"idle_{c}_ns") for c in CAUSES if f"idle_{c}_ns" in figures]
    assert sum(causes) == total(idle)
    assert min(causes) > 0
    return {
        "idle_ns": total(idle),
        "gaps": len(idle),
        "launches": len({(r["process_id"], r["api_call_id"]) for r in launched}),
        "other_ns": total(idle) - total(both(idle, instances)),
    }


def late_launches(t: Tables, figures: Row) -> Row:
    done: dict[int, int] = {}
    seen, gaps = set(), []
    for (start, end), r in t.gpu(*ON_GPU):
        device, call = r["device_id"], (r["process_id"], r["api_call_id"], r["device_id"])
        before = done.get(device)
        if before is not None and call not in seen and start > before and r["api_end_ns"] > before:
            gaps += both([(before, start)], t.windows)
        seen.add(call)
        done[device] = max(end, before or 0)
    return {"gaps": len(gaps), "gap_ns": total(gaps), "devices": len(done)}


def synchronizations(t: Tables, figures: Row) -> Row:
    waits = t.calls_of_ops("Synchronize|cuEventQuery|cudaEventQuery")
    return {"calls": len(waits), "wait_ns": total(union(waits)), "iterations": t.iterations}


def module_loading(t: Tables, figures: Row) -> Row:
    calls = [c for c in t.rows["api_calls"] if re.search("^cu(da)?(Library|Module)Load", c["name"] or "")]
    loads = [(c["start_ns"], c["end_ns"]) for c in calls if t.begins_inside(c) and c["start_ns"] < c["end_ns"]]
    return {"calls": len(loads), "call_ns": total(loads), "loading_ns": total(union(loads))}


def jit_compilation(t: Tables, figures: Row) -> Row:
    operations = [i for i, _ in t.clipped(t.rows["jit_operations"])]
    return {"operations": len(operations), "operation_ns": total(operations), "compiling_ns": total(union(operations))}


def copies(t: Tables, figures: Row) -> Row:
    every = t.gpu("memcpys")
    kinds = {"Host-to-Device", "Device-to-Host"}
    found = [[(i, r) for i, r in every if r["copy_kind"] == kind] for kind in kinds]
    (rows,) = [f for f in found if len(f) == figures["copies"] and sum(r["bytes"] for _, r in f) == figures["bytes"]]
    pageable = [r for _, r in rows if "Pageable" in (r["src_memory_kind"], r["dst_memory_kind"])]
    return {"pageable_copies": len(pageable), "copy_ns": total(union(i for i, _ in rows)), "iterations": t.iterations}


def small_kernels(t: Tables, figures: Row) -> Row:
    every = t.gpu("kernels")
    launched = [(i, r) for i, r in every if r["graph_node_id"] is None]
    small = [r for (start, end), r in launched if end - start < 10_000]
    calls = sum(r["api_end_ns"] - r["api_start_ns"] for r in small)
    graphs = len(every) - len(launched)
    return {"small_kernels": len(small), "launched_kernels": len(launched), "call_ns": calls, "graph_kernels": graphs}


def precision(t: Tables, figures: Row) -> Row:
    eligible = {o["op_id"] for o in t.rows["ops"] if o["tensor_core_support"] == "eligible"}
    every = t.gpu("kernels")
    without = [
        i
        for i, r in every
        if r["op_id"] in eligible
        and not r["uses"]
        and re.search(PRODUCT_PATTERN, r["short_name"])
        and not re.search(GENERATED_PATTERN, r["short_name"])
    ]
    return {"kernels": len(without), "without_ns": total(without), "kernel_ns": total(i for i, _ in every)}


def imbalance(t: Tables, figures: Row) -> Row:
    spent: dict[str, int] = {}
    for (start, end), r in t.gpu("kernels"):
        if not r["short_name"].startswith("nccl"):
            spent[f"gpu_{r['device_id']}_ns"] = spent.get(f"gpu_{r['device_id']}_ns", 0) + end - start
    return spent


def communication(t: Tables, figures: Row) -> Row:
    kernels, devices = t.gpu("kernels"), {r["device_id"] for _, r in t.gpu(*ON_GPU)}
    within = hidden = busy = 0
    for device in devices:
        mine = [(i, r["short_name"].startswith("nccl")) for i, r in kernels if r["device_id"] == device]
        exchange, compute = (union(i for i, nccl in mine if nccl == wanted) for wanted in (True, False))
        within, hidden = within + total(exchange), hidden + total(both(exchange, compute))
        busy += t.length - total(t.idle(device))
    count = sum(r["short_name"].startswith("nccl") for _, r in kernels)
    return {
        "nccl_kernels": count,
        "nccl_ns": within,
        "overlapped_ns": hidden,
        "busy_ns": busy,
        "devices": len(devices),
    }


def overrunning_kernels(t: Tables, figures: Row) -> Row:
    """What ``find_overrunning_activities`` returns, one stream after another."""
    streams: dict[tuple[Any, ...], list[Row]] = {}
    for r in (*t.rows["kernels"], *t.rows["memcpys"], *t.rows["memsets"]):
        if not r["graph_node_id"] and r.get("migration_cause") is None:
            streams.setdefault(tuple(r[c] for c in STREAM), []).append(r)
    overlaps = []
    for rows in streams.values():
        ordered = sorted(rows, key=lambda r: (r["start_ns"], r["end_ns"]))
        for r, following in itertools.pairwise(ordered):
            overlap = r["end_ns"] - following["start_ns"]
            if overlap > 100_000 or (overlap > 1_000 and r["end_ns"] > following["end_ns"]):
                overlaps.append(overlap)
    return {"kernels": len(overlaps), "overrun_ns": sum(overlaps)}


def variation(t: Tables, figures: Row) -> Row:
    chosen = [i for i in t.rows["iterations"] if i["is_aggregated"]]
    lengths = sorted(i["window_end_ns"] - i["window_start_ns"] for i in chosen)
    middle = (lengths[(len(lengths) - 1) // 2] + lengths[len(lengths) // 2]) / 2
    slow = [n for n in lengths if n > 1.25 * middle]
    return {
        "iterations": len(lengths),
        "slow_iterations": len(slow),
        "median_ns": int(middle),
        "slowest_ns": lengths[-1],
    }


QUERIES = {
    q.__name__: q
    for q in (
        *(data_loading, idle_by_cause, late_launches, synchronizations, module_loading, copies, small_kernels),
        *(jit_compilation, precision, imbalance, communication, variation, overrunning_kernels),
    )
}


@pytest.mark.many(3)
@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.stem)
def test_figures_follow_from_the_tables(path: Path) -> None:
    tables = tables_of(path)
    for finding in tables.findings:
        figures = json.loads(finding["figures"])
        assert figures.pop("length_ns") == tables.length, finding["rule"]
        expected = QUERIES[finding["rule"]](tables, figures)
        assert {k: figures[k] for k in expected} == expected, finding["rule"]
        rest = {"device_id", "dataloader_ns", "io_ns", "cpu_ns"} if finding["rule"] == "idle_by_cause" else set()
        rest |= {"copies", "bytes", "iterations"} if finding["rule"] == "copies" else set()
        assert set(figures) <= set(expected) | rest, finding["rule"]


def test_every_rule_has_a_query() -> None:
    assert {r.__name__ for r in RULES} == set(QUERIES)


@pytest.mark.thorough
def test_most_rules_are_heard_in_real_captures() -> None:
    found = {f["rule"] for path in CAPTURES for f in tables_of(path).findings}
    unheard = {"data_loading", "imbalance", "synchronizations", "jit_compilation", "variation", "overrunning_kernels"}
    assert found >= set(QUERIES) - unheard
