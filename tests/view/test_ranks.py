"""The ranks of a job side by side: all captures if they are its ranks, else one capture."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.builders.ranks import kernel, write_capture
from tests.view.support import FIXTURES, captures_of, get, running, show, table
from tracekit.core.communication import Communication
from tracekit.errors import TracekitError
from tracekit.plots.recipes import MAPS, PACES
from tracekit.view import pages, ranks
from tracekit.view import query as queries
from tracekit.view.captures import ViewedCaptures
from tracekit.view.datasets import find_dataset
from tracekit.view.opening import open_captures
from tracekit.view.query import Query
from tracekit.view.server import Viewer
from tracekit.view.sources import TableInputs
from tracekit.view.state import CaptureAggregation

RANKS = sorted((FIXTURES / "ranks").glob("*.nsys-rep"))


@pytest.fixture
def viewer(serve: Callable[..., Viewer]) -> Viewer:
    """The viewer of the ranks of a job."""
    return serve(FIXTURES / "ranks")


@functools.cache
def communication() -> Communication:
    return tk.load_many(RANKS).communication()


def titles(viewer: Viewer, search: str = "") -> list[str]:
    """Return the titles of the pages that have data."""
    navigation = get(viewer, f"/fragment/navigation{search}").text
    return re.findall(r'<a href="[^"]*" class="nav-link"[^>]*>([^<]*)</a>', navigation)


def frame(captures: ViewedCaptures, table: str, /, **arguments: str) -> pl.DataFrame:
    query = Query(table, CaptureAggregation(), tuple(sorted(arguments.items())))
    return queries.load_rows(captures, query).frame


@pytest.mark.slow
def test_captures_that_are_the_ranks_of_a_job(viewer: Viewer) -> None:
    wanted = communication()
    captures = viewer._captures
    for capture in ("", "?capture=1"):
        assert {"Ranks", "Utilization over time", "Pace"} <= set(titles(viewer, capture))
        shown = show(viewer, "/communication", capture)
        assert {"Clocks of the ranks", "Collectives and messages of each rank", "MPI calls by function"} <= set(shown)
        assert "Iterations across ranks" not in shown
        expected = {"Time of the GPUs of each rank", "Iterations over all ranks", "Iterations across ranks"}
        assert expected <= set(show(viewer, "/ranks", capture))
    for name in ranks.TABLES:
        rows = queries.load_rows(captures, Query(f"ranks_{name}", CaptureAggregation(1)))
        assert rows.frame.rows() == getattr(wanted, name).rows()
        assert set(rows.titles) == set(rows.frame.columns)
    assert "start_ns" not in frame(captures, "ranks_operations")
    shares = frame(captures, "gpu_time")
    assert shares.drop("capture").equals(tk.load_many(RANKS).recipe("gpu_time_sum")["gpu_time"])
    assert shares["capture"].to_list() == [path.name for path in RANKS]


@pytest.mark.slow
def test_heat_maps_and_paces_of_a_job(viewer: Viewer) -> None:
    job = tk.load_many(RANKS)
    captures = viewer._captures
    shown = show(viewer, "/maps", "?map=mpi_gpu_time_util_map&bins=100&capture=1")
    assert {"Kernels over time", "MPI over time", "Overlap over time"} <= set(shown)
    assert "All kernels over time" not in show(viewer, "/maps", "?map=nccl_gpu_time_util_map")
    rows = frame(captures, "utilization", map="mpi_gpu_time_util_map", bins="100")
    analysis = job.recipe("mpi_gpu_time_util_map", bins=100)["analysis"]
    assert rows["rank", "process_id", "since_first_start_ns"].rows() == analysis["Rank", "PID", "Duration"].rows()
    assert (
        rows["kernel_percent", "mpi_percent", "overlap_percent"].rows() == analysis["Kernel", "MPI", "Overlap"].rows()
    )
    ends = rows["since_first_end_ns"] - rows["since_first_start_ns"]
    assert ends.unique().to_list() == [analysis["Duration"][1]]
    shown = show(viewer, "/pace", "?kind=nvtx_pace&name=compute")
    assert {"Duration over time", "Start", "Duration", "Time since the previous end", "Occurrences"} <= set(shown)
    tables = job.recipe("nvtx_pace", name="compute")
    rows = frame(captures, "pace", kind="nvtx_pace", name="compute")
    for rank in ("0", "1"):
        one = rows.filter(rank=int(rank))
        assert one["since_first_start_ns"].to_list() == tables["pace_start"][rank].to_list()
        assert one["duration_ns"].to_list() == tables["pace_duration"][rank].to_list()
        assert one["occurrence"].to_list() == list(range(one.height))
    assert "No kernel or range has this name." in show(viewer, "/pace", "?kind=nvtx_pace&name=none")


@pytest.mark.many(1)
@pytest.mark.parametrize("page", ["ranks", "maps", "pace", "communication"])
def test_pages_of_ranks_say_that_they_show_the_whole_capture(page: str, viewer: Viewer) -> None:
    """Their numbers do not depend on the aggregated iterations, which the header shows."""
    whole = show(viewer, f"/{page}")
    assert whole[:3].count(pages.WHOLE_CAPTURE) == 1
    assert show(viewer, f"/{page}", "?iterations=1:2") == whole
    assert pages.WHOLE_CAPTURE not in show(viewer, "/ops", "?iterations=1:2")


def make_loop(name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of a loop of 4 steps, each of which launches one kernel."""
    thread = {"process_id": 1, "thread_id": 1}
    starts = range(0, 4000, 1000)
    ranges = [
        {**thread, "range_id": n, "start_ns": s, "end_ns": s + 900, "kind": "push_pop", "name": f"{name} {n}"}
        for n, s in enumerate(starts)
    ]
    calls = [
        {**thread, "api_call_id": n, "correlation_id": n + 1, "start_ns": s + 5, "end_ns": s + 6, "name": "launch"}
        for n, s in enumerate(starts)
    ]
    launched = [{**kernel(s + 10, s + 800), "process_id": 1, "correlation_id": n + 1} for n, s in enumerate(starts)]
    return {"nvtx_ranges": ranges, "api_calls": calls, "kernels": launched}


@pytest.mark.slow
def test_pages_of_ranks_say_which_steps_they_show(viewer: Viewer, tmp_path: Path) -> None:
    """Ranks whose steps differ are named."""
    (note,) = communication().step_notes
    shown = show(viewer, "/ranks")
    assert {note, "Include the warm-up"} <= set(shown)
    assert "Time that stragglers lost" not in shown
    shown = show(viewer, "/ranks", "?warm_up=yes")
    assert {note.replace("left out", "included"), "Leave out the warm-up"} <= set(shown)
    assert "Time that stragglers lost" in shown
    assert note not in show(viewer, "/communication")
    for rank in (0, 1):
        write_capture(tmp_path / f"rank{rank}", **make_loop("step" if rank else "batch"))
    with running(*sorted(tmp_path.iterdir())) as own:
        shown = show(own, "/ranks")
    assert [text.partition(";")[0] for text in shown if "delimited by the range" in text] == [
        "Rank 0: 4 steps, delimited by the range 'batch *'",
        "Rank 1: 4 steps, delimited by the range 'step *'",
    ]


@pytest.mark.thorough
def test_captures_that_are_not_ranks() -> None:
    """Each is analyzed by itself. Its times are on its own timeline."""
    with running(FIXTURES / "ddp2.sqlite", FIXTURES / "train_amp.sqlite") as viewer:
        captures = viewer._captures
        assert ranks.get_rank_set(captures) is None
        found = ranks.analyze_communication(captures, CaptureAggregation(0))
        assert ranks.analyze_communication(captures, CaptureAggregation(0)) is found
        assert "summary" in ranks.list_nonempty_tables(found)
        operations = frame(captures, "ranks_operations")
        assert operations.rows() == tk.load_many(FIXTURES / "ddp2.sqlite").communication().operations.rows()
        assert "start_ns" in operations
        assert ranks.list_nonempty_tables(ranks.analyze_communication(captures, CaptureAggregation(1))) == []
        shown = show(viewer, "/communication", "?capture=1")
        nothing = "No data: nothing of this kind was found in the recorded data (334 kernels)"
        assert any(text.startswith(nothing) for text in shown)
        assert "Iterations across ranks" in show(viewer, "/communication")
        assert "Ranks" not in titles(viewer)
        assert "the open captures are not two or more ranks of one job" in " ".join(show(viewer, "/ranks"))
        assert {"All kernels over time", "NCCL over time"} <= set(show(viewer, "/maps", "?map=nccl_gpu_time_util_map"))
        rows = frame(captures, "utilization", map="nccl_gpu_time_util_map", bins="30")
        assert {"device_id", "start_ns", "end_ns", "nccl_percent"} <= set(rows.columns)
        assert "rank" not in rows
        assert {"start_ns", "duration_ns"} <= set(
            frame(captures, "pace", kind="nvtx_pace", name="Forward pass").columns
        )


def test_ranks_that_are_only_guessed(tmp_path: Path) -> None:
    """Captures with nothing but a number in their names are not taken for ranks."""
    paths = [write_capture(tmp_path / f"run{n}", kernels=[kernel(0, 10)]) for n in (1, 2)]
    opened = open_captures(paths)
    assert ranks.get_rank_set(opened) is None
    opened.close()


def test_ranks_without_utc_times_are_not_aligned(tmp_path: Path) -> None:
    paths = [write_capture(tmp_path / f"rank{n}", kernels=[kernel(0, 10), kernel(90, 100)]) for n in (0, 1)]
    opened = open_captures(paths)
    rows = frame(opened, "utilization", map="cuda_gpu_time_util_map", bins="2")
    assert rows["rank", "since_own_start_ns", "kernel_percent"].rows() == [
        (0, 0, 20.0),
        (0, 50, 20.0),
        (1, 0, 20.0),
        (1, 50, 20.0),
    ]
    opened.close()


def test_captures_without_data() -> None:
    with running(FIXTURES / "ncu" / "ncu_roofline_raw.csv") as viewer:
        assert not {"Utilization over time", "Pace", "Ranks"} & set(titles(viewer))
        assert ranks.get_rank_set(viewer._captures) is None


def test_a_capture_without_a_file() -> None:
    captures = captures_of(tk.Trace.from_tables({"kernels": table("kernels", [{"kernel_id": 1, "end_ns": 5}])}))
    assert ranks.list_nonempty_tables(ranks.analyze_communication(captures, CaptureAggregation())) == []
    assert frame(captures, "gpu_time")["total_ns"].to_list() == [5]


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("utilization", {"map": "mpi_sum", "bins": "30"}, "the requested heat map 'mpi_sum' does not exist"),
        ("utilization", {"map": next(iter(MAPS)), "bins": "301"}, "cannot have 301 bins"),
        ("utilization", {"map": next(iter(MAPS)), "bins": "x"}, "must be an integer of at most 18 digits"),
        ("utilization", {"map": next(iter(MAPS)), "bins": "30"}, "this table compares the ranks of a job"),
        ("pace", {"kind": "mpi_sum", "name": "x"}, "the URL requests an unknown kind of occurrences"),
        ("pace", {"kind": next(iter(PACES)), "name": "x"}, "this table compares the ranks of a job"),
        ("gpu_time", {}, "this table compares the ranks of a job"),
        ("ranks_summary", {}, "this table compares the ranks of a job"),
    ],
)
def test_requests_that_are_not_valid(name: str, arguments: dict[str, str], problem: str) -> None:
    trace = tk.Trace.from_tables({"kernels": table("kernels", [{"kernel_id": 1}])})
    with pytest.raises(TracekitError, match=problem):
        find_dataset(name).read_rows(TableInputs(trace, arguments))
