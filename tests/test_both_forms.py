"""A report of nsys and the SQLite export of the same capture give the same: tables, selections, reports, exports."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.builders.nsys_rep import Parts, take_apart
from tests.builders.reports import REPORTS_OF_NSYS
from tracekit.readers.common.protobuf.decoding import Message
from tracekit.readers.nsys_rep.layout import PROCESS

FIXTURES = Path(__file__).parents[1] / "fixtures"
CAPTURES = sorted(p.stem for p in FIXTURES.glob("*.nsys-rep"))
PRINTED = sorted((FIXTURES / "stats").glob("*.csv"))
BOTH_FORMS = (".sqlite", ".nsys-rep")
NAMES_OF_A_PROCESS = {5, 6}
WITH_ARGUMENTS = {7, 8, 9}
LATER = {"kernels.graph_id", "kernels.cluster_x", "kernels.cluster_y", "kernels.cluster_z"}
"""What reports of 2025.3 hold and exports do from 2025.6 on."""
LATER_TABLES = {"jit_operations", "cuda_overheads"}
"""Tables that reports of 2025.3 hold and exports do from 2026 on."""
BEYOND = LATER | {"nvtx_ranges.payload_type", "nvtx_ranges.payload_text"}
"""What these reports hold and these exports do not; extended payloads are exported with ``--include-json``."""

SELECTIONS: dict[str, dict[str, Any]] = {
    "window": {"time": (45_000_000, 200_000_000)},
    "from": {"time": (100_000_000, None)},
    "device": {"devices": [1]},
    "domains": {"domains": ["NCCL", "TSL", "lib"]},
    "long": {"min_duration_ns": 5_000},
    "all at once": {"time": (0, 400_000_000), "devices": [0], "domains": ["", "NCCL"], "min_duration_ns": 900},
}


@pytest.fixture(params=CAPTURES, scope="module")
def forms(request: pytest.FixtureRequest) -> Iterator[tuple[tk.Trace, tk.Trace]]:
    """Each capture in turn: its export and its report."""
    export, report = (tk.load(FIXTURES / f"{request.param}{suffix}") for suffix in BOTH_FORMS)
    with export, report:
        yield export, report


def plain(trace: tk.Trace, name: str) -> pl.DataFrame:
    """A table whose values can be compared, whatever its dictionaries."""
    return trace.frame(name).with_columns(pl.col(pl.Categorical).cast(pl.String)).collect()


def differing(export: tk.Trace, report: tk.Trace) -> list[str]:
    """Name the tables and columns that differ, but those of which an export has nothing."""
    found = []
    for name in set(export.tables) - {"capture_info", *LATER_TABLES}:
        theirs, mine = plain(export, name), plain(report, name)
        if report.count(name) != mine.height or theirs.height != mine.height:
            found.append(f"{name}: {theirs.height} rows, {mine.height} rows in the report")
        else:
            columns = [f"{name}.{c}" for c in theirs.columns if not theirs[c].equals(mine[c])]
            found += [c for c in columns if c not in BEYOND or theirs[c.partition(".")[2]].count()]
    return found


def test_every_capture_is_there_in_both_forms() -> None:
    assert sorted(p.stem for p in FIXTURES.glob("*.sqlite")) == CAPTURES


@pytest.mark.slow
def test_every_column_of_every_row(forms: tuple[tk.Trace, tk.Trace]) -> None:
    assert differing(*forms) == []


def test_every_correlated_column_of_every_row(forms: tuple[tk.Trace, tk.Trace]) -> None:
    export, report = forms
    assert differing(export.correlate(), report.correlate()) == []


def test_what_only_the_report_holds() -> None:
    def filled(path: Path, table: str) -> set[str]:
        with tk.load(path) as trace:
            return {f"{table}.{c.name}" for c in plain(trace, table) if c.count()}

    for capture, table, columns in (("graph_node", "kernels", LATER), ("jax_mlp", "nvtx_ranges", BEYOND - LATER)):
        export, report = (FIXTURES / f"{capture}{suffix}" for suffix in BOTH_FORMS)
        assert filled(report, table) - filled(export, table) == columns


def selected(trace: tk.Trace, selection: str) -> tuple[tk.Trace | None, list[str]]:
    """Select, and return what was said about it: nothing but the error if there is nothing to select."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = trace.select(**SELECTIONS[selection]).correlate()
        except tk.TracekitError as e:
            return None, [e.message]
    return found, [str(w.message).partition(": ")[2] for w in said]


@pytest.mark.slow
@pytest.mark.many(2)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_every_selection(forms: tuple[tk.Trace, tk.Trace], selection: str) -> None:
    (export, of_export), (report, of_report) = (selected(trace, selection) for trace in forms)
    assert of_export == of_report
    if export is None or report is None:
        assert export is report
        assert "the capture has no events" in of_export[0]
    else:
        assert differing(export, report) == []


def test_selections_select() -> None:
    with tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
        found = {name: selected(trace, name) for name in SELECTIONS}
        counts = {name: trace.count("kernels") for name, (trace, _) in found.items() if trace is not None}
    assert {name: said for name, (_, said) in found.items() if said} == {
        name: [f"there is no NVTX domain '{d}' in the capture; choose one of these domains: ''" for d in missing]
        for name, missing in (("domains", ("NCCL", "TSL", "lib")), ("all at once", ("NCCL",)))
    }
    assert counts["domains"] == 334
    assert counts["device"] == 0
    assert all(0 < counts[name] < 334 for name in ("window", "from", "long", "all at once"))


def test_facts_are_the_same_but_for_the_versions(forms: tuple[tk.Trace, tk.Trace]) -> None:
    theirs, mine = (dict(trace.info) for trace in forms)
    assert (theirs.pop("tool_version"), mine.pop("tool_version")) == ("2025.3.2.0", "2025.3.1.0")
    assert theirs.pop("schema_version") == "3.20.3"
    assert theirs == mine
    machine = {"cpu_model", "driver_version", "os", "cuda_version"}
    assert mine.keys() == {"tool", "origin_utc_ns", "duration_ns", *machine}


def as_csv(trace: tk.Trace, report: str) -> bytes:
    sink = io.BytesIO()
    trace.report(report).csv(sink)
    return sink.getvalue()


def test_reports_are_what_nsys_printed(forms: tuple[tk.Trace, tk.Trace]) -> None:
    _, report = forms
    assert report.path is not None
    printed = {p: p.stem.removeprefix(f"{report.path.stem}_") for p in PRINTED if p.stem.startswith(report.path.stem)}
    assert [p.name for p, name in printed.items() if as_csv(report, name) != p.read_bytes()] == []


def test_every_printed_report_belongs_to_a_capture() -> None:
    belong = [
        c for p in PRINTED for c in CAPTURES if p.stem.startswith(f"{c}_") and p.stem[len(c) + 1 :] in REPORTS_OF_NSYS
    ]
    assert len(belong) == len(PRINTED) > 70


@pytest.mark.slow
@pytest.mark.many(1)
def test_reports_are_those_of_the_export(forms: tuple[tk.Trace, tk.Trace]) -> None:
    assert [r for r in REPORTS_OF_NSYS if as_csv(forms[0], r) != as_csv(forms[1], r)] == []


@pytest.mark.slow
@pytest.mark.many(1)
def test_chrome_traces_have_the_same_events(forms: tuple[tk.Trace, tk.Trace], tmp_path: Path) -> None:
    written = [json.loads(t.export(tmp_path / f"{t.format}.json").read_text("utf-8")) for t in forms]
    theirs, mine = (trace.pop("traceEvents") for trace in written)
    extended = [e["args"] for e in mine if e.get("args", {}).get("payload_type") == "json"]
    assert len(extended) == {"ddp2": 16, "jax_mlp": 43}.get(Path(str(forms[0].path)).stem, 0)
    for arguments in extended:
        del arguments["payload_type"], arguments["payload"]
    assert theirs == mine
    about = [trace.pop("otherData") for trace in written]
    assert {k for k in about[0].keys() | about[1].keys() if about[0].get(k) != about[1].get(k)} <= {
        "format", "tool_version", "schema_version",
    }  # fmt: skip
    assert written[0] == written[1]


@pytest.mark.many(2)
@pytest.mark.parametrize("format", ["csv", "parquet", "arrow"])
def test_exported_tables_are_the_same(forms: tuple[tk.Trace, tk.Trace], tmp_path: Path, format: str) -> None:
    folders = [trace.export(tmp_path / trace.format, format=format) for trace in forms]
    if format == "csv":
        others = {"capture_info", *LATER_TABLES, *(column.partition(".")[0] for column in BEYOND)}
        pairs = [[p.read_bytes() for p in sorted(f.iterdir()) if p.stem not in others] for f in folders]
        assert pairs[0] == pairs[1]
    else:
        assert differing(*(tk.load(folder) for folder in folders)) == []


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_report_tells_no_more_of_processes_than_its_export(capture: str) -> None:
    parts = take_apart(FIXTURES / f"{capture}.nsys-rep")
    found = [
        e.message(PROCESS) for b in parts.blocks for e in Message(memoryview(b)).messages(1) if e.bytes_values(PROCESS)
    ]
    with contextlib.closing(sqlite3.connect(f"file:{FIXTURES / capture}.sqlite?mode=ro&immutable=1", uri=True)) as db:
        names = {name for (name,) in db.execute("SELECT name FROM PROCESSES")}
    assert len(found) >= 300
    assert [p for p in found if any(p.bytes_values(f) for f in WITH_ARGUMENTS)] == []
    assert {p.text(f) for p in found for f in NAMES_OF_A_PROCESS if p.bytes_values(f)} <= names


@pytest.mark.parametrize("capture", CAPTURES)
def test_strings_of_a_report_are_those_of_its_export(capture: str) -> None:
    with contextlib.closing(sqlite3.connect(f"file:{FIXTURES / capture}.sqlite?mode=ro&immutable=1", uri=True)) as db:
        db.text_factory = bytes
        theirs = [value for (value,) in db.execute("SELECT value FROM StringIds ORDER BY id")]
    assert strings(take_apart(FIXTURES / f"{capture}.nsys-rep")) == theirs


def strings(parts: Parts) -> list[bytes]:
    return [bytes(text) for block in parts.strings for text in Message(memoryview(block)).bytes_values(1)]


@pytest.mark.many(1)
@pytest.mark.parametrize("suffix", BOTH_FORMS)
@pytest.mark.parametrize("name", CAPTURES)
def test_rows_are_counted_as_they_are_read(name: str, suffix: str) -> None:
    with tk.load(FIXTURES / f"{name}{suffix}") as trace, tk.load(FIXTURES / f"{name}{suffix}") as again:
        counts = trace.count_all()
        assert counts == {t: again.count(t) for t in again.tables} == {t: again[t].num_rows for t in again.tables}
        assert counts["processes"] > 0
