"""Reports and rules on exports with random events, compared with the output of nsys.

The events of ``train_amp.sqlite`` were replaced with random ones: up to three processes whose correlation ids repeat,
names with commas, quotes and line breaks, empty and open ranges, ranges that cross, strings inline and by id, calls
without and with many activities. The files with the suffix ``.json.gz`` contain what nsys 2025.3.1 printed as CSV, with
the arguments of ``nsys`` as keys.
"""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
import tracekit as tk

EXPORTS = sorted((Path(__file__).parent / "made_exports" / "random").glob("*.sqlite"))


def csv_of(trace: tk.Trace, arguments: str) -> str:
    verb, name = arguments.split()
    sink = io.BytesIO()
    (trace.report(name) if verb == "stats" else trace._view.analyze(name)).csv(sink)
    return sink.getvalue().decode()


@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.stem)
def test_reports_and_rules_equal_those_of_nsys(path: Path) -> None:
    printed = json.loads(gzip.decompress(path.with_suffix(".json.gz").read_bytes()))
    assert len(printed) == 37
    assert sum(map(bool, printed.values())) >= 30
    trace = tk.load(path)
    assert {arguments: csv_of(trace, arguments) for arguments in printed} == printed
