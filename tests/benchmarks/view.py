"""The steps of the viewer on a large capture: ``python view.py CAPTURE``, in seconds and as ratios to polars."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flask
import polars as pl
from tracekit.view import pages, query
from tracekit.view.captures import Captures, open_captures
from tracekit.view.state import Aggregated, State

FILTER = {"duration_ns": {"filterType": "number", "type": "greaterThan", "filter": 3000}}
SORT = [{"colId": "duration_ns", "sort": "desc"}]


def timed(work: Callable[[], Any]) -> float:
    """Seconds that a piece of work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def page(captures: Captures, start: int = 0, **options: str) -> Callable[[], query.Page]:
    """A request for 100 rows of the launches of kernels."""
    return lambda: query.load_page(captures, query.Query("launches", Aggregated(), **options), start, start + 100)


def overview(captures: Captures, at: Aggregated) -> Callable[[], list[Any]]:
    """The overview of an aggregation."""
    return lambda: pages.build(pages.Context(captures, State("", at), dark=False))


def peak() -> float:
    """Largest resident memory so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def measure(path: Path) -> dict[str, float]:
    """The seconds of each step, the ratios to polars alone, and the memory."""
    captures = open_captures([path])
    found = {"load: read, correlate and roll up": timed(lambda: captures.all[0].has("ops"))}
    trace = captures.all[0].at(Aggregated())
    frame = trace.frame("kernels").with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns")).collect()
    found["GB after loading"] = peak()
    found["overview after loading"] = timed(overview(captures, Aggregated()))
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
    found["overview of other iterations"] = timed(overview(captures, Aggregated(0, min(1, last), last)))
    found["GB at the end"] = peak()
    captures.close()
    return found


if __name__ == "__main__":
    with flask.Flask("bench").test_request_context("/"):
        for step, value in measure(Path(sys.argv[1])).items():
            print(f"{step:40s} {value:8.3f}")
