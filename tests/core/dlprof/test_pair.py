"""The one public capture with the database and the reports that DLProf made of it: every value is the same.

Excepted are six values that no capture holds, which are options, and the sentences of the expert systems. The files are
private: no string of theirs is shown.
"""

from __future__ import annotations

import csv
import re
import sqlite3
from pathlib import Path

import pytest
import tracekit as tk
from tests.conftest import ClosedWhenDeleted

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
EXPORT = CORPUS / "nsys_pairs" / "MohanadOdema__DLProf" / "w_Relu" / "nsys_profile.sqlite"
DLPROF = CORPUS / "dlprof" / "w_Relu"
pytestmark = [pytest.mark.corpus, pytest.mark.skipif(not EXPORT.is_file(), reason="no corpus beside the checkout")]
SENTENCES = {"expert_systems_feedback": (3, 4), "view_expert_systems": (1, 2)}
TOLD = {
    "read_only_system_config": ("dlprof_version", "dlprof_build", "original_command"),
    "aggregations": ("server_user_name", "server_host_name", "start_timestamp"),
}
OPTIONS = ("dlprof-version", "dlprof-build", "command", "user", "host", "time")


def opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, factory=ClosedWhenDeleted)


def options(reference: sqlite3.Connection) -> dict[str, str]:
    values = [reference.execute(f"SELECT {', '.join(c)} FROM {t}").fetchone() for t, c in TOLD.items()]
    return dict(zip(OPTIONS, [v for row in values for v in row], strict=True))


def numbers(row: tuple, columns: tuple[int, ...]) -> tuple:
    return tuple(
        re.findall(r"(?<!\w)\d+(?:\.\d+)?%?", re.sub(r"FP16", "", v)) if i in columns else v for i, v in enumerate(row)
    )


@pytest.mark.parametrize("name", ["dlprof_dldb_1.sqlite", "dlprof_dldb_7.sqlite"])
def test_every_value_of_the_database(name: str, tmp_path: Path) -> None:
    reference = opened(DLPROF / name)
    with tk.load(EXPORT) as trace:
        rolled = trace.rollup(tensor_cores="dlprof")
        path = rolled.export(tmp_path / "x.sqlite", format="dlprof-db", options=options(reference))
    made = opened(path)
    names = reference.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    compared = 0
    for table, kind in names:
        theirs, ours = (db.execute(f"SELECT * FROM {table}").fetchall() for db in (reference, made))
        compared += sum(map(len, theirs))
        if kind == "view":
            theirs, ours = sorted(theirs), sorted(ours)
        if table in SENTENCES:
            theirs, ours = ([numbers(r, SENTENCES[table][:1]) for r in rows] for rows in (theirs, ours))
            theirs, ours = (
                [r[: SENTENCES[table][1]] + r[SENTENCES[table][1] + 1 :] for r in rows] for rows in (theirs, ours)
            )
            theirs, ours = sorted(theirs, key=repr), sorted(ours, key=repr)
        assert theirs == ours, f"{table} is not the same"
    assert compared == 13_880


def test_what_the_viewer_shows_is_the_same_unless_asked_for_dlprofs_mode(tmp_path: Path) -> None:
    """Each kernel has its own long name, which no view shows; and there are more findings than DLProf's."""
    reference = opened(DLPROF / "dlprof_dldb_1.sqlite")
    with tk.load(EXPORT) as trace:
        made = opened(trace.export(tmp_path / "x.sqlite", format="dlprof-db", options=options(reference)))
    views = [name for (name,) in reference.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
    compared = 0
    for view in sorted(set(views) - set(SENTENCES)):
        theirs, ours = (sorted(db.execute(f"SELECT * FROM {view}")) for db in (reference, made))
        compared += sum(map(len, theirs))
        assert theirs == ours, f"{view} is not the same"
    assert compared > 2_000


def test_every_value_of_the_reports(tmp_path: Path) -> None:
    told = {n: v for n, v in options(opened(DLPROF / "dlprof_dldb_1.sqlite")).items() if n.startswith("dlprof")}
    with tk.load(EXPORT) as trace:
        folder = trace.rollup(tensor_cores="dlprof").export(tmp_path / "reports", format="dlprof-reports", options=told)
    same, values = [], 0
    for path in sorted(DLPROF.glob("dlprof_*.csv")):
        made = folder / path.name
        rows = list(csv.reader(path.read_text("utf-8").splitlines(keepends=True)))
        values += len(rows) * max(map(len, rows))
        same += [path.stem] if path.read_bytes() == made.read_bytes() else []
        assert (folder / f"{path.stem}.json").is_file()
        if path.stem == "dlprof_expert_systems":
            ours = list(csv.reader(made.read_text("utf-8").splitlines(keepends=True)))
            assert ours[:2] == rows[:2]
            assert len(ours) == len(rows)
    assert len(same) == 7
    assert "dlprof_expert_systems" not in same
    assert values == 4_511
