"""``tracekit redact``, and ``--via`` of the verbs that read."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cli.test_main import with_full_disk
from tests.fake_nsys import FakeNsys
from tracekit import cli
from tracekit.readers.redaction.patterns import KINDS

if TYPE_CHECKING:
    from tests.cli.conftest import Run, Show

TRAIN = "fixtures/train_amp.sqlite"
COUNTS = (11, 8, 3, 1, 0, 0, 4, 3, 0, 0, 0, 0, 0)
HOST = re.compile(r"redacted-[0-9a-f]{12}")


def test_counts_are_printed_and_the_copy_is_named(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "shared.sqlite"
    result = run("redact", TRAIN, out)
    expected = ["replaced              number", *(f"{k:<20}  {n:>6}" for k, n in zip(KINDS, COUNTS, strict=True))]
    assert result.text.splitlines() == expected
    assert result.stderr == f"wrote {out}\n"
    with sqlite3.connect(out) as db:
        ((host,),) = db.execute("SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_HOST'")
    assert HOST.fullmatch(host)
    db.close()


def test_json_and_quiet(run: Run, tmp_path: Path) -> None:
    result = run("redact", TRAIN, tmp_path / "a.sqlite", "--json", "-q")
    assert json.loads(result.text) == dict(zip(KINDS, COUNTS, strict=True))
    assert result.stderr == ""


@pytest.mark.slow
def test_standard_output_gets_the_copy_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"0123456789abcdef")
    run("redact", TRAIN, tmp_path / "a.sqlite", "--key-file", tmp_path / "key")
    result = run("redact", TRAIN, "-", "--key-file", tmp_path / "key")
    assert result.stdout == (tmp_path / "a.sqlite").read_bytes()
    assert result.stderr == ""


def test_a_check_counts_what_remains_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    result = run("redact", "--check", TRAIN, status=3)
    expected = ["remains               number", *(f"{k:<20}  {n:>6}" for k, n in zip(KINDS, COUNTS, strict=True))]
    assert result.text.splitlines() == expected
    assert result.stderr == ""
    assert list(tmp_path.iterdir()) == []
    run("redact", TRAIN, tmp_path / "a.sqlite")
    assert json.loads(run("redact", "--check", "--json", tmp_path / "a.sqlite").text) == dict.fromkeys(KINDS, 0)
    assert [p.name for p in tmp_path.iterdir()] == ["a.sqlite"]


@pytest.mark.parametrize("path", [TRAIN, "fixtures/train_amp.nsys-rep"])
def test_a_check_says_no_value(path: str, run: Run) -> None:
    said = run("redact", "--check", path, status=3).text
    assert {line.rsplit(None, 1)[0] for line in said.splitlines()} == {"remains", *KINDS}


def test_either_out_or_check_is_given(run: Run, tmp_path: Path) -> None:
    assert "exactly one of OUT and --check is required" in run("redact", TRAIN, status=2).stderr
    assert (
        "exactly one of OUT and --check is required" in run("redact", TRAIN, tmp_path / "a", "--check", status=2).stderr
    )


def test_short_and_missing_keys_are_refused(run: Run, tmp_path: Path) -> None:
    key = tmp_path / "key"
    assert "does not exist" in run("redact", TRAIN, tmp_path / "a.sqlite", "--key-file", key, status=2).stderr
    key.write_bytes(b"short")
    said = run("redact", TRAIN, tmp_path / "a.sqlite", "--key-file", key, status=1).stderr
    assert said == "tracekit: the key has only 5 bytes, so it can be guessed\nHint: use at least 16 random bytes\n"
    assert [p.name for p in tmp_path.iterdir()] == ["key"]
    said = run("redact", TRAIN, tmp_path / "a.sqlite", "--key-file", "/dev/zero", status=1).stderr
    assert said == "tracekit: the key is longer than 65536 bytes\nHint: use 16 random bytes\n"


def test_the_key_is_not_replaced(run: Run, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef")
    said = run("redact", TRAIN, key, "--key-file", key, "--force", status=1).stderr
    assert said == f"tracekit: {key}: this file is being read, so it cannot be replaced\nHint: choose another name\n"
    assert key.read_bytes() == b"0123456789abcdef"


def test_what_exists_is_replaced_only_by_force(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "a.sqlite"
    out.write_text("precious")
    assert run("redact", TRAIN, out, status=1).stderr.startswith(f"tracekit: {out}: the output already exists\nHint: ")
    assert out.read_text() == "precious"
    run("redact", TRAIN, out, "-f")
    assert out.read_bytes().startswith(b"SQLite format 3")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("pyproject.toml", "no reader recognizes the content"),
        ("nothing.sqlite", "No such file or directory"),
        ("docs", "this is a folder whose content no reader recognizes"),
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
    assert result.stderr.startswith(f"tracekit: {out}: the output cannot be written: ")
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


@pytest.mark.many(2)
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_reads_can_read_via_nsys(verb: str, run: Run, fake: FakeNsys) -> None:
    fake.install_exporter()
    expected = run(verb, TRAIN, *VERBS[verb]).text.replace(TRAIN, str(fake.report))
    assert run(verb, fake.report, *VERBS[verb], "--via", "nsys").text == expected
    assert fake.called.exists()
    assert fake.left() == []


def test_every_verb_with_from_has_via(run: Run) -> None:
    helps = {verb: run(verb, "--help").text for verb in cli.COMMANDS}
    from_ = {v for v, text in helps.items() if "--from" in text} - {"watch"}  # which reads captures as they arrive
    assert {v for v, text in helps.items() if "--via" in text} == from_
    assert {v for v, text in helps.items() if "--via" in text} >= VERBS.keys()


def test_via_without_nsys_is_an_error(run: Run, fake: FakeNsys) -> None:
    said = f"tracekit: {fake.report}: the report cannot be exported, because the program nsys is not on the PATH"
    assert run("info", fake.report, "--via", "nsys", status=1).stderr.startswith(said)
    assert "'ncu' is not 'nsys'" in run("info", fake.report, "--via", "ncu", status=2).stderr
