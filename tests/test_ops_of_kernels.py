"""Kernels say to which op, instance and iteration they belong, as the tables of ops count them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit import schemas

CAPTURES = [*sorted(FIXTURES.glob("*.nsys-rep")), *sorted((FIXTURES / "ops").glob("*.nsys-rep"))]
ACTIVITIES = ["kernels", "memcpys", "memsets", "graph_launches"]
OF_OP = ["op_id", "op_name", "direction", "iteration"]


@pytest.fixture(params=CAPTURES, ids=lambda p: p.stem, scope="module")
def rolled_up(request: pytest.FixtureRequest) -> tk.Trace:
    return tk.load(request.param).correlate().rollup()


def test_kernels_are_counted_once_where_they_belong(rolled_up: tk.Trace) -> None:
    counted = rolled_up.frame("op_instances").select("op_instance_id", "kernel_count").collect()
    found = rolled_up.frame("kernels").group_by("op_instance_id").len().drop_nulls().collect()
    both = counted.join(found, on="op_instance_id", how="left").with_columns(pl.col("len").fill_null(0))
    assert both["len"].to_list() == both["kernel_count"].to_list()
    kernels = rolled_up.frame("kernels").select("op_instance_id", "api_call_id").collect()
    assert kernels["op_instance_id"].is_null().to_list() == kernels["api_call_id"].is_null().to_list()


@pytest.mark.parametrize("table", ACTIVITIES)
def test_what_an_activity_says_is_what_its_instance_says(rolled_up: tk.Trace, table: str) -> None:
    texts = pl.col("op_id", "op_name").cast(pl.String)
    ops = rolled_up.frame("ops").select("op_id", pl.col("direction").cast(pl.String))
    made = rolled_up.frame("op_instances").select("op_instance_id", texts, "iteration").join(ops, on="op_id")
    activities = rolled_up.frame(table).select("op_instance_id", *OF_OP).collect()
    beside = activities.select("op_instance_id").join(
        made.collect(), on="op_instance_id", how="left", maintain_order="left"
    )
    assert activities.cast(dict.fromkeys(OF_OP[:3], pl.String)).equals(beside.select(activities.columns))


@pytest.mark.slow
def test_a_call_lies_in_the_instance_that_it_belongs_to(rolled_up: tk.Trace) -> None:
    """The times do; the thread may be another: gradients are computed on one that the backward op waits for."""
    columns = ["op_instance_id", "process_id", "start_ns", "end_ns", "range_id"]
    calls = rolled_up.frame("kernels").select("op_instance_id", "api_start_ns", calls_from="process_id")
    both = calls.join(rolled_up.frame("op_instances").select(columns), on="op_instance_id").drop_nulls("range_id")
    inside = pl.col("api_start_ns").is_between("start_ns", "end_ns") & (pl.col("process_id") == pl.col("calls_from"))
    assert both.filter(~inside).collect().height == 0


def test_other_iterations_leave_the_ops_of_kernels(rolled_up: tk.Trace) -> None:
    first = rolled_up.frame("kernels").select("op_instance_id", "op_id", "iteration").collect()
    then = rolled_up.rollup(iterations=(0, 0)).frame("kernels").select("op_instance_id", "op_id", "iteration").collect()
    assert then.select("op_instance_id", "op_id").equals(first.select("op_instance_id", "op_id"))
    assert set(then["iteration"].drop_nulls()) <= {0}
    assert then["iteration"].drop_nulls().len() == (first["iteration"] == 0).sum()


@pytest.mark.slow
def test_declared_columns_stand_beside_those_of_the_file(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
        plain, made = trace["kernels"], trace.rollup()
        assert made["kernels"].select(plain.column_names).equals(plain)
        assert made["kernels"].schema.equals(
            schemas.arrow_schema(schemas.add_rollup_columns_to_schema(schemas.table("kernels")))
        )
        assert made["api_calls"].equals(trace["api_calls"])
        made.export(tmp_path / "t", format="parquet")
    kernels = pl.read_parquet(tmp_path / "t" / "kernels.parquet")
    assert kernels["op_id"].null_count() == 0
