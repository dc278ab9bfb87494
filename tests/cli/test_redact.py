"""``tracekit redact``, and ``--via`` of the verbs that read."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cli.test_main import with_full_disk
from tests.fake_nsys import FakeNsys
from tracekit import cli
from tracekit.readers.common.redaction import KINDS

if TYPE_CHECKING:
    from tests.cli.conftest import Run, Show

TRAIN = "fixtures/train_amp.sqlite"
COUNTS = (11, 8, 3, 1, 0, 0, 0)


def test_counts_are_printed_and_the_copy_is_named(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "shared.sqlite"
    result = run("redact", TRAIN, out)
    expected = ["emptied               number", *(f"{k:<20}  {n:>6}" for k, n in zip(KINDS, COUNTS, strict=True))]
    assert result.text.splitlines() == expected
    assert result.stderr == f"wrote {out}\n"
    with sqlite3.connect(out) as db:
        assert db.execute("SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_HOST'").fetchall() == [("",)]
    db.close()


def test_json_and_quiet(run: Run, tmp_path: Path) -> None:
    result = run("redact", TRAIN, tmp_path / "a.sqlite", "--json", "-q")
    assert json.loads(result.text) == dict(zip(KINDS, COUNTS, strict=True))
    assert result.stderr == ""


def test_standard_output_gets_the_copy_alone(run: Run, tmp_path: Path) -> None:
    run("redact", TRAIN, tmp_path / "a.sqlite")
    result = run("redact", TRAIN, "-")
    assert result.stdout == (tmp_path / "a.sqlite").read_bytes()
    assert result.stderr == ""


def test_what_exists_is_replaced_only_by_force(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "a.sqlite"
    out.write_text("precious")
    assert run("redact", TRAIN, out, status=1).stderr.startswith(f"tracekit: {out}: exists already\nHint: ")
    assert out.read_text() == "precious"
    run("redact", TRAIN, out, "-f")
    assert out.read_bytes().startswith(b"SQLite format 3")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("pyproject.toml", "no reader recognises the content"),
        ("nothing.sqlite", "No such file or directory"),
        ("docs", "a folder, and no reader recognises what is in it"),
    ],
)
def test_errors(run: Run, tmp_path: Path, path: str, said: str) -> None:
    assert run("redact", path, tmp_path / "out", status=1).stderr.startswith(f"tracekit: {path}: {said}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [TRAIN, "fixtures/train_amp.nsys-rep"])
def test_a_full_disk_leaves_nothing_and_keeps_what_was_there(path: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("precious")
    result = with_full_disk("redact", path, out, "-f")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"tracekit: {out}: cannot be written: ")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert out.read_text() == "precious"


def test_a_terminal_shows_a_table(show: Show, tmp_path: Path) -> None:
    shown = show("redact", TRAIN, tmp_path / "a.sqlite", columns=60)
    assert "environment               11\n" in shown
    assert max(map(len, shown.splitlines())) <= 120


VERBS = {
    "convert": ["-", "--to", "csv", "--table", "kernels"],
    "correlate": ["-o", "-", "--to", "csv"],
    "info": ["--json"],
    "rows": ["kernels", "--format", "csv", "-n", "0"],
    "stats": ["-r", "cuda_gpu_kern_sum", "--format", "csv"],
    "tables": ["--format", "csv"],
}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNsys:
    """A PATH without nsys."""
    return FakeNsys(tmp_path, monkeypatch)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_reads_can_read_via_nsys(verb: str, run: Run, fake: FakeNsys) -> None:
    fake.install_exporter()
    expected = run(verb, TRAIN, *VERBS[verb]).text.replace(TRAIN, str(fake.report))
    assert run(verb, fake.report, *VERBS[verb], "--via", "nsys").text == expected
    assert fake.called.exists()
    assert fake.left() == []


def test_every_verb_with_from_has_via(run: Run) -> None:
    helps = {verb: run(verb, "--help").text for verb in cli.VERBS}
    assert {v for v, text in helps.items() if "--via" in text} == {v for v, text in helps.items() if "--from" in text}
    assert {v for v, text in helps.items() if "--via" in text} >= VERBS.keys()


def test_via_without_nsys_is_an_error(run: Run, fake: FakeNsys) -> None:
    said = f"tracekit: {fake.report}: there is no nsys on the PATH"
    assert run("info", fake.report, "--via", "nsys", status=1).stderr.startswith(said)
    assert "'ncu' is not 'nsys'" in run("info", fake.report, "--via", "ncu", status=2).stderr
