"""The reports that fuzzing starts from contain every declared message, and fill every table and column."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_rep_events import SECTIONS, declared, made_report, messages_in
from tests.fuzz import nsys_rep, nsys_sqlite
from tracekit import schemas
from tracekit.errors import TracekitWarning
from tracekit.readers.nsys.mapping import SOURCES
from tracekit.readers.nsys_rep import layout
from tracekit.readers.nsys_rep.report import NsysReportCapture
from tracekit.registry.source import Source
from tracekit.registry.tables import read_chunks

OF_THE_FILE = {"Contents", "Section", "DataOffsets"}
"""Messages that say where the others are, which every report has."""

TABLES = {name for name, sources in SOURCES.items() if sources.labels.keys() & layout.TABLES.keys()}
TABLES -= {"python_samples"}  # ranges of a domain that a program defines, as the fixtures have them


def messages_of(report: nsys_rep.Report) -> set[str]:
    """The declared messages that a report contains."""
    roots = [("EventBlock", b"".join(b)) for b in report.blocks] + [
        ("StringBlock", b"".join(b)) for b in report.strings
    ]
    roots += [("CaptureHeader", report.header), ("StreamHeader", report.stream)]
    roots += [(SECTIONS[name], data) for name, data in report.sections.items() if name in SECTIONS]
    roots += [("Trailer" if m is report.rest[-1] else "ThreadNames", m) for m in report.rest]
    roots += [] if report.schemas is None else [("PayloadSchemas", report.schemas)]
    return {name for root, data in roots for name in messages_in(root, data)}


@pytest.mark.slow
def test_fuzzing_starts_from_every_declared_message() -> None:
    found = set[str]().union(*map(messages_of, nsys_rep.own_reports()))
    assert declared().keys() - found - OF_THE_FILE == set()


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> NsysReportCapture:
    path: Path = tmp_path_factory.mktemp("made") / "made.nsys-rep"
    path.write_bytes(made_report())
    return NsysReportCapture(Source(path))


def test_the_made_report_has_events_of_every_kind(capture: NsysReportCapture) -> None:
    assert [t for t in layout.TABLES if not capture.report.count_rows([(t, None)])[0]] == []
    assert capture.undecoded == {}


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_column_from_a_report_has_a_value(name: str, capture: NsysReportCapture) -> None:
    schema = schemas.table(name)
    data = read_chunks(capture, name, schema.names)
    mapping = SOURCES[name]
    sources = [t for t in mapping.labels if t in layout.TABLES]
    filled = [c for c in schema.names if any(mapping.find_column(t, c) in layout.TABLES[t].columns for t in sources)]
    assert filled
    assert [c for c in filled if data[c].null_count == len(data) and schema[c].type != "dictionary"] == []


def test_fuzzing_of_exports_starts_from_every_source_table(tmp_path: Path) -> None:
    path = tmp_path / "made.sqlite"
    path.write_bytes(nsys_sqlite.made_export())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        with tk.load(path) as trace:
            assert {n for n in SOURCES if not trace.table(n).num_rows} == {"python_samples"}
