"""Databases of DLProf show the numbers that DLProf's own viewer shows, which are those of the database's views."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tracekit.view import query
from tracekit.view.captures import ViewedCaptures
from tracekit.view.opening import open_captures
from tracekit.view.state import CaptureAggregation

FOLDER = Path(__file__).parents[3] / "shared" / "corpus" / "dlprof" / "w_Relu"
DATABASES = ("dlprof_dldb_1.sqlite", "dlprof_dldb_7.sqlite")

pytestmark = [pytest.mark.corpus, pytest.mark.skipif(not FOLDER.exists(), reason="the public captures are not there")]


@pytest.fixture(params=DATABASES, scope="module")
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[ViewedCaptures, sqlite3.Connection]]:
    path = FOLDER / request.param
    captures = open_captures([path])
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        yield captures, database
    captures.close()


def shown(captures: ViewedCaptures, table: str, columns: list[str], **arguments: str) -> list[tuple[Any, ...]]:
    source = query.Query(table, CaptureAggregation(), tuple(sorted(arguments.items())))
    return sorted(query.load_rows(captures, source).frame.select(columns).rows())


def test_ops(opened: tuple[ViewedCaptures, sqlite3.Connection]) -> None:
    captures, database = opened
    sql = (
        "SELECT op_node_id, op_node_name, op_node_type, gpu_time, cpu_time, num_calls, kernel_calls FROM view_op_nodes"
    )
    columns = ["op_id", "op_name", "op_type", "gpu_time_ns", "cpu_time_ns", "instance_count", "kernel_count"]
    expected = sorted(database.execute(sql).fetchall())
    assert len(expected) > 30
    assert shown(captures, "ops", columns) == expected


def test_op_types(opened: tuple[ViewedCaptures, sqlite3.Connection]) -> None:
    captures, database = opened
    metrics = ("cpu_time", "gpu_time", "cpu_overhead", "gpu_idle")
    statistics = {"sum": "total", "avg": "average", "min": "minimum", "max": "maximum"}
    names = ", ".join(f"{metric}_{short}" for metric in metrics for short in statistics)
    sql = f"SELECT op_node_type, num_nodes, num_calls, {names} FROM view_op_type_summary"
    columns = [f"{long}_{metric}_ns" for metric in metrics for long in statistics.values()]
    rows = shown(captures, "op_types", ["op_type", "op_count", "instance_count", *columns])
    rounded = [tuple(round(v, 6) if isinstance(v, float) else v for v in row) for row in rows]
    assert rounded == sorted(database.execute(sql).fetchall())


def test_kernels_of_iterations(opened: tuple[ViewedCaptures, sqlite3.Connection]) -> None:
    captures, database = opened
    sql = """SELECT op_node_name, kernel_name, device_id, kernel_timestamp, kernel_duration, '(' || grid || ')',
             '(' || block || ')' FROM view_iteration_kernels WHERE iter_value = 0"""
    columns = ["op_name", "kernel_name", "device_id", "api_call_start_ns", "gpu_duration_ns", "grid", "block"]
    expected = sorted(database.execute(sql).fetchall())
    assert len(expected) > 50
    assert shown(captures, "iteration_kernels", columns, iteration="0") == expected


def test_ops_of_iterations(opened: tuple[ViewedCaptures, sqlite3.Connection]) -> None:
    captures, database = opened
    sql = "SELECT op_node_id, op_node_name, total_count, total_gpu_time FROM view_iteration_ops WHERE iter_value = 0"
    columns = ["op_id", "op_name", "kernel_count", "gpu_time_ns"]
    assert shown(captures, "iteration_ops", columns, iteration="0") == sorted(database.execute(sql).fetchall())


def test_kernels_of_ops(opened: tuple[ViewedCaptures, sqlite3.Connection]) -> None:
    captures, database = opened
    columns = ["kernel_name", "calls", "total_gpu_time_ns", "min_gpu_time_ns", "max_gpu_time_ns"]
    ops = [op for (op,) in database.execute("SELECT DISTINCT op_node_id FROM view_kernel_summaries")]
    assert ops
    for op in ops:
        sql = "SELECT kernel_name, calls, gpu_time, min, max FROM view_kernel_summaries WHERE op_node_id = ?"
        assert shown(captures, "op_kernels", columns, op_id=op) == sorted(database.execute(sql, (op,)).fetchall())


def test_iterations_and_gpus(opened: tuple[ViewedCaptures, sqlite3.Connection]) -> None:
    captures, database = opened
    sql = """SELECT iter_value, start_time, duration, total_kernel_count, using_tc_kernel_count, tc_duration,
             non_tc_duration, memory_duration, dataloader_duration, io_duration, cpu_duration, other_duration
             FROM view_iterations_profiled"""
    parts = ("tensor_core_kernels", "other_kernels", "memory_ops", "dataloader", "io", "cpu", "nothing")
    columns = ["iteration", "start_ns", "duration_ns", "kernel_count", "tensor_core_kernel_count"]
    columns += [f"in_{part}_ns" for part in parts]
    assert shown(captures, "iterations", columns) == sorted(database.execute(sql).fetchall())
    sql = "SELECT device_id, gpu_name, sm_count, device_gpu_utilization FROM view_gpu_devices"
    ((device, name, sms, percent),) = database.execute(sql).fetchall()
    ((*facts, shown_percent),) = shown(captures, "gpus", ["device_id", "name", "sm_count", "utilization_percent"])
    assert facts == [device, name, sms]
    assert shown_percent == pytest.approx(percent, abs=1e-6)


def test_groups(opened: tuple[ViewedCaptures, sqlite3.Connection]) -> None:
    captures, database = opened
    # rows of type 1 are groups; the others are ops, which have a table of their own
    sql = """SELECT row_full_name, num_op_instances, cpu_time_sum, gpu_time_sum, cpu_overhead_sum, gpu_idle_sum
             FROM view_group_ops WHERE row_type = 1"""
    columns = ["path", "instance_count", "cpu_time_ns", "gpu_time_ns", "cpu_overhead_ns", "gpu_idle_ns"]
    expected = sorted(database.execute(sql).fetchall())
    assert len(expected) > 20
    assert shown(captures, "groups", columns) == expected
    assert pl.Series([path for path, *_ in expected]).n_unique() > 20
