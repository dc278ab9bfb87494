"""A report and what Nsight Compute printed of it read as the same launches, metrics, ranges and rules."""

from __future__ import annotations

import polars as pl
import pytest
import tracekit as tk
from tests.builders.ncu_rep import ROOT

REPORT = ROOT / "fixtures" / "ncu" / "ncu_basic.ncu-rep"
PRINTED = ROOT / "fixtures" / "ncu"
PAGES = ["raw", "raw_base", "details"]
REPORT_ONLY = {"api_call_id", "name", "short_name", "mangled_name", "created_utc_ns"}


def frames(page: str, table: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    with tk.load(REPORT) as report, tk.load(PRINTED / f"ncu_{page}.csv") as printed:
        return report.frame(table).collect(), printed.frame(table).collect()


@pytest.mark.parametrize("page", PAGES)
def test_launches(page: str) -> None:
    report, printed = frames(page, "ncu_launches")
    rounded = {"duration_ns"} if page == "details" else set()
    same = [c for c in report.columns if c not in REPORT_ONLY | rounded]
    assert report.select(same).cast(pl.String).equals(printed.select(same).cast(pl.String))
    assert report["name"].null_count() == 0


@pytest.mark.parametrize("page", PAGES)
def test_metrics(page: str) -> None:
    report, printed = (f.with_columns(pl.col("metric", "unit").cast(pl.String)) for f in frames(page, "ncu_metrics"))
    both = printed.join(report, ["launch_id", "metric"], suffix="_report", validate="m:1")
    assert both.height == printed.height > 600
    assert both.filter(pl.col("unit").ne_missing(pl.col("unit_report"))).is_empty()
    assert both.filter(pl.col("text").ne_missing(pl.col("text_report"))).is_empty()
    off = (pl.col("value") - pl.col("value_report")).abs()
    assert both.filter(off > pl.col("resolution").fill_null(0) * 0.5 + 1e-9 * pl.col("value").abs()).is_empty()
    if page != "details":
        left = report.join(printed, ["launch_id", "metric"], how="anti")["metric"].unique()
        assert left.str.contains("^(breakdown|group|regex):|^launch__kernel_name$").all()


@pytest.mark.parametrize("page", PAGES)
def test_ranges(page: str) -> None:
    report, printed = (f.drop("entry").cast(pl.String) for f in frames(page, "ncu_nvtx_ranges"))
    assert report.height == 79
    assert report.equals(printed)


def test_rules() -> None:
    columns = ["launch_id", "section", "section_id", "rule_id", "type", "message", "speedup_type"]
    report, printed = (f.sort("launch_id", "section_id", "message") for f in frames("details", "ncu_rules"))
    assert report.height == 48
    assert report.select(columns).cast(pl.String).equals(printed.select(columns).cast(pl.String))
    off = (report["speedup_percent"] - printed["speedup_percent"]).abs() / report["speedup_percent"]
    assert (off.drop_nulls() < 1e-3).all()


def test_machine() -> None:
    with tk.load(REPORT) as report, tk.load(PRINTED / "ncu_session.csv") as printed:
        assert report.info["tool_version"] == printed.info["tool_version"]
        assert report.info["cuda_version"] == printed.info["cuda_version"]
        known = printed.devices.row(0, named=True)
        own = report.devices.row(0, named=True)
        assert {c: own[c] for c, v in known.items() if v is not None} == {
            c: v for c, v in known.items() if v is not None
        }


MORE = {"ncu_nvtx.ncu-rep": "ncu_nvtx_raw.csv", "ncu_graph.ncu-rep": "ncu_graph_details.csv"}


@pytest.mark.parametrize("name", MORE)
def test_ranges_of_all_kinds_and_graphs(name: str) -> None:
    """Quotes and line ends that ncu prints as they are, payloads, registered texts, a domain with a colon."""
    with tk.load(PRINTED / name) as report, tk.load(PRINTED / MORE[name]) as printed:
        launches = [t.frame("ncu_launches").collect() for t in (report, printed)]
        ranges = [t.frame("ncu_nvtx_ranges").collect() for t in (report, printed)]
        values = [t.wide().select("launch_id", "gpu__time_duration.sum") for t in (report, printed)]
    told_by_nvtx, spelt = {"thread_id"}, REPORT_ONLY - {"name"}
    same = [c for c in launches[0].columns if c not in {*told_by_nvtx, *spelt, "duration_ns"}]
    assert launches[0].select(same).cast(pl.String).equals(launches[1].select(same).cast(pl.String))
    rounded = pl.col("payload_float").round(6)  # printed as %f
    own = (
        r.drop("entry", "thread_id", "category", "category_id").with_columns(rounded).cast(pl.String) for r in ranges
    )
    first, second = own
    assert first.equals(second)
    assert first.height == {"ncu_nvtx.ncu-rep": 27, "ncu_graph.ncu-rep": 2}[name]
    off = (values[0]["gpu__time_duration.sum"] - values[1]["gpu__time_duration.sum"]).abs()
    assert off.max() <= 5  # type: ignore[operator]
