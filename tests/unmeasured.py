"""Write ``tests/core/unmeasured.txt``: long tests of ``tracekit/core`` that run no code that no other test runs.

``make test`` measures the coverage of all other tests of ``tests/core``, as the measurement costs a quarter of their
time. A new test is measured. The list is only written anew if the coverage of ``make test`` is not complete although
the tests are: delete it, then run

    pytest tests/core --cov=tracekit/core --cov-context=test --cov-report= --junit-xml=out/core.xml
    python -m tests.unmeasured out/core.xml
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

from coverage import Coverage

UNMEASURED = Path(__file__).parent / "core" / "unmeasured.txt"
MIN_S = 0.3
"""Time of a test from which it is worth a line."""


def get_function(test: str) -> str:
    """Return the id of a test without its parameters."""
    return test.partition("[")[0]


def read_times(report: Path) -> Counter[str]:
    """Return the time of each test function in seconds, by module, class and name."""
    times: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):
        times[get_function(f"{case.attrib['classname']}.{case.attrib['name']}")] += float(case.attrib["time"])
    return times


def read_arcs() -> dict[str, set[int]]:
    """Return the numbers of the arcs that each test function runs."""
    coverage = Coverage()
    coverage.load()
    data = coverage.get_data()
    arcs: defaultdict[str, set[int]] = defaultdict(set)
    numbers: defaultdict[tuple[str, int, int], int] = defaultdict(itertools.count().__next__)
    for context in filter(None, data.measured_contexts()):
        data.set_query_context(context)
        test = get_function(context.rpartition("|")[0])
        for file in data.measured_files():
            arcs[test].update(numbers[file, *arc] for arc in data.arcs(file) or ())
    return arcs


def main(report: str) -> None:
    """Drop the longest tests first, as long as the others run the same arcs."""
    arcs, times = read_arcs(), read_times(Path(report))
    seconds = {test: times[test.replace(".py::", ".").replace("::", ".").replace("/", ".")] for test in arcs}
    counts = Counter(arc for each in arcs.values() for arc in each)
    dropped = []
    for test in sorted(arcs, key=lambda test: (-seconds[test], test)):
        if seconds[test] >= MIN_S and all(counts[arc] > 1 for arc in arcs[test]):
            counts.subtract(arcs[test])
            dropped.append(test)
    UNMEASURED.write_text("".join(f"{test}\n" for test in sorted(dropped)), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
