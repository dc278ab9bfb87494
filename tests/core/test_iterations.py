"""Where iterations begin and end."""

from __future__ import annotations

import polars as pl
import pytest
from tests.core.scenes import declared, nvtx
from tracekit.core import iterations
from tracekit.core.ops import Ops
from tracekit.core.rollup import Rollup
from tracekit.errors import TracekitError

BACKWARD = "{'mod': 'torch', 'op': 'backward', 'args': []}"


def ops(*processes: list[int]) -> Ops:
    """Ops of processes that each end a backward pass at some times."""
    made = [nvtx(*[(BACKWARD, 1, e - 5, e) for e in ends], process=p) for p, ends in enumerate(processes)]
    return Ops(declared(nvtx_ranges=pl.concat(made).with_columns(range_id=pl.int_range(pl.len()))), "pyprof")


def bounds(*processes: list[int]) -> list[tuple[int, int]]:
    return iterations.find(ops(*processes)).frame.select("start_ns", "end_ns").rows()


def test_processes_with_equal_counts_end_together() -> None:
    assert bounds([10, 30, 50], [12, 28, 55]) == [(0, 12), (12, 30), (30, 55)]


def test_a_process_with_one_more_is_matched_to_the_others() -> None:
    assert bounds([10, 30, 50], [31, 51]) == [(0, 31), (31, 51)]


def test_each_end_counts_where_counts_differ() -> None:
    assert bounds([10, 30, 50], [11], [12, 13]) == [(0, 10), (10, 11), (11, 12), (12, 13), (13, 30), (30, 50)]


@pytest.mark.parametrize("span", [(2, 1), (-1, None)])
def test_spans_that_hold_nothing(span: tuple[int, int | None]) -> None:
    with pytest.raises(TracekitError, match="are none"):
        iterations.find(ops([10, 30, 50]), span=span)


def test_other_iterations_of_the_same_ops() -> None:
    ranges = nvtx(*[(BACKWARD, 1, e - 5, e) for e in (10, 30, 50)])
    whole = Rollup.of(declared(nvtx_ranges=ranges))
    again = whole.again(span=(1, 2))
    assert again.measures is whole.measures
    assert again.iterations.chosen["end_ns"].to_list() == [30, 50]
    assert whole.iterations.chosen["end_ns"].to_list() == [10, 30, 50]
