"""OpenACC events of a report: their columns are those of exports, and their launches are those of the CUDA kernels."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.builders.nsys_rep import CAPTURES, Parts, event, message, strings
from tests.helpers import count_undecoded
from tracekit.errors import CorruptTraceError
from tracekit.readers.nsys_rep import layout

REPORT = CAPTURES / "openacc" / "report.nsys-rep"


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    with tk.load(REPORT) as trace:
        frame: pl.DataFrame = trace.frame("openacc_events").with_columns(pl.col(pl.Categorical).cast(str)).collect()
    return frame


def test_every_event_is_a_row(events: pl.DataFrame) -> None:
    assert events.height == 1032
    assert events["openacc_event_id"].to_list() == list(range(1, 1033))
    assert dict(events.group_by("kind").len().sort("kind").iter_rows()) == {"data": 409, "launch": 201, "other": 422}
    with tk.load(REPORT) as trace:
        assert trace.count("openacc_events") == 1032
        assert "OpenACC" not in trace.undecoded


def test_the_kind_of_an_event_is_its_name(events: pl.DataFrame) -> None:
    assert events.filter(pl.col("event_kind").str.to_lowercase() != pl.col("name").str.to_lowercase()).is_empty()
    assert events["device_type"].unique().to_list() == ["NVIDIA"]


def test_each_launch_is_that_of_a_kernel(events: pl.DataFrame) -> None:
    with tk.load(REPORT) as trace:
        kernels = trace.frame("kernels").with_columns(pl.col(pl.Categorical).cast(str)).collect()
    launches = events.filter(kind="launch").sort("start_ns").with_row_index("nth")
    own = (
        kernels.filter(pl.col("short_name").is_in(launches["kernel"].implode())).sort("start_ns").with_row_index("nth")
    )
    assert launches.height == own.height == 201
    pairs = launches.join(own, on="nth", suffix="_of_kernel")
    same = {"kernel": "short_name", "gangs": "grid_x", "vector_length": "block_x", "workers": "block_y"}
    same |= {"stream_id": "stream_id_of_kernel", "device_id": "device_id_of_kernel"}
    for column, other in same.items():
        assert pairs[column].to_list() == pairs[other].to_list(), column
    assert pairs.filter(pl.col("start_ns_of_kernel") < pl.col("start_ns")).is_empty()


def test_allocations_and_places(events: pl.DataFrame) -> None:
    created = events.filter(pl.col("event_kind").is_in(["Create", "Alloc"]))
    assert created["bytes"].to_list() == [8388608] * 4
    assert created["variable"].unique().to_list() == ["<Unknown>"]
    assert events["source_file"].unique().to_list() == ["task3.c"]
    assert events["function"].unique().to_list() == ["main"]
    assert events.filter(kernel="main_61_gpu")["line"].unique().to_list() == [61]
    assert events.filter(kind="other").select("bytes", "gangs", "kernel").null_count().row(0) == (422, 422, 422)


def test_the_report_adds_them_up(events: pl.DataFrame) -> None:
    with tk.load(REPORT) as trace:
        rows = tk.stats(trace, "openacc_sum")
    assert rows["Num Calls"].sum() == 1032
    assert rows["Total Time (ns)"].sum() == (events["end_ns"] - events["start_ns"]).sum()
    assert rows.row(0)[1:3] + rows.row(0)[-1:] == (29753314, 1, "Enter Data@task3.c:57")


def test_a_call_without_details_is_counted_as_undecoded(tmp_path: Path) -> None:
    path = tmp_path / "made.nsys-rep"
    call = ((1, 10), (2, 20), (layout.CLASS, 48), (7, 0), (13, 1 << 56 | 7 << 24 | 9))
    block = event(layout.CALL, layout.API, *call) + event(
        layout.CALL, layout.API, *call, (25, message((1, 9), (11, 3)))
    )
    openmp_details = event(layout.CALL, layout.API, *call, (34, message((1, 1), (2, b""))))
    path.write_bytes(Parts([block + openmp_details], [strings("name")]).pack())
    with tk.load(path) as trace:
        rows = trace.frame("openacc_events").select("kind", "event_kind", "line", "start_ns").collect().rows()
        assert rows == [("other", "Compute construct", 3, 10)]
        assert count_undecoded(trace.undecoded) == {"OpenACC": 2}


def test_a_number_in_place_of_a_message_is_an_unknown_field(tmp_path: Path) -> None:
    path = tmp_path / "made.nsys-rep"
    call = ((1, 10), (2, 20), (layout.CLASS, 48), (7, 0), (13, 1 << 56 | 7 << 24 | 9), (25, message((101, 5))))
    path.write_bytes(Parts([event(layout.CALL, layout.API, *call)], [strings("name")]).pack())
    with tk.load(path) as trace:
        assert trace.frame("openacc_events").select("kind", "start_ns").collect().rows() == [("other", 10)]


@pytest.mark.parametrize("details", [b"\xff", message((102, b"\xff"))], ids=["outer", "inner"])
def test_damaged_details_are_an_error(details: bytes, tmp_path: Path) -> None:
    path = tmp_path / "made.nsys-rep"
    call = ((1, 10), (2, 20), (layout.CLASS, 48), (7, 0), (13, 1 << 56 | 7 << 24 | 9), (25, details))
    path.write_bytes(Parts([event(layout.CALL, layout.API, *call)], [strings("name")]).pack())
    with tk.load(path) as trace, pytest.raises(CorruptTraceError):
        trace.table("openacc_events")
