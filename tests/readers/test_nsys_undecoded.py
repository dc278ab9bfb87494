"""What exports of nsys hold and tracekit does not decode: source tables with rows, counted."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tracekit as tk
from tests.builders.nsys_rep import CAPTURES, SHARED
from tests.helpers import count_undecoded
from tracekit.errors import TracekitWarning
from tracekit.readers.nsys import counters
from tracekit.readers.nsys.export import list_decoded_tables
from tracekit.readers.nsys_sqlite.capture import ExportCapture
from tracekit.readers.nsys_sqlite.tables import ExportTables
from tracekit.registry.source import Source

if TYPE_CHECKING:
    from tracekit.readers.nsys.tables import ColumnsRequest

MORE = SHARED / "captures" / "h200_more"
EXPORTS = sorted(CAPTURES.glob("*.sqlite"))
OF_TRAIN = {
    "META_DATA_CAPTURE": 89,
    "ANALYSIS_FILE": 2,
    "ProcessStreams": 2,
    "TARGET_INFO_CUDA_DEVICE": 2,
}


@pytest.mark.parametrize("name", ["train_amp.sqlite", "train_amp_parquetdir", "train_amp_arrowdir"])
def test_every_form_lists_the_same(name: str) -> None:
    with tk.load(CAPTURES / name) as trace:
        assert list(count_undecoded(trace.undecoded).items()) == list(OF_TRAIN.items())


@pytest.mark.parametrize("export", EXPORTS, ids=lambda p: p.stem)
def test_a_table_with_rows_is_read_or_listed(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    batches = ExportTables.read_batches

    def noting(self: ExportTables, requests: Sequence[ColumnsRequest[object]]) -> object:
        asked.update(r.table for r in requests)
        return batches(self, requests)

    monkeypatch.setattr(ExportTables, "read_batches", noting)
    with tk.load(export) as trace:
        for name in trace.tables:
            trace.table(name)
        listed = count_undecoded(trace.undecoded)
    with contextlib.closing(sqlite3.connect(f"file:{export}?mode=ro&immutable=1", uri=True)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        rows = {n: db.execute(f'SELECT count(*) FROM "{n}"').fetchone()[0] for n in names}
    looked_up = {n for n in rows if n.startswith("ENUM_") or n in counters.SMALL_TABLES}  # read if rows refer to them
    others = {n: count for n, count in rows.items() if count and n not in asked | looked_up}
    assert listed == others
    assert asked.isdisjoint(listed)
    assert asked <= list_decoded_tables() | {n for n in asked if n.startswith("ENUM_")}


def test_a_table_that_cannot_be_counted_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "more.sqlite"
    shutil.copyfile(CAPTURES / "empty.sqlite", path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE mine (a TEXT PRIMARY KEY) WITHOUT ROWID")
        db.execute("CREATE TABLE own (a)")
        db.execute("INSERT INTO own VALUES (1), (2)")
        db.execute("CREATE TABLE hollow (a)")
    capture = ExportCapture(Source(path))
    with pytest.warns(
        TracekitWarning, match="the rows of 1 undecoded tables cannot be counted; the first error is: table mine"
    ):
        counts = capture.undecoded
    assert counts["own"] == 2
    assert counts.keys().isdisjoint({"mine", "hollow"})


@pytest.mark.skipif(not MORE.is_dir(), reason="no captures beside the checkout")
def test_calls_of_mpi_are_decoded() -> None:
    with tk.load(MORE / "mpi_rank0.sqlite") as trace:
        assert [n for n in trace.undecoded if n.startswith("MPI")] == []
