"""Reports and rules on exports with random events, compared with the output of nsys.

The files with the suffix ``.json.gz`` contain what nsys 2025.3.1 printed as CSV. Their keys are arguments of ``nsys``.

- ``random``: the events of ``train_amp.sqlite`` were replaced with random ones: up to three processes whose correlation
  ids repeat, names with commas, quotes and line breaks, empty and open ranges, ranges that cross, strings inline and by
  id, calls without and with many activities. ``*.filtered.json.gz`` has the output with ``--filter-time`` and
  ``--filter-nvtx``.
- ``apis``: random events of APIs that no capture at hand contains, such as Vulkan and OpenACC, in the tables that
  ``nsys export --lazy=false`` creates: ranges that two calls delimit, null values, threads with several names, names
  with a version, and many equal times.
"""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tracekit.registry.analyses import RULE

FOLDER = Path(__file__).parent / "nsys_exports"
EXPORTS = sorted((FOLDER / "random").glob("*.sqlite"))
APIS = sorted((FOLDER / "apis").glob("*.sqlite"))
WINDOW = "--filter-time=20011/60007 "
DIFFERENT_WITH_FILTER = {
    "cuda_api_trace",  # nsys prints nothing if the export has no names of threads
    "um_sum",  # nsys does not filter page faults of CPUs
    "um_total_sum",
    "nvtx_sum",  # nsys does not select open ranges, and prints some ranges without their domain
    "nvtx_startend_sum",
    "nvtx_pushpop_sum",
    "nvtx_pushpop_trace",
}


pytestmark = pytest.mark.filterwarnings("ignore:.*the API calls of . of .* kernels cannot be found")


def printed_by_nsys(path: Path) -> dict[str, str]:
    printed: dict[str, str] = json.loads(gzip.decompress(path.read_bytes()))
    return printed


def csv_of(trace: tk.Trace, arguments: str) -> str:
    verb, name = arguments.rsplit(" ", 1)
    option, _, value = verb.partition("=")
    if option == "--filter-time":
        start, stop = (int(bound) if bound else None for bound in value.split("/"))
        trace = trace.select(time=(start, stop))
    elif option == "--filter-nvtx":
        trace = trace.select(nvtx=value)
    sink = io.BytesIO()
    (trace._view.report(name, None, (RULE,)) if verb == "analyze" else trace.report(name)).csv(sink)
    return sink.getvalue().decode()


@pytest.mark.slow
@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.stem)
def test_reports_and_rules_equal_those_of_nsys(path: Path) -> None:
    printed = printed_by_nsys(path.with_suffix(".json.gz"))
    assert len(printed) == 37
    assert sum(map(bool, printed.values())) >= 30
    trace = tk.load(path)
    assert {arguments: csv_of(trace, arguments) for arguments in printed} == printed


@pytest.mark.slow
@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.stem)
def test_filtered_reports_equal_those_of_nsys(path: Path) -> None:
    printed = printed_by_nsys(path.with_suffix(".filtered.json.gz"))
    equal = {k: text for k, text in printed.items() if k.rsplit(" ", 1)[1] not in DIFFERENT_WITH_FILTER}
    assert len(equal) in {75, 105}
    assert sum(map(bool, equal.values())) >= 65
    trace = tk.load(path)
    assert {arguments: csv_of(trace, arguments) for arguments in equal} == equal


def test_open_ranges_that_overlap_the_selected_time_are_selected() -> None:
    path = next(p for p in EXPORTS if p.stem == "events11")
    arguments = "--filter-time=30000/90000 nvtx_startend_sum"
    trace = tk.load(path)
    theirs = printed_by_nsys(path.with_suffix(".filtered.json.gz"))[arguments].splitlines()
    names = {line.rsplit(",:", 1)[1] for line in csv_of(trace, arguments).splitlines()[1:] if ",:" in line}
    additional = names - {line.rsplit(",:", 1)[1] for line in theirs[1:] if ",:" in line}
    ranges = trace.frame("nvtx_ranges").filter(pl.col("end_ns").is_null(), pl.col("start_ns") < 90000, kind="start_end")
    opened = set(ranges.collect()["name"].cast(pl.String).to_list())
    assert additional
    assert additional <= opened


def test_migrations_of_a_time_without_page_faults_of_cpus_are_reported() -> None:
    path = next(p for p in EXPORTS if p.stem == "events11")
    arguments = "--filter-time=30000/90000 um_total_sum"
    trace = tk.load(path)
    theirs = printed_by_nsys(path.with_suffix(".filtered.json.gz"))[arguments]
    header, totals = theirs.splitlines()
    assert totals == "2.097,,15,8,,"
    assert csv_of(trace, arguments) == f"{header}\n2.097,,0,8,,\n"
    assert trace.select(time=(30000, 90000)).count("cpu_page_faults") == 0


@pytest.mark.parametrize("filtered", ["", WINDOW], ids=["all", "window"])
@pytest.mark.parametrize("path", APIS, ids=lambda path: path.stem)
def test_reports_on_other_apis_equal_those_of_nsys(path: Path, filtered: str) -> None:
    printed = printed_by_nsys(path.with_suffix(".json.gz"))
    prefix = filtered or "stats "
    chosen = {arguments: text for arguments, text in printed.items() if arguments.startswith(prefix)}
    assert len(chosen) == 19
    assert sum(map(bool, chosen.values())) >= 13
    trace = tk.load(path)
    computed = {arguments: csv_of(trace, arguments) for arguments in chosen}
    # The order of rows with equal totals differs between captures in openmp_sum. In openacc_sum, it depends on folders
    # of source files, which tracekit omits.
    for name in ("openmp_sum", "openacc_sum"):
        computed[prefix + name], chosen[prefix + name] = (
            "\n".join(sorted(text.replace("/src/dir/main.c:", "main.c:").splitlines()))
            for text in (computed[prefix + name], chosen[prefix + name])
        )
    assert computed == chosen


def test_each_report_on_other_apis_has_rows_in_an_export() -> None:
    printed = [printed_by_nsys(path.with_suffix(".json.gz")) for path in APIS]
    reports = [arguments for arguments in printed[0] if arguments.startswith("stats ")]
    assert len(reports) == 19
    assert all(any(each[arguments] for each in printed) for arguments in reports)
