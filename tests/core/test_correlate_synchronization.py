"""The calls, threads and ranges of synchronizations and of recordings of CUDA events."""

from __future__ import annotations

import polars as pl
import pytest
from tests.builders.frames import declared, nvtx
from tracekit.core.correlate import Correlation

ADDED = ("api_call_id", "thread_id", "range_id", "range_name", "range_path")


@pytest.mark.parametrize("table", ["syncs", "cuda_events"])
def test_the_call_is_that_of_the_same_process_with_the_same_correlation_id(table: str) -> None:
    calls = pl.DataFrame(
        {
            "api_call_id": [10, 11, 12],
            "process_id": [1, 2, 1],
            "thread_id": [5, 6, 5],
            "correlation_id": [7, 7, 8],
            "start_ns": [100, 100, 300],
            "end_ns": [150, 150, 350],
            "name": ["cudaStreamSynchronize"] * 3,
        }
    )
    rows = pl.DataFrame({"process_id": [1, 2, 1, 1, None], "correlation_id": [7, 7, 8, 9, 7], "start_ns": [120] * 5})
    ranges = nvtx(("step", 5, 0, 200), ("wait", 5, 90, 160))
    frames = declared(api_calls=calls, nvtx_ranges=ranges, **{table: rows})
    added = Correlation(frames).compute_columns(table, ADDED).select(pl.all().cast(pl.String))
    assert added.rows() == [
        ("10", "5", "1", "wait", "step/wait"),
        ("11", "6", None, None, None),
        ("12", "5", None, None, None),
        (None, None, None, None, None),
        (None, None, None, None, None),
    ]
