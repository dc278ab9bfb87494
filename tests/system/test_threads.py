"""Work in several threads: totals that are handed on, and whose failure is the one that is raised."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tracekit.exporters.timeline.batches import BatchFile
from tracekit.system import memory
from tracekit.system.threads import EarlierJobError, RunningTotals, map_in_order, unlocked_property


def test_totals_are_those_of_the_jobs_before() -> None:
    relay = RunningTotals()
    assert list(map_in_order(lambda n: relay.add_counts_and_get_earlier_totals(n, {"rows": n})["rows"], range(6))) == [
        0,
        0,
        1,
        3,
        6,
        10,
    ]


def test_the_threads_have_the_memory_limit_of_the_caller() -> None:
    with memory.limit_memory(123):
        assert set(map_in_order(lambda _: memory.get_memory_limit(), range(8))) == {123}
    assert set(map_in_order(lambda _: memory.get_memory_limit(), range(8))) == {None}


def test_the_batches_of_a_file_have_the_memory_limit_of_the_caller(tmp_path: Path) -> None:
    with memory.limit_memory(123), BatchFile(tmp_path / "limits") as file:
        file.write_job_results([lambda: memoryview(str(memory.get_memory_limit()).encode())] * 3)
    assert (tmp_path / "limits").read_text("ascii") == "123123123"


def test_the_jobs_before_one_that_fails_go_on() -> None:
    """The last job fails first; nevertheless the first one gets its totals, and the error is that of the last."""
    relay, failed = RunningTotals(), threading.Event()

    def job(number: int) -> int:
        with relay.open_job_context(number):
            if number == 1:
                failed.set()
                raise ValueError("the second job")
            assert failed.wait(30)
            return relay.add_counts_and_get_earlier_totals(number, {"rows": 1})["rows"]

    results = map_in_order(job, range(2))
    assert next(results) == 0
    with pytest.raises(ValueError, match="the second job"):
        next(results)


def test_the_jobs_behind_one_that_fails_do_not_wait() -> None:
    relay = RunningTotals()
    with pytest.raises(ValueError, match="torn"), relay.open_job_context(0):
        raise ValueError("torn")
    with pytest.raises(EarlierJobError):
        relay.add_counts_and_get_earlier_totals(1, {})


def test_a_cached_property_holds_no_lock() -> None:
    class Node:
        def __init__(self, other: Node | None) -> None:
            self.other = other

        @unlocked_property
        def depth(self) -> int:
            if self.other is None:
                return 0
            (inner,) = map_in_order(lambda node: node.depth, [self.other])
            with ThreadPoolExecutor(1) as pool:
                return 1 + max(inner, pool.submit(lambda: Node(None).depth).result(timeout=10))

    node = Node(Node(None))
    assert (node.depth, node.depth) == (1, 1)
    assert isinstance(Node.depth, unlocked_property)
