"""The steps of the viewer on a large capture: ``python view.py CAPTURE``, in seconds and as ratios to polars.

The memory of the data is the resident memory of the process, less that of a viewer that shows a small capture. It is
divided by the size of all tables with all columns as Arrow data.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracekit.system.memory import ALLOCATORS

os.environ.update(ALLOCATORS | os.environ)  # as the command sets them

import flask
import polars as pl
from tracekit.system import memory
from tracekit.view import pages, query
from tracekit.view.captures import ViewedCaptures, open_captures
from tracekit.view.state import CaptureAggregation, PageState

SMALL = Path(__file__).parents[2] / "fixtures" / "train_amp.sqlite"
FILTER = {"duration_ns": {"filterType": "number", "type": "greaterThan", "filter": 3000}}
SORT = [{"colId": "duration_ns", "sort": "desc"}]


def timed(work: Callable[[], Any]) -> float:
    """Seconds that a piece of work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def page(captures: ViewedCaptures, start: int = 0, **options: str) -> Callable[[], query.SentRows]:
    """A request for 100 rows of the launches of kernels."""
    return lambda: query.load_page(
        captures, query.Query("launches", CaptureAggregation(), **options), start, start + 100
    )


def overview(captures: ViewedCaptures, at: CaptureAggregation) -> Callable[[], list[Any]]:
    """The overview of an aggregation."""
    return lambda: pages.build_page(pages.Context(captures, PageState("", at), dark=False))


def peak() -> float:
    """Largest resident memory so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def resident(captures: ViewedCaptures) -> float:
    """Resident memory in MB, after polars has returned freed memory to the system."""
    captures.free_working_data()
    time.sleep(3)
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize() / 1e6


def open_pages(captures: ViewedCaptures, at: CaptureAggregation) -> None:
    """Open all pages that a capture has."""
    for each in pages.list_available_pages(captures, captures[at]):
        pages.build_page(pages.Context(captures, PageState(each.name, at), dark=False))
        captures.free_working_data()


def size_of_tables(captures: ViewedCaptures) -> float:
    """Size of all tables with all columns in MB."""
    trace = captures.all[0].get_aggregated_trace(CaptureAggregation())
    return sum(trace.table(name).nbytes for name in trace.tables) / 1e6


def without_data() -> float:
    """Resident memory in MB of a viewer that shows a small capture."""
    captures = open_captures([SMALL])
    open_pages(captures, CaptureAggregation())
    captures.close()
    return resident(captures)


def measure(path: Path) -> dict[str, float]:
    """The seconds of each step, the ratios to polars alone, and the memory."""
    memory.make_malloc_return_large_blocks()
    found = {"MB without data": without_data()}
    captures = open_captures([path])
    found |= {"load: read, correlate and roll up": timed(lambda: captures.all[0].has_rows_in_any("ops"))}
    trace = captures.all[0].get_aggregated_trace(CaptureAggregation())
    found["GB at most while loading"] = peak()
    found["overview after loading"] = timed(overview(captures, CaptureAggregation()))
    found["MB after the overview"] = resident(captures)
    frame = trace.frame("kernels").with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns")).collect()
    found["first page of 1 M launches"] = timed(page(captures))
    found["another page"] = timed(page(captures, 500_000))
    plain = timed(lambda: frame.filter(pl.col("duration_ns") > 3000))
    found["filter by duration"] = timed(page(captures, filter=json.dumps(FILTER)))
    found["filter: times of polars alone"] = found["filter by duration"] / plain
    found["search in all text columns"] = timed(page(captures, search="gemm"))
    plain = timed(lambda: frame.sort("duration_ns", descending=True))
    found["sort by duration"] = timed(page(captures, sort=json.dumps(SORT)))
    found["sort: times of polars alone"] = found["sort by duration"] / plain
    last = trace.frame("iterations").select(pl.col("iteration").max()).collect().item()
    found["overview of other iterations"] = timed(overview(captures, CaptureAggregation(0, min(1, last), last)))
    frame = frame.clear()
    found["MB after these steps"] = resident(captures)
    open_pages(captures, CaptureAggregation())
    found["MB after all pages"] = resident(captures)
    found["GB at most"] = peak()
    found["MB of the tables"] = size = size_of_tables(captures)
    for step in ("after the overview", "after these steps", "after all pages"):
        found[f"times the tables {step}"] = (found[f"MB {step}"] - found["MB without data"]) / size
    captures.close()
    return found


if __name__ == "__main__":
    with flask.Flask("bench").test_request_context("/"):
        for step, value in measure(Path(sys.argv[1])).items():
            print(f"{step:40s} {value:8.3f}")
