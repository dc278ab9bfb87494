"""The roll-up that a DLProf database contains, compared with the trace from which tracekit wrote the database."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tracekit.view import recorded

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[tk.Trace, tk.Trace]:
    """A trace in DLProf's mode, and the database that was written from it."""
    original = tk.load(FIXTURES / "train_amp.sqlite").correlate().rollup(tensor_cores="dlprof")
    path = original.export(tmp_path_factory.mktemp("dlprof") / "out.sqlite", format="dlprof-db")
    return original, tk.load(path).correlate()


def test_only_the_database_has_a_recorded_rollup(pair: tuple[tk.Trace, tk.Trace]) -> None:
    assert [recorded.has_recorded_rollup(trace) for trace in pair] == [False, True]
    assert not recorded.has_recorded_rollup(tk.load(FIXTURES / "train_amp.sqlite"))


def test_kernels_have_the_ops_of_the_report(pair: tuple[tk.Trace, tk.Trace]) -> None:
    original, database = pair
    report = original.stats("iteration").select(
        pl.col("Iteration"), pl.col("Op ID"), pl.col("Op Name").cast(pl.String), pl.col("GPU Duration (ns)")
    )
    rows = recorded.read_iteration_kernels(database).select(
        "iteration", "op_id", pl.col("op_name").cast(pl.String), "gpu_duration_ns"
    )
    assert rows.height == 334
    assert sorted(rows.rows()) == sorted(report.rows())


def test_kernels_of_ops(pair: tuple[tk.Trace, tk.Trace]) -> None:
    original, database = pair
    report = original.stats("kernel").select("Op ID", "Kernel Name", "Total GPU Time (ns)", "Min GPU Time (ns)")
    rows = recorded.read_op_kernels(database).select(
        "op_id", pl.col("kernel_name").cast(pl.String), "total_gpu_time_ns", "min_gpu_time_ns"
    )
    assert sorted(rows.rows()) == sorted(report.rows())
