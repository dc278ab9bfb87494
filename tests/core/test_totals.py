"""Totals of activities are summed along call paths as brute force sums them."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tracekit import schemas
from tracekit.core.totals import summarize_names, summarize_paths

DEVICE = {
    "device_id": 0,
    "compute_major": 8,
    "compute_minor": 0,
    "sm_count": 108,
    "clock_rate_hz": 1_410_000_000,
    "memory_bandwidth_bytes_per_s": 2_000_000_000_000,
}


def build(name: str, rows: list[dict[str, Any]]) -> pl.LazyFrame:
    declared = schemas.polars_schema(schemas.table(name))
    return pl.LazyFrame([{c: row.get(c) for c in declared} for row in rows], declared)


def frames_of(rows: list[dict[str, Any]], devices: list[dict[str, Any]] | None = None) -> Any:
    common = {"depth": 0, "path": "p", "name": "n", "kind": "activity"}
    totals = [{"activity_total_id": number, **common, **row} for number, row in enumerate(rows, 1)]
    tables = {"activity_totals": totals, "devices": [DEVICE] if devices is None else devices}
    return lambda name: build(name, tables.get(name, []))


def test_paths_have_the_sums_that_brute_force_finds() -> None:
    dice = random.Random(3)
    rows: list[dict[str, Any]] = []
    for number in range(1, 120):
        parent = dice.choice([None, *range(max(1, number - 9), number)]) if number > 1 else None
        depth = 0 if parent is None else rows[parent - 1]["depth"] + 1
        value = {c: dice.choice((None, dice.randrange(100))) for c in ("total_ns", "count", "bytes")}
        rows.append({"parent_id": parent, "depth": depth, "path": str(number), "name": "x", **value})

    def sum_inside(number: int, column: str) -> int | None:
        inner = [sum_inside(n, column) for n, row in enumerate(rows, 1) if row["parent_id"] == number]
        known = [v for v in (rows[number - 1][column], *inner) if v is not None]
        return sum(known) if known else None

    result = summarize_paths(frames_of(rows))
    assert result["path"].to_list() == [str(n) for n in range(1, 120)]
    assert result["total"].to_list() == [sum_inside(n, "total_ns") for n in range(1, 120)]
    assert result["count"].to_list() == [sum_inside(n, "count") for n in range(1, 120)]
    assert result["own"].to_list() == [row["total_ns"] for row in rows]


def test_rates_are_those_of_the_scope_and_compared_with_the_peaks() -> None:
    scope = {"kind": "scope", "flops": 3.12e11, "flop_bits": 16, "bytes": 10**9}
    kernel = {"parent_id": 1, "depth": 1, "device_id": 0, "count": 2, "total_ns": 2_000_000}
    first, second = summarize_paths(frames_of([scope, kernel])).to_dicts()
    assert (first["tflop_per_s"], first["gb_per_s"], first["peak_gb_per_s"]) == pytest.approx((156.0, 500.0, 2000.0))
    assert first["peak_tflop_per_s"] == pytest.approx(312, rel=0.01)
    assert first["roofline"] == pytest.approx(50, rel=0.01)
    assert (second["tflop_per_s"], second["roofline"], second["share"]) == (None, None, 100)


def test_peaks_of_operands_of_several_or_unknown_widths_are_unknown() -> None:
    inner = {"flops": 1e9, "total_ns": 5, "device_id": 0, "parent_id": 1, "depth": 1}
    flops = [{**inner, "flop_bits": bits} for bits in (8, 16, 32, 64, None)]
    result = summarize_paths(frames_of([{"kind": "scope"}, *flops]))
    assert [peak is None for peak in result["peak_tflop_per_s"]] == [True, True, False, False, False, True]
    mixed = [{"kind": "scope"}, *flops[1:2], *flops[4:]]
    assert summarize_paths(frames_of(mixed))["peak_tflop_per_s"].to_list()[0] is None
    unknown = summarize_paths(frames_of(flops[1:2], []))
    assert unknown.select("peak_tflop_per_s", "peak_gb_per_s", "roofline").row(0) == (None, None, None)


def test_totals_without_rows_or_time_have_no_rates() -> None:
    assert summarize_paths(frames_of([])).is_empty()
    row = summarize_paths(frames_of([{"flops": 5.0, "total_ns": 0, "bytes": 1}])).row(0, named=True)
    assert (row["tflop_per_s"], row["share"], row["total"]) == (None, None, 0)


def test_names_are_summed_by_kind() -> None:
    rows = [
        {"name": "a", "count": 2, "total_ns": 10, "min_ns": 4, "max_ns": 6, "path": "x/a"},
        {"name": "a", "count": 1, "total_ns": 20, "min_ns": 20, "max_ns": 20},
        {"name": "b", "count": 0, "total_ns": 10},
        {"name": "s", "kind": "scope", "total_ns": 99},
        {"name": "c", "kind": "api_call", "count": 1, "total_ns": 7},
        {"name": "d", "count": 3},
    ]
    result = summarize_names(frames_of(rows)("activity_totals").collect())
    assert result.select("kind", "name", "total", "count", "min", "max", "mean", "share").rows() == [
        ("activity", "a", 30, 3, 4, 20, 10.0, 75.0),
        ("activity", "b", 10, 0, None, None, None, 25.0),
        ("api_call", "c", 7, 1, None, None, 7.0, 100.0),
    ]


@pytest.mark.parametrize(
    ("vendor", "command"), [("AMD", "rocprofv3 --sys-trace"), ("NVIDIA", "nsys profile --trace=cuda,nvtx")]
)
def test_a_profile_without_a_timeline_has_reports_and_an_answer(vendor: str, command: str) -> None:
    common = {"depth": 0, "kind": "activity"}
    rows = [
        {"activity_total_id": 1, "name": "matmul", "path": "matmul", "count": 2, "total_ns": 30, **common},
        {"activity_total_id": 2, "name": "copy", "path": "copy", "count": 1, "total_ns": 10, **common},
    ]
    info = [{"name": "device_vendors", "value": vendor}]
    tables = {"activity_totals": rows, "devices": [DEVICE], "capture_info": info}
    trace = tk.Trace.from_tables({name: build(name, content).collect().to_arrow() for name, content in tables.items()})
    names = tk.stats(trace, "activity_total_sum")
    assert {*names["Name"]} == {"matmul", "copy"}
    assert {*tk.stats(trace, "call_path_sum")["Path"]} == {"matmul", "copy"}
    answer = trace.why()
    assert answer.status == "not_recorded"
    assert f"matmul has the most time (75%): record a timeline with {command}." in answer.sentence
