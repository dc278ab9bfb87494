"""Warnings, errors and findings that profilers recorded, as one table."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tracekit.core.findings import COLUMNS, collect_recorded_messages

FIXTURES = Path(__file__).parents[2] / "fixtures"


def messages_of(**tables: list[dict[str, object]]) -> pl.DataFrame:
    kinds: dict[str, dict[str, type[pl.DataType]]] = {
        "diagnostics": {"severity": pl.String, "text": pl.String},
        "findings": {"rule": pl.String, "problem": pl.String, "recommendation": pl.String},
        "ncu_rules": {"rule_id": pl.String, "type": pl.String, "message": pl.String, "speedup_percent": pl.Float64},
    }
    return collect_recorded_messages(lambda name: pl.DataFrame(tables.get(name, []), schema=kinds[name]).lazy())


def test_errors_come_first_and_equal_messages_are_counted() -> None:
    listed = [("Info", "a"), ("Warning", "b"), ("Error", "c"), ("Warning", "b"), ("Warning", None), (None, "d")]
    rows = messages_of(diagnostics=[{"severity": s, "text": t} for s, t in listed])
    assert rows.select("tool", "kind", "message", "count").rows() == [
        ("Nsight Systems", "Error", "c", 1),
        ("Nsight Systems", "Warning", "b", 2),
        ("Nsight Systems", "Warning", None, 1),
    ]
    assert dict(rows.schema) == COLUMNS


def test_rules_are_grouped_and_sorted_by_speedup() -> None:
    rules = [("A", "OPT", "a1", 5.0), ("A", "OPT", "a2", 9.0), ("B", "WRN", "b", None), ("C", "INF", "c", 99.0)]
    rules += [("D", "ERR", "d", float("nan")), ("E", "OPT", "e", 50.0)]
    names = ("rule_id", "type", "message", "speedup_percent")
    rows = messages_of(ncu_rules=[dict(zip(names, rule, strict=True)) for rule in rules])
    assert rows.select("kind", "rule", "message", "count", "speedup_percent").rows() == [
        ("Optimization", "E", "e", 1, 50.0),
        ("Optimization", "A", "a2", 2, 9.0),
        ("Warning", "B", "b", 1, None),
        ("Error", "D", "d", 1, None),
    ]


def test_findings_have_recommendations() -> None:
    finding: dict[str, object] = {"rule": "amp_detector", "problem": "p", "recommendation": "r"}
    rows = messages_of(findings=[finding, finding])
    place = ("ops", "tensor_core_support", "eligible")
    assert rows.rows() == [("DLProf", "Finding", "amp_detector", "p", "r", 2, None, *place)]
    other = messages_of(findings=[{**finding, "rule": rule} for rule in ("new_detector", "imbalanced_gpu_detector")])
    assert other.select("table", "column", "value").rows() == [(None,) * 3, ("devices", None, None)]


def test_a_capture_without_messages_has_no_rows() -> None:
    assert messages_of().height == 0


def test_a_real_capture_has_the_warnings_of_its_profiler() -> None:
    with tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
        texts = collect_recorded_messages(trace.frame)["message"].to_list()
    assert [t[:20] for t in texts] == ["Not all NVTX events ", "Not all CUDA events "]


@pytest.mark.parametrize("name", ["train_amp.nsys-rep", "ncu/ncu_basic.ncu-rep", "ncu/ncu_details.csv"])
def test_a_finding_leads_to_its_rows(name: str) -> None:
    with tk.load(FIXTURES / name) as trace:
        rows = trace.stats("recorded_findings")
        assert rows.height
        for row in rows.iter_rows(named=True):
            table = trace.frame(row["Table"]).filter(pl.col(row["Column"]).cast(pl.String) == row["Value"]).collect()
            kinds = {"Optimization": "OPT", "Error": "ERR", "Warning": "WRN"}
            if row["Table"] == "ncu_rules":
                table = table.filter(pl.col("type").cast(pl.String) == kinds[row["Kind"]])
            assert table.height == row["Count"]
            text = table["message" if row["Table"] == "ncu_rules" else "text"].cast(pl.String)
            assert row["Message"] in text.to_list()


def test_findings_of_a_database_of_dlprof_lead_to_tables(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        trace.export(tmp_path / "dlprof.sqlite", format="dlprof-db")
    with tk.load(tmp_path / "dlprof.sqlite") as trace:
        rows = trace.stats("recorded_findings")
        with contextlib.closing(sqlite3.connect(tmp_path / "dlprof.sqlite")) as database:
            expected = database.execute("SELECT exp_sys_id, problem, recommendation FROM expert_systems_feedback")
            assert rows.select("Rule", "Message", "Recommendation").rows() == expected.fetchall()
        assert set(rows["Tool"]) == {"DLProf"}
        for table, column in rows.select("Table", "Column").drop_nulls("Table").iter_rows():
            assert column is None or column in trace.schema(table).names
