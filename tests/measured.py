"""Choose the tests whose coverage is measured, because measuring takes a third of the time of a test.

``python -m pytest -p tests.measured -n 2 --cov --cov-report=`` measures all tests and writes ``not_measured.txt`` anew:
the tests that take long and whose lines and branches other tests reach, too. Every line and branch of
``tracekit/core`` that is reached stays measured. Tests that are not in the list, such as new ones, are measured.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from contextlib import closing

import coverage
import pytest
from tests.conftest import NOT_MEASURED, function_of

LONG_SECONDS = 0.25
"""Shorter tests are measured whatever they reach."""
BRANCHES_PER_SECOND = 10
"""A test is measured if it alone reaches more branches outside ``tracekit/core`` than this for each second."""

Branch = tuple[str, int, int]


class Recorder:
    """A plugin that notes which branches each test function reaches, and how long it takes."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        """Name the context of the coverage after the test function."""
        current = coverage.Coverage.current()
        if current is not None:
            current.switch_context(function_of(item.nodeid))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the time of the parameters of a test function."""
        if report.when == "call":
            self.seconds[function_of(report.nodeid)] += report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Write the list after the data of all workers are combined."""
        if not hasattr(config, "workerinput"):
            NOT_MEASURED.write_text("".join(f"{t}\n" for t in choose(self.seconds, branches_of_tests())), "utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Record if the module is loaded as a plugin."""
    config.pluginmanager.register(Recorder())


def branches_of_tests() -> dict[str, set[Branch]]:
    """Return the branches that each test function reached, of the data file of coverage."""
    reached: defaultdict[str, set[Branch]] = defaultdict(set)
    with closing(sqlite3.connect(coverage.Coverage().config.data_file)) as data:
        rows = data.execute(
            "SELECT context, path, fromno, tono FROM arc JOIN file ON file.id = file_id"
            " JOIN context ON context.id = context_id"
        )
        for test, path, start, end in rows:
            reached[test].add((path, start, end))
    return reached


def choose(seconds: Counter[str], reached: dict[str, set[Branch]]) -> list[str]:
    """Return the tests that need not be measured, which are chosen from the longest to the shortest."""
    times_reached = Counter(branch for branches in reached.values() for branch in branches)
    chosen = []
    for test, time in seconds.most_common():
        alone = [b for b in reached.get(test, ()) if times_reached[b] == 1]
        is_needed = any("/tracekit/core/" in path for path, _, _ in alone)
        if time < LONG_SECONDS or is_needed or len(alone) > time * BRANCHES_PER_SECOND:
            continue
        chosen.append(test)
        times_reached.subtract(reached.get(test, ()))
    return sorted(chosen)
